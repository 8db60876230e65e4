import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from shuffle_plugins.accounting.composition.renyi import epsilon_from_rdp
from shuffle_plugins.accounting.published import divergences
from shuffle_plugins.accounting.published.catalogue import published_bound

REFERENCE = [
    (1_000_000, 1_000, 2.0, 100_000, 1e-8, 1.0402),
    (1_000_000, 1_000, 1.0, 100_000, 1e-8, 0.2538),
    (60_000, 10_000, 1.5, 1_200, 1e-5, 3.0859),
]
SETTINGS = [  # order, ε0, n, k
    (2, 2.0, 1_000, 100),
    (3, 0.5, 1_000_000, 50),
    (40, 1.0, 500, 200),
    (100, 3.0, 100, 100),
    (5, 1e-3, 100_000, 100),
    (64, 1.0, 20, 1),
    (7, 6.0, 1, 1),
]


def exact_ratio_moment(order: int, epsilon: float, population: int, cohort: int) -> Fraction:
    """E[(dM(D')/dM(D))^λ] of binary RR with everybody else at 0, summed in exact arithmetic."""
    e = Fraction(math.exp(epsilon))
    p = 1 / (e + 1)
    gamma = Fraction(cohort, population)
    return sum(
        math.comb(cohort, h)
        * p**h
        * (1 - p) ** (cohort - h)
        * ((1 - gamma) + gamma * (e * h + (cohort - h) / e) / cohort) ** order
        for h in range(cohort + 1)
    )


def log1p_of_fraction(x: Fraction) -> float:
    return math.log1p(x.numerator / x.denominator)


@pytest.mark.parametrize(("n", "k", "e0", "rounds", "delta", "expected"), REFERENCE)
def test_the_order_grid_finds_the_best_whole_order(
    n: int, k: int, e0: float, rounds: int, delta: float, expected: float
) -> None:
    orders = np.arange(2, 600)
    rdp = rounds * divergences.subsampled_rdp_bound(orders=orders, local_epsilon=e0, population=n, cohort=k)
    best, order = epsilon_from_rdp(orders=orders, rdp=rdp, delta=delta)
    assert order < 599
    epsilon = published_bound("subsampled shuffle RDP, published").epsilon(
        local_epsilon=e0, population=n, cohort=k, num_steps=rounds, delta=delta
    )
    assert epsilon == pytest.approx(best, rel=1e-12)
    assert epsilon == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("order", "e0", "n", "k"), SETTINGS)
def test_theorem_2_is_the_exact_divergence_of_binary_rr(order: int, e0: float, n: int, k: int) -> None:
    exact = log1p_of_fraction(exact_ratio_moment(order, e0, n, k) - 1) / (order - 1)
    value = divergences.subsampled_rdp_lower_bound(orders=[order], local_epsilon=e0, population=n, cohort=k)[
        0
    ]
    assert value == pytest.approx(exact, rel=1e-8)
    assert value <= exact


@pytest.mark.parametrize("population", [10**8, 10**12, 10**15])
def test_theorem_2_keeps_its_digits_where_next_to_nobody_is_drawn(population: int) -> None:
    """Then no report moves a likelihood by more than 1e-5, or by 1e-14."""
    value = divergences.subsampled_rdp_lower_bound(
        orders=[2], local_epsilon=1.0, population=population, cohort=1_000
    )[0]
    exact = math.log1p((1_000 / population) ** 2 * (math.e - 1) ** 2 / (1_000 * math.e))
    assert exact * (1 - 5e-9) < value <= exact


def test_theorem_4_covers_the_ternary_divergence_of_binary_rr() -> None:
    e0, k = 1.2, 9
    p = 1 / (math.exp(e0) + 1)
    h = np.arange(k + 1)

    def law(ones: int) -> np.ndarray:
        return np.convolve(stats.binom.pmf(np.arange(ones + 1), ones, 1 - p),
                           stats.binom.pmf(np.arange(k - ones + 1), k - ones, p))  # fmt: skip

    for ones in range(k):
        base, moved = law(ones), law(ones + 1)
        for alpha in (2, 2.5, 3, 6):
            divergence = max(np.sum(r[h] * np.abs((moved - base)[h] / r[h]) ** alpha) for r in (base, moved))
            bound = divergences.log_ternary_chi(orders=[alpha], local_epsilon=e0, cohort=k)[0]
            assert math.log(divergence) <= bound
