"""Numbers of heads among many fair coins, and binomial numbers, drawn from tables, not toss by toss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.accounting.pairs.noise import DRAWN_REACH
from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness.chacha import WHOLE
from shuffle_plugins.randomness.sources import Randomness, secure

DISTANCE = 2.0**-52
"""Bound on the total variation between numbers of heads, drawn by up to 2**40 clients, and binomials."""
MOST_COINS = 1 << 44

RATIO = 2.0**-64
"""Bound on |log(P/P')| of a number of heads drawn with probability P that has P' under fair coins, within
``DRAWN_REACH`` standard deviations, for each ``COINS_AT_ONCE`` coins or part of them.
None is drawn further out.
"""

COINS_AT_ONCE = 1 << 32
"""Coins of one table, some 10 MB long; more are drawn in parts."""

_GUARD_BITS = 720


def heads(coins: int, size: int, *, randomness: Randomness | None = None) -> Tensor:
    """Draw ``size`` numbers of heads among ``coins`` fair coins, at most 2**44, int64, on the CPU.

    From a table, within 2**-100 of the binomial in total variation, for each 2**32 coins
    (``docs/proofs/sums.md``).
    """
    checks.whole("coins", coins, at_least=0, at_most=MOST_COINS)
    checks.whole("size", size, at_least=0)
    source = secure(randomness)
    many, rest = divmod(coins, COINS_AT_ONCE)
    drawn = np.zeros(size, dtype=np.int64)
    for each in [rest] * (rest > 0) + [COINS_AT_ONCE] * many:
        table = alias_table(each)
        found = table.draw(size, source)
        for place in np.flatnonzero(found == table.further):
            found[place] = _further(each, source) - table.first
        drawn += found + table.first
    return torch.from_numpy(drawn)


def drawn_range(coins: int) -> tuple[int, int]:
    """The least and the largest number of heads that :func:`heads` ever draws among so many coins.

    Each part of at most 2**32 coins stays within ``DRAWN_REACH`` deviations of its middle.
    """
    many, rest = divmod(coins, COINS_AT_ONCE)
    highest = many * _largest_drawn(COINS_AT_ONCE) + _largest_drawn(rest)
    return coins - highest, highest


def _largest_drawn(coins: int) -> int:
    return min(coins, (coins + 1) // 2 + math.ceil(DRAWN_REACH * math.sqrt(coins) / 2))


class AliasTable(NamedTuple):
    """Outcomes in 2**bits columns of equal mass, at most two in each (Walker 1977).

    Column i holds outcome ``first + i`` with probability (high[i] + low[i]/2**64) / 2**(64 - bits), and
    outcome ``first + other[i]`` with the rest. ``further`` is the last entry, which may stand for every
    outcome that is not listed.
    """

    first: int
    bits: int
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    other: NDArray[np.int64]
    further: int

    @classmethod
    def of(cls, first: int, masses: Sequence[int]) -> Self:
        """The table of these masses over their sum, to 2**-128 each; the largest takes what is left."""
        whole = sum(masses)
        law = [(mass << 128) // whole for mass in masses]
        law[law.index(max(law))] += (1 << 128) - sum(law)
        bits = (len(law) - 1).bit_length()
        law += [0] * ((1 << bits) - len(law))
        last = len(masses) - 1
        thresholds, other = _fill_columns(law, 1 << (128 - bits))
        high = np.array([threshold >> 64 for threshold in thresholds], dtype=np.uint64)
        low = np.array([threshold & ((1 << 64) - 1) for threshold in thresholds], dtype=np.uint64)
        return cls(first, bits, high, low, np.array(other, dtype=np.int64), last)

    def draw(self, size: int, randomness: Randomness) -> NDArray[np.int64]:
        """Outcomes less ``first``: a word chooses a column and one of its two, a second decides a tie."""
        drawn = np.empty(size, dtype=np.int64)
        for start in range(0, size, 1 << 16):
            words = randomness.words(min(1 << 16, size - start)).numpy().view(np.uint64)
            column = (words & np.uint64((1 << self.bits) - 1)).view(np.int64)
            fraction, threshold = words >> np.uint64(self.bits), self.high.take(column)
            own = fraction < threshold
            ties = np.flatnonzero(fraction == threshold)
            own[ties] = randomness.words(ties.size).numpy().view(np.uint64) < self.low[column[ties]]
            drawn[start : start + len(words)] = np.where(own, column, self.other.take(column))
        return drawn


@lru_cache(maxsize=8)
def alias_table(coins: int) -> AliasTable:
    """The table of numbers of heads; its last entry is for all that are further out."""
    upper, listed = _upper_masses(coins)
    half = upper[:listed]
    law = (half[::-1] if coins % 2 else half[:0:-1]) + half
    whole = 2 * sum(upper) - (0 if coins % 2 else upper[0])
    return AliasTable.of((coins + 1) // 2 + listed - len(law), [*law, whole - sum(law)])


def _upper_masses(coins: int) -> tuple[list[int], int]:
    """Masses from the middle up to ``DRAWN_REACH`` deviations, not normed, and how many a table lists.

    By the ratios of neighbours in whole numbers: a mass 28 deviations out is 2**-566 of the middle's, so it
    has 150 bits, and is right to 2**-130 of itself after a million divisions.
    """
    middle, deviation = (coins + 1) // 2, math.sqrt(coins) / 2
    upper = [1 << _GUARD_BITS]
    for count in range(middle, _largest_drawn(coins)):
        upper.append(upper[-1] * (coins - count) // (count + 1))
    # What lies further out than seven standard deviations is one entry of a table.
    return upper, min(math.ceil(7.0 * deviation), len(upper))


def _further(coins: int, randomness: Randomness) -> int:
    """A number of heads of those that a table does not list, one draw in 10**11."""
    upper, listed = _upper_masses(coins)
    words = [int(word) for word in randomness.words(13).numpy().view(np.uint64)]
    uniform = sum(word << (64 * i) for i, word in enumerate(words[:-1]))
    rest = uniform * sum(upper[listed:]) >> (64 * 12)
    place = listed
    while rest >= upper[place]:
        rest -= upper[place]
        place += 1
    count = (coins + 1) // 2 + place
    return count if words[-1] & 1 else coins - count


def _fill_columns(law: list[int], full: int) -> tuple[list[int], list[int]]:
    """Vose's construction in whole numbers: of masses that add up to ``full`` times their number, thresholds
    and the other outcomes of the columns."""
    threshold, other = [full] * len(law), list(range(len(law)))
    light = [i for i, mass in enumerate(law) if mass < full]
    heavy = [i for i, mass in enumerate(law) if mass >= full]
    while light:
        i, j = light.pop(), heavy[-1]
        threshold[i], other[i] = law[i], j
        law[j] -= full - law[i]
        if law[j] < full:
            light.append(heavy.pop())
    return threshold, other


DRAWN_DISTANCE = 2.0**-92
"""Bound on the total variation between one number drawn and its binomial law, up to 2**31 events.

A table leaves out less than 2**-110, has fewer than 2**20 entries and is read with 128 bits, so it is off by
less than 2**-100. A number is the sum of fewer than 2**8 draws.
"""


def drawn_binomials(events: Tensor, *, threshold: int, randomness: Randomness) -> Tensor:
    """Draw Bin(events, threshold/2**62) for each entry of ``events``, in [0, 2**31]; int64, on the CPU."""
    left = events.to(torch.int64).cpu().flatten().clone()
    if left.numel() and int(left.max()) > 1 << 31:
        raise ValueError(f"more than {1 << 31:,} clients cannot be simulated at once: simulate groups")
    found = torch.zeros_like(left)
    for power in range(24, -1, -1):  # the largest table is of 2**24 events, and drawn from as often as needed
        while len(chosen := (left >> power).nonzero().squeeze(1)):
            table = binomial_table(power, threshold)
            found[chosen] += torch.from_numpy(table.draw(len(chosen), randomness) + table.first)
            left[chosen] -= 1 << power
    return found.reshape(events.shape)


@lru_cache(maxsize=512)
def binomial_table(power: int, threshold: int) -> AliasTable:
    """The table of Bin(2**power, threshold/2**62); masses beside 2**-140 of the largest are left out."""
    trials, other, largest = 1 << power, WHOLE - threshold, 1 << 256
    mode = min(trials, (trials + 1) * threshold // WHOLE)
    above, below, mass = [], [], largest
    for k in range(mode, trials + 1):
        above.append(mass)
        mass = mass * ((trials - k) * threshold) // ((k + 1) * other)
        if mass < largest >> 140:
            break
    mass = largest
    for k in range(mode, 0, -1):
        mass = mass * (k * other) // ((trials - k + 1) * threshold)
        if mass < largest >> 140:
            break
        below.append(mass)
    return AliasTable.of(mode - len(below), below[::-1] + above)
