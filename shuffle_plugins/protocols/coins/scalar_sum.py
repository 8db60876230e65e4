"""P_1D: sums of numbers in an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from shuffle_plugins.protocols.coins.base import CoinSum
from shuffle_plugins.protocols.coins.calibration import calibrate
from shuffle_plugins.protocols.lattices import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalarSum(CoinSum):
    """The sum of clients' numbers: Cheu, Joseph, Mao, Peng 2022, Algorithm 1. See :class:`CoinSum`.

    Data are (clients, 1).

    Attributes:
        upper: Δ; numbers are in [0, upper], and brought inside if they are not.
    """

    name: ClassVar[str] = "scalar-sum"

    upper: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "upper", self.lattice.upper)
        CoinSum.__post_init__(self)

    @property
    def lattice(self) -> Interval:
        """How numbers become integers."""
        return Interval(upper=self.upper, levels=self.levels)

    @classmethod
    def calibrated(
        cls,
        *,
        cohort: int,
        epsilon: float,
        delta: float,
        upper: float = 1.0,
        honest_fraction: float = 1.0,
        num_steps: int = 1,
        population: int | None = None,
        overhead: float = 0.02,
    ) -> Self:
        """The protocol with the fewest messages whose certified ε at δ is at most ``epsilon``.

        Arguments and errors as of :meth:`VectorSum.calibrated`.
        """
        return calibrate(
            lattice=lambda levels: Interval(upper=upper, levels=levels),
            cohort=cohort,
            epsilon=epsilon,
            delta=delta,
            honest_fraction=honest_fraction,
            num_steps=num_steps,
            population=population,
            overhead=overhead,
            build=lambda levels, coins: cls(
                cohort=cohort, upper=upper, levels=levels, coins=coins, honest_fraction=honest_fraction
            ),
        )
