"""One random coordinate of a vector in an l-infinity ball, sent as a sign."""

from __future__ import annotations

import math
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.mechanisms.signs.randomized_response import (
    SignThresholds,
    random_signs,
    sign_blanket,
    sign_log_likelihood,
)
from shuffle_plugins.mechanisms.signs.unit_numbers import CoordinateRandomizer
from shuffle_plugins.randomness import Randomness


class LInfCoordinate(CoordinateRandomizer):
    r"""R^ℓ∞ of Girgis's thesis (Algorithm 3.5.1) with one level and one coordinate, m = s = 1.

    A client draws one coordinate j uniformly and sends (j, sign); the sign is + with probability
    :math:`\frac12 + \frac{x_j}{2r} \cdot \frac{e-1}{e+1}`, :math:`e = e^{ε_0}`, and stands for
    :math:`\pm d\,r\,(e+1)/(e-1)` at j. The thesis's constants are ε0-LDP with room to spare; these are exact.
    Probabilities are multiples of 2**-62, rounded so that ε0 is never exceeded, and j is exactly uniform.

    Clipping is coordinate by coordinate, the projection onto the ball: scaling a whole row, as other
    mechanisms do, would let one large coordinate shrink all the others. The script behind the MNIST
    experiment of Girgis et al. 2021 clips this way.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, largest absolute coordinate.
    """

    name: ClassVar[str] = "linf-coordinate"

    def __init__(self, *, local_epsilon: float, dim: int, radius: float = 1.0) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        self._thresholds = SignThresholds.of(local_epsilon)
        self._index_bits = (dim - 1).bit_length()

    @property
    def layout(self) -> ReportLayout:
        """The coordinate's index, and its sign."""
        return ReportLayout(self.name, self.dim, (FieldLayout(self._index_bits), FieldLayout(1)))

    @property
    def report_value(self) -> float:
        """Absolute value that a sign stands for at its coordinate, d·radius·(e+1)/(e-1)."""
        return self.dim * self.radius / self._thresholds.gain

    @property
    def worst_variance(self) -> float:
        """That of 0, report_value²."""
        return self.report_value**2

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² = report_value² - ‖x‖₂² of each row, (clients,), float64."""
        return self.worst_variance - self.check_rows(x).l2_norm().double().square()

    def blanket(self) -> Blanket:
        """The generic blanket: rows of opposite sign in every coordinate attain it."""
        return sign_blanket(self.local_epsilon)

    @override
    def sum(self, reports: Reports) -> Tensor:
        indices, plus = self.read_reports(reports, self.dim, 2)
        signs = (2 * plus - 1).to(torch.float32)
        return (
            torch.zeros(self.dim, device=indices.device).index_add_(0, indices, signs).mul_(self.report_value)
        )

    def outcomes(self) -> Reports | None:
        """Either sign of every coordinate, up to 2**15 coordinates."""
        if 2 * self.dim > MOST_OUTCOMES:
            return None
        every = torch.arange(2 * self.dim)
        return self.layout.reports(every // 2, (every % 2).to(torch.uint8))

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held x (dim,); thresholds as they are rounded."""
        indices, plus = self.read_reports(reports, self.dim, 2)
        values = x.detach()[indices].clamp(-self.radius, self.radius) / self.radius
        return sign_log_likelihood(plus, values, thresholds=self._thresholds) - math.log(self.dim)

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """A coordinate of each row, and its sign."""
        indices = randomness.integers(self.dim, x.num_rows, device=x.device)
        values = x.gather(indices).to(norms.dtype).clamp(-self.radius, self.radius) / self.radius
        plus = random_signs(values, thresholds=self._thresholds, randomness=randomness)
        return self.layout.reports(indices, plus)
