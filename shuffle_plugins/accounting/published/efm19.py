r"""Erlingsson, Feldman, Mironov, Raghunathan, Talwar, Thakurta 2019, "Amplification by Shuffling" (SODA).

ε0-LDP randomizers chosen adaptively along a uniform permutation; replace-one neighbours. Its argument: given
the reports so far, the differing record is next with a small probability, so every step is pure-DP with
ε1 = 2e^2ε0(e^ε0 − 1)/n, and the n steps compose.
"""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from shuffle_plugins.accounting.numerics.orders import Vector, real_orders
from shuffle_plugins.core import checks

LARGEST_DELTA = 0.01
"""δ up to which Theorem 7 is stated."""

_LARGEST_LOCAL_EPSILON = 100.0  # e^4ε0·(e^ε0 − 1)² still fits a double
_SMALLEST_COHORT = 1000


def erlingsson_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    r"""ε of one shuffle: Theorem 7, ε = 12·ε0·√(log(1/δ)/n).

    12 times the binary blanket pair's ε at ε0 = 0.5 and n = 10⁴…10⁶, 15 times at ε0 = 0.1.

    Args:
        local_epsilon: ε0 in (0, 1/2], nats.
        cohort: n ≥ 1000.
        delta: in (0, 1/100].

    Returns:
        ε in nats for replace-one neighbours. It may exceed ε0.

    Raises:
        ValueError: outside the ranges in which the theorem is stated.
    """
    if not 0 < local_epsilon <= 0.5:
        raise ValueError(f"Theorem 7 needs local_epsilon in (0, 1/2], got {local_epsilon!r}")
    if cohort < _SMALLEST_COHORT:
        raise ValueError(f"Theorem 7 needs at least {_SMALLEST_COHORT} reports, got {cohort!r}")
    if not 0 < delta <= LARGEST_DELTA:
        raise ValueError(f"Theorem 7 needs delta in (0, 1/100], got {delta!r}")
    return 12 * local_epsilon * math.sqrt(math.log(1 / delta) / cohort)


def erlingsson_rdp(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> Vector:
    r"""Rényi divergence of one shuffle at most: Remark 1, ε(α) = 2·α·e^4ε0·(e^ε0 − 1)²/n.

    At small divergences 2(e^ε0 + 1)·e^4ε0 times the binary blanket pair's.

    Args:
        local_epsilon: ε0 in (0, 100], nats.

    Returns:
        Divergences in nats for replace-one neighbours, shape (m,). Not capped at ε0.
    """
    alpha = real_orders(orders)
    checks.number("local_epsilon", local_epsilon, above=0, at_most=_LARGEST_LOCAL_EPSILON)
    checks.whole("cohort", cohort)
    return 2 * alpha * math.exp(4 * local_epsilon) * math.expm1(local_epsilon) ** 2 / cohort
