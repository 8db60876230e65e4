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
from scipy import optimize
from scipy.special import betainc, logsumexp

from shuffle_plugins.accounting.binomial import TAIL, binomial_window
from shuffle_plugins.accounting.published.binomial import log_probability

Vector = NDArray[np.float64]
Side = Literal["lower", "upper"]

_BUCKETS = 2048
_ROUNDING = 1e-10  # relative; binomial tails and masses are good to 1e-11 at 1e9 trials
_CERTIFY = 1e-10
_CLONE_TOLERANCE = 2e-3  # of the number of clones, for Rényi divergences
_TAIL_BUCKETS = 16
_SIGN_TOLERANCE = 0.025  # of the standard deviation of D
_LOG_CUT = -75.0
_NEVER_UNDERFLOWS = 1000.0  # 2^−m is a normal double up to here
_FURTHEST_SDS = 36.0  # and e^−W²/(2m) up to here
_RUNGS = 64
_LARGEST_EXPONENT = 500.0
_MOST_REPORTS = 10**15
_LARGEST_LOCAL_EPSILON = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ClonePair:
    """The clone pair of n reports; symmetric in P and Q.

    Attributes:
        local_epsilon: ε0 in (0, 300], nats.
        num_reports: n in [1, 1e15].
        clone_probability: p in [0, 1], of each other report.

    Raises:
        ValueError: if a field is out of range.
    """

    local_epsilon: float
    num_reports: int
    clone_probability: float

    def __post_init__(self) -> None:
        if not 0 < self.local_epsilon <= _LARGEST_LOCAL_EPSILON:
            raise ValueError(
                f"local_epsilon must be in (0, {_LARGEST_LOCAL_EPSILON:g}], got {self.local_epsilon!r}"
            )
        if not 1 <= self.num_reports <= _MOST_REPORTS:
            raise ValueError(f"num_reports must be in [1, {_MOST_REPORTS:g}], got {self.num_reports!r}")
        if not 0 <= self.clone_probability <= 1:
            raise ValueError(f"clone_probability must be in [0, 1], got {self.clone_probability!r}")

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Bounds (lower, upper) on the hockey-stick divergence of P and Q at ε ≥ 0.

        They differ by bucketing, tails beyond 1e-30 and rounding, about a part in 10⁴ at most.

        Raises:
            ValueError: if ``epsilon`` is negative or not finite.
        """
        if not 0 <= epsilon < math.inf:
            raise ValueError(f"epsilon must be finite and not negative, got {epsilon!r}")
        return self._delta(epsilon, "lower"), self._delta(epsilon, "upper")

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Bounds (lower, upper) on the ε of the pair at δ in (0, 1], within a relative 3e-5 of each other.

        Raises:
            ValueError: if ``delta`` is out of range.
        """
        if not 0 < delta <= 1:
            raise ValueError(f"delta must be in (0, 1], got {delta!r}")
        return self._epsilon(delta, "lower"), self._epsilon(delta, "upper")

    def upper_epsilon(self, delta: float) -> float:
        """The upper end of :meth:`epsilon` alone, at half the cost.

        Raises:
            ValueError: if ``delta`` is out of range.
        """
        if not 0 < delta <= 1:
            raise ValueError(f"delta must be in (0, 1], got {delta!r}")
        return self._epsilon(delta, "upper")

    def _delta(self, epsilon: float, side: Side) -> float:
        """Σ_c P[C = c]·h(c), h the hockey-stick divergence given c clones: non-increasing in c."""
        if epsilon >= self.local_epsilon:
            return TAIL if side == "upper" else 0.0
        bottom, top, mass = _buckets(self.num_reports - 1, self.clone_probability)
        clones = bottom if side == "upper" else top
        advantage = math.tanh(self.local_epsilon / 2)
        threshold = np.ceil((clones + 1) * (1 + math.tanh(epsilon / 2) / advantage) / 2)
        threshold = np.minimum(threshold, clones + 1)
        trials = clones - threshold + 1
        above = np.where(trials >= 1, betainc(threshold, np.maximum(trials, 1.0), 0.5), 0.0)
        at = np.exp(log_probability(successes=threshold - 1, trials=clones, success=0.5))
        # P − e^ε·Q of {A + Δ ≥ t}, split so that nothing of order one cancels
        gained = at * (advantage - math.expm1(epsilon) * (1 - advantage) / 2)
        lost = above * math.expm1(epsilon)
        each = np.maximum(gained - lost, 0.0)
        slack = float((mass * (np.abs(gained) + lost)).sum()) * _ROUNDING
        total = float((mass * each).sum())
        return total + slack + TAIL if side == "upper" else max(total - slack - TAIL, 0.0)

    def _epsilon(self, delta: float, side: Side) -> float:
        return _solve(self, delta, side)

    def rdp(self, orders: ArrayLike) -> Vector:
        """Rényi divergence of P and Q at real orders, rounded up: the pair's own, to about a part in 10³.

        Nothing is left out: what the windows of the counts miss is bounded and added.

        Args:
            orders: real α > 1, shape (m,).

        Returns:
            Divergences in nats, at most ε0, shape (m,).

        Raises:
            ValueError: if an order is not a finite number above 1.
        """
        alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
        if alpha.ndim != 1 or not (np.all(alpha > 1) and np.all(np.isfinite(alpha))):
            raise ValueError("Rényi orders must be finite numbers above 1")
        nodes = _sign_nodes(self, float(alpha.max()))
        moments = np.array([self._log_moment(float(order), nodes) for order in alpha])
        divergence = moments / (alpha - 1) * (1 + 1e-9)
        return np.minimum(divergence, self.local_epsilon)

    def _log_moment(self, order: float, nodes: _SignNodes) -> float:
        """log E_Q[(P/Q)^α]."""
        loss = order * nodes.loss
        if order * self.local_epsilon <= _LARGEST_EXPONENT:
            more = np.expm1(loss)
            excess = more * (nodes.q - nodes.p / (1 + more))
            value = math.log1p(max(float((nodes.mass * excess).sum()), 0.0))
        else:
            sides = (_log_sum(nodes.log_q + loss), _log_sum(nodes.log_p - loss))
            value = max(float(np.logaddexp(*sides)), 0.0)
        scaled = order * self.local_epsilon
        return float(logsumexp([value, nodes.log_cut(scaled), *self._log_few(scaled, nodes.rungs)]))

    def _log_few(self, scaled: float, rungs: Vector) -> Vector:
        """What few clones, below the window, add at most: Chernoff's bound on their number, rung by rung.

        Given m, the moment is at most 4·exp(min((α·ε0)²/(2m), α·ε0)); ``scaled`` is α·ε0.
        """
        if rungs.size < 2:
            return np.zeros(0)
        others = self.num_reports - 1
        rate = rungs[1:] / others
        p = self.clone_probability
        divergence = rate * np.log(rate / p) + (1 - rate) * (np.log1p(-rate) - math.log1p(-p))
        return math.log(4) + np.minimum(scaled**2 / (2 * (rungs[:-1] + 1)), scaled) - others * divergence


