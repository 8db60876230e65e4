"""What a planner is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from shuffle_plugins.accounting import NEIGHBOURING_RELATION, Adversary, EpsilonInterval, Method, Sampling
from shuffle_plugins.accounting.calibrate import LARGEST_SEARCHED_LOCAL_EPSILON
from shuffle_plugins.core import checks
from shuffle_plugins.core.ranges import Delta, Dim, Radius, Ranged, TargetEpsilon, one_of
from shuffle_plugins.planning.errors import NormName, check_norm, enclosing_radius

_Norm = Annotated[NormName, lambda _, value: check_norm(value)]


class Edge(StrEnum):
    """Where the best value lies among those tried."""

    ONLY = "only one"
    INTERIOR = "interior"
    LOWEST = "lowest"
    HIGHEST = "highest"


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One way to spend the target (ε, δ): a mechanism, a cohort, a number of rounds and their largest ε0.

    Attributes:
        mechanism: name of the randomizer.
        cohort: k, reports per round; where clients join on their own the expected number.
        num_steps: T, rounds; under single passes and check-in, passes.
        local_epsilon: ε0 of one report.
        epsilon: certified interval of all T rounds, replace-one.
        noise_mse: mean squared error of one round's average that the randomizer causes.
        sampling_mse: that of one round's average which the choice of the cohort causes.
        average_mse: mean squared error of the average over all rounds, cohorts redrawn.
        bits_per_report: length of a report on the wire.
        num_reports: reports in all rounds together, expected.
        bits_per_client: bits that a client of the population sends in all rounds, expected.
    """

    mechanism: str
    cohort: int
    num_steps: int
    local_epsilon: float
    epsilon: EpsilonInterval
    noise_mse: float
    sampling_mse: float
    average_mse: float
    bits_per_report: int
    num_reports: int
    bits_per_client: float

    @property
    def round_mse(self) -> float:
        """Mean squared error of one round's average: noise and sampling."""
        return self.noise_mse + self.sampling_mse

    @property
    def total_bits(self) -> int:
        """Bits that all clients send in all rounds, expected."""
        return self.num_reports * self.bits_per_report


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the target (ε, δ) would buy by other means; None where there are no reports or rounds."""

    name: str
    average_mse: float
    cohort: int | None = None
    num_steps: int | None = None
    local_epsilon: float | None = None


@dataclass(frozen=True, kw_only=True)
class Dismissed:
    """A mechanism that a plan left out, and why."""

    mechanism: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PlanQuestion(Ranged):
    """What a plan is for.

    Attributes:
        target_epsilon: ε to stay within, for replace-one neighbours.
        delta: δ of every ε.
        population: n, the number of clients.
        dim: d, length of a client's vector.
        radius: of the ball that the clients' vectors lie in.
        norm: of that ball.
        spread: S, the root mean square ℓ2 distance of the clients' vectors from their mean (from zero where
            clients join on their own); None for the ℓ2 radius of the ball, its worst case.
        sampling: how cohorts are chosen.
        adversary: against whom the guarantee holds.
        method: how the costs of rounds are composed.
    """

    target_epsilon: TargetEpsilon
    delta: Delta
    population: int
    dim: Dim
    radius: Radius
    norm: _Norm
    spread: float | None
    sampling: Annotated[Sampling, one_of(Sampling)]
    adversary: Annotated[Adversary, one_of(Adversary)]
    method: Method

    def __post_init__(self) -> None:
        super().__post_init__()
        spread = self.reach if self.spread is None else self.spread
        checks.number("spread", spread, at_least=0, at_most=self.reach)
        object.__setattr__(self, "spread", spread)

    @property
    def reach(self) -> float:
        """ℓ2 radius of the clients' ball."""
        return enclosing_radius(radius=self.radius, norm=self.norm, within="l2", dim=self.dim)

    @property
    def neighbouring_relation(self) -> str:
        """For which neighbouring datasets every ε of the plan holds: always ``"replace-one"``."""
        return NEIGHBOURING_RELATION


@dataclass(frozen=True, kw_only=True)
class Plan(PlanQuestion):
    """The best way to spend (target ε, δ), and what was tried on the way; begins with the question's fields.

    Attributes:
        tolerance: by how much the error of ``thrifty`` may exceed the least one, relatively.
        best: the row of least error.
        thrifty: of the rows within ``tolerance`` of the best, that of the same cohort and the fewest rounds;
            where only one T was tried, that of the smallest cohort.
        cohort_edge: where the best cohort lies among those of all rows.
        steps_edge: where the best T lies among those of all rows.
        rows: every combination tried, by mechanism, T and k.
        baselines: what else the target would buy.
        dismissed: mechanisms that were left out.
        infeasible: (mechanism, k, T) that exceed the target even at the smallest ε0.
    """

    tolerance: float
    best: PlanRow
    thrifty: PlanRow
    cohort_edge: Edge
    steps_edge: Edge
    rows: tuple[PlanRow, ...]
    baselines: tuple[Baseline, ...]
    dismissed: tuple[Dismissed, ...]
    infeasible: tuple[tuple[str, int, int], ...]

    @property
    def everybody(self) -> bool:
        """Whether the best cohort is the whole population."""
        return self.best.cohort == self.population

    def curve(self, *, mechanism: str | None = None, num_steps: int | None = None) -> tuple[PlanRow, ...]:
        """Rows of one mechanism and one T, by default the best ones, by growing k."""
        name = self.best.mechanism if mechanism is None else mechanism
        steps = self.best.num_steps if num_steps is None else num_steps
        chosen = (row for row in self.rows if (row.mechanism, row.num_steps) == (name, steps))
        return tuple(sorted(chosen, key=lambda row: row.cohort))

    def remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers should know, one sentence each."""
        best, thrifty = self.best, self.thrifty
        said = []
        if self.everybody and self.cohort_edge is not Edge.ONLY:
            said.append("Everything fits with k = n: no smaller cohort has a smaller error.")
        elif self.cohort_edge in (Edge.LOWEST, Edge.HIGHEST):
            said.append(
                f"The best cohort is the {self.cohort_edge} one tried: the optimum may lie beyond k = "
                f"{best.cohort:,}."
            )
        if self.steps_edge in (Edge.LOWEST, Edge.HIGHEST):
            beyond = "more" if self.steps_edge is Edge.HIGHEST else "fewer"
            said.append(
                f"The best T is the {self.steps_edge} one tried: {beyond} rounds than {best.num_steps:,} may "
                "do better still."
            )
        if best.local_epsilon >= LARGEST_SEARCHED_LOCAL_EPSILON:
            said.append(f"ε0 = {LARGEST_SEARCHED_LOCAL_EPSILON:g} is the solver's cap, not the target's.")
        if thrifty is not best:
            more = thrifty.average_mse / best.average_mse - 1
            said.append(
                f"{best.total_bits / thrifty.total_bits:,.3g} times less communication, k = "
                f"{thrifty.cohort:,} and T = {thrifty.num_steps:,}, costs {more:.1%} of error."
            )
        if self.infeasible:
            said.append(f"{len(self.infeasible)} combinations exceed the target at every ε0.")
        if self.adversary is Adversary.SERVER:
            said.append("Against the server every round is charged as if one client were in all of them.")
        return tuple(said)
