"""Strong composition of (ε, δ) guarantees (Kairouz, Oh, Viswanath 2015)."""

from __future__ import annotations

import math


def strong_composition(*, epsilon: float, num_steps: int, delta_slack: float) -> float:
    r"""ε of T adaptively composed (ε, δ)-DP steps, at total δ of 1 − (1 − δ)^T (1 − δ̃) ≤ T·δ + δ̃.

    Theorem 3.4 of the paper: the smallest of

        Tε,   Tε·(e^ε − 1)/(e^ε + 1) + ε·√(2T·log(e + √T·ε/δ̃)),   Tε·(e^ε − 1)/(e^ε + 1) + ε·√(2T·log(1/δ̃)).

    Within a small factor of the best possible for steps of which nothing but (ε, δ) is known; composing the
    steps' Rényi curves or privacy loss distributions is far tighter.

    Args:
        epsilon: ε ≥ 0 of one step, in nats.
        num_steps: T ≥ 0.
        delta_slack: δ̃ in (0, 1), what composition itself may add to δ.

    Raises:
        ValueError: if an argument is out of range.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon!r}")
    if num_steps < 0:
        raise ValueError(f"num_steps must not be negative, got {num_steps!r}")
    if not 0 < delta_slack < 1:
        raise ValueError(f"delta_slack must be in (0, 1), got {delta_slack!r}")
    mean = num_steps * epsilon * math.tanh(epsilon / 2)
    deviation = epsilon * math.sqrt(2 * num_steps)
    logarithm = min(
        math.log(math.e + math.sqrt(num_steps) * epsilon / delta_slack), math.log(1 / delta_slack)
    )
    return min(num_steps * epsilon, mean + deviation * math.sqrt(logarithm))
