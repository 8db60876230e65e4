"""Sums of binary vectors, one shuffled bit per tag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from shuffle_plugins.core import Rows, checks
from shuffle_plugins.protocols.tags.tagged_sum import TaggedSum


@dataclass(frozen=True, kw_only=True, slots=True)
class BinarySum(TaggedSum):
    """The sum of vectors of zeros and ones: Girgis's thesis, Algorithms 3.3.1 and 3.3.2. See TaggedSum.

    Data are floating (clients, dim) of zeros and ones. What is not sampled counts as one half, not as zero
    as in the thesis; that is never worse in the worst case.
    """

    name: ClassVar[str] = "multi-message-binary"
    only_levels: ClassVar[int | None] = 1

    def __post_init__(self) -> None:
        checks.dim(self.dim)
        if self.levels != 1:
            raise ValueError(f"a bit has one plane, got levels={self.levels!r}")
        TaggedSum.__post_init__(self)

    @property
    def size(self) -> int:
        """Every coordinate is sampled as it is."""
        return self.dim

    @property
    def worst_variance(self) -> float:
        """E‖estimate − Σ x_i‖², the same for all data."""
        (noise,) = self.planes.noises
        return self.cohort / 4 * (self.planes.blocks.square_lengths * (noise + 1) - self.dim)

    def _checked(self, x: Tensor | Rows) -> Rows:
        rows = TaggedSum._checked(self, x)
        if not all(bool(((block == 0) | (block == 1)).all()) for block in rows.blocks):
            raise ValueError("the batch has entries that are neither 0 nor 1; nothing was released")
        return rows

    def _values(self, rows: Rows, columns: Tensor) -> Tensor:
        return rows.gather(columns).double() * 2 - 1

    def _in_units(self, sums: Tensor, *, reports: int) -> Tensor:
        return (sums + reports) / 2
