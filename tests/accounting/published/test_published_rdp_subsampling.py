"""Subsampled Rényi theorems: as printed, against exact samples, and where one of them does not apply."""

import math

import mpmath
import numpy as np
import pytest
from brute_force import extreme_channel, k_ary_response, neighbours, shuffled_law

from shuffle_plugins.accounting.published import divergences
from shuffle_plugins.accounting.published.catalogue import compose_renyi, published_bound

CURVE = np.array([0.02, 0.031, 0.055, 0.06, 0.11, 0.12, 0.13])


def renyi(first: dict, second: dict, order: float) -> float:
    return math.log(sum(p**order * second[h] ** (1 - order) for h, p in first.items())) / (order - 1)


@pytest.mark.parametrize("rate", [1e-6, 0.05, 0.7])
def test_poisson_as_printed(rate: float) -> None:
    values = divergences.poisson(orders=[2, 5, 8], rdp=CURVE, sampling_rate=rate)
    for value, order in zip(values, (2, 5, 8), strict=True):
        with mpmath.workdps(50):
            g = mpmath.mpf(rate)
            total = (1 - g) ** (order - 1) * (order * g - g + 1)
            total += mpmath.binomial(order, 2) * g**2 * (1 - g) ** (order - 2) * mpmath.exp(CURVE[0])
            for j in range(3, order + 1):
                term = mpmath.binomial(order, j) * (1 - g) ** (order - j) * g**j
                total += 3 * term * mpmath.exp((j - 1) * CURVE[j - 2])
            exact = float(mpmath.log(total) / (order - 1))
        assert value == pytest.approx(exact, rel=2e-6)


@pytest.mark.parametrize(("local_epsilon", "n", "k"), [(0.5, 4, 2), (2.0, 4, 1), (1.0, 5, 3)])
def test_without_replacement_covers_sampled_shuffles(local_epsilon: float, n: int, k: int) -> None:
    """The channel's own shuffle of k reports, exactly, goes in; its k-of-n sample comes out below."""
    rng = np.random.default_rng(11)
    for _ in range(3):
        channel = extreme_channel(rng, local_epsilon=local_epsilon, records=3, outputs=3)
        whole = np.zeros(5)
        for one, two in neighbours(3, k):
            first, second = shuffled_law(channel, one), shuffled_law(channel, two)
            whole = np.maximum(whole, [renyi(first, second, order) for order in range(2, 7)])
        if whole[0] == 0:
            continue
        bound = divergences.without_replacement(
            orders=np.arange(2, 7), rdp=whole, sampling_rate=k / n, pure_epsilon=local_epsilon
        )
        for one, two in neighbours(3, n):
            first, second = (shuffled_law(channel, data, cohort=k) for data in (one, two))
            exact = [renyi(first, second, order) for order in range(2, 7)]
            assert np.all(exact <= bound + 1e-12)


def test_poisson_does_not_cover_replaced_records() -> None:
    """One client: whether a report came is public, and what it says is not amplified at all."""
    channel, rate = k_ary_response(1.0, 2), 0.05
    curve = [renyi(shuffled_law(channel, [0]), shuffled_law(channel, [1]), order) for order in (2, 3)]
    claimed = divergences.poisson(orders=[2, 3], rdp=curve, sampling_rate=rate)
    first, second = (shuffled_law(channel, [record], rate=rate) for record in (0, 1))
    for bound, order in zip(claimed, (2, 3), strict=True):
        assert renyi(first, second, order) > 5 * bound


def test_headline_of_the_subsampled_paper() -> None:
    """ε0 = 2, k = 1000 of n = 10⁶, T = 10⁵, δ = 10⁻⁸: Theorem 5.3.1 as printed, so sampled, gives 1.02."""
    question = {
        "local_epsilon": 2.0, "population": 10**6, "cohort": 1000, "num_steps": 10**5, "delta": 1e-8,
    }  # fmt: skip
    printed = compose_renyi(
        curve=lambda orders: divergences.first_shuffle_rdp(
            orders=orders, local_epsilon=2.0, cohort=1000, split=0.5
        ),
        **question,
    )
    assert printed == pytest.approx(1.0237, abs=2e-4)
    assert published_bound("shuffle RDP, first bound").epsilon(**question) == pytest.approx(0.942, abs=1e-3)
    assert published_bound("stronger clones, RDP").epsilon(**question) == pytest.approx(0.4566, abs=1e-3)


def test_orders_are_sought_beyond_a_first_local_minimum() -> None:
    """Past some order the unsampled curve takes over from the sampling theorem: ε falls a second time."""
    question = {"local_epsilon": 1.0, "population": 10**7, "cohort": 10**4, "delta": 1e-8}
    values = [
        published_bound("shuffle RDP, Poisson sampling").epsilon(**question, num_steps=rounds)
        for rounds in (1, 60, 100, 1_000)
    ]
    assert values == sorted(values)
    assert values[2] < 0.0055
