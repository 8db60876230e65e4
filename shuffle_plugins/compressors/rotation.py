"""A public random rotation: random signs, then the Hadamard transform."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from shuffle_plugins.compressors.hadamard import (
    hadamard_coefficients,
    hadamard_transform,
    padded_dim,
    padded_transform,
)
from shuffle_plugins.compressors.public_bits import public_signs
from shuffle_plugins.core import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    r"""The isometry :math:`x \mapsto H D x / \sqrt{size}` of zero-padded rows, D a diagonal of public signs.

    It spreads every vector evenly: over the signs, an entry is sub-Gaussian with variance proxy ‖x‖₂²/size,
    so :math:`P(\max_j |y_j| > t) \le 2\,size\,\exp(-size\,t^2 / (2‖x‖_2^2))` for x chosen before the seed
    (Hoeffding's inequality and a union bound). Thesis of Girgis, Section 3.6: U = H D / √d.

    Args:
        dim: length of a vector.
        seed: any whole number, public: clients and analyzer use the same.

    Raises:
        ValueError: if an argument is out of range.
    """

    dim: int
    seed: int
    signs: Tensor = field(init=False, repr=False, compare=False)
    """The diagonal D, +1 and -1, (dim,) int8 on the CPU."""
    size: int = field(init=False, repr=False, compare=False)
    """Length of a rotated vector: the next power of two."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", padded_dim(self.dim))
        object.__setattr__(self, "signs", public_signs("rotation", seed=self.seed, count=self.dim))

    def apply(self, x: Tensor) -> Tensor:
        """Rotated vectors, (..., size), in the dtype of x (..., dim).

        Raises:
            ValueError: if the last axis is not dim, or x is not floating point.
        """
        if x.dim() == 0 or x.shape[-1] != self.dim:
            raise ValueError(f"this rotation takes vectors of length {self.dim}, got shape {tuple(x.shape)}")
        return padded_transform(x, signs=self.signs, normalized=True)

    def inverse(self, y: Tensor) -> Tensor:
        """The transpose of :meth:`apply`, (..., dim), for y (..., size); it undoes ``apply``.

        Raises:
            ValueError: if the last axis is not size, or y is not floating point.
        """
        if y.dim() == 0 or y.shape[-1] != self.size:
            raise ValueError(f"this rotation returns vectors of length {self.size}, got {tuple(y.shape)}")
        return hadamard_transform(y, normalized=True)[..., : self.dim] * self.signs.to(y.device)

    def coefficients(self, x: Tensor | Rows, indices: Tensor) -> Tensor:
        """Entries of ``apply(x)`` at each client's own indices, (clients, count), in one pass over the batch.

        Args:
            x: (clients, dim).
            indices: int64 (clients, count), in [0, size).

        Raises:
            ValueError: if shapes disagree or an index is out of range.
        """
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"this rotation takes vectors of length {self.dim}, got {rows.dim}")
        return hadamard_coefficients(rows, indices, signs=self.signs).mul_(self.size**-0.5)

    def __hash__(self) -> int:
        return hash((self.dim, self.seed))
