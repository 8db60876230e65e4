"""Frequencies and distributions from one shuffled report per client."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

import torch
from scipy.optimize import brentq
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import (
    Adversary,
    PrivacyTarget,
    Sampling,
    ShuffleRound,
    calibrate_local_epsilon,
)
from shuffle_plugins.accounting.calibrate import LARGEST_SEARCHED_LOCAL_EPSILON, LEAST_SEARCHED_LOCAL_EPSILON
from shuffle_plugins.accounting.numerics.search import narrowed
from shuffle_plugins.core import ReportLayout, Reports, checks
from shuffle_plugins.core.checks import LocalEpsilon
from shuffle_plugins.core.confidence import clopper_pearson_lower, clopper_pearson_upper
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.mechanisms.base import FrequencyOracle
from shuffle_plugins.protocols.lattices import Categories
from shuffle_plugins.protocols.sums import Histogram, Intervals, Participants, ShuffleProtocol
from shuffle_plugins.randomness.sources import Randomness
from shuffle_plugins.shuffler import InMemoryShuffler, Shuffler

BEST_ORACLE = "best"

MOST_REFUSED = 1 << 12

_TIE = 1.01  # errors so close are called equal, and the shorter report wins


@dataclass(frozen=True, kw_only=True)
class Support:
    """A category's estimate from one report: ``high`` if the report supports it, at least 1, else ``low``."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """How much one client can change one count, whatever it sends."""
        return self.high - self.low

    @property
    def own(self) -> float:
        """Probability that a client's report supports its own category."""
        return (1 - self.low) / self.width

    @property
    def other(self) -> float:
        """Probability that a client's report supports another given category."""
        return -self.low / self.width

    def variance(self, frequency: float) -> float:
        """Variance of a category's estimate per report, where that share of the clients hold it."""
        own, other = (p * (1 - p) for p in (self.own, self.other))
        return self.width**2 * (frequency * own + (1 - frequency) * other)

    def supporting(self, counts: Tensor, *, reports: int) -> Tensor:
        """How many of the reports support each category, int64, from their estimated counts."""
        exact = (counts.double() - reports * self.low) / self.width
        return exact.round().to(torch.int64).clamp_(0, reports)


