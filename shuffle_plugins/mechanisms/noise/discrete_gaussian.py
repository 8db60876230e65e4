"""Discrete Gaussian noise on a grid, for vectors in an l2 ball, (ε0, δ0)-LDP."""

from __future__ import annotations

import math
from typing import ClassVar

from shuffle_plugins.accounting import Atoms
from shuffle_plugins.compressors import stochastic_round
from shuffle_plugins.core import Reports, Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.noise.additive_law import discrete_gaussian_instance
from shuffle_plugins.mechanisms.noise.approximate_noise import DEFAULT_LOCAL_DELTA, ApproximateNoise
from shuffle_plugins.mechanisms.noise.discrete_gaussian_law import (
    LEAST_BITS,
    MOST_BITS,
    GaussianGrid,
    gaussian_grid,
    rounded_radius,
)
from shuffle_plugins.mechanisms.noise.discrete_sampling import discrete_gaussian
from shuffle_plugins.randomness import Randomness


class DiscreteGaussian(ApproximateNoise):
    r"""x/h rounded to whole numbers without bias, plus noise with P[k] ∝ :math:`e^{-k^2/(2σ^2)}`.

    (ε0, δ0) holds for the whole l2 ball and the rounding in it: see
    :mod:`shuffle_plugins.mechanisms.noise.discrete_gaussian_law`. Noise is drawn from its exact law
    (:mod:`.discrete_sampling`), rounding from thresholds out of 2**62; no float
    decides. Codes end 9.5σ beyond the ball; a coordinate is cut there with probability below 1e-20, a bias
    below 1e-21·σ, which is not removed. Fewer bits mean a coarser grid and so more noise.

    Source: Canonne, Kamath, Steinke 2020.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of a client's vector.
        radius: r, radius of the l2 ball.
        local_delta: δ0 of one report, in [1e-30, 0.1].
        bits: bits per coordinate, in [6, 40]; by default the fewest that add no more than 1 % to the
            variance.

    Raises:
        ValueError: if a parameter is out of range, or the bits do not suffice for the noise.
    """

    name: ClassVar[str] = "discrete-gaussian"

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        local_delta: float = DEFAULT_LOCAL_DELTA,
        bits: int | None = None,
    ) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius, local_delta=local_delta)
        if bits is not None:
            checks.whole("bits", bits, at_least=LEAST_BITS, at_most=MOST_BITS)
        self._grid = gaussian_grid(
            local_epsilon=self.local_epsilon, local_delta=self.local_delta, dim=dim, bits=bits
        )

    @property
    def grid(self) -> GaussianGrid:
        """The noise, the radius in steps, the bits."""
        return self._grid

    @property
    def bits(self) -> int:
        """How many bits a report spends on each coordinate."""
        return self._grid.bits

    @property
    def step(self) -> float:
        """h, the grid's step."""
        return self.radius / self._grid.radius_in_steps

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on a coordinate, σ·h."""
        return self._grid.sigma * self.step

    @property
    def worst_variance(self) -> float:
        """The noise's variance, and at most h²/4 per coordinate or √dim·r·h in all for rounding."""
        rounding = min(self.dim / 4, math.sqrt(self.dim) * self._grid.radius_in_steps)
        return self.dim * self.sigma**2 + rounding * self.step**2

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row, (clients,) float64: noise, and h²·f(1 - f) where x/h has fraction f."""
        rounding = self._rounding_variance(self.check_rows(x))
        return rounding.mul_(self.step**2).add_(self.dim * self.sigma**2)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held x (dim,), up to a constant, (reports,) float64.

        The two outermost codes, where values beyond are cut, are taken as they are.
        """
        multiples = self._multiples(reports)
        scaled = self._scaled(Rows.of(x.detach().reshape(1, -1)))
        below = scaled.floor()
        fraction = scaled - below
        low = (multiples - below).square_().mul_(-0.5 / self._grid.sigma**2)
        high = (multiples - below - 1).square_().mul_(-0.5 / self._grid.sigma**2)
        return torch.logaddexp(low + torch.log1p(-fraction), high + fraction.log()).sum(dim=1)

    def _sigma_per_radius(self) -> float:
        return self._grid.continuous_sigma / math.ceil(self._grid.radius_in_steps)

    def _radius_per_sigma(self) -> float:
        return rounded_radius(self._grid.radius_in_steps, dim=self.dim) / self._grid.continuous_sigma

    def _attained_per_sigma(self) -> float:
        # Whole records are not rounded; noise of variance 4 more makes the discrete law a normal one.
        return math.floor(self._grid.radius_in_steps) / math.hypot(self._grid.sigma, 2)

    def _instance(self) -> Atoms:
        return discrete_gaussian_instance(sigma=self._grid.sigma, radius=self._grid.radius_in_steps)

    def _noisy(self, scaled: Tensor, randomness: Randomness) -> Tensor:
        rounded = stochastic_round(scaled, randomness=randomness)
        noise = discrete_gaussian(
            rounded.numel(), sigma=self._grid.sigma, randomness=randomness, device=rounded.device
        )
        return rounded.add_(noise.reshape(rounded.shape))
