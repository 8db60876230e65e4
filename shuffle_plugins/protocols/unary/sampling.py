"""Draws binomial numbers from tables, for a host that simulates all clients."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from shuffle_plugins.randomness import PROBABILITY_BITS, WHOLE, Randomness

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
    """Draw Bin(events, threshold/2**62) for each entry, int64 of its shape, on the CPU.

    Args:
        events: int64, entries in [0, 2**31].
        threshold: of the probability of one event, in [1, 2**62).
        randomness: source of all random bits.

    Raises:
        ValueError: if there are more events than can be drawn.
    """
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
