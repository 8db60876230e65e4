import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from brute_force import hockey_stick, k_ary_response, neighbours, shuffled_law
from scipy.special import gammaln, xlogy

from shuffle_plugins.accounting.pairs.noise import delta_of_gaussian
from shuffle_plugins.accounting.published import shuffles
from shuffle_plugins.accounting.published.catalogue import (
    amplify_by_sampling,
    strong_composition,
)


def exact_homogeneous_composition(epsilon: float, rounds: int, delta: float) -> float:
    """The best ε for T pure ε-DP steps at δ (Theorem 3.3 of the same paper), by exact sums."""
    e = Fraction(math.exp(epsilon))
    for i in reversed(range(rounds // 2 + 1)):
        spent = (
            sum(math.comb(rounds, j) * (e ** (rounds - j) - e ** (rounds - 2 * i + j)) for j in range(i))
            / (1 + e) ** rounds
        )
        if spent <= delta:
            return (rounds - 2 * i) * epsilon
    raise AssertionError("i = 0 spends nothing")


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_strong_composition_lies_above_the_exact_optimum(epsilon: float, delta: float) -> None:
    for rounds in (1, 10, 100):
        strong = strong_composition(epsilon=epsilon, num_steps=rounds, delta_slack=delta)
        exact = exact_homogeneous_composition(epsilon, rounds, delta)
        assert exact - 1e-12 <= strong <= rounds * epsilon
    assert strong < 2 * exact + 4 * epsilon


def test_sampling_amplification() -> None:
    for epsilon in (1e-9, 0.5, 0.999, 1.0, 3.0):
        amplified, delta = amplify_by_sampling(epsilon=epsilon, delta=1e-5, sampling_rate=0.1)
        assert amplified == pytest.approx(math.log1p(0.1 * math.expm1(epsilon)), rel=1e-12)
        assert delta == pytest.approx(1e-6)
    assert amplify_by_sampling(epsilon=2.0, delta=1e-5, sampling_rate=1.0) == (2.0, 1e-5)
    assert math.isfinite(amplify_by_sampling(epsilon=5_000.0, delta=0.0, sampling_rate=0.1)[0])
    for bad in ({"epsilon": -1.0}, {"delta": 2.0}, {"sampling_rate": 0.0}, {"sampling_rate": 1.1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            amplify_by_sampling(**({"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1} | bad))


def multinomial(trials: int, *probabilities: float) -> tuple[np.ndarray, np.ndarray]:
    """All counts of the first categories (the last takes the rest) and their masses."""
    free = len(probabilities) - 1
    grid = np.stack(np.meshgrid(*[np.arange(trials + 1)] * free, indexing="ij"), axis=-1).reshape(-1, free)
    grid = grid[grid.sum(axis=1) <= trials]
    rest = trials - grid.sum(axis=1)
    log_mass = gammaln(trials + 1) - gammaln(grid + 1).sum(axis=1) - gammaln(rest + 1)
    log_mass = log_mass + xlogy(grid, np.array(probabilities[:-1])).sum(axis=1)
    return grid, np.exp(log_mass + xlogy(rest, probabilities[-1]))


@pytest.mark.parametrize(("distance", "shared", "n", "delta"), [(0.4, 0.3, 100, 0.1), (1.0, 1 / 3, 90, 0.05)])
def test_theorem_4_1_covers_its_multinomial_pair(
    distance: float, shared: float, n: int, delta: float
) -> None:
    """P = a·Q1 + (1 − a)·Q2 among n − 1 reports that hold each of Q1, Q1', Q2 with probability p."""
    rest = max(1 - 3 * shared, 0.0)
    counts, mass = multinomial(n, shared, shared, shared, rest)
    # against n independent draws a report of part i weighs count_i/(n·p)
    first, second, common = (counts / (n * shared)).T
    p = mass * (distance * first + (1 - distance) * common)
    q = mass * (distance * second + (1 - distance) * common)
    assert p.sum() == pytest.approx(1, rel=1e-9)
    epsilon = shuffles.specific_randomizer(distance=distance, shared=shared, cohort=n, delta=delta)
    assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= delta


def test_corollary_4_2_as_printed() -> None:
    e0, k, n, delta = 1.3, 10, 10**5, 1e-7
    e = math.exp(e0)
    spread = 4 * math.sqrt(2 * (k + 1) * math.log(4 / delta) / ((e + k - 1) * k * n)) + 4 * (k + 1) / (k * n)
    value = shuffles.k_ary_response_bound(local_epsilon=e0, categories=k, cohort=n, delta=delta)
    assert value == pytest.approx(math.log(1 + (e - 1) * spread), rel=1e-12)


@pytest.mark.parametrize(("local_epsilon", "n"), [(0.8, 3), (2.0, 4)])
def test_theorem_3_8_covers_leaky_channels(local_epsilon: float, n: int) -> None:
    """Randomizers that, beyond ε0, give their record away with probability δ0."""
    leak = 0.01
    pair = shuffles.clone_pair(local_epsilon=local_epsilon, cohort=n)
    channel = (1 - leak) * np.hstack([k_ary_response(local_epsilon, 3), np.zeros((3, 3))])
    channel[:, 3:] = leak * np.eye(3)
    for one, two in neighbours(3, n):
        first, second = shuffled_law(channel, one), shuffled_law(channel, two)
        for epsilon in np.linspace(0, local_epsilon, 5):
            cost = shuffles.local_delta_cost(
                local_epsilon=local_epsilon, local_delta=leak, cohort=n, epsilon=float(epsilon)
            )
            exact = hockey_stick(first, second, float(epsilon))
            assert 0 < exact <= pair.delta(float(epsilon))[1] + cost


def test_theorem_3_8_as_printed() -> None:
    cost = (math.exp(0.3) + 1) * (1 + math.exp(-1.0) / 2) * 10**5 * 1e-13
    asked = {"local_epsilon": 1.0, "cohort": 10**5, "epsilon": 0.3}
    assert cost < shuffles.local_delta_cost(**asked, local_delta=1e-13) < cost * (1 + 2e-9)
    assert shuffles.local_delta_cost(**asked, local_delta=0.0) == 0


@pytest.mark.parametrize(("local_epsilon", "n"), [(0.3, 5), (1.0, 40), (3.0, 12)])
def test_binary_response_lower_is_what_enumeration_finds(local_epsilon: float, n: int) -> None:
    channel = k_ary_response(local_epsilon, 2)
    first, second = shuffled_law(channel, [0] * n), shuffled_law(channel, [1, *[0] * (n - 1)])
    for delta in (1e-6, 1e-3, 0.05):
        lower = shuffles.binary_response_lower(local_epsilon=local_epsilon, cohort=n, delta=delta)
        for epsilon, exceeds in ((lower * (1 - 1e-6), True), (lower * (1 + 1e-6) + 1e-12, False)):
            spent = max(hockey_stick(first, second, epsilon), hockey_stick(second, first, epsilon))
            assert (spent > delta) is exceeds or lower in (0.0, local_epsilon)


@pytest.mark.parametrize("noise_multiplier", [0.5, 2.0, 10.0])
def test_the_delta_of_a_step_is_rounded_up(noise_multiplier: float) -> None:
    for epsilon in (0.05, 0.7, 3.0):
        with mpmath.workdps(40):
            mu = 2 / mpmath.mpf(noise_multiplier)
            exact = mpmath.ncdf(mu / 2 - epsilon / mu)
            exact = float(exact - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu))
        found = delta_of_gaussian(epsilon, mu=2 / noise_multiplier)[1]
        assert exact <= found <= exact * (1 + 3e-9) + 1e-300