@dataclass(frozen=True, slots=True)
class _SignNodes:
    """Nodes of D/m for D ≥ 0 with their masses, each standing for −D too; t = tanh(ε0/2).

    Attributes:
        p: density 1 + t·D/m, shape (nodes,).
        q: density 1 − t·D/m.
        loss: log(p/q).
        mass: shape (nodes,).
        log_p: log of mass·p.
        log_q: log of mass·q.
        rungs: numbers of clones below the window, from zero to its edge.
        cut: W; only D ≤ W is covered.
        fewest: smallest m.
        most: largest m.
    """

    p: Vector
    q: Vector
    loss: Vector
    mass: Vector
    log_p: Vector
    log_q: Vector
    rungs: Vector
    cut: float
    fewest: float
    most: float

    def log_cut(self, scaled: float) -> float:
        """log of a bound on what D beyond ±W adds to a moment, at α·ε0 = ``scaled``.

        The summand is at most e^(α·ε0·D/m) for D > 0, because artanh is convex, and at most 2 for D < 0.
        """
        if self.cut >= self.most:
            return -math.inf
        slope = scaled / self.fewest
        if slope >= self.cut / self.most:
            return math.log(3) + min(self.most * slope**2 / 2, scaled)
        return math.log(3) + min(slope * self.cut - self.cut**2 / (2 * self.most), scaled)


