"""P_vec: sums of vectors in an ℓ2 ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor
from typing_extensions import override

from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import Norm, PrivacyParameter, PrivateSum
from shuffle_plugins.protocols.coins.calibration import close_trials, fewest_coins
from shuffle_plugins.protocols.coins.coin_sum import CoinSum
from shuffle_plugins.protocols.lattices import FixedPoint
from shuffle_plugins.protocols.shuffle_protocol import check_cohort, check_overhead, honest_population
from shuffle_plugins.protocols.tally import Tally

_DISTANCE = 1e-13  # of all coordinates' coins from their Gaussian: little even in 10^5 rounds


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
    lattice_type: ClassVar[type[Any]] = FixedPoint

    dim: int
    radius: float = 1.0

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
        """A protocol with few messages that protects as a Gaussian of this noise multiplier.

        With a larger noise multiplier, and all else the same, it protects better.

        Args:
            dim, cohort, radius, honest_fraction: as the fields.
            noise_multiplier: deviation of that Gaussian over ``radius``, in each coordinate of the sum. Over
                the replace-one sensitivity it is half as much.
            overhead: as in :meth:`calibrated`.

        Raises:
            ValueError: if a number is out of range, or more coins are needed than can be accounted for.
        """
        noise = checks.number("noise_multiplier", noise_multiplier, above=0) / 2
        levels, coins = fewest_coins(
            noise,
            lattice=lambda levels: FixedPoint(dim=dim, radius=radius, levels=levels),
            cohort=check_cohort(cohort),
            honest=honest_population(cohort, honest_fraction),
            overhead=check_overhead(overhead),
            trials=close_trials(_DISTANCE / checks.dim(dim)),
            steady=True,
        )
        return cls(
            dim=dim,
            cohort=cohort,
            radius=radius,
            levels=levels,
            coins=coins,
            honest_fraction=honest_fraction,
        )

    @override
    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        return self._sum(total, reports=reports)
