r"""Discrete Laplace noise on a grid, for vectors in an l1 ball.

A row x of the l1 ball is divided by the step h and rounded, coordinate by coordinate, to the multiple below
or above, without bias; noise with P[k] ∝ :math:`e^{-|k|/T}` is added.

**ε0 with rounding.** For a code y, the probability :math:`P_x(y)` of one coordinate, as a function of
z = x/h, is :math:`P(y - z)` at whole z and linear in between; neighbours differ by the factor
:math:`e^{1/T}`. Away from 0 and towards y, |z| = k + f steps gain
:math:`k/T + \ln(1 + f(e^{1/T} - 1)) \le |z|(e^{1/T} - 1)` of logarithm; away from y they lose
:math:`k/T - \ln(1 - f(1 - e^{-1/T})) \le |z|/T`, by convexity in f. Coordinates are independent, so two rows
of the ball differ by

.. math:: |\log P_x(y) - \log P_{x'}(y)| \le (e^{1/T} - 1 + 1/T)\,r/h

in any dimension, and the step is chosen to make that ε0. It is attained in the limit, by one row spread over
many coordinates and one on an axis. The noise alone, without rounding, would spend 2r/(hT). Rounding the rows
first and bounding the distance of the rounded rows would cost up to 2·dim steps more.

In one dimension linear pieces have their extremes at whole multiples, so with r = q·h the ratio is exactly
:math:`e^{2q/T}`; rounding costs nothing, and the blanket is the discrete Laplace one. Where x is not a
multiple of h, its law is a mixture of two that are; hockey-stick divergences are jointly convex and the
infimum over all laws is that over the multiples, so the blanket covers it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from shuffle_plugins.accounting import Blanket, InformationBound
from shuffle_plugins.compressors import stochastic_round
from shuffle_plugins.core import Reports, Rows, checks, compact_dtype
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import Norm
from shuffle_plugins.mechanisms.noise.additive_law import (
    discrete_laplace_blanket,
    discrete_laplace_information,
    discrete_laplace_instances,
    laplace_ball_information,
)
from shuffle_plugins.mechanisms.noise.discrete_sampling import discrete_laplace
from shuffle_plugins.mechanisms.noise.grid_noise import GridNoise
from shuffle_plugins.randomness import Randomness

FINE_BITS = 20
"""Bits per coordinate of the mechanism called Laplace: the grid adds about 1e-4 to its variance."""

COARSE_BITS = 12
"""Bits per coordinate of the mechanism called discrete Laplace, unless it is told others."""

_TAIL = 28.0  # noise scales from the ball to the last code; cut with probability below e^-28
_MARGIN = 1e-9  # relative; covers rounding in float64
_SCALE_DIGITS = 40  # binary digits of the noise's scale, a fraction
_LOUDEST_BLANKET = 150.0  # keeps products of the blanket's weights in float64's range
_LOUDEST_TOLD = 30.0  # beyond, no round is large enough
_MOST_STEPS = 1 << 22  # arrays of the blanket's levels stay small


@dataclass(frozen=True, kw_only=True, slots=True)
class LaplaceGrid:
    """One discrete Laplace mechanism, in units of its step.

    Attributes:
        scale: T, exactly.
        radius_in_steps: r/h.
        whole_radius: q if r = q·h in one dimension, else None.
    """

    scale: Fraction
    radius_in_steps: float
    whole_radius: int | None

    @property
    def noise_variance(self) -> float:
        """1/(2·sinh²(1/(2T))), in squared steps."""
        return 0.5 / math.sinh(0.5 / float(self.scale)) ** 2


@lru_cache(maxsize=256)
def laplace_grid(*, local_epsilon: float, dim: int, bits: int) -> LaplaceGrid:
    """The finest grid on which ±(r + 28·T·h) has codes of so many bits.

    A coordinate meets the end of the codes with probability below e^-28.
    """
    checks.local_epsilon(local_epsilon)
    checks.dim(dim)
    limit = (1 << (bits - 1)) - 1
    wanted = limit / (_TAIL + local_epsilon / 2)
    whole = int(local_epsilon * wanted / 2) if dim == 1 else 0
    if whole >= 1:
        grain = Fraction(1 << _SCALE_DIGITS)
        scale = Fraction(math.ceil(Fraction(2 * whole) / Fraction(local_epsilon) * grain)) / grain
        return LaplaceGrid(scale=scale, radius_in_steps=float(whole), whole_radius=whole)
    scale = Fraction(wanted).limit_denominator(1 << 20)
    rate = 1 / float(scale)
    radius = local_epsilon / (math.expm1(rate) + rate) * (1 - _MARGIN)
    return LaplaceGrid(scale=scale, radius_in_steps=radius, whole_radius=None)


@lru_cache(maxsize=256)
def grid_blanket(*, local_epsilon: float, dim: int, bits: int = COARSE_BITS) -> Blanket:
    """The discrete Laplace blanket in one dimension, the generic one as a bound in more.

    The generic one also where ε0 is too large for the discrete Laplace one (above 150), or so small that the
    step is longer than the radius.
    """
    grid = laplace_grid(local_epsilon=local_epsilon, dim=dim, bits=bits)
    whole = grid.whole_radius
    if whole is None or local_epsilon > _LOUDEST_BLANKET or 2 * whole > _MOST_STEPS:
        generic = Blanket.generic(local_epsilon, exact=False).shared()
        if grid.radius_in_steps < 1 or local_epsilon > _LOUDEST_BLANKET:
            return generic
        # Rows on an axis, at whole steps, so that nothing is rounded.
        steps = 2 * math.floor(grid.radius_in_steps)
        own = discrete_laplace_instances(rate=float(1 / grid.scale), steps=steps, axes=dim)
        if local_epsilon > _LOUDEST_TOLD:
            return replace(generic, instances=own)
        information = laplace_ball_information(
            rate=float(1 / grid.scale) * (1 + _MARGIN), radius=grid.radius_in_steps * (1 + _MARGIN), dim=dim
        )
        bound = InformationBound.of_any(local_epsilon=local_epsilon, information=information)
        return replace(generic, instances=own, information_bound=bound)
    law = discrete_laplace_blanket(local_epsilon=local_epsilon, steps=2 * whole)
    own = discrete_laplace_instances(rate=local_epsilon / (2 * whole), steps=2 * whole, axes=1)
    information = discrete_laplace_information(local_epsilon=local_epsilon, steps=2 * whole)
    bound = InformationBound.of_blanket(
        local_epsilon=local_epsilon, information=information, mass=law.mass * (1 - _MARGIN)
    )
    return replace(law, instances=own, information_bound=bound).shared()


_MOST_OUTCOME_BITS = 16  # more outcomes are not listed


class DiscreteLaplace(GridNoise):
    r"""x/h rounded to whole numbers without bias, plus noise with P[k] ∝ :math:`e^{-|k|/T}`, per coordinate.

    ε0 holds for the whole l1 ball and the rounding in it, exactly: see
    :mod:`shuffle_plugins.mechanisms.noise.discrete_laplace`. Noise is drawn from its exact law
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
