"""The interface of a shuffler, what names the round that it shuffles, and why it refuses a batch."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar

from typing_extensions import override

from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Ranged, byte_string, whole_number

if TYPE_CHECKING:
    from shuffle_plugins.core import Reports

TOKEN_BYTES, DIGEST_BYTES = 16, 32


class Refusal(StrEnum):
    """Reasons for which a batch, or an envelope of it, is refused: codes that name no client.

    If one is not ``conclusive``, something of the round may have been shuffled or added up, now or before:
    the round must be charged to the budget.
    """

    meaning: str  # what happened, and what to do
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
    NO_REPORT = (
        "no-report",
        "what was shuffled holds no report that the server can read; server and clients must run one version",
        False,
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
    NOT_IN_SERIES = (
        "not-in-series",
        "not the next window of its series, or with other terms than the ones before it; nothing was added "
        "up, and the next round begins a new series",
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

    The text follows from the ``code`` alone, so it tells nothing about who was in the batch; ``rejected`` is
    why envelopes were not good, by position, as far as they were checked.
    """

    def __init__(self, code: Refusal, rejected: Mapping[int, Refusal] | None = None) -> None:
        super().__init__(f"the batch was refused ({code}): {code.meaning}")
        self.code = code
        self.rejected = MappingProxyType(dict(rejected or {}))

    def __reduce__(self) -> tuple[type[BatchRefused], tuple[Refusal, dict[int, Refusal]]]:
        return type(self), (self.code, dict(self.rejected))


class Shuffler(ABC):
    """Takes each client's reports and gives back all of them without names, in random order."""

    trust: ClassVar[str]  # one sentence on who must be trusted for that

    @property
    @abstractmethod
    def minimum(self) -> int:
        """Fewest clients' batches that are shuffled, at least 2."""

    @abstractmethod
    def shuffle(self, batches: Sequence[Reports]) -> Reports:
        """All reports, in an order drawn uniformly from the operating system's entropy.

        Batches are one per client, of the same number of reports; BatchRefused if there are fewer than
        :attr:`minimum`, or they do not look alike.
        """

    def shuffle_reports(self, reports: Reports) -> Reports:
        """As :meth:`shuffle`, of clients that sent one report each; override it to take them as one batch."""
        return self.shuffle(reports.split())


class InMemoryShuffler(Shuffler):
    """Shuffles in this process: for simulation, and for a server that clients trust to forget."""

    trust = "Whoever runs this process sees each client's report and is trusted to forget whose it was."

    def __init__(self, *, minimum: int = 2) -> None:
        self._minimum = checks.whole("minimum", minimum, at_least=2)

    @property
    @override
    def minimum(self) -> int:
        return self._minimum

    @override
    def shuffle(self, batches: Sequence[Reports]) -> Reports:
        if len(batches) < self._minimum:
            raise BatchRefused(Refusal.UNDER_MINIMUM)
        if len({len(batch) for batch in batches}) != 1 or len(batches[0]) == 0:
            raise BatchRefused(Refusal.WRONG_SIZE)
        from shuffle_plugins.core import Reports

        try:
            together = Reports.concat(batches)
        except ValueError:
            raise BatchRefused(Refusal.UNREADABLE) from None
        return self.shuffle_reports(together)

    @override
    def shuffle_reports(self, reports: Reports) -> Reports:
        if len(reports) < self._minimum:
            raise BatchRefused(Refusal.UNDER_MINIMUM)
        from shuffle_plugins.randomness.sources import SecureRandomness

        return reports.permute(SecureRandomness().permutation(len(reports)))


bytes_of = partial(byte_string, error=ShuffleError)
"""The range of a field of bytes, by its length."""


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ShuffleError(f"{name} is a string, got {value!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class RoundContext(Ranged):
    """What every party of a round must know alike: clients, mixer and analyzer.

    ``fingerprint`` is the digest of all else: the mechanism, its options, the dimension, and the probability
    of taking part. ``minimum`` are the fewest clients that clients were promised to be shuffled among; a
    mixer gives out the reports of no fewer.
    """

    run: Annotated[str, _text]
    token: Annotated[bytes, bytes_of(TOKEN_BYTES)]  # random, for one attempt at one round
    fingerprint: Annotated[bytes, bytes_of(DIGEST_BYTES)]
    minimum: Annotated[int, whole_number(at_least=2, at_most=(1 << 63) - 1)] = 2
    reports: Annotated[int, whole_number(at_most=(1 << 31) - 1)] = 1  # of every client, in one envelope

    def digest(self) -> bytes:
        """32 bytes that differ wherever two contexts differ."""
        run = self.run.encode("utf-8", "surrogatepass")
        numbers = self.minimum.to_bytes(8, "little") + self.reports.to_bytes(8, "little")
        label = b"shuffle-plugins/4 round"
        return hashlib.sha256(label + self.token + self.fingerprint + numbers + run).digest()
