"""Why a batch, or one envelope of it, is not shuffled: codes that name no client."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Refusal(StrEnum):
    """Reasons for which a batch, or an envelope of it, is refused.

    Attributes:
        meaning: what happened, and what to do.
        conclusive: whether it is certain that nothing of the round was shuffled or added up, now or before.
            If not, an answer may have been lost, and the round must be charged to the budget.
    """

    meaning: str
    conclusive: bool

    def __new__(cls, value: str, meaning: str = "", conclusive: bool = True) -> Refusal:  # noqa: D102
        found = str.__new__(cls, value)
        found._value_, found.meaning, found.conclusive = value, meaning, conclusive
        return found

    UNDER_MINIMUM = "under-minimum", "fewer reports than the shuffler's minimum; invite more clients"
    DUPLICATE = (
        "duplicate",
        "two envelopes of one signer, or one envelope twice; send each client's answer once",
    )
    REPLAYED = (
        "replayed",
        "a round with this token was shuffled or tried before; start a round with a new token",
        False,
    )
    WRONG_ROUND = "wrong-round", "an answer to another round; start a new one", False
    UNREADABLE = (
        "unreadable",
        "altered, sealed to another key, or sealed for another round; clients must pin this shuffler's "
        "key and all have heard the same round",
    )
    UNKNOWN_SIGNER = "unknown-signer", "not signed by an enrolled client; see the shuffler's enrolment file"
    WRONG_SIZE = "wrong-size", "batches or envelopes are not all of one size; clients must run one version"
    NOT_THIS_ROLE = (
        "not-a-mixer",
        "no mix node or aggregator, or not set up as one; set shuffle-role in its node_config",
    )
    MISCONFIGURED = "misconfigured", "the shuffler cannot work; its own log says why"
    NO_ANSWER = "no-answer", "the shuffler's answer was lost, or did not come in time", False
    NOT_PROVEN = (
        "not-proven",
        "an answer to this round that the pinned mixer did not sign; check who runs the node",
        False,
    )
    WRONG_VERSION = (
        "wrong-version",
        "server and mix node speak different versions; install the same shuffle-plugins on both",
    )
    NOT_AGREED = (
        "not-agreed",
        "aggregators did not agree on one set of clients, or one did not answer in time; nothing was "
        "added up",
    )
    INCONSISTENT = (
        "inconsistent",
        "the sum does not fit its check: an aggregator or a client did not follow the protocol; the "
        "round is charged and its sum is not used",
        False,
    )
    PROOF_REFUSED = (
        "proof-refused",
        "a range proof does not hold: a client sent counts out of bounds, or shares that do not fit together",
    )
    TOO_LARGE = (
        "too-large",
        "more reports or bytes than the mixer takes at once; invite fewer clients, or ask its operator "
        "to raise its limits (BatchLimits)",
    )


class ShuffleError(ValueError):
    """Keys, files or messages of a shuffler that cannot be used; says which and what to do."""


class BatchRefused(ShuffleError):
    """A batch was refused as a whole; nothing of it was shuffled.

    Attributes:
        code: why. The text follows from it alone, so it tells nothing about who was in the batch.
        rejected: why envelopes were not good, by position, as far as they were checked.
    """

    def __init__(self, code: Refusal, rejected: Mapping[int, Refusal] | None = None) -> None:
        super().__init__(f"the batch was refused ({code}): {code.meaning}")
        self.code = code
        self.rejected = MappingProxyType(dict(rejected or {}))

    def __reduce__(self) -> tuple[type[BatchRefused], tuple[Refusal, dict[int, Refusal]]]:
        return type(self), (self.code, dict(self.rejected))
