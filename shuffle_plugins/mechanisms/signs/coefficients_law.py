r"""How large a coefficient of a rotated vector a mechanism provides for. Torch-free.

All levels are in units of :math:`r/\sqrt{size}`, what every coefficient would be if all were equal.
"""

from __future__ import annotations

import math
from enum import StrEnum

from shuffle_plugins.core import checks

CLIENTS, FAILURE = 10_000, 1e-6
"""Reports in a round, and how likely one may be clipped, that the level provides for by default."""

_SINGLE_PRECISION = 1 - 1e-5
_HALVINGS = 80  # of the bracket of the level: float64 has no more digits


class Oversized(StrEnum):
    """What becomes of coefficients that are larger than the rotation makes likely.

    ``CLIP``: the ball is so large that, with probability 1 - β over the rotation's signs, no coefficient of
    any client is clipped: a sub-Gaussian and a union bound. Otherwise those coefficients are clipped, with a
    bias.

    ``BALANCE``: the ball that minimises variance/n + bias² for n clients with the same vector, its rotated
    entries as good as normal. Always biased: hardly where n is large beside the variance of one report, and
    down to a shrunk estimate of little but directions where it is small.

    ``BOUND``: the ball of radius r, which no coefficient can leave. Always unbiased, and of size/level² times
    the variance.
    """

    CLIP = "clip"
    BALANCE = "balance"
    BOUND = "bound"


def sound_level(*, size: int, clients: int, failure: float) -> float:
    r"""Level that no coefficient of any client passes, but with probability β: at most :math:`\sqrt{size}`.

    :math:`P(\max |w| > t) \le 2 \, size \, n \exp(-size\,t^2/(2 r^2))` gives
    :math:`\sqrt{2 \log(2 \, size \, n/β)}`.
    """
    return min(math.sqrt(2 * math.log(2 * size * clients / failure)), math.sqrt(size))


def thesis_level(*, size: int, clients: int, failure: float) -> float:
    """As printed in Algorithm 3.6.1 of Girgis's thesis: 10·sqrt(log(size·n/β))."""
    return 10 * math.sqrt(math.log(size * clients / failure))


def balanced_level(*, size: int, clients: int, noise: float) -> float:
    r"""Level c that minimises :math:`c^2 \, noise/n + E[(|g| - c)_+^2]`, g standard normal.

    Args:
        size: number of coefficients; the level is at most its square root.
        clients: n, how many clients there are.
        noise: variance of one report at level 1, in units of r².
    """

    def slope(level: float) -> float:
        density = math.exp(-level * level / 2) / math.sqrt(2 * math.pi)
        above = math.erfc(level / math.sqrt(2)) / 2
        return level * noise / clients - 2 * (density - level * above)

    low, high = 0.0, math.sqrt(size)
    if slope(high) <= 0:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return high


def check_expected(*, clients: int, failure: float) -> None:
    """Check how many clients are expected and how often one may be clipped.

    Raises:
        ValueError: unless they are a positive whole number and a probability.
    """
    checks.whole("clients", clients)
    checks.number("failure", failure, above=0, below=1)


def mean_square(level: float, *, stretch: float = 1.0) -> float:
    """An upper bound on the mean square of a record's coefficients, over the square of the clipping bound.

    Coefficients above a fixed bound, the clipping bound, are clipped to it.

    Args:
        level: the clipping bound, over the size of the coefficients of a longest record if all are equal.
        stretch: an upper bound on the norm of all coefficients over the norm of the record.
    """
    return min((stretch / (_SINGLE_PRECISION**10 * level)) ** 2, 1.0)


def flat_lean(level: float) -> float:
    """The size of the coefficients of the vector ±r·e_1, as a share of the clipping bound; at most 1.

    All of them have the same size: in a rotation and in a Kashin frame they are a row of a Hadamard matrix.
    The result is rounded down by as much as computing them in single precision can change them.

    Args:
        level: the clipping bound, over the size of the coefficients of a longest record if all are equal.
    """
    return 1.0 if level <= 1 else _SINGLE_PRECISION / level


def aligned_records(*, level: float, dim: int) -> tuple[tuple[float, float], ...]:
    """Vectors whose rotated coefficients are of one size, or 0: their sizes, and how many are not 0.

    Of the first 2**a numbers all are of one size, with the rotation's own signs, and the others 0. Then each
    2**a-th coefficient is √(2**a) times what it would be if all were equal, and the others are 0.
    Coefficients above the clipping bound are clipped to it.
    """
    found = []
    for power in range(dim.bit_length()):
        size = flat_lean(level / 2.0 ** (power / 2))
        found.append((size, 2.0**-power))
        if size == 1:
            break
    return tuple(found)
