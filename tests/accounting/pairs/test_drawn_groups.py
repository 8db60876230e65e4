"""How many reports of each group are counted on, against the exact law of what is drawn."""

from __future__ import annotations

import pytest
from scipy import stats

from shuffle_plugins import mechanisms
from shuffle_plugins.accounting import COARSE, GroupsRound, Sampling
from shuffle_plugins.accounting.numerics.sums import TAIL
from shuffle_plugins.accounting.pairs.groups import GroupsPair
from shuffle_plugins.accounting.pairs.others import others_losses

LEVELS = (0.5, 2.0)


def pair_of(*counts: int, cohort: int) -> GroupsPair:
    """Of the loud group, by what all reports have in common alone."""
    groups = tuple(zip((*LEVELS, 3.0), counts, strict=False))
    each = GroupsRound(
        local_epsilon=2.0,
        groups=groups,
        population=sum(counts),
        cohort=cohort,
        sampling=Sampling.WITHOUT_REPLACEMENT,
        mechanism="k-rr",
        blanket=mechanisms.blanket("k-rr", local_epsilon=2.0, dim=4),
    )
    (pair,) = each._pairs()
    return pair


@pytest.mark.parametrize(
    ("counts", "cohort"),
    [((30, 21), 10), ((3, 48), 10), ((3_000, 7_001), 500), ((40_000_000, 60_000_001), 5_000_000)],
)
def test_more_reports_of_a_group_than_are_counted_on_are_as_rare_as_is_said(
    counts: tuple[int, int], cohort: int
) -> None:
    """Listed, and beyond a mean of a million by Bernstein's inequality."""
    pair, among = pair_of(*counts, cohort=cohort), sum(counts) - 1
    for each in pair.others:
        law = stats.hypergeom(among, each.count, cohort)
        for left in (0.3, 0.03, 1e-3, 1e-6, 1e-12):
            most = pair._most(each.count, among, left)
            assert law.sf(most) <= left * (1 + 1e-6)
            assert most <= law.mean() + 12 * law.std() + 20  # and says something


@pytest.mark.parametrize(
    ("counts", "cohort"), [((30, 21), 10), ((3_000, 7_001), 500), ((2_000_000, 3_000_001), 2_500_000)]
)
def test_cases_cover_what_may_be_drawn(counts: tuple[int, int], cohort: int) -> None:
    """More reports of a group than in some of the cases are no likelier than all cases with more."""
    pair, among = pair_of(*counts, cohort=cohort), sum(counts) - 1
    cases = pair._cases()
    for place, each in enumerate(pair.others):
        law = stats.hypergeom(among, each.count, cohort)
        for most in {seen[place] for _, seen in cases}:
            above = sum(mass for mass, seen in cases if seen[place] > most)
            assert law.sf(most) <= above * (1 + 1e-6) + TAIL
    assert sum(mass for mass, _ in cases) == pytest.approx(1.0, abs=1e-9)


def test_two_groups_of_whom_millions_are_drawn_cost_what_those_cost_that_are_listed() -> None:
    """With a million reports and with one more: the same number, found in two ways."""
    found = []
    for cohort in (1_000_000, 1_000_001):
        pair = pair_of(4_000_000, 6_000_000, cohort=cohort)
        _, p, q, missing = others_losses(pair, tolerance=COARSE.tolerance)
        found.append(float((p - q).clip(min=0).sum()) + missing)
    listed, unlisted = found
    assert unlisted == pytest.approx(listed, rel=2e-3)
