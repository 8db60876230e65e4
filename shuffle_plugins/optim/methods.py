"""The optimisers: configurations whose numbers default to what the theorems choose.

Each theorem's bound on the excess loss, with its constants (:mod:`shuffle_plugins.optim.bounds`), is
minimised over the number of steps with the noise that the privacy model really adds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Annotated, ClassVar

from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Count, Delta, Positive, Ranged, in_range, whole_number
from shuffle_plugins.optim import bounds
from shuffle_plugins.optim.bounds import Promised
from shuffle_plugins.optim.oracles import GradientModel, GradientTarget, Participation, VectorSums
from shuffle_plugins.optim.plans import OptimizationPlan, Result, Stage
from shuffle_plugins.optim.problems import Problem, as_examples, flattened
from shuffle_plugins.protocols import TargetUnreachable
from shuffle_plugins.randomness.sources import Randomness, secure

_GOLDEN = (math.sqrt(5) - 1) / 2  # the golden section's ratio


@dataclass(frozen=True, kw_only=True)
class Task(Ranged):
    """What a method chooses its numbers for; ``reach`` bounds the distance from the start to the optimum."""

    problem: Problem
    population: Annotated[int, whole_number(at_least=2)]
    model: GradientModel
    epsilon: Positive
    delta: Delta
    reach: float
    records_per_client: Count = 1

    @property
    def target(self) -> GradientTarget:
        """What the model must meet."""
        return GradientTarget(
            dim=self.problem.dim,
            radius=self.problem.lipschitz,
            norm=self.problem.norm,
            epsilon=self.epsilon,
            delta=self.delta,
        )

    def noise(self, part: Participation) -> float:
        """About what privacy adds to the variance of a step's mean."""
        return self.model.noise(part, self.target)

    def participation(
        self, sampling: Sampling, *, num_steps: int, cohort: int, samples: int = 1
    ) -> Participation:
        """The group's clients in so many steps."""
        return Participation(
            sampling=sampling,
            population=self.population,
            cohort=cohort,
            num_steps=num_steps,
            records_per_client=self.records_per_client,
            samples_per_client=samples,
        )


class OptimizationMethod(Ranged, ABC):
    """An optimiser's configuration."""

    @abstractmethod
    def stages(self, task: Task) -> tuple[Stage, ...]:
        """What is to be done, with every number; TargetUnreachable if nothing keeps to the budget."""

    def plan(
        self,
        problem: Problem,
        *,
        population: int,
        epsilon: float,
        delta: float,
        model: GradientModel | None = None,
        records_per_client: int = 1,
    ) -> OptimizationPlan:
        """The plan for n clients with one record each, or m; TargetUnreachable if nothing fits the budget.

        Args:
            model: how gradients leave clients; :class:`VectorSums` by default.
            records_per_client: m, the records of every client, for :class:`CohortSGD` and
                :class:`SelfSampledSGD`. With more than one, ε is for neighbours that differ in one record.
        """
        chosen = VectorSums() if model is None else model
        task = Task(
            problem=problem,
            population=population,
            model=chosen,
            epsilon=epsilon,
            delta=delta,
            reach=problem.domain.reach(problem.domain.start(problem.dim)),
            records_per_client=records_per_client,
        )
        return OptimizationPlan(
            title=f"{self} with {type(chosen).__name__}",
            problem=problem,
            population=population,
            epsilon=task.epsilon,
            delta=task.delta,
            records_per_client=records_per_client,
            stages=self.stages(task),
        )


def _number_of_least_loss(loss: Callable[[int], float], *, most: int) -> int:
    """The number in [1, most] of least loss: golden section on the logarithm, then the numbers around."""
    loss = cache(loss)
    low, high = 0.0, math.log(most)
    while high - low > 0.02 and round(math.exp(high)) - round(math.exp(low)) > 2:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if loss(max(1, round(math.exp(left)))) <= loss(max(1, round(math.exp(right)))):
            high = right
        else:
            low = left
    around = {1, *range(max(1, math.floor(math.exp(low))), min(most, math.ceil(math.exp(high))) + 1)}
    found: int = min(sorted(around), key=loss)
    if not loss(found) < math.inf:
        raise TargetUnreachable("no number of steps keeps to the budget in this model: take more clients")
    return found