@dataclass(frozen=True, kw_only=True)
class FrequencyEstimation(ShuffleProtocol):
    """Each client sends one ε0-LDP report on its category; what leaves the shuffler is all that is seen.

    Feldman, McMillan, Talwar 2021 ("Hiding among the clones"), section 5.1, with any frequency oracle in the
    place of Hadamard response and the oracle's exact dominating pair in the place of Theorem 3.1.

    Attributes:
        local_epsilon: ε0 of a report: what protects a client that trusts nobody.
        oracle: name of a registered frequency oracle. ``"best"`` is replaced by the one of least error; of
            those within a per cent, that of the fewest bits.
    """

    name: ClassVar[str] = "frequency-estimation"

    categories: Categories
    local_epsilon: LocalEpsilon
    oracle: str = BEST_ORACLE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.oracle == BEST_ORACLE:
            found = _best(dict.fromkeys(frequency_oracles(), self.local_epsilon), categories=self.categories)
            object.__setattr__(self, "oracle", found)
        _ = self.mechanism

    @classmethod
    def calibrated(
        cls,
        *,
        categories: int,
        cohort: int,
        epsilon: float,
        delta: float,
        num_steps: int = 1,
        population: int | None = None,
        oracle: str = BEST_ORACLE,
        honest_fraction: float = 1.0,
    ) -> Self:
        """The protocol at the largest ε0, up to 20, whose certified ε at δ is at most ``epsilon``.

        Arguments are those of :meth:`SummingProtocol.calibrated`. The oracle ``"best"`` calibrates all that
        could win, each to its own ε0, and takes the one of least error, in a second or a few.
        """
        checks.categories(categories)
        target = PrivacyTarget(epsilon=epsilon, delta=delta, num_steps=num_steps)
        present = Participants.of(cohort, honest_fraction=honest_fraction, population=population)
        who = _honest_part(present)

        def allowed(name: str, local_epsilon: float) -> bool:
            oracle = built(name, local_epsilon=local_epsilon, categories=categories)
            return target.allows(oracle.round(**who))

        def largest(name: str) -> float:
            return calibrate_local_epsilon(
                target_epsilon=target.epsilon,
                delta=target.delta,
                num_steps=target.num_steps,
                **who,
                mechanism=name,
                blanket_factory=lambda e: registry.blanket(name, local_epsilon=e, dim=categories),
                channel_fixed=True,
            )

        if oracle != BEST_ORACLE:
            level = largest(oracle)
        else:
            levels: dict[str, float] = {}
            least = math.inf
            for name in _by_promise(categories):
                needed = _needed_level(name, least * _TIE, categories)
                if needed is None or (needed > LEAST_SEARCHED_LOCAL_EPSILON and not allowed(name, needed)):
                    continue  # it could not win
                levels[name] = largest(name)
                least = min(least, _error(name, levels[name], categories))
            oracle = _best(levels, categories=categories)
            level = levels[oracle]
        return cls(
            categories=categories,
            cohort=cohort,
            local_epsilon=level,
            oracle=oracle,
            honest_fraction=honest_fraction,
        )

    @property
    def mechanism(self) -> FrequencyOracle:
        """What a client runs."""
        return built(self.oracle, local_epsilon=self.local_epsilon, categories=self.categories)

    messages_per_client = 1

    @property
    @override
    def layout(self) -> ReportLayout:
        return self.mechanism.layout

    @override
    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> ShuffleRound:
        present = self.participants(population=population, cohort=cohort, sampling=sampling)
        return self.mechanism.round(**_honest_part(present), adversary=adversary)

    @property
    def support(self) -> Support:
        """What one report says of one category."""
        return support_of(self.oracle, local_epsilon=self.local_epsilon, categories=self.categories)

    @property
    def squared_error(self) -> float:
        """E‖f̂ − f‖² of the frequencies of those who report, for the data of largest error."""
        return self.mechanism.worst_variance / self.cohort

    @property
    def distribution_error(self) -> float:
        """Bound on E‖f̂ − π‖² where clients' categories are independent draws of π."""
        return self.squared_error + (1 - 1 / self.categories) / self.cohort

    def largest_error(self, *, confidence: float = 0.95) -> float:
        """What no frequency is further than from its estimate, with this confidence for all together.

        Bernstein's inequality for each category, and a union bound. With f the share of a category, its term
        :math:`h(f) = 2e^{-nt²/2(v(f) + wt/3)}` is convex where it is below 2e⁻², so over all data their sum
        is greatest where all hold one category.
        """
        error = min(1 - checks.confidence(confidence), 2 * math.exp(-2.0))
        support, n = self.support, self.cohort
        rare = support.variance(0.0)
        common = max(rare, support.variance(1.0))

        def excess(t: float) -> float:
            return -error + sum(
                2 * many * math.exp(-n * t * t / (2 * (variance + support.width * t / 3)))
                for many, variance in ((1, common), (self.categories - 1, rare))
            )

        high = support.width
        while excess(high) > 0:
            high *= 2
        return float(brentq(excess, 0.0, high, rtol=1e-9)) * (1 + 1e-6)

    @property
    def influence(self) -> float:
        """How much one client can change a count at most, whatever possible report it sends, in clients."""
        return self.support.width

    def intervals(
        self, histogram: Histogram, *, confidence: float = 0.95, simultaneous: bool = False
    ) -> Intervals:
        """Intervals for the frequencies of those who reported, and as well for the law they were drawn from.

        The reports that support a category are a sum of independent bits of mean q + f·(p − q). If clients
        are drawn from a distribution the sum is binomial, and the limits are those of Clopper and Pearson
        1934; for given clients its tails are no heavier (Hoeffding 1956, Theorem 5). ``confidence`` is that
        of each, or with ``simultaneous`` of all together.
        """
        error = (1 - checks.confidence(confidence)) / 2 / (self.categories if simultaneous else 1)
        support, trials = self.support, histogram.reports
        seen = support.supporting(histogram.counts, reports=trials).cpu().numpy()
        limits = (
            (torch.from_numpy(limit(seen, trials, error=error)) - support.other)
            / (support.own - support.other)
            for limit in (clopper_pearson_lower, clopper_pearson_upper)
        )
        lower, upper = (limit.clamp_(0.0, 1.0) for limit in limits)
        return Intervals(lower=lower, upper=upper, confidence=confidence, simultaneous=simultaneous)

    @override
    def randomize(self, x: Tensor, *, randomness: Randomness | None = None) -> Reports:
        return self.mechanism.randomize(x, randomness=randomness)

    @override
    def messages(self, reports: Reports) -> list[Reports]:
        self.layout.check(reports)
        return reports.split()

    def collect(
        self, x: Tensor, *, shuffler: Shuffler | None = None, randomness: Randomness | None = None
    ) -> Reports:
        """All clients' reports after a shuffler, for a host that simulates the clients."""
        reports = self.randomize(x, randomness=randomness)
        if len(reports) != self.cohort:
            raise ValueError(f"the guarantee is that of {self.cohort} clients, got {len(reports)}")
        return (shuffler or InMemoryShuffler()).shuffle_reports(reports)

    def estimate(self, reports: Reports) -> Histogram:
        """Unbiased counts and frequencies of those who reported.

        Impossible reports are left out and counted, up to 4,096 of them; a possible one moves no count by
        more than :attr:`influence`, whoever made it up.
        """
        counts, refused = summed(self.mechanism, reports)
        return Histogram(counts=counts, reports=len(reports) - refused, refused=refused)

    @override
    def sum(self, reports: Reports) -> Tensor:
        return summed(self.mechanism, reports)[0]


