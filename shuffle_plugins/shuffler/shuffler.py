"""The interface of a shuffler, and what names the round that it shuffles."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, ClassVar, TypeVar

from shuffle_plugins.shuffler.errors import ShuffleError

if TYPE_CHECKING:
    from shuffle_plugins.core import Reports

_T = TypeVar("_T")

TOKEN_BYTES = 16
"""Bytes of the random token that names a round."""

FINGERPRINT_BYTES = 32
"""Bytes of the digest of what all clients of a round must know alike."""

_ROUND = b"shuffle-plugins/2 round"
_ROUND_OF_SEVERAL = b"shuffle-plugins/4 round of several reports"


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

        Raises:
            BatchRefused: if there are fewer than :attr:`minimum`.
        """
        return self.shuffle(reports.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """What every party of a round must know alike: clients, mixer and analyzer.

    Attributes:
        run: name of the run.
        token: 16 random bytes, used for one attempt at one round.
        fingerprint: digest, 32 bytes, of all else that clients must know alike: the mechanism, its
            options, the dimension, and the probability of taking part.
        minimum: fewest reports that clients were promised to be shuffled among, at least 2. A mixer gives out
            no fewer. Where clients send several reports each, it counts clients.
        reports: how many reports every client that takes part sends, all in one envelope.

    Raises:
        ShuffleError: if a field has another type or length, or is out of range.
    """

    run: str
    token: bytes
    fingerprint: bytes
    minimum: int = 2
    reports: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.run, str):
            raise ShuffleError(f"a run is named by a string, got {self.run!r}")
        if not isinstance(self.token, bytes) or len(self.token) != TOKEN_BYTES:
            raise ShuffleError(f"a token has {TOKEN_BYTES} bytes")
        if not isinstance(self.fingerprint, bytes) or len(self.fingerprint) != FINGERPRINT_BYTES:
            raise ShuffleError(f"a fingerprint has {FINGERPRINT_BYTES} bytes")
        if type(self.minimum) is not int or not 2 <= self.minimum < 1 << 63:
            raise ShuffleError(f"a promised minimum is a whole number, at least 2, got {self.minimum!r}")
        if type(self.reports) is not int or not 1 <= self.reports < 1 << 31:
            raise ShuffleError(f"a client sends a whole number of reports, at least 1, got {self.reports!r}")

    def digest(self) -> bytes:
        """32 bytes that differ wherever two contexts differ."""
        run = self.run.encode("utf-8", "surrogatepass")
        promised = self.minimum.to_bytes(8, "little")
        kind = _ROUND if self.reports == 1 else _ROUND_OF_SEVERAL + self.reports.to_bytes(8, "little")
        return hashlib.sha256(kind + self.token + self.fingerprint + promised + run).digest()


def shuffled(items: Sequence[_T]) -> list[_T]:
    """The items in a uniformly random order, drawn from the operating system's entropy."""
    return SystemRandom().sample(items, k=len(items))
