"""The interface of a shuffler: identity and order end here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from shuffle_plugins.core.reports import Reports


class Shuffler(ABC):
    """Turns what each client sent into reports that are nobody's.

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


def check_minimum(minimum: int) -> int:
    """Return the minimum.

    Raises:
        ValueError: unless it is a whole number, at least 2: one client's report cannot hide.
    """
    if isinstance(minimum, bool) or not isinstance(minimum, int) or minimum < 2:
        raise ValueError(f"minimum must be a whole number, at least 2, got {minimum!r}")
    return minimum
