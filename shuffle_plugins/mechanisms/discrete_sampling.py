"""Exact discrete Laplace and discrete Gaussian noise, one or two random words a value.

Canonne, Kamath, Steinke 2020, "The discrete Gaussian for differential privacy", Algorithms 2 and 3, but for
how an event of probability :math:`e^{-γ}` is decided: by the first 63 binary digits of a uniform U in float64
and, where its error leaves the answer open, by decimals of growing precision and as many digits as it takes.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from fractions import Fraction

from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness.sources import Randomness

MAX_SCALE = 1 << 30
MAX_SIGMA = 1 << 26
"""Largest σ that discrete Gaussian noise is sampled with."""

_DIGITS = 63  # bits of the uniform draw that is compared
_FLOAT_ERROR = 2.0**-48  # relative; bounds float64 here with room. Closer calls are decided in integers


def bernoulli_exp(numerators: Tensor, *, denominator: int, randomness: Randomness) -> Tensor:
    """True with probability exactly e^(−numerator/denominator), bool (count,); numerators are int64, ≥ 0."""
    words = randomness.words(len(numerators), device=numerators.device).bitwise_and_((1 << _DIGITS) - 1)
    margin = (numerators.double() / -denominator).exp_().sub_(_uniform(words))
    accepted = margin > 0  # e^-x is off by (x + 4)·e^-x times the relative error, so by 4 times that at most
    for i in (margin.abs_() <= 5 * _FLOAT_ERROR).nonzero().squeeze(1).tolist():
        exponent = Fraction(int(numerators[i]), denominator)
        accepted[i] = _is_below_exp(int(words[i]), exponent=exponent, randomness=randomness)
    return accepted


def discrete_laplace(
    count: int, *, scale: Fraction | int, randomness: Randomness, device: torch.device | str = "cpu"
) -> Tensor:
    """Independent k with P[k] ∝ e^(−|k|/scale), (count,) int64; exact. ``scale`` is at most 2**30.

    The magnitude is ⌊−scale·ln U⌋; minus zero is drawn again.
    """
    if isinstance(scale, bool) or not isinstance(scale, (Fraction, int)) or not 0 < scale <= MAX_SCALE:
        raise ValueError(f"the scale must be a positive ratio of integers, at most 2**30, got {scale!r}")
    exact_scale, rounded_scale = Fraction(scale), float(scale)

    def propose(size: int) -> Tensor:
        words = randomness.words(size, device=device)
        negative = words < 0
        words = words.bitwise_and_((1 << _DIGITS) - 1)
        depth = _uniform(words).log_()
        deepest = -float(depth.min())
        error = rounded_scale * ((deepest + 1) * _FLOAT_ERROR + 2.0**-_DIGITS * math.exp(deepest))
        magnitude = depth.mul_(-rounded_scale).to(torch.int64)
        fraction = depth.sub_(magnitude)
        unclear = (fraction < error) | (fraction > 1 - error)
        for i in unclear.nonzero().squeeze(1).tolist():
            magnitude[i] = _floor_of_logarithm(int(words[i]), scale=exact_scale, randomness=randomness)
        kept = ~(negative & (magnitude == 0))
        return torch.where(negative, -magnitude, magnitude)[kept]

    return _collect(count, propose, device=device)


def discrete_gaussian(
    count: int, *, sigma: int, randomness: Randomness, device: torch.device | str = "cpu"
) -> Tensor:
    """Independent k with P[k] ∝ e^(−k²/(2σ²)), (count,) int64; σ is at most 2**26.

    A discrete Laplace k of scale σ is kept with probability e^(−(|k|−σ)²/(2σ²)). Values beyond 24σ, of
    probability below e^-280, are never drawn; apart from that the law is exact.
    """
    checks.whole("sigma", sigma, at_most=MAX_SIGMA)

    def propose(size: int) -> Tensor:
        drawn = discrete_laplace(size, scale=sigma, randomness=randomness, device=device)
        drawn = drawn[drawn.abs() <= 24 * sigma]
        distance = drawn.abs().sub_(sigma).square_()
        return drawn[bernoulli_exp(distance, denominator=2 * sigma * sigma, randomness=randomness)]

    return _collect(count, propose, device=device)


def _uniform(words: Tensor) -> Tensor:
    """The middle of the interval of which a word holds the leading digits."""
    return words.double().add_(0.5).mul_(2.0**-_DIGITS)


def _collect(count: int, propose: Callable[[int], Tensor], *, device: torch.device | str) -> Tensor:
    """The first ``count`` values of proposals that come in batches, each some of those asked for."""
    values = torch.empty(count, dtype=torch.int64, device=device)
    filled = 0
    while filled < count:
        missing = count - filled
        # Values drawn at a time, which fit a cache.
        drawn = propose(min(missing + missing // 2 + 16, 1 << 16))[:missing]
        values[filled : filled + len(drawn)] = drawn
        filled += len(drawn)
    return values


def _is_below_exp(word: int, *, exponent: Fraction, randomness: Randomness) -> bool:
    """Whether U < exp(-exponent), for a U whose first 63 digits are known."""
    if exponent == 0:
        return True
    digits = _DIGITS
    while True:
        with decimal.localcontext(decimal.Context(prec=digits // 3 + 60)):
            edge = (-_decimal(exponent)).exp() * (1 << digits)
            slack = decimal.Decimal(10) ** -10
            if word + 1 <= edge - slack:
                return True
            if word >= edge + slack:
                return False
        word, digits = _refined(word, digits, randomness)


def _floor_of_logarithm(word: int, *, scale: Fraction, randomness: Randomness) -> int:
    """⌊-scale·ln U⌋ for a U whose first 63 digits are known."""
    digits = _DIGITS
    while True:
        with decimal.localcontext(decimal.Context(prec=digits // 3 + 60)):
            factor, slack = _decimal(scale), decimal.Decimal(10) ** -(digits // 3 + 30)
            least = -factor * (decimal.Decimal(word + 1) / (1 << digits)).ln() - slack
            if word:
                most = -factor * (decimal.Decimal(word) / (1 << digits)).ln() + slack
                floor = max(math.floor(least), 0)
                if floor == math.floor(most):
                    return floor
        word, digits = _refined(word, digits, randomness)


def _refined(word: int, digits: int, randomness: Randomness) -> tuple[int, int]:
    return (word << 64) | (int(randomness.words(1)[0]) & ((1 << 64) - 1)), digits + 64


def _decimal(value: Fraction) -> decimal.Decimal:
    return decimal.Decimal(value.numerator) / value.denominator
