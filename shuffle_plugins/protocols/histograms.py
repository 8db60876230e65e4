"""What comes out of a private histogram, and what its protocols say of their errors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from shuffle_plugins.core import Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.protocols.sums import _R, LabelledSum, Tally
from shuffle_plugins.randomness.sources import Randomness


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


class HistogramProtocol(LabelledSum[_R]):
    """A sum whose total is a histogram: its errors, from the law of one category's noise."""

    @abstractmethod
    def _reach(self, error: float, *, reports: int) -> float:
        """t, in clients, with P[|error of a count| > t] ≤ error, for a histogram of so many reports."""

    @property
    def squared_error(self) -> float:
        """E‖f̂ − f‖² of the frequencies of those who report, for the data of largest error."""
        return self.worst_variance / self.cohort**2

    def largest_error(self, *, confidence: float = 0.95) -> float:
        """What no frequency is further than from its estimate, with this confidence for all together.

        By :meth:`intervals`' bound for each category, and a union bound.
        """
        error = 1 - checks.confidence(confidence)
        return self._reach(error / self.labels, reports=self.cohort) / self.cohort

    def intervals(
        self, histogram: Histogram, *, confidence: float = 0.95, simultaneous: bool = False
    ) -> Intervals:
        """Intervals for the clients' frequencies: from the exact law of coins, or by Bernstein's inequality.

        Args:
            histogram: of everybody.
            confidence: in (0, 1), that each interval holds its frequency; with ``simultaneous`` that all do.
            simultaneous: whether to widen them by a union bound.
        """
        error = (1 - checks.confidence(confidence)) / (self.labels if simultaneous else 1)
        reach = self._reach(error, reports=histogram.reports) / histogram.reports
        centre = histogram.frequencies
        return Intervals(
            lower=(centre - reach).clamp(0.0, 1.0),
            upper=(centre + reach).clamp(0.0, 1.0),
            confidence=confidence,
            simultaneous=simultaneous,
        )

    def histogram(self, total: Tensor | Tally, *, reports: int | None = None) -> Histogram:
        """The estimate as a histogram, with frequencies and the nearest distribution."""
        count = self.senders(total) if reports is None else reports
        return Histogram(
            counts=self._sum(total, reports=count),
            reports=count,
            refused=total.foreign if isinstance(total, Tally) else 0,
        )

    def randomize_histogram(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Histogram:
        """A draw of the protocol's histogram, for a host that simulates all clients."""
        return Histogram(counts=self.randomize_sum(x, randomness=randomness).double(), reports=self.cohort)


def onto_simplex(values: Tensor) -> Tensor:
    r"""Euclidean projection of each vector onto the probability simplex, in O(K log K).

    :math:`\max(v - τ, 0)` with the τ for which entries sum to 1 (Duchi, Shalev-Shwartz, Singer, Chandra 2008,
    Figure 1). The simplex is convex, so no distribution is further from the projection than from ``values``:
    projecting an estimate never raises its ℓ2 error.

    Args:
        values: floating (…, K), finite; a ValueError otherwise.
    """
    if values.dim() < 1 or values.shape[-1] < 1 or not values.is_floating_point():
        raise ValueError(f"a projection takes floating vectors, got {values.dtype} of {tuple(values.shape)}")
    if not bool(values.isfinite().all()):
        raise ValueError("an estimate has NaN or infinite entries; it cannot be projected")
    # Large common offsets would eat the digits of the cumulated sum.
    shifted = values.double() - values.double().amax(dim=-1, keepdim=True)
    ordered = shifted.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, values.shape[-1] + 1, dtype=torch.float64, device=values.device)
    thresholds = (ordered.cumsum(dim=-1) - 1) / ranks
    kept = (ordered > thresholds).sum(dim=-1, keepdim=True)
    projected = (shifted - thresholds.gather(-1, kept - 1)).clamp_(min=0.0)
    return (projected / projected.sum(dim=-1, keepdim=True)).to(values.dtype)
