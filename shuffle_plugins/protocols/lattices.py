"""Real data as integers of bounded size: vectors in an ℓ2 ball, and numbers in an interval."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.compressors import stochastic_round
from shuffle_plugins.core import Rows, checks, rows_at_once
from shuffle_plugins.protocols.rounding import BallRounding
from shuffle_plugins.randomness import Randomness

MOST_LEVELS = 1 << 24

_SELDOM = 61 * math.log(2)  # -log of the probability that a rounded vector is longer than the bound
_ENTRIES_AT_ONCE = 1 << 22


class Lattice(ABC):
    """Unbiased rounding to whole steps, with a distance between two clients' values that is bounded.

    Attributes:
        levels: g, the steps of the largest datum.
    """

    __slots__ = ()

    levels: int

    @property
    @abstractmethod
    def size(self) -> int:
        """Coordinates of a client's datum."""

    @property
    @abstractmethod
    def step(self) -> float:
        """One step in units of the data."""

    @property
    def lowest(self) -> int:
        """Least entry of an encoded datum: 0, unless data may be negative."""
        return 0

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

    @property
    def rounding_variance(self) -> float:
        """Bound on what rounding adds to one coordinate of one datum, in squared steps."""
        return 0.25

    @abstractmethod
    def encode(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """Round each client's datum, int64 (clients, size).

        Raises:
            ValueError: if x is not a floating batch of that width.
        """

    def encoded_sum(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """The sum over clients of a draw of :meth:`encode`, int64 (size,) on the CPU, in bounded memory.

        Raises:
            ValueError: as :meth:`encode`.
        """
        rows = Rows.of(x)
        step = rows_at_once(self.size, device=rows.device, entries=_ENTRIES_AT_ONCE)
        total = torch.zeros(self.size, dtype=torch.int64)
        for start in range(0, rows.num_rows, step):
            part = rows.narrow(start, min(start + step, rows.num_rows))
            total += self.encode(part, randomness=randomness).sum(dim=0).cpu()
        return total

    def in_units(self, sums: Tensor) -> Tensor:
        """Sums of encoded data in the units of the data, float64."""
        return sums.double() * self.step


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedPoint(Lattice):
    """Vectors in an ℓ2 ball, rounded without bias to multiples of radius/levels, to a length that is bounded.

    Each coordinate is rounded up or down at random. A vector whose rounding came out longer than
    :attr:`norm_bound`, an event of probability below 2**-60, is rounded towards zero instead.

    Attributes:
        dim: length of a vector.
        radius: ℓ2 radius of the ball; longer rows are scaled onto it.
        levels: g, steps of the lattice per radius, in [1, 2**24].

    Raises:
        ValueError: if a field is out of range.
    """

    dim: int
    levels: int
    radius: float = 1.0

    def __post_init__(self) -> None:
        checks.dim(self.dim)
        object.__setattr__(self, "radius", checks.radius(self.radius))
        checks.whole("levels", self.levels, at_most=MOST_LEVELS)

    @property
    def size(self) -> int:
        """d, the number of coordinates of a client's vector."""
        return self.dim

    @property
    def step(self) -> float:
        """One step in units of the data: radius / levels."""
        return self.radius / self.levels

    @property
    def lowest(self) -> int:
        """−levels, as coordinates may be negative."""
        return -self.levels

    @property
    def sensitivity(self) -> float:
        """Two encoded vectors are at most 2·norm_bound apart."""
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

    def encode(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """Round each row: int64 (clients, dim), within [-levels, levels], ℓ2 norm up to ``norm_bound``."""
        return self._rounding.rows(self._rows(x), draw=randomness.keystream())

    def encoded_sum(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """The sum of what :meth:`encode` returns for the same randomness, without a copy of the rows."""
        return self._rounding.total(self._rows(x), draw=randomness.keystream())

    def _rows(self, x: Tensor | Rows) -> Rows:
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"vectors have dimension {self.dim}, got {rows.dim}")
        return rows

    @property
    def _rounding(self) -> BallRounding:
        return BallRounding(radius=self.radius, levels=self.levels, limit=self.norm_bound)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval(Lattice):
    """Numbers in [0, upper], rounded without bias to multiples of upper/levels; others are brought inside.

    Attributes:
        upper: Δ, the largest number, in [1e-30, 1e30].
        levels: g, steps from 0 to it, in [1, 2**24].

    Raises:
        ValueError: if a field is out of range.
    """

    levels: int
    upper: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "upper", checks.radius(self.upper))
        checks.whole("levels", self.levels, at_most=MOST_LEVELS)

    @property
    def size(self) -> int:
        """1: a client's datum is one number."""
        return 1

    @property
    def step(self) -> float:
        """One step in units of the data: upper / levels."""
        return self.upper / self.levels

    @property
    def sensitivity(self) -> float:
        """Rounding does not leave [0, levels], so no two are further apart."""
        return float(self.levels)

    @property
    def attained(self) -> int:
        """0 and the largest number, but for what a float does to the last step."""
        return self.levels - 1

    def encode(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """Round each number: int64 (clients, 1), entries in [0, levels]; see :meth:`Lattice.encode`."""
        numbers = Rows.of(x)
        if numbers.dim != 1:
            raise ValueError(f"a scalar sum takes numbers, (clients, 1), got rows of {numbers.dim}")
        numbers, _ = numbers.finite(numbers.linf_norm())
        scaled = numbers.dense().double().clamp(0.0, self.upper) / self.upper * self.levels
        return stochastic_round(scaled, randomness=randomness).clamp_(0, self.levels)
