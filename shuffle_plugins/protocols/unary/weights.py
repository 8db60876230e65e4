"""How many ones a client's vector has after the flips: tails of this number, and limits for it."""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from shuffle_plugins.accounting import BitEncoding
from shuffle_plugins.mechanisms.oracles import flip_threshold
from shuffle_plugins.randomness import WHOLE

# Relative, of binomial tails as SciPy computes them, and more of it for each bit; moved to the safe side.
_ROUNDOFF, _EACH = 1e-9, 2.0**-52


def exceeding_probability(
    max_weight: int, *, length: int, ones: int, bit_epsilon: float, encoding: BitEncoding
) -> float:
    """Probability that a vector with ``ones`` ones has more than ``max_weight`` after its bits are flipped.

    Vectors with fewer ones have more than that no more often. Bits are flipped as they really are, with
    probabilities that are multiples of 2**-62. Rounded up.

    Args:
        max_weight: the limit.
        length, ones, bit_epsilon, encoding: as of :class:`~shuffle_plugins.protocols.CountedUnary`.
    """
    if max_weight >= length:
        return 0.0
    flipped = flip_threshold(bit_epsilon) / WHOLE
    lost = flipped if encoding is BitEncoding.SYMMETRIC else 0.5
    kept = np.arange(ones + 1)
    own = stats.binom.pmf(ones - kept, ones, lost)
    others = length - ones
    beyond = max_weight - kept
    tails = np.where(beyond < 0, 1.0, 0.0)
    inside = (beyond >= 0) & (beyond < others)
    tails[inside] = special.bdtrc(beyond[inside], others, flipped)
    return min(1.0, float((own * tails).sum()) * (1 + _ROUNDOFF + length * _EACH))


def least_max_weight(
    *, length: int, ones: int, bit_epsilon: float, encoding: BitEncoding, false_positive_rate: float
) -> int:
    """The least limit that a client who follows the protocol exceeds with at most this probability.

    Args:
        length, ones, bit_epsilon, encoding: as of :class:`~shuffle_plugins.protocols.CountedUnary`.
        false_positive_rate: of one client, in (0, 1).
    """
    low, high = 0, length  # more than the first exceeds the rate, the second does not
    while high - low > 1:
        middle = (low + high) // 2
        rate = exceeding_probability(
            middle, length=length, ones=ones, bit_epsilon=bit_epsilon, encoding=encoding
        )
        low, high = (low, middle) if rate <= false_positive_rate else (middle, high)
    return high


def bernstein(variance: float, error: float) -> float:
    """Distance from its mean that a sum of independent bits exceeds, on one side, at most so often.

    Bernstein's inequality.

    Args:
        variance: of the sum.
        error: the probability.
    """
    log_inverse = -math.log(error)
    return log_inverse / 3 + math.sqrt(log_inverse**2 / 9 + 2 * log_inverse * variance)
