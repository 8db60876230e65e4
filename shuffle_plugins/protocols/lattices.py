"""Data as integers of bounded size: vectors in a ball, numbers in an interval or in a tree, and categories.

**A rounded vector.** A row that is not finite counts as zeros. A row x is multiplied by s =
(1 - 1e-12) · levels/radius · min(1, radius/‖x‖), so that floating-point rounding cannot make it longer than
levels. Each entry y becomes ⌊y⌋ or ⌊y⌋ + 1, the latter with probability ⌊2**62 · (y - ⌊y⌋)⌋/2**62,
independently. A rounded row longer than ``norm_bound`` is y rounded towards zero instead.

**The draws.** Of a draw of 62 bits the first 16, a coin, are read for every entry, and the others only where
these do not decide whether the entry is rounded up (probability 2**-16). Coins are those of the keystream, a
row's from a multiple of four on; the others stand at the coin's number in the following stream. So values do
not depend on how rows are shared out to threads, and both paths, compiled and torch, return the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shuffle_plugins.compressors.quantization import stochastic_round
from shuffle_plugins.core import Rows, checks
from shuffle_plugins.core.checks import Dim, Radius, Ranged, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import checked_categories, rows_at_once, spans
from shuffle_plugins.randomness.chacha import Keystream
from shuffle_plugins.randomness.sources import Randomness

MOST_LEVELS = 1 << 24
Levels = Annotated[int, whole_number(at_most=MOST_LEVELS)]
Categories = Annotated[int, whole_number(at_least=2, at_most=1 << 53)]
Leaves = Annotated[int, whole_number(at_least=2, at_most=1 << 20)]

_SELDOM = 61 * math.log(2)  # -log of the probability that a rounded vector is longer than the bound
_T = TypeVar("_T")


class Lattice(Ranged, ABC):
    """Unbiased rounding to whole steps, with a distance between two clients' values that is bounded.

    ``levels`` are the steps of the largest datum.
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
    def l1_sensitivity(self) -> int:
        """Bound on the ℓ1 distance of two encoded data, in steps."""
        raise ValueError(f"no ℓ1 distance of a {type(self).__name__}'s data is known")

    @property
    def moved(self) -> int | None:
        """How many coordinates two data differ in at most, each by an equal part of the ℓ1 sensitivity; None
        if one coordinate may take all of it, and others a part."""
        return None

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
        """Round each client's datum, int64 (clients, size)."""

    def encoded_sum(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """The sum over clients of a draw of :meth:`encode`, int64 (size,) on the CPU, in bounded memory."""
        rows = Rows.of(x)
        total = torch.zeros(self.size, dtype=torch.int64)
        for start, stop in spans(rows.num_rows, width=self.size, device=rows.device, entries=1 << 20):
            total += self.encode(rows.narrow(start, stop), randomness=randomness).sum(dim=0).cpu()
        return total

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
    @override
    def l1_sensitivity(self) -> int:
        return self.levels

    @property
    @override
    def moved(self) -> int:
        return 1

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


class _Cells(Lattice):
    """``levels`` steps in each of some cells, equally many for each client, and none elsewhere."""

    rounding_variance = 0.0

    @property
    @abstractmethod
    def depth(self) -> int:
        """How many cells a datum is in."""

    @abstractmethod
    def cells(self, x: Tensor | Rows) -> Tensor:
        """Every client's cells, int64 (clients, depth), as places in the whole vector; −1 for none."""

    @property
    @override
    def step(self) -> float:
        """One step in clients."""
        return 1 / self.levels

    @property
    @override
    def sensitivity(self) -> float:
        """√(2·depth)·levels: replacing a client moves 2·depth counts by ``levels`` each. Rounded up."""
        return math.nextafter(self.diameter, math.inf)

    @property
    @override
    def diameter(self) -> float:
        return math.sqrt(2 * self.depth) * self.levels

    @property
    @override
    def l1_sensitivity(self) -> int:
        return 2 * self.depth * self.levels

    @property
    @override
    def moved(self) -> int:
        return 2 * self.depth

    @property
    @override
    def attained(self) -> int:
        """One cell's count moves by this much; the others that move are left out of the bound."""
        return self.levels

    @override
    def encode(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        cells = self.cells(x)
        encoded = torch.zeros(len(cells), self.size + 1, dtype=torch.int64, device=cells.device)
        return encoded.scatter_(1, cells + 1, self.levels)[:, 1:]

    @override
    def encoded_sum(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        counts = torch.bincount(self.cells(x).flatten() + 1, minlength=self.size + 1)
        return counts[1:].cpu() * self.levels


@dataclass(frozen=True, kw_only=True)
class OneHot(_Cells):
    """A category c of K as ``levels`` steps in coordinate c and none elsewhere; −1 as none at all."""

    categories: Categories
    levels: Levels
    depth = 1

    @property
    @override
    def size(self) -> int:
        return self.categories

    @property
    @override
    def norm_bound(self) -> float:
        return float(self.levels)

    @override
    def cells(self, x: Tensor | Rows) -> Tensor:
        return checked_categories(x, categories=self.categories, least=-1).unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class Dyadic(_Cells):
    """A number in [lower, upper] as one step in each of some histograms, of 2, 4, …, ``leaves`` cells.

    They stand one after the other; numbers outside are brought inside, and one that is not a number counts as
    ``lower``. Nothing is rounded beyond the cell.
    """

    lower: float
    upper: float
    leaves: Leaves = 1 << 10
    levels: Levels = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.leaves & (self.leaves - 1):
            raise ValueError(f"leaves must be a power of two, got {self.leaves}")
        checks.number("upper", self.upper, above=checks.number("lower", self.lower))

    @property
    @override
    def depth(self) -> int:
        return self.leaves.bit_length() - 1

    @property
    @override
    def size(self) -> int:
        return 2 * self.leaves - 2

    @override
    def cells(self, x: Tensor | Rows) -> Tensor:
        rows = Rows.of(x)
        if rows.dim != 1:
            raise ValueError(f"quantiles are of numbers, (clients, 1), got rows of {rows.dim}")
        numbers = rows.dense().double().squeeze(1).nan_to_num(nan=self.lower).clamp(self.lower, self.upper)
        leaf = ((numbers - self.lower) / (self.upper - self.lower) * self.leaves).to(torch.int64)
        leaf = leaf.clamp(max=self.leaves - 1)
        first = [(2 << level) - 2 for level in range(self.depth)]
        places = [(leaf >> (self.depth - 1 - level)) + first[level] for level in range(self.depth)]
        return torch.stack(places, dim=1)


@dataclass(frozen=True, kw_only=True)
class _Ball(Lattice):
    """Vectors in a ball, in multiples of radius/levels."""

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
    def attained(self) -> int:
        """Opposite vectors along an axis are this far apart, whatever a float does to their last step."""
        return 2 * (self.levels - 1)

    def _rows(self, x: Tensor | Rows) -> Rows:
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"vectors have dimension {self.dim}, got {rows.dim}")
        return rows


@dataclass(frozen=True, kw_only=True)
class OneNorm(_Ball):
    """Vectors in an ℓ1 ball, rounded without bias to multiples of radius/levels in the same ball.

    A row x is multiplied by levels/radius·min(1, radius/‖x‖₁), to y. With c_j = |y_1| + … + |y_j| and one U
    uniform on [0, 1), coordinate j becomes ±(⌊c_j + U⌋ − ⌊c_(j−1) + U⌋), with the sign of y_j: |y_j| on
    average, and ⌊c_d + U⌋ ≤ levels in all. A row that is not finite counts as zeros.
    """

    @property
    @override
    def sensitivity(self) -> float:
        return float(2 * self.levels)

    @property
    @override
    def l1_sensitivity(self) -> int:
        return 2 * self.levels

    @override
    def encode(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        rows = self._rows(x)
        dense = rows.finite(rows.l1_norm())[0].dense().double()
        reached = dense.abs().cumsum(dim=1)
        reached *= self.levels / reached[:, -1:].clamp(min=self.radius)
        reached = (reached + randomness.uniform((len(dense), 1), device=dense.device)).floor_()
        reached.clamp_(max=self.levels)  # a sum of floats may be rounded up
        steps = reached.diff(
            dim=1, prepend=torch.zeros(len(dense), 1, dtype=torch.float64, device=dense.device)
        )
        return (steps * dense.sign()).to(torch.int64)


def drawn_coordinates(rows: Rows, *, radius: float, signed: bool, randomness: Randomness) -> Tensor:
    r"""One coordinate j of each row, with probability \|x_j\|/radius: j, or dim + j if x_j < 0; −1 for none.

    Int64 (rows,), on the CPU. Longer rows, in ℓ1, are scaled onto the ball. Without ``signed`` negative
    numbers count as zeros.
    """
    drawn = torch.empty(rows.num_rows, dtype=torch.int64)
    each = rows_at_once(rows.dim, device=drawn.device)
    for start in range(0, rows.num_rows, each):
        part = rows.narrow(start, min(start + each, rows.num_rows)).dense().double().cpu()
        reached = (part.abs() if signed else part.clamp(min=0)).cumsum(dim=1)
        place = randomness.uniform((len(part), 1)) * reached[:, -1:].clamp(min=radius)
        column = torch.searchsorted(reached, place, right=True)
        negative = part.gather(1, column.clamp(max=rows.dim - 1)) < 0
        found = torch.where(column < rows.dim, column + rows.dim * negative, -1)
        drawn[start : start + each] = found.squeeze(1)
    return drawn


@dataclass(frozen=True, kw_only=True)
class FixedPoint(_Ball):
    """Vectors in an ℓ2 ball, rounded without bias to multiples of radius/levels, to a bounded length."""

    @property
    @override
    def sensitivity(self) -> float:
        return 2 * self.norm_bound

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

        def fill(first: int, last: int) -> None:
            for start, part in self._rounded(rows, draw, first, last, apart=True):
                out[start : start + len(part)] = part

        _in_parts(fill, rows)
        return out

    @override
    def encoded_sum(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        rows, draw = self._rows(x), randomness.keystream()

        def summed(first: int, last: int) -> Tensor:
            out = torch.zeros(rows.dim, dtype=torch.int64)
            for _, part in self._rounded(rows, draw, first, last, apart=False):
                out += part.sum(dim=0).cpu()
            return out

        return torch.stack(_in_parts(summed, rows)).sum(dim=0)

    def _rounded(
        self, rows: Rows, draw: Keystream, first: int, last: int, *, apart: bool
    ) -> Iterator[tuple[int, Tensor]]:
        """The first row's number and rounded rows, which unless ``apart`` may be added up, (1, dim)."""
        stride = -(-self.dim // 4) * 4
        step = rows_at_once(stride, device=rows.device, entries=1 << 20)
        for start in range(first, last, step):
            part = rows.narrow(start, min(start + step, last))
            count = part.num_rows
            coins = draw.coins(start * stride, count * stride, device=rows.device).view(count, stride)
            if _kernels_for(rows):
                yield start, torch.from_numpy(self._by_kernels(part, coins, draw, start, apart=apart))
            else:
                yield start, self._by_torch(part, coins, draw, start)

    def _by_torch(self, rows: Rows, coins: Tensor, draw: Keystream, start: int) -> Tensor:
        dense = rows.dense().double()
        kept, norms = Rows(dense).finite(torch.linalg.vector_norm(dense, dim=1))
        scaled = kept.dense() * (self._factor * (self.radius / norms.clamp(min=self.radius)))[:, None]
        fine = scaled * 65536.0
        cut = fine.floor()
        tossed = cut.to(torch.int64) + coins[:, : self.dim] + 32768
        rounded: Tensor = tossed >> 16
        row, column = ((tossed & 0xFFFF) == 0xFFFF).nonzero(as_tuple=True)
        if row.numel():
            rest = (fine - cut)[row, column].mul_(2.0**46).to(torch.int64)
            more = draw.refinements((start + row) * coins.shape[1] + column)
            rounded[row, column] += (rest + _last_bits(more)) >> 46
        long = (rounded.double() ** 2).sum(dim=1) > self.norm_bound**2
        rounded[long] = scaled[long].trunc().to(torch.int64)
        return rounded

    def _by_kernels(
        self, rows: Rows, coins: Tensor, draw: Keystream, start: int, *, apart: bool
    ) -> NDArray[Any]:
        kernels = _kernels_for(rows)
        blocks = [block.to(rows.compute_dtype).contiguous().numpy() for block in rows.blocks]
        squares, lengths, tossed = np.zeros(rows.num_rows), np.zeros(rows.num_rows), coins.numpy()
        for block in blocks:
            kernels.add_squares(block, squares)
        norms = np.maximum(np.sqrt(squares), self.radius)
        scales = np.where(np.isfinite(norms), self._factor * (self.radius / norms), 0.0)
        narrow = not apart and self.levels < 1 << 15 and rows.num_rows * (self.levels + 1) < 1 << 31
        out = np.zeros((rows.num_rows if apart else 1, self.dim), dtype=np.int32 if narrow else np.int64)
        column, found = 0, np.empty((out.shape[1] * rows.num_rows, 4), dtype=np.int64)
        for block in blocks:
            count = kernels.round_rows(block, tossed, column, scales, apart, out, lengths, found)
            row, place, rounded, rest = found[:count].T
            more = draw.refinements(torch.from_numpy((start + row) * coins.shape[1] + place))
            carried = (rest + _last_bits(more).numpy()) >> 46
            np.add.at(out, (row * apart, place), carried)
            np.add.at(lengths, row, carried * (2 * rounded + 1))
            column += block.shape[1]
        long = np.flatnonzero(lengths > self.norm_bound**2)
        if long.size and not apart:
            each = self._by_kernels(rows, coins, draw, start, apart=True)
            total: NDArray[Any] = each.sum(axis=0, keepdims=True)
            return total
        for place in long.tolist():
            dense = rows.narrow(place, place + 1).dense().double().numpy()
            out[place] = np.trunc(dense[0] * scales[place])
        return out

    @property
    def _factor(self) -> float:
        return self.levels / self.radius * (1 - 1e-12)


def _last_bits(words: Tensor) -> Tensor:
    """46 bits of a word, which follow those of a coin."""
    return (words >> 18) & ((1 << 46) - 1)


def _kernels_for(rows: Rows) -> Any:
    return compiled_kernels() if rows.device.type == "cpu" else None


def _in_parts(action: Callable[[int, int], _T], rows: Rows) -> list[_T]:
    """Call on ranges of rows, in threads where kernels run and that pays."""
    kernels = _kernels_for(rows)
    if kernels is None:
        return [action(0, rows.num_rows)]
    found: list[_T] = kernels.in_parts(action, rows=rows.num_rows, size=rows.dim)
    return found


@cache
def compiled_kernels() -> ModuleType | None:
    """The compiled kernels, or None where numba does not run; torch then does the same, slower."""
    try:
        return import_module("shuffle_plugins.protocols.rounding_kernels")
    except ImportError:
        return None
