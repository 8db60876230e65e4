"""Cohorts of one mechanism compared: which round costs at least as much as another, and many sizes by few.

Everything rests on a lemma (``docs/proofs/accounting.md``, "Federated rounds"): a round of k' of n' clients
costs no more than one of k of n if k' ≥ k and k'/n' ≤ k/n, or if k' ≤ k and n' ≥ n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

_FINEST = 1.001  # ratio of the grid that sizes are rounded to first; coarser ones follow until they fit


class Cohort(NamedTuple):
    """The size of a round of one kind.

    Attributes:
        kind: number of the kind.
        hiding: clients among whom the reporting ones hide.
        reports: clients that report.
    """

    kind: int
    hiding: int
    reports: int

    @property
    def open(self) -> bool:
        """Whether everybody reports: sampling hides nobody."""
        return self.hiding == self.reports

    @property
    def spread(self) -> float:
        """How many clients there are for each report: 1/γ."""
        return self.hiding / self.reports

    @property
    def weight(self) -> float:
        """What the round costs to first order, up to a factor of its kind: the variance of its loss, γ²/k."""
        return self.reports / self.hiding**2

    def covers(self, other: Cohort) -> bool:
        """Whether a round of this size is known to cost at least as much as the other."""
        if self.kind != other.kind:
            return False
        if other.reports <= self.reports and other.hiding >= self.hiding:
            return True
        return other.reports >= self.reports and other.reports * self.hiding <= self.reports * other.hiding


def fewer_sizes(cohorts: Mapping[Cohort, int], *, limit: int, costlier: bool = True) -> Counter[Cohort]:
    """The same numbers of rounds, in at most ``limit`` sizes, or half a dozen of each kind.

    Args:
        cohorts: how many rounds there are of each size.
        limit: sizes to come down to.
        costlier: replace sizes by sizes that cost at least as much; otherwise by sizes that cost no more.
    """
    limit = max(limit, 6 * len({cohort.kind for cohort in cohorts}))
    if len(cohorts) <= limit:
        return Counter(cohorts)
    found = [_merged(cohorts, _Grid.around(cohorts, at_rate, costlier), limit) for at_rate in (True, False)]
    return min(found, key=_weight) if costlier else max(found, key=_weight)


def _weight(cohorts: Mapping[Cohort, int]) -> float:
    return math.fsum(cohort.weight * rounds for cohort, rounds in cohorts.items())


def _merged(cohorts: Mapping[Cohort, int], grid: _Grid, limit: int) -> Counter[Cohort]:
    ratio = _FINEST
    while True:
        merged: Counter[Cohort] = Counter()
        for cohort, rounds in cohorts.items():
            merged[grid.rounded(cohort, ratio)] += rounds
        if len(merged) <= limit:
            return merged
        ratio *= ratio  # sizes of the coarser grid are some of the finer one's, and known already


@dataclass(frozen=True, slots=True)
class _Grid:
    """Sizes to round to: powers of a ratio, and multiples of the least spread and the fewest clients.

    Powers stay where they are as a history grows, as do the fewest clients where as many are always there.

    Attributes:
        reports: the fewest reports; no size is rounded to fewer.
        spread: the fewest clients for each report.
        hiding: the fewest clients.
        at_rate: round reports and the rate; otherwise reports and clients.
        costlier: round to what costs more.
    """

    reports: int
    spread: float
    hiding: int
    at_rate: bool
    costlier: bool

    @classmethod
    def around(cls, cohorts: Iterable[Cohort], at_rate: bool, costlier: bool) -> Self:
        return cls(
            reports=min(cohort.reports for cohort in cohorts),
            spread=min((cohort.spread for cohort in cohorts if not cohort.open), default=1.0),
            hiding=min((cohort.hiding for cohort in cohorts if not cohort.open), default=1),
            at_rate=at_rate,
            costlier=costlier,
        )

    def rounded(self, cohort: Cohort, ratio: float) -> Cohort:
        kind, hiding, reports = cohort
        few, many = max(_down(reports, 1, ratio), self.reports), _up(reports, ratio)
        if cohort.open:
            fair = few if self.costlier else many
            return Cohort(kind, fair, fair)
        if not self.at_rate:
            if self.costlier:
                less = _down(hiding, self.hiding, ratio)
                return Cohort(kind, less, many) if many <= less else Cohort(kind, few, few)
            return Cohort(kind, _up(hiding, ratio, least=self.hiding), few)
        if self.costlier:
            spread = self.spread * ratio ** _steps(cohort.spread / self.spread, ratio, math.floor)
            return Cohort(kind, max(few, min(math.floor(few * spread), few * hiding // reports)), few)
        spread = self.spread * ratio ** _steps(cohort.spread / self.spread, ratio, math.ceil)
        return Cohort(kind, max(math.ceil(many * spread), -(-many * hiding // reports)), many)


def _down(value: int, least: int, ratio: float) -> int:
    return min(value, max(least, math.floor(least * ratio ** _steps(value / least, ratio, math.floor))))


def _up(value: int, ratio: float, *, least: int = 1) -> int:
    return max(value, math.ceil(least * ratio ** _steps(value / least, ratio, math.ceil)))


def _steps(value: float, ratio: float, whole: Callable[[float], int]) -> int:
    return whole(math.log(value) / math.log(ratio))


def costliest(cohorts: Mapping[Cohort, int], most: Mapping[int, int]) -> Counter[Cohort]:
    """A history that costs at least as much as any with at most ``most[kind]`` of the rounds of each kind.

    Of open cohorts the smallest are taken. Of sampled ones either all, or the largest as if each were drawn
    from the fewest clients, whichever weighs less.
    """
    taken: Counter[Cohort] = Counter()
    for kind in {cohort.kind for cohort in cohorts}:
        own = {cohort: rounds for cohort, rounds in cohorts.items() if cohort.kind == kind}
        opened = {cohort: rounds for cohort, rounds in own.items() if cohort.open}
        sampled = {cohort: rounds for cohort, rounds in own.items() if not cohort.open}
        wanted = most.get(kind, 0)
        few = _first(sorted(opened, key=lambda cohort: cohort.reports), opened, wanted)
        if sampled:
            fewest = min(cohort.hiding for cohort in sampled)
            descending = sorted(sampled, key=lambda cohort: -cohort.reports)
            largest: Counter[Cohort] = Counter()
            for cohort, rounds in _first(descending, sampled, wanted).items():
                largest[Cohort(kind, fewest, cohort.reports)] += rounds
            fits = descending[0].reports <= fewest
            few += largest if fits and _weight(largest) < _weight(sampled) else Counter(sampled)
        taken += few
    return taken


def cheapest(cohorts: Mapping[Cohort, int], taken: Mapping[int, int]) -> Counter[Cohort]:
    """A history that costs no more than any with ``taken[kind]`` rounds of each kind."""
    found: Counter[Cohort] = Counter()
    for kind, rounds in taken.items():
        own = {cohort: count for cohort, count in cohorts.items() if cohort.kind == kind}
        if all(cohort.open for cohort in own):
            found += _first(sorted(own, key=lambda cohort: -cohort.reports), own, rounds)
        else:
            most = max(cohort.hiding for cohort in own)
            found[Cohort(kind, most, min(cohort.reports for cohort in own))] += rounds
    return found


def _first(order: Iterable[Cohort], cohorts: Mapping[Cohort, int], wanted: int) -> Counter[Cohort]:
    """The first ``wanted`` rounds in that order."""
    taken: Counter[Cohort] = Counter()
    for cohort in order:
        rounds = min(wanted, cohorts[cohort])
        wanted -= rounds
        if rounds:
            taken[cohort] = rounds
    return taken
