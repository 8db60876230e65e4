"""Cohorts of one mechanism compared: which round is at least as dear as which, and many sizes told by few.

Everything rests on one lemma (``docs/accounting.md``, "Federated rounds"): k' of n' clients cost no more than k of n
if k' ≥ k and k'/n' ≤ k/n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

_FINEST = 1.001
_PLENTY = 64


class Cohort(NamedTuple):
    """``reports`` of ``hiding`` clients, in a round of the kind with that number."""

    kind: int
    hiding: int
    reports: int

    @property
    def open(self) -> bool:
        """Whether everybody reports: sampling hides nobody."""
        return self.hiding == self.reports

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
    ratio = _FINEST
    while len(fewer) > limit:
        fewer = Counter()
        for cohort, rounds in cohorts.items():
            fewer[_on_grid(cohort, ratio, dearer=dearer)] += rounds
        ratio = 1 + 2 * (ratio - 1)
    return fewer


def _on_grid(cohort: Cohort, ratio: float, *, dearer: bool) -> Cohort:
    kind, hiding, reports = cohort
    step = math.log(ratio)
    if dearer:
        few = max(1, min(reports, int(ratio ** math.floor(math.log(reports) / step))))
        if cohort.open:
            return Cohort(kind, few, few)
        spread = ratio ** math.floor(math.log(hiding / reports) / step)
        return Cohort(kind, max(few, min(int(few * spread), few * hiding // reports)), few)
    many = max(reports, math.ceil(ratio ** math.ceil(math.log(reports) / step)))
    if cohort.open:
        return Cohort(kind, many, many)
    spread = ratio ** math.ceil(math.log(hiding / reports) / step)
    return Cohort(kind, max(math.ceil(many * spread), -(-many * hiding // reports)), many)


def dearest(cohorts: Mapping[Cohort, int], most: Mapping[int, int]) -> Counter[Cohort]:
    """A history that costs at least as much as any with at most ``most[kind]`` of the rounds of each kind.

    Of open cohorts the smallest are taken. Sampled ones are not ordered, and all are taken.
    """
    return _first(cohorts, most, smallest=True)


def cheapest(cohorts: Mapping[Cohort, int], taken: Mapping[int, int]) -> Counter[Cohort]:
    """A history that costs no more than any with ``taken[kind]`` of the rounds of each kind."""
    found: Counter[Cohort] = Counter()
    sampled: dict[int, list[Cohort]] = {}
    for cohort in cohorts:
        if not cohort.open:
            sampled.setdefault(cohort.kind, []).append(cohort)
    mixed = {kind for kind in sampled if any(c.open for c in cohorts if c.kind == kind)}
    if mixed:
        raise ValueError("sampled and open cohorts are kinds of their own")
    for kind, found_sizes in sampled.items():
        if taken.get(kind, 0):
            reports = max(cohort.reports for cohort in found_sizes)
            hiding = max(-(-reports * cohort.hiding // cohort.reports) for cohort in found_sizes)
            found[Cohort(kind, hiding, reports)] = taken[kind]
    opened = {cohort: rounds for cohort, rounds in cohorts.items() if cohort.open}
    return found + _first(opened, taken, smallest=False)
