"""How many bits of a client's vector are ones after the flips, and how seldom they are more than a limit."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from shuffle_plugins.accounting import BitEncoding

_ROUNDOFF = 1e-9  # relative, of binomial tails as SciPy computes them; moved to the safe side


def exceeding_probability(
    max_weight: int, *, length: int, ones: int, bit_epsilon: float, encoding: BitEncoding
) -> float:
    """Probability that a vector with ``ones`` ones has more than ``max_weight`` after its bits are flipped.

    Vectors with fewer ones have more than that no more often. Rounded up.

    Args:
        max_weight: the limit.
        length, ones, bit_epsilon, encoding: as of :class:`~shuffle_plugins.protocols.CountedUnary`.
    """
    if max_weight >= length:
        return 0.0
    bit = encoding.response(bit_epsilon)
    kept = np.arange(ones + 1)
    log_own = special.gammaln(ones + 1) - special.gammaln(kept + 1) - special.gammaln(ones - kept + 1)
    own = np.exp(log_own + kept * math.log(bit.one) + (ones - kept) * math.log(bit.not_one))
    others = length - ones
    beyond = max_weight - kept
    tails = np.where(beyond < 0, 1.0, 0.0)
    inside = (beyond >= 0) & (beyond < others)
    tails[inside] = special.bdtrc(beyond[inside], others, bit.zero)
    return min(1.0, float((own * tails).sum()) * (1 + _ROUNDOFF))


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
    """How far a sum of independent bits strays from its mean to one side but for this probability."""
    log_inverse = -math.log(error)
    return log_inverse / 3 + math.sqrt(log_inverse**2 / 9 + 2 * log_inverse * variance)
