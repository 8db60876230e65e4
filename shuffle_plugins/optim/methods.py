"""The optimisers: configurations whose numbers default to what the theorems choose.

Each theorem fixes its numbers by minimising a bound on the excess loss in which the noise of P_vec appears as
O(dL²·log²(d/δ)/(b²ε²)). Here the same bounds, with their constants (``bounds``), are minimised over the
number of steps with the noise that the privacy model really adds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

from shuffle_plugins.optim import bounds
from shuffle_plugins.optim.oracles import GradientModel, GradientOracle, Target, VectorSums
from shuffle_plugins.optim.participation import Participation, Scheme
from shuffle_plugins.optim.plans import Plan, Stage
from shuffle_plugins.optim.problems import Problem
from shuffle_plugins.optim.steps import Accelerated, Averaged, Decaying, Rule
from shuffle_plugins.protocols.errors import OutOfReach

_GOLDEN = (math.sqrt(5) - 1) / 2
_MOST_SAMPLED_STEPS = 1 << 9
_WORTHWHILE = 1.1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a method chooses its numbers for.

    Attributes:
        problem: what to minimise.
        clients: n of the group.
        model: how gradients leave clients.
        epsilon: budget.
        delta: budget.
        reach: distance from the start to the optimum, at most.
    """

    problem: Problem
    clients: int
    model: GradientModel
    epsilon: float
    delta: float
    reach: float

    @property
    def target(self) -> Target:
        """What the model is asked for."""
        return Target(
            dim=self.problem.dim,
            radius=self.problem.lipschitz,
            epsilon=self.epsilon,
            delta=self.delta,
        )

    def noise(self, participation: Participation) -> float:
        """About what privacy adds to the variance of a step's mean."""
        return self.model.noise(participation, self.target)

    def opened(self, participation: Participation) -> GradientOracle:
        """The oracle."""
        return self.model.open(participation, self.target)

    def batches(self, steps: int) -> Participation:
        """The group in ``steps`` disjoint batches."""
        return Participation(
            scheme=Scheme.BATCHES,
            clients=self.clients,
            cohort=self.clients // steps,
            num_steps=steps,
        )

    def everybody(self, steps: int) -> Participation:
        """The whole group in every step."""
        return Participation(
            scheme=Scheme.EVERYBODY, clients=self.clients, cohort=self.clients, num_steps=steps
        )


class Method(ABC):
    """An optimiser's configuration."""

    @abstractmethod
    def stages(self, setting: Setting) -> tuple[Stage, ...]:
        """What is to be done, with every number.

        Raises:
            ValueError: if the method is not for such a problem, or the budget cannot be kept to.
        """

    def plan(
        self,
        problem: Problem,
        *,
        clients: int,
        epsilon: float,
        delta: float,
        model: GradientModel | None = None,
    ) -> Plan:
        """The plan for n clients with one example each; it starts in the middle of the domain.

        Args:
            problem: what to minimise.
            clients: n.
            epsilon: what a client may spend on all of it, replace-one.
            delta: δ.
            model: how gradients leave clients, by default :class:`VectorSums`.

        Raises:
            TypeError: if the problem or the model is none.
            ValueError: if an argument is out of range, the method is not for such a problem, or the model not
                for the method.
            OutOfReach: if nothing keeps to the budget.
        """
        if not isinstance(problem, Problem):
            raise TypeError(f"problem must be a Problem, such as logistic_regression(…), got {problem!r}")
        if type(clients) is not int or clients < 2:
            raise ValueError(f"clients must be a whole number, at least 2, got {clients!r}")
        _check_positive("epsilon", epsilon)
        _check_positive("delta", delta)
        if not delta < 1:
            raise ValueError(f"delta must be a number in (0, 1), got {delta!r}")
        chosen = VectorSums() if model is None else model
        if not isinstance(chosen, GradientModel):
            raise TypeError(f"model must be a GradientModel, such as VectorSums(), got {model!r}")
        setting = Setting(
            problem=problem,
            clients=clients,
            model=chosen,
            epsilon=epsilon,
            delta=delta,
            reach=problem.domain.reach(problem.domain.start(problem.dim)),
        )
        return Plan(
            title=f"{self} with {type(chosen).__name__}",
            problem=problem,
            clients=clients,
            epsilon=epsilon,
            delta=delta,
            stages=self.stages(setting),
        )


