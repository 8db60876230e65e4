"""What comes out of a private histogram."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shuffle_plugins.protocols.simplex import onto_simplex


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histogram:
    """Unbiased estimates of how many clients hold each category.

    Attributes:
        counts: float64 (categories,); single entries may be negative, or above the number of clients.
        reports: how many clients' data are in it.
        refused: messages that no client following the protocol sends, left out.
    """

    counts: Tensor
    reports: int
    refused: int = 0

    def __post_init__(self) -> None:
        if self.reports < 1:
            raise ValueError("nobody's data are in this histogram: there is nothing to estimate from")

    @property
    def frequencies(self) -> Tensor:
        """Unbiased estimates of the clients' shares, float64 (categories,)."""
        return self.counts / self.reports

    @property
    def distribution(self) -> Tensor:
        """The probability vector nearest to the frequencies, never further from the truth than they are."""
        return onto_simplex(self.frequencies)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Intervals:
    """Confidence intervals for frequencies.

    Attributes:
        lower, upper: float64 (categories,), in [0, 1].
        confidence: that of each interval, or of all together.
        simultaneous: whether all hold together with that confidence.
    """

    lower: Tensor
    upper: Tensor
    confidence: float
    simultaneous: bool
