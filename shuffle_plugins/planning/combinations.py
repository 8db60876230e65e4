"""The largest ε0 within the target for one mechanism, one cohort and one number of rounds, and its error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from shuffle_plugins.accounting import (
    LARGEST_SEARCHED_LOCAL_EPSILON,
    LEAST_SEARCHED_LOCAL_EPSILON,
    Adversary,
    Blanket,
    PrivacyTarget,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
    largest_within,
    normal_guess,
)
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning.plans import PlanQuestion, PlanRow
from shuffle_plugins.planning.variance import PASSES, ReportError, report_error, sampling_error

PRECISION = 2e-4
"""Relative precision of the ε0 of a combination."""

_MOST_GUESSES = 8  # steps of the secant method towards an ε0 to begin with
_NEARBY = 0.01  # in log ε0, where its first slope is taken
_LEAST_SLOPE, _GREATEST_SLOPE = 0.4, 50.0  # d log ε / d log ε0 that is believed

Progress = Callable[[int, int], None]
"""Called with the combinations done and those expected so far."""


@dataclass(kw_only=True)
class Combinations:
    """One question, and the combinations of mechanism, cohort and number of rounds solved so far.

    Attributes:
        asked: the question.
        progress: called with the combinations done and those expected.
        rows: what was solved, by mechanism, k and T.
        infeasible: what exceeds the target at every ε0.
        expected: how many combinations are expected to be tried in all.
    """

    asked: PlanQuestion
    progress: Progress | None
    rows: dict[tuple[str, int, int], PlanRow] = field(default_factory=dict)
    infeasible: set[tuple[str, int, int]] = field(default_factory=set)
    expected: int = 0
    _solved: list[PlanRow] = field(default_factory=list)
    _accountants: dict[tuple[str, Blanket, int, int], ShuffleAccountant] = field(default_factory=dict)

    def check(self, cohorts: Iterable[int], steps: Iterable[int]) -> None:
        """Refuse what no round or accountant takes, before anything is solved."""
        for cohort in cohorts:
            shuffle_round = self._drawn(cohort)
        accountant = ShuffleAccountant(method=self.asked.method)
        for num_steps in steps:
            accountant.step(shuffle_round, num_steps=num_steps)
        ShuffleAccountant(method=self.asked.method).epsilon(self.asked.delta, lower=False)

    def evaluate(self, mechanism: str, cohort: int, num_steps: int) -> PlanRow | None:
        """The row of one combination; None if it exceeds the target at every ε0."""
        key = (mechanism, cohort, num_steps)
        if key not in self.rows and key not in self.infeasible:
            row = self.solve(*key)
            if row is None:
                self.infeasible.add(key)
            else:
                self.rows[key] = row
            self._report()
        return self.rows.get(key)

    def solve(self, mechanism: str, cohort: int, num_steps: int) -> PlanRow | None:
        """The row of one combination, without entering it among those tried."""

        def cost(local_epsilon: float) -> float:
            blanket = registry.blanket(mechanism, local_epsilon=local_epsilon, dim=self.asked.dim)
            return (
                self._accountant(mechanism, blanket, cohort, num_steps)
                .epsilon(self.asked.delta, lower=False)
                .upper
            )

        start, slope = self.guess(mechanism, cohort, num_steps)
        level = largest_within(
            cost,
            target=self.asked.target_epsilon,
            start=start,
            lowest=LEAST_SEARCHED_LOCAL_EPSILON,
            highest=LARGEST_SEARCHED_LOCAL_EPSILON,
            precision=PRECISION,
            slope=slope,
        )
        if level is None:
            return None
        row = self._row(mechanism, cohort, num_steps, level)
        self._solved.append(row)
        return row

    def _row(self, mechanism: str, cohort: int, num_steps: int, local_epsilon: float) -> PlanRow:
        blanket = registry.blanket(mechanism, local_epsilon=local_epsilon, dim=self.asked.dim)
        interval = self._accountant(mechanism, blanket, cohort, num_steps).epsilon(self.asked.delta)
        if interval.upper > self.asked.target_epsilon:
            raise ArithmeticError(f"ε0={local_epsilon} was found to fit, yet costs {interval}; report it")
        report = self.report_error(mechanism, local_epsilon)
        noise, sampled = report.variance / cohort, self._sampling_error(cohort)
        passes = self.asked.sampling in PASSES
        num_reports = (self.asked.population if passes else cohort) * num_steps
        return PlanRow(
            mechanism=mechanism,
            cohort=cohort,
            num_steps=num_steps,
            local_epsilon=local_epsilon,
            epsilon=interval,
            noise_mse=noise,
            sampling_mse=sampled,
            average_mse=report.variance / num_reports + (0.0 if passes else sampled / num_steps),
            bits_per_report=report.bits,
            num_reports=num_reports,
            bits_per_client=num_reports * report.bits / self.asked.population,
        )

    def _accountant(self, mechanism: str, blanket: Blanket, cohort: int, num_steps: int) -> ShuffleAccountant:
        """The combination's accountant, with the answers that it has given."""
        known = (mechanism, blanket, cohort, num_steps)
        if known in self._accountants:
            return self._accountants[known]
        accountant = self._accountants[known] = ShuffleAccountant(method=self.asked.method)
        accountant.step(self._round(mechanism, blanket, cohort), num_steps=num_steps)
        return accountant

    def _drawn(self, cohort: int) -> ShuffleRound:
        """A round of such a cohort, of any mechanism at ε0 = 1."""
        return ShuffleRound(
            local_epsilon=1.0,
            population=self.asked.population,
            cohort=cohort,
            sampling=self.asked.sampling,
            adversary=self.asked.adversary,
            channel_fixed=True,
        )

    def _round(self, mechanism: str, blanket: Blanket, cohort: int) -> ShuffleRound:
        return replace(
            self._drawn(cohort), local_epsilon=blanket.local_epsilon, mechanism=mechanism, blanket=blanket
        )

    def report_error(self, mechanism: str, local_epsilon: float) -> ReportError:
        """Variance and bits of one report of a mechanism on the clients' ball."""
        return report_error(
            mechanism,
            local_epsilon=local_epsilon,
            dim=self.asked.dim,
            radius=self.asked.radius,
            norm=self.asked.norm,
        )

    def _sampling_error(self, cohort: int) -> float:
        return sampling_error(
            population=self.asked.population,
            cohort=cohort,
            sampling=self.asked.sampling,
            spread=self.asked.spread,
        )

    def size(self, cohort: int, num_steps: int) -> float:
        """log of the quantity that ε0 depends on for the most part.

        kT where sampling amplifies, T/k where it does not, T where the batches of an epoch hide one another.
        """
        if self.asked.sampling is Sampling.EPOCH and self.asked.adversary is Adversary.MODEL_OBSERVER:
            return round(math.log(num_steps), 6)
        amplifies = self.asked.adversary is Adversary.MODEL_OBSERVER and self.asked.sampling in (
            Sampling.WITHOUT_REPLACEMENT,
            Sampling.POISSON,
        )
        return round(math.log(num_steps) + (1 if amplifies else -1) * math.log(cohort), 6)

    def guess(
        self, mechanism: str, cohort: int, num_steps: int, *, like: PlanRow | None = None
    ) -> tuple[float, float | None]:
        """ε0, and by what power of it ε rises there, if the rounds' losses were normal.

        Their composition then depends on the variance of all losses together: ε0 is such that it is that of
        ``like``, by default the combination solved last of those nearest in size, of the same mechanism
        if there is one.
        """
        size = self.size(cohort, num_steps)
        solved = [row for row in self._solved if row.mechanism == mechanism] or self._solved
        if not solved:
            target = PrivacyTarget(
                epsilon=self.asked.target_epsilon, delta=self.asked.delta, num_steps=num_steps
            )
            return normal_guess(target, self._drawn(cohort)), None
        near = like or min(reversed(solved), key=lambda row: abs(self.size(row.cohort, row.num_steps) - size))
        wanted = self._log_variance(near.mechanism, near.cohort, near.num_steps, math.log(near.local_epsilon))
        if not math.isfinite(wanted):
            return near.local_epsilon, None
        bottom, top = math.log(LEAST_SEARCHED_LOCAL_EPSILON), math.log(LARGEST_SEARCHED_LOCAL_EPSILON)
        x = math.log(near.local_epsilon)
        y = self._log_variance(mechanism, cohort, num_steps, x) - wanted
        nearby = x + _NEARBY if x < top - _NEARBY else x - _NEARBY
        slope = (self._log_variance(mechanism, cohort, num_steps, nearby) - wanted - y) / (nearby - x)
        for _ in range(_MOST_GUESSES):
            if not (_LEAST_SLOPE < slope < math.inf and abs(y) > PRECISION / 4):
                break
            following = min(max(x - y / slope, bottom), top)
            if following == x:
                break
            before = x, y
            x, y = following, self._log_variance(mechanism, cohort, num_steps, following) - wanted
            slope = (y - before[1]) / (x - before[0])
        if not _LEAST_SLOPE < slope < math.inf:
            return _searched(math.exp(x)), None
        slope /= 2
        spare = math.log(self.asked.target_epsilon / near.epsilon.upper) if near.epsilon.upper > 0 else 0.0
        if spare < PRECISION * _GREATEST_SLOPE:
            x += spare / slope - PRECISION / 2
        return _searched(math.exp(x)), slope

    def _log_variance(self, mechanism: str, cohort: int, num_steps: int, log_level: float) -> float:
        """log of the variance of all losses of a combination together, were they small."""
        blanket = registry.blanket(mechanism, local_epsilon=math.exp(log_level), dim=self.asked.dim)
        variance = self._round(mechanism, blanket, cohort).dominating_pair().information
        return math.log(num_steps * variance) if variance > 0 else -math.inf

    def _report(self) -> None:
        if self.progress is not None:
            done = len(self.rows) + len(self.infeasible)
            self.progress(done, max(done, self.expected))


def _searched(local_epsilon: float) -> float:
    """The nearest ε0 of those that are searched."""
    return min(max(local_epsilon, LEAST_SEARCHED_LOCAL_EPSILON), LARGEST_SEARCHED_LOCAL_EPSILON)
