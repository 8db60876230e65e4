"""Rényi bounds on one shuffle: the theorems as printed, their known values, real shuffles."""

import math

import mpmath
import numpy as np
import pytest

from shuffle_plugins.accounting.published import divergences

SPOTS = {  # n = 10⁶, ε0 = 0.5: order → first bound, second bound (both at c = 1/2), lower bound
    2: (8.417e-7, 5.551e-6, 2.553e-7),
    8: (3.418e-6, 1.269e-5, 1.021e-6),
    32: (1.450e-5, 4.584e-5, 4.084e-6),
}


def first_as_printed(order: int, local_epsilon: float, n: int, split: float) -> float:
    with mpmath.workdps(50):
        e = mpmath.exp(local_epsilon)
        clones_kept = mpmath.floor((1 - mpmath.mpf(split)) * (n - 1) / e) + 1
        total = 1 + mpmath.binomial(order, 2) * (e - 1) ** 2 / (clones_kept * e)
        for i in range(3, order + 1):
            y = (e**2 - 1) ** 2 / (2 * clones_kept * e**2)
            total += (
                mpmath.binomial(order, i) * i * mpmath.gamma(mpmath.mpf(i) / 2) * y ** (mpmath.mpf(i) / 2)
            )
        total += mpmath.exp(local_epsilon * order - mpmath.mpf(split) ** 2 * (n - 1) / (2 * e))
        return float(mpmath.log(total) / (order - 1))


@pytest.mark.parametrize("order", SPOTS)
def test_known_values(order: int) -> None:
    question = {"orders": [order], "local_epsilon": 0.5, "cohort": 10**6}
    first, second, lower = SPOTS[order]
    assert divergences.first_shuffle_rdp(**question, split=0.5)[0] == pytest.approx(first, rel=5e-4)
    assert divergences.second_shuffle_rdp(**question, split=0.5)[0] == pytest.approx(second, rel=5e-4)
    assert divergences.subsampled_rdp_lower_bound(**question)[0] == pytest.approx(lower, rel=5e-4)
    if order < 32:
        corollary = {2: 1.683e-6, 8: 6.733e-6}[order]
        assert divergences.shuffle_rdp_corollary(**question)[0] == pytest.approx(corollary, rel=5e-4)


@pytest.mark.parametrize("split", [0.5, 0.03, 0.9])
@pytest.mark.parametrize(
    ("order", "local_epsilon", "n"), [(2, 0.5, 10**4), (3, 2.0, 50), (40, 1.0, 10**5), (300, 0.1, 10**4)]
)
def test_first_bound_as_printed(order: int, local_epsilon: float, n: int, split: float) -> None:
    value = divergences.first_shuffle_rdp(orders=[order], local_epsilon=local_epsilon, cohort=n, split=split)[
        0
    ]
    exact = first_as_printed(order, local_epsilon, n, split)
    assert exact <= value <= exact * (1 + 2e-8)


def test_a_long_sum_is_cut_from_above() -> None:
    """At order 3000 most terms are left out, and bounded."""
    exact = first_as_printed(3_000, 0.1, 10**7, 0.01)
    value = divergences.first_shuffle_rdp(orders=[3_000], local_epsilon=0.1, cohort=10**7, split=0.01)[0]
    assert exact <= value <= exact * (1 + 2e-8)


def test_the_best_split_is_never_worse_than_the_papers() -> None:
    orders = np.array([2, 3, 10, 64, 500])
    for local_epsilon in (0.01, 0.5, 2.0, 6.0):
        for n in (1, 10, 10**4, 10**7):
            question = {"orders": orders, "local_epsilon": local_epsilon, "cohort": n}
            lower = divergences.subsampled_rdp_lower_bound(**question)
            for bound in (divergences.first_shuffle_rdp, divergences.second_shuffle_rdp):
                best, paper = bound(**question), bound(**question, split=0.5)
                assert np.all(best <= paper * (1 + 1e-12))
                assert np.all(best >= lower)
    question = {"orders": [10], "local_epsilon": 0.5, "cohort": 10**9}
    ratio = divergences.first_shuffle_rdp(**question, split=0.5) / divergences.first_shuffle_rdp(**question)
    assert ratio == pytest.approx(2, rel=0.01), "Remark 5.3.3: a factor of 2 in the limit"


def test_between_whole_orders_the_moments_chord_bounds() -> None:
    question = {"local_epsilon": 1.0, "cohort": 10**4}
    whole = divergences.first_shuffle_rdp(orders=[1.5, 2, 2.25, 3, 1.000001], **question)
    assert whole[0] * 0.5 == pytest.approx(0.5 * whole[1], rel=1e-9)
    assert whole[2] * 1.25 == pytest.approx(0.75 * whole[1] + 0.25 * 2 * whole[3], rel=1e-9)
    assert whole[4] == pytest.approx(whole[1], rel=1e-6)


def test_the_corollary_has_a_regime() -> None:
    edge = (10**6 / 9 * math.exp(-2.5)) ** 0.25
    question = {"local_epsilon": 0.5, "cohort": 10**6}
    inside = [math.floor(edge)]
    assert divergences.shuffle_rdp_corollary(orders=inside, **question) >= divergences.first_shuffle_rdp(
        orders=inside, split=0.5, **question
    )
    with pytest.raises(ValueError, match=r"Corollary 5\.3\.1 needs"):
        divergences.shuffle_rdp_corollary(orders=[math.ceil(edge)], **question)
    with pytest.raises(ValueError, match="whole orders"):
        divergences.shuffle_rdp_corollary(orders=[2.5], **question)
