"""Unbiased binary randomized response of one number."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import LocalRandomizer, Norm
from shuffle_plugins.mechanisms.signs.randomized_response import (
    SignThresholds,
    bit_blanket,
    random_signs,
    sign_log_likelihood,
)
from shuffle_plugins.randomness import Randomness


class BinaryRandomizedResponse(LocalRandomizer):
    r"""One number x in [-radius, radius], sent as one sign.

    The sign is + with probability :math:`\frac12 + \frac{x}{2r} \cdot \frac{e-1}{e+1}`, :math:`e = e^{ε_0}`,
    and stands for :math:`\pm r (e+1)/(e-1)` (2RR, Algorithm 2.2.1 and Theorem 2.4.1 of Girgis's thesis; here
    ε0 is exact). Probabilities are multiples of 2**-62, rounded so that ε0 is never exceeded.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: 1.
        radius: largest absolute value.
    """

    name: ClassVar[str] = "binary-rr"
    norm: ClassVar[Norm] = Norm.LINF

    def __init__(self, *, local_epsilon: float, dim: int = 1, radius: float = 1.0) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        if dim != 1:
            raise ValueError(f"{self.name} takes one number per client (dim=1), got dim={dim}")
        self._thresholds = SignThresholds.of(local_epsilon)

    @property
    def layout(self) -> ReportLayout:
        """One bit: the sign of what is reported."""
        return ReportLayout(self.name, self.dim, (FieldLayout(1),))

    @property
    def report_value(self) -> float:
        """Absolute value that a sign stands for, radius·(e+1)/(e-1)."""
        return self.radius / self._thresholds.gain

    @property
    def worst_variance(self) -> float:
        """That of 0, report_value²."""
        return self.report_value**2

    def variance(self, x: Tensor | Rows) -> Tensor:
        """Variance of each report, report_value² - x², (clients,)."""
        return self.worst_variance - self.check_rows(x).dense().squeeze(1).double().square()

    def blanket(self) -> Blanket:
        """The blanket of one bit, whose law the accountant counts exactly."""
        return bit_blanket(self.local_epsilon)

    @override
    def sum(self, reports: Reports) -> Tensor:
        (plus,) = self.read_reports(reports, 2)
        total = 2 * plus.sum() - len(reports)
        return (total.double() * self.report_value).to(torch.float32).reshape(1)

    def outcomes(self) -> Reports:
        """The two reports there are, minus and plus."""
        return self.layout.reports(torch.arange(2, dtype=torch.uint8))

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each sign, had its client held x (1,); thresholds as they are rounded."""
        value = x.detach().reshape(1).clamp(-self.radius, self.radius) / self.radius
        return sign_log_likelihood(self.read_reports(reports, 2)[0], value, thresholds=self._thresholds)

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """A sign for each row."""
        values = x.dense().squeeze(1).to(norms.dtype) * self.clip_factors(norms) / self.radius
        plus = random_signs(values, thresholds=self._thresholds, randomness=randomness)
        return self.layout.reports(plus)
