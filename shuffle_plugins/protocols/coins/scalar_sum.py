"""P_1D: sums of numbers in an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import override

from shuffle_plugins.protocols.coins.coin_sum import CoinSum
from shuffle_plugins.protocols.lattices import Interval
from shuffle_plugins.protocols.tally import Tally


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalarSum(CoinSum):
    """The sum of clients' numbers: Cheu, Joseph, Mao, Peng 2022, Algorithm 1. See :class:`CoinSum`.

    Data are (clients, 1).

    Attributes:
        upper: Δ; numbers are in [0, upper], and brought inside if they are not.
    """

    name: ClassVar[str] = "scalar-sum"
    lattice_type: ClassVar[type[Any]] = Interval

    upper: float = 1.0

    @override
    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        return self._sum(total, reports=reports)
