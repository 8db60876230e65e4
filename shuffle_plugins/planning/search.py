"""The search for the least error within a target (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from shuffle_plugins.accounting import (
    LARGEST_SEARCHED_LOCAL_EPSILON,
    LEAST_SEARCHED_LOCAL_EPSILON,
    Adversary,
    Blanket,
    Method,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
)
from shuffle_plugins.accounting.calibrate import normal_guess
from shuffle_plugins.accounting.numerics.search import largest_within
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning.baselines import gaussian_mse
from shuffle_plugins.planning.plans import Baseline, Dismissed, Edge, Plan, PlanRow
from shuffle_plugins.planning.variance import (
    PASSES,
    NormName,
    ReportError,
    check_norm,
    enclosing_radius,
    mechanism_norm,
    report_error,
    sampling_error,
)

BEST_MECHANISM = "best"
"""Stands for every registered mechanism."""

MOST_SEARCHED_STEPS = 10_000
"""The most rounds that are tried where T is left open."""

PRECISION = 2e-4
"""Relative precision of the ε0 of a combination."""

_COHORT_RATIO, _COHORT_DECADES = math.sqrt(10), 3
_STEPS_RATIO = 10.0
_REFINEMENTS = 2
_MOST_ECONOMIES = 6
_FINE_ENOUGH = 1.2
_EQUAL = 1e-3
_MOST_GUESSES = 8
_NEARBY = 0.01
_LEAST_SLOPE, _GREATEST_SLOPE = 0.4, 50.0
_FEW_CELLS = 12
_GUESSED = 2e-3
"""Relative precision of an error at a guessed ε0."""
_SMALL_SHARE = 100

Cell = tuple[int, int]
Progress = Callable[[int, int], None]


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
    r"""Find the cohort k, level ε0 and number of rounds T whose average is nearest to the clients' mean.

    For every (k, T) the largest ε0 within the target is solved for. The error of the average of T rounds,
    each with a fresh cohort, follows from the model in :mod:`shuffle_plugins.planning.variance`: it is
    :math:`(V(ε_0) + S²(n-k)/(n-1))/(kT)`, and where T counts passes, which hear everybody,
    :math:`V(ε_0)/(nT)`. What is left open is searched on geometric grids, refined around the best.

    Args:
        target_epsilon: central ε, replace-one.
        delta: δ in (0, 1).
        population: n.
        dim: d, length of a client's vector.
        mechanism: a registered name, several, or ``"best"`` for all of them. Those of a closed form need no
            torch; another is built to learn its variance, which loads it.
        num_steps: T, a sequence of candidates, or None to search up to ``MOST_SEARCHED_STEPS``. Under single
            passes and check-in T counts passes. Against a server every round is charged as if one client were
            in all of them.
        cohorts: candidates for k, or None to search; expected numbers where clients join on their own.
        sampling: how cohorts are chosen.
        adversary: against whom ε is measured.
        radius: of the ball that the clients' vectors lie in.
        norm: of that ball, ``"l1"``, ``"l2"`` or ``"linf"``: the mechanism's own by default, ℓ2 with several
            mechanisms. A mechanism of another norm takes the smallest ball of its norm around it.
        spread: S, the root mean square ℓ2 distance of the clients' vectors from their mean (from zero where
            clients join on their own); by default the ℓ2 radius of the ball, its worst case.
        tolerance: ``thrifty`` may exceed the least error by this share of it.
        method: how rounds compose, ``"pld"`` or ``"rdp"``.
        whole_grid: try every combination of the grids, for a picture; by default of large grids only those of
            the best cohort, and of the best T.
        progress: called with the combinations done and those expected so far.

    Raises:
        ValueError: if an argument is out of range, or no combination stays within the target even at the
            smallest ε0.
    """
    checks.target_epsilon(target_epsilon)
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be at least 0, got {tolerance!r}")
    ShuffleRound(local_epsilon=1.0, population=population, cohort=population)
    checks.dim(dim)
    checks.radius(radius)
    names = _names(mechanism)
    if norm is None:
        norm = mechanism_norm(names[0], dim=dim) if len(names) == 1 else "l2"
    scheme = Sampling(sampling)
    search = _Search(
        target_epsilon=target_epsilon,
        delta=delta,
        population=population,
        dim=dim,
        sampling=scheme,
        adversary=Adversary(adversary),
        radius=radius,
        norm=check_norm(norm),
        spread=_check_spread(spread, radius=radius, norm=norm, dim=dim),
        method=method,
        progress=progress,
    )
    ks = _cohort_grid(population, cohorts, scheme=scheme)
    ts = _steps_grid(num_steps)
    search.check(ks, ts)

    dismissed = search.scan(names, ks, ts, strict=len(names) == 1, whole=whole_grid)
    if not search.rows and cohorts is None:
        search.reach_down(names, min(ks), min(ts))
    if not search.rows:
        told = "; ".join(f"{each.mechanism}: {each.reason}" for each in dismissed)
        raise ValueError(
            f"nothing stays within ε={target_epsilon}, δ={delta}: use fewer rounds, a smaller cohort or a "
            "larger population" + (f" ({told})" if told else "")
        )
    search.refine(cohorts=cohorts is None and len(ks) > 1, steps=num_steps is None)
    best = search.best()
    thrifty = search.economise(tolerance, cohorts=cohorts is None and len(ks) > 1, steps=num_steps is None)
    baselines = search.baselines(best, num_steps=min(ts))
    rows = sorted(search.rows.values(), key=lambda row: (row.mechanism, row.num_steps, row.cohort))
    mine = [row for row in rows if row.mechanism == best.mechanism]
    return Plan(
        target_epsilon=target_epsilon,
        delta=delta,
        population=population,
        dim=dim,
        radius=radius,
        norm=norm,
        spread=search.spread,
        sampling=scheme,
        adversary=search.adversary,
        method=method,
        tolerance=tolerance,
        best=best,
        thrifty=thrifty,
        cohort_edge=_edge(best.cohort, [r.cohort for r in mine if r.num_steps == best.num_steps]),
        steps_edge=_edge(best.num_steps, [r.num_steps for r in mine if r.cohort == best.cohort]),
        rows=tuple(rows),
        baselines=baselines,
        dismissed=dismissed,
        infeasible=tuple(sorted(search.infeasible)),
    )


@dataclass(kw_only=True)
class _Search:
    """One question and the combinations tried so far."""

    target_epsilon: float
    delta: float
    population: int
    dim: int
    sampling: Sampling
    adversary: Adversary
    radius: float
    norm: NormName
    spread: float
    method: Method
    progress: Progress | None
    rows: dict[tuple[str, int, int], PlanRow] = field(default_factory=dict)
    infeasible: set[tuple[str, int, int]] = field(default_factory=set)
    _solved: list[PlanRow] = field(default_factory=list)
    _accountants: dict[tuple[str, Blanket, int, int], ShuffleAccountant] = field(default_factory=dict)
    _expected: int = 0

    def check(self, cohorts: Iterable[int], steps: Iterable[int]) -> None:
        """Refuse what no round or accountant takes, before anything is solved."""
        for cohort in cohorts:
            shuffle_round = ShuffleRound(
                local_epsilon=1.0,
                population=self.population,
                cohort=cohort,
                sampling=self.sampling,
                adversary=self.adversary,
            )
        accountant = ShuffleAccountant(method=self.method)
        for num_steps in steps:
            accountant.step(shuffle_round, num_steps=num_steps)
        ShuffleAccountant(method=self.method).upper_epsilon(self.delta)

    # -- one combination --------------------------------------------------------------------------------

    def evaluate(self, mechanism: str, cohort: int, num_steps: int) -> PlanRow | None:
        """The row of one combination; None if it exceeds the target at every ε0."""
        key = (mechanism, cohort, num_steps)
        if key not in self.rows and key not in self.infeasible:
            row = self._solve(*key)
            if row is None:
                self.infeasible.add(key)
            else:
                self.rows[key] = row
            self._report()
        return self.rows.get(key)

    def _solve(self, mechanism: str, cohort: int, num_steps: int) -> PlanRow | None:
        def cost(local_epsilon: float) -> float:
            blanket = registry.blanket(mechanism, local_epsilon=local_epsilon, dim=self.dim)
            return self._accountant(mechanism, blanket, cohort, num_steps).upper_epsilon(self.delta)

        start, slope = self._guess(mechanism, cohort, num_steps)
        level = largest_within(
            cost,
            target=self.target_epsilon,
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
        blanket = registry.blanket(mechanism, local_epsilon=local_epsilon, dim=self.dim)
        interval = self._accountant(mechanism, blanket, cohort, num_steps).epsilon(self.delta)
        if interval.upper > self.target_epsilon:
            raise ArithmeticError(f"ε0={local_epsilon} was found to fit, yet costs {interval}; report it")
        report = self._report_error(mechanism, local_epsilon)
        noise, sampled = report.variance / cohort, self._sampling_error(cohort)
        passes = self.sampling in PASSES
        num_reports = (self.population if passes else cohort) * num_steps
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
            bits_per_client=num_reports * report.bits / self.population,
        )

    def _accountant(self, mechanism: str, blanket: Blanket, cohort: int, num_steps: int) -> ShuffleAccountant:
        """The combination's accountant, with the answers that it has given."""
        known = (mechanism, blanket, cohort, num_steps)
        if known in self._accountants:
            return self._accountants[known]
        accountant = self._accountants[known] = ShuffleAccountant(method=self.method)
        accountant.step(self._round(mechanism, blanket, cohort), num_steps=num_steps)
        return accountant

    def _round(self, mechanism: str, blanket: Blanket, cohort: int) -> ShuffleRound:
        return ShuffleRound(
            local_epsilon=blanket.local_epsilon,
            population=self.population,
            cohort=cohort,
            sampling=self.sampling,
            adversary=self.adversary,
            mechanism=mechanism,
            blanket=blanket,
        )

    def _report_error(self, mechanism: str, local_epsilon: float) -> ReportError:
        return report_error(
            mechanism, local_epsilon=local_epsilon, dim=self.dim, radius=self.radius, norm=self.norm
        )

    def _sampling_error(self, cohort: int) -> float:
        return sampling_error(
            population=self.population, cohort=cohort, sampling=self.sampling, spread=self.spread
        )

    def _size(self, cohort: int, num_steps: int) -> float:
        """log of what ε0 depends on for the most part.

        kT where sampling amplifies, T/k where it does not, T where the batches of an epoch hide one another.
        """
        if self.sampling is Sampling.EPOCH and self.adversary is Adversary.MODEL_OBSERVER:
            return round(math.log(num_steps), 6)
        amplifies = self.adversary is Adversary.MODEL_OBSERVER and self.sampling in (
            Sampling.WITHOUT_REPLACEMENT,
            Sampling.POISSON,
        )
        return round(math.log(num_steps) + (1 if amplifies else -1) * math.log(cohort), 6)

    def _guess(
        self, mechanism: str, cohort: int, num_steps: int, *, like: PlanRow | None = None
    ) -> tuple[float, float | None]:
        """ε0, and by what power of it ε rises there, if the rounds' losses were normal.

        Their composition then depends on the variance of all losses together: ε0 is such that it is that of
        ``like``, by default the combination solved last of those nearest in size, of the same mechanism
        if there is one.
        """
        size = self._size(cohort, num_steps)
        solved = [row for row in self._solved if row.mechanism == mechanism] or self._solved
        if not solved:
            return self._first_guess(cohort, num_steps), None
        near = like or min(
            reversed(solved), key=lambda row: abs(self._size(row.cohort, row.num_steps) - size)
        )
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
            return min(max(math.exp(x), LEAST_SEARCHED_LOCAL_EPSILON), LARGEST_SEARCHED_LOCAL_EPSILON), None
        slope /= 2
        spare = math.log(self.target_epsilon / near.epsilon.upper) if near.epsilon.upper > 0 else 0.0
        if spare < PRECISION * _GREATEST_SLOPE:
            x += spare / slope - PRECISION / 2
        return min(max(math.exp(x), LEAST_SEARCHED_LOCAL_EPSILON), LARGEST_SEARCHED_LOCAL_EPSILON), slope

    def _first_guess(self, cohort: int, num_steps: int) -> float:
        return normal_guess(
            target_epsilon=self.target_epsilon,
            delta=self.delta,
            population=self.population,
            cohort=cohort,
            num_steps=num_steps,
            sampling=self.sampling,
            adversary=self.adversary,
        )

    def _log_variance(self, mechanism: str, cohort: int, num_steps: int, log_level: float) -> float:
        """log of the variance of all losses of a combination together, were they small."""
        blanket = registry.blanket(mechanism, local_epsilon=math.exp(log_level), dim=self.dim)
        variance = self._round(mechanism, blanket, cohort).dominating_pair().information
        return math.log(num_steps * variance) if variance > 0 else -math.inf

    def _report(self) -> None:
        if self.progress is not None:
            done = len(self.rows) + len(self.infeasible)
            self.progress(done, max(done, self._expected))

    # -- the search -------------------------------------------------------------------------------------

    def scan(
        self, names: Sequence[str], cohorts: Sequence[int], steps: Sequence[int], *, strict: bool, whole: bool
    ) -> tuple[Dismissed, ...]:
        """Try the combinations in turn, but none that another mechanism beats whatever ε0 it gets.

        Of a large grid: every T with the largest cohort, every cohort with the best T, every T with the best
        cohort, until nothing changes; ``whole`` tries all of it. A lone mechanism's complaints are raised; of
        several, those that complain are left out.
        """
        cells = [(cohort, num_steps) for cohort in cohorts for num_steps in steps]
        if whole or len(cells) <= _FEW_CELLS:
            return self._scan(names, cells, strict=strict)
        largest = max(cohorts)
        self._expected = len(cohorts) + len(steps) - 1
        dismissed = self._scan(names, [(largest, num_steps) for num_steps in steps], strict=strict)
        complained = {each.mechanism for each in dismissed}
        kept = [name for name in names if name not in complained]
        if not self.rows:
            return dismissed + self._scan(kept, cells, strict=strict)
        tried: set[Cell] = {(largest, num_steps) for num_steps in steps}
        while True:
            best = self.best()
            across = {(cohort, best.num_steps) for cohort in cohorts}
            across |= {(best.cohort, num_steps) for num_steps in steps}
            if not across - tried:
                return dismissed
            tried |= across
            self._scan([best.mechanism], list(across), strict=strict)

    def _scan(self, names: Sequence[str], cells: Sequence[Cell], *, strict: bool) -> tuple[Dismissed, ...]:
        dismissed = []
        cells = sorted(cells, key=lambda cell: -self._size(*cell))
        self._expected = max(self._expected, len(cells))
        least: dict[Cell, PlanRow] = {}
        for name in sorted(names, key=self._promise):
            try:
                floor = self._report_error(name, LARGEST_SEARCHED_LOCAL_EPSILON).variance
                promising = [
                    cell for cell in cells if cell not in least or floor < _reports_variance(least[cell])
                ]
                unlike = [
                    cell for cell in promising if cell not in least or self._may_beat(name, least[cell])
                ]
                self._expected = max(self._expected, len(self.rows) + len(self.infeasible) + len(unlike))
                for cell in unlike:
                    row = self.evaluate(name, *cell)
                    if row is not None and (
                        cell not in least or _reports_variance(row) < _reports_variance(least[cell])
                    ):
                        least[cell] = row
            except ValueError as error:
                if strict:
                    raise
                self.rows = {key: row for key, row in self.rows.items() if key[0] != name}
                dismissed.append(Dismissed(mechanism=name, reason=str(error)))
            else:
                if not unlike:
                    reason = (
                        "no smaller error than another mechanism's, by the variances of the losses"
                        if promising
                        else f"a larger error at ε0 = {LARGEST_SEARCHED_LOCAL_EPSILON:g} than another "
                        "mechanism's here"
                    )
                    dismissed.append(Dismissed(mechanism=name, reason=reason))
        return tuple(dismissed)

    def _may_beat(self, mechanism: str, row: PlanRow) -> bool:
        """Whether, by the guessed ε0, the mechanism has a smaller error than this row's, or fewer bits."""
        level, _ = self._guess(mechanism, row.cohort, row.num_steps, like=row)
        found = self._report_error(mechanism, level)
        rival = _reports_variance(row)
        if found.bits < row.bits_per_report:
            return found.variance <= rival * (1 + _GUESSED)
        return found.variance < rival * (1 - _GUESSED)

    def _promise(self, mechanism: str) -> float:
        try:
            return self._report_error(mechanism, 1.0).variance
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
        """The least error. Equals, as far as ε0 is solved for: fewer bits, fewer rounds, larger cohorts."""
        least = min(row.average_mse for row in self.rows.values())
        equals = (row for row in self.rows.values() if row.average_mse <= least * (1 + _EQUAL))
        return min(equals, key=lambda row: (row.bits_per_report, row.num_steps, -row.cohort, row.average_mse))

    def refine(self, *, cohorts: bool, steps: bool) -> None:
        """Halve the grids' steps around the best; go on below the smallest cohort while it is the best."""
        cohort_ratio, steps_ratio = _COHORT_RATIO, _STEPS_RATIO
        while cohorts and (best := self.best()).cohort > 1 and best.cohort == min(self._cohorts(best)):
            self.evaluate(best.mechanism, max(1, int(best.cohort / cohort_ratio)), best.num_steps)
        for _ in range(_REFINEMENTS):
            cohort_ratio, steps_ratio = math.sqrt(cohort_ratio), math.sqrt(steps_ratio)
            if cohorts:
                best = self.best()
                for cohort in _around(best.cohort, cohort_ratio, most=self.population):
                    self.evaluate(best.mechanism, cohort, best.num_steps)
            if steps:
                best = self.best()
                for num_steps in _around(best.num_steps, steps_ratio, most=MOST_SEARCHED_STEPS):
                    self.evaluate(best.mechanism, best.cohort, num_steps)

    def _cohorts(self, row: PlanRow) -> list[int]:
        return [k for name, k, steps in self.rows if (name, steps) == (row.mechanism, row.num_steps)]

    def economise(self, tolerance: float, *, cohorts: bool, steps: bool) -> PlanRow:
        """The least communication within ``tolerance`` of the best, in fewer rounds of its cohort.

        Where only one T was tried, in smaller cohorts instead.
        """
        best = self.best()
        limit = best.average_mse * (1 + tolerance)
        one_t = len({num_steps for _, _, num_steps in self.rows}) == 1
        for _ in range(_MOST_ECONOMIES):
            alike = self._alike(best, num_steps=one_t)
            least = _least_communication(alike, limit)
            cheaper = [row for row in alike if row.num_reports < least.num_reports]
            if not (cohorts if one_t else steps) or not cheaper:
                break
            next_below = max(cheaper, key=lambda row: row.num_reports)
            if least.num_reports < _FINE_ENOUGH * next_below.num_reports:
                break
            self.evaluate(
                best.mechanism,
                round(math.sqrt(least.cohort * next_below.cohort)),
                round(math.sqrt(least.num_steps * next_below.num_steps)),
            )
        thrifty = _least_communication(self._alike(best, num_steps=one_t), limit)
        return thrifty if thrifty.total_bits < best.total_bits else best

    def _alike(self, best: PlanRow, *, num_steps: bool) -> list[PlanRow]:
        """Rows of the best one's mechanism and T, or else cohort."""
        return [
            row
            for row in self.rows.values()
            if row.mechanism == best.mechanism
            and (row.num_steps == best.num_steps if num_steps else row.cohort == best.cohort)
        ]

    # -- what else there is -----------------------------------------------------------------------------

    def baselines(self, best: PlanRow, *, num_steps: int) -> tuple[Baseline, ...]:
        """No shuffler, a small sample, a trusted curator."""
        found = []
        unshuffled = self.target_epsilon / num_steps
        if LEAST_SEARCHED_LOCAL_EPSILON <= unshuffled <= LARGEST_SEARCHED_LOCAL_EPSILON:
            report = self._report_error(best.mechanism, unshuffled)
            found.append(
                Baseline(
                    name="no shuffler, ε0 = ε/T",
                    average_mse=report.variance / (self.population * num_steps),
                    cohort=self.population,
                    num_steps=num_steps,
                    local_epsilon=unshuffled,
                )
            )
        small = max(1, self.population // _SMALL_SHARE)
        if self.sampling is not Sampling.FULL and small < best.cohort:
            row = self._solve(best.mechanism, small, best.num_steps)
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
        reach = enclosing_radius(radius=self.radius, norm=self.norm, within="l2", dim=self.dim)
        found.append(
            Baseline(
                name="trusted curator, Gaussian",
                average_mse=gaussian_mse(
                    target_epsilon=self.target_epsilon,
                    delta=self.delta,
                    sensitivity=2 * reach / self.population,
                    dim=self.dim,
                ),
            )
        )
        return tuple(found)


def _names(mechanism: str | Sequence[str]) -> tuple[str, ...]:
    if mechanism == BEST_MECHANISM:
        return registry.available(*registry.ONE_MESSAGE)
    names = (mechanism,) if isinstance(mechanism, str) else tuple(dict.fromkeys(mechanism))
    if not names:
        raise ValueError(f"name at least one mechanism, or {BEST_MECHANISM!r} for all of them")
    for name in names:
        registry.summary(name)
    return names


def _check_spread(spread: float | None, *, radius: float, norm: NormName, dim: int) -> float:
    reach = enclosing_radius(radius=radius, norm=norm, within="l2", dim=dim)
    if spread is None:
        return reach
    if not 0 <= spread <= reach:
        raise ValueError(f"spread must be in [0, {reach:g}], the ℓ2 radius of the ball, got {spread!r}")
    return spread


def _cohort_grid(population: int, cohorts: Sequence[int] | None, *, scheme: Sampling) -> tuple[int, ...]:
    """From a thousandth of the population up; all of it under full participation."""
    if cohorts is not None:
        if len(cohorts) == 0:
            raise ValueError("cohorts must name at least one")
        return tuple(sorted(set(cohorts)))
    if scheme is Sampling.FULL:
        return (population,)
    count = round(_COHORT_DECADES / math.log10(_COHORT_RATIO))
    grid = {max(1, round(population / _COHORT_RATIO**j)) for j in range(count + 1)}
    return tuple(sorted(grid))


def _steps_grid(num_steps: int | Sequence[int] | None) -> tuple[int, ...]:
    if num_steps is None:
        count = round(math.log(MOST_SEARCHED_STEPS, _STEPS_RATIO))
        return tuple(round(_STEPS_RATIO**j) for j in range(count + 1))
    candidates = (num_steps,) if isinstance(num_steps, int) else tuple(num_steps)
    if not candidates:
        raise ValueError("num_steps must name at least one number of rounds")
    return tuple(sorted(set(candidates)))


def _reports_variance(row: PlanRow) -> float:
    """Mean squared error of one report, from that of the average of the row's cohort."""
    return row.noise_mse * row.cohort


def _least_communication(rows: Iterable[PlanRow], limit: float) -> PlanRow:
    near = (row for row in rows if row.average_mse <= limit)
    return min(near, key=lambda row: (row.total_bits, row.average_mse))


def _around(value: int, ratio: float, *, most: int) -> set[int]:
    near = {round(value / ratio), min(most, round(value * ratio))}
    return {each for each in near if each >= 1 and each != value}


def _edge(best: int, tried: Sequence[int]) -> Edge:
    if len(set(tried)) == 1:
        return Edge.ONLY
    if best == min(tried):
        return Edge.LOWEST
    return Edge.HIGHEST if best == max(tried) else Edge.INTERIOR
