r"""Balle, Kairouz, McMahan, Thakkar, Thakurta 2020, "Privacy Amplification via Random Check-Ins".

ε0-LDP randomizers, adaptive from report to report; replace-one neighbours. The argument behind both bounds:
given the reports before step i, the differing client answers there with probability at most qᵢ, so the step
is log(1 + qᵢ(e^ε0 − 1))-DP; Σ qᵢ² is at most e^3ε0/n for a permutation and p0²·e^ε0/m for check-ins, because
qᵢ ≤ 1/(m − (i − 1)(1 − e^−ε0)) there; steps compose by Kairouz, Oh, Viswanath 2015, Theorem 3.5, as

    ε = Σ εᵢ²/2 + √(2·log(1/δ)·Σ εᵢ²).
"""

from __future__ import annotations

import math

from shuffle_plugins.core import checks

_LARGEST_LOCAL_EPSILON = 100.0  # e^3ε0 still fits a double


def check_in_shuffle_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    r"""ε of one shuffle: Theorem 5.1 (replace-one).

        ε = e^3ε0·(e^ε0 − 1)²/(2n) + e^{3ε0/2}·(e^ε0 − 1)·√(2·log(1/δ)/n)

    The bound the clones paper draws as its predecessor: 3.9 times the binary blanket pair's ε at
    ε0 = 0.5, 60 times at ε0 = 2 (n = 10⁶, δ = 10⁻⁸).

    Args:
        local_epsilon: ε0 in (0, 100], nats.

    Returns:
        ε in nats for replace-one neighbours. It may exceed ε0.
    """
    _check(local_epsilon=local_epsilon, slots=cohort, delta=delta, name="cohort")
    spread = math.exp(1.5 * local_epsilon) * math.expm1(local_epsilon) / math.sqrt(cohort)
    return spread**2 / 2 + spread * math.sqrt(2 * math.log(1 / delta))


def check_in_window_bound(
    *, local_epsilon: float, window: int, participation: float = 1.0, delta: float
) -> float:
    r"""ε of random check-ins into a fixed window of m slots: Theorem 3.2 (replace-one).

        ε = p0²·e^ε0·(e^ε0 − 1)²/(2m) + p0·(e^ε0 − 1)·√(2·e^ε0·log(1/δ)/m)

    Every client takes part with probability p0 and picks a uniform slot; each slot uses one of the clients
    that picked it. No shuffler is needed. A protocol of its own: not a bound on a shuffled round.

    Args:
        local_epsilon: ε0 in (0, 100], nats.
        window: m ≥ 1 slots.
        participation: p0 in (0, 1].

    Returns:
        ε in nats for replace-one neighbours, of the whole window.
    """
    _check(local_epsilon=local_epsilon, slots=window, delta=delta, name="window")
    checks.number("participation", participation, above=0, at_most=1)
    spread = participation * math.exp(local_epsilon / 2) * math.expm1(local_epsilon) / math.sqrt(window)
    return spread**2 / 2 + spread * math.sqrt(2 * math.log(1 / delta))


def _check(*, local_epsilon: float, slots: int, delta: float, name: str) -> None:
    checks.number("local_epsilon", local_epsilon, above=0, at_most=_LARGEST_LOCAL_EPSILON)
    checks.whole(name, slots)
    checks.number("delta", delta, above=0, at_most=1)
