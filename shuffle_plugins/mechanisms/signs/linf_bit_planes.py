"""Bit planes of an l-infinity ball, each sampled and flipped by itself."""

from __future__ import annotations

from typing import ClassVar

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import Rows, rows_at_once
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.signs.bit_planes import (
    BitPlaneRandomizer,
    BitPlanes,
    best_plan,
    sampled_blanket,
)
from shuffle_plugins.mechanisms.signs.randomized_response import Constants
from shuffle_plugins.mechanisms.signs.unit_numbers import CoordinateRandomizer

_CHUNK_ENTRIES = 1 << 20  # entries handled at a time


class LInfBitPlanes(BitPlaneRandomizer, CoordinateRandomizer):
    r"""R^ℓ∞_{v,m,s} of Girgis's thesis (Algorithms 3.5.1 and 3.5.2) with exact ε0.

    A coordinate :math:`x/r = \sum_{k<m} 2^{-k} σ_k + 2^{-(m-1)} w` has m - 1 signs and a rest w in [-1, 1].
    For each level a client draws one coordinate from each of s blocks and sends its place there and a sign of
    mean :math:`g_k σ_k`, or :math:`g_m w` in the last; :math:`g_k = \tanh(v_k/2)`. The s signs of all levels
    spend :math:`s \sum_k v_k \le ε_0` together, and only the m·s sampled entries of a row are read beyond its
    norm. With b_i the length of coordinate i's block (d/s where s divides d),

    .. math:: E\|R(x) - x\|^2 = r^2 \sum_{k<m} 4^{-k} \sum_i (b_i/g_k^2 - 1)
              + r^2 4^{-(m-1)} \sum_i (b_i/g_m^2 - w_i^2).

    Levels reduce what quantisation adds; where d is large beside ε0 they act as further samples. The thesis
    counts what is not sampled as the low end of the range, which has up to four times the variance of
    counting it as the centre, and its probabilities do not spend all of ε0 (``constants="thesis"``).

    Clipping is coordinate by coordinate, the projection onto the ball.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, largest absolute coordinate.
        levels: m, in [1, 32]; by default, with ``samples``, of least worst variance.
        samples: s, coordinates sent per level, in [1, d].
        constants: ``"exact"``, or ``"thesis"`` for the printed ones.

    Raises:
        ValueError: if a parameter is out of range, or ε0 over m·s signs leaves one less than 1e-9.
    """

    name: ClassVar[str] = "linf-bit-planes"

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        levels: int | None = None,
        samples: int | None = None,
        constants: Constants | str = Constants.EXACT,
    ) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        constants = Constants(constants)
        plan = best_plan(
            local_epsilon=self.local_epsilon, dim=dim, levels=levels, samples=samples, constants=constants
        )
        self._planes = BitPlanes.within(self.local_epsilon, dim=dim, plan=plan, constants=constants)

    @property
    def worst_variance(self) -> float:
        """Largest E‖R(x) - x‖² over the ball, attained; where the last level is 0, as at x = 0 for m = 1."""
        return self.radius**2 * self._planes.worst_variance

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row, (clients,) float64, exact; rows are read in chunks."""
        rows = self.check_rows(x)
        step = rows_at_once(self.dim, device=rows.device, entries=_CHUNK_ENTRIES)
        parts = [
            self._planes.variance(rows.narrow(start, start + step).dense().double() / self.radius)
            for start in range(0, rows.num_rows, step)
        ]
        total = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=rows.device)
        return total * self.radius**2

    def blanket(self) -> Blanket:
        """That of one sign; several are bounded by the generic blanket."""
        return sampled_blanket(local_epsilon=self.local_epsilon, plan=self.plan, constants=self.constants)
