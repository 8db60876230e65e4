"""The search for the least error within a target (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from shuffle_plugins.accounting import (
    LARGEST_SEARCHED_LOCAL_EPSILON,
    LEAST_SEARCHED_LOCAL_EPSILON,
    Adversary,
    Method,
    Sampling,
    ShuffleRound,
)
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning.baselines import gaussian_mse
from shuffle_plugins.planning.combinations import Combinations, Progress
from shuffle_plugins.planning.plans import Baseline, Dismissed, Edge, Plan, PlanQuestion, PlanRow
from shuffle_plugins.planning.variance import (
    NormName,
    check_norm,
    enclosing_radius,
    mechanism_norm,
)

BEST_MECHANISM = "best"
"""Stands for every registered mechanism."""

MOST_SEARCHED_STEPS = 10_000
"""The most rounds that are tried where T is left open."""

_COHORT_RATIO, _COHORT_DECADES = math.sqrt(10), 3  # first grid of cohorts: n, n/√10, … n/1000
_STEPS_RATIO = 10.0  # first grid of numbers of rounds
_REFINEMENTS = 2  # how often the grids' steps are halved, in logarithms, around the best
_MOST_ECONOMIES = 6  # combinations tried for less communication
_FINE_ENOUGH = 1.2  # ratio of the reports of two combinations between which none is tried any more
_EQUAL = 1e-3  # relative difference of errors that the precision of ε0 cannot tell apart
_FEW_CELLS = 12  # combinations of k and T that are all tried
_GUESSED = 2e-3  # relative precision of an error at a guessed ε0
_SMALL_SHARE = 100  # the baseline of a small sample takes one client of so many

Cell = tuple[int, int]


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
        population: n, the number of clients.
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
    checks.number("tolerance", tolerance, at_least=0)
    ShuffleRound(local_epsilon=1.0, population=population, cohort=population)
    checks.dim(dim)
    checks.radius(radius)
    names = _names(mechanism)
    if norm is None:
        norm = mechanism_norm(names[0], dim=dim) if len(names) == 1 else "l2"
    scheme = Sampling(sampling)
    asked = PlanQuestion(
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
    )
    tried = Combinations(asked=asked, progress=progress)
    ks = _cohort_grid(population, cohorts, scheme=scheme)
    ts = _steps_grid(num_steps)
    tried.check(ks, ts)
    search = _Search(tried)

    dismissed = search.scan(names, ks, ts, strict=len(names) == 1, whole=whole_grid)
    if not tried.rows and cohorts is None:
        search.reach_down(names, min(ks), min(ts))
    if not tried.rows:
        told = "; ".join(f"{each.mechanism}: {each.reason}" for each in dismissed)
        raise ValueError(
            f"nothing stays within ε={target_epsilon}, δ={delta}: use fewer rounds, a smaller cohort or a "
            "larger population" + (f" ({told})" if told else "")
        )
    search.refine(cohorts=cohorts is None and len(ks) > 1, steps=num_steps is None)
    best = search.best()
    thrifty = search.economise(tolerance, cohorts=cohorts is None and len(ks) > 1, steps=num_steps is None)
    baselines = search.baselines(best, num_steps=min(ts))
    rows = sorted(tried.rows.values(), key=lambda row: (row.mechanism, row.num_steps, row.cohort))
    return Plan(
        **asdict(asked),
        tolerance=tolerance,
        best=best,
        thrifty=thrifty,
        cohort_edge=_edge(best.cohort, [row.cohort for row in rows]),
        steps_edge=_edge(best.num_steps, [row.num_steps for row in rows]),
        rows=tuple(rows),
        baselines=baselines,
        dismissed=dismissed,
        infeasible=tuple(sorted(tried.infeasible)),
    )


@dataclass(frozen=True)
class _Search:
    """The search: which combinations to try next, and which of those tried is the best."""

    tried: Combinations

    def scan(
        self, names: Sequence[str], cohorts: Sequence[int], steps: Sequence[int], *, strict: bool, whole: bool
    ) -> tuple[Dismissed, ...]:
        """Try the combinations in turn, except those that another mechanism beats at every ε0.

        Of a large grid: every T with the largest cohort, every cohort with the best T, every T with the best
        cohort, until nothing changes; ``whole`` tries all of it. A lone mechanism's complaints are raised; of
        several, those that complain are left out.
        """
        cells = [(cohort, num_steps) for cohort in cohorts for num_steps in steps]
        if whole or len(cells) <= _FEW_CELLS:
            return self._scan(names, cells, strict=strict)
        largest = max(cohorts)
        self.tried.expected = len(cohorts) + len(steps) - 1
        dismissed = self._scan(names, [(largest, num_steps) for num_steps in steps], strict=strict)
        complained = {each.mechanism for each in dismissed}
        kept = [name for name in names if name not in complained]
        if not self.tried.rows:
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
        cells = sorted(cells, key=lambda cell: -self.tried.size(*cell))
        self.tried.expected = max(self.tried.expected, len(cells))
        least: dict[Cell, PlanRow] = {}
        for name in sorted(names, key=self._promise):
            try:
                floor = self.tried.report_error(name, LARGEST_SEARCHED_LOCAL_EPSILON).variance
                promising = [
                    cell for cell in cells if cell not in least or floor < _reports_variance(least[cell])
                ]
                unlike = [
                    cell for cell in promising if cell not in least or self._may_beat(name, least[cell])
                ]
                self.tried.expected = max(
                    self.tried.expected, len(self.tried.rows) + len(self.tried.infeasible) + len(unlike)
                )
                for cell in unlike:
                    row = self.tried.evaluate(name, *cell)
                    if row is not None and (
                        cell not in least or _reports_variance(row) < _reports_variance(least[cell])
                    ):
                        least[cell] = row
            except ValueError as error:
                if strict:
                    raise
                self.tried.rows = {key: row for key, row in self.tried.rows.items() if key[0] != name}
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
        level, _ = self.tried.guess(mechanism, row.cohort, row.num_steps, like=row)
        found = self.tried.report_error(mechanism, level)
        rival = _reports_variance(row)
        if found.bits < row.bits_per_report:
            return found.variance <= rival * (1 + _GUESSED)
        return found.variance < rival * (1 - _GUESSED)

    def _promise(self, mechanism: str) -> float:
        try:
            return self.tried.report_error(mechanism, 1.0).variance
        except ValueError:
            return math.inf

    def reach_down(self, names: Sequence[str], cohort: int, num_steps: int) -> None:
        """Try ever smaller cohorts until one stays within the target."""
        while cohort > 1 and not self.tried.rows:
            cohort = max(1, int(cohort / _COHORT_RATIO))
            for name in names:
                if self._promise(name) < math.inf:
                    self.tried.evaluate(name, cohort, num_steps)

    def best(self) -> PlanRow:
        """The least error. Equals, as far as ε0 is solved for: fewer bits, fewer rounds, larger cohorts."""
        least = min(row.average_mse for row in self.tried.rows.values())
        equals = (row for row in self.tried.rows.values() if row.average_mse <= least * (1 + _EQUAL))
        return min(equals, key=lambda row: (row.bits_per_report, row.num_steps, -row.cohort, row.average_mse))

    def refine(self, *, cohorts: bool, steps: bool) -> None:
        """Halve the grids' steps around the best; go on below the smallest cohort while it is the best."""
        cohort_ratio, steps_ratio = _COHORT_RATIO, _STEPS_RATIO
        while cohorts and (best := self.best()).cohort > 1 and best.cohort == min(self._cohorts(best)):
            self.tried.evaluate(best.mechanism, max(1, int(best.cohort / cohort_ratio)), best.num_steps)
        for _ in range(_REFINEMENTS):
            cohort_ratio, steps_ratio = math.sqrt(cohort_ratio), math.sqrt(steps_ratio)
            if cohorts:
                best = self.best()
                for cohort in _around(best.cohort, cohort_ratio, most=self.tried.asked.population):
                    self.tried.evaluate(best.mechanism, cohort, best.num_steps)
            if steps:
                best = self.best()
                for num_steps in _around(best.num_steps, steps_ratio, most=MOST_SEARCHED_STEPS):
                    self.tried.evaluate(best.mechanism, best.cohort, num_steps)

    def _cohorts(self, row: PlanRow) -> list[int]:
        return [k for name, k, steps in self.tried.rows if (name, steps) == (row.mechanism, row.num_steps)]

    def economise(self, tolerance: float, *, cohorts: bool, steps: bool) -> PlanRow:
        """The least communication within ``tolerance`` of the best, in fewer rounds of its cohort.

        Where only one T was tried, in smaller cohorts instead.
        """
        best = self.best()
        limit = best.average_mse * (1 + tolerance)
        one_t = len({num_steps for _, _, num_steps in self.tried.rows}) == 1
        for _ in range(_MOST_ECONOMIES):
            alike = self._alike(best, num_steps=one_t)
            least = _least_communication(alike, limit)
            cheaper = [row for row in alike if row.num_reports < least.num_reports]
            if not (cohorts if one_t else steps) or not cheaper:
                break
            next_below = max(cheaper, key=lambda row: row.num_reports)
            if least.num_reports < _FINE_ENOUGH * next_below.num_reports:
                break
            self.tried.evaluate(
                best.mechanism,
                round(math.sqrt(least.cohort * next_below.cohort)),
                round(math.sqrt(least.num_steps * next_below.num_steps)),
            )
        thrifty = _least_communication(self._alike(best, num_steps=one_t), limit)
        return thrifty if thrifty.total_bits < best.total_bits else best

    def _alike(self, best: PlanRow, *, num_steps: bool) -> list[PlanRow]:
        """Rows of the best one's mechanism, with its T if ``num_steps`` is true, else with its cohort."""
        return [
            row
            for row in self.tried.rows.values()
            if row.mechanism == best.mechanism
            and (row.num_steps == best.num_steps if num_steps else row.cohort == best.cohort)
        ]

    # -- what else there is -----------------------------------------------------------------------------

    def baselines(self, best: PlanRow, *, num_steps: int) -> tuple[Baseline, ...]:
        """What the target buys without a shuffler, from a small sample, and from a trusted curator."""
        found = []
        unshuffled = self.tried.asked.target_epsilon / num_steps
        if LEAST_SEARCHED_LOCAL_EPSILON <= unshuffled <= LARGEST_SEARCHED_LOCAL_EPSILON:
            report = self.tried.report_error(best.mechanism, unshuffled)
            found.append(
                Baseline(
                    name="no shuffler, ε0 = ε/T",
                    average_mse=report.variance / (self.tried.asked.population * num_steps),
                    cohort=self.tried.asked.population,
                    num_steps=num_steps,
                    local_epsilon=unshuffled,
                )
            )
        small = max(1, self.tried.asked.population // _SMALL_SHARE)
        if self.tried.asked.sampling is not Sampling.FULL and small < best.cohort:
            row = self.tried.solve(best.mechanism, small, best.num_steps)
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
        reach = enclosing_radius(
            radius=self.tried.asked.radius, norm=self.tried.asked.norm, within="l2", dim=self.tried.asked.dim
        )
        found.append(
            Baseline(
                name="trusted curator, Gaussian",
                average_mse=gaussian_mse(
                    target_epsilon=self.tried.asked.target_epsilon,
                    delta=self.tried.asked.delta,
                    sensitivity=2 * reach / self.tried.asked.population,
                    dim=self.tried.asked.dim,
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
    return checks.number("spread", spread, at_least=0, at_most=reach)


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
