"""Why a batch, or one envelope of it, is not shuffled: codes that name no client."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Refusal(StrEnum):
    """Reasons for which a batch, or an envelope of it, is refused."""

    UNDER_MINIMUM = "under-minimum"
    DUPLICATE = "duplicate"
    REPLAYED = "replayed"
    WRONG_ROUND = "wrong-round"
    UNREADABLE = "unreadable"
    UNKNOWN_SIGNER = "unknown-signer"
    WRONG_SIZE = "wrong-size"
    NOT_THIS_ROLE = "not-a-mixer"
    MISCONFIGURED = "misconfigured"
    NO_ANSWER = "no-answer"
    NOT_PROVEN = "not-proven"
    WRONG_VERSION = "wrong-version"
    NOT_AGREED = "not-agreed"
    INCONSISTENT = "inconsistent"
    PROOF_REFUSED = "proof-refused"
    TOO_LARGE = "too-large"

    @property
    def conclusive(self) -> bool:
        """Whether it is certain that nothing of the round was shuffled or added up, now or before.

        If not, an answer may have been lost, and the round must be charged to the budget.
        """
        return self not in _OPEN


_OPEN = frozenset(
    {
        Refusal.REPLAYED,
        Refusal.WRONG_ROUND,
        Refusal.NO_ANSWER,
        Refusal.NOT_PROVEN,
        Refusal.INCONSISTENT,
    }
)
_MEANING = {
    Refusal.UNDER_MINIMUM: "fewer reports than the shuffler's minimum; invite more clients",
    Refusal.DUPLICATE: "two envelopes of one signer, or one envelope twice; send each client's answer once",
    Refusal.REPLAYED: "a round with this token was shuffled or tried before; start a round with a new token",
    Refusal.WRONG_ROUND: "an answer to another round; start a new one",
    Refusal.UNREADABLE: (
        "altered, sealed to another key, or sealed for another round; clients must pin this shuffler's key "
        "and all have heard the same round"
    ),
    Refusal.UNKNOWN_SIGNER: "not signed by an enrolled client; see the shuffler's enrolment file",
    Refusal.WRONG_SIZE: "batches or envelopes are not all of one size; clients must run one version",
    Refusal.NOT_THIS_ROLE: (
        "no mix node or aggregator, or not set up as one; set shuffle-role in its node_config"
    ),
    Refusal.MISCONFIGURED: "the shuffler cannot work; its own log says why",
    Refusal.NO_ANSWER: "the shuffler's answer was lost, or did not come in time",
    Refusal.NOT_PROVEN: "an answer to this round that the pinned mixer did not sign; check who runs the node",
    Refusal.WRONG_VERSION: (
        "server and mix node speak different versions; install the same shuffle-plugins on both"
    ),
    Refusal.NOT_AGREED: (
        "aggregators did not agree on one set of clients, or one did not answer in time; nothing was added up"
    ),
    Refusal.INCONSISTENT: (
        "the sum does not fit its check: an aggregator or a client did not follow the protocol; the round is "
        "charged and its sum is not used"
    ),
    Refusal.PROOF_REFUSED: (
        "a range proof does not hold: a client sent counts out of bounds, or shares that do not fit together"
    ),
    Refusal.TOO_LARGE: (
        "more reports or bytes than the mixer takes at once; invite fewer clients, or ask its operator to "
        "raise its limits (BatchLimits)"
    ),
}


class ShuffleError(ValueError):
    """Keys, files or messages of a shuffler that cannot be used; says which and what to do."""


class BatchRefused(ShuffleError):
    """A batch was refused as a whole; nothing of it was shuffled.

    Attributes:
        code: why. The text follows from it alone, so it tells nothing about who was in the batch.
        rejected: why envelopes were not good, by position, as far as they were checked.
    """

    def __init__(self, code: Refusal, rejected: Mapping[int, Refusal] | None = None) -> None:
        super().__init__(f"the batch was refused ({code}): {_MEANING[code]}")
        self.code = code
        self.rejected = MappingProxyType(dict(rejected or {}))

    def __reduce__(self) -> tuple[type[BatchRefused], tuple[Refusal, dict[int, Refusal]]]:
        return type(self), (self.code, dict(self.rejected))
