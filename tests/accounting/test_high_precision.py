"""Selected answers against fifty-digit arithmetic, straight from the pairs' definitions."""

from __future__ import annotations

import itertools

import mpmath
import pytest
from histories import accountant_of

from shuffle_plugins.accounting import ShuffleRound, pair_epsilon_interval

DIGITS = 50


def slot_law(local_epsilon: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """e^ε0, and the probability of either kind of differing slot."""
    e = mpmath.exp(mpmath.mpf(local_epsilon))
    return e, 1 / (e + 1)


def outcomes(local_epsilon: float, population: int, cohort: int) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """P and Q masses of the generic pair, over the numbers of slots for either record."""
    e, p = slot_law(local_epsilon)
    rest = 1 - 2 * p
    rate = mpmath.mpf(cohort) / population
    found = []
    for a in range(cohort + 1):
        for b in range(cohort + 1 - a):
            ways = mpmath.binomial(cohort, a) * mpmath.binomial(cohort - a, b)
            mass = ways * p ** (a + b) * rest ** (cohort - a - b)
            found.append(
                (
                    mass * (1 - rate + rate * (e * a + b) / cohort),
                    mass * (1 - rate + rate * (a + e * b) / cohort),
                )
            )
    return found


def exact_delta(pairs: list[list[tuple[mpmath.mpf, mpmath.mpf]]], epsilon: float) -> mpmath.mpf:
    """Σ (∏p − e^ε ∏q)₊ over all combinations of outcomes."""
    total, factor = mpmath.mpf(0), mpmath.exp(mpmath.mpf(epsilon))
    for combination in itertools.product(*pairs):
        p = mpmath.fprod(outcome[0] for outcome in combination)
        q = mpmath.fprod(outcome[1] for outcome in combination)
        total += max(mpmath.mpf(0), p - factor * q)
    return total


@pytest.mark.parametrize(
    ("local_epsilon", "population", "cohort", "steps", "epsilon"),
    [
        (1.0, 60, 60, 1, 0.2),
        (1.0, 60, 60, 1, 0.8),
        (3.0, 40, 40, 1, 2.5),
        (0.01, 50, 50, 1, 0.003),
        (8.0, 30, 30, 1, 5.0),
        (2.0, 1_000_000, 40, 1, 1e-5),
        (2.0, 90, 30, 1, 0.5),
        (1.0, 5, 3, 3, 0.4),
        (2.0, 4, 4, 3, 1.0),
        (0.5, 6, 6, 2, 0.6),
    ],
)
def test_delta_is_bracketed_and_the_bracket_is_narrow(
    local_epsilon: float, population: int, cohort: int, steps: int, epsilon: float
) -> None:
    with mpmath.workdps(DIGITS):
        exact = exact_delta([outcomes(local_epsilon, population, cohort)] * steps, epsilon)
    accountant = accountant_of(
        (ShuffleRound(local_epsilon=local_epsilon, population=population, cohort=cohort), steps)
    )
    upper = accountant.delta(epsilon).upper
    assert float(exact) <= upper
    assert upper <= float(exact) * (1 + 1e-3) + 1e-27
    low, high = pair_epsilon_interval(accountant, float(exact))
    assert low <= epsilon <= high
    assert high - low <= 5e-3 * epsilon
