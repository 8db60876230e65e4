"""Sums of vectors in an ℓ2 ball, spread over coefficients, one shuffled bit per tag."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import Tensor

from shuffle_plugins.compressors import KashinFrame, TightFrame
from shuffle_plugins.core import Rows, checks
from shuffle_plugins.mechanisms import Norm, PrivacyParameter, PrivateSum
from shuffle_plugins.mechanisms.coefficients import (
    Frame,
    check_expected,
    flat_lean,
    representation,
    sound_level,
)
from shuffle_plugins.protocols.shuffle_protocol import check_cohort, check_overhead, honest_population
from shuffle_plugins.protocols.tags.plans import best_tag_plan, budget_of_noise
from shuffle_plugins.protocols.tags.tagged_sum import TaggedSum


@dataclass(frozen=True, kw_only=True, slots=True)
class BallSum(TaggedSum, PrivateSum):
    """The sum of vectors in an ℓ2 ball: Girgis's thesis, Algorithms 3.6.1 and 3.6.2. See TaggedSum.

    A vector is represented by D coefficients, public and linear, none of which is large; these go the way of
    :class:`CubeSum`. With a Kashin frame none is ever larger than about 2·radius/√D, so the estimate is
    unbiased for every vector. A rotation takes one transform (in Opacus, 9 times Opacus's own
    step instead of 32 to 41) and half as many messages, but its coefficients are only seldom large: they are
    clipped at √(2 log(2Dn/β))·radius/√D, which for vectors chosen before the seed happens to nobody but with
    probability β; variance is about ten times a Kashin frame's. Data are floating (clients, dim).

    Attributes:
        radius: ℓ2 radius of the ball; longer vectors are scaled onto it.
        frame: ``"kashin"`` or ``"rotation"``.
        seed: whole number that fixes the frame. It is public and all must use the same.
        failure: β of a rotation, in (0, 1).
    """

    name: ClassVar[str] = "multi-message"
    privacy_parameter: ClassVar[PrivacyParameter] = "noise_multiplier"
    norm: ClassVar[Norm] = Norm.L2

    radius: float = 1.0
    frame: Frame = Frame.KASHIN
    seed: int = 0
    failure: float = 1e-6
    spread: TightFrame = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checks.dim(self.dim)
        object.__setattr__(self, "radius", checks.radius(self.radius))
        object.__setattr__(self, "frame", Frame(self.frame))
        check_expected(clients=self.cohort, failure=self.failure)
        object.__setattr__(self, "spread", representation(self.frame, dim=self.dim, seed=self.seed))
        TaggedSum.__post_init__(self)

    @property
    def size(self) -> int:
        """D, coefficients of a vector: the next power of two, or twice that for a Kashin frame."""
        return self.spread.size

    @property
    def flat(self) -> float:
        """The coefficients of ±radius·e_1, a row of a Hadamard matrix, over the largest there may be."""
        return flat_lean(self._level)

    @property
    def coefficient_radius(self) -> float:
        """Beyond which a coefficient is clipped, in units of the data."""
        return self._level * self.radius / math.sqrt(self.size)

    @property
    def _level(self) -> float:
        if isinstance(self.spread, KashinFrame):
            return self.spread.level
        return sound_level(size=self.size, clients=self.cohort, failure=self.failure)

    @property
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖² over data of which no coefficient is clipped."""
        planes = self.planes
        unit = (
            planes.worst_variance
            if self.spread.isometric
            else self.spread.column_square * planes.worst_second_moment
        )
        return self.cohort * self.coefficient_radius**2 * unit

    @classmethod
    def _coefficients(cls, *, dim: int, frame: Frame | str = Frame.KASHIN, seed: int = 0, **data: Any) -> int:
        return representation(checks.choice(Frame, "frame", frame), dim=checks.dim(dim), seed=seed).size

    @classmethod
    def with_noise(
        cls,
        *,
        dim: int,
        cohort: int,
        noise_multiplier: float,
        radius: float = 1.0,
        frame: Frame | str = Frame.KASHIN,
        seed: int = 0,
        failure: float = 1e-6,
        honest_fraction: float = 1.0,
        overhead: float = 0.1,
        levels: int | None = None,
        samples: int | None = None,
    ) -> Self:
        """The protocol that, to leading order, protects as a Gaussian of this noise multiplier.

        What it really costs is for its :meth:`round` to say. Its variance is not that Gaussian's: see
        ``worst_variance``.

        Args:
            noise_multiplier: deviation of that Gaussian over ``radius``, in each coordinate of the sum. Over
                the replace-one sensitivity it is half as much.
            dim, cohort, radius, frame, seed, failure, honest_fraction, overhead, levels, samples: as in
                :meth:`calibrated`.

        Raises:
            ValueError: if a number is out of range, or no messages are as loud or as quiet.
        """
        noise = checks.number("noise_multiplier", noise_multiplier, above=0) / 2
        check_overhead(overhead)
        honest = honest_population(check_cohort(cohort), honest_fraction)
        size = cls._coefficients(dim=dim, frame=frame, seed=seed)
        plan = best_tag_plan(
            size=size,
            cohort=honest,
            noise_multiplier=noise,
            overhead=overhead,
            levels=levels,
            samples=samples,
        )
        return cls(
            dim=dim,
            cohort=cohort,
            radius=radius,
            frame=Frame(frame),
            seed=seed,
            failure=failure,
            budget=budget_of_noise(plan, size=size, cohort=honest, noise_multiplier=noise),
            samples=plan.samples,
            levels=plan.levels,
            honest_fraction=honest_fraction,
        )

    def _checked(self, x: Tensor | Rows) -> Rows:
        rows = TaggedSum._checked(self, x)
        return rows.finite(rows.l2_norm())[0]

    def _values(self, rows: Rows, columns: Tensor) -> Tensor:
        norms = rows.l2_norm().double()
        scale = self.radius / norms.clamp(min=self.radius) / self.coefficient_radius
        wanted = columns.flatten(1)
        if isinstance(self.spread, KashinFrame) or wanted.shape[1] <= self.size.bit_length():
            values = self.spread.coefficients(rows, wanted)
        else:
            values = self.spread.represent(rows.dense().to(rows.compute_dtype)).gather(1, wanted)
        return (values.double() * scale.unsqueeze(1)).clamp_(-1, 1).view(columns.shape)

    def _in_units(self, sums: Tensor, *, reports: int) -> Tensor:
        return self.spread.reconstruct(sums) * self.coefficient_radius
