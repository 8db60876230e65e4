"""A shuffler in the process that uses it."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from shuffle_plugins.core import Reports, checks
from shuffle_plugins.randomness import SecureRandomness
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal
from shuffle_plugins.shuffler.shuffler import Shuffler


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
    return reports.permute(SecureRandomness().permutation(len(reports)))
