"""Few sizes in the place of many: each covers what it stands for."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_plugins.accounting.federated.rounds import Cohort, cheapest, costliest, fewer_sizes

cohorts = st.builds(
    lambda kind, reports, others, is_open: Cohort(kind, reports if is_open else reports + others, reports),
    st.integers(0, 2),
    st.integers(1, 3000),
    st.integers(1, 10**6),
    st.booleans(),
)
histories = st.dictionaries(cohorts, st.integers(1, 9), min_size=1, max_size=60)


@settings(max_examples=200)
@given(history=histories, limit=st.integers(1, 40), costlier=st.booleans())
def test_fewer_sizes_stand_for_what_they_cover(
    history: dict[Cohort, int], limit: int, costlier: bool
) -> None:
    fewer = fewer_sizes(history, limit=limit, costlier=costlier)
    kinds = {cohort.kind for cohort in history}
    assert len(fewer) <= max(limit, 6 * len(kinds))
    assert Counter(fewer).total() == Counter(history).total()
    for cohort in history:
        assert any(f.covers(cohort) if costlier else cohort.covers(f) for f in fewer)
    if len(history) <= limit:
        assert fewer == Counter(history)


@given(one=cohorts, other=cohorts)
def test_covering_is_an_order(one: Cohort, other: Cohort) -> None:
    assert one.covers(one)
    if one.covers(other) and other.covers(one):
        assert one == other


def test_of_open_cohorts_the_smallest_are_charged_and_of_sampled_the_largest() -> None:
    history = {Cohort(0, 5, 5): 2, Cohort(0, 9, 9): 4, Cohort(0, 7, 7): 1, Cohort(1, 100, 10): 3}
    assert costliest(history, {0: 4, 1: 1}) == {
        Cohort(0, 5, 5): 2,
        Cohort(0, 7, 7): 1,
        Cohort(0, 9, 9): 1,
        Cohort(1, 100, 10): 1,
    }
    assert costliest(history, {1: 3}) == {Cohort(1, 100, 10): 3}
    sampled = {Cohort(0, 100, 10): 2, Cohort(0, 99, 12): 2, Cohort(0, 101, 9): 3}
    assert costliest(sampled, {0: 3}) == {Cohort(0, 99, 12): 2, Cohort(0, 99, 10): 1}
    assert costliest(sampled, {0: 7}) == sampled
    assert cheapest(history, {0: 5, 1: 2}) == {Cohort(0, 9, 9): 4, Cohort(0, 7, 7): 1, Cohort(1, 100, 10): 2}
