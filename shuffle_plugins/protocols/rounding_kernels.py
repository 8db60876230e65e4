"""Rows rounded at random and added up, and random bits counted, compiled for this processor.

Functions here check nothing; those who call them do, and say what they compute.
One file on purpose: numba's cache notices changes of the file that a function is in, and of no other.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from shuffle_plugins.compressors.cpu_kernels import compiled, in_parts

__all__ = ["add_ones", "add_squares", "in_parts", "round_rows"]


def _squares(x):
    total = 0.0
    for i in range(x.shape[0]):
        value = np.float64(x[i])
        total += value * value
    return total


_squares = compiled(_squares, fastmath={"reassoc"})


@compiled
def add_squares(x, sums):
    """Add each row's squares to its entry of ``sums``, float64 (rows,)."""
    for r in range(x.shape[0]):
        sums[r] += _squares(x[r])


@compiled
def _round_tile(x, scale, coins, out):
    """Squares of rounded entries, and how many entries 16 bits do not decide."""
    kind = out.dtype.type
    opened, squares = kind(0), np.int64(0)
    for i in range(x.shape[0]):
        cut = kind(np.floor(np.float64(x[i]) * scale))
        tossed = kind(cut + kind(kind(coins[i]) + kind(32768)))
        opened = kind(opened + kind((tossed & kind(0xFFFF)) == kind(0xFFFF)))
        rounded = kind(tossed >> kind(16))
        squares += np.int64(kind(rounded * rounded))
        out[i] = kind(out[i] + rounded)
    return squares, opened


@compiled
def round_rows(x, coins, column, scales, apart, out, lengths, found):
    """Round a block of columns, the first of which is ``column``; how many entries 16 bits do not decide.

    Args:
        x: (rows, width), float32 or float64.
        coins: int16 (rows, columns of all blocks): less 2**15 the first 16 bits of each draw.
        scales: float64 (rows,): what a row is multiplied by; 0 for one that counts as zeros.
        apart: whether ``out`` is (rows, columns), or (1, columns), to which the rounded rows are added. It is
            int32 where an entry times 2**16 fits, else int64.
        lengths: float64 (rows,), to which the squares of rounded entries are added.
        found: int64 (entries, 4), filled with undecided ones: row, column, what they are without a carry, and
            46 more bits.
    """
    count = 0
    for r in range(x.shape[0]):
        scale = scales[r] * 65536.0
        if scale == 0.0:
            continue
        for first in range(0, x.shape[1], 1024):
            last = min(first + 1024, x.shape[1])
            into = out[r if apart else 0, column + first : column + last]
            squares, opened = _round_tile(
                x[r, first:last], scale, coins[r, column + first : column + last], into
            )
            lengths[r] += squares
            if opened:
                for i in range(first, last):
                    fine = np.float64(x[r, i]) * scale
                    cut = np.floor(fine)
                    tossed = np.int64(cut) + np.int64(coins[r, column + i]) + 32768
                    if tossed & 0xFFFF == 0xFFFF:
                        found[count, 0], found[count, 1], found[count, 2] = r, column + i, tossed >> 16
                        found[count, 3] = np.int64((fine - cut) * 2.0**46)
                        count += 1
    return count


@compiled
def add_ones(values, scale, half, words, ones):
    """Add to ``ones`` how many words, (bits, rows, columns), are below ½ and ``half`` times a scaled value.

    The last 62 bits of a word count, and as many of the threshold; scaled values are cut to [-1, 1].
    """
    for bit in range(words.shape[0]):
        for i in range(words.shape[1]):
            factor = scale[i, 0]
            for j in range(words.shape[2]):
                edge = np.int64(min(max(values[i, j] * factor, -1.0), 1.0) * half)
                ones[i, j] += (words[bit, i, j] & ((1 << 62) - 1)) < edge + (1 << 61)
