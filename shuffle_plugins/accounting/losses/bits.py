"""Privacy losses of counted bits: from above where they are flipped unevenly, and of datasets from below."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
)
from shuffle_plugins.accounting.numerics.binomial import bernstein_reach, binomial_window
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.pairs.bits import BitResponse, UnevenBitPair, uneven_outcomes

_BUCKETS = 256
_MOST_TERMS = 1 << 30  # of the convolution of a crowd's count with a client's own
_LEAST_BIAS = 2.0**-50  # of which biases are multiples, so that floats hold the probabilities exactly


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
    response: BitResponse, *, others: int, resolution: Resolution, held: bool = False
) -> PrivacyLossDistribution:
    """From below, of one count when nobody else holds a one, or everybody else.

    Args:
        response, others, resolution: as of :func:`counted_losses`.
        held: whether everybody else holds a one.

    Raises:
        ArithmeticError: if no outcome is within floating-point range.
    """
    first, noise = binomial_window(others, response.one if held else response.zero)
    before, at = np.append(0.0, noise), np.append(noise, 0.0)
    p = response.not_one * at + response.one * before
    q = response.not_zero * at + response.zero * before
    # A count at an edge may come from more or less noise than the window has: it is likelier than it seems.
    known = slice(int(first > 0), len(noise) + int(first + len(noise) > others))
    return finite_losses(
        None, p[known], q[known], missing=0.0, kind="lower", resolution=resolution, symmetric=False
    )


def has_leaning_instance(*, others: int, own: int) -> bool:
    """Whether :func:`leaning_instance` can list the outcomes."""
    return _reach(others) * _reach(own) <= _MOST_TERMS


def leaning_instance(
    *, bias: float, others: int, own: int, opposite: bool, resolution: Resolution
) -> PrivacyLossDistribution:
    """From below, of one count to which the differing client adds bits that lean to one (P), or do not (Q).

    Bits are ones with probability ½ + bias under P. Under Q the client's are like everybody else's, ½ − bias
    if ``opposite`` is true, otherwise ½. P and Q are each within 2e-30 of the true law in total variation;
    it is left to the caller to take that off (``discounted``).

    Args:
        bias: in (0, ½); rounded down, as a larger one can be made smaller: by flipping every bit of the count
            with one probability, which scales everybody's bias and keeps a fair bit fair.
        others: bits of all others.
        own: bits of the client.
        opposite: whether everybody else leans to zero.
        resolution: how finely losses are resolved on their grid.

    Raises:
        ArithmeticError: if no outcome is within floating-point range.
    """
    bias = math.floor(bias / _LEAST_BIAS) * _LEAST_BIAS
    rest = 0.5 - bias if opposite else 0.5
    _, crowd = binomial_window(others, rest)
    (high, ones), (low, zeros) = binomial_window(own, 0.5 + bias), binomial_window(own, rest)
    first, last = min(high, low), max(high + len(ones), low + len(zeros))

    def seen(start: int, mass: Floats) -> Floats:
        return np.convolve(crowd, np.pad(mass, (start - first, last - start - len(mass))))

    return finite_losses(
        None,
        seen(high, ones),
        seen(low, zeros),
        missing=0.0,
        kind="lower",
        resolution=resolution,
        symmetric=False,
    )


def _reach(bits: int) -> float:
    """Counts of so many bits that are listed, at most."""
    return min(bits, 2 * float(bernstein_reach(bits / 4))) + 1
