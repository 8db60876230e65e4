"""Groups of binomial counts, listed and integrated, against the law itself."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from shuffle_plugins.accounting.numerics import binomial
from shuffle_plugins.accounting.numerics.binomial import (
    bernstein_reach,
    binomial_between,
    binomial_groups,
    fair_groups,
    window_ends,
)

WIDE = [(10**8, 0.3, 700), (10**10, 0.998, 700), (10**11, 2e-4, 700)]
"""Laws of so many trials that sums over a group's counts are integrals to ten digits; counts in a group."""


@pytest.mark.parametrize(("trials", "probability"), [(1, 0.5), (50, 0.01), (10**4, 0.3), (10**6, 1e-5)])
def test_next_to_nothing_lies_outside_of_the_window(trials: int, probability: float) -> None:
    low, high = window_ends(trials, probability)
    law = stats.binom(trials, probability)
    assert law.cdf(low - 1) + law.sf(high) <= 1e-30
    mean, variance = trials * probability, trials * probability * (1 - probability)
    assert high - low <= 2 * float(bernstein_reach(variance)) + 2
    assert low <= mean <= high
    # Bernstein: 2·exp(−t²/(2·(σ² + t/3))) is 1e-30 there.
    reach = float(bernstein_reach(variance))
    assert math.log(2) - reach**2 / (2 * (variance + reach / 3)) == pytest.approx(math.log(1e-30))


def test_windows_of_laws_without_chance_are_one_count() -> None:
    assert window_ends(0, 0.5) == window_ends(9, 0.0) == (0, 0)
    assert window_ends(9, 1.0) == (9, 9)


def exact_groups(trials: int, probability: float, first: int, step: int, groups: int) -> list[np.ndarray]:
    counts = first + np.arange(step * groups)
    mass = stats.binom.pmf(counts, trials, probability).reshape(groups, step)
    return [mass.sum(axis=1), (mass * np.arange(step)).sum(axis=1)]


@pytest.mark.parametrize("most_listed", [1 << 20, 0], ids=["listed", "integrated"])
@pytest.mark.parametrize(("trials", "probability", "step"), WIDE)
def test_groups_have_the_masses_and_means_of_their_counts(
    monkeypatch: pytest.MonkeyPatch, trials: int, probability: float, step: int, most_listed: int
) -> None:
    monkeypatch.setattr(binomial, "MOST_LISTED", most_listed)
    low, high = window_ends(trials, probability)
    first = low - 3
    groups = (high - first) // step + 1
    mass, moment = binomial_groups(trials, probability, first=first, step=step, groups=groups)
    exact, exact_moment = exact_groups(trials, probability, first, step, groups)
    inside = exact > 1e-20
    np.testing.assert_allclose(mass[inside], exact[inside], rtol=1e-7)
    np.testing.assert_allclose(moment[inside], exact_moment[inside], rtol=1e-6)
    near = exact > 1e-3 * exact.max()
    np.testing.assert_allclose(mass[near], exact[near], rtol=2e-9)
    np.testing.assert_allclose(moment[near], exact_moment[near], rtol=2e-9)
    assert mass.sum() == pytest.approx(1, abs=1e-13)
    edges = np.append(first + 3 + step * np.arange((high - low) // step + 1), high + 1)
    between = binomial_between(trials, probability, edges=edges)
    law = stats.binom(trials, probability)
    middle = len(edges) // 2
    within = law.cdf(edges[middle] - 1) - law.cdf(edges[middle - 1] - 1)
    assert between[middle - 1] == pytest.approx(within, rel=1e-7)
    assert between.sum() == pytest.approx(1, abs=1e-13)


def test_a_law_within_one_group_keeps_its_mean() -> None:
    trials, probability = 1_000, 1e-6
    low, high = window_ends(trials, probability)
    assert low == 0
    assert high > 0
    mass, moment = binomial_groups(trials, probability, first=0, step=high + 1, groups=2)
    assert mass.tolist() == [1.0, 0.0]
    assert moment.tolist() == pytest.approx([trials * probability, 0.0])
    mass, moment = binomial_groups(trials, probability, first=-(high + 2), step=high + 2, groups=2)
    assert mass.tolist() == [0.0, 1.0]
    assert moment.tolist() == pytest.approx([0.0, trials * probability])
    mass, moment = binomial_groups(trials, probability, first=-5, step=high + 6, groups=1)
    assert (mass.tolist(), moment.tolist()) == ([1.0], pytest.approx([5 + trials * probability]))
    for step in (high, 2):  # two groups, or more: listed
        groups = high // step + 1
        mass, moment = binomial_groups(trials, probability, first=0, step=step, groups=groups)
        exact, exact_moment = exact_groups(trials, probability, 0, step, groups)
        np.testing.assert_allclose(mass, exact, rtol=1e-9, atol=1e-35)
        np.testing.assert_allclose(moment, exact_moment, rtol=1e-9, atol=1e-35)


def test_heads_of_fair_coins_above_their_mean() -> None:
    trials, step, groups = 10**8, 600, 30
    at_half, mass, moment = fair_groups(trials, step=step, groups=groups)
    with mpmath.workdps(40):
        half = mpmath.loggamma(trials + 1) - 2 * mpmath.loggamma(trials // 2 + 1) - trials * mpmath.log(2)
        assert at_half == pytest.approx(float(mpmath.exp(half)), rel=1e-10, abs=0)
    exact, exact_moment = exact_groups(trials, 0.5, trials // 2 + 1, step, groups)
    np.testing.assert_allclose(mass, exact, rtol=1e-7)
    np.testing.assert_allclose(moment, exact_moment, rtol=1e-7)