class _OneStage(OptimizationMethod):
    """A method of one stage, whose bound is minimised over the number of its steps."""

    @abstractmethod
    def part(self, task: Task, steps: int) -> Participation:
        """Who takes part in so many steps."""

    @abstractmethod
    def promised(self, task: Task, part: Participation, noise: float) -> Promised:
        """How the optimiser moves if privacy adds so much noise to a step, and the bound on its loss."""

    @abstractmethod
    def steps(self, task: Task) -> int:
        """How many steps the optimiser makes."""

    def loss(self, task: Task, steps: int) -> float:
        """The bound for so many steps, with about the noise that there will be."""
        part = self.part(task, steps)
        return self.promised(task, part, task.noise(part))[1]

    @override
    def stages(self, task: Task) -> tuple[Stage, ...]:
        part = self.part(task, self.steps(task))
        oracle = task.model.open(part, task.target)
        rule, bound = self.promised(task, part, oracle.noise)
        problem, reach = task.problem, task.reach
        return (
            Stage(problem=problem, participation=part, rule=rule, oracle=oracle, reach=reach, bound=bound),
        )


@dataclass(frozen=True, kw_only=True)
class _OnePass(_OneStage):
    """Disjoint batches of equal size, each client in one of them."""

    batch: Count | None = None

    @override
    def part(self, task: Task, steps: int) -> Participation:
        cohort = task.population // steps
        return task.participation(Sampling.SINGLE_PASS, num_steps=steps, cohort=cohort)

    @override
    def steps(self, task: Task, *, loss: Callable[[int], float] | None = None) -> int:
        if self.batch is None:
            return _number_of_least_loss(loss or partial(self.loss, task), most=task.population)
        return task.population // checks.whole("batch", self.batch, at_most=task.population)


@dataclass(frozen=True, kw_only=True)
class SGD(_OnePass):
    """P_SGD: one pass of mini-batch gradient descent (Algorithm 3, Theorem 4.1).

    Attributes:
        batch: b; by default it minimises D·√((L² + noise(b))·b/n), which is where the noise is about L².
    """

    step_size: Positive | None = None

    def __str__(self) -> str:
        return "P_SGD"

    @override
    def promised(self, task: Task, part: Participation, noise: float) -> Promised:
        moment, eta = task.problem.gradient_length**2 + noise, self.step_size
        return bounds.averaged(reach=task.reach, moment=moment, steps=part.num_steps, step_size=eta)


@dataclass(frozen=True, kw_only=True)
class PermutationSGD(SGD):
    """Noisy SGD, a client a step, in a secret random order (Feldman, McMillan, Talwar 2021, Section 5.2).

    For models of one-message reports; ``OneMessage(mechanism="gaussian")`` is the paper's own.

    Attributes:
        batch: clients whose mean gradient makes one report, and who must trust somebody to add them up.
    """

    batch: Count = 1

    def __str__(self) -> str:
        return "noisy SGD over a random permutation"

    @override
    def part(self, task: Task, steps: int) -> Participation:
        return task.participation(Sampling.EPOCH, num_steps=steps, cohort=self.batch)


@dataclass(frozen=True, kw_only=True)
class AGD(_OnePass):
    """P_AGD: one pass of accelerated stochastic approximation, for smooth losses (Algorithm 4, Theorem 4.3).

    Attributes:
        batch: b; by default it minimises the bound, and is of the order n^(3/5)·(√d·L/(εβD))^(2/5).
    """

    def __str__(self) -> str:
        return "P_AGD"

    @override
    def promised(self, task: Task, part: Participation, noise: float) -> Promised:
        smoothness = task.problem.smoothness
        if smoothness == math.inf:
            raise ValueError(f"{self} is for smooth losses; take Smoothed(inner=AGD()) for this one")
        variance = noise + task.problem.gradient_length**2 / part.cohort
        return bounds.accelerated(
            reach=task.reach, smoothness=smoothness, variance=variance, steps=part.num_steps
        )


