"""A plan: every number an optimiser will use, known and printed before any data are read."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from tqdm import tqdm
from typing_extensions import override

from shuffle_plugins.accounting import BudgetExceeded, EpsilonInterval, Round, ShuffleAccountant
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.base import Norm
from shuffle_plugins.optim import bounds
from shuffle_plugins.optim.oracles import GradientOracle, Participation
from shuffle_plugins.optim.problems import (
    PROXIMAL_STEPS,
    ConvexSet,
    Problem,
    as_examples,
    at,
    check_gradients,
    flattened,
)
from shuffle_plugins.randomness.sources import Randomness, secure


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


_SILENT = 5.0  # seconds that a run may take without a progress bar


class Spending:
    """Costs of groups of clients; no client belongs to two of them.

    Given what was released before, a client's data enter only the rounds of its own group. Later groups
    compute on what that group released and on other clients' data. So the transcript of all groups costs as
    much as the group that costs most.

    Args:
        groups: number of groups.
        before: what every client has already taken part in; copied.
    """

    def __init__(self, groups: int = 1, *, before: ShuffleAccountant | None = None) -> None:
        start = ShuffleAccountant() if before is None else before
        self._accountants = tuple(
            ShuffleAccountant(method=start.method) for _ in range(checks.whole("groups", groups))
        )
        for accountant in self._accountants:
            accountant.load_state_dict(start.state_dict())

    @property
    def accountants(self) -> tuple[ShuffleAccountant, ...]:
        """One for every group, in order."""
        return self._accountants

    def charge(self, group: int, new_round: Round, *, target_epsilon: float, delta: float) -> None:
        """Record a round of a group, before anything of it is released.

        Raises:
            BudgetExceeded: if it would take the group over the target ε at δ; then nothing is recorded.
        """
        accountant = self._accountants[group]
        if accountant.would_exceed(new_round, target_epsilon=target_epsilon, delta=delta):
            raise BudgetExceeded(
                f"the next round would take clients over ε={target_epsilon:g} at δ={delta:g}; they have "
                f"spent {accountant.epsilon(delta, lower=False).upper:.4g}. Nothing of it was released"
            )
        accountant.step(new_round)

    def epsilon(self, delta: float) -> EpsilonInterval:
        """ε at δ of the group that costs most."""
        return max((a.epsilon(delta) for a in self._accountants), key=lambda found: found.upper)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of one update rule on one group of clients.

    Attributes:
        problem: what is minimised here, perhaps a smoothed form of the original.
        participation: of this group's clients.
        rule: how the optimiser moves.
        oracle: how gradients leave clients.
        reach: assumed distance from the start to the optimum.
        bound: upper bound on the excess loss, from the method's theorem.
    """

    problem: Problem
    participation: Participation
    rule: Rule
    oracle: GradientOracle
    reach: float
    bound: float


def _bits(bits_per_report: int, part: Participation) -> str:
    """What clients send, as the thesis counts it (Theorem 4.3.1)."""
    rate, samples = part.cohort / part.population, part.samples_per_client
    expected = bounds.expected_bits(bits=bits_per_report, rate=rate, samples=samples)
    found = f"{expected:,.4g} bits per client and step expected"
    if samples == 1:
        return found
    fewest = bounds.histogram_bits(bits=bits_per_report, rate=rate, samples=samples)
    return f"{found}, {fewest:,.4g} as histograms of a client's reports"


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """What an optimiser found.

    Attributes:
        parameters: the answer, float64 (dim,).
        spending: what it cost.
        steps: steps taken.
        private: whether all of them were protected.
    """

    parameters: Tensor
    spending: Spending
    steps: int
    private: bool

    def __repr__(self) -> str:
        cost = "epsilon(delta) says what it cost" if self.private else "NOT private"
        norm = float(self.parameters.norm())
        return (
            f"Result({self.parameters.numel():,} parameters of norm {norm:.4g}, {self.steps:,} steps; {cost})"
        )

    def epsilon(self, delta: float) -> EpsilonInterval:
        """ε at δ, for replace-one neighbours and an observer of everything that was released."""
        if not self.private:
            raise ValueError("gradients were used as they are: no ε holds")
        return self.spending.epsilon(delta)


