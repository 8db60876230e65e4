"""What stands for a row as D numbers of [-1, 1]: its coordinates, or coefficients of a public frame.

Levels are in units of r/√D, what every coefficient of a vector of length r would be if all were equal.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, cast

from typing_extensions import override

from shuffle_plugins.compressors.frames import KashinFrame, Rotation, TightFrame, kashin_level, kashin_stretch
from shuffle_plugins.compressors.hadamard import hadamard_coefficients, hadamard_transform, padded_dim
from shuffle_plugins.core import Rows, checks
from shuffle_plugins.core.checks import Count, in_range, one_of, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import spans
from shuffle_plugins.mechanisms.base import LocalRandomizer, Norm

_SINGLE_PRECISION = 1 - 1e-5


class Frame(StrEnum):
    """How an l2 ball is spread over coefficients."""

    ROTATION = "rotation"
    KASHIN = "kashin"


def representation(frame: Frame, *, dim: int, seed: int, level: float | None = None) -> TightFrame:
    """The frame of that kind, the same wherever dim, public seed and level (of a Kashin frame) are."""
    checks.whole("seed", seed, at_least=-math.inf)
    if frame is Frame.ROTATION:
        return Rotation(dim=dim, seed=seed)
    level = kashin_level(dim) if level is None else level
    return KashinFrame(dim=dim, seed=seed, level=level, stretch=kashin_stretch(dim, level=level))


def sound_level(*, size: int, clients: int, failure: float) -> float:
    r"""Level that no coefficient of any client passes, but with probability β: at most :math:`\sqrt{size}`.

    By :math:`P(\max |w| > t) \le 2 \, size \, n \exp(-size\,t^2/(2 r^2))`.
    """
    return min(math.sqrt(2 * math.log(2 * size * clients / failure)), math.sqrt(size))


def check_expected(*, clients: int, failure: float) -> None:
    """Refuse what is no number of clients, or no chance that one is clipped."""
    checks.whole("clients", clients)
    checks.number("failure", failure, above=0, below=1)


def flat_lean(level: float) -> float:
    """Size of the coefficients of ±r·e_1, all alike, over r_inf; rounded down by single precision's error."""
    return 1.0 if level <= 1 else _SINGLE_PRECISION / level


def aligned_records(*, level: float, dim: int) -> tuple[tuple[float, float], ...]:
    """Vectors whose rotated coefficients are of one size, or 0: their sizes, and how many are not 0."""
    found = []
    for power in range(dim.bit_length()):
        size = flat_lean(level / 2.0 ** (power / 2))
        found.append((size, 2.0**-power))
        if size == 1:
            break
    return tuple(found)


@dataclass(frozen=True)
class Coordinates:
    """A vector's own coordinates, as a representation."""

    dim: int
    column_square = 1.0
    isometric = True

    @property
    def size(self) -> int:
        """How many there are."""
        return self.dim

    def represent(self, x: Tensor) -> Tensor:
        """The vectors, as they are."""
        return x

    def reconstruct(self, coefficients: Tensor) -> Tensor:
        """The coefficients, which are the vectors."""
        return coefficients

    def coefficients(self, x: Tensor | Rows, indices: Tensor) -> Tensor:
        """Entries of each row at indices of its own, (clients, count)."""
        return Rows.of(x).gather(indices)


@dataclass(frozen=True)
class HadamardRows:
    """Products of a vector with the ±1 rows of a Hadamard matrix, none above its l1 norm."""

    dim: int
    isometric = False

    @property
    def size(self) -> int:
        """D, the next power of two."""
        return padded_dim(self.dim)

    @property
    def column_square(self) -> float:
        """dim/D², the squared norm of what one unit coefficient is reconstructed to."""
        return self.dim / self.size**2

    def represent(self, x: Tensor) -> Tensor:
        """All products, (clients, D)."""
        every = torch.arange(self.size, device=x.device).expand(len(x), -1)
        return hadamard_coefficients(x, every)

    def reconstruct(self, coefficients: Tensor) -> Tensor:
        """Vectors (..., dim) of coefficients (..., D)."""
        return hadamard_transform(coefficients)[..., : self.dim] / self.size

    def coefficients(self, x: Tensor | Rows, indices: Tensor) -> Tensor:
        """Products of each row with Hadamard rows of its own, (clients, count)."""
        return hadamard_coefficients(x, indices)


class NumberRandomizer(LocalRandomizer):
    """A randomizer that sends some of the D coefficients of a row over :attr:`coefficient_radius`.

    A subclass gives its ``_frame``. On an l-infinity ball clipping is coordinate by coordinate.
    """

    @cached_property
    def _frame(self) -> TightFrame | Coordinates | HadamardRows:
        raise NotImplementedError

    @property
    def coefficient_radius(self) -> float:
        """The largest absolute value of a coefficient, beyond which it is clipped."""
        return self.radius

    @override
    def clip_rows(self, rows: Rows, norms: Tensor) -> Tensor:
        if self.norm is Norm.LINF:
            return rows.dense().clamp(-self.radius, self.radius)
        return super().clip_rows(rows, norms)

    def _numbers_of(self, x: Tensor) -> Tensor:
        """All numbers that stand for one row (dim,)."""
        coefficients = self._frame.represent(x.detach().double().unsqueeze(0))[0]
        return (coefficients / self.coefficient_radius).clamp(-1, 1)

    def _sampled_numbers(self, x: Rows, norms: Tensor, columns: Tensor) -> Tensor:
        """Those of each row, as ``clip`` leaves it, at columns of its own: of the shape of ``columns``."""
        values = self._frame.coefficients(x, columns.flatten(1)).double().view(columns.shape)
        if self.norm is not Norm.LINF:
            values *= self.clip_factors(norms.double()).view(-1, *[1] * (columns.dim() - 1))
        return values.div_(self.coefficient_radius).clamp_(-1, 1)

    def _in_units(self, total: Tensor) -> Tensor:
        """The sum of rows, (dim,) float32, for which a sum of their numbers stands."""
        return (self._frame.reconstruct(total) * self.coefficient_radius).to(torch.float32)

    def _chunks(self, rows: Rows) -> Iterator[Tensor]:
        for each in spans(rows.num_rows, width=self._frame.size, device=rows.device, entries=1 << 20):
            yield rows.narrow(*each).dense().double()


