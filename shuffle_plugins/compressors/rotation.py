"""Public tight frames, and the simplest of them: a random rotation, by signs and the Hadamard transform."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.compressors.hadamard import (
    hadamard_coefficients,
    hadamard_transform,
    padded_dim,
    padded_transform,
)
from shuffle_plugins.compressors.public_bits import public_signs
from shuffle_plugins.core import Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor


class TightFrame(ABC):
    """``size`` public vectors of equal norm, of which every vector of length ``dim`` is a combination.

    They are columns of a Hadamard matrix, cut to ``dim`` of its rows. A vector's coefficients are a function
    of the vector and a public seed.

    Attributes:
        dim: length of a vector.
        size: number of coefficients, a power of two.
    """

    __slots__ = ()

    dim: int
    size: int

    @property
    def column_square(self) -> float:
        """dim/size, the squared norm of what one unit coefficient is reconstructed to; the same for all."""
        return self.dim / self.size

    @property
    def isometric(self) -> bool:
        """Whether :meth:`reconstruct` keeps all norms."""
        return self.dim == self.size

    def overlaps(self) -> NDArray[np.float64]:
        """Inner products of what two unit coefficients reconstruct to, (size,) float64, by i XOR j.

        These are columns of H/√size over the kept rows p, and H_pi·H_pj = H_p(i XOR j).
        """
        found = np.zeros(self.size)
        found[self._kept_rows()] = 1.0
        width = 1
        while width < self.size:  # the fast Walsh-Hadamard transform
            halves = found.reshape(-1, 2, width)
            found = np.stack([halves[:, 0] + halves[:, 1], halves[:, 0] - halves[:, 1]], axis=1).ravel()
            width *= 2
        return found / self.size

    @abstractmethod
    def _kept_rows(self) -> NDArray[np.int64]:
        """Rows of the Hadamard matrix that stand for the entries of a vector, (dim,) int64."""

    @abstractmethod
    def represent(self, x: Tensor) -> Tensor:
        """Coefficients (clients, size) of vectors (clients, dim)."""

    @abstractmethod
    def reconstruct(self, coefficients: Tensor) -> Tensor:
        """Vectors (..., dim) of coefficients (..., size): undoes :meth:`represent`."""

    @abstractmethod
    def coefficients(self, x: Tensor | Rows, indices: Tensor) -> Tensor:
        """Entries of ``represent(x)`` at each client's own indices, (clients, count)."""


@dataclass(frozen=True, kw_only=True)
class Rotation(TightFrame):
    r"""The isometry :math:`x \mapsto H D x / \sqrt{size}` of zero-padded rows, D a diagonal of public signs.

    It spreads every vector evenly: over the signs, an entry is sub-Gaussian with variance proxy ‖x‖₂²/size,
    for x chosen before the seed (Hoeffding's inequality). Thesis of Girgis, Section 3.6: U = H D / √d.

    Args:
        dim: length of a vector.
        seed: any whole number, public: clients and analyzer use the same.
    """

    dim: int
    seed: int
    size: int = field(init=False, repr=False, compare=False)
    """Length of a rotated vector: the next power of two."""

    def __post_init__(self) -> None:
        checks.whole("public seed", self.seed, at_least=-math.inf)
        object.__setattr__(self, "size", padded_dim(self.dim))

    @cached_property
    def signs(self) -> Tensor:
        """The diagonal D, +1 and -1, (dim,) int8 on the CPU."""
        return public_signs("rotation", seed=self.seed, count=self.dim)

    def represent(self, x: Tensor) -> Tensor:
        """Rotated vectors, (..., size), in the dtype of x (..., dim)."""
        if x.dim() == 0 or x.shape[-1] != self.dim:
            raise ValueError(f"this rotation takes vectors of length {self.dim}, got shape {tuple(x.shape)}")
        return padded_transform(x, signs=self.signs, normalized=True)

    def reconstruct(self, coefficients: Tensor) -> Tensor:
        """The transpose of :meth:`represent`, (..., dim), for coefficients (..., size); it undoes it."""
        if coefficients.dim() == 0 or coefficients.shape[-1] != self.size:
            got = tuple(coefficients.shape)
            raise ValueError(f"this rotation returns vectors of length {self.size}, got {got}")
        back = hadamard_transform(coefficients, normalized=True)[..., : self.dim]
        return back * self.signs.to(back.device)

    def coefficients(self, x: Tensor | Rows, indices: Tensor) -> Tensor:
        """Entries of ``represent(x)`` at each client's own indices, (clients, count), in one pass."""
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"this rotation takes vectors of length {self.dim}, got {rows.dim}")
        return hadamard_coefficients(rows, indices, signs=self.signs).mul_(self.size**-0.5)

    def _kept_rows(self) -> NDArray[np.int64]:
        return np.arange(self.dim)

    def __hash__(self) -> int:
        return hash((self.dim, self.seed))
