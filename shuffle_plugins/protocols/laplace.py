"""Sums with discrete Laplace noise, of which every client adds a share.

How clients share the noise, and what it costs if some do not: docs/proofs/sums.md, "Shares of discrete
Laplace noise".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import signal, stats
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import Floats, LaplaceRound
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import Dim, Positive, Radius
from shuffle_plugins.mechanisms.base import CountRange, Norm, PrivateSum
from shuffle_plugins.protocols.draws import PolyaNoise
from shuffle_plugins.protocols.lattices import (
    Categories,
    Dyadic,
    Interval,
    Lattice,
    Leaves,
    Levels,
    OneHot,
    OneNorm,
)
from shuffle_plugins.protocols.sums import HistogramProtocol, LatticeSum, WantedNoise
from shuffle_plugins.randomness.sources import Randomness, secure

_RARE_BITS = 64  # −log2 of the probability that any client's share of any coordinate is out of range
_MOST_LISTED = 1 << 20  # masses of the noise that are convolved


@dataclass(frozen=True, kw_only=True)
class SharedLaplace(LatticeSum[LaplaceRound]):
    """Each client adds a share of discrete Laplace noise to whole numbers.

    Shares are differences of two Pólya numbers (negative binomial of real shape 1/n', n' the
    :attr:`honest_cohort`), drawn exactly.
    """

    noise_epsilon: Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.noise, self.round()

    @override
    @classmethod
    def _of_noise(
        cls, wanted: WantedNoise, *, overhead: float = 0.02, levels: int | None = None, **data: Any
    ) -> dict[str, Any]:
        checks.number("overhead", overhead, above=0, at_most=1)
        unit: Lattice = cls.lattice_type(levels=1, **data)
        # A variance of 2/rate² is that of a Gaussian of this multiplier of half the ℓ2 diameter.
        noise_epsilon = unit.l1_sensitivity * 2 * math.sqrt(2) / (wanted.noise_multiplier * unit.diameter)
        if levels is None:
            rounding = wanted.cohort * unit.rounding_variance / (2 * overhead)
            levels = max(1, math.ceil(noise_epsilon / unit.l1_sensitivity * math.sqrt(rounding)))
        return {"levels": levels, "noise_epsilon": noise_epsilon, **data}

    @property
    def rate(self) -> float:
        """Nats by which the noise of one coordinate falls with each step."""
        return self.noise_epsilon / self.lattice.l1_sensitivity

    @property
    def noise(self) -> PolyaNoise:
        """What each client adds to each of its numbers."""
        return PolyaNoise(rate=self.rate, holders=self.honest_cohort)

    @property
    @override
    def noise_variance(self) -> float:
        return self.cohort * self.noise.share_variance * self.lattice.step**2

    @override
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        source, clients = secure(randomness), len(x) if isinstance(x, Tensor) else x.num_rows
        total = self.lattice.encoded_sum(x, randomness=source)
        return total + self.noise.draw(len(total), clients=clients, randomness=source)


@dataclass(frozen=True, kw_only=True)
class LaplaceSum(SharedLaplace):
    r"""A sum of whole numbers with shares of discrete Laplace noise; only the sum may be seen.

    The shares of n' clients add up to P[k] ∝ e^(−rate·\|k\|) in every coordinate, those of more to more.
    Goryczka, Xiong 2017; Balle, Bell, Gascón, Nissim 2020. A report protects nobody until it is summed, by a
    ``SharedSumStage``, a DAP deployment, or a shuffler that adds up.

    Attributes:
        noise_epsilon: ε at δ = 0 of the sum itself: rate times the largest ℓ1 distance of two clients' data.
            Reports are bound to a range, which costs a δ of 2**-64·(1 + e^ε).
    """

    @override
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> LaplaceRound:
        lattice, present = self.lattice, who["cohort"] if honest is None else honest
        coordinates = lattice.moved or min(lattice.size, lattice.l1_sensitivity)
        return LaplaceRound(
            noise_epsilon=self.noise_epsilon,
            sensitivity=lattice.l1_sensitivity,
            attained=lattice.attained,
            coordinates=coordinates,
            evenly=lattice.moved is not None,
            shape=min(1.0, present / self.honest_cohort),
            distance=2.0**-_RARE_BITS,
            **who,
        )

    @property
    def influence(self) -> float:
        """How much one client can add to a number of the sum at most, in units of the data."""
        counts = self.counts
        return (counts.highest - counts.lowest) * self.lattice.step

    @property
    @override
    def counts(self) -> CountRange:
        reach = self._share_reach
        return CountRange(self.lattice.size, self.lattice.lowest - reach, self.levels + reach)

    @cached_property
    def _share_reach(self) -> int:
        return self.noise.reach(clients=1, bits=_RARE_BITS + math.log2(self.lattice.size * self.cohort))

    messages_per_client = 1

    @property
    @override
    def layout(self) -> ReportLayout:
        """The client's numbers, each minus the least that there may be."""
        counts = self.counts
        bits = (counts.highest - counts.lowest).bit_length()
        return ReportLayout(self.name, counts.size, (FieldLayout(bits, counts.size),))

    @override
    def messages(self, reports: Reports) -> list[Reports]:
        self.layout.check(reports)
        raise ValueError(
            f"reports of {self.name} are only added up, each as a whole: hand their total on, or take a "
            "SharedSumStage"
        )

    @override
    def _randomized(self, x: Any, randomness: Randomness) -> Reports:
        values = self.lattice.encode(x, randomness=randomness).cpu()
        added = self.noise.draw(values.numel(), randomness=randomness)
        while bool((out := added.abs() > self._share_reach).any()):  # once in 2**64 batches; charged to δ
            added[out] = self.noise.draw(int(out.sum()), randomness=randomness)
        return self.layout.reports(values + added.view(values.shape) - self.counts.lowest)

    @override
    def total(self, reports: Reports) -> Tensor:
        """The numbers of all reports added up, int64; totals of groups of clients add up."""
        counts = self.counts
        self.layout.check(reports, counts.highest - counts.lowest + 1)
        sent = reports.fields[0].values.reshape(len(reports), counts.size)
        return sent.sum(dim=0, dtype=torch.int64).cpu() + len(reports) * counts.lowest

    @override
    def estimate(self, total: Tensor, *, reports: int | None = None) -> Any:
        return self._numbers(total)

    @override
    def _sum(self, total: Tensor, *, reports: int) -> Tensor:
        return self._numbers(total)

    def _numbers(self, total: Tensor) -> Tensor:
        if total.shape != (self.lattice.size,):
            raise ValueError(f"a total is ({self.lattice.size},), got {tuple(total.shape)}")
        return self.lattice.in_units(total)


