"""The blanket's two inequalities: their ingredients and results against exact laws."""

import math
from functools import partial

import numpy as np
import pytest
from brute_force import extreme_channel, hockey_stick, k_ary_response, neighbours, shuffled_law

from shuffle_plugins.accounting.published import shuffles

SETTINGS = [(0.5, 10**4, 1e-6), (1, 10**4, 1e-6), (2, 10**4, 1e-6), (1, 10**6, 1e-8), (2, 10**6, 1e-8)]
TABLE = [  # values of the authors' own code, at SETTINGS
    ("generic", shuffles.hoeffding, [0.05400, 0.16663, 1.0171, 0.01844, 0.10032]),
    ("generic", shuffles.bennett, [0.09065, 0.16617, 0.51750, 0.01813, 0.05205]),
    ("10-ary", shuffles.bennett, [0.010423, 0.028040, 0.094980, 0.003131, 0.010391]),
    ("laplace", shuffles.bennett, [0.020148, 0.045018, 0.112056, 0.005020, 0.012252]),
]


def randomizer(name: str, local_epsilon: float) -> shuffles.VariableAt:
    if name == "10-ary":
        return partial(shuffles.k_ary_response_variable, local_epsilon=local_epsilon, categories=10)
    return partial(
        shuffles.laplace_variable if name == "laplace" else shuffles.generic_variable,
        local_epsilon=local_epsilon,
    )


@pytest.mark.parametrize(("name", "inequality", "expected"), TABLE)
def test_values_of_the_authors_code(
    name: str, inequality: shuffles.Inequality, expected: list[float]
) -> None:
    for (local_epsilon, n, delta), value in zip(SETTINGS, expected, strict=True):
        found = shuffles.blanket_bound(
            inequality=inequality,
            variable_at=randomizer(name, local_epsilon),
            local_epsilon=local_epsilon,
            cohort=n,
            delta=delta,
        )
        assert found == pytest.approx(value, rel=5e-4)


def amplification_law(
    channel: np.ndarray, one: int, two: int, epsilon: float
) -> tuple[float, np.ndarray, np.ndarray]:
    """γ, the values of L and their probabilities, by definition."""
    blanket = channel.min(axis=0)
    keep = blanket > 0
    gamma = float(blanket.sum())
    weights = (channel[one] - math.exp(epsilon) * channel[two])[keep] / blanket[keep]
    return gamma, gamma * weights, blanket[keep] / gamma


@pytest.mark.parametrize("categories", [2, 3, 7])
def test_k_ary_ingredients_are_exact(categories: int) -> None:
    local_epsilon, epsilon = 1.4, 0.6
    gamma, values, mass = amplification_law(k_ary_response(local_epsilon, categories), 0, 1, epsilon)
    found = shuffles.k_ary_response_variable(epsilon, local_epsilon=local_epsilon, categories=categories)
    assert found.blanket == pytest.approx(gamma)
    assert (mass * values).sum() == pytest.approx(-found.deficit)
    assert found.largest == pytest.approx(values.max())
    assert found.spread == pytest.approx(values.max() - values.min())
    assert found.second_moment == pytest.approx((mass * values**2).sum())


@pytest.mark.parametrize("inequality", [shuffles.hoeffding, shuffles.bennett])
@pytest.mark.parametrize(("local_epsilon", "n"), [(0.4, 3), (1.5, 5)])
def test_generic_bounds_cover_random_channels(
    inequality: shuffles.Inequality, local_epsilon: float, n: int
) -> None:
    rng = np.random.default_rng(9)
    channels = [extreme_channel(rng, local_epsilon=local_epsilon, records=3, outputs=3) for _ in range(12)]
    for channel in channels:
        for one, two in neighbours(3, n):
            first, second = shuffled_law(channel, one), shuffled_law(channel, two)
            for fraction in (0.1, 0.5, 0.9):
                epsilon = fraction * local_epsilon
                log_delta = inequality(shuffles.generic_variable(epsilon, local_epsilon=local_epsilon), n)
                assert hockey_stick(first, second, epsilon) <= math.exp(min(log_delta, 0.0)) + 1e-12
