"""What a planner is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from shuffle_plugins.accounting import NEIGHBOURING_RELATION, Adversary, EpsilonInterval, Method, Sampling
from shuffle_plugins.accounting.calibrate import LARGEST_SEARCHED_LOCAL_EPSILON
from shuffle_plugins.core import checks, rounded
from shuffle_plugins.core.checks import Delta, Dim, Radius, Ranged, TargetEpsilon, one_of
from shuffle_plugins.planning.errors import NormName, check_norm, enclosing_radius
from shuffle_plugins.planning.groups import report_worth

_Norm = Annotated[NormName, lambda _, value: check_norm(value)]


class Edge(StrEnum):
    """Where the best value lies among those tried."""

    ONLY = "only one"
    INTERIOR = "interior"
    LOWEST = "lowest"
    HIGHEST = "highest"


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One way to spend the target (ε, δ): a cohort and a number of rounds, what they cost and what they tell.

    Attributes:
        cohort: k, clients whose data are in a round; where they join on their own the expected number.
        num_steps: T, rounds; under single passes and check-in, passes.
        noise_mse, sampling_mse: mean squared errors of one round's average by noise, and by who is drawn.
        average_mse: that of the average over all rounds, cohorts redrawn.
        bits_per_client: bits that a client of the population sends in all rounds, expected.
    """

    cohort: int
    num_steps: int
    epsilon: EpsilonInterval
    noise_mse: float
    sampling_mse: float
    average_mse: float
    bits_per_report: int
    bits_per_client: float


@dataclass(frozen=True, kw_only=True)
class PlanRow(_Row):
    """Rounds of so many reports in all, at the largest ε0 that keeps to the target."""

    mechanism: str
    local_epsilon: float
    num_reports: int

    @property
    def report_mse(self) -> float:
        """Mean squared error of one report."""
        return self.noise_mse * self.cohort

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
    """A mechanism that cannot answer a question, or need not, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PlanQuestion(Ranged):
    """What a plan is for: ε at δ of all rounds, replace-one, and vectors of n clients.

    Attributes:
        dim, radius, norm: of the ball that the clients' vectors lie in.
        spread: S, the root mean square ℓ2 distance of the clients' vectors from their mean (from zero where
            clients join on their own); None for the ℓ2 radius of the ball, its worst case.
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
        """Of every ε of the plan: always ``"replace-one"``."""
        return NEIGHBOURING_RELATION


@dataclass(frozen=True, kw_only=True)
class Plan(PlanQuestion):
    """The best way to spend (target ε, δ), and what was tried on the way; begins with the question's fields.

    Attributes:
        thrifty: of the rows within ``tolerance`` of the best, that of the same cohort and the fewest rounds;
            where only one T was tried, that of the smallest cohort.
        cohort_edge, steps_edge: where the best k and T lie among those of all rows.
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
        """Rows of one mechanism and one T, by default the best ones, by k."""
        name = self.best.mechanism if mechanism is None else mechanism
        steps = self.best.num_steps if num_steps is None else num_steps
        chosen = (row for row in self.rows if (row.mechanism, row.num_steps) == (name, steps))
        return tuple(sorted(chosen, key=lambda row: row.cohort))

    def remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers should know, one sentence each."""
        best, thrifty = self.best, self.thrifty
        said = []
        if self.everybody and self.cohort_edge is not Edge.ONLY:
            said.append("The best cohort tried is everybody, k = n: no smaller one has a smaller error.")
        elif self.cohort_edge in (Edge.LOWEST, Edge.HIGHEST):
            side = "beyond" if self.cohort_edge is Edge.HIGHEST else "below"
            said.append(
                f"The best cohort is the {self.cohort_edge} one tried: the optimum may lie {side} k = "
                f"{best.cohort:,}."
            )
        if self.steps_edge is Edge.HIGHEST or (self.steps_edge is Edge.LOWEST and best.num_steps > 1):
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
        level, louder = best.local_epsilon, min(2 * best.local_epsilon, LARGEST_SEARCHED_LOCAL_EPSILON)
        if louder > level:
            worth = report_worth(
                best.mechanism,
                local_epsilon=level,
                louder=louder,
                dim=self.dim,
                norm=self.norm,
                radius=self.radius,
            )
            said.append(
                f"A client that allows ε0 = {rounded(louder, up=False)}, twice as much, sends a report worth "
                f"{worth:.3g} of these, if groups of one ε0 are weighed by their precision."
            )
        if self.infeasible:
            said.append(f"{len(self.infeasible)} combinations exceed the target at every ε0.")
        if self.adversary is Adversary.SERVER:
            said.append("Against the server every round is charged as if one client were in all of them.")
        return tuple(said)


