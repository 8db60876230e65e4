"""How many of many fair coins show heads, without tossing them one by one where they are too many."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.accounting.fair_coins import masses, upper_half
from shuffle_plugins.randomness import PROBABILITY_BITS, Randomness, secure

DISTANCE = 2.0**-52
"""Bound on the total variation between a drawn number of heads and Bin(coins, ½)."""
MOST_COINS = 1 << 40

MOST_TOSSED = 1 << 20
"""Up to so many coins are tossed one by one, and the law is exact."""

_WORDS_AT_ONCE = 1 << 20
_ROWS_AT_ONCE = 1 << 12


def heads(coins: int, size: int, *, randomness: Randomness | None = None) -> Tensor:
    """Draw ``size`` numbers of heads among ``coins`` fair coins, int64, on the CPU.

    Up to 2**20 coins every coin is a random bit and the law is exact. More are drawn by inversion of the law
    in two steps of 62 bits each, which is within 2**-52 of it in total variation.

    Args:
        coins: in [0, 2**40].
        size: how many numbers.
        randomness: source of the bits; a fresh :class:`SecureRandomness` by default.

    Raises:
        ValueError: if ``coins`` or ``size`` is out of range.
    """
    if type(coins) is not int or not 0 <= coins <= MOST_COINS:
        raise ValueError(f"coins must be a whole number in [0, 2**40], got {coins!r}")
    if type(size) is not int or size < 0:
        raise ValueError(f"size must be a whole number, zero or more, got {size!r}")
    source = secure(randomness)
    if coins == 0:
        return torch.zeros(size, dtype=torch.int64)
    return _tossed(coins, size, source) if coins <= MOST_TOSSED else _inverted(coins, size, source)


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


@dataclass(frozen=True, slots=True)
class _Table:
    """Outcomes in buckets: thresholds out of 2**62 for the bucket, and within each bucket."""

    first: int
    buckets: Tensor
    within: Tensor


@lru_cache(maxsize=32)
def _table(coins: int) -> _Table:
    upper = upper_half(coins)
    half = masses(upper, coins)
    lower = coins - upper[::-1]
    if lower[-1] == upper[0]:
        lower = lower[:-1]
    mass = np.concatenate([half[::-1][: len(lower)], half])
    width = math.isqrt(len(mass)) + 1
    padded = np.concatenate([mass, np.zeros(-len(mass) % width, dtype=np.longdouble)]).reshape(-1, width)
    total = padded.sum(axis=1)
    inner = np.cumsum(padded, axis=1) / np.where(total > 0, total, 1)[:, None]
    outer = np.cumsum(total) / total.sum()
    scale = np.longdouble(2.0**PROBABILITY_BITS)
    within = np.floor(inner * scale).astype(np.int64)
    buckets = np.floor(outer * scale).astype(np.int64)
    # What a threshold leaves to the top goes to the last outcome that has mass.
    for row, share in zip(within, padded, strict=True):
        row[np.flatnonzero(share)[-1] if share.any() else 0 :] = 1 << PROBABILITY_BITS
    buckets[-1] = 1 << PROBABILITY_BITS
    return _Table(
        first=int(lower[0]) if len(lower) else int(upper[0]),
        buckets=torch.from_numpy(buckets),
        within=torch.from_numpy(within),
    )


def _inverted(coins: int, size: int, randomness: Randomness) -> Tensor:
    table = _table(coins)
    width = table.within.shape[1]
    drawn = torch.empty(size, dtype=torch.int64)
    for start in range(0, size, _ROWS_AT_ONCE):
        rows = min(_ROWS_AT_ONCE, size - start)
        words = randomness.words(2 * rows) & ((1 << PROBABILITY_BITS) - 1)
        bucket = torch.searchsorted(table.buckets, words[:rows], right=True)
        place = torch.searchsorted(table.within[bucket], words[rows:, None], right=True).squeeze(1)
        drawn[start : start + rows] = table.first + bucket * width + place
    return drawn