def _log_sum(exponents: Vector) -> float:
    peak = float(exponents.max())
    return peak + math.log(float(np.exp(exponents - peak).sum()))


@lru_cache(maxsize=64)
def _buckets(trials: int, probability: float) -> tuple[Vector, Vector, Vector]:
    """Smallest and largest count, and mass, of each bucket of a binomial law."""
    first, law = binomial_window(trials, probability)
    edges = np.unique(np.linspace(0, law.size, _BUCKETS + 1).astype(np.int64))
    bottom = (first + edges[:-1]).astype(np.float64)
    top = (first + edges[1:] - 1).astype(np.float64)
    return bottom, top, np.add.reduceat(law, edges[:-1])


@lru_cache(maxsize=512)
def _solve(pair: ClonePair, delta: float, side: Side) -> float:
    """The ε at which the bound on δ crosses δ, moved to the safe side and checked there."""

    def excess(epsilon: float) -> float:
        found = pair._delta(epsilon, side)
        return math.log(found / delta) if found > 0 else -math.inf

    if excess(0.0) <= 0:
        return 0.0
    high = pair.local_epsilon
    if excess(high * (1 - 1e-12)) > 0:
        return high if side == "upper" else high * (1 - 1e-12)
    root = float(
        optimize.brentq(
            lambda epsilon: max(excess(epsilon), -750.0), 0.0, high, xtol=1e-14 * high, rtol=1e-12
        )
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


def _clone_nodes(law: Vector, *, mean: float, first: int) -> NDArray[np.int64]:
    """Where the buckets of a binomial window start: coarse beyond five standard deviations of the mean."""
    fine = max(1, int(_CLONE_TOLERANCE * mean))
    near = 5 * math.sqrt(mean) + fine
    low = int(np.clip(mean - near - first, 0, law.size))
    high = int(np.clip(mean + near - first, 0, law.size))
    below = np.linspace(0, low, _TAIL_BUCKETS + 1)[:-1]
    above = np.linspace(high, law.size, _TAIL_BUCKETS + 1)[:-1]
    starts = np.concatenate([below, np.arange(low, high, fine), above]).astype(np.int64)
    return np.unique(starts[starts < law.size])


def _sign_nodes(pair: ClonePair, order: float) -> _SignNodes:
    """Nodes that serve every order up to ``order``.

    Buckets of m take their smallest m; D is spread to nodes at equal mean. Both can only raise a convex
    function of the ratio.
    """
    first, law = binomial_window(pair.num_reports - 1, pair.clone_probability)
    starts = _clone_nodes(law, mean=(pair.num_reports - 1) * pair.clone_probability, first=first)
    reports = first + 1.0 + starts
    bucket_mass = np.add.reduceat(law, starts)
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
    rest = ((reports[:, None] - difference) / reports[:, None])[keep]
    mass = mass[keep]
    # 1 ± t·D/m without cancellation at a large ε0, where t rounds to one
    inverse = math.exp(-pair.local_epsilon)
    p = ((1 + share) + rest * inverse) / (1 + inverse)
    q = (rest + (1 + share) * inverse) / (1 + inverse)
    small = np.minimum(math.tanh(pair.local_epsilon / 2) * share, 0.5)
    return _SignNodes(
        p=p,
        q=q,
        loss=np.where(small < 0.5, 2 * np.arctanh(small), np.log(p / q)),
        mass=mass,
        log_p=np.log(mass) + np.log(p),
        log_q=np.log(mass) + np.log(q),
        rungs=np.unique(np.floor(np.linspace(0, first, _RUNGS + 1))),
        cut=cut,
        fewest=fewest,
        most=most,
    )
