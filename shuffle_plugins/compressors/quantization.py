"""Real numbers to signs and whole numbers, unbiased, by private coins whose chances never exceed ε0."""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from fractions import Fraction

from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness.chacha import PROBABILITY_BITS, WHOLE
from shuffle_plugins.randomness.sources import Randomness

ROUNDED_DOWN = decimal.Context(prec=80, rounding=decimal.ROUND_FLOOR)


def odds_below(local_epsilon: float | Fraction) -> Fraction:
    """A rational just below e^ε0, closer than 1e-59 of it and never above; ε0 is taken as it is given."""
    exponent = Fraction(local_epsilon)
    with decimal.localcontext(ROUNDED_DOWN):
        quotient = decimal.Decimal(exponent.numerator) / decimal.Decimal(exponent.denominator)
        return Fraction(quotient.exp() * (1 - decimal.Decimal(10) ** -60))


def flip_threshold(local_epsilon: float | Fraction) -> int:
    """The smallest p in units of 2**-62 with (1 − p)/p at most e^ε0; 1 from ε0 ≈ 43 on."""
    return math.ceil(WHOLE / (odds_below(local_epsilon) + 1))


@dataclass(frozen=True)
class SignThresholds:
    """Probabilities of a plus sign as multiples of 2**-62: ``low`` at the value -1, the rest at +1.

    It costs log((2**62 - low)/low).
    """

    low: int

    @property
    def high(self) -> int:
        """The largest threshold, 2**62 - low, taken at the value +1."""
        return WHOLE - self.low

    @property
    def gain(self) -> float:
        """E[sign] at the value 1: 1 - 2·low/2**62, about tanh(ε0/2). Dividing by it removes the bias."""
        return (self.high - self.low) / WHOLE

    @classmethod
    def of(cls, local_epsilon: float) -> SignThresholds:
        """Thresholds that never exceed ε0, the nearest ones."""
        return cls(low=flip_threshold(checks.local_epsilon(local_epsilon)))


def plus_thresholds(values: Tensor, *, thresholds: SignThresholds) -> Tensor:
    """Probability of a plus sign at each value of [-1, 1], int64 in units of 2**-62: E[sign] = gain·value."""
    half_span = (thresholds.high - thresholds.low) / 2
    from_nearer_end = (1 - values.double().abs()).clamp_(0, 1).mul_(half_span).round_().to(torch.int64)
    return torch.where(values < 0, thresholds.low + from_nearer_end, thresholds.high - from_nearer_end)


def random_signs(values: Tensor, *, thresholds: SignThresholds, randomness: Randomness) -> Tensor:
    """Draw 1 (plus) or 0 (minus) for each value of [-1, 1], uint8, with E[sign] = gain · value."""
    return randomness.bernoulli(plus_thresholds(values, thresholds=thresholds)).to(torch.uint8)


def stochastic_round(values: Tensor, *, randomness: Randomness) -> Tensor:
    """A whole number next to each value, int64 of the same shape: its floor, or the next one up.

    Up with probability f = value - floor(value), rounded down to a multiple of 2**-62; one word per value.
    Values are floating point, of absolute value below 2**62.
    """
    if not values.is_floating_point():
        raise ValueError(f"only floating point is rounded, got {values.dtype}")
    flat, chunk = values.detach().reshape(-1), 1 << 16  # values handled at a time, which fit a cache
    rounded = torch.empty(flat.shape, dtype=torch.int64, device=values.device)
    for start in range(0, flat.numel(), chunk):
        part = flat[start : start + chunk].double()
        if not bool((part.abs() < (2.0**62)).all()):  # larger values do not fit the thresholds' 62 bits
            raise ValueError("a value is NaN, infinite, or 2**62 or more in absolute value: clip it first")
        low = part.floor()
        up = randomness.bernoulli((part - low).mul_(2.0**PROBABILITY_BITS).to(torch.int64))
        rounded[start : start + chunk] = low.to(torch.int64) + up
    return rounded.reshape(values.shape)
