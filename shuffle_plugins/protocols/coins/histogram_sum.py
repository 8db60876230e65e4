"""Histograms whose noise is everybody's coins: the central model's accuracy from many small messages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any, ClassVar

from scipy import special
from torch import Tensor

from shuffle_plugins.accounting import Adversary, Sampling, SumRound
from shuffle_plugins.core import checks
from shuffle_plugins.protocols.coins.coin_sum import CoinSum
from shuffle_plugins.protocols.coins.one_hot import OneHot
from shuffle_plugins.protocols.histograms import Histogram, Intervals
from shuffle_plugins.protocols.tally import Tally
from shuffle_plugins.randomness import Randomness


@dataclass(frozen=True, kw_only=True, slots=True)
class HistogramSum(CoinSum):
    """How many clients hold each category, with the Gaussian mechanism's noise and no trusted aggregator.

    P_1D (Cheu, Joseph, Mao, Peng 2022, Algorithm 1) in every category at once. A client sends ``levels`` ones
    under its own category's label and ``coins`` fair coins under every label; see :class:`CoinSum`. Nothing
    is rounded, and replacing a client moves two counts by one: a sensitivity of exactly √2.

    Data are int64 (clients,), categories in [0, categories). Estimates are in clients.

    Attributes:
        categories: K, at least 2.
    """

    name: ClassVar[str] = "histogram-sum"
    lattice_type: ClassVar[type[Any]] = OneHot

    categories: int

    def contrast_round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> SumRound:
        """The round of an adversary that looks at the difference of two counts alone.

        That is a function of what is seen, in which a client moves from one category to the other by twice
        ``levels``, under the coins of both. So what an accountant says of this round from below holds for
        :meth:`round` too, and comes within some per cent of what that says from above. Arguments and
        errors as of :meth:`round`.
        """
        whole = self.round(population=population, cohort=cohort, sampling=sampling, adversary=adversary)
        distance = 2 * self.levels
        return replaced(
            whole,
            sensitivity=float(distance),
            attained=distance,
            trials=2 * whole.trials,
            coin_distance=min(1.0, 2 * whole.coin_distance),
            coin_ratio=None if whole.coin_ratio is None else 2 * whole.coin_ratio,
            dim=1,
        )

    # -- what it is worth -------------------------------------------------------------------------------

    @property
    def squared_error(self) -> float:
        """E‖f̂ − f‖² of the frequencies, whatever the data: K·noise_variance/n²."""
        return self.worst_variance / self.cohort**2

    def largest_error(self, *, confidence: float = 0.95) -> float:
        """What no frequency is further than from its estimate, with this confidence for all together.

        The exact quantile of one category's coins, and a union bound over categories.

        Raises:
            ValueError: if ``confidence`` is not in (0, 1).
        """
        error = 1 - checks.confidence(confidence)
        return self._reach(error / self.categories) / self.cohort

    def intervals(
        self, histogram: Histogram, *, confidence: float = 0.95, simultaneous: bool = False
    ) -> Intervals:
        """Intervals for the clients' frequencies, from the exact law of the coins.

        Args:
            histogram: from :meth:`estimate` or :meth:`randomize_histogram`, with everybody's coins.
            confidence: that each interval holds its frequency; with ``simultaneous`` that all do.
            simultaneous: whether to widen them by a union bound.

        Raises:
            ValueError: if ``confidence`` is not in (0, 1).
        """
        error = 1 - checks.confidence(confidence)
        reach = self._reach(error / (self.categories if simultaneous else 1)) / histogram.reports
        centre = histogram.frequencies
        return Intervals(
            lower=(centre - reach).clamp(0.0, 1.0),
            upper=(centre + reach).clamp(0.0, 1.0),
            confidence=confidence,
            simultaneous=simultaneous,
        )

    @property
    def influence(self) -> float:
        """How much one client can add to a count at most, whatever possible messages it sends, in clients."""
        return self.messages_per_coordinate / self.levels

    def _reach(self, error: float) -> float:
        """t, in clients, with P[|noise of a count| > t] ≤ error; rounded up by a coin or two."""
        trials = self.cohort * self.coins
        below = math.floor(float(special.bdtrik(error / 2, trials, 0.5))) - 1
        return (trials / 2 - max(below, 0)) / self.levels

    # -- what is done -----------------------------------------------------------------------------------

    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Histogram:
        """Unbiased counts and frequencies of the clients that answered; see :meth:`SummingProtocol.estimate`.

        Raises:
            ValueError: as there, or if the total is nobody's.
        """
        count = self.senders(total) if reports is None else reports
        return Histogram(
            counts=self._sum(total, reports=count),
            reports=count,
            refused=total.foreign if isinstance(total, Tally) else 0,
        )

    def randomize_histogram(self, x: Tensor, *, randomness: Randomness | None = None) -> Histogram:
        """A draw with the law of the protocol's estimate, for a host that simulates all clients.

        Raises:
            TypeError, ValueError: as :meth:`randomize_sum`.
        """
        return Histogram(counts=self.randomize_sum(x, randomness=randomness), reports=self.cohort)
