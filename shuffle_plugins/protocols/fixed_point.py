"""Vectors in an ℓ2 ball as integer vectors in a slightly larger one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.compressors.quantization import stochastic_round
from shuffle_plugins.parameters import check_dim, check_radius
from shuffle_plugins.randomness import Randomness
from shuffle_plugins.rows import Rows

MOST_LEVELS = 1 << 24

_SELDOM = 61 * math.log(2)  # -log of the probability that a rounded vector is longer than the bound
_INSIDE = 1 - 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedPoint:
    """Unbiased rounding to multiples of radius/levels, with a length that is bounded for certain.

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
    radius: float
    levels: int

    def __post_init__(self) -> None:
        check_dim(self.dim)
        object.__setattr__(self, "radius", check_radius(self.radius))
        if type(self.levels) is not int or not 1 <= self.levels <= MOST_LEVELS:
            raise ValueError(f"levels must be a whole number in [1, 2**24], got {self.levels!r}")

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
        """Round each row: int64 (clients, dim), entries in [-levels, levels], ℓ2 norm at most ``norm_bound``.

        Raises:
            ValueError: if x is not a floating (clients, dim) batch, or has NaN or infinite entries.
        """
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"vectors have dimension {self.dim}, got {rows.dim}")
        scaled = rows.dense().double()
        norms = torch.linalg.vector_norm(scaled, dim=1)
        if not bool(norms.isfinite().all()):
            raise ValueError("the batch has NaN or infinite entries; nothing was released")
        scale = self.levels / self.radius * _INSIDE * (self.radius / norms.clamp(min=self.radius))
        scaled = scaled * scale[:, None]
        encoded = stochastic_round(scaled, randomness=randomness)
        long = (encoded.double() ** 2).sum(dim=1) > self.norm_bound**2
        if bool(long.any()):
            encoded[long] = scaled[long].trunc().to(torch.int64)
        return encoded

    def decode(self, sums: Tensor) -> Tensor:
        """Sums of encoded vectors in the units of the data, float64."""
        return sums.double() * (self.radius / self.levels)
