"""Groups of binomial counts, listed and integrated, against the law itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from shuffle_plugins.accounting.numerics import sums
from shuffle_plugins.accounting.numerics.sums import bernstein_reach, binomial_between, window_ends

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


@pytest.mark.parametrize("most_listed", [1 << 20, 0], ids=["listed", "integrated"])
@pytest.mark.parametrize(("trials", "probability", "step"), WIDE)
def test_groups_have_the_masses_of_their_counts(
    monkeypatch: pytest.MonkeyPatch, trials: int, probability: float, step: int, most_listed: int
) -> None:
    monkeypatch.setattr(sums, "MOST_LISTED", most_listed)
    low, high = window_ends(trials, probability)
    edges = np.append(low + step * np.arange((high - low) // step + 1), high + 1)
    mass = binomial_between(trials, probability, edges=edges)
    groups = len(edges) - 2  # the last one is smaller
    counts = low + np.arange(step * groups)
    exact = stats.binom.pmf(counts, trials, probability).reshape(groups, step).sum(axis=1)
    inside, near = exact > 1e-20, exact > 1e-3 * exact.max()
    np.testing.assert_allclose(mass[:-1][inside], exact[inside], rtol=1e-7)
    np.testing.assert_allclose(mass[:-1][near], exact[near], rtol=2e-9)
    assert mass.sum() == pytest.approx(1, abs=1e-13)