@dataclass(frozen=True, kw_only=True)
class GD(_OneStage):
    """P_GD: every client in every step (Algorithm 5, Theorem 4.9).

    Attributes:
        num_steps: T. By default min(n/2, L²/noise₁), where noise₁ is that of a single step: more gain
            nothing. A smooth loss needs only 2β·ηT steps for the same bound, and gets as many if fewer.
        step_size: η, by default the bound's minimiser. The bound is always that minimum.
    """

    num_steps: Count | None = None
    step_size: Positive | None = None

    def __str__(self) -> str:
        return "P_GD"

    @override
    def part(self, task: Task, steps: int) -> Participation:
        return task.participation(Sampling.FULL, num_steps=steps, cohort=task.population)

    @override
    def promised(self, task: Task, part: Participation, noise: float) -> Promised:
        return bounds.repeated(
            reach=task.reach,
            lipschitz=task.problem.gradient_length,
            smoothness=task.problem.smoothness,
            noise=noise,
            steps=part.num_steps,
            population=task.population,
            step_size=self.step_size,
        )

    @override
    def steps(self, task: Task) -> int:
        if self.num_steps is not None:
            return self.num_steps
        square = task.problem.gradient_length**2
        noise = task.noise(self.part(task, 1))
        theorem = math.ceil(square / (noise + 2 * square / task.population))
        length = task.reach * math.sqrt(0.75 / (noise + square / task.population))  # ηT
        smooth = 2 * task.problem.smoothness * length
        return max(1, theorem if smooth >= theorem else math.ceil(smooth))


@dataclass(frozen=True, kw_only=True)
class Smoothed(OptimizationMethod):
    """An optimiser of smooth losses on Moreau envelopes of losses that are not (Theorems 4.7 and 4.9).

    Attributes:
        smoothness: β of the envelopes; by default it minimises the sum of the inner bound and L²/(2β), which
            is what smoothing loses.
    """

    inner: AGD | GD
    smoothness: Positive | None = None

    def __str__(self) -> str:
        return f"{self.inner} with smoothing"

    @override
    def stages(self, task: Task) -> tuple[Stage, ...]:
        beta = self.smoothness or self._smoothness(task)
        inside = replace(task, problem=task.problem.smoothed(beta))
        lost = task.problem.gradient_length**2 / (2 * beta)
        return tuple(replace(stage, bound=stage.bound + lost) for stage in self.inner.stages(inside))

    def _smoothness(self, task: Task) -> float:
        lipschitz, reach = task.problem.gradient_length, task.reach
        if isinstance(self.inner, GD):
            noise = task.noise(self.inner.part(task, 1)) or lipschitz**2 / task.population**2
            return lipschitz / reach * math.sqrt(min(task.population, lipschitz**2 / noise))

        def matching(steps: int) -> float:
            """β at which L²/(2β) + 2βD²/(T(T + 1)) is least."""
            return lipschitz / (2 * reach) * math.sqrt(steps * (steps + 1))

        def loss(steps: int) -> float:
            beta = matching(steps)
            smooth = replace(task, problem=task.problem.smoothed(beta))
            return lipschitz**2 / (2 * beta) + self.inner.loss(smooth, steps)

        return matching(self.inner.steps(task, loss=loss))


