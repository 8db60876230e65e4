"""Closed convex sets Θ of parameters: how to project onto them, and how large they are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.core import checks


class ConvexSet(ABC):
    """A closed convex set of parameters."""

    @property
    @abstractmethod
    def diameter(self) -> float:
        """D, the largest distance of two of its points."""

    @abstractmethod
    def project(self, point: Tensor) -> Tensor:
        """The nearest point of the set, (dim,); of several points, (…, dim), each on its own."""

    @abstractmethod
    def reach(self, point: Tensor) -> float:
        """The largest distance from a point of the set to another."""

    def start(self, dim: int) -> Tensor:
        """Where an optimiser starts by default, float64 (dim,): the origin, unless a set says otherwise."""
        return torch.zeros(dim, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class _CentredBall(ConvexSet):
    """What the balls around the origin share.

    Attributes:
        radius: positive and finite.

    Raises:
        ValueError: if the radius is not.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", checks.radius(self.radius))

    @property
    def diameter(self) -> float:
        """Largest ℓ2 distance of two points: twice the radius."""
        return 2 * self.radius


@dataclass(frozen=True, kw_only=True, slots=True)
class Ball(_CentredBall):
    """The ℓ2 ball around the origin.

    Attributes:
        radius: positive and finite.

    Raises:
        ValueError: if the radius is not.
    """

    def project(self, point: Tensor) -> Tensor:
        """The point itself, or the one on the sphere below it."""
        norms = torch.linalg.vector_norm(point, dim=-1, keepdim=True)
        projected: Tensor = point * (self.radius / norms.clamp(min=self.radius))
        return projected

    def reach(self, point: Tensor) -> float:
        """The radius plus the point's distance from the origin."""
        return self.radius + min(self.radius, float(torch.linalg.vector_norm(point)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Box(ConvexSet):
    """Every coordinate in [-bound, bound]; its diameter grows with the dimension.

    Attributes:
        bound: positive and finite.
        dim: number of coordinates.

    Raises:
        ValueError: if the bound is not positive, or there are no coordinates.
    """

    bound: float = 1.0
    dim: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.radius(self.bound))
        checks.dim(self.dim)

    @property
    def diameter(self) -> float:
        """The distance between opposite corners."""
        return 2 * self.bound * math.sqrt(self.dim)

    def project(self, point: Tensor) -> Tensor:
        """Every coordinate clipped to [-bound, bound]."""
        return point.clamp(-self.bound, self.bound)

    def reach(self, point: Tensor) -> float:
        """The distance to the corner farthest away."""
        return float(torch.linalg.vector_norm(self.project(point).abs() + self.bound))


@dataclass(frozen=True, kw_only=True, slots=True)
class L1Ball(_CentredBall):
    """The ℓ1 ball around the origin, for sparse parameters: the natural one where gradients have an ℓ∞ bound.

    Attributes:
        radius: positive and finite.

    Raises:
        ValueError: if the radius is not.
    """

    def project(self, point: Tensor) -> Tensor:
        """The point itself, or every coordinate moved towards zero by as much as is needed, and no further.

        The amount is found by sorting (Duchi, Shalev-Shwartz, Singer, Chandra 2008, Figure 1).
        """
        sizes = point.abs()
        falling = sizes.sort(dim=-1, descending=True).values
        counts = torch.arange(1, point.shape[-1] + 1, dtype=point.dtype, device=point.device)
        excess = (falling.cumsum(dim=-1) - self.radius) / counts
        kept = (falling > excess).sum(dim=-1, keepdim=True).clamp(min=1)
        shift = excess.gather(-1, kept - 1)
        shrunk = point.sign() * (sizes - shift).clamp(min=0)
        inside = sizes.sum(dim=-1, keepdim=True) <= self.radius
        projected: Tensor = torch.where(inside, point, shrunk)
        return projected

    def reach(self, point: Tensor) -> float:
        """The distance to the corner farthest away."""
        inside = self.project(point)
        square = float(inside.square().sum() + 2 * self.radius * inside.abs().max()) + self.radius**2
        return math.sqrt(square)
