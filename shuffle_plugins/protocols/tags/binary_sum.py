"""Sums of binary vectors, one shuffled bit per tag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from shuffle_plugins.core import checks
from shuffle_plugins.core.rows import Rows
from shuffle_plugins.mechanisms.signs.coordinate_blocks import entries
from shuffle_plugins.protocols.tags.base import TaggedSum
from shuffle_plugins.protocols.tags.calibration import calibrate


@dataclass(frozen=True, kw_only=True, slots=True)
class BinarySum(TaggedSum):
    """The sum of vectors of zeros and ones: Girgis's thesis, Algorithms 3.3.1 and 3.3.2. See TaggedSum.

    Data are floating (clients, dim) of zeros and ones. What is not sampled counts as one half, not as zero
    as in the thesis; that is never worse in the worst case.
    """

    name: ClassVar[str] = "multi-message-binary"

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

    @classmethod
    def calibrated(
        cls,
        *,
        dim: int,
        cohort: int,
        epsilon: float,
        delta: float,
        honest_fraction: float = 1.0,
        num_steps: int = 1,
        population: int | None = None,
        overhead: float = 0.1,
        samples: int | None = None,
    ) -> Self:
        """The protocol of the largest budget whose certified ε at δ is at most ``epsilon``.

        Arguments and errors as of :meth:`BallSum.calibrated`.
        """
        checks.dim(dim)
        return calibrate(
            size=dim,
            cohort=cohort,
            epsilon=epsilon,
            delta=delta,
            honest_fraction=honest_fraction,
            num_steps=num_steps,
            population=population,
            overhead=overhead,
            levels=1,
            samples=samples,
            build=lambda plan, budget: cls(
                dim=dim,
                cohort=cohort,
                budget=budget,
                samples=plan.samples,
                honest_fraction=honest_fraction,
            ),
        )

    def _checked(self, x: Tensor | Rows) -> Rows:
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"{self.name} takes vectors of dimension {self.dim}, got {rows.dim}")
        if not all(bool(((block == 0) | (block == 1)).all()) for block in rows.blocks):
            raise ValueError("the batch has entries that are neither 0 nor 1; nothing was released")
        return rows

    def _values(self, rows: Rows, columns: Tensor) -> Tensor:
        return entries(rows, columns).double() * 2 - 1

    def _estimate(self, sums: Tensor, *, reports: int) -> Tensor:
        return (sums + reports) / 2
