r"""The pair of count laws that the clone analyses reduce a shuffle to, evaluated with certified error.

Every other report is a *clone* of the differing client's with probability p, and then as likely one of its
first record as of its second. With C ~ Bin(n − 1, p), A ~ Bin(C, 1/2), Δ ~ Bernoulli(e^ε0/(e^ε0 + 1)),

    P = (A + Δ, C − A + 1 − Δ)        Q = (A + 1 − Δ, C − A + Δ).

Feldman, McMillan, Talwar 2021 prove it for p = e^−ε0, their 2022 paper uses p = 2/(e^ε0 + 1). With m = C + 1
and D the difference of the two counts of m fair coins, P and Q have densities 1 ± tanh(ε0/2)·D/m. Divergences
fall with m, so buckets of m are replaced by their ends and the cost does not grow with n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, xlogy

from shuffle_plugins.accounting.losses import PositiveLosses, hull_outcomes, real_orders
from shuffle_plugins.accounting.numerics.search import zero_between
from shuffle_plugins.accounting.numerics.sums import TAIL, Floats, binomial_window, log_probability
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Fraction, Ranged, in_range, whole_number

_Side = Literal["lower", "upper"]

_POINTS, _FAR_POINTS = 321, 1000  # of the profile, by which Rényi divergences are known


@dataclass(frozen=True, kw_only=True, slots=True)
class ClonePair(Ranged):
    """The clone pair of n reports; symmetric in P and Q.

    Attributes:
        local_epsilon: ε0, in nats.
        cohort: n.
        clone_probability: p, of each other report.
    """

    # 300.0: e^2ε0 still fits a double
    local_epsilon: Annotated[float, in_range(above=0, at_most=300.0)]
    # 10**12: one to two seconds; the counts that are listed, some √n, take minutes at 10^15
    cohort: Annotated[int, whole_number(at_most=10**12)]
    clone_probability: Fraction

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Bounds (lower, upper) on the hockey-stick divergence of P and Q at ε ≥ 0.

        They differ by bucketing, tails beyond 1e-30 and rounding, about a part in 10⁴ at most.
        """
        checks.number("epsilon", epsilon, at_least=0)
        return self._delta(epsilon, "lower"), self._delta(epsilon, "upper")

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Bounds (lower, upper) on the ε of the pair at δ in (0, 1], within a relative 3e-5 of each other."""
        checks.number("delta", delta, above=0, at_most=1)
        return _solve(self, delta, "lower"), _solve(self, delta, "upper")

    def upper_epsilon(self, delta: float) -> float:
        """The upper end of :meth:`epsilon` alone, at half the cost."""
        checks.number("delta", delta, above=0, at_most=1)
        return _solve(self, delta, "upper")

    def _delta(self, epsilon: float, side: _Side) -> float:
        """Σ_c P[C = c]·h(c), h the hockey-stick divergence given c clones: non-increasing in c."""
        if epsilon >= self.local_epsilon:
            return TAIL if side == "upper" else 0.0
        bottom, top, mass = _buckets(self.cohort - 1, self.clone_probability)
        clones = bottom if side == "upper" else top
        advantage = math.tanh(self.local_epsilon / 2)
        threshold = np.ceil((clones + 1) * (1 + math.tanh(epsilon / 2) / advantage) / 2)
        threshold = np.minimum(threshold, clones + 1)
        trials = clones - threshold + 1
        above = np.where(trials >= 1, betainc(threshold, np.maximum(trials, 1.0), 0.5), 0.0)
        at = np.exp(log_probability(successes=threshold - 1, trials=clones, success=0.5))
        # P − e^ε·Q of {A + Δ ≥ t}, split so that nothing of order one cancels, near ε0 either
        short = math.expm1(self.local_epsilon - epsilon)
        gained = at * (math.exp(epsilon) * short / (math.exp(self.local_epsilon) + 1))
        lost = above * math.expm1(epsilon)
        each = np.maximum(gained - lost, 0.0)
        # 1e-10: relative; binomial tails and masses are good to 1e-11 at 1e9 trials
        slack = float((mass * (np.abs(gained) + lost)).sum()) * 1e-10
        total = float((mass * each).sum())
        return total + slack + TAIL if side == "upper" else max(total - slack - TAIL, 0.0)

    def rdp(self, orders: ArrayLike) -> Floats:
        """Rényi divergence of P and Q at real orders α > 1, rounded up, in nats and at most ε0; shape (m,).

        It is the pair's own to a few parts in 10⁴ where outcomes likelier than 1e-28 decide, and up to a
        fifth above where rarer ones do.
        """
        alpha = real_orders(orders)
        told, far, log_far = _profile(self)
        # Of each outcome p·E^(α−1) + q·E^(1−α) − p − q. Of the profile's end α(α−1)∫ E^(α−2)·δ dE, and as
        # much for what E^(−α−1) adds; of rarer losses E^(α−1) at the far ends of cells.
        a = alpha[:, None]
        excess = told.p * np.expm1(-a * told.loss) * np.expm1((1 - a) * told.loss)
        with np.errstate(divide="ignore"):
            each = [np.log(excess) + (a - 1) * told.loss, log_far + (a - 1) * far]
        each[1][:, :1] += np.log(2 * a)
        logs = np.concatenate(each, axis=1)
        peak = logs.max(axis=1)
        moment = np.logaddexp(0.0, peak + np.log(np.exp(logs - peak[:, None]).sum(axis=1)))
        found = np.minimum(moment / (alpha - 1) * (1 + 1e-9), self.local_epsilon)
        return np.asarray(found, dtype=np.float64)


@lru_cache(maxsize=64)
def _profile(pair: ClonePair) -> tuple[PositiveLosses, Floats, Floats]:
    """Outcomes that dominate the likely ones; ends of cells of loss, and log P[loss above their start]."""
    low, high = 0.0, pair.local_epsilon
    for _ in range(14):  # about where the profile falls into the windows' tails
        middle = (low + high) / 2
        # 1e-28: δ near which the windows' tails begin to tell
        low, high = (middle, high) if pair._delta(middle, "upper") > 1e-28 else (low, middle)
    losses = high * np.linspace(0.0, 1.0, _POINTS)
    told = hull_outcomes(losses, np.array([pair._delta(loss, "upper") for loss in losses.tolist()]))
    # Of m = C + 1 reports more than a share (1 + x)/2 for one record: Chernoff, then the mean over C.
    far = np.geomspace(high, pair.local_epsilon, _FAR_POINTS) if high < pair.local_epsilon else losses[-1:]
    x = np.minimum(np.tanh(far[:-1] / 2) / math.tanh(pair.local_epsilon / 2), 1.0)
    rate = (xlogy(1 + x, 1 + x) + xlogy(1 - x, 1 - x)) / 2
    found = math.log(2) - rate + (pair.cohort - 1) * np.log1p(pair.clone_probability * np.expm1(-rate))
    return told, far, np.append(math.log(told.beyond), found)


@lru_cache(maxsize=256)
def binary_pair(*, local_epsilon: float, cohort: int) -> ClonePair:
    """The pair of Feldman et al. 2022: every other report is a clone with probability 2/(e^ε0 + 1).

    It is the blanket pair of binary randomized response at full participation. Its ε and its Rényi divergence
    are bounds for every ε0-LDP randomizer that the round's clients share; its ε is 1 to 19 % above that of
    the best mechanism known (3-ary response).
    """
    return ClonePair(
        local_epsilon=local_epsilon,
        cohort=cohort,
        clone_probability=2 * math.exp(-local_epsilon) / (1 + math.exp(-local_epsilon)),
    )


@lru_cache(maxsize=64)
def _buckets(trials: int, probability: float) -> tuple[Floats, Floats, Floats]:
    """Smallest and largest count, and mass, of each bucket of a binomial law."""
    first, law = binomial_window(trials, probability)
    # 2048: of the number of clones; δ is then known to about a part in 10⁴
    edges = np.unique(np.linspace(0, law.size, 2048 + 1).astype(np.int64))
    bottom = (first + edges[:-1]).astype(np.float64)
    top = (first + edges[1:] - 1).astype(np.float64)
    return bottom, top, np.add.reduceat(law, edges[:-1])


@lru_cache(maxsize=512)
def _solve(pair: ClonePair, delta: float, side: _Side) -> float:
    """The ε at which the bound on δ crosses δ, moved to the safe side and checked there."""

    def excess(epsilon: float) -> float:
        found = pair._delta(epsilon, side)
        return math.log(found / delta) if found > 0 else -math.inf

    if excess(0.0) <= 0:
        return 0.0
    high = pair.local_epsilon
    if excess(high * (1 - 1e-12)) > 0:
        return high if side == "upper" else high * (1 - 1e-12)
    root = zero_between(
        lambda epsilon: max(excess(epsilon), -750.0), 0.0, high, xtol=1e-14 * high, rtol=1e-12
    )
    if side == "upper":
        return _first(lambda step: root * (1 + step), lambda e: excess(e) <= 0, default=high)
    return _first(lambda step: root * (1 - step), lambda e: excess(e) >= 0, default=0.0)


def _first(candidate: Callable[[float], float], holds: Callable[[float], bool], *, default: float) -> float:
    # 1e-10: relative step past a root, to where the bound holds in floating point too
    step = 1e-10
    while step < 0.5:
        value = candidate(step)
        if holds(value):
            return value
        step *= 8
    return default
