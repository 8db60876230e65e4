"""Discrete Laplace noise on a grid, for vectors in an l1 ball."""

from __future__ import annotations

import math
from typing import ClassVar

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.compressors import stochastic_round
from shuffle_plugins.core import Reports, Rows, checks, compact_dtype
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import Norm
from shuffle_plugins.mechanisms.noise.discrete_laplace_law import (
    COARSE_BITS,
    LaplaceGrid,
    grid_blanket,
    laplace_grid,
)
from shuffle_plugins.mechanisms.noise.discrete_sampling import discrete_laplace
from shuffle_plugins.mechanisms.noise.grid_noise import GridNoise
from shuffle_plugins.randomness import Randomness

_MOST_OUTCOME_BITS = 16  # more outcomes are not listed


class DiscreteLaplace(GridNoise):
    r"""x/h rounded to whole numbers without bias, plus noise with P[k] ∝ :math:`e^{-|k|/T}`, per coordinate.

    ε0 holds for the whole l1 ball and the rounding in it, exactly: see
    :mod:`shuffle_plugins.mechanisms.noise.discrete_laplace_law`. Noise is drawn from its exact law
    (:mod:`.discrete_sampling`), rounding from thresholds out of 2**62. Fewer bits
    mean a coarser grid: the noise's variance is about :math:`e^{1/(2T)}` times that of the Laplace mechanism,
    2·(2r/ε0)², with T about :math:`2^{bits-1}/(28 + ε_0/2)`. Codes end 28·T·h beyond the ball; a coordinate
    is cut there with probability below e^-28, a bias below 1e-12 of the noise's scale, which is not removed.

    Source: Ghosh, Roughgarden, Sundararajan 2009; Canonne, Kamath, Steinke 2020.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of a client's vector.
        radius: r, radius of the l1 ball.
        bits: bits per coordinate, in [8, 24].

    Raises:
        ValueError: if a parameter is out of range.
    """

    name: ClassVar[str] = "discrete-laplace"
    norm: ClassVar[Norm] = Norm.L1

    def __init__(
        self, *, local_epsilon: float, dim: int, radius: float = 1.0, bits: int = COARSE_BITS
    ) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        self._bits = checks.whole("bits", bits, at_least=8, at_most=24)
        self._grid = laplace_grid(local_epsilon=self.local_epsilon, dim=dim, bits=bits)

    @property
    def bits(self) -> int:
        """How many bits a report spends on each coordinate."""
        return self._bits

    @property
    def grid(self) -> LaplaceGrid:
        """The noise, and the radius in steps."""
        return self._grid

    @property
    def step(self) -> float:
        """h, the grid's step."""
        return self.radius / self._grid.radius_in_steps

    @property
    def worst_variance(self) -> float:
        """The noise's variance, and at most h²/4 per coordinate or r·h in all for rounding."""
        rounding = min(self.dim / 4, self._grid.radius_in_steps)
        return (self.dim * self._grid.noise_variance + rounding) * self.step**2

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row, (clients,) float64: noise, and h²·f(1 - f) where x/h has fraction f."""
        rounding = self._rounding_variance(self.check_rows(x))
        return rounding.add_(self.dim * self._grid.noise_variance).mul_(self.step**2)

    def blanket(self) -> Blanket:
        """The discrete Laplace blanket in one dimension, the generic one as a bound in more."""
        return grid_blanket(local_epsilon=self.local_epsilon, dim=self.dim, bits=self._bits)

    def outcomes(self) -> Reports | None:
        """Every code, in one dimension and with at most 16 bits."""
        if self.dim > 1 or self._bits > _MOST_OUTCOME_BITS:
            return None
        codes = torch.arange(2 * self.limit + 1, dtype=compact_dtype(self._bits))
        return self.layout.reports(codes)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, (reports,) float64, had its client held x (dim,); exact."""
        multiples = self._multiples(reports)
        scaled = self._scaled(Rows.of(x.detach().reshape(1, -1)))
        below = scaled.floor()
        fraction = scaled - below
        low = self._log_mass(multiples, below) + torch.log1p(-fraction)
        high = self._log_mass(multiples, below + 1) + fraction.log()
        return torch.logaddexp(low, high).sum(dim=1)

    def _noisy(self, scaled: Tensor, randomness: Randomness) -> Tensor:
        edge = self._grid.radius_in_steps
        rounded = stochastic_round(scaled.clamp_(-edge, edge), randomness=randomness)
        noise = discrete_laplace(
            rounded.numel(), scale=self._grid.scale, randomness=randomness, device=rounded.device
        )
        return rounded.add_(noise.reshape(rounded.shape))

    def _log_mass(self, multiples: Tensor, centre: Tensor) -> Tensor:
        """Log-probability of a multiple when the noise is added to ``centre`` and cut at ±limit."""
        rate = 1 / float(self._grid.scale)
        distance = (multiples - centre).abs().mul_(-rate)
        at_end, inside = -math.log1p(math.exp(-rate)), math.log(math.tanh(rate / 2))
        return distance.add_((multiples.abs() == self.limit).double(), alpha=at_end - inside).add_(inside)
