"""The search for the least error within a target (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache

from shuffle_plugins.accounting import (
    Adversary,
    Blanket,
    Method,
    PrivacyTarget,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
)
from shuffle_plugins.accounting.calibrate import (
    LARGEST_SEARCHED_LOCAL_EPSILON,
    LEAST_SEARCHED_LOCAL_EPSILON,
    normal_guess,
)
from shuffle_plugins.accounting.numerics.search import largest_within
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning.errors import (
    PASSES,
    NormName,
    ReportError,
    gaussian_mse,
    mechanism_norm,
    report_error,
    sampling_error,
)
from shuffle_plugins.planning.plans import Baseline, Dismissed, Edge, Plan, PlanQuestion, PlanRow

BEST_MECHANISM = "best"
"""Stands for every registered mechanism."""

MOST_SEARCHED_STEPS = 10_000
"""The most rounds that are tried where T is left open."""

PRECISION = 2e-4  # relative, of the ε0 of a combination
_COHORT_RATIO = math.sqrt(10)  # first grid of cohorts: n, n/√10, … n/1000
_STEPS_RATIO = 10.0  # first grid of numbers of rounds
_GUESSED = 2e-3  # relative precision of an error at a guessed ε0

Cell = tuple[int, int]
Progress = Callable[[int, int], None]
"""Called with the combinations done and those expected so far."""


def plan(
    *,
    target_epsilon: float,
    delta: float,
    population: int,
    dim: int,
    mechanism: str | Sequence[str] = BEST_MECHANISM,
    num_steps: int | Sequence[int] | None = None,
    cohorts: Sequence[int] | None = None,
    sampling: Sampling | str = Sampling.WITHOUT_REPLACEMENT,
    adversary: Adversary | str = Adversary.MODEL_OBSERVER,
    radius: float = 1.0,
    norm: NormName | None = None,
    spread: float | None = None,
    tolerance: float = 0.05,
    method: Method = "pld",
    whole_grid: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Find the cohort k, level ε0 and number of rounds T whose average is nearest to the clients' mean.

    For every (k, T) the largest ε0 within the target is solved for. The error of the average of T rounds,
    each with a fresh cohort, is (V(ε0) + S²(n-k)/(n-1))/(kT), and where T counts passes, which hear
    everybody, V(ε0)/(nT). Other arguments are the fields of
    :class:`~shuffle_plugins.planning.plans.PlanQuestion`.

    Args:
        mechanism: a registered name, several, or ``"best"`` for all of them.
        num_steps, cohorts: T and k, candidates; None searches geometric grids, refined around the best.
        norm: of the clients' ball: the mechanism's own by default, ℓ2 with several mechanisms. One of another
            norm takes the smallest ball of its norm around it.
        tolerance: ``thrifty`` may exceed the least error by this share of it.
        whole_grid: try every combination of large grids too, for a picture.

    Raises:
        ValueError: also if no combination stays within the target even at the smallest ε0.
    """
    checks.number("tolerance", tolerance, at_least=0)
    ShuffleRound(local_epsilon=1.0, population=population, cohort=population)
    names = (mechanism,) if isinstance(mechanism, str) else tuple(dict.fromkeys(mechanism))
    if names == (BEST_MECHANISM,):
        names = registry.available(*registry.ONE_MESSAGE)
    if not names:
        raise ValueError(f"name at least one mechanism, or {BEST_MECHANISM!r} for all of them")
    for name in names:
        registry.summary(name)
    if norm is None:
        norm = mechanism_norm(names[0], dim=checks.dim(dim)) if len(names) == 1 else "l2"
    asked = PlanQuestion(
        target_epsilon=target_epsilon,
        delta=delta,
        population=population,
        dim=dim,
        sampling=sampling,  # type: ignore[arg-type]  # a name becomes the member
        adversary=adversary,  # type: ignore[arg-type]
        radius=radius,
        norm=norm,
        spread=spread,
        method=method,
    )
    ks, ts = cohorts, (num_steps,) if isinstance(num_steps, int) else num_steps
    if ks is None:  # from a thousandth of the population up; all of it under full participation
        smaller = () if asked.sampling is Sampling.FULL else range(1, 7)
        ks = {population, *(max(1, round(population / _COHORT_RATIO**j)) for j in smaller)}  # type: ignore[assignment]
    if ts is None:
        ts = [round(_STEPS_RATIO**j) for j in range(5)]
    if not ks or not ts:
        raise ValueError("cohorts and num_steps must name at least one each")
    ks, ts = sorted(set(ks)), sorted(set(ts))
    search = _Search(asked=asked, progress=progress)
    search.check(ks, ts)
    dismissed = search.scan(names, ks, ts, strict=len(names) == 1, whole=whole_grid)
    if not search.rows and cohorts is None:
        search.reach_down(names, min(ks), min(ts))
    if not search.rows:
        told = "; ".join(f"{each.name}: {each.reason}" for each in dismissed)
        raise ValueError(
            f"nothing stays within ε={target_epsilon}, δ={delta}: use fewer rounds, a smaller cohort or a "
            "larger population" + (f" ({told})" if told else "")
        )
    search_cohorts, search_steps = cohorts is None and len(ks) > 1, num_steps is None
    search.refine(cohorts=search_cohorts, steps=search_steps)
    best = search.best()
    thrifty = search.economise(tolerance, cohorts=search_cohorts, steps=search_steps)
    baselines = search.baselines(best, num_steps=min(ts))
    rows = sorted(search.rows.values(), key=lambda row: (row.mechanism, row.num_steps, row.cohort))
    return Plan(
        **asdict(asked),
        tolerance=tolerance,
        best=best,
        thrifty=thrifty,
        cohort_edge=_edge(best.cohort, {row.cohort for row in rows}),
        steps_edge=_edge(best.num_steps, {row.num_steps for row in rows}),
        rows=tuple(rows),
        baselines=baselines,
        dismissed=dismissed,
        infeasible=tuple(sorted(search.infeasible)),
    )


