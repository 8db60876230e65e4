"""The interface of a shuffler, and what names the round that it shuffles."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from typing_extensions import override

from shuffle_plugins.core import checks
from shuffle_plugins.core.ranges import Ranged, whole_number
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError

if TYPE_CHECKING:
    from shuffle_plugins.core import Reports

_T = TypeVar("_T")

TOKEN_BYTES = 16
"""Bytes of the random token that names a round."""

FINGERPRINT_BYTES = 32
"""Bytes of the digest of what all clients of a round must know alike."""

_ROUND = b"shuffle-plugins/4 round"


def bytes_of(length: int) -> Callable[[str, object], bytes]:
    """The range of a field: so many bytes."""

    def check(name: str, value: object) -> bytes:
        if not isinstance(value, bytes) or len(value) != length:
            raise ShuffleError(f"{name} has {length} bytes")
        return value

    return check


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ShuffleError(f"{name} is a string, got {value!r}")
    return value


class Shuffler(ABC):
    """Takes each client's reports and gives back all of them without names, in random order.

    Attributes:
        trust: one sentence on who must be trusted for that.
    """

    trust: ClassVar[str]

    @property
    @abstractmethod
    def minimum(self) -> int:
        """Fewest clients' batches that are shuffled, at least 2."""

    @abstractmethod
    def shuffle(self, batches: Sequence[Reports]) -> Reports:
        """All reports, in an order drawn uniformly from the operating system's entropy.

        Args:
            batches: one per client, all with the same number of reports.

        Raises:
            BatchRefused: if there are fewer than :attr:`minimum` batches, or they do not look alike.
        """

    def shuffle_reports(self, reports: Reports) -> Reports:
        """All reports of clients that sent one each, in an order drawn as by :meth:`shuffle`.

        A shuffler that can take them as one batch overrides this: here every report is handed over by itself.

        Args:
            reports: the reports, one from each client.
        """
        return self.shuffle(reports.split())


class InMemoryShuffler(Shuffler):
    """Shuffles in this process: for simulation, and for a server that clients trust to forget.

    Args:
        minimum: fewest clients' batches that are shuffled, at least 2.
    """

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
        return _permuted(together)

    @override
    def shuffle_reports(self, reports: Reports) -> Reports:
        if len(reports) < self._minimum:
            raise BatchRefused(Refusal.UNDER_MINIMUM)
        return _permuted(reports)

    def __repr__(self) -> str:
        return f"InMemoryShuffler(minimum={self._minimum})"


def _permuted(reports: Reports) -> Reports:
    from shuffle_plugins.randomness.sources import SecureRandomness

    return reports.permute(SecureRandomness().permutation(len(reports)))


@dataclass(frozen=True, kw_only=True)
class RoundContext(Ranged):
    """What every party of a round must know alike: clients, mixer and analyzer.

    Attributes:
        run: name of the run.
        token: 16 random bytes, used for one attempt at one round.
        fingerprint: digest, 32 bytes, of all else that clients must know alike: the mechanism, its
            options, the dimension, and the probability of taking part.
        minimum: fewest reports that clients were promised to be shuffled among, at least 2. A mixer gives out
            no fewer. Where clients send several reports each, it counts clients.
        reports: how many reports every client that takes part sends, all in one envelope.
    """

    run: Annotated[str, _text]
    token: Annotated[bytes, bytes_of(TOKEN_BYTES)]
    fingerprint: Annotated[bytes, bytes_of(FINGERPRINT_BYTES)]
    minimum: Annotated[int, whole_number(at_least=2, at_most=(1 << 63) - 1)] = 2
    reports: Annotated[int, whole_number(at_most=(1 << 31) - 1)] = 1

    def digest(self) -> bytes:
        """32 bytes that differ wherever two contexts differ."""
        run = self.run.encode("utf-8", "surrogatepass")
        numbers = self.minimum.to_bytes(8, "little") + self.reports.to_bytes(8, "little")
        return hashlib.sha256(_ROUND + self.token + self.fingerprint + numbers + run).digest()


def shuffled(items: Sequence[_T]) -> list[_T]:
    """The items in a uniformly random order, drawn from the operating system's entropy."""
    return SystemRandom().sample(items, k=len(items))
