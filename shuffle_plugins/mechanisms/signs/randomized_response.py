"""Random signs of given expectation, as bits."""

from __future__ import annotations

import math

from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.signs.randomized_response_law import SignThresholds
from shuffle_plugins.randomness import PROBABILITY_BITS, WHOLE, Randomness


def random_signs(values: Tensor, *, thresholds: SignThresholds, randomness: Randomness) -> Tensor:
    """Draw 1 (plus) or 0 (minus) for each value, with E[sign] = gain · value.

    Args:
        values: (clients,), in [-1, 1]; what rounding leaves outside is clamped.
        thresholds: the integer probabilities of the two ends; every draw's probability lies between them.
        randomness: source of the draws.

    Returns:
        uint8 tensor (clients,).
    """
    return randomness.bernoulli(plus_thresholds(values, thresholds=thresholds)).to(torch.uint8)


def plus_thresholds(values: Tensor, *, thresholds: SignThresholds) -> Tensor:
    """Probability of a plus sign at each value of [-1, 1], as an int64 multiple of 2**-62."""
    half_span = (thresholds.high - thresholds.low) / 2
    from_nearer_end = (1 - values.double().abs()).clamp_(0, 1).mul_(half_span).round_().to(torch.int64)
    return torch.where(values < 0, thresholds.low + from_nearer_end, thresholds.high - from_nearer_end)


def sign_log_likelihood(signs: Tensor, values: Tensor, *, thresholds: SignThresholds) -> Tensor:
    """Log-probability, float64, that :func:`random_signs` gives these signs (±1) for these values."""
    plus = plus_thresholds(values, thresholds=thresholds)
    drawn = torch.where(signs > 0, plus, WHOLE - plus)
    return drawn.double().log_().sub_(PROBABILITY_BITS * math.log(2))
