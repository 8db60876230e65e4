"""What stands for a row as numbers of [-1, 1]: its coordinates, or coefficients of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from shuffle_plugins.core import Rows
from shuffle_plugins.core.lazy_torch import Tensor
from shuffle_plugins.mechanisms.local_randomizer import LocalRandomizer, Norm


class NumberRandomizer(LocalRandomizer):
    """A randomizer that sends some of the numbers of [-1, 1] that stand for a row."""

    @abstractmethod
    def _numbers_of(self, x: Tensor) -> Tensor:
        """All numbers that stand for one row (dim,)."""

    @abstractmethod
    def _sampled_numbers(self, x: Rows, norms: Tensor, columns: Tensor) -> Tensor:
        """Those of each row at columns of its own, of the shape (clients, ...) of ``columns``."""

    @abstractmethod
    def _in_units(self, total: Tensor) -> Tensor:
        """The sum of rows, (dim,), for which a sum of their numbers stands."""


class CoordinateRandomizer(NumberRandomizer):
    """A randomizer of coordinates over the radius, on an l-infinity ball.

    Clipping is coordinate by coordinate, the projection onto the ball.
    """

    norm: ClassVar[Norm] = Norm.LINF

    def clip_rows(self, rows: Rows, norms: Tensor) -> Tensor:
        """Each coordinate brought into [-radius, radius] by itself."""
        return rows.dense().clamp(-self.radius, self.radius)

    def _numbers_of(self, x: Tensor) -> Tensor:
        return x.detach().double() / self.radius

    def _sampled_numbers(self, x: Rows, norms: Tensor, columns: Tensor) -> Tensor:
        return x.gather(columns).double() / self.radius

    def _in_units(self, total: Tensor) -> Tensor:
        return total * self.radius
