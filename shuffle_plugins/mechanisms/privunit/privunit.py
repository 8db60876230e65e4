"""PrivUnit: a random unit vector that leans towards the client's own direction."""

from __future__ import annotations

import math
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import LocalRandomizer, Norm
from shuffle_plugins.mechanisms.privunit.privunit_law import (
    PrivUnitParameters,
    optimal_privunit,
    privunit_blanket,
)
from shuffle_plugins.mechanisms.privunit.privunit_reports import Draws, dense_reports
from shuffle_plugins.mechanisms.privunit.privunit_sum import ChunkedSum, chunk_size
from shuffle_plugins.mechanisms.privunit.sphere import cap_coordinate
from shuffle_plugins.randomness import WHOLE, Randomness, secure

_UNIT_TOLERANCE = 1e-3  # of the norm of a float32 vector
_ROUNDED_ANGLE = 5e-7  # radians by which rounding to float32 may turn a report


class PrivUnit(LocalRandomizer):
    r"""PrivUnit on an l2 ball, with the cap of least variance and ε0 spent exactly.

    A row x becomes a direction: x/‖x‖ with probability (1 + ‖x‖/radius)/2, else the opposite, whose mean is
    x/radius. PrivUnit turns the direction into a unit vector V (see
    :mod:`.privunit_law`), which stands for V·radius/m. The direction is
    drawn within the client, so every output density is an average of PrivUnit's and ε0 holds for the whole
    ball; x = 0 reports a uniform V. ‖R(x)‖ is constant, so E‖R(x) - x‖² = (radius/m)² - ‖x‖².

    Choices among finitely many outcomes are made with integer thresholds, so their probabilities are exact.
    The density of V is that of ideal real arithmetic: ε0 and the blanket are proved for it. What is sent is
    computed in float64 and rounded to float32 once, 32·dim bits. Rounding the ideal V would be mere
    post-processing; float64 in its place is off by a relative 1e-15 or so per coordinate, far below what
    rounding leaves visible, but no proof covers that difference.

    Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018, "Protection against reconstruction"; Asi,
    Feldman, Talwar 2022, "Optimal algorithms for mean estimation under local differential privacy".

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of a client's vector; at 1 it is binary randomized response.
        radius: radius of the l2 ball.

    Raises:
        ValueError: if a parameter is out of range.
    """

    name: ClassVar[str] = "privunit"
    norm: ClassVar[Norm] = Norm.L2

    def __init__(self, *, local_epsilon: float, dim: int, radius: float = 1.0) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        self._parameters = optimal_privunit(local_epsilon=self.local_epsilon, dim=dim)

    @property
    def parameters(self) -> PrivUnitParameters:
        """The cap, the probability of a uniform report, and the mean's length."""
        return self._parameters

    @property
    def layout(self) -> ReportLayout:
        """A vector of floats of 32 bits."""
        return ReportLayout(self.name, self.dim, (FieldLayout(32, self.dim, floating=True),))

    @property
    def report_norm(self) -> float:
        """‖R(x)‖ = radius/m, the same for every report."""
        return self.radius / self._parameters.mean

    @property
    def worst_variance(self) -> float:
        """That of 0, (radius/m)²."""
        return self.report_norm**2

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² = (radius/m)² - ‖x‖² of each row, (clients,), float64."""
        return self.worst_variance - self.check_rows(x).l2_norm().double().square()

    def blanket(self) -> Blanket:
        """Two disjoint caps; see :func:`~.privunit_blanket`."""
        return privunit_blanket(local_epsilon=self.local_epsilon, dim=self.dim)

    @override
    def sum(self, reports: Reports) -> Tensor:
        self.check_reports(reports)
        vectors = reports.fields[0].values.reshape(len(reports), self.dim)
        norms = torch.linalg.vector_norm(vectors, dim=1)
        if not bool(((norms - 1).abs() <= _UNIT_TOLERANCE).all()):
            raise ValueError("a report is not a unit vector: it was altered or forged; drop it")
        return vectors.sum(dim=0).mul_(self.report_norm)

    def outcomes(self) -> Reports | None:
        """The two signs in one dimension; from two dimensions on there are too many unit vectors."""
        if self.dim > 1:
            return None
        signs = torch.tensor([[-1.0], [1.0]])
        return self.layout.reports(signs)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-density of each unit vector with respect to the uniform law, or log-probability at dim 1.

        A report within rounding to float32 of the cap counts as inside.
        """
        vectors = reports.fields[0].values.double()
        row = x.detach().double()
        length = float(torch.linalg.vector_norm(row))
        uniform = self._parameters.uniform_probability
        if length == 0:
            return torch.full((len(reports),), -math.log(2) if self.dim == 1 else 0.0, dtype=torch.float64)
        direction = row / length
        along = vectors @ direction
        across = torch.linalg.vector_norm(vectors - along.unsqueeze(1) * direction, dim=1)
        widest = math.acos(self._parameters.threshold) + _ROUNDED_ANGLE
        near, far = (torch.atan2(across, side) <= widest for side in (along, -along))
        lean = min(length / self.radius, 1.0)
        inside = near.double().mul_((1 + lean) / 2).add_(far.double(), alpha=(1 - lean) / 2)
        density: Tensor = inside.mul_((1 - uniform) / self._parameters.cap_measure).add_(uniform)
        return density.log_().sub_(math.log(2) if self.dim == 1 else 0.0)

    def randomize_sum(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Tensor:
        """As :meth:`LocalRandomizer.randomize_sum`, without one dense vector per client.

        The method is that of :mod:`.privunit_sum`, whose law is exactly that of the sum in real arithmetic.
        Values are float32 numbers, also where the dtype is wider.
        """
        rows = self.check_rows(x)
        chunk = chunk_size(rows)
        if chunk is None:
            return super().randomize_sum(rows, randomness=randomness, clip=clip)
        randomness = secure(randomness)
        chunked = ChunkedSum(rows, chunk=chunk)
        admitted, norms = self.admitted(rows, chunked.norms(), clip=clip)
        if admitted is not rows:
            chunked = ChunkedSum(admitted, chunk=chunk)
        total = chunked.sample(norms, draws=self._draw(norms, randomness), randomness=randomness)
        return total.mul_(self.report_norm).to(torch.float32).to(rows.compute_dtype)

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """A unit vector for each row."""
        vectors = dense_reports(x, norms, draws=self._draw(norms, randomness), randomness=randomness)
        return self.layout.reports(vectors)

    def _draw(self, norms: Tensor, randomness: Randomness) -> Draws:
        count = norms.shape[0]
        lengths = norms.cpu().double()
        uniform = randomness.bernoulli(torch.full((count,), self._parameters.uniform_threshold))
        filled = (lengths / self.radius).clamp(max=1.0)
        thresholds = ((1 + filled) * (WHOLE / 2)).to(torch.int64).clamp_(max=WHOLE)
        sign = randomness.bernoulli(thresholds).double().mul_(2).sub_(1)
        tails = randomness.exponential(count).neg_().exp_().numpy() * self._parameters.cap_measure
        along = torch.from_numpy(cap_coordinate(tails, dim=self.dim))
        return Draws(along=along * sign, uniform=uniform | (lengths == 0))
