"""Numbers of heads among many fair coins, and binomial numbers, drawn from tables, not toss by toss."""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.accounting.pairs.noise import DRAWN_REACH
from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness import PROBABILITY_BITS, WHOLE, Randomness, secure

DISTANCE = 2.0**-52
"""Bound on the total variation between numbers of heads, drawn by up to 2**40 clients, and binomials."""
MOST_COINS = 1 << 40

RATIO = 2.0**-64
"""Bound on |log(P/P')| of a number of heads drawn with probability P that has P' under fair coins, within
``DRAWN_REACH`` standard deviations, for each ``COINS_AT_ONCE`` coins or part of them.
None is drawn further out.
"""

COINS_AT_ONCE = 1 << 32
"""Coins of one table, some 10 MB long; more are drawn in parts."""

_MOST_TOSSED = 256
_WORDS_AT_ONCE = 1 << 16
_FINE_BITS, _GUARD_BITS = 128, 720
_LISTED_REACH = 7.0  # standard deviations; what lies further out is one entry of a table
_HALF = np.uint64(32)


def heads(coins: int, size: int, *, randomness: Randomness | None = None) -> Tensor:
    """Draw ``size`` numbers of heads among ``coins`` fair coins, at most 2**40, int64, on the CPU.

    Up to 256 coins every coin is a random bit and the law is exact. More are drawn from a table of the law by
    Walker's alias method: one word chooses a column and, as a fraction of 64 bits less those, one of its two
    outcomes; a second word decides a tie. The law is within 2**-100 of the binomial in total variation, for
    each 2**32 coins (``docs/proofs/sums.md``).
    """
    checks.whole("coins", coins, at_least=0, at_most=MOST_COINS)
    checks.whole("size", size, at_least=0)
    source = secure(randomness)
    if coins == 0:
        return torch.zeros(size, dtype=torch.int64)
    if coins <= _MOST_TOSSED:
        return _tossed(coins, size, source)
    many, rest = divmod(coins, COINS_AT_ONCE)
    if many == 0:
        return _looked_up(coins, size, source)
    drawn = heads(rest, size, randomness=source)
    for _ in range(many):
        drawn += _looked_up(COINS_AT_ONCE, size, source)
    return drawn


def drawn_range(coins: int) -> tuple[int, int]:
    """The least and the largest number of heads that :func:`heads` ever draws among so many coins.

    Each part of at most 2**32 coins stays within ``DRAWN_REACH`` deviations of its middle, so a client's
    number can be proven to lie in a range far shorter than all coins.
    """
    many, rest = divmod(coins, COINS_AT_ONCE)
    highest = many * _largest_drawn(COINS_AT_ONCE) + _largest_drawn(rest)
    return coins - highest, highest


