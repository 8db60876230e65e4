"""What randomizers of an l2 ball that send coefficients of a public representation have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from shuffle_plugins.compressors import KashinFrame
from shuffle_plugins.core import Rows, checks, rows_at_once
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import Norm
from shuffle_plugins.mechanisms.signs.coefficients_law import (
    Oversized,
    balanced_level,
    check_expected,
    mean_square,
    sound_level,
    thesis_level,
)
from shuffle_plugins.mechanisms.signs.representations import Frame, representation
from shuffle_plugins.mechanisms.signs.unit_numbers import NumberRandomizer

_CHUNK_ENTRIES = 1 << 20  # coefficients handled at a time, on a CPU
_LARGEST_LEVEL = 1e6  # no sensible level comes near; squares stay in range


class CoefficientRandomizer(NumberRandomizer):
    r"""Sends some of the D coefficients of a row's public representation, each within [-r_inf, r_inf].

    r_inf = level·r/√D. A coefficient beyond it is clipped, and only then is the estimate biased. Of a Kashin
    frame none is, but all coefficients of a vector are shortened if they are too long (``kashin_stretch``),
    as if the vector were shorter: accounting counts on it. Vectors close to single columns of the frame, made
    from the seed, have coefficients up to 1.6 times as long; of vectors with a few equal numbers and zeros
    about one in a hundred is shortened, by at most 6 per cent where it was measured.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, largest l2 norm.
        frame: ``"rotation"`` or ``"kashin"``.
        seed: whole number that fixes rotation or frame.
        level: what the mechanism would choose itself, if given.

    Raises:
        ValueError: if a parameter is out of range.
    """

    norm: ClassVar[Norm] = Norm.L2

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float,
        frame: Frame | str,
        seed: int,
        level: float | None,
    ) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        if level is not None:
            level = checks.number("level", level, above=0, at_most=_LARGEST_LEVEL)
        self._representation = representation(Frame(frame), dim=dim, seed=seed, level=level)
        self._level = math.nan if level is None else level

    @property
    def level(self) -> float:
        """r_inf·√D/r: how many times its average size a coefficient may have."""
        return self._level

    @property
    def coefficient_radius(self) -> float:
        """r_inf, beyond which a coefficient is clipped."""
        return self._level * self.radius / math.sqrt(self._representation.size)

    def clipping_bias(self, x: Tensor | Rows) -> Tensor:
        """E[R(x)] - x of each row, (clients, dim) float64: rounding alone where no coefficient is clipped."""
        rows = self.check_rows(x)
        biases = [torch.zeros(0, self.dim, dtype=torch.float64, device=rows.device)]
        for part in self._chunks(rows):
            clipped = self._clipped(self._representation.represent(part))
            biases.append(self._representation.reconstruct(clipped) - part)
        return torch.cat(biases)

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row, (clients,) float64, exact, with the square of the bias of clipping.

        It takes as many transforms of the batch as a report has signs, where coefficients are not an
        isometry.
        """
        rows = self.check_rows(x)
        totals = [torch.zeros(0, dtype=torch.float64, device=rows.device)]
        for part in self._chunks(rows):
            clipped = self._clipped(self._representation.represent(part))
            bias = self._representation.reconstruct(clipped) - part
            totals.append(self._spread_variance(clipped) + bias.square().sum(dim=1))
        return torch.cat(totals)

    @property
    def worst_variance(self) -> float:
        """A bound on E‖R(x) - x‖² over the ball: the largest variance, and the largest bias squared.

        The bias is largest for a vector of one coefficient; with a sound level it takes a vector made for the
        seed. With a Kashin frame the bias of vectors whose coefficients are shortened is left out: it is
        up to (1 - stretch/level)·radius for those made for the seed, and rarely 0.06·radius for others.
        """
        kashin = isinstance(self._representation, KashinFrame)
        bias = 0.0 if kashin else max(0.0, self.radius - self.coefficient_radius)
        return self._worst_spread_variance + bias**2

    @property
    def _mean_square(self) -> float:
        """An upper bound on the mean square of a record's coefficients over the squared clipping bound."""
        frame = self._representation
        return mean_square(self.level, stretch=frame.stretch if isinstance(frame, KashinFrame) else 1.0)

    @property
    @abstractmethod
    def _worst_spread_variance(self) -> float:
        """Largest E‖R(x) - E R(x)‖², or a bound."""

    @abstractmethod
    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        """E‖R(x) - E R(x)‖², (clients,), for clipped coefficients (clients, D)."""

    def _choose_level(
        self, oversized: Oversized, *, clients: int, failure: float, noise: float, thesis: bool = False
    ) -> float:
        """The level, given the variance of one report at level 1 in units of r²."""
        check_expected(clients=clients, failure=failure)
        size = self._representation.size
        if not math.isnan(self._level):
            return self._level
        if isinstance(self._representation, KashinFrame):
            return self._representation.level
        if oversized is Oversized.BOUND:
            return math.sqrt(size)
        if oversized is Oversized.BALANCE:
            return balanced_level(size=size, clients=clients, noise=noise)
        level = thesis_level if thesis else sound_level
        return level(size=size, clients=clients, failure=failure)

    def _sampled_numbers(self, x: Rows, norms: Tensor, columns: Tensor) -> Tensor:
        """Coefficients over r_inf of rows as ``clip`` leaves them, of the shape (clients, ...) of columns."""
        scale = self.clip_factors(norms.double()) / self.coefficient_radius
        values = self._representation.coefficients(x, columns.flatten(1)).double() * scale.unsqueeze(1)
        return values.clamp_(-1, 1).view(columns.shape)

    def _numbers_of(self, x: Tensor) -> Tensor:
        """Clipped coefficients over r_inf of one vector (dim,), (D,)."""
        coefficients = self._representation.represent(x.detach().double().unsqueeze(0))[0]
        return self._clipped(coefficients) / self.coefficient_radius

    def _in_units(self, total: Tensor) -> Tensor:
        return self._representation.reconstruct(total) * self.coefficient_radius

    def _clipped(self, coefficients: Tensor) -> Tensor:
        return coefficients.clamp(-self.coefficient_radius, self.coefficient_radius)

    def _chunks(self, rows: Rows) -> Iterator[Tensor]:
        step = rows_at_once(self._representation.size, device=rows.device, entries=_CHUNK_ENTRIES)
        for start in range(0, rows.num_rows, step):
            yield rows.narrow(start, start + step).dense().double()

    def _blockwise_squares(self, means: Tensor, lengths: list[int]) -> Tensor:
        """Squared norm of what each block of coefficients reconstructs to alone, summed, (clients,)."""
        if self._representation.isometric:
            return means.square().sum(dim=1)
        total = torch.zeros(len(means), dtype=torch.float64, device=means.device)
        start = 0
        for length in lengths:
            alone = torch.zeros_like(means)
            alone[:, start : start + length] = means[:, start : start + length]
            total += self._representation.reconstruct(alone).square().sum(dim=1)
            start += length
        return total
