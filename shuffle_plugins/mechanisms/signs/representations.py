"""Public linear representations in which no coefficient of a vector is large, seen alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

from shuffle_plugins.compressors import KashinFrame, Rotation, hadamard_transform
from shuffle_plugins.core import Rows, checks


class Frame(StrEnum):
    """How an l2 ball is spread over coefficients."""

    ROTATION = "rotation"
    KASHIN = "kashin"


class Representation(Protocol):
    """Coefficients c of a vector x with ``reconstruct(c) = x``; a function of x and a public seed."""

    @property
    def size(self) -> int:
        """Number of coefficients."""

    @property
    def column_square(self) -> float:
        """Squared norm of what one unit coefficient is reconstructed to; the same for all."""

    @property
    def isometric(self) -> bool:
        """Whether ``reconstruct`` keeps all norms."""

    def overlaps(self) -> Tensor:
        """Inner products of what two unit coefficients reconstruct to, (size,) float64, by i XOR j."""

    def represent(self, x: Tensor) -> Tensor:
        """Coefficients (clients, size) of x (clients, dim)."""

    def reconstruct(self, coefficients: Tensor) -> Tensor:
        """Vectors (..., dim) of coefficients (..., size)."""

    def entries(self, rows: Rows, indices: Tensor) -> Tensor:
        """Coefficients at each row's own indices, (clients, count) float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationRepresentation:
    """A randomised rotation: single coefficients cost one pass over a row; large ones are only unlikely."""

    rotation: Rotation

    @property
    def size(self) -> int:
        """The dimension, padded to a power of two."""
        return self.rotation.size

    @property
    def column_square(self) -> float:
        """dim/size: an orthonormal column, cut."""
        return self.rotation.dim / self.rotation.size

    @property
    def isometric(self) -> bool:
        """Whether nothing is padded, so that a rotation back keeps all norms."""
        return self.rotation.dim == self.rotation.size

    def overlaps(self) -> Tensor:
        """Inner products of columns of the rotation, cut to their first dim entries."""
        return _overlaps(torch.arange(self.rotation.dim), size=self.size)

    def represent(self, x: Tensor) -> Tensor:
        """The rotated rows, (clients, size)."""
        return self.rotation.apply(x)

    def reconstruct(self, coefficients: Tensor) -> Tensor:
        """The coefficients rotated back, without the padding."""
        return self.rotation.inverse(coefficients)

    def entries(self, rows: Rows, indices: Tensor) -> Tensor:
        """Entries of the rotated rows, without the others."""
        return self.rotation.coefficients(rows, indices).double()


@dataclass(frozen=True, slots=True, kw_only=True)
class KashinRepresentation:
    """A Kashin representation: no coefficient is ever large, but each takes the whole row, several times."""

    frame: KashinFrame

    @property
    def size(self) -> int:
        """Coefficients of the frame."""
        return self.frame.size

    @property
    def column_square(self) -> float:
        """dim/size: the frame is tight and its vectors have equal norms."""
        return self.frame.dim / self.frame.size

    @property
    def isometric(self) -> bool:
        """No: the frame has more coefficients than the vector has entries."""
        return False

    def overlaps(self) -> Tensor:
        """Inner products of the frame's vectors."""
        return _overlaps(self.frame.positions, size=self.size)

    def represent(self, x: Tensor) -> Tensor:
        """A Kashin representation of each row, (clients, size)."""
        return self.frame.represent(x)

    def reconstruct(self, coefficients: Tensor) -> Tensor:
        """The vectors that the frame makes of coefficients, (..., dim)."""
        return self.frame.reconstruct(coefficients)

    def entries(self, rows: Rows, indices: Tensor) -> Tensor:
        """Entries of representations that are made a few at a time and dropped."""
        return self.frame.coefficients(rows, indices).double()


def _overlaps(kept: Tensor, *, size: int) -> Tensor:
    """Inner products of columns of H/√size over the kept rows p, as H_pi·H_pj = H_p(i XOR j)."""
    indicator = torch.zeros(size, dtype=torch.float64)
    indicator[kept] = 1
    return hadamard_transform(indicator) / size


def representation(
    frame: Frame, *, dim: int, seed: int, level: float | None = None
) -> RotationRepresentation | KashinRepresentation:
    """The spreading of that kind, the same wherever dim, seed and level are.

    Args:
        frame: which.
        dim: length of a vector.
        seed: any whole number, public.
        level: of a Kashin frame; its default if None.

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.whole("seed", seed, at_least=-math.inf)
    if frame is Frame.ROTATION:
        return RotationRepresentation(rotation=Rotation(dim=dim, seed=seed))
    if level is None:
        return KashinRepresentation(frame=KashinFrame(dim=dim, seed=seed))
    return KashinRepresentation(frame=KashinFrame(dim=dim, seed=seed, level=level))