def _largest_drawn(coins: int) -> int:
    if coins <= _MOST_TOSSED:
        return coins
    return min(coins, (coins + 1) // 2 + math.ceil(DRAWN_REACH * math.sqrt(coins) / 2))


def _tossed(coins: int, size: int, randomness: Randomness) -> Tensor:
    words = -(-coins // 64)
    last = np.uint64((1 << (coins - 64 * (words - 1))) - 1)
    drawn = np.empty(size, dtype=np.int64)
    step = max(1, _WORDS_AT_ONCE // words)
    for start in range(0, size, step):
        rows = min(step, size - start)
        bits = randomness.words(rows * words).numpy().view(np.uint64).reshape(rows, words)
        bits[:, -1] &= last
        drawn[start : start + rows] = np.bitwise_count(bits).sum(axis=1, dtype=np.int64)
    return torch.from_numpy(drawn)


def _looked_up(coins: int, size: int, randomness: Randomness) -> Tensor:
    table = alias_table(coins)
    columns = np.int64((1 << table.bits) - 1)
    drawn = np.empty(size, dtype=np.int64)
    for start in range(0, size, _WORDS_AT_ONCE):
        words = randomness.words(min(_WORDS_AT_ONCE, size - start)).numpy()
        column = words & columns
        packed = table.packed.take(column)
        threshold, fraction = packed >> _HALF, words.view(np.uint64) >> _HALF
        own = fraction < threshold
        undecided = np.flatnonzero(fraction == threshold)
        if undecided.size:
            own[undecided] = _own(table, words[undecided], column[undecided], randomness)
        np.copyto(column, packed.astype(np.uint32), where=~own)
        for place in np.flatnonzero(column == table.further):
            column[place] = _further(coins, randomness) - table.first
        np.add(column, table.first, out=drawn[start : start + len(words)])
    return torch.from_numpy(drawn)


def _own(
    table: AliasTable, words: NDArray[np.int64], column: NDArray[np.int64], randomness: Randomness
) -> NDArray[np.bool_]:
    """Whether a column's own outcome is drawn, by all the digits of its threshold."""
    fraction, threshold = words.view(np.uint64) >> np.uint64(table.bits), table.high[column]
    own = fraction < threshold
    ties = np.flatnonzero(fraction == threshold)
    own[ties] = randomness.words(ties.size).numpy().view(np.uint64) < table.low[column[ties]]
    return own


class AliasTable(NamedTuple):
    """Outcomes in 2**bits columns of equal mass, at most two in each (Walker 1977).

    Column i holds outcome ``first + i`` with probability (high[i] + low[i]/2**64) / 2**(64 - bits), and
    outcome ``first + other[i]`` with the rest. ``packed`` has the first 32 digits of that probability above
    ``other``. ``further`` is the entry that stands for every outcome that is not listed.
    """

    first: int
    bits: int
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    other: NDArray[np.int64]
    packed: NDArray[np.uint64]
    further: int


@lru_cache(maxsize=8)
def alias_table(coins: int) -> AliasTable:
    """The table that numbers of heads are drawn from."""
    first, law = _law(coins)
    bits = (len(law) - 1).bit_length()
    thresholds, other = [0] * (1 << bits), [0] * (1 << bits)
    _fill_columns(law + [0] * ((1 << bits) - len(law)), 1 << (_FINE_BITS - bits), thresholds, other)
    high = np.array([threshold >> 64 for threshold in thresholds], dtype=np.uint64)
    low = np.array([threshold & ((1 << 64) - 1) for threshold in thresholds], dtype=np.uint64)
    digits = np.minimum(high >> np.uint64(32 - bits), np.uint64((1 << 32) - 1))
    alias = np.array(other, dtype=np.int64)
    return AliasTable(
        first, bits, high, low, alias, (digits << _HALF) | alias.astype(np.uint64), len(law) - 1
    )


def _law(coins: int) -> tuple[int, list[int]]:
    """First listed outcome and masses out of 2**128, the last that of all further out together."""
    upper, listed = _upper_masses(coins)
    whole = 2 * sum(upper) - (0 if coins % 2 else upper[0])
    half = upper[:listed]
    law = (half[::-1] if coins % 2 else half[:0:-1]) + half
    law.append(whole - sum(law))
    law = [(mass << _FINE_BITS) // whole for mass in law]
    law[(len(law) - 1) // 2] += (1 << _FINE_BITS) - sum(law)
    return (coins + 1) // 2 + listed - (len(law) - 1), law


def _upper_masses(coins: int) -> tuple[list[int], int]:
    """Masses from the middle up to ``DRAWN_REACH`` deviations, not normed, and how many a table lists.

    By the ratios of neighbours in whole numbers: a mass 28 deviations out is 2**-566 of the middle's, so it
    has 150 bits, and is right to 2**-130 of itself after a million divisions.
    """
    middle, deviation = (coins + 1) // 2, math.sqrt(coins) / 2
    upper = [1 << _GUARD_BITS]
    for count in range(middle, _largest_drawn(coins)):
        upper.append(upper[-1] * (coins - count) // (count + 1))
    return upper, min(math.ceil(_LISTED_REACH * deviation), len(upper))


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


def _fill_columns(
    law: Sequence[int], full: int, threshold: MutableSequence[int], other: MutableSequence[int]
) -> None:
    """Vose's construction in whole numbers: the law's masses, which add up to ``full`` times their number.

    Columns below ``full`` are filled up from the first heavy one until that is below ``full`` itself, which
    is then filled up from the next. The last heavy column is left with ``full``.
    """
    size = len(law)
    heavy = 0
    while law[heavy] < full:
        heavy += 1
    rest = law[heavy]
    for i in range(size):
        if law[i] >= full:
            continue
        threshold[i] = law[i]
        other[i] = heavy
        rest -= full - law[i]
        while rest < full:
            threshold[heavy] = rest
            following = heavy + 1
            while law[following] < full:
                following += 1
            other[heavy] = following
            rest = law[following] - (full - rest)
            heavy = following
    for i in range(heavy, size):
        if law[i] >= full:
            threshold[i] = full
            other[i] = i


DRAWN_DISTANCE = 2.0**-92
"""Bound on the total variation between one number drawn and its binomial law, up to 2**31 events.

A table is computed with 256 bits, leaves out less than 2**-110 and is read with 124 bits, so it is off by
less than 2**-100 (it has fewer than 2**20 entries). A number is the sum of fewer than 2**8 draws.
"""

MOST_EVENTS = 1 << 31
_LARGEST_TABLE = 24  # log2 of the events of one draw
_SCALE = 1 << 256
_LEFT_OUT = 140  # -log2 of a mass, beside the largest, that ends a table
_MASK = WHOLE - 1


def drawn_binomials(events: Tensor, *, threshold: int, randomness: Randomness) -> Tensor:
    """Draw Bin(events, threshold/2**62) for each entry of ``events``, in [0, 2**31]; int64, on the CPU."""
    left = events.to(torch.int64).cpu().flatten()
    if left.numel() and int(left.max()) > MOST_EVENTS:
        raise ValueError(f"more than {MOST_EVENTS:,} clients cannot be simulated at once: simulate groups")
    found = torch.zeros_like(left)
    while bool((left >> (_LARGEST_TABLE + 1)).any()):
        many = (left >> (_LARGEST_TABLE + 1)).nonzero().squeeze(1)
        found[many] += _draws(len(many), _LARGEST_TABLE, threshold, randomness)
        left[many] -= 1 << _LARGEST_TABLE
    for power in range(_LARGEST_TABLE, -1, -1):
        chosen = ((left >> power) & 1).nonzero().squeeze(1)
        if len(chosen):
            found[chosen] += _draws(len(chosen), power, threshold, randomness)
    return found.reshape(events.shape)


def _draws(count: int, power: int, threshold: int, randomness: Randomness) -> Tensor:
    """Bin(2**power, threshold/2**62), int64 (count,): 62 bits find the place, 62 more decide a tie."""
    first, high, low = _table(power, threshold)
    words = randomness.words(count).bitwise_and_(_MASK)
    place = torch.searchsorted(high, words, right=True)
    before = torch.searchsorted(high, words)
    for i in (place > before).nonzero().flatten().tolist():
        further = int(randomness.words(1)) & _MASK
        tied = low[int(before[i]) : int(place[i])]
        place[i] = int(before[i]) + sum(bound <= further for bound in tied)
    return place + first


@lru_cache(maxsize=512)
def _table(power: int, threshold: int) -> tuple[int, Tensor, tuple[int, ...]]:
    """The least outcome listed, and P[at most k] for each but the last: 62 leading bits and the next 62."""
    trials, other = 1 << power, WHOLE - threshold
    mode = min(trials, (trials + 1) * threshold // WHOLE)
    least = _SCALE >> _LEFT_OUT
    above, below = [_SCALE], []
    for k in range(mode, trials):
        mass = above[-1] * ((trials - k) * threshold) // ((k + 1) * other)
        if mass < least:
            break
        above.append(mass)
    mass = _SCALE
    for k in range(mode, 0, -1):
        mass = mass * (k * other) // ((trials - k + 1) * threshold)
        if mass < least:
            break
        below.append(mass)
    masses = below[::-1] + above
    total, reached, bounds = sum(masses), 0, []
    for mass in masses[:-1]:
        reached += mass
        bounds.append((reached << 2 * PROBABILITY_BITS) // total)
    high = torch.tensor([bound >> PROBABILITY_BITS for bound in bounds], dtype=torch.int64)
    return mode - len(below), high, tuple(bound & _MASK for bound in bounds)