def _check_whole(name: str, value: object) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")


def _check_positive(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")


def _check_inner(method: Method, inner: object, *kinds: type[Method]) -> None:
    if not isinstance(inner, kinds):
        known = ", ".join(f"{kind.__name__}(…)" for kind in kinds)
        raise TypeError(f"inner of {type(method).__name__} must be one of {known}, got {inner!r}")


def _fewest_loss(loss: Callable[[int], float], *, most: int) -> int:
    """The number of steps in [1, most] of least loss: golden section on the logarithm, then neighbours."""
    low, high = 0.0, math.log(most)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    while high - low > 0.02 and round(math.exp(high)) - round(math.exp(low)) > 2:
        if loss(max(1, round(math.exp(left)))) <= loss(max(1, round(math.exp(right)))):
            high, right = right, left
            left = high - _GOLDEN * (high - low)
        else:
            low, left = left, right
            right = low + _GOLDEN * (high - low)
    around = {1, *range(max(1, math.floor(math.exp(low))), min(most, math.ceil(math.exp(high))) + 1)}
    found: int = min(sorted(around), key=loss)
    if not loss(found) < math.inf:
        raise OutOfReach("no number of steps keeps to the budget in this model: take more clients")
    return found


def _steps_of_batch(batch: int | None, steps: Callable[[], int], clients: int) -> int:
    if batch is None:
        return steps()
    if type(batch) is not int or not 1 <= batch <= clients:
        raise ValueError(f"batch must be a whole number in [1, {clients}], got {batch!r}")
    return clients // batch


@dataclass(frozen=True, kw_only=True)
class SGD(Method):
    """P_SGD: one pass of mini-batch gradient descent (Algorithm 3, Theorem 4.1).

    Attributes:
        batch: b; by default it minimises D·√((L² + noise(b))·b/n), where the noise is about L².
        step_size: η, by default D/√((L² + noise)·T).
    """

    batch: int | None = None
    step_size: float | None = None

    def __post_init__(self) -> None:
        _check_whole("batch", self.batch)
        _check_positive("step_size", self.step_size)

    def __str__(self) -> str:
        return "P_SGD"

    def stages(self, setting: Setting) -> tuple[Stage, ...]:
        """One stage of disjoint batches."""
        reach, square = setting.reach, setting.problem.lipschitz**2

        def loss(steps: int) -> float:
            moment = square + setting.noise(setting.batches(steps))
            return bounds.averaged_loss(reach=reach, second_moment=moment, steps=steps)

        steps = _steps_of_batch(self.batch, lambda: _fewest_loss(loss, most=setting.clients), setting.clients)
        part = setting.batches(steps)
        oracle = setting.opened(part)
        moment = square + oracle.noise
        eta = self.step_size or bounds.averaged_step(reach=reach, second_moment=moment, steps=steps)
        bound = reach**2 / (2 * eta * steps) + eta * moment / 2
        return (_stage(setting, part, Averaged(step_size=eta), oracle, bound),)


@dataclass(frozen=True, kw_only=True)
class AGD(Method):
    """P_AGD: one pass of accelerated stochastic approximation, for smooth losses (Algorithm 4, Theorem 4.3).

    Attributes:
        batch: b; by default it minimises the bound, of the order n^(3/5)·(√d·L/(εβD))^(2/5).
    """

    batch: int | None = None

    def __post_init__(self) -> None:
        _check_whole("batch", self.batch)

    def __str__(self) -> str:
        return "P_AGD"

    def stages(self, setting: Setting) -> tuple[Stage, ...]:
        """One stage of disjoint batches.

        Raises:
            ValueError: if the problem is not smooth.
        """
        _check_smooth(setting.problem, self)

        def loss(steps: int) -> float:
            part = setting.batches(steps)
            return self._loss(setting, part, setting.noise(part))

        steps = _steps_of_batch(self.batch, lambda: _fewest_loss(loss, most=setting.clients), setting.clients)
        part = setting.batches(steps)
        oracle = setting.opened(part)
        curvature = bounds.accelerated_curvature(
            reach=setting.reach,
            smoothness=setting.problem.smoothness,
            variance=oracle.noise + setting.problem.lipschitz**2 / part.cohort,
            steps=steps,
        )
        bound = self._loss(setting, part, oracle.noise)
        return (_stage(setting, part, Accelerated(curvature=curvature), oracle, bound),)

    @staticmethod
    def _loss(setting: Setting, part: Participation, noise: float) -> float:
        return bounds.accelerated_loss(
            reach=setting.reach,
            smoothness=setting.problem.smoothness,
            variance=noise + setting.problem.lipschitz**2 / part.cohort,
            steps=part.num_steps,
        )


@dataclass(frozen=True, kw_only=True)
class GD(Method):
    """P_GD: every client in every step (Algorithm 5, Theorem 4.9).

    Attributes:
        num_steps: T. By default min(n/2, L²/noise₁), noise₁ being that of a single step: with it the noise of
            a step outweighs the gradient, and more steps gain nothing. A smooth loss needs only 2β·ηT steps
            for the same bound, which is less, and gets those.
        step_size: η, by default the bound's minimiser, at most 1/(2β) if the loss is smooth.
    """

    num_steps: int | None = None
    step_size: float | None = None

    def __post_init__(self) -> None:
        _check_whole("num_steps", self.num_steps)
        _check_positive("step_size", self.step_size)

    def __str__(self) -> str:
        return "P_GD"

    def stages(self, setting: Setting) -> tuple[Stage, ...]:
        """One stage with everybody in every step."""
        problem, reach, clients = setting.problem, setting.reach, setting.clients
        steps = self.num_steps or self._steps(setting)
        part = setting.everybody(steps)
        oracle = setting.opened(part)
        known = {
            "reach": reach,
            "lipschitz": problem.lipschitz,
            "smoothness": problem.smoothness,
            "noise": oracle.noise,
        }
        eta = self.step_size or bounds.repeated_step(**known, steps=steps, clients=clients)
        bound = bounds.repeated_loss(**known, steps=steps, clients=clients)
        return (_stage(setting, part, Averaged(step_size=eta), oracle, bound),)

    @staticmethod
    def _steps(setting: Setting) -> int:
        problem = setting.problem
        square = problem.lipschitz**2
        alone = setting.noise(setting.everybody(1))
        theorem = math.ceil(square / (alone + 2 * square / setting.clients))
        length = setting.reach * math.sqrt(0.75 / (alone + square / setting.clients))  # ηT
        smooth = 2 * problem.smoothness * length
        return max(1, theorem if smooth >= theorem else math.ceil(smooth))


@dataclass(frozen=True, kw_only=True)
class Smoothed(Method):
    """An optimiser of smooth losses on the Moreau envelopes of losses that are not (Theorems 4.7 and 4.9).

    Attributes:
        inner: AGD or GD.
        smoothness: β of the envelopes; by default it minimises the inner bound and L²/(2β) together.
    """

    inner: AGD | GD
    smoothness: float | None = None

    def __post_init__(self) -> None:
        _check_inner(self, self.inner, AGD, GD)
        _check_positive("smoothness", self.smoothness)

    def __str__(self) -> str:
        return f"{self.inner} with smoothing"

    def stages(self, setting: Setting) -> tuple[Stage, ...]:
        """The inner method's stage, on smoothed losses."""
        beta = self.smoothness or self._smoothness(setting)
        inside = replace(setting, problem=setting.problem.smoothed(beta))
        lost = setting.problem.lipschitz**2 / (2 * beta)
        return tuple(replace(stage, bound=stage.bound + lost) for stage in self.inner.stages(inside))

    def _smoothness(self, setting: Setting) -> float:
        length = setting.problem.lipschitz
        alone = length**2 / (setting.noise(setting.everybody(1)) or length**2 / setting.clients**2)
        if isinstance(self.inner, GD):
            return length / setting.reach * math.sqrt(min(setting.clients, alone))

        def loss(steps: int) -> float:
            part = setting.batches(steps)
            variance = setting.noise(part) + length**2 / part.cohort
            beta = _matching(length, setting.reach, steps)
            return length**2 / (2 * beta) + bounds.accelerated_loss(
                reach=setting.reach, smoothness=beta, variance=variance, steps=steps
            )

        steps = _steps_of_batch(
            self.inner.batch, lambda: _fewest_loss(loss, most=setting.clients), setting.clients
        )
        return _matching(length, setting.reach, steps)


def _matching(lipschitz: float, reach: float, steps: int) -> float:
    """β at which L²/(2β) + 2βD²/(T(T + 1)) is least."""
    return lipschitz / (2 * reach) * math.sqrt(steps * (steps + 1))


@dataclass(frozen=True, kw_only=True)
class Phased(Method):
    """A method for convex losses turned into one for strongly convex ones (Theorems 4.8 and 4.9).

    Clients are parted into O(log log n) groups. Each phase starts where the last one ended, assuming that it
    is as near the optimum as strong convexity says: ‖θ − θ*‖² ≤ 2·(excess loss)/λ. So a phase takes the ratio
    of the loss to its limit to a power, 3/5 for AGD (its loss goes with D^(6/5)) and 1/2 else.

    Attributes:
        inner: what runs in a phase: SGD, AGD, GD, or either smoothed.
        phases: k, by default ⌈ln ln n/ln(5/3)⌉ for AGD and ⌈ln ln n/ln 2⌉ else, at least 1: then that ratio,
            at most a power of n at first, is a constant in the end.
        growth: ratio of the sizes of consecutive groups: 1 for equal ones, as in the paper's proof of Theorem
            4.8; 2, the default, spares the last phase the factor k (Feldman, Koren, Talwar 2020).
    """

    inner: SGD | AGD | GD | Smoothed
    phases: int | None = None
    growth: float = 2.0

    def __post_init__(self) -> None:
        _check_inner(self, self.inner, SGD, AGD, GD, Smoothed)
        _check_whole("phases", self.phases)

    def __str__(self) -> str:
        return f"{self.inner} in phases"

    def stages(self, setting: Setting) -> tuple[Stage, ...]:
        """A stage for each phase.

        Raises:
            ValueError: if the problem is not strongly convex, or there are too few clients.
        """
        convexity = setting.problem.strong_convexity
        if convexity <= 0:
            raise ValueError("phases are for strongly convex losses: add a regulariser, or leave them out")
        if not 1 <= self.growth < math.inf:
            raise ValueError(f"growth must be at least 1, got {self.growth!r}")
        power = 3 / 5 if isinstance(self.inner, AGD) else 1 / 2
        enough = math.log(math.log(max(setting.clients, 3))) / -math.log(power)
        phases = self.phases or max(1, math.ceil(enough))
        weights = [self.growth**i for i in range(phases)]
        sizes = [math.floor(setting.clients * w / sum(weights)) for w in weights[:-1]]
        sizes.append(setting.clients - sum(sizes))
        if min(sizes) < 2:
            raise ValueError(f"{setting.clients} clients cannot be parted into {phases} groups")
        found: list[Stage] = []
        reach = setting.reach
        for size in sizes:
            found += self.inner.stages(replace(setting, clients=size, reach=reach))
            reach = min(reach, math.sqrt(2 * found[-1].bound / convexity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class CohortSGD(Method):
    """SGD on k clients drawn anew for every step; with one-message mechanisms it is CLDP-SGD.

    Thesis, Algorithm 4.3.1 and Theorem 4.3.1: η_t = D/(G√t), G² = L² + noise, last iterate.

    Attributes:
        cohort: k, by default a twentieth of the clients.
        num_steps: T; by default the least power of two, up to 512, with a bound hardly above the least.
    """

    cohort: int | None = None
    num_steps: int | None = None

    def __post_init__(self) -> None:
        _check_whole("cohort", self.cohort)
        _check_whole("num_steps", self.num_steps)

    def __str__(self) -> str:
        return "CLDP-SGD"

    def stages(self, setting: Setting) -> tuple[Stage, ...]:
        """One stage of drawn cohorts."""
        return _sampled(setting, Scheme.COHORTS, cohort=self.cohort, num_steps=self.num_steps)


@dataclass(frozen=True, kw_only=True)
class SelfSampledSGD(Method):
    """DSS-SGD: every client decides for itself, in secret, whether to take part in a step.

    Thesis, Section 4.4 and Theorem 4.4.1. A step without reports moves nothing and is charged all the same.

    Attributes:
        expected: q·n, expected number of clients in a step, by default a twentieth of them.
        num_steps: T; by default the least power of two, up to 512, with a bound hardly above the least.
    """

    expected: int | None = None
    num_steps: int | None = None

    def __post_init__(self) -> None:
        _check_whole("expected", self.expected)
        _check_whole("num_steps", self.num_steps)

    def __str__(self) -> str:
        return "DSS-SGD"

    def stages(self, setting: Setting) -> tuple[Stage, ...]:
        """One stage of self-sampled cohorts."""
        return _sampled(setting, Scheme.SELF_SAMPLED, cohort=self.expected, num_steps=self.num_steps)


def _sampled(
    setting: Setting, scheme: Scheme, *, cohort: int | None, num_steps: int | None
) -> tuple[Stage, ...]:
    size = max(2, -(-setting.clients // 20)) if cohort is None else cohort
    square = setting.problem.lipschitz**2

    def part(steps: int) -> Participation:
        return Participation(scheme=scheme, clients=setting.clients, cohort=size, num_steps=steps)

    def loss(steps: int) -> float:
        moment = square + setting.noise(part(steps))
        return bounds.last_iterate_loss(reach=setting.reach, second_moment=moment, steps=steps)

    steps = num_steps
    if steps is None:
        candidates = [2**i for i in range(_MOST_SAMPLED_STEPS.bit_length())]
        losses = {found: loss(found) for found in candidates}
        least = min(losses.values())
        if least == math.inf:
            raise OutOfReach("no number of steps keeps to the budget in this model: take smaller cohorts")
        steps = next(found for found in candidates if losses[found] <= _WORTHWHILE * least)
    taken = part(steps)
    oracle = setting.opened(taken)
    moment = square + oracle.noise
    rule = Decaying(scale=bounds.last_iterate_scale(reach=setting.reach, second_moment=moment))
    bound = bounds.last_iterate_loss(reach=setting.reach, second_moment=moment, steps=steps)
    return (_stage(setting, taken, rule, oracle, bound),)


@dataclass(frozen=True, kw_only=True)
class PermutationSGD(Method):
    """Noisy SGD, a client a step, in a secret random order (Feldman, McMillan, Talwar 2021, Section 5.2).

    Every step answers to the ones before; the pass is accounted as one epoch of batches of one. For models of
    one-message reports; ``Reports(mechanism="gaussian")`` is the paper's own.

    Attributes:
        batch: clients whose mean gradient makes one report. Each batch is one element that is permuted; it
            takes somebody whom its clients trust to add up their gradients.
        step_size: η, by default D/√((L² + noise)·T).
    """

    batch: int = 1
    step_size: float | None = None

    def __post_init__(self) -> None:
        _check_whole("batch", self.batch)
        _check_positive("step_size", self.step_size)

    def __str__(self) -> str:
        return "noisy SGD over a random permutation"

    def stages(self, setting: Setting) -> tuple[Stage, ...]:
        """One stage of one pass."""
        steps = _steps_of_batch(self.batch, lambda: setting.clients, setting.clients)
        part = Participation(
            scheme=Scheme.PERMUTATION, clients=setting.clients, cohort=self.batch, num_steps=steps
        )
        oracle = setting.opened(part)
        moment = setting.problem.lipschitz**2 + oracle.noise
        eta = self.step_size or bounds.averaged_step(reach=setting.reach, second_moment=moment, steps=steps)
        bound = setting.reach**2 / (2 * eta * steps) + eta * moment / 2
        return (_stage(setting, part, Averaged(step_size=eta), oracle, bound),)


def _check_smooth(problem: Problem, method: Method) -> None:
    if problem.smoothness == math.inf:
        raise ValueError(f"{method} is for smooth losses; take Smoothed(inner=AGD()) for this one")


def _stage(setting: Setting, part: Participation, rule: Rule, oracle: GradientOracle, bound: float) -> Stage:
    return Stage(
        problem=setting.problem,
        participation=part,
        rule=rule,
        oracle=oracle,
        reach=setting.reach,
        bound=bound,
    )
