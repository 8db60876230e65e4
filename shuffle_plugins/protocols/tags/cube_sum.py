"""Sums of vectors in an l-infinity ball, one shuffled bit per tag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from shuffle_plugins.core import Rows, checks
from shuffle_plugins.protocols.tags.tagged_sum import TaggedSum


@dataclass(frozen=True, kw_only=True, slots=True)
class CubeSum(TaggedSum):
    """The sum of vectors in an ℓ∞ ball: Girgis's thesis, Algorithms 3.5.1 and 3.5.2. See TaggedSum.

    Data are floating (clients, dim).

    Attributes:
        radius: largest absolute coordinate; larger ones are clipped, each by itself.
    """

    name: ClassVar[str] = "multi-message-cube"

    radius: float = 1.0

    def __post_init__(self) -> None:
        checks.dim(self.dim)
        object.__setattr__(self, "radius", checks.radius(self.radius))
        TaggedSum.__post_init__(self)

    @property
    def size(self) -> int:
        """Every coordinate is sampled as it is."""
        return self.dim

    @property
    def worst_variance(self) -> float:
        """Largest E‖estimate − Σ x_i‖² over the ball, attained."""
        return self.cohort * self.radius**2 * self.planes.worst_variance

    def _values(self, rows: Rows, columns: Tensor) -> Tensor:
        return (rows.gather(columns).double() / self.radius).clamp_(-1, 1)

    def _in_units(self, sums: Tensor, *, reports: int) -> Tensor:
        return sums * self.radius
