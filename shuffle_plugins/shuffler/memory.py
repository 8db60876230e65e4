"""A shuffler in the process that uses it."""

from __future__ import annotations

from collections.abc import Sequence

from shuffle_plugins.core import Reports, checks
from shuffle_plugins.randomness import SecureRandomness
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal
from shuffle_plugins.shuffler.shuffler import Shuffler


class InMemoryShuffler(Shuffler):
    """Shuffles in this process: for simulation, and for a server that clients trust to forget.

    Args:
        minimum: fewest clients' batches that are shuffled, at least 2.

    Raises:
        ValueError: if the minimum is less than 2.
    """

    trust = "Whoever runs this process sees each client's report and is trusted to forget whose it was."

    def __init__(self, *, minimum: int = 2) -> None:
        self._minimum = checks.whole("minimum", minimum, at_least=2)

    @property
    def minimum(self) -> int:
        """Fewest clients' batches that are shuffled."""
        return self._minimum

    def shuffle(self, batches: Sequence[Reports]) -> Reports:
        """All reports in a uniformly random order; see :meth:`Shuffler.shuffle`."""
        if len(batches) < self._minimum:
            raise BatchRefused(Refusal.UNDER_MINIMUM)
        if len({len(batch) for batch in batches}) != 1 or len(batches[0]) == 0:
            raise BatchRefused(Refusal.WRONG_SIZE)
        try:
            together = Reports.concat(batches)
        except ValueError:
            raise BatchRefused(Refusal.UNREADABLE) from None
        return _permuted(together)

    def shuffle_reports(self, reports: Reports) -> Reports:
        """The reports of clients that sent one each; see :meth:`Shuffler.shuffle_reports`."""
        if len(reports) < self._minimum:
            raise BatchRefused(Refusal.UNDER_MINIMUM)
        return _permuted(reports)

    def __repr__(self) -> str:
        return f"InMemoryShuffler(minimum={self._minimum})"


def _permuted(reports: Reports) -> Reports:
    return reports.permute(SecureRandomness().permutation(len(reports)))