@dataclass(frozen=True, kw_only=True)
class Phased(OptimizationMethod):
    """A method for convex losses turned into one for strongly convex ones (Theorems 4.8 and 4.9).

    A phase, of a group of clients of its own, starts where the last one ended, and assumes that its start is
    as near the optimum as strong convexity says: ‖θ − θ*‖² ≤ 2·(excess loss)/λ. So it takes the ratio of the
    loss to its limit to a power: 3/5 for AGD and 1/2 for the others.

    Attributes:
        inner: what runs in a phase: SGD, AGD, GD, or one of the last two smoothed.
        phases: by default ⌈ln ln n/ln(5/3)⌉ for AGD and ⌈ln ln n/ln 2⌉ otherwise, at least 1.
        growth: ratio of the sizes of consecutive groups: 1, as in the paper's proof, for equal ones.
    """

    inner: SGD | AGD | GD | Smoothed
    phases: Count | None = None
    growth: Annotated[float, in_range(at_least=1)] = 2.0

    def __str__(self) -> str:
        return f"{self.inner} in phases"

    @override
    def stages(self, task: Task) -> tuple[Stage, ...]:
        convexity = task.problem.strong_convexity
        if convexity <= 0:
            raise ValueError("phases are for strongly convex losses: add a regulariser, or leave them out")
        power = 3 / 5 if isinstance(self.inner, AGD) else 1 / 2
        enough = math.log(math.log(max(task.population, 3))) / -math.log(power)
        phases = self.phases or max(1, math.ceil(enough))
        weights = [self.growth**i for i in range(phases)]
        sizes = [math.floor(task.population * w / sum(weights)) for w in weights[:-1]]
        sizes.append(task.population - sum(sizes))
        found: list[Stage] = []
        reach = task.reach
        for size in sizes:
            found += self.inner.stages(replace(task, population=size, reach=reach))
            reach = min(reach, math.sqrt(2 * found[-1].bound / convexity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class CohortSGD(_OneStage):
    """SGD on k clients drawn anew for every step; with one-message mechanisms it is CLDP-SGD.

    Thesis, Algorithm 4.3.1 and Theorems 4.3.1 and 5.4.3: η_t = D/(G√t), last iterate, of expected excess loss
    at most 2DG(2 + log T)/√T, with G² = max{d^(1−2/p), 1}·L² + noise for an ℓp norm.

    Attributes:
        cohort: k, by default a twentieth of the clients.
        samples: s, how many of its records a client draws in a step; each makes a report of its own.
        num_steps: T; by default the least power of two, up to 512, whose bound is within 10 % of the least.
    """

    cohort: Count | None = None
    num_steps: Count | None = None
    samples: Count = 1

    _SAMPLING: ClassVar[Sampling] = Sampling.WITHOUT_REPLACEMENT

    def __str__(self) -> str:
        return "CLDP-SGD"

    @override
    def part(self, task: Task, steps: int) -> Participation:
        size = self.cohort or max(2, -(-task.population // 20))
        return task.participation(self._SAMPLING, num_steps=steps, cohort=size, samples=self.samples)

    @override
    def promised(self, task: Task, part: Participation, noise: float) -> Promised:
        moment = task.problem.gradient_length**2 + noise
        return bounds.last_iterate(reach=task.reach, moment=moment, steps=part.num_steps)

    @override
    def steps(self, task: Task) -> int:
        if self.num_steps is not None:
            return self.num_steps
        losses = {1 << i: self.loss(task, 1 << i) for i in range(10)}  # more steps gain little
        least = min(losses.values())
        if least == math.inf:
            raise TargetUnreachable(
                "no number of steps keeps to the budget in this model: take smaller cohorts"
            )
        return next(steps for steps, loss in losses.items() if loss <= 1.1 * least)


@dataclass(frozen=True, kw_only=True)
class SelfSampledSGD(CohortSGD):
    """DSS-SGD: every client decides for itself, in secret, whether to take part in a step.

    Thesis, Section 4.4 and Theorem 4.4.1. ``cohort`` is the expected number of clients in a step. One without
    reports changes nothing, and is charged all the same.
    """

    _SAMPLING: ClassVar[Sampling] = Sampling.POISSON

    def __str__(self) -> str:
        return "DSS-SGD"

    @override
    def promised(self, task: Task, part: Participation, noise: float) -> Promised:
        rule, bound = super().promised(task, part, noise)
        heard, spread = bounds.random_cohort(population=task.population, expected=part.cohort)
        worse = max(1.0, spread) / heard
        return rule, bound * (worse if worse > bounds.LAST_ITERATE_ROOM else 1.0)  # there is room for less


def recommended(problem: Problem, *, interactive: bool = True) -> OptimizationMethod:
    """The method of the paper's Table 1, whether a client can be asked in every step or only once."""
    inner = GD() if interactive else AGD()
    method = Smoothed(inner=inner) if problem.smoothness == math.inf else inner
    return Phased(inner=method) if problem.strong_convexity > 0 else method


def minimize(
    problem: Problem,
    data: Tensor | Sequence[Tensor],
    *,
    epsilon: float,
    delta: float,
    method: OptimizationMethod | None = None,
    model: GradientModel | None = None,
    records_per_client: int = 1,
    randomness: Randomness | None = None,
    report: Callable[[str], object] | None = print,
) -> Result:
    """Minimise the expected loss within (ε, δ), each row of the data being one client's.

    ``data`` is a tensor, or several, with a row for each client; with m records each, (clients, m, …). The
    method is by default :func:`recommended`, the other arguments are as of :meth:`OptimizationMethod.plan`.
    ``report`` is called with the plan's text before anything runs; None is silence.
    """
    chosen = recommended(problem) if method is None else method
    source = secure(randomness)
    examples = as_examples(data)
    checks.whole("records_per_client", records_per_client)
    problem.accepts(flattened(examples, records_per_client))
    plan = chosen.plan(
        problem,
        population=len(examples[0]),
        epsilon=epsilon,
        delta=delta,
        model=model,
        records_per_client=records_per_client,
    )
    if report is not None:
        report(plan.summary())
    return plan.run(examples, randomness=source, progress=report is not None)
