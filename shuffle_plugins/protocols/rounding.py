r"""Clips rows to a ball, rounds them at random to whole numbers, and adds them up without a rounded copy.

**The law.** A row that is not finite counts as zeros. A row x is multiplied by s = factor · min(1,
radius/‖x‖), factor = (1 - 1e-12) · levels/radius, and each entry y of the product becomes ⌊y⌋ or ⌊y⌋ + 1,
the latter with probability ⌊2**62 · (y - ⌊y⌋)⌋/2**62, independently of all others. A rounded row longer than
a limit is y rounded towards zero instead.

**The draws.** A draw is 62 bits, u/2**62 in [0, 1), and the entry becomes ⌊y + u/2**62⌋ with y - ⌊y⌋ cut
to 62 bits. Its first 16 bits, a coin, are read for every entry; if they do not decide whether the entry is
rounded up (probability 2**-16), three further digits of 16, 16 and 14 bits are read. The four digits come
from the streams of four successive nonces under one key. Digits 2 to 4 are generated only for a tile (in
torch: a chunk of rows) in which some entry needs them.

Each column block of Rows is cut into tiles of 512 columns. Tile t of row i uses 16 ChaCha blocks (64 bytes
each) of each digit's stream, starting at block 16·(i·tiles + t). Entry 32·w + 16·h + b of the tile is half h
(0 is the lower 16 bits) of the 32-bit word w of the b-th of these blocks. So values do not depend on how rows
are shared out to threads, and both paths, compiled and torch, return the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.core import Rows, rows_at_once
from shuffle_plugins.randomness import Keystream

_TILE, _BLOCKS, _WORDS = 512, 16, 128
_COIN = 1 << 16
_NARROW = 1 << 15
_MOST_NARROW = (1 << 31) - 1
_CHUNK_ENTRIES = 1 << 20
_GROUP_BYTES, _LEAST_GROUP = 1 << 22, 4
_COMPUTED = (torch.float32, torch.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class BallRounding:
    """How rows of a ball are rounded.

    Attributes:
        radius: ℓ2 radius of the ball; longer rows are scaled onto it.
        levels: whole steps per radius, in [1, 2**24].
        limit: largest ℓ2 norm of a rounded row, in steps.
    """

    radius: float
    levels: int
    limit: float

    def rows(self, rows: Rows, *, draw: Keystream) -> Tensor:
        """Every row rounded, int64 (clients, dim) on the rows' device.

        Args:
            rows: (clients, dim).
            draw: keystream of the first digit; the next three nonces give the others. No other call may use
                these four.
        """
        out = torch.zeros((rows.num_rows, rows.dim), dtype=torch.int64, device=rows.device)
        for start, part in self._parts(rows):
            if _compiles(rows):
                _compiled(
                    self, part, draw, position=start, out=out[start : start + part.num_rows], apart=True
                )
            else:
                out[start : start + part.num_rows] = _by_torch(self, part, draw, position=start)
        return out

    def total(self, rows: Rows, *, draw: Keystream) -> Tensor:
        """The sum of what :meth:`rows` returns for the same draw, int64 (dim,) on the CPU."""
        out = torch.zeros((1, rows.dim), dtype=torch.int64)
        for start, part in self._parts(rows):
            if _compiles(rows):
                _compiled(self, part, draw, position=start, out=out, apart=False)
            else:
                out += _by_torch(self, part, draw, position=start).sum(dim=0).cpu()
        return out[0]

    @property
    def factor(self) -> float:
        """What a row inside the ball is multiplied by: levels / radius, less 1e-12 of it, so that
        floating-point rounding cannot make a row longer than levels."""
        return self.levels / self.radius * _INSIDE

    def _parts(self, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """All rows where the kernels take them as they are, else as many at once as may be copied."""
        if _compiles(rows) and rows.dtype in _COMPUTED:
            yield 0, rows
            return
        step = rows_at_once(sum(_tiles(rows)) * _TILE, device=rows.device, entries=_CHUNK_ENTRIES)
        for start in range(0, rows.num_rows, step):
            part = rows.narrow(start, min(start + step, rows.num_rows))
            yield start, Rows([block.to(rows.compute_dtype) for block in part.blocks])


def _compiles(rows: Rows) -> bool:
    return rows.device.type == "cpu" and compiled_kernels() is not None


def _tiles(rows: Rows) -> list[int]:
    """Tiles of each block of columns."""
    return [-(-block.shape[1] // _TILE) for block in rows.blocks]


def _by_torch(rule: BallRounding, rows: Rows, draw: Keystream, *, position: int) -> Tensor:
    """Round all given rows; ``position`` is the number of the first one in the whole batch, and selects its
    draws."""
    dense = rows.dense().double()
    kept, norms = Rows(dense).finite(torch.linalg.vector_norm(dense, dim=1))
    scaled = kept.dense() * (rule.factor * (rule.radius / norms.clamp(min=rule.radius)))[:, None]
    fine = scaled * float(_COIN)
    cut = fine.floor()
    sums = cut.to(torch.int64) + _digit(rows, draw, position=position)
    rounded: Tensor = sums >> 16
    row, column = ((sums & (_COIN - 1)) == _COIN - 1).nonzero(as_tuple=True)
    if row.numel():
        lower = torch.zeros_like(row)
        for shift, bits in ((30, 16), (14, 16), (0, 14)):
            draw = draw.following
            lower += (_digit(rows, draw, position=position)[row, column] >> (16 - bits)) << shift
        rest = (fine - cut)[row, column].mul_(2.0**46).to(torch.int64)
        rounded[row, column] += (rest + lower) >> 46
    long = (rounded.double() ** 2).sum(dim=1) > rule.limit**2
    if bool(long.any()):
        rounded[long] = scaled[long].trunc().to(torch.int64)
    return rounded


def _digit(rows: Rows, draw: Keystream, *, position: int) -> Tensor:
    """One digit of every entry's draw, int64 (clients, dim) in [0, 2**16)."""
    widths, tiles = [block.shape[1] for block in rows.blocks], _tiles(rows)
    each = sum(tiles)
    words = draw.words(position * each * _WORDS, rows.num_rows * each * _WORDS, device=rows.device)
    halves = words.view(torch.int32).view(rows.num_rows, each, _BLOCKS, 16).transpose(2, 3).to(torch.int64)
    coins = torch.stack([halves & (_COIN - 1), (halves >> 16) & (_COIN - 1)], dim=3)
    parts, first = [], 0
    for width, count in zip(widths, tiles, strict=True):
        parts.append(coins[:, first : first + count].reshape(rows.num_rows, -1)[:, :width])
        first += count
    return torch.cat(parts, dim=1)


