r"""The pair of count laws that the clone analyses reduce a shuffle to, evaluated with certified error.

Every other report is a *clone* of the differing client's with probability p, and then as likely one of its
first record as of its second. With C ~ Bin(n − 1, p), A ~ Bin(C, 1/2), Δ ~ Bernoulli(e^ε0/(e^ε0 + 1)),

    P = (A + Δ, C − A + 1 − Δ)        Q = (A + 1 − Δ, C − A + Δ).

Feldman, McMillan, Talwar 2021 prove it for p = e^−ε0 (any ε0-LDP randomizers, also adaptive ones), their 2022
paper uses p = 2/(e^ε0 + 1). With m = C + 1 and D the difference of the two counts of m fair coins, P and Q
have densities 1 ± tanh(ε0/2)·D/m. Both the hockey-stick and the Rényi divergence fall with m, because a
further clone can be added by anybody; so buckets of m are replaced by their ends and the cost does not grow
with n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

from shuffle_plugins.accounting.numerics.binomial import TAIL, binomial_window, log_probability, log_sum
from shuffle_plugins.accounting.numerics.orders import Vector, real_orders
from shuffle_plugins.accounting.numerics.search import zero_between
from shuffle_plugins.core import checks

_Side = Literal["lower", "upper"]

_BUCKETS = 2048  # of the number of clones; δ is then known to about a part in 10⁴
_ROUNDING = 1e-10  # relative; binomial tails and masses are good to 1e-11 at 1e9 trials
_CERTIFY = 1e-10  # relative step past a root, to where the bound holds in floating point too
_CLONE_TOLERANCE = 2e-3  # of the number of clones, for Rényi divergences
_TAIL_BUCKETS = 16  # more than five standard deviations above the mean number of clones
_SIGN_TOLERANCE = 0.025  # of the standard deviation of D
_LOG_CUT = -75.0  # log of the mass of coins that a node may leave to a bound
_NEVER_UNDERFLOWS = 1000.0  # 2^−m is a normal double up to here
_FURTHEST_SDS = 36.0  # and e^−W²/(2m) up to here
_NEGLIGIBLE = -9.0  # log of the share of a moment that need not be known better than its bound
_LARGEST_COHORT = 10**12  # one to two seconds; the counts that are listed, some √n, take minutes at 10^15
_LARGEST_LOCAL_EPSILON = 300.0  # e^2ε0 still fits a double


@dataclass(frozen=True, kw_only=True, slots=True)
class ClonePair:
    """The clone pair of n reports; symmetric in P and Q. A number out of its range raises ValueError.

    Attributes:
        local_epsilon: ε0 in (0, 300], nats.
        cohort: n in [1, 1e12].
        clone_probability: p in [0, 1], of each other report.
    """

    local_epsilon: float
    cohort: int
    clone_probability: float

    def __post_init__(self) -> None:
        checks.number("local_epsilon", self.local_epsilon, above=0, at_most=_LARGEST_LOCAL_EPSILON)
        checks.whole("cohort", self.cohort, at_most=_LARGEST_COHORT)
        checks.fraction("clone_probability", self.clone_probability)

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
        slack = float((mass * (np.abs(gained) + lost)).sum()) * _ROUNDING
        total = float((mass * each).sum())
        return total + slack + TAIL if side == "upper" else max(total - slack - TAIL, 0.0)

    def rdp(self, orders: ArrayLike) -> Vector:
        """Rényi divergence of P and Q at real orders, rounded up: the pair's own, to about two parts in 10³.

        Nothing is left out: what the windows of the counts miss is bounded and added.

        Args:
            orders: real α > 1, shape (m,).

        Returns:
            Divergences in nats, at most ε0, shape (m,).
        """
        alpha = real_orders(orders)
        nodes = _sign_nodes(self, float(alpha.max()))
        moments = np.array([self._log_moment(float(order), nodes) for order in alpha])
        divergence = moments / (alpha - 1) * (1 + 1e-9)
        return np.minimum(divergence, self.local_epsilon)

    def _log_moment(self, order: float, nodes: _SignNodes) -> float:
        """log E_Q[(P/Q)^α]."""
        value = nodes.log_excess(order)
        beyond = nodes.log_cut(order * self.local_epsilon)
        if beyond < value + _NEGLIGIBLE:
            value = float(np.logaddexp(value, beyond))
        else:
            given = log_excess(reports=nodes.reports, order=order, local_epsilon=self.local_epsilon)
            value = log_sum(nodes.log_bucket + given)
        few = log_few(
            edge=nodes.edge,
            others=self.cohort - 1,
            clone_probability=self.clone_probability,
            order=order,
            local_epsilon=self.local_epsilon,
            rest=value,
        )
        return float(np.logaddexp(0.0, np.logaddexp(value, few)))


@lru_cache(maxsize=256)
def binary_pair(*, local_epsilon: float, cohort: int) -> ClonePair:
    """The pair of Feldman et al. 2022: every other report is a clone with probability 2/(e^ε0 + 1).

    It is the blanket pair of binary randomized response, the generic pair of this package at full
    participation. Its ε and its Rényi divergence, rounded up, are bounds for every ε0-LDP randomizer that
    the round's clients share; its ε is 1 to 19 % above that of the best mechanism known (3-ary response).

    Args:
        local_epsilon: ε0 in (0, 300], nats.
        cohort: n in [1, 1e12].
    """
    return ClonePair(
        local_epsilon=local_epsilon,
        cohort=cohort,
        clone_probability=2 * math.exp(-local_epsilon) / (1 + math.exp(-local_epsilon)),
    )


@dataclass(frozen=True, slots=True)
class _SignNodes:
    """Nodes of D/m for D ≥ 0 with their masses, each standing for −D too; t = tanh(ε0/2).

    Attributes:
        loss: log of the ratio of the densities 1 ± t·D/m, shape (nodes,).
        log_mass: log of mass times the larger density, shape (nodes,).
        reports: smallest m of each bucket, shape (buckets,).
        log_bucket: log of the buckets' masses.
        edge: fewer clones are not covered.
        cut: W; only D ≤ W is covered.
    """

    loss: Vector
    log_mass: Vector
    reports: Vector
    log_bucket: Vector
    edge: int
    cut: float

    def log_excess(self, order: float) -> float:
        """log(E_Q[(P/Q)^α] − 1), of what is covered."""
        exponent = self.log_mass + (order - 1) * self.loss
        peak = float(exponent.max())
        few = np.expm1(-order * self.loss) * np.expm1((1 - order) * self.loss)
        total = float((np.exp(exponent - peak) * few).sum())
        return peak + math.log(total) if total > 0 else -math.inf

    def log_cut(self, scaled: float) -> float:
        """log of a bound on what D beyond ±W adds to a moment, at α·ε0 = ``scaled``."""
        fewest, most = float(self.reports[0]), float(self.reports[-1])
        if self.cut >= most:
            return -math.inf
        slope = scaled / fewest
        if slope >= self.cut / most:
            return math.log(3) + min(most * slope**2 / 2, scaled)
        return math.log(3) + min(slope * self.cut - self.cut**2 / (2 * most), scaled)


@lru_cache(maxsize=64)
def _buckets(trials: int, probability: float) -> tuple[Vector, Vector, Vector]:
    """Smallest and largest count, and mass, of each bucket of a binomial law."""
    first, law = binomial_window(trials, probability)
    edges = np.unique(np.linspace(0, law.size, _BUCKETS + 1).astype(np.int64))
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
    step = _CERTIFY
    while step < 0.5:
        value = candidate(step)
        if holds(value):
            return value
        step *= 8
    return default


def _clone_nodes(pair: ClonePair) -> tuple[Vector, Vector]:
    """Smallest m and mass of buckets of the number of clones, but for those far below its mean."""
    first, law = binomial_window(pair.cohort - 1, pair.clone_probability)
    mean = (pair.cohort - 1) * pair.clone_probability
    fine = max(1, int(_CLONE_TOLERANCE * mean))
    near = 5 * math.sqrt(mean) + fine
    low = int(np.clip(mean - near - first, 0, law.size - 1))
    high = int(np.clip(mean + near - first, 0, law.size))
    above = np.linspace(high, law.size, _TAIL_BUCKETS + 1)[:-1]
    starts = np.unique(np.concatenate([np.arange(low, high, fine), above]).astype(np.int64))
    starts = starts[starts < law.size]
    return np.asarray(first + 1.0 + starts), np.asarray(np.add.reduceat(law, starts))


def _sign_nodes(pair: ClonePair, order: float) -> _SignNodes:
    """Nodes that serve every order up to ``order``."""
    reports, bucket_mass = _clone_nodes(pair)
    fewest, most = float(reports[0]), float(reports[-1])
    pull = most * order * pair.local_epsilon / fewest
    cut = most
    if most > _NEVER_UNDERFLOWS:
        furthest = _FURTHEST_SDS * math.sqrt(max(fewest, _NEVER_UNDERFLOWS))
        cut = min(pull + math.sqrt(pull**2 - 2 * _LOG_CUT * most), furthest, most)
    step = max(1, int(_SIGN_TOLERANCE * math.sqrt(fewest)))
    count = math.ceil(cut / 2) + 1
    count += -count % step
    half = np.floor(reports / 2)[:, None]
    i = np.arange(1, count, dtype=np.float64)
    rise = np.clip((half - i + 1) / (reports[:, None] - half + i), 0.0, None)
    heads = np.concatenate([np.ones((reports.size, 1)), np.cumprod(rise, axis=1)], axis=1)
    odd = (reports % 2)[:, None]
    heads[:, :1] *= np.where(odd == 0, 0.5, 1.0)  # D = 0 is its own mirror image
    heads *= bucket_mass[:, None] / (2 * heads.sum(axis=1, keepdims=True))
    groups = heads.reshape(reports.size, -1, step)
    moved = (groups * np.arange(step)).sum(axis=2) / step
    mass = np.zeros((reports.size, groups.shape[1] + (step > 1)))
    mass[:, : groups.shape[1]] = groups.sum(axis=2) - moved
    mass[:, mass.shape[1] - groups.shape[1] :] += moved
    difference = 2.0 * step * np.arange(mass.shape[1]) + odd
    keep = (mass > 0) & (difference <= reports[:, None])
    share = (difference / reports[:, None])[keep]
    mass = mass[keep]
    loss = log_odds(share=share, local_epsilon=pair.local_epsilon)
    density = math.log(2) - np.log1p(np.exp(-loss))
    return _SignNodes(
        loss=loss,
        log_mass=np.log(mass) + density,
        reports=reports,
        log_bucket=np.log(np.maximum(bucket_mass, np.finfo(np.float64).tiny)),
        edge=int(reports[0]) - 1 if pair.clone_probability < 1 else 0,
        cut=cut,
    )


_NEGLIGIBLE_FEW = -8.0  # log of the share of a moment that need not be known better
_CELLS = 48  # of the coins, to begin with
_CELL_SDS = 0.3  # widest cell that matters, in standard deviations of the rarer face
_MOST_PARTS = 16  # a cell is cut into at once
_RUNGS = 32  # of the number of clones, to begin with
_RUNG_PARTS = 6  # a rung is cut into at once
_RUNG_WIDTH = 3e-3  # widest rung that matters, of its number of clones
_SMALLEST_SLOPE = 1e-300  # in place of zero, so that a geometric sum needs no case of its own


def log_odds(*, share: Vector, local_epsilon: float) -> Vector:
    """L = log((1 + t·x)/(1 − t·x)) at x in [0, 1], without cancellation at a large ε0, where t is one."""
    inverse = math.exp(-local_epsilon)
    small = np.minimum(math.tanh(local_epsilon / 2) * share, 0.5)
    large = np.log((1 + share) + (1 - share) * inverse) - np.log((1 - share) + (1 + share) * inverse)
    return np.where(small < 0.5, 2 * np.arctanh(small), large)


def log_excess(*, reports: Vector, order: float, local_epsilon: float) -> Vector:
    """log(E_Q[(P/Q)^α] − 1) given m, rounded up: by a hundredth where it is large, by up to a half below 0.

    Args:
        reports: whole m ≥ 1, shape (rungs,).
        order: α > 1.
        local_epsilon: ε0 > 0.

    Returns:
        Shape (rungs,).
    """
    faces = np.floor(reports / 2) + 1  # the rarer face shows 0, …, m/2 times
    edges = np.floor(faces[:, None] * np.linspace(0, 1, _CELLS + 1) ** 2)
    row = np.repeat(np.arange(reports.size), _CELLS)
    start, width = edges[:, :-1].ravel(), np.diff(edges, axis=1).ravel()
    row, start, width = row[width > 0], start[width > 0], width[width > 0]
    value = _cells(reports[row], start, width, order, local_epsilon)
    while True:
        peak = np.full(reports.size, -np.inf)
        np.maximum.at(peak, row, value)
        finest = np.maximum(_CELL_SDS * np.sqrt(start + 1), 1.0)
        coarse = (value > peak[row] + _NEGLIGIBLE_FEW) & (width > finest)
        if not coarse.any():
            share: Vector = np.exp(value - peak[row])
            return np.asarray(peak + np.log(np.bincount(row, weights=share)), dtype=np.float64)
        parts = np.clip(np.ceil(width[coarse] / finest[coarse]), 2, _MOST_PARTS).astype(np.int64)
        cut_start, cut_width = _cut(start[coarse], width[coarse], parts)
        cut_row = np.repeat(row[coarse], parts)
        cut_value = _cells(reports[cut_row], cut_start, cut_width, order, local_epsilon)
        row = np.concatenate([row[~coarse], cut_row])
        start = np.concatenate([start[~coarse], cut_start])
        width = np.concatenate([width[~coarse], cut_width])
        value = np.concatenate([value[~coarse], cut_value])


def log_few(
    *, edge: int, others: int, clone_probability: float, order: float, local_epsilon: float, rest: float
) -> float:
    """log of what C < ``edge`` clones add to E_Q[(P/Q)^α] − 1, rounded up.

    Args:
        edge: below the mean of the number of clones.
        others: trials of that number, n − 1.
        clone_probability: p in (0, 1).
        order: α > 1.
        local_epsilon: ε0 > 0.
        rest: log of what the others add; an answer far below it is not made precise.
    """
    if edge < 1:
        return -math.inf
    start, width = _cut(np.zeros(1), np.full(1, float(edge)), np.array([min(_RUNGS, edge)]))
    mass = _log_mass(start, width, others, clone_probability)
    simple = log_sum(mass + _log_cosh_excess(start + 1, (order - 0.5) * local_epsilon))
    if simple < rest + _NEGLIGIBLE_FEW:
        return simple
    value = mass + log_excess(reports=start + 1, order=order, local_epsilon=local_epsilon)
    while True:
        total = float(np.logaddexp(log_sum(value), rest))
        matters = value > total + _NEGLIGIBLE_FEW - math.log(value.size)
        coarse = matters & (width > np.maximum(_RUNG_WIDTH * start, 1.0))
        if not coarse.any():
            return log_sum(value)
        parts = np.minimum(width[coarse], _RUNG_PARTS).astype(np.int64)
        cut_start, cut_width = _cut(start[coarse], width[coarse], parts)
        cut_value = _log_mass(cut_start, cut_width, others, clone_probability)
        cut_value += log_excess(reports=cut_start + 1, order=order, local_epsilon=local_epsilon)
        start = np.concatenate([start[~coarse], cut_start])
        width = np.concatenate([width[~coarse], cut_width])
        value = np.concatenate([value[~coarse], cut_value])


def _cells(reports: Vector, start: Vector, width: Vector, order: float, local_epsilon: float) -> Vector:
    """log of a bound on what ``width`` counts of the rarer face from ``start`` on add."""
    more = (reports - 2 * start) / reports
    less = np.maximum(reports - 2 * (start + width), 0.0) / reports
    loss = log_odds(share=more, local_epsilon=local_epsilon)
    fall = (order - 1) * (loss - log_odds(share=less, local_epsilon=local_epsilon)) / width
    rise = np.log((reports - start) / (start + 1))
    with np.errstate(divide="ignore"):  # L = 0 adds nothing
        small = np.log(-np.expm1(-order * loss)) + np.log(-np.expm1(-(order - 1) * loss))
    mass = log_probability(successes=start, trials=reports, success=0.5)
    density = math.log(2) - np.log1p(np.exp(-loss))
    largest = mass + density + (order - 1) * loss + small
    return np.asarray(largest + _log_geometric(rise - fall, width), dtype=np.float64)


def _log_mass(start: Vector, width: Vector, others: int, probability: float) -> Vector:
    """log of a bound on P[start ≤ C < start + width], all below the mean."""
    last = start + width - 1
    fall = (
        np.log(np.maximum(last, 0.5) / (others - last + 1)) + math.log1p(-probability) - math.log(probability)
    )
    mass = log_probability(successes=last, trials=float(others), success=probability)
    return mass + _log_geometric(fall, width)


def _log_cosh_excess(reports: Vector, scaled: float) -> Vector:
    """log(cosh(s/m)^m − 1)."""
    ratio = scaled / reports
    exponent = np.where(
        ratio < 1e-3, scaled * ratio / 2, reports * (ratio + np.log1p(np.exp(-2 * ratio)) - math.log(2))
    )
    return exponent + np.log(-np.expm1(-exponent))


def _log_geometric(step: Vector, terms: Vector) -> Vector:
    """log Σ_{j < terms} e^(j·step)."""
    size = np.maximum(np.abs(step), _SMALLEST_SLOPE)
    falling = np.log(np.expm1(-terms * size) / np.expm1(-size))
    return falling + (terms - 1) * np.maximum(step, 0.0)


def _cut(start: Vector, width: Vector, parts: NDArray[np.int64]) -> tuple[Vector, Vector]:
    """Starts and widths of ``parts`` ranges of whole numbers in place of each range, none of them empty."""
    first = np.repeat(np.cumsum(parts) - parts, parts)
    index = np.arange(int(parts.sum())) - first
    span, pieces = np.repeat(width, parts), np.repeat(parts, parts)
    low, high = np.floor(span * index / pieces), np.floor(span * (index + 1) / pieces)
    return np.repeat(start, parts) + low, high - low