@dataclass(frozen=True, kw_only=True)
class OptimizationPlan:
    """What will be done, in stages on disjoint groups of clients.

    Attributes:
        title: method and privacy model.
        problem: as given.
        population: n, the number of clients.
        epsilon: ε that a client may spend (replace-one).
        delta: δ at which that ε holds.
        stages: in order; each starts where the last one ended.
        records_per_client: m; with more than one, ε is for neighbours that differ in one record of a client.
    """

    title: str
    problem: Problem
    population: int
    epsilon: float
    delta: float
    stages: tuple[Stage, ...]
    records_per_client: int = 1

    @property
    def bound(self) -> float:
        """Upper bound on the expected excess loss after the last stage, from the method's theorem."""
        return self.stages[-1].bound

    @property
    def private(self) -> bool:
        """Whether the gradients of every stage are protected."""
        return all(stage.oracle.round is not None for stage in self.stages)

    def summary(self) -> str:
        """The plan in a few lines of text."""
        p = self.problem
        several = self.records_per_client > 1
        relation = "replace-one record of a client" if several else "replace-one"
        budget = f"ε = {self.epsilon:g}, δ = {self.delta:g} ({relation})" if self.private else "NOT private"
        clients = f"n = {self.population:,}{f', m = {self.records_per_client:,}' if several else ''}"
        geometry = "" if p.norm is Norm.L2 else f" in {p.norm}"
        lines = [
            f"{self.title}: {clients}, d = {p.dim}, {budget}",
            f"  L = {p.lipschitz:.4g}{geometry}, β = {p.smoothness:.4g}, λ = {p.strong_convexity:.4g}, "
            f"D = {p.domain.diameter:.4g}",
        ]
        for number, stage in enumerate(self.stages, start=1):
            part = stage.participation
            lines += [
                f"  stage {number}: {part.num_steps:,} steps of {part.cohort:,} of {part.population:,} "
                f"clients ({part}); β = {stage.problem.smoothness:.4g}, distance {stage.reach:.4g}",
                f"    {stage.rule}; excess loss at most {stage.bound:.4g}{self._vacuous(stage)}",
                f"    {stage.oracle}",
            ]
            if stage.oracle.bits_per_report is not None and not part.once:
                lines.append(f"    {_bits(stage.oracle.bits_per_report, part)}")
            if p.proximal is None and stage.problem.smoothness < p.smoothness:
                lines.append(
                    f"    every client searches for its proximal point, {PROXIMAL_STEPS} gradients a step; "
                    "one is enough if the loss is smooth and the problem says so by smoothness="
                )
        return "\n".join(lines)

    def _vacuous(self, stage: Stage) -> str:
        largest = self.problem.gradient_length * self.problem.domain.diameter
        return (
            f" (says nothing: no point of Θ has more than L·D = {largest:.4g})"
            if stage.bound > largest
            else ""
        )

    def run(
        self,
        data: Tensor | Sequence[Tensor],
        *,
        start: Tensor | None = None,
        randomness: Randomness | None = None,
        before: ShuffleAccountant | None = None,
        on_step: Callable[[int, Tensor], None] | None = None,
        progress: bool = False,
    ) -> Result:
        """Carry the plan out; every round is recorded before its output is used.

        Args:
            data: a tensor, or several, with one row for each of the plan's clients; they are put into a
                random order first. With m records per client (clients, m, …).
            start: θ_0; by default the middle of the domain.
            randomness: for order, cohorts and noise.
            before: rounds that every client has taken part in before: their cost counts towards the budget.
            on_step: called after each step with its number, from 1, and the point at which gradients were
                taken.
            progress: whether a bar on stderr counts the steps of a run that takes more than five seconds.

        Raises:
            BudgetExceeded: if the budget does not allow the next round; nothing of that round was released.
        """
        examples = as_examples(data)
        if examples[0].shape[0] != self.population:
            raise ValueError(
                f"the plan is for {self.population} clients, the data have {len(examples[0])} rows"
            )
        examples = flattened(examples, self.records_per_client)
        self.problem.check(examples)
        source = secure(randomness)
        point = self.problem.domain.start(self.problem.dim) if start is None else start.double()
        point = self.problem.domain.project(point)
        spending = Spending(len(self.stages), before=before)
        order = source.permutation(self.population)
        sizes = [stage.participation.population for stage in self.stages]
        ends = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        taken = 0
        steps = sum(stage.participation.num_steps for stage in self.stages)
        bar = tqdm(total=steps, unit="step", delay=_SILENT, leave=False, disable=not progress)
        for group, (stage, (first, last)) in enumerate(zip(self.stages, pairwise(ends), strict=True)):
            part, rule, oracle = stage.participation, stage.rule, stage.oracle
            state = rule.begin(point)
            recorded = 0
            for step in range(1, part.num_steps + 1):
                if oracle.round is not None and recorded < part.releases:
                    spending.charge(group, oracle.round, target_epsilon=self.epsilon, delta=self.delta)
                    recorded += 1
                asked = rule.query(state, step)
                where = part.drawn(step, order=order[first:last], randomness=source)
                if len(where):
                    gradients = check_gradients(
                        stage.problem.gradients(asked, at(examples, where)),
                        clients=len(where),
                        dim=self.problem.dim,
                    )
                    estimate = oracle.mean(gradients, randomness=source)
                    state = rule.update(state, estimate, step, stage.problem.domain)
                taken += 1
                bar.update()
                if on_step is not None:
                    on_step(taken, asked)
            point = rule.answer(state, part.num_steps)
        bar.close()
        return Result(parameters=point, spending=spending, steps=taken, private=self.private)
