"""Update rules, and what the theorems promise of them, with their constants.

``reach`` bounds the distance from the start to the optimum, ``lipschitz`` is L, ``noise`` the variance
E‖ĝ − ∇‖² that privacy adds to one step's mean gradient. Promises bound the expected excess loss.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy import stats
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.optim.problems import ConvexSet

LAST_ITERATE_ROOM = 1.05
"""By so much :func:`last_iterate` promises more than its proof needs."""


@dataclass(frozen=True, slots=True)
class State:
    """An optimiser between two steps: θ_t, and what the result is computed from."""

    point: Tensor
    aggregate: Tensor


class Rule(ABC):
    """How an optimiser moves. Steps count from 1. ``str`` of a rule is the rule with its numbers."""

    def begin(self, point: Tensor) -> State:
        """The state before the first step."""
        return State(point, point)

    def query(self, state: State, step: int) -> Tensor:
        """The point at which gradients are taken."""
        return state.point

    @abstractmethod
    def update(self, state: State, gradient: Tensor, step: int, domain: ConvexSet) -> State:
        """The state after a step."""

    def answer(self, state: State, steps: int) -> Tensor:
        """The result after so many steps."""
        return state.aggregate


@dataclass(frozen=True, kw_only=True)
class Averaged(Rule):
    """θ_t = π(θ_{t−1} − η·g); the answer is the mean of θ_0 … θ_{T−1} (Algorithms 3 and 5)."""

    step_size: float

    @override
    def begin(self, point: Tensor) -> State:
        return State(point, point.new_zeros(point.shape))

    @override
    def update(self, state: State, gradient: Tensor, step: int, domain: ConvexSet) -> State:
        return State(domain.project(state.point - self.step_size * gradient), state.aggregate + state.point)

    @override
    def answer(self, state: State, steps: int) -> Tensor:
        return state.aggregate / steps

    def __str__(self) -> str:
        return f"η = {self.step_size:.4g}, mean of the iterates"


@dataclass(frozen=True, kw_only=True)
class Decaying(Rule):
    """θ_t = π(θ_{t−1} − scale/√t·g); the answer is the last point (CLDP-SGD, Algorithm 4.3.1)."""

    scale: float

    @override
    def update(self, state: State, gradient: Tensor, step: int, domain: ConvexSet) -> State:
        point = domain.project(state.point - self.scale / math.sqrt(step) * gradient)
        return State(point, point)

    def __str__(self) -> str:
        return f"η_t = {self.scale:.4g}/√t, last iterate"


@dataclass(frozen=True, kw_only=True)
class Accelerated(Rule):
    """AC-SA (Algorithm 4; Lan 2012): α_t = 2/(t + 1) and L_t = c/t, c = ``curvature`` at least 2β."""

    curvature: float

    @override
    def query(self, state: State, step: int) -> Tensor:
        return state.aggregate + (state.point - state.aggregate) * (2 / (step + 1))

    @override
    def update(self, state: State, gradient: Tensor, step: int, domain: ConvexSet) -> State:
        point = domain.project(state.point - (step / self.curvature) * gradient)
        return State(point, state.aggregate + (point - state.aggregate) * (2 / (step + 1)))

    def __str__(self) -> str:
        return f"L_t = {self.curvature:.4g}/t, aggregate"


Promised = tuple[Rule, float]
"""A rule and the bound on its excess loss."""


def averaged(*, reach: float, moment: float, steps: int, step_size: float | None = None) -> Promised:
    """D²/(2ηT) + ηG²/2, at the best η by default: ``moment`` G² bounds E‖ĝ‖² (Lemma 4.2)."""
    if step_size is None:
        return Averaged(step_size=reach / math.sqrt(moment * steps)), reach * math.sqrt(moment / steps)
    return Averaged(step_size=step_size), reach**2 / (2 * step_size * steps) + step_size * moment / 2


def accelerated(*, reach: float, smoothness: float, variance: float, steps: int) -> Promised:
    """AC-SA when gradients have this variance (Lemma 4.4, with its constants), at the best c = 2β + s.

    In expectation a step gives, with Γ_t = 2/(t(t + 1)) and as L_t − α_tβ ≥ s/t,
    (f(θ^ag_{t+1}) − f*)/Γ_t ≤ (f(θ^ag_t) − f*)/Γ_{t−1} + c/2·(‖θ_t − θ*‖² − ‖θ_{t+1} − θ*‖²) + t²σ²/(2s).
    The paper's α₁ is 2/3, and its L_t is half of this: too little for the proof where there is no noise.
    """
    spread = variance * (2 * steps + 1) / 6
    best = math.sqrt(spread * steps * (steps + 1)) / reach
    bias = 2 * smoothness * reach**2 / (steps * (steps + 1))
    bound = bias + 2 * reach * math.sqrt(spread / (steps * (steps + 1)))
    return Accelerated(curvature=2 * smoothness + best), bound


def repeated(
    *,
    reach: float,
    lipschitz: float,
    smoothness: float,
    noise: float,
    steps: int,
    population: int,
    step_size: float | None = None,
) -> Promised:
    """Gradient descent on the same n clients: excess *population* loss (Lemmas B.4 and B.5), at the best η.

    D²/(2ηT) + η(L² + σ²)/2 + ηTL²/n. Where the loss is β-smooth and η ≤ 1/(2β), the descent lemma gives
    3D²/(4ηT) + ησ² in place of the first two, the mean being that of θ_0 … θ_{T−1}.
    """
    slope = lipschitz**2 * steps / population + noise
    factor, largest = 0.75, 1 / (2 * smoothness)
    if smoothness == math.inf:
        factor, largest, slope = 0.5, math.inf, slope + (lipschitz**2 - noise) / 2
    eta = min(largest, reach * math.sqrt(factor / (slope * steps)) if slope else math.inf)
    return Averaged(step_size=step_size or eta), factor * reach**2 / (eta * steps) + slope * eta


def last_iterate(*, reach: float, moment: float, steps: int) -> Promised:
    """2DG(2 + log T)/√T with η_t = D/(G√t) (Shamir and Zhang 2013; Theorems 4.3.1 and 5.4.3 of the thesis).

    There D is the diameter of the domain. It holds, with some room, with the distance R = ``reach`` from the
    start to the farthest point: iterates may be 2R from one another, and their proof gives, at R = G = 1,
    (3 + 1.5·(H + 1 + H/T))/√T, H = 1 + 1/2 + … + 1/(T − 1), 1.05 times less than the bound for T ≥ 100; for
    less T a test adds up the terms.
    """
    bound = 2 * reach * math.sqrt(moment / steps) * (2 + math.log(steps))
    return Decaying(scale=reach / math.sqrt(moment)), bound


def random_cohort(*, population: int, expected: float) -> tuple[float, float]:
    """P[K > 0] and E[expected/K; K > 0] for K ~ Bin(n, expected/n) clients who sample themselves.

    The estimate, 0 in a step without reports, has the mean P[K > 0]·∇F, and the noise of the mean of K
    reports is E[1/K; K > 0] times that of one. The bound on the excess loss is their ratio, or 1/P[K > 0] if
    that is more, times that of cohorts of exactly the expected size.
    """
    rate = expected / population
    width = 12 * math.sqrt(expected) + 40  # what is left out has less probability than a float can add to 1
    sizes = np.arange(max(1, math.floor(expected - width)), min(population, math.ceil(expected + width)) + 1)
    spread = float((stats.binom.pmf(sizes, population, rate) * expected / sizes).sum())
    return -math.expm1(population * math.log1p(-rate)) if rate < 1 else 1.0, spread


def sent_bits(*, bits: int, rate: float, samples: int) -> tuple[float, float]:
    """Expected bits of a client in a step, s reports of b bits each: (k/n)·s·b (Theorem 4.3.1).

    With the reports as counts of 2^b kinds at most (k/n)·s·(log₂e + log₂((s + 2^b − 1)/s)) (thesis, Section
    4.3.1.2, after Mayekar and Tyagi 2020).
    """
    kinds = bits + math.log2(1 + (samples - 1) * 2.0**-bits)  # log₂(s + 2^b − 1), of any b
    counted = min(math.log2(math.e) + kinds - math.log2(samples), bits)
    return rate * samples * bits, rate * samples * counted
