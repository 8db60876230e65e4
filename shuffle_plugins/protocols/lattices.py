r"""Data as integers of bounded size: vectors in an ℓ2 ball, numbers in an interval, and categories.

**The law of a rounded vector.** A row that is not finite counts as zeros. A row x is multiplied by s =
factor · min(1, radius/‖x‖), factor = (1 - 1e-12) · levels/radius, so that floating-point rounding cannot
make it longer than levels. Each entry y of the product becomes ⌊y⌋ or ⌊y⌋ + 1, the latter with probability
⌊2**62 · (y - ⌊y⌋)⌋/2**62, independently of all others. A rounded row longer than ``norm_bound`` is y rounded
towards zero instead.

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

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Annotated

import numpy as np
from typing_extensions import override

from shuffle_plugins.compressors.quantization import stochastic_round
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.ranges import Dim, Radius, Ranged, whole_number
from shuffle_plugins.core.rows import Rows, checked_categories, rows_at_once
from shuffle_plugins.randomness.chacha import Keystream
from shuffle_plugins.randomness.sources import Randomness

MOST_LEVELS = 1 << 24
Levels = Annotated[int, whole_number(at_most=MOST_LEVELS)]
Categories = Annotated[int, whole_number(at_least=2, at_most=1 << 53)]

_SELDOM = 61 * math.log(2)  # -log of the probability that a rounded vector is longer than the bound
_INSIDE = 1 - 1e-12
_TILE, _BLOCKS, _WORDS = 512, 16, 128
_COIN = 1 << 16
_CHUNK_ENTRIES = 1 << 20


class Lattice(Ranged, ABC):
    """Unbiased rounding to whole steps, with a distance between two clients' values that is bounded.

    Attributes:
        levels: g, the steps of the largest datum, in [1, 2**24].
    """

    levels: int
    lowest = 0
    """Least entry of an encoded datum."""
    rounding_variance = 0.25
    """Bound on what rounding adds to one coordinate of one datum, in squared steps."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Coordinates of a client's datum."""

    @property
    @abstractmethod
    def step(self) -> float:
        """One step in units of the data."""

    @property
    def span(self) -> int:
        """Largest entry less the least one."""
        return self.levels - self.lowest

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Bound on the ℓ2 distance of two encoded data, in steps."""

    @property
    @abstractmethod
    def attained(self) -> int:
        """A distance, in steps and one coordinate, that two data have when encoded."""

    @property
    def norm_bound(self) -> float:
        """Bound on the ℓ2 norm of an encoded datum, in steps: how far it is from the zero vector."""
        return self.sensitivity

    @property
    def diameter(self) -> float:
        """ℓ2 distance of the two data furthest apart, in steps, before they are rounded."""
        return float(self.span)

    @abstractmethod
    def encode(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """Round each client's datum, int64 (clients, size); a ValueError unless x is a batch of such data."""

    @abstractmethod
    def encoded_sum(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """The sum over clients of a draw of :meth:`encode`, int64 (size,) on the CPU, in bounded memory."""

    def in_units(self, sums: Tensor) -> Tensor:
        """Sums of encoded data in the units of the data, float64."""
        return sums.double() * self.step


@dataclass(frozen=True, kw_only=True)
class Interval(Lattice):
    """Numbers in [0, upper], rounded without bias to multiples of upper/levels; others are brought inside."""

    levels: Levels
    upper: Radius = 1.0
    size = 1

    @property
    @override
    def step(self) -> float:
        return self.upper / self.levels

    @property
    @override
    def sensitivity(self) -> float:
        return float(self.levels)

    @property
    def attained(self) -> int:
        """0 and the largest number, but for what a float does to the last step."""
        return self.levels - 1

    @override
    def encode(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        numbers = Rows.of(x)
        if numbers.dim != 1:
            raise ValueError(f"a scalar sum takes numbers, (clients, 1), got rows of {numbers.dim}")
        numbers, _ = numbers.finite(numbers.linf_norm())
        scaled = numbers.dense().double().clamp(0.0, self.upper) / self.upper * self.levels
        return stochastic_round(scaled, randomness=randomness).clamp_(0, self.levels)

    @override
    def encoded_sum(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        rows = Rows.of(x)
        total = torch.zeros(1, dtype=torch.int64)
        for start in range(0, rows.num_rows, _CHUNK_ENTRIES):
            part = rows.narrow(start, min(start + _CHUNK_ENTRIES, rows.num_rows))
            total += self.encode(part, randomness=randomness).sum(dim=0).cpu()
        return total


@dataclass(frozen=True, kw_only=True)
class OneHot(Lattice):
    """A category c of K as ``levels`` steps in coordinate c and none elsewhere: nothing is rounded."""

    categories: Categories
    levels: Levels
    rounding_variance = 0.0

    @property
    @override
    def size(self) -> int:
        return self.categories

    @property
    def step(self) -> float:
        """One step in clients."""
        return 1 / self.levels

    @property
    def sensitivity(self) -> float:
        """√2·levels: replacing a client moves two counts by ``levels`` each. Rounded up."""
        return math.nextafter(self.diameter, math.inf)

    @property
    @override
    def norm_bound(self) -> float:
        return float(self.levels)

    @property
    def attained(self) -> int:
        """One category's count moves by this much; the other one that moves is left out of the bound."""
        return self.levels

    @property
    @override
    def diameter(self) -> float:
        return math.sqrt(2) * self.levels

    @override
    def encode(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        held = checked_categories(x, categories=self.categories)
        encoded = torch.zeros(len(held), self.categories, dtype=torch.int64, device=held.device)
        return encoded.scatter_(1, held.unsqueeze(1), self.levels)

    @override
    def encoded_sum(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        held = checked_categories(x, categories=self.categories)
        return torch.bincount(held, minlength=self.categories).cpu() * self.levels


@dataclass(frozen=True, kw_only=True)
class FixedPoint(Lattice):
    """Vectors in an ℓ2 ball, rounded without bias to multiples of radius/levels, to a length that is bounded.

    Each coordinate is rounded up or down at random. A vector whose rounding came out longer than
    :attr:`norm_bound`, an event of probability below 2**-60, is rounded towards zero instead.

    Attributes:
        dim: length of a vector.
        radius: ℓ2 radius of the ball; longer rows are scaled onto it.
        levels: g, steps of the lattice per radius.
    """

    dim: Dim
    levels: Levels
    radius: Radius = 1.0

    @property
    @override
    def size(self) -> int:
        return self.dim

    @property
    @override
    def step(self) -> float:
        return self.radius / self.levels

    @property
    @override
    def lowest(self) -> int:  # type: ignore[override]
        return -self.levels

    @property
    @override
    def sensitivity(self) -> float:
        return 2 * self.norm_bound

    @property
    def attained(self) -> int:
        """Opposite vectors along an axis are this far apart, whatever a float does to their last step."""
        return 2 * (self.levels - 1)

    @property
    def norm_bound(self) -> float:
        """G: no encoded vector is longer, in steps of the lattice.

        ‖x̂‖² = ‖y‖² + 2⟨y, e⟩ + ‖e‖² with y = x·g/r and e the rounding, of mean zero and within an interval
        of length 1 per coordinate: both sums stay below their Hoeffding bounds but with probability 2**-61.
        """
        g = float(self.levels)
        length = g * g + 2 * g * math.sqrt(_SELDOM / 2)
        return math.sqrt(length + self.dim / 4 + math.sqrt(self.dim * _SELDOM / 2))

    @override
    def encode(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        rows, draw = self._rows(x), randomness.keystream()
        out = torch.zeros((rows.num_rows, rows.dim), dtype=torch.int64, device=rows.device)
        for start, part in _parts(rows):
            into = out[start : start + part.num_rows]
            if _compiles(rows):
                self._round_compiled(part, draw, position=start, out=into, apart=True)
            else:
                into[:] = self._round_by_torch(part, draw, position=start)
        return out

    def encoded_sum(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """The sum of what :meth:`encode` returns for the same randomness, without a copy of the rows."""
        rows, draw = self._rows(x), randomness.keystream()
        out = torch.zeros((1, rows.dim), dtype=torch.int64)
        for start, part in _parts(rows):
            if _compiles(rows):
                self._round_compiled(part, draw, position=start, out=out, apart=False)
            else:
                out += self._round_by_torch(part, draw, position=start).sum(dim=0).cpu()
        return out[0]

    def _rows(self, x: Tensor | Rows) -> Rows:
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"vectors have dimension {self.dim}, got {rows.dim}")
        return rows

    @property
    def _factor(self) -> float:
        return self.levels / self.radius * _INSIDE

    def _round_by_torch(self, rows: Rows, draw: Keystream, *, position: int) -> Tensor:
        """Round all given rows; ``position``, the first one's number in the batch, selects draws."""
        dense = rows.dense().double()
        kept, norms = Rows(dense).finite(torch.linalg.vector_norm(dense, dim=1))
        scaled = kept.dense() * (self._factor * (self.radius / norms.clamp(min=self.radius)))[:, None]
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
        long = (rounded.double() ** 2).sum(dim=1) > self.norm_bound**2
        if bool(long.any()):
            rounded[long] = scaled[long].trunc().to(torch.int64)
        return rounded

    def _round_compiled(
        self, rows: Rows, draw: Keystream, *, position: int, out: Tensor, apart: bool
    ) -> None:
        """Round with the kernels; fill ``out`` row by row (``apart``), or add the sum to it, (1, dim)."""
        kernels = compiled_kernels()
        assert kernels is not None
        blocks = [block if block.stride(1) == 1 else block.contiguous() for block in rows.blocks]
        table = np.array([[b.data_ptr(), b.stride(0), b.shape[1]] for b in blocks], dtype=np.int64)
        item, one = blocks[0].element_size(), blocks[0].new_ones(()).numpy()[()]
        group = max(4, (1 << 22) // max(1, rows.dim * item))  # 4 MB stay in a processor's cache
        is_wide = self.levels >= 1 << 15
        if not is_wide:  # a group is added up in 32 bits
            group = min(group, ((1 << 31) - 1) // (self.levels + 1))
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
                self.radius,
                self._factor,
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
        for row in np.flatnonzero(lengths > self.norm_bound**2).tolist():
            scaled = rows.narrow(row, row + 1).dense().double().mul_(float(scales[row]))
            cut = scaled.trunc_().to(torch.int64)
            if apart:
                out[row] = cut[0]
            else:
                out += cut - summed(row, row + 1)


def _parts(rows: Rows) -> Iterator[tuple[int, Rows]]:
    """All rows where the kernels take them as they are, else as many at once as may be copied."""
    if _compiles(rows) and rows.dtype in (torch.float32, torch.float64):
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


@cache
def compiled_kernels() -> ModuleType | None:
    """The compiled kernels, or None where numba does not run; torch then does the same, slower."""
    try:
        return import_module("shuffle_plugins.protocols.rounding_kernels")
    except ImportError:
        return None
