r"""Erlingsson, Feldman, Mironov, Raghunathan, Talwar, Thakurta 2019, "Amplification by Shuffling" (SODA).

ε0-LDP randomizers chosen adaptively along a uniform permutation; replace-one neighbours. Its argument: given
the reports so far, the differing record is next with a small probability, so every step is pure-DP with
ε1 = 2e^2ε0(e^ε0 − 1)/n, and the n steps compose.
"""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from shuffle_plugins.accounting.published.arguments import Vector, check_reports, real_orders
from shuffle_plugins.accounting.published.rounds import compose_points, compose_renyi

_LARGEST_LOCAL_EPSILON = 100.0
_FEWEST_REPORTS = 1000


def closed_form(*, local_epsilon: float, num_reports: int, delta: float) -> float:
    r"""ε of one shuffle: Theorem 7, ε = 12·ε0·√(log(1/δ)/n).

    12 times the binary blanket pair's ε at ε0 = 0.5 and n = 10⁴…10⁶, 15 times at ε0 = 0.1.

    Args:
        local_epsilon: ε0 in (0, 1/2], nats.
        num_reports: n ≥ 1000.
        delta: in (0, 1/100].

    Returns:
        ε in nats for replace-one neighbours. It may exceed ε0.

    Raises:
        ValueError: outside the ranges in which the theorem is stated.
    """
    if not 0 < local_epsilon <= 0.5:
        raise ValueError(f"Theorem 7 needs local_epsilon in (0, 1/2], got {local_epsilon!r}")
    if num_reports < _FEWEST_REPORTS:
        raise ValueError(f"Theorem 7 needs at least {_FEWEST_REPORTS} reports, got {num_reports!r}")
    if not 0 < delta <= 0.01:
        raise ValueError(f"Theorem 7 needs delta in (0, 1/100], got {delta!r}")
    return 12 * local_epsilon * math.sqrt(math.log(1 / delta) / num_reports)


def rdp(*, orders: ArrayLike, local_epsilon: float, num_reports: int) -> Vector:
    r"""Rényi divergence of one shuffle at most: Remark 1, ε(α) = 2·α·e^4ε0·(e^ε0 − 1)²/n.

    At small divergences 2(e^ε0 + 1)·e^4ε0 times the binary blanket pair's.

    Args:
        orders: real α > 1, shape (m,).
        local_epsilon: ε0 in (0, 100], nats.
        num_reports: n ≥ 1.

    Returns:
        Divergences in nats for replace-one neighbours, shape (m,). Not capped at ε0.

    Raises:
        ValueError: if an argument is out of range.
    """
    alpha = real_orders(orders)
    if not 0 < local_epsilon <= _LARGEST_LOCAL_EPSILON:
        raise ValueError(f"local_epsilon must be in (0, {_LARGEST_LOCAL_EPSILON:g}], got {local_epsilon!r}")
    check_reports(num_reports)
    return 2 * alpha * math.exp(4 * local_epsilon) * math.expm1(local_epsilon) ** 2 / num_reports


def epsilon(*, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float) -> float:
    """Theorem 7 on the cohort, amplified by k-of-n sampling, composed over T rounds by strong composition.

    Args:
        local_epsilon: ε0 in (0, 1/2], nats.
        population: n.
        cohort: k, at least 1000 and at most n.
        num_steps: T ≥ 1.
        delta: total δ in (0, 1).

    Returns:
        ε in nats for replace-one neighbours, never above T·ε0.

    Raises:
        ValueError: if an argument is out of range or outside the regime of :func:`closed_form`.
    """

    def shuffled(shuffle_delta: float) -> float:
        # a bound at a smaller δ is one at a larger δ
        return closed_form(local_epsilon=local_epsilon, num_reports=cohort, delta=min(shuffle_delta, 0.01))

    return compose_points(
        shuffled=shuffled,
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        num_steps=num_steps,
        delta=delta,
    )


def rdp_epsilon(*, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float) -> float:
    """ε of T rounds: Remark 1 on the cohort, sampling by Wang–Balle–Kasiviswanathan, sum, conversion.

    Args:
        local_epsilon: ε0 in (0, 100], nats.
        population: n.
        cohort: k ≤ n.
        num_steps: T ≥ 1.
        delta: in (0, 1).

    Returns:
        ε in nats for replace-one neighbours, never above T·ε0.

    Raises:
        ValueError: if an argument is out of range.
    """
    return compose_renyi(
        curve=lambda orders: rdp(orders=orders, local_epsilon=local_epsilon, num_reports=cohort),
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        num_steps=num_steps,
        delta=delta,
    )