@dataclass(frozen=True, kw_only=True)
class LaplaceHistogram(HistogramProtocol[LaplaceRound], LaplaceSum):
    """How many clients hold each category, with discrete Laplace noise and no trusted aggregator.

    Replacing a client moves two counts by one, so a count's noise has the rate ε/2. Data are int64
    (clients,), −1 for a client that holds none, and estimates in clients. See :class:`LaplaceSum`.
    """

    name: ClassVar[str] = "laplace-histogram"
    lattice_type: ClassVar[type[Any]] = OneHot

    categories: Categories
    levels: Levels = 1

    @property
    def labels(self) -> int:
        """How many counts there are."""
        return self.categories

    @override
    def exceeding(self, least: float) -> float:
        steps, above = math.ceil(least * self.levels), self._tails
        far = min(steps - 1 if steps > 0 else -steps, len(above) - 1)
        return float(above[far] if steps > 0 else 1 - above[far])

    @override
    def _reach(self, error: float, *, reports: int) -> float:
        tails = self._tails if reports <= self.cohort else self._tails_of(reports)  # more clients, more noise
        return int(np.searchsorted(-tails, -error / 2)) / self.levels

    @cached_property
    def _tails(self) -> Floats:
        return self._tails_of(self.cohort)

    def _tails_of(self, clients: int) -> Floats:
        """Probability that so many clients' noise in one category is above 0, 1, … steps."""
        far = self.noise.reach(clients=clients, bits=60)
        if far > _MOST_LISTED:
            raise ValueError(f"noise that reaches {far:,} steps is too wide to say how far off counts are")
        law = stats.nbinom(clients / self.honest_cohort, -math.expm1(-self.rate))
        masses = law.pmf(np.arange(far))
        both = signal.fftconvolve(masses, masses[::-1])[far:]
        return np.append(np.cumsum(both[::-1])[::-1], 0.0)


