"""The printed accounting of DP-AdaPeD: its value, and that it is no bound."""

import math

import numpy as np
from scipy.stats import norm

from shuffle_plugins.accounting.published import thesis

TABLE = {"delta": 1e-4, "rounds": 60, "cohort": 50, "population": 50}


def gaussian_epsilon(loudness: float, delta: float) -> float:
    """Exact ε of a Gaussian mechanism of this sensitivity over deviation (Balle, Wang 2018, Theorem 8)."""
    low, high = 0.0, 1e5
    for _ in range(200):
        middle = (low + high) / 2
        log_second = middle + norm.logcdf(-middle / loudness - loudness / 2)
        spent = norm.cdf(loudness / 2 - middle / loudness) - math.exp(log_second)
        low, high = (middle, high) if spent > delta else (low, middle)
    return high


def test_the_formula_is_the_printed_one() -> None:
    found = thesis.printed_rdp(
        orders=[2.0, 10.0], rounds=7, cohort=20, population=80, global_noise=4.0, dissimilarity_noise=2.0
    )
    per_order = (20 / 80) ** 2 * 6 * 7 * (1 / (20 * 16) + 1 / (20 * 4))
    np.testing.assert_allclose(found, [2 * per_order, 10 * per_order])


def test_the_certified_epsilon_is_above_the_exact_one_of_the_steps_and_close() -> None:
    for noise, psi_noise in ((100.0, math.inf), (30.0, 60.0), (6.5, 6.5)):
        loudness = 2 * math.sqrt(600 * (1 / noise**2 + 1 / psi_noise**2))
        exact = gaussian_epsilon(loudness, 1e-4)
        found = thesis.noisy_steps_epsilon(
            delta=1e-4, steps=600, global_noise=noise, dissimilarity_noise=psi_noise
        )
        assert exact <= found <= 1.1 * exact + 0.05


def test_the_printed_formula_is_below_what_the_average_can_leak() -> None:
    """A client whose clipped gradients all point one way moves the average by 2τC/K: reason one, as numbers.

    Gradients here depend on nothing, so the average of each round is exactly a Gaussian mechanism, of
    sensitivity 2τC/K and deviation √(τ/K)·σ: its exact ε is a lower bound on the algorithm's.
    """
    steps, noise = 10, 6.48
    leaked = gaussian_epsilon(math.sqrt(60) * 2 * math.sqrt(steps / 50) / noise, 1e-4)
    assert thesis.printed_epsilon(**TABLE, global_noise=noise) < 0.9 * leaked
    certified = thesis.noisy_steps_epsilon(delta=1e-4, steps=60 * steps, global_noise=noise)
    assert leaked < certified
