"""Privacy amplification by subsampling (Ullman 2017; Balle, Barthe, Gaboardi 2018, Theorem 9)."""

from __future__ import annotations

import math


def amplify_by_sampling(*, epsilon: float, delta: float, sampling_rate: float) -> tuple[float, float]:
    """(ε, δ) of a mechanism run on a uniform k of n records, for replace-one neighbours.

    Tight for a black-box mechanism: ε' = log(1 + γ(e^ε − 1)), δ' = γδ. For one particular mechanism, such as
    a shuffled randomizer, it is loose, because it forgets everything of the mechanism but one point of its
    privacy profile.

    Args:
        epsilon: ε ≥ 0 of the mechanism on the sampled records, in nats.
        delta: its δ, in [0, 1].
        sampling_rate: γ = k/n, in (0, 1].

    Returns:
        The amplified (ε', δ').

    Raises:
        ValueError: if an argument is out of range.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon!r}")
    if not 0 <= delta <= 1:
        raise ValueError(f"delta must be in [0, 1], got {delta!r}")
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"sampling_rate must be in (0, 1], got {sampling_rate!r}")
    # log(1 + γ(e^ε − 1)) = ε + log(γ + (1 − γ)e^−ε), which cannot overflow; small ε takes the other form
    if epsilon < 1:
        amplified = math.log1p(sampling_rate * math.expm1(epsilon))
    else:
        amplified = epsilon + math.log(sampling_rate + (1 - sampling_rate) * math.exp(-epsilon))
    return amplified, sampling_rate * delta
