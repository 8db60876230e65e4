"""Numbers of reports that are counted, against sums over all cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from shuffle_plugins.accounting.numerics.counts import CountMasses, drawn_counts, signed_counts


def test_drawn_clients_of_several_groups_are_counted() -> None:
    """Every subset of the clients, and the number of each group's that are counted in it."""
    groups = [(0.1, 3), (0.45, 2), (0.8, 4)]
    chances = [chance for chance, size in groups for _ in range(size)]
    for draws in (0, 1, 4, 9):
        law = np.zeros(draws + 1)
        subsets = list(itertools.combinations(chances, draws))
        for subset in subsets:
            of_subset = np.ones(1)
            for chance in subset:
                of_subset = np.convolve(of_subset, [1 - chance, chance])
            law += of_subset / len(subsets)
        assert drawn_counts(groups, draws=draws).on(0, draws + 1) == pytest.approx(law, rel=1e-12)


def test_many_drawn_clients_have_the_mean_and_variance_of_a_sample() -> None:
    groups = [(0.02, 3_000), (0.3, 5_000), (0.5, 2_000)]
    found = drawn_counts(groups, draws=1_000)
    counts = found.first + np.arange(len(found.masses))
    mean = float(found.masses @ counts)
    share = sum(chance * size for chance, size in groups) / 10_000
    assert (found.masses.sum(), mean) == pytest.approx((1.0, 1_000 * share))
    # Of two clients both are counted less often than of two independent draws, as they are two.
    squares = sum(chance**2 * size for chance, size in groups)
    both = ((10_000 * share) ** 2 - squares) / (10_000 * 9_999)
    variance = 1_000 * share + 1_000 * 999 * both - mean**2
    assert float(found.masses @ (counts - mean) ** 2) == pytest.approx(variance)


def test_fair_signs_of_a_random_number_are_added_up() -> None:
    numbers = CountMasses(first=7, masses=np.array([0.2, 0.0, 0.5, 0.3]))
    law = np.zeros(21)
    for number, mass in zip((7, 9, 10), (0.2, 0.5, 0.3), strict=True):
        for ups in range(number + 1):
            law[10 + 2 * ups - number] += mass * math.comb(number, ups) / 2**number
    assert signed_counts(numbers).on(-10, 21) == pytest.approx(law, rel=1e-12)
    many = CountMasses(first=40_000, masses=stats.binom.pmf(np.arange(2_000), 2_000, 0.5))
    found = signed_counts(many)
    sums = found.first + np.arange(len(found.masses))
    assert (found.masses @ sums, found.masses @ sums**2.0) == pytest.approx((0.0, 41_000.0), abs=1e-6)
