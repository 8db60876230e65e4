"""Cohorts of one mechanism compared: which round is at least as dear as which, and many sizes told by few.

Everything rests on one lemma (``docs/accounting.md``, "Federated rounds"): k' of n' clients cost no more than
k of n if k' ≥ k and k'/n' ≤ k/n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

_FINEST = 1.001
_UNUSUAL = 0.03


class Cohort(NamedTuple):
    """``reports`` of ``hiding`` clients, in a round of the kind with that number."""

    kind: int
    hiding: int
    reports: int

    @property
    def open(self) -> bool:
        """Whether everybody reports: sampling hides nobody."""
        return self.hiding == self.reports

    @property
    def spread(self) -> float:
        """Clients for each report, 1/γ."""
        return self.hiding / self.reports

    def covers(self, other: Cohort) -> bool:
        """Whether a round of this size costs at least as much as the other."""
        return (
            self.kind == other.kind
            and other.reports >= self.reports
            and other.reports * self.hiding <= self.reports * other.hiding
        )


def fewer_sizes(cohorts: Mapping[Cohort, int], *, limit: int, dearer: bool = True) -> Counter[Cohort]:
    """The same numbers of rounds, in at most ``limit`` sizes and as many as there are kinds.

    Args:
        cohorts: how many rounds there are of each size.
        limit: sizes to come down to.
        dearer: replace sizes by such as cost at least as much; otherwise by such as cost no more.
    """
    fewer = Counter(cohorts)
    limit = max(limit, 2 * len({cohort.kind for cohort in fewer}))
    floor = min(cohorts, key=lambda cohort: cohort.reports).reports if cohorts else 1
    least = min((cohort.spread for cohort in cohorts if not cohort.open), default=1.0)
    ratio = _FINEST
    while len(fewer) > limit:
        fewer = Counter()
        for cohort, rounds in cohorts.items():
            rounded = _lowered if dearer else _raised
            fewer[rounded(cohort, ratio=ratio, floor=floor, least=least)] += rounds
        ratio = 1 + 2 * (ratio - 1)
    return fewer


def _lowered(cohort: Cohort, *, ratio: float, floor: int, least: float) -> Cohort:
    """Reports down to floor·ratio^i, and clients for each report down to least·ratio^j."""
    kind, hiding, reports = cohort
    few = min(reports, max(floor, int(floor * ratio ** _steps(reports / floor, ratio, math.floor))))
    if cohort.open:
        return Cohort(kind, few, few)
    spread = least * ratio ** _steps(cohort.spread / least, ratio, math.floor)
    return Cohort(kind, max(few, min(math.floor(few * spread), few * hiding // reports)), few)


def _raised(cohort: Cohort, *, ratio: float, floor: int, least: float) -> Cohort:
    """Reports and clients for each report up to the next such numbers."""
    kind, hiding, reports = cohort
    many = max(reports, math.ceil(floor * ratio ** _steps(reports / floor, ratio, math.ceil)))
    if cohort.open:
        return Cohort(kind, many, many)
    spread = least * ratio ** _steps(cohort.spread / least, ratio, math.ceil)
    return Cohort(kind, max(math.ceil(many * spread), -(-many * hiding // reports)), many)


def _steps(value: float, ratio: float, whole: Callable[[float], int]) -> int:
    return whole(math.log(value) / math.log(ratio))


def dearest(cohorts: Mapping[Cohort, int], most: Mapping[int, int]) -> Counter[Cohort]:
    """A history that costs at least as much as any with at most ``most[kind]`` of the rounds of each kind.

    Of open cohorts the smallest are taken. Sampled ones are not ordered: all are taken.
    """
    taken: Counter[Cohort] = Counter()
    left = dict(most)
    for cohort in sorted(cohorts, key=lambda cohort: cohort.reports):
        rounds = cohorts[cohort]
        if cohort.open:
            rounds = min(rounds, left.get(cohort.kind, 0))
            left[cohort.kind] = left.get(cohort.kind, 0) - rounds
        if rounds:
            taken[cohort] += rounds
    return taken


def cheapest(cohorts: Mapping[Cohort, int], taken: Mapping[int, int]) -> Counter[Cohort]:
    """A history that costs no more than any with ``taken[kind]`` rounds of each kind."""
    found: Counter[Cohort] = Counter()
    for kind, rounds in taken.items():
        sizes = [cohort for cohort in cohorts if cohort.kind == kind]
        if not all(cohort.open for cohort in sizes):
            found[_below(sizes)] += rounds
            continue
        for cohort in sorted(sizes, key=lambda cohort: -cohort.reports):
            several = min(rounds, cohorts[cohort])
            rounds -= several
            if several:
                found[cohort] += several
    return found


def _below(sizes: Sequence[Cohort]) -> Cohort:
    """A size that costs no more than any of these."""
    reports = max(cohort.reports for cohort in sizes)
    return Cohort(sizes[0].kind, max(-(-reports * c.hiding // c.reports) for c in sizes), reports)


def dearer_than(one: Cohort, other: Cohort) -> Cohort:
    """A size that covers both; of rounds that do not compare, the first."""
    if one.kind != other.kind:
        return one
    few = min(one.reports, other.reports)
    return Cohort(one.kind, max(few, min(few * c.hiding // c.reports for c in (one, other))), few)


def dear_one(cohorts: Mapping[Cohort, int], kind: int) -> Cohort:
    """A size that costs at least as much as all but a few per cent of the rounds of a kind."""
    own = [(cohort, rounds) for cohort, rounds in cohorts.items() if cohort.kind == kind]
    few = int(_quantile([(cohort.reports, rounds) for cohort, rounds in own]))
    spread = _quantile([(cohort.spread, rounds) for cohort, rounds in own])
    return Cohort(kind, max(few, math.floor(few * spread)), few)


def _quantile(values: Sequence[tuple[float, int]]) -> float:
    """The value below which only an unusual share of the rounds lies."""
    left = _UNUSUAL * sum(rounds for _, rounds in values)
    for value, rounds in sorted(values):
        left -= rounds
        if left < 0:
            return value
    raise ValueError("no rounds")