def _compiled(
    rule: BallRounding, rows: Rows, draw: Keystream, *, position: int, out: Tensor, apart: bool
) -> None:
    """Round all given rows with the kernels. ``apart``: write each to its row of ``out``; otherwise add their
    sum to ``out``, (1, dim). ``position``: as for :func:`_by_torch`."""
    kernels = compiled_kernels()
    assert kernels is not None
    blocks = [block if block.stride(1) == 1 else block.contiguous() for block in rows.blocks]
    table = np.array([[b.data_ptr(), b.stride(0), b.shape[1]] for b in blocks], dtype=np.int64)
    item, one = blocks[0].element_size(), blocks[0].new_ones(()).numpy()[()]
    group = max(_LEAST_GROUP, _GROUP_BYTES // max(1, rows.dim * item))
    is_wide = rule.levels >= _NARROW
    if not is_wide:  # a group is added up in 32 bits
        group = min(group, _MOST_NARROW // (rule.levels + 1))
    digits = [draw]
    for _ in range(3):
        digits.append(digits[-1].following)
    states = np.array([digit.state for digit in digits], dtype=np.int32).view(np.uint32)
    scales, lengths = np.zeros(rows.num_rows), np.zeros(rows.num_rows)

    def summed(first: int, last: int) -> Tensor:
        into = out if apart else torch.zeros_like(out)
        kernels.round_rows(
            table,
            one,
            item,
            first,
            last,
            position,
            max(1, min(group, last - first)),
            rule.radius,
            rule.factor,
            states,
            np.zeros(_TILE, dtype=np.int64 if is_wide else np.int32),
            into.numpy(),
            apart,
            scales,
            lengths,
        )
        return into

    for part in kernels.in_parts(summed, rows=rows.num_rows, size=rows.dim):
        if not apart:
            out += part
    for row in np.flatnonzero(lengths > rule.limit**2).tolist():
        scaled = rows.narrow(row, row + 1).dense().double().mul_(float(scales[row]))
        cut = scaled.trunc_().to(torch.int64)
        if apart:
            out[row] = cut[0]
        else:
            out += cut - summed(row, row + 1)


_INSIDE = 1 - 1e-12


@cache
def compiled_kernels() -> ModuleType | None:
    """The compiled kernels, or None where numba does not run; torch then does the same, slower."""
    try:
        return import_module("shuffle_plugins.protocols.rounding_kernels")
    except ImportError:
        return None
