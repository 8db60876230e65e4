"""Privacy losses of counted bits that are not flipped evenly: from above, and of one dataset from below."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
)
from shuffle_plugins.accounting.numerics.binomial import TAIL, binomial_window
from shuffle_plugins.accounting.pairs.bits import BitResponse, UnevenBitPair, uneven_outcomes

_BUCKETS = 256


@lru_cache(maxsize=64)
def counted_losses(response: BitResponse, *, others: int, resolution: Resolution) -> PrivacyLossDistribution:
    """From above, of one count when the differing client holds a one (P) or a zero (Q), for every dataset.

    Args:
        response: how each bit is randomised.
        others: clients beside the differing one.
        resolution: how finely losses are resolved on their grid.

    Raises:
        ArithmeticError: if the count is too large to compute.
    """
    loss, p, q, missing = uneven_outcomes(UnevenBitPair(response=response, others=others, buckets=_BUCKETS))
    return finite_losses(loss, p, q, missing=missing, kind="upper", resolution=resolution, symmetric=False)


def counted_instance(
    response: BitResponse, *, others: int, resolution: Resolution
) -> PrivacyLossDistribution:
    """From below, of one count when nobody else holds a one.

    Args:
        response, others, resolution: as of :func:`counted_losses`.

    Raises:
        ArithmeticError: if no outcome is within floating-point range.
    """
    _, noise = binomial_window(others, response.zero)
    noise = noise * (1 - TAIL)
    before, at = np.append(0.0, noise), np.append(noise, 0.0)
    p = response.not_one * at + response.one * before
    q = response.not_zero * at + response.zero * before
    return finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)