class DrawnBy(StrEnum):
    """Who decides whose data are in a round."""

    SERVER = "server"
    """The server draws k clients, and knows whom; only those answer."""

    CLIENTS = "clients"
    """All n clients answer and add noise; each adds its data with probability k/n, by a coin of its own."""

    NOBODY = "nobody"
    """All n clients add their data in every round."""

    IN_TURN = "in turn"
    """The server draws k clients, each once in any n // k rounds, and sees windows of sums alone."""


@dataclass(frozen=True, kw_only=True)
class SumRow(_Row):
    """One way to take sums.

    Attributes:
        answering: clients who send something in a round: k, or all n if the clients draw.
        charged_steps: rounds that ε is charged for: fewer than T only if the server draws and is the
            adversary: those of the client drawn most often, but for one chance in a thousand; or in turn.
        noise_multiplier: of the sum over the radius of the clients' ball, as of a Gaussian mechanism.
        coefficients: of windows; (1,) where each sum is seen.
        noise_left: noise that windows leave in a model that adds up all rounds' sums, over what independent
            noise of this multiplier leaves; errors count it.
    """

    drawn_by: DrawnBy
    answering: int
    charged_steps: int
    noise_multiplier: float
    coefficients: tuple[int, ...] = (1,)
    noise_left: float = 1.0

    @property
    def model_noise(self) -> float:
        """The multiplier of independent noise that would leave as much in a model."""
        return self.noise_multiplier * self.noise_left


@dataclass(frozen=True, kw_only=True)
class SumPlan(PlanQuestion):
    """Ways to take sums within a target (ε, δ); begins with the question's fields.

    ``infeasible`` are (who draws, k, T) that no noise keeps within the target.
    """

    mechanism: str
    rows: tuple[SumRow, ...]
    infeasible: tuple[tuple[DrawnBy, int, int], ...]

    @property
    def best(self) -> SumRow:
        """The row of least error."""
        return min(self.rows, key=lambda row: (row.average_mse, row.bits_per_client))

    def remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers should know, one sentence each."""
        said = []
        ways = {(row.drawn_by, row.cohort, row.num_steps): row for row in self.rows}
        for row in self.rows:
            drawn = ways.get((DrawnBy.SERVER, row.cohort, row.num_steps))
            if row.drawn_by is DrawnBy.CLIENTS and drawn is not None:
                said.append(
                    f"k = {row.cohort:,}, T = {row.num_steps:,}: drawn in secret, the noise multiplier is "
                    f"{rounded(row.noise_multiplier, up=True)} and not "
                    f"{rounded(drawn.noise_multiplier, up=True)}, and a client sends "
                    f"{row.bits_per_client / drawn.bits_per_client:.3g} times the bits."
                )
            if row.drawn_by is DrawnBy.IN_TURN:
                band = len(row.coefficients)
                instead = "" if drawn is None else f" and not {rounded(drawn.model_noise, up=True)}"
                said.append(
                    f"k = {row.cohort:,}, T = {row.num_steps:,}: windows of {band} rounds leave in a model "
                    f"the noise of a multiplier of {rounded(row.model_noise, up=True)}{instead}, against the "
                    f"server too; each client is in at most {row.charged_steps:,} rounds, {band} apart "
                    f"(WindowedSum, coefficients={row.coefficients})."
                )
        if any(row.drawn_by is DrawnBy.CLIENTS for row in self.rows):
            said.append(
                "Drawing in secret needs a sum of which nobody, the server included, sees more than the "
                "total (in Flower SelfSampling with a SharedSumStage)."
            )
        if any(row.charged_steps < row.num_steps for row in self.rows):
            said.append(
                "Where the server draws, ε against it counts the rounds of the client that is drawn most "
                "often, and by chance one time in a thousand more are charged; a server that draws unfairly "
                "can exceed them, unless clients limit their own rounds."
            )
        if self.infeasible:
            said.append(f"{len(self.infeasible)} combinations exceed the target whatever the noise.")
        return tuple(said)
