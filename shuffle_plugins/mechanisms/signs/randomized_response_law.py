"""Binary randomized response with integer thresholds: the numbers behind every sign that is flipped."""

from __future__ import annotations

import decimal
from dataclasses import dataclass

from shuffle_plugins.accounting.pairs.blanket import Blanket
from shuffle_plugins.core import checks

PROBABILITY_BITS = 62

_LOUDEST_EXACT = 42


@dataclass(frozen=True, slots=True)
class SignThresholds:
    """Probabilities of a plus sign as multiples of 2**-62.

    Attributes:
        low: the smallest of them, taken at the value -1; the largest, taken at +1, is ``2**62 - low``.
    """

    low: int

    @property
    def high(self) -> int:
        """The largest threshold."""
        return (1 << PROBABILITY_BITS) - self.low

    @property
    def gain(self) -> float:
        """E[sign] at the value 1: 1 - 2·low/2**62, about tanh(ε0/2). Dividing by it removes the bias."""
        return (self.high - self.low) / (1 << PROBABILITY_BITS)

    @classmethod
    def of(cls, local_epsilon: float) -> SignThresholds:
        r"""Thresholds that never exceed ε0.

        ``low`` is at most one above the smallest integer with :math:`(2^{62} - low)/low \le e^{ε_0}`, in
        60-digit arithmetic with the exponential rounded down. From ε0 ≈ 43 on it is 1.

        Raises:
            ValueError: if ε0 is out of range.
        """
        checks.local_epsilon(local_epsilon)
        with decimal.localcontext(decimal.Context(prec=80, rounding=decimal.ROUND_FLOOR)):
            odds = decimal.Decimal(local_epsilon).exp() * (1 - decimal.Decimal(10) ** -60)
            low = (decimal.Decimal(1 << PROBABILITY_BITS) / (odds + 1)).to_integral_value(decimal.ROUND_FLOOR)
        return cls(low=int(low) + 1)


def randomized_response_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    r"""Blanket of a sign flipped with probability 1/(e^ε0 + 1), about any public or random coordinate.

    The inputs that are +radius, or -radius, in every coordinate attain the weights (e, 1) and (1, e) on every
    report: :math:`ω(j, ±) = 1/(d(e+1))`, so the two masses are 1/(e+1) in total, as for the generic blanket.
    From ε0 = 42 on thresholds cannot follow ε0, and the blanket is only a bound.

    Raises:
        ValueError: if a parameter is out of range.
    """
    checks.local_epsilon(local_epsilon)
    checks.dim(dim)
    return Blanket.generic(local_epsilon, exact=local_epsilon < _LOUDEST_EXACT)


def bit_blanket(*, local_epsilon: float, dim: int = 1) -> Blanket:
    """One sign of one number and nothing else: counted as a bit, which is tighter than any blanket.

    Raises:
        ValueError: if a parameter is out of range.
    """
    checks.local_epsilon(local_epsilon)
    checks.dim(dim)
    return Blanket.bit(local_epsilon, exact=local_epsilon < _LOUDEST_EXACT)