def _edge(best: int, tried: set[int]) -> Edge:
    if len(tried) == 1:
        return Edge.ONLY
    if best == min(tried):
        return Edge.LOWEST
    return Edge.HIGHEST if best == max(tried) else Edge.INTERIOR


@dataclass(kw_only=True)
class _Search:
    """Combinations of mechanism, k and T solved so far, and which to try next."""

    asked: PlanQuestion
    progress: Progress | None
    rows: dict[tuple[str, int, int], PlanRow] = field(default_factory=dict)
    infeasible: set[tuple[str, int, int]] = field(default_factory=set)
    expected: int = 0
    _solved: list[PlanRow] = field(default_factory=list)

    # -- one combination ------------------------------------------------------------------------------------

    def check(self, cohorts: Iterable[int], steps: Iterable[int]) -> None:
        """Refuse what no round or accountant takes, before anything is solved."""
        for cohort in cohorts:
            shuffle_round = self._drawn(cohort)
        accountant = ShuffleAccountant(method=self.asked.method)
        for num_steps in steps:
            accountant.step(shuffle_round, num_steps=num_steps)

    def evaluate(self, mechanism: str, cohort: int, num_steps: int) -> PlanRow | None:
        """The row of one combination; None if it exceeds the target at every ε0."""
        key = (mechanism, cohort, num_steps)
        if key not in self.rows and key not in self.infeasible:
            row = self.solve(*key)
            if row is None:
                self.infeasible.add(key)
            else:
                self.rows[key] = row
            if self.progress is not None:
                done = len(self.rows) + len(self.infeasible)
                self.progress(done, max(done, self.expected))
        return self.rows.get(key)

    def solve(self, mechanism: str, cohort: int, num_steps: int, *, lower: bool = True) -> PlanRow | None:
        @cache
        def accountant(local_epsilon: float) -> ShuffleAccountant:
            blanket = registry.blanket(mechanism, local_epsilon=local_epsilon, dim=self.asked.dim)
            found = ShuffleAccountant(method=self.asked.method)
            found.step(self._round(mechanism, blanket, cohort), num_steps=num_steps)
            return found

        start, slope = self._guess(mechanism, cohort, num_steps)
        level = largest_within(
            lambda level: accountant(level).epsilon(self.asked.delta, lower=False).upper,
            target=self.asked.target_epsilon,
            start=start,
            lowest=LEAST_SEARCHED_LOCAL_EPSILON,
            highest=LARGEST_SEARCHED_LOCAL_EPSILON,
            precision=PRECISION,
            slope=slope,
        )
        if level is None:
            return None
        interval = accountant(level).epsilon(self.asked.delta, lower=lower)
        if interval.upper > self.asked.target_epsilon:
            raise ArithmeticError(f"ε0={level} was found to fit, yet costs {interval}; report it")
        report, asked = self._report(mechanism, level), self.asked
        noise = report.variance / cohort
        sampled = sampling_error(
            population=asked.population, cohort=cohort, sampling=asked.sampling, spread=asked.spread or 0.0
        )
        passes = asked.sampling in PASSES
        num_reports = (asked.population if passes else cohort) * num_steps
        row = PlanRow(
            mechanism=mechanism,
            cohort=cohort,
            num_steps=num_steps,
            local_epsilon=level,
            epsilon=interval,
            noise_mse=noise,
            sampling_mse=sampled,
            average_mse=report.variance / num_reports + (0.0 if passes else sampled / num_steps),
            bits_per_report=report.bits,
            num_reports=num_reports,
            bits_per_client=num_reports * report.bits / asked.population,
        )
        self._solved.append(row)
        return row

    def _drawn(self, cohort: int) -> ShuffleRound:
        return ShuffleRound(
            local_epsilon=1.0,
            population=self.asked.population,
            cohort=cohort,
            sampling=self.asked.sampling,
            adversary=self.asked.adversary,
            channel_fixed=True,
        )

    def _round(self, mechanism: str, blanket: Blanket, cohort: int) -> ShuffleRound:
        drawn, level = self._drawn(cohort), blanket.local_epsilon
        return replace(drawn, local_epsilon=level, mechanism=mechanism, blanket=blanket)

    def _report(self, mechanism: str, local_epsilon: float) -> ReportError:
        asked = self.asked
        return report_error(
            mechanism,
            local_epsilon=local_epsilon,
            dim=asked.dim,
            radius=asked.radius,
            norm=asked.norm,
        )

    def _size(self, cohort: int, num_steps: int) -> float:
        """log of what ε0 depends on for the most part: kT where sampling amplifies, T of epochs, else T/k."""
        power = -1
        if self.asked.adversary is Adversary.MODEL_OBSERVER:
            amplifies = {Sampling.WITHOUT_REPLACEMENT: 1, Sampling.POISSON: 1, Sampling.EPOCH: 0}
            power = amplifies.get(self.asked.sampling, -1)
        return round(math.log(num_steps) + power * math.log(cohort), 6)

    def _guess(
        self, mechanism: str, cohort: int, num_steps: int, *, like: PlanRow | None = None
    ) -> tuple[float, float | None]:
        """ε0, and by what power of it ε rises there, if the rounds' losses were normal.

        ε0 is such that the variance of all losses together is that of ``like``, by default the combination
        solved last of those nearest in size, of the same mechanism if there is one.
        """
        asked, size = self.asked, self._size(cohort, num_steps)
        solved = [row for row in self._solved if row.mechanism == mechanism] or self._solved
        if not solved:
            target = PrivacyTarget(epsilon=asked.target_epsilon, delta=asked.delta, num_steps=num_steps)
            return normal_guess(target, self._drawn(cohort)), None
        near = like or min(
            reversed(solved), key=lambda row: abs(self._size(row.cohort, row.num_steps) - size)
        )
        wanted = self._log_variance(near.mechanism, near.cohort, near.num_steps, math.log(near.local_epsilon))
        bottom, top = math.log(LEAST_SEARCHED_LOCAL_EPSILON), math.log(LARGEST_SEARCHED_LOCAL_EPSILON)
        x = min(math.log(near.local_epsilon), top)
        excess, slope = self._log_variance(mechanism, cohort, num_steps, x) - wanted, 2.0
        for _ in range(8):  # secants: the variance's logarithm bends little
            if not math.isfinite(excess) or not 0.4 < slope < math.inf:
                return math.exp(x), None
            moved = min(max(x - min(max(excess / slope, -1.0), 1.0), bottom), top)
            if abs(moved - x) < _GUESSED / 10:
                x = moved
                break
            left = self._log_variance(mechanism, cohort, num_steps, moved) - wanted
            slope = (left - excess) / (moved - x)
            x, excess = moved, left
        slope /= 2  # ε is as the square root
        spare = math.log(asked.target_epsilon / near.epsilon.upper) if near.epsilon.upper > 0 else 0.0
        if spare < PRECISION * 50:
            x += spare / slope - PRECISION / 2
        return math.exp(min(max(x, bottom), top)), slope

    def _log_variance(self, mechanism: str, cohort: int, num_steps: int, log_level: float) -> float:
        blanket = registry.blanket(mechanism, local_epsilon=math.exp(log_level), dim=self.asked.dim)
        variance = self._round(mechanism, blanket, cohort).dominating_pair().information
        return math.log(num_steps * variance) if variance > 0 else -math.inf

    # -- which to try next ----------------------------------------------------------------------------------

    def scan(
        self, names: Sequence[str], cohorts: Sequence[int], steps: Sequence[int], *, strict: bool, whole: bool
    ) -> tuple[Dismissed, ...]:
        """Try the combinations in turn, except those that another mechanism beats at every ε0.

        Of a large grid, unless ``whole``: every T with the largest cohort, every cohort with the best T,
        every T with the best cohort, until nothing changes. Who complains is left out; if ``strict``, raised.
        """
        cells = [(cohort, num_steps) for cohort in cohorts for num_steps in steps]
        if whole or len(cells) <= 12:
            return self._scan(names, cells, strict=strict)
        tried = {(max(cohorts), num_steps) for num_steps in steps}
        self.expected = len(cohorts) + len(steps) - 1
        dismissed = self._scan(names, tried, strict=strict)
        if not self.rows:
            complained = {each.name for each in dismissed}
            kept = [name for name in names if name not in complained]
            return dismissed + self._scan(kept, cells, strict=strict)
        while True:
            best = self.best()
            across = {(cohort, best.num_steps) for cohort in cohorts}
            across |= {(best.cohort, num_steps) for num_steps in steps}
            if not across - tried:
                return dismissed
            tried |= across
            dismissed += self._scan([best.mechanism], across, strict=strict)
            if not self.rows:
                return dismissed

    def _scan(self, names: Sequence[str], cells: Iterable[Cell], *, strict: bool) -> tuple[Dismissed, ...]:
        dismissed = []
        cells = sorted(cells, key=lambda cell: (-self._size(*cell), cell))
        self.expected = max(self.expected, len(cells))
        least: dict[Cell, PlanRow] = {}  # of the smallest error of a report
        for name in sorted(names, key=lambda each: (self._promise(each), each)):
            try:
                floor = self._report(name, LARGEST_SEARCHED_LOCAL_EPSILON).variance
                promising = [each for each in cells if each not in least or floor < least[each].report_mse]
                unlike = [
                    each for each in promising if each not in least or self._may_beat(name, least[each])
                ]
                done = len(self.rows) + len(self.infeasible)
                self.expected = max(self.expected, done + len(unlike))
                for cell in unlike:
                    row = self.evaluate(name, *cell)
                    if row is not None and (cell not in least or row.report_mse < least[cell].report_mse):
                        least[cell] = row
            except ValueError as error:
                if strict:
                    raise
                self.rows = {key: row for key, row in self.rows.items() if key[0] != name}
                dismissed.append(Dismissed(name=name, reason=str(error)))
                continue
            if not promising:
                reason = (
                    f"a larger error at ε0 = {LARGEST_SEARCHED_LOCAL_EPSILON:g} than another mechanism's here"
                )
                dismissed.append(Dismissed(name=name, reason=reason))
            elif not unlike:
                reason = "no smaller error than another mechanism's, by the variances of the losses"
                dismissed.append(Dismissed(name=name, reason=reason))
        return tuple(dismissed)

    def _may_beat(self, mechanism: str, row: PlanRow) -> bool:
        """Whether, by the guessed ε0, the mechanism has a smaller error than this row's, or fewer bits."""
        level, _ = self._guess(mechanism, row.cohort, row.num_steps, like=row)
        found = self._report(mechanism, level)
        if found.bits < row.bits_per_report:
            return found.variance <= row.report_mse * (1 + _GUESSED)
        return found.variance < row.report_mse * (1 - _GUESSED)

    def _promise(self, mechanism: str) -> float:
        try:
            return float(f"{self._report(mechanism, 1.0).variance:.9g}")
        except ValueError:
            return math.inf

    def reach_down(self, names: Sequence[str], cohort: int, num_steps: int) -> None:
        """Try ever smaller cohorts until one stays within the target."""
        while cohort > 1 and not self.rows:
            cohort = max(1, int(cohort / _COHORT_RATIO))
            for name in names:
                if self._promise(name) < math.inf:
                    self.evaluate(name, cohort, num_steps)

    def best(self) -> PlanRow:
        """The least error. Of those within half a percent: fewer bits, fewer rounds, larger cohorts."""
        least = min(row.average_mse for row in self.rows.values())
        equals = (row for row in self.rows.values() if row.average_mse <= least * (1 + 5e-3))
        return min(equals, key=lambda row: (row.bits_per_report, row.num_steps, -row.cohort, row.average_mse))

    def refine(self, *, cohorts: bool, steps: bool) -> None:
        """Halve the grids' steps around the best, and go on below the smallest cohort while it is best."""
        cohort_ratio, steps_ratio = _COHORT_RATIO, _STEPS_RATIO
        while cohorts and (best := self.best()).cohort > 1:
            if best.cohort > min(row.cohort for row in self._alike(best, num_steps=True)):
                break
            self.evaluate(best.mechanism, max(1, int(best.cohort / cohort_ratio)), best.num_steps)
        for _ in range(2):
            cohort_ratio, steps_ratio = math.sqrt(cohort_ratio), math.sqrt(steps_ratio)
            if cohorts:
                best = self.best()
                for cohort in _around(best.cohort, cohort_ratio, most=self.asked.population):
                    self.evaluate(best.mechanism, cohort, best.num_steps)
            if steps:
                best = self.best()
                for num_steps in _around(best.num_steps, steps_ratio, most=MOST_SEARCHED_STEPS):
                    self.evaluate(best.mechanism, best.cohort, num_steps)

    def economise(self, tolerance: float, *, cohorts: bool, steps: bool) -> PlanRow:
        """The least communication within ``tolerance`` of the best, in fewer rounds of its cohort.

        Where only one T was tried, in smaller cohorts instead.
        """
        best = self.best()
        one_t = len({num_steps for _, _, num_steps in self.rows}) == 1

        def least() -> PlanRow:
            limit = best.average_mse * (1 + tolerance)
            near = (row for row in self._alike(best, num_steps=one_t) if row.average_mse <= limit)
            return min(near, key=lambda row: (row.total_bits, row.average_mse))

        for _ in range(6):
            row = least()
            cheaper = [
                each for each in self._alike(best, num_steps=one_t) if each.num_reports < row.num_reports
            ]
            if not (cohorts if one_t else steps) or not cheaper:
                break
            below = max(cheaper, key=lambda row: row.num_reports)
            if row.num_reports < 1.2 * below.num_reports:
                break
            cohort, num_steps = row.cohort * below.cohort, row.num_steps * below.num_steps
            self.evaluate(best.mechanism, round(math.sqrt(cohort)), round(math.sqrt(num_steps)))
        thrifty = least()
        return thrifty if thrifty.total_bits < best.total_bits else best

    def _alike(self, best: PlanRow, *, num_steps: bool) -> list[PlanRow]:
        """Rows of the best one's mechanism, with its T if ``num_steps`` is true, else with its cohort."""
        return [
            row
            for row in self.rows.values()
            if row.mechanism == best.mechanism
            and (row.num_steps == best.num_steps if num_steps else row.cohort == best.cohort)
        ]

    # -- what else there is ---------------------------------------------------------------------------------

    def baselines(self, best: PlanRow, *, num_steps: int) -> tuple[Baseline, ...]:
        asked, found = self.asked, []
        unshuffled = asked.target_epsilon / num_steps
        if LEAST_SEARCHED_LOCAL_EPSILON <= unshuffled <= LARGEST_SEARCHED_LOCAL_EPSILON:
            report = self._report(best.mechanism, unshuffled)
            found.append(
                Baseline(
                    name="no shuffler, ε0 = ε/T",
                    average_mse=report.variance / (asked.population * num_steps),
                    cohort=asked.population,
                    num_steps=num_steps,
                    local_epsilon=unshuffled,
                )
            )
        small = max(1, asked.population // 100)
        if asked.sampling is not Sampling.FULL and small < best.cohort:
            row = self.solve(best.mechanism, small, best.num_steps, lower=False)
            if row is not None:
                found.append(
                    Baseline(
                        name="a cohort of 1 %",
                        average_mse=row.average_mse,
                        cohort=small,
                        num_steps=row.num_steps,
                        local_epsilon=row.local_epsilon,
                    )
                )
        curator = gaussian_mse(
            target_epsilon=asked.target_epsilon,
            delta=asked.delta,
            sensitivity=2 * asked.reach / asked.population,
            dim=asked.dim,
        )
        return (*found, Baseline(name="trusted curator, Gaussian", average_mse=curator))


def _around(value: int, ratio: float, *, most: int) -> list[int]:
    near = {round(value / ratio), min(most, round(value * ratio))}
    return sorted(each for each in near if each >= 1 and each != value)