def _honest_part(present: Participants) -> dict[str, Any]:
    """What a round of the honest reports alone is told.

    An honest client is drawn with probability ``reports`` over the population; rounded so that this is not
    understated.
    """
    return {
        "population": max(present.honest, present.population * present.honest // present.reports),
        "cohort": present.honest,
        "sampling": present.sampling,
    }


def _error(name: str, local_epsilon: float, categories: int) -> float:
    """Variance of a report, infinite where the oracle cannot be built."""
    try:
        return built(name, local_epsilon=local_epsilon, categories=categories).worst_variance
    except ValueError:
        return math.inf


def _needed_level(name: str, error: float, categories: int) -> float | None:
    """An ε0 below which the oracle's error is above ``error``; None if it is so at every ε0 searched."""
    low, high = LEAST_SEARCHED_LOCAL_EPSILON, LARGEST_SEARCHED_LOCAL_EPSILON
    if not _error(name, high, categories) <= error:
        return None
    if _error(name, low, categories) <= error:
        return low
    return narrowed(lambda level: _error(name, level, categories) > error, low, high, precision=1e-3)[0]


def _by_promise(categories: int) -> list[str]:
    """All oracles, that of least error at the largest ε0 first; the others may not need calibration."""
    return sorted(
        frequency_oracles(), key=lambda name: _error(name, LARGEST_SEARCHED_LOCAL_EPSILON, categories)
    )


def _best(levels: dict[str, float], *, categories: int) -> str:
    """The oracle of least error at its own ε0; of those within a per cent, that of the fewest bits."""
    errors = {name: _error(name, level, categories) for name, level in levels.items()}
    least = min(errors.values(), default=math.inf)
    if least == math.inf:
        raise ValueError(f"no frequency oracle takes {categories} categories")
    bits = {
        name: built(name, local_epsilon=levels[name], categories=categories).bits_per_report
        for name, error in errors.items()
        if error <= least * _TIE
    }
    return min(bits, key=lambda name: (bits[name], errors[name], name))


@lru_cache(maxsize=64)
def built(name: str, *, local_epsilon: float, categories: int) -> FrequencyOracle:
    """The registered oracle of that name."""
    oracle = registry.get(name, local_epsilon=local_epsilon, dim=categories)
    if not isinstance(oracle, FrequencyOracle):
        raise ValueError(f"{name} takes vectors, not categories")
    if not oracle.shufflable:
        raise ValueError(f"{name} cannot be shuffled: its reports are read by who knows whose they are")
    return oracle


def frequency_oracles() -> tuple[str, ...]:
    """Names of all registered mechanisms that take categories and can be shuffled, sorted."""
    return _taking_categories(registry.available(registry.Kind.CATEGORIES))


@lru_cache(maxsize=8)
def _taking_categories(names: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for name in names:
        with suppress(ValueError):
            built(name, local_epsilon=1.0, categories=2)
            found.append(name)
    return tuple(found)


@lru_cache(maxsize=64)
def support_of(name: str, *, local_epsilon: float, categories: int) -> Support:
    """The two values that a report's estimate of a category takes, read off reports.

    A ValueError if reports take more than two values, or only one; all built-in oracles take two.
    """
    oracle = built(name, local_epsilon=local_epsilon, categories=categories)
    for tried in range(0, 1 << 12, 64):
        reports = oracle.randomize((torch.arange(tried, tried + 64)) % categories)
        for i in range(64):
            values = oracle.sum(reports.narrow(i, i + 1))
            low, high = float(values.min()), float(values.max())
            if high - low <= 1e-9 * max(1.0, abs(high)):
                continue  # supports all categories, or none
            between = torch.minimum(values - low, high - values).max()
            if float(between) > 1e-9 * (high - low):
                raise ValueError(f"a report of {name} says more of a category than yes or no")
            return Support(low=low, high=high)
    raise ValueError(f"reports of {name} do not tell categories apart")


def summed(oracle: FrequencyOracle, reports: Reports) -> tuple[Tensor, int]:
    """The sum of the reports that are possible, and how many the oracle refuses.

    Halves that are refused are looked at again, so that a few bad reports cost little.
    """
    oracle.layout.check(reports)
    total = torch.zeros(oracle.dim, dtype=torch.float64, device=reports.fields[0].values.device)
    refused = 0
    waiting = [reports]
    while waiting:
        part = waiting.pop()
        try:
            total += oracle.sum(part)
        except ValueError:
            if len(part) > 1:
                middle = len(part) // 2
                waiting += [part.narrow(middle, len(part)), part.narrow(0, middle)]
                continue
            refused += 1
            if refused > MOST_REFUSED:
                raise ValueError(
                    f"more than {MOST_REFUSED:,} of {len(reports):,} reports are impossible for "
                    f"{oracle.name!r}: this is no round of this protocol; check what clients run"
                ) from None
    return total, refused
