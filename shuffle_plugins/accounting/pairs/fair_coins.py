"""Masses of Bin(M, ½), to more digits than float64 where the machine has them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Long = npt.NDArray[np.longdouble]

LONG_ROUNDOFF = 64.0 * float(np.finfo(np.longdouble).eps)
LOG_TWO_PI = np.log(8 * np.arctan(np.longdouble(1)))
REACH = 12.0
"""Standard deviations of the window; what lies outside has a mass below 2·e^-72 (Hoeffding)."""


DRAWN_REACH = 28.0
"""Standard deviations beyond which drawn numbers of heads never lie."""


def upper_half(trials: int, *, reach: float = REACH) -> npt.NDArray[np.int64]:
    """Numbers of heads from the middle up to ``reach`` standard deviations, never all of them."""
    last = min(trials - 1, math.ceil(trials / 2 + reach * math.sqrt(trials) / 2))
    return np.arange((trials + 1) // 2, last + 1, dtype=np.int64)


def masses(counts: npt.NDArray[np.int64], trials: int) -> Long:
    """Probability of each number of heads, shape of ``counts``, by Stirling's series for the factorials.

    The series after five terms is off by less than its sixth; all counts must be in [1, trials - 1].
    """
    k = counts.astype(np.longdouble)
    m = np.longdouble(trials)
    u = (2 * counts - trials).astype(np.longdouble) / m
    # (1 + u) log(1 + u) + (1 - u) log(1 - u) in terms of the order of u², so that nothing large cancels.
    exponent = -(m / 2) * (2 * u * np.arctanh(u) + np.log1p(-u * u))
    exponent += _stirling(m) - _stirling(k) - _stirling(m - k)
    exponent += (np.log(m) - np.log(k) - np.log(m - k) - LOG_TWO_PI) / 2
    return np.asarray(np.exp(exponent), dtype=np.longdouble)


def _stirling(n: Long | np.longdouble) -> Long:
    """log n! − (n log n − n + ½ log 2πn)."""
    inverse = 1 / n
    square = inverse * inverse
    one = np.longdouble(1)
    series = (
        one / 12 - (one / 360 - (one / 1260 - (one / 1680 - one / 1188 * square) * square) * square) * square
    )
    return np.asarray(series * inverse, dtype=np.longdouble)
