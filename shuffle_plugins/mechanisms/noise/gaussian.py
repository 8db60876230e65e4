"""Gaussian noise for vectors in an l2 ball, (ε0, δ0)-LDP."""

from __future__ import annotations

import math
from typing import ClassVar

from shuffle_plugins.accounting import Atoms
from shuffle_plugins.core import Reports, Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.noise.additive_law import gaussian_instance
from shuffle_plugins.mechanisms.noise.approximate_noise import (
    DEFAULT_LOCAL_DELTA,
    ApproximateNoise,
    noise_ratio,
)
from shuffle_plugins.randomness import Randomness

_FINE_BITS = 16  # from which the codes' grid is so fine that reports can be taken as they are without it
_TAIL = 10.0  # codes end so many σ beyond the ball; cut with probability below 1e-22


class Gaussian(ApproximateNoise):
    r"""x + N(0, σ²) on every coordinate, σ by the analytic calibration for records at distance 2·radius.

    The noisy value is rounded to the nearest multiple of the step :math:`h = (r + 10σ)/(2^{bits-1} - 1)`
    before it leaves the client. That is post-processing of x + N(0, σ²) and costs nothing; the grid adds
    h²/12 to the variance and, as h is small beside σ, no bias (below e^-100 of it). Codes end 10σ beyond the
    ball; a coordinate is cut there with probability below 2e-23, a bias below 2e-24·σ, which is not removed.
    The noise itself has no end (:meth:`.Randomness.normal`): one that did, however far, would let a large ε0
    or a small δ0 be broken by reports that one of two records can never send.

    ε0 and δ0 are proved for ideal real arithmetic. The noise and the sum are float64, off by a relative
    1e-15; a grid 2**30 times coarser than that hides which doubles are possible, but no proof covers the
    difference.
    :class:`~shuffle_plugins.mechanisms.noise.discrete_gaussian.DiscreteGaussian` is exact.

    Source: Balle, Wang 2018, Theorem 8.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of a client's vector.
        radius: r, radius of the l2 ball.
        local_delta: δ0 of one report, in [1e-30, 0.1].
        bits: bits per coordinate, in [8, 24].
    """

    name: ClassVar[str] = "gaussian"

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        local_delta: float = DEFAULT_LOCAL_DELTA,
        bits: int = 20,
    ) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius, local_delta=local_delta)
        self._bits = checks.whole("bits", bits, at_least=8, at_most=24)
        self._ratio = noise_ratio(local_epsilon=self.local_epsilon, local_delta=local_delta)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on a coordinate."""
        return 2 * self.radius * self._ratio

    @property
    def bits(self) -> int:
        """How many bits a report spends on each coordinate."""
        return self._bits

    @property
    def step(self) -> float:
        """h, the grid's step."""
        return (self.radius + _TAIL * self.sigma) / self.limit

    @property
    def worst_variance(self) -> float:
        """dim·(σ² + h²/12), whatever the row."""
        return self.dim * (self.sigma**2 + self.step**2 / 12)

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² = dim·(σ² + h²/12) of every row, (clients,) float64."""
        rows = self.check_rows(x)
        return torch.full((rows.num_rows,), self.worst_variance, dtype=torch.float64, device=rows.device)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-density of each report as a Gaussian around x (dim,), up to a constant, (reports,) float64."""
        scaled = self._scaled(Rows.of(x.detach().reshape(1, -1)))
        residual = self._multiples(reports) - scaled
        return residual.mul_(self.step / self.sigma).square_().sum(dim=1).mul_(-0.5)

    def _sigma_per_radius(self) -> float:
        return 2 * self._ratio

    def _radius_per_sigma(self) -> float:
        return 1 / self._sigma_per_radius()

    def _attained_per_sigma(self) -> float:
        if self.bits < _FINE_BITS:
            return 0.0
        # A sum of codes, smoothed over some steps, is normal to the last digit.
        step = self.step / self.sigma
        return self._radius_per_sigma() / math.sqrt(1 + 10 * step**2)

    def _instance(self) -> Atoms:
        return gaussian_instance(sigma=self.sigma / self.step, radius=self.radius / self.step)

    def _noisy(self, scaled: Tensor, randomness: Randomness) -> Tensor:
        noise = randomness.normal(tuple(scaled.shape), dtype=torch.float64, device=scaled.device)
        return scaled.add_(noise, alpha=self.sigma / self.step).round_().to(torch.int64)