@dataclass(frozen=True, kw_only=True)
class LaplaceScalarSum(LaplaceSum):
    """The sum of clients' numbers in [0, upper], (clients, 1); others are brought inside.

    A mean is the estimate over the number of reports. See :class:`LaplaceSum`.
    """

    name: ClassVar[str] = "laplace-scalar-sum"
    lattice_type: ClassVar[type[Any]] = Interval

    upper: Radius = 1.0


@dataclass(frozen=True, kw_only=True)
class LaplaceVectorSum(LaplaceSum, PrivateSum):
    """The sum of vectors in an ℓ1 ball; longer ones, in ℓ1, are scaled onto it. See :class:`LaplaceSum`."""

    name: ClassVar[str] = "laplace-vector-sum"
    norm: ClassVar[Norm] = Norm.L1
    lattice_type: ClassVar[type[Any]] = OneNorm

    dim: Dim
    radius: Radius = 1.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NumberDistribution:
    """How clients' numbers are distributed, as estimated.

    Attributes:
        edges: of the cells, increasing, float64 (cells + 1,).
        below: how many clients are below each edge, from 0 up to ``reports``, float64 (cells + 1,).
        reports: how many clients' numbers are in it.
    """

    edges: Tensor
    below: Tensor
    reports: int

    def quantile(self, share: float) -> float:
        """The least number with at least this share of clients below it, as if cells were filled evenly."""
        wanted = checks.number("share", share, at_least=0, at_most=1) * self.reports
        place = max(1, int(torch.searchsorted(self.below, wanted)))
        low, high = float(self.below[place - 1]), float(self.below[place])
        within = (wanted - low) / (high - low) if high > low else 0.0
        left, right = float(self.edges[place - 1]), float(self.edges[place])
        return left + within * (right - left)


@dataclass(frozen=True, kw_only=True)
class LaplaceQuantiles(LaplaceSum):
    """Quantiles of clients' numbers in [lower, upper], (clients, 1), by a tree of histograms.

    Histograms of 2, 4, …, ``leaves`` cells, all with discrete Laplace noise, are made to agree by least
    squares (Hay, Rastogi, Miklau, Suciu 2010, Theorem 3), with the known number of reports at the root. The
    error of a rank grows as the logarithm of the number of cells to the power 3/2. See :class:`LaplaceSum`.
    """

    name: ClassVar[str] = "laplace-quantiles"
    lattice_type: ClassVar[type[Any]] = Dyadic

    lower: float
    upper: float
    leaves: Leaves = 1 << 10
    levels: Levels = 1

    @override
    def estimate(self, total: Tensor, *, reports: int | None = None) -> NumberDistribution:
        count = checks.whole("reports", reports)
        parts = torch.split(
            self._numbers(total), [2 << level for level in range(self.leaves.bit_length() - 1)]
        )
        agreed = [parts[-1]]  # each node's best guess from below, leaves first
        for above, part in enumerate(reversed(parts[:-1]), start=2):
            children = agreed[-1].view(-1, 2).sum(dim=1)
            own = (1 << (above - 1)) / ((1 << above) - 1)
            agreed.append(own * part + (1 - own) * children)
        found = torch.tensor([count], dtype=torch.float64)
        for part in reversed(agreed):
            pairs = part.view(-1, 2)
            found = (pairs + (found - pairs.sum(dim=1)).unsqueeze(1) / 2).flatten()
        below = torch.cat([torch.zeros(1, dtype=torch.float64), found.cumsum(dim=0)]).clamp_(0, count)
        edges = torch.linspace(self.lower, self.upper, self.leaves + 1, dtype=torch.float64)
        below[-1] = count  # which rounding of the sums may miss
        return NumberDistribution(edges=edges, below=below.cummax(dim=0).values, reports=count)
