"""Update rules: pure functions of a state, a gradient estimate and the number of the step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from shuffle_plugins.optim.domains import ConvexSet


@dataclass(frozen=True, slots=True)
class State:
    """The state of an optimiser between two steps.

    Attributes:
        point: θ_t.
        aggregate: what the result is computed from: θ^ag, the sum of the points so far, or the last point.
    """

    point: Tensor
    aggregate: Tensor


class Rule(ABC):
    """How an optimiser moves. Steps count from 1. ``str`` of a rule is the rule with its numbers."""

    def begin(self, point: Tensor) -> State:
        """The state before the first step."""
        return State(point, point)

    def query(self, state: State, step: int) -> Tensor:
        """The point at which gradients are taken: by default the present one."""
        return state.point

    @abstractmethod
    def update(self, state: State, gradient: Tensor, step: int, domain: ConvexSet) -> State:
        """The state after a step."""

    def answer(self, state: State, steps: int) -> Tensor:
        """The result after ``steps`` steps: by default the aggregate."""
        return state.aggregate


@dataclass(frozen=True, kw_only=True, slots=True)
class Averaged(Rule):
    """θ_t = π(θ_{t−1} − η·g); the answer is the mean of θ_0 … θ_{T−1} (Algorithms 3 and 5).

    The paper prints θ + η·g; a minus is meant.
    """

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Decaying(Rule):
    """θ_t = π(θ_{t−1} − scale/√t·g); the answer is the last point (CLDP-SGD, Algorithm 4.3.1)."""

    scale: float

    @override
    def update(self, state: State, gradient: Tensor, step: int, domain: ConvexSet) -> State:
        point = domain.project(state.point - self.scale / math.sqrt(step) * gradient)
        return State(point, point)

    def __str__(self) -> str:
        return f"η_t = {self.scale:.4g}/√t, last iterate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerated(Rule):
    """AC-SA (Algorithm 4; Lan 2012): α_t = 2/(t + 1) and L_t = c/t, steps counted from 1.

    The paper's α_t = 2/(t + 2) and L_t = c/(t + 1) with t counted from 0, as α must be 1 at first.

    Attributes:
        curvature: c, at least 2β for a β-smooth loss.
    """

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
