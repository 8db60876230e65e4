r"""The grid and the noise of the discrete Laplace mechanism, and its blanket. Torch-free.

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

from shuffle_plugins.accounting import Blanket, InformationBound
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.noise.additive_law import (
    discrete_laplace_blanket,
    discrete_laplace_information,
    discrete_laplace_instances,
    laplace_ball_information,
)

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

    Raises:
        ValueError: if ε0 or the dimension is out of range.
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

    Raises:
        ValueError: if ε0 or the dimension is out of range.
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
