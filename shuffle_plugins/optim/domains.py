"""Closed convex sets Θ of parameters: how to project onto them, and how large they are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.core import Dim, Radius, Ranged


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


@dataclass(frozen=True, kw_only=True)
class _CentredBall(Ranged, ConvexSet):
    """A ball around the origin."""

    radius: Radius = 1.0

    @property
    @override
    def diameter(self) -> float:
        return 2 * self.radius


@dataclass(frozen=True, kw_only=True)
class Ball(_CentredBall):
    """The ℓ2 ball of a radius around the origin."""

    @override
    def project(self, point: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(point, dim=-1, keepdim=True)
        projected: Tensor = point * (self.radius / norms.clamp(min=self.radius))
        return projected

    @override
    def reach(self, point: Tensor) -> float:
        return self.radius + min(self.radius, float(torch.linalg.vector_norm(point)))


@dataclass(frozen=True, kw_only=True)
class Box(Ranged, ConvexSet):
    """Every one of ``dim`` coordinates in [-bound, bound]; its diameter grows with the dimension."""

    bound: Radius = 1.0
    dim: Dim

    @property
    @override
    def diameter(self) -> float:
        return 2 * self.bound * math.sqrt(self.dim)

    @override
    def project(self, point: Tensor) -> Tensor:
        return point.clamp(-self.bound, self.bound)

    @override
    def reach(self, point: Tensor) -> float:
        return float(torch.linalg.vector_norm(self.project(point).abs() + self.bound))


@dataclass(frozen=True, kw_only=True)
class L1Ball(_CentredBall):
    """The ℓ1 ball around the origin, for sparse parameters: it goes with gradients of an ℓ∞ bound."""

    @override
    def project(self, point: Tensor) -> Tensor:
        # By so much as is needed towards zero, found by sorting (Duchi, Shalev-Shwartz, Singer, Chandra 2008,
        # Figure 1).
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

    @override
    def reach(self, point: Tensor) -> float:
        inside = self.project(point)
        square = float(inside.square().sum() + 2 * self.radius * inside.abs().max()) + self.radius**2
        return math.sqrt(square)
