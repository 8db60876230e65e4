"""P_vec: sums of vectors in an ℓ2 ball."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.private_sum import Norm, PrivacyParameter, PrivateSum
from shuffle_plugins.protocols.coins.base import CoinSum
from shuffle_plugins.protocols.coins.calibration import calibrate, coarsest
from shuffle_plugins.protocols.lattices import FixedPoint
from shuffle_plugins.protocols.targets import check_overhead, honest_clients

_DISTANCE = 1e-12  # of all coordinates' coins from their Gaussian


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorSum(CoinSum, PrivateSum):
    """The sum of clients' vectors, with the noise of the Gaussian mechanism and no trusted aggregator.

    Cheu, Joseph, Mao, Peng 2022, Algorithm 2: Algorithm 1 in every coordinate, under its label. See
    :class:`CoinSum` for what a client sends. ``docs/proofs/sums.md`` says what it costs.

    Attributes:
        dim: d, length of a client's vector.
        radius: ℓ2 radius of the ball; longer vectors are scaled onto it.
    """

    name: ClassVar[str] = "vector-sum"
    privacy_parameter: ClassVar[PrivacyParameter] = "noise_multiplier"
    norm: ClassVar[Norm] = Norm.L2

    dim: int
    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", self.lattice.radius)
        CoinSum.__post_init__(self)

    @property
    def local_epsilon(self) -> float:
        """Infinite: alone, without the other clients' coins, a report protects nobody."""
        return self.round().local_epsilon

    @property
    def lattice(self) -> FixedPoint:
        """How vectors become integers."""
        return FixedPoint(dim=self.dim, radius=self.radius, levels=self.levels)

    @classmethod
    def calibrated(
        cls,
        *,
        dim: int,
        cohort: int,
        epsilon: float,
        delta: float,
        radius: float = 1.0,
        honest_fraction: float = 1.0,
        num_steps: int = 1,
        population: int | None = None,
        overhead: float = 0.02,
    ) -> Self:
        """The protocol with the fewest messages whose certified ε at δ is at most ``epsilon``.

        Args:
            dim, clients, radius, honest_fraction: as the fields.
            epsilon: target for all steps together, replace-one.
            delta: target.
            num_steps: sums that the same people take part in.
            population: n, if each sum draws ``clients`` of them without replacement.
            overhead: share of variance that may be spent on rounding and on the cover, beyond what the
                Gaussian mechanism needs; less costs more messages.

        Raises:
            ValueError: if a target is out of range or cannot be reached.
        """
        return calibrate(
            lattice=lambda levels: FixedPoint(dim=dim, radius=radius, levels=levels),
            cohort=cohort,
            epsilon=epsilon,
            delta=delta,
            honest_fraction=honest_fraction,
            num_steps=num_steps,
            population=population,
            overhead=overhead,
            build=lambda levels, coins: cls(
                dim=dim,
                cohort=cohort,
                radius=radius,
                levels=levels,
                coins=coins,
                honest_fraction=honest_fraction,
            ),
        )

    @classmethod
    def with_noise(
        cls,
        *,
        dim: int,
        cohort: int,
        noise_multiplier: float,
        radius: float = 1.0,
        honest_fraction: float = 1.0,
        overhead: float = 0.02,
    ) -> Self:
        """The protocol with the fewest messages that protects as a Gaussian of this noise multiplier.

        Args:
            dim, clients, radius, honest_fraction: as the fields.
            noise_multiplier: deviation of that Gaussian over ``radius``, in each coordinate of the sum. Over
                the replace-one sensitivity it is half as much.
            overhead: as in :meth:`calibrated`.

        Raises:
            ValueError: if a number is out of range, or more coins are needed than can be accounted for.
        """
        checks.dim(dim)
        number = isinstance(noise_multiplier, (int, float)) and not isinstance(noise_multiplier, bool)
        if not (number and 0 < noise_multiplier < math.inf):
            raise ValueError(f"noise_multiplier must be a positive finite number, got {noise_multiplier!r}")
        check_overhead(overhead)
        honest = honest_clients(cohort=cohort, honest_fraction=honest_fraction)
        levels, coins = coarsest(
            noise_multiplier / 2,
            lattice=lambda levels: FixedPoint(dim=dim, radius=radius, levels=levels),
            cohort=cohort,
            honest=honest,
            overhead=overhead,
            distance=_DISTANCE / dim,
        )
        return cls(
            dim=dim,
            cohort=cohort,
            radius=radius,
            levels=levels,
            coins=coins,
            honest_fraction=honest_fraction,
        )
