"""A plan: every number an optimiser will use, known and printed before any data are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from tqdm import tqdm

from shuffle_plugins.accounting import BudgetExceeded, EpsilonInterval, Round, ShuffleAccountant
from shuffle_plugins.mechanisms import Norm
from shuffle_plugins.optim import bounds
from shuffle_plugins.optim.bounds import Rule
from shuffle_plugins.optim.oracles import GradientOracle, Participation
from shuffle_plugins.optim.problems import PROXIMAL_STEPS, Problem, as_examples, flattened
from shuffle_plugins.randomness.sources import Randomness, secure

_SILENT = 5.0  # seconds that a run may take without a progress bar


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of one update rule on one group of clients.

    ``reach`` is the assumed distance from the start to the optimum, ``bound`` is on the excess loss.
    """

    problem: Problem
    participation: Participation
    rule: Rule
    oracle: GradientOracle
    reach: float
    bound: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """What an optimiser found.

    Attributes:
        parameters: the answer, float64 (dim,).
        accountants: of each group of clients, in order; no client belongs to two of them.
        private: whether all of them were protected.
    """

    parameters: Tensor
    accountants: tuple[ShuffleAccountant, ...]
    steps: int
    private: bool

    def __repr__(self) -> str:
        cost = "epsilon(delta) says what it cost" if self.private else "NOT private"
        norm = float(self.parameters.norm())
        return (
            f"Result({self.parameters.numel():,} parameters of norm {norm:.4g}, {self.steps:,} steps; {cost})"
        )

    def epsilon(self, delta: float) -> EpsilonInterval:
        """ε at δ, replace-one, of everything that was released: that of the group that costs most."""
        if not self.private:
            raise ValueError("gradients were used as they are: no ε holds")
        return max((each.epsilon(delta) for each in self.accountants), key=lambda found: found.upper)


@dataclass(frozen=True, kw_only=True)
class OptimizationPlan:
    """What will be done, in stages on disjoint groups of clients, each starting where the last one ended.

    ``title`` says method and privacy model; the other fields are as of :meth:`OptimizationMethod.plan`.
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
        largest = p.gradient_length * p.domain.diameter
        vacuous = f" (says nothing: no point of Θ has more than L·D = {largest:.4g})"
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
                f"    {stage.rule}; excess loss at most {stage.bound:.4g}"
                f"{vacuous if stage.bound > largest else ''}",
                f"    {stage.oracle.says}",
            ]
            if stage.oracle.bits_per_report is not None and not part.once:
                rate, samples = part.cohort / part.population, part.samples_per_client
                sent, counted = bounds.sent_bits(
                    bits=stage.oracle.bits_per_report, rate=rate, samples=samples
                )
                fewest = f", {counted:,.4g} as histograms of a client's reports" if samples > 1 else ""
                lines.append(f"    {sent:,.4g} bits per client and step expected{fewest}")
            if p.proximal is None and stage.problem.smoothness < p.smoothness:
                lines.append(
                    f"    every client searches for its proximal point, {PROXIMAL_STEPS} gradients a step; "
                    "one is enough if the loss is smooth and the problem says so by smoothness="
                )
        return "\n".join(lines)

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
            before: rounds that every client has taken part in before: their cost counts towards the budget.
            on_step: called after each step with its number, from 1, and where gradients were taken.

        BudgetExceeded if the budget does not allow the next round; nothing of that round was released.
        """
        examples = as_examples(data)
        if examples[0].shape[0] != self.population:
            raise ValueError(
                f"the plan is for {self.population} clients, the data have {len(examples[0])} rows"
            )
        examples = flattened(examples, self.records_per_client)
        self.problem.accepts(examples)
        source = secure(randomness)
        point = self.problem.domain.start(self.problem.dim) if start is None else start.double()
        point = self.problem.domain.project(point)
        earlier = ShuffleAccountant() if before is None else before
        accountants = tuple(ShuffleAccountant(method=earlier.method) for _ in self.stages)
        order = source.permutation(self.population)
        sizes = [stage.participation.population for stage in self.stages]
        ends = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        taken = 0
        steps = sum(stage.participation.num_steps for stage in self.stages)
        bar = tqdm(total=steps, unit="step", delay=_SILENT, leave=False, disable=not progress)
        for group, (stage, (first, last)) in enumerate(zip(self.stages, pairwise(ends), strict=True)):
            part, rule, oracle = stage.participation, stage.rule, stage.oracle
            accountants[group].load_state_dict(earlier.state_dict())
            state = rule.begin(point)
            for step in range(1, part.num_steps + 1):
                if oracle.round is not None and step <= part.releases:
                    self._charge(accountants[group], oracle.round)
                asked = rule.query(state, step)
                where = part.drawn(step, order=order[first:last], randomness=source)
                if len(where):
                    gradients = stage.problem.gradients(asked, tuple(t[where] for t in examples))
                    wanted = len(where), self.problem.dim
                    if gradients.shape != wanted or not gradients.dtype.is_floating_point:
                        raise ValueError(
                            f"gradients must be floating {wanted}, got {gradients.dtype} "
                            f"{tuple(gradients.shape)}"
                        )
                    estimate = oracle.mean(gradients.detach().double(), randomness=source)
                    state = rule.update(state, estimate, step, stage.problem.domain)
                taken += 1
                bar.update()
                if on_step is not None:
                    on_step(taken, asked)
            point = rule.answer(state, part.num_steps)
        bar.close()
        return Result(parameters=point, accountants=accountants, steps=taken, private=self.private)

    def _charge(self, accountant: ShuffleAccountant, new_round: Round) -> None:
        """Record a round before anything of it is released, or refuse it."""
        if accountant.would_exceed(new_round, target_epsilon=self.epsilon, delta=self.delta):
            raise BudgetExceeded(
                f"the next round would take clients over ε={self.epsilon:g} at δ={self.delta:g}; they have "
                f"spent {accountant.epsilon(self.delta, lower=False).upper:.4g}. Nothing of it was released"
            )
        accountant.step(new_round)
