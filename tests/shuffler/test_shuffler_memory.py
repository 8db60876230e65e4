from collections import Counter
from itertools import permutations

import pytest
import torch
from refusals import refused
from scipy.stats import chisquare

from shuffle_plugins.core import Reports
from shuffle_plugins.core.reports import Field
from shuffle_plugins.shuffler import InMemoryShuffler, Refusal


def batch(*values: int, mechanism: str = "test", dim: int = 3) -> Reports:
    return Reports(mechanism=mechanism, dim=dim, fields=(Field(torch.tensor(values, dtype=torch.int64), 16),))


def test_every_order_of_reports_is_equally_likely() -> None:
    batches = [batch(i) for i in range(4)]
    shuffler = InMemoryShuffler()
    drawn = Counter(tuple(shuffler.shuffle(batches).fields[0].values.tolist()) for _ in range(4_000))
    orders = list(permutations(range(4)))
    assert set(drawn) <= set(orders)
    assert chisquare([drawn[order] for order in orders]).pvalue > 1e-8


def test_no_report_is_lost_or_made_up() -> None:
    mixed = InMemoryShuffler().shuffle([batch(2 * i, 2 * i + 1) for i in range(500)])
    assert mixed.fields[0].values.tolist() != list(range(1000))
    assert sorted(mixed.fields[0].values.tolist()) == list(range(1000))
    mixed = InMemoryShuffler().shuffle_reports(batch(*range(1000)))
    assert mixed.fields[0].values.tolist() != list(range(1000))
    assert sorted(mixed.fields[0].values.tolist()) == list(range(1000))


def test_fewer_batches_than_the_minimum_are_refused() -> None:
    shuffler = InMemoryShuffler(minimum=5)
    assert shuffler.minimum == 5
    assert len(shuffler.shuffle([batch(i) for i in range(5)])) == 5
    for count in range(5):
        assert refused(shuffler.shuffle, [batch(i) for i in range(count)]) is Refusal.UNDER_MINIMUM
        assert refused(shuffler.shuffle_reports, batch(*range(count))) is Refusal.UNDER_MINIMUM
    assert sorted(shuffler.shuffle_reports(batch(*range(5))).fields[0].values.tolist()) == [*range(5)]


@pytest.mark.parametrize(
    ("batches", "code"),
    [
        ([batch(1), batch(2, 3)], Refusal.WRONG_SIZE),
        ([batch(), batch()], Refusal.WRONG_SIZE),
        ([batch(1), batch(1, mechanism="other")], Refusal.UNREADABLE),
        ([batch(1), batch(1, dim=4)], Refusal.UNREADABLE),
    ],
)
def test_batches_that_do_not_look_alike_are_refused(batches: list[Reports], code: Refusal) -> None:
    assert refused(InMemoryShuffler().shuffle, batches) is code