@dataclass(frozen=True, kw_only=True, eq=False)
class CoefficientRandomizer(NumberRandomizer):
    """Sends some of the D coefficients of a row's public representation, each within [-r_inf, r_inf].

    A coefficient beyond r_inf = level·r/√D is clipped, and only then is the estimate biased. Of a Kashin
    frame none is, but a vector with too long coefficients (``kashin_stretch``) is sent as a shorter one:
    accounting counts on it.

    Attributes:
        seed: fixes the frame. It is public and all must use the same; draw a new one where somebody might
            have chosen vectors for it.
        level: r_inf·√D/r; by default the Kashin frame's own, or √(2 log(2Dn/β)), which no rotated coefficient
            of n clients passes with probability 1 - β over the seed, if vectors were chosen before it. No
            coefficient passes √D.
        clients: n, reports in a round; for a rotation's level alone.
        failure: β, how likely a round may be clipped; for a rotation's level alone.
    """

    norm = Norm.L2
    frame: Annotated[Frame, one_of(Frame)] = Frame.KASHIN
    seed: Annotated[int, whole_number(at_least=-math.inf)] = 0
    level: Annotated[float, in_range(above=0, at_most=1e6)] | None = None
    clients: Count = 10_000
    failure: Annotated[float, in_range(above=0, below=1)] = 1e-6

    @cached_property
    def _frame(self) -> TightFrame:
        return representation(self.frame, dim=self.dim, seed=self.seed, level=self.level)

    @property
    def _level(self) -> float:
        """r_inf·√D/r: how many times its average size a coefficient may have."""
        return cast(float, self.level)

    @property
    @override
    def coefficient_radius(self) -> float:
        return self._level * self.radius / math.sqrt(self._frame.size)

    def clipping_bias(self, x: Tensor | Rows) -> Tensor:
        """E[R(x)] - x of each row, (clients, dim) float64: rounding alone where no coefficient is clipped."""
        rows = self.check_rows(x)
        biases = [torch.zeros(0, self.dim, dtype=torch.float64, device=rows.device)]
        biases += [self._frame.reconstruct(self._clipped(part)) - part for part in self._chunks(rows)]
        return torch.cat(biases)

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row, (clients,) float64, exact, with the square of the bias of clipping."""
        rows = self.check_rows(x)
        totals = [torch.zeros(0, dtype=torch.float64, device=rows.device)]
        for part in self._chunks(rows):
            clipped = self._clipped(part)
            bias = self._frame.reconstruct(clipped) - part
            totals.append(self._spread_variance(clipped) + bias.square().sum(dim=1))
        return torch.cat(totals)

    @property
    def worst_variance(self) -> float:
        """A bound on E‖R(x) - x‖² over the ball: the largest variance, and the largest bias squared.

        What a Kashin frame shortens is left out: up to (1 - stretch/level)·radius for vectors made for the
        seed, and rarely 0.06·radius for others.
        """
        kashin = isinstance(self._frame, KashinFrame)
        bias = 0.0 if kashin else max(0.0, self.radius - self.coefficient_radius)
        return self._worst_spread_variance + bias**2

    @property
    def _mean_square(self) -> float:
        """An upper bound on the mean square of a record's coefficients over r_inf²."""
        stretch = self._frame.stretch if isinstance(self._frame, KashinFrame) else 1.0
        return min((stretch / (_SINGLE_PRECISION**10 * self._level)) ** 2, 1.0)

    @property
    @abstractmethod
    def _worst_spread_variance(self) -> float:
        """Largest E‖R(x) - E R(x)‖², or a bound."""

    @abstractmethod
    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        """E‖R(x) - E R(x)‖², (clients,), for clipped coefficients (clients, D)."""

    def _choose_level(self, *, thesis: bool = False) -> None:
        """Set the level, if it was not given."""
        size = self._frame.size
        if self.level is not None:
            return
        if isinstance(self._frame, KashinFrame):
            level = self._frame.level
        elif thesis:  # as printed in Algorithm 3.6.1
            level = 10 * math.sqrt(math.log(size * self.clients / self.failure))
        else:
            level = sound_level(size=size, clients=self.clients, failure=self.failure)
        object.__setattr__(self, "level", level)

    def _clipped(self, x: Tensor) -> Tensor:
        return self._frame.represent(x).clamp(-self.coefficient_radius, self.coefficient_radius)

    def _blockwise_squares(self, means: Tensor, lengths: list[int]) -> Tensor:
        """Squared norm of what each block of coefficients reconstructs to alone, summed, (clients,)."""
        if self._frame.isometric:
            return means.square().sum(dim=1)
        total, start = means.new_zeros(len(means)), 0
        for length in lengths:
            alone = torch.zeros_like(means)
            alone[:, start : start + length] = means[:, start : start + length]
            total += self._frame.reconstruct(alone).square().sum(dim=1)
            start += length
        return total
