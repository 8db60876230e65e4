"""Sets of s of K things: uniform draws, and their rank among all such sets."""

from __future__ import annotations

import math
from functools import lru_cache

from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.categories.bit_vectors import row_counts
from shuffle_plugins.randomness import Randomness

RANK_BITS = 62

_LARGEST_TABLE = 1 << 12  # of binomials that is looked up; computed beyond
_CHUNK = 1 << 18  # values handled at a time, which fit a cache


def rank_bits(things: int, size: int) -> int | None:
    """Bits of a rank among the sets of ``size`` of ``things``; None if they are more than 62."""
    logarithm = math.lgamma(things + 1) - math.lgamma(size + 1) - math.lgamma(things - size + 1)
    if size > 1 and logarithm > 2 * RANK_BITS * math.log(2):
        return None
    bits = (math.comb(things, size) - 1).bit_length()
    return bits if bits <= RANK_BITS else None


def binomials(things: Tensor, size: int) -> Tensor:
    """C(things, size) of each int64 entry, exact where C(things, i) fits in 62 bits for all i up to size."""
    found = torch.ones_like(things)
    for i in range(size):
        left = things - i
        found = found // (i + 1) * left + found % (i + 1) * left // (i + 1)
    return found


def rank(sets: Tensor, *, things: int) -> Tensor:
    """Rank of each set in colexicographic order: Σ C(c_i, i + 1) over its elements c_0 < c_1 < …

    Args:
        sets: int64 (clients, size), each row ascending, in [0, things), size at most things / 2.
        things: how many there are; :func:`rank_bits` of them and the size is not None.

    Returns:
        int64 (clients,).
    """
    ranks = sets.new_zeros(len(sets))
    for i in range(sets.shape[1]):
        ranks += _choices(sets[:, i], i + 1, things=things)
    return ranks


def unrank(ranks: Tensor, *, things: int, size: int) -> Tensor:
    """The sets of the given ranks, int64 (clients, size), each row ascending; the inverse of :func:`rank`."""
    left = ranks.clone()
    sets = torch.empty(len(ranks), size, dtype=torch.int64, device=ranks.device)
    for i in range(size - 1, -1, -1):
        sets[:, i] = _largest(left, i + 1, things=things)
        left -= _choices(sets[:, i], i + 1, things=things)
    return sets


def elements_through(anchors: Tensor, *, things: int, size: int, randomness: Randomness) -> Tensor:
    """A uniform set of ``size`` of ``things`` among those with the anchor, (clients, size) ascending.

    The other elements are Floyd's draw (Bentley, Floyd 1987): one integer each, none rejected for being
    taken.
    """
    chosen = torch.zeros(len(anchors), size, dtype=torch.int64, device=anchors.device)
    for i, last in enumerate(range(things - size, things - 1), start=1):
        drawn = randomness.integers(last + 1, len(anchors), device=anchors.device) + 1
        taken = (chosen[:, :i] == drawn.unsqueeze(1)).any(dim=1)
        chosen[:, i] = torch.where(taken, last + 1, drawn)
    return chosen.add_(anchors.unsqueeze(1)).remainder_(things).sort(dim=1).values


def flags_through(anchors: Tensor, *, things: int, size: int, randomness: Randomness) -> Tensor:
    """The same draw as flags 0 and 1, uint8 (clients, things), for sets that are not small.

    The others are the first ``size`` - 1 distinct values of a stream of uniform ones: every round draws as
    many as are still missing. Up to half of all things that is about 1.4 integers for each.
    """
    flags = torch.zeros(len(anchors), things, dtype=torch.uint8, device=anchors.device)
    flags.scatter_(1, anchors.unsqueeze(1), 1)
    rows = max(1, _CHUNK // size)
    for start in range(0, len(anchors), rows):
        part, first = flags[start : start + rows], anchors[start : start + rows]
        missing = size - row_counts(part)
        while bool(missing.any()):
            clients = torch.repeat_interleave(missing)
            drawn = randomness.integers(things - 1, len(clients), device=anchors.device)
            part[clients, (drawn + first[clients]).add_(1).remainder_(things)] = 1
            missing = size - row_counts(part)
    return flags


def _largest(ranks: Tensor, size: int, *, things: int) -> Tensor:
    """The largest c below ``things`` with C(c, size) at most the rank."""
    if things <= _LARGEST_TABLE:
        return torch.searchsorted(_table(things, size).to(ranks.device), ranks, right=True) - 1
    low, high = torch.full_like(ranks, size - 1), torch.full_like(ranks, things)
    for _ in range(things.bit_length()):
        middle = (low + high) // 2
        fits = binomials(middle, size) <= ranks
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return low


def _choices(elements: Tensor, size: int, *, things: int) -> Tensor:
    if things <= _LARGEST_TABLE:
        return _table(things, size).to(elements.device)[elements]
    return binomials(elements, size)


@lru_cache(maxsize=256)
def _table(things: int, size: int) -> Tensor:
    return binomials(torch.arange(things), size)
