r"""The grid and the noise of the discrete Gaussian mechanism. Torch-free.

A row of the l2 ball is divided by the step and rounded to whole numbers without bias; discrete Gaussian noise
of parameter σ is added.

**Rounding.** Round both of two records with the same uniform numbers: coordinate j of the difference Δ
becomes ⌊Δ_j⌋ or ⌈Δ_j⌉, independently, with mean Δ_j. Its squared length has mean at most
:math:`‖Δ‖^2 + \min(d/4, \sqrt d\,‖Δ‖)`, and by Hoeffding's inequality, the ranges being at most 2|Δ_j| + 1,
exceeds that by :math:`(2‖Δ‖ + \sqrt d)\sqrt{\ln(1/β)/2}` with probability at most β. Hockey-stick divergences
are jointly convex, so noise that is (ε0, δ0 - β) for that distance makes the whole (ε0, δ0). A thousandth of
δ0 goes to β. Never is the distance more than :math:`‖Δ‖ + \sqrt d`.

**Noise.** A continuous Gaussian of variance σ² - 4 around whole numbers, followed by a discrete Gaussian of
variance 4 around its value, has the discrete Gaussian law of variance σ² up to a relative e^-76 per
coordinate (Peikert 2010, Theorem 3.1: 2 is far above the smoothing parameter). So the discrete mechanism is a
post-processing of the continuous one with a σ hardly smaller, in any dimension, and takes its analytic
calibration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from shuffle_plugins.mechanisms.noise.gaussian_law import noise_ratio

LEAST_BITS, MOST_BITS = 6, 40
MAX_SIGMA = 1 << 26
"""Largest σ that discrete Gaussian noise is sampled with."""
_TAIL = 9.5  # codes end so many σ beyond the ball; cut with probability below 1e-20
_ROUNDING_SHARE = 1e-3  # of δ0, spent on rows that rounding makes too long
_SMOOTHING_VARIANCE = 4
_GOOD_ENOUGH = 1.005  # times the least noise; finer grids are not tried
_MARGIN = 1e-9  # relative; covers rounding in float64
_BISECTIONS = 80
_LOG_MISS = 80.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianGrid:
    """One discrete Gaussian mechanism, in units of its step.

    Attributes:
        sigma: σ of the noise, a whole number.
        radius_in_steps: radius over step.
        bits: bits per coordinate.
    """

    sigma: int
    radius_in_steps: float
    bits: int

    @property
    def continuous_sigma(self) -> float:
        """Standard deviation of the continuous Gaussian of which the noise is a post-processing."""
        return math.sqrt(self.sigma**2 - _SMOOTHING_VARIANCE)


def rounded_distance(radius_in_steps: float, *, dim: int, miss: float) -> float:
    """The distance of two rounded records of the ball, exceeded with probability at most ``miss``."""
    apart, root = 2 * radius_in_steps, math.sqrt(dim)
    spread = (2 * apart + root) * math.sqrt(math.log(1 / miss) / 2)
    return min(math.sqrt(apart**2 + min(dim / 4, root * apart) + spread), apart + root)


def rounded_radius(radius_in_steps: float, *, dim: int) -> float:
    """The length of a rounded record of the ball, exceeded with probability below 1e-34.

    With ℓ = 80, e^-ℓ = 2e-35: ‖y‖² + 2‖y‖·√(ℓ/2) + d/4 + √(dℓ/2), each random part by Hoeffding's inequality
    (``docs/proofs/sums.md``, "Rounding"). Never more than ‖y‖ + √d.
    """
    likely = radius_in_steps**2 + 2 * radius_in_steps * math.sqrt(_LOG_MISS / 2)
    likely += dim / 4 + math.sqrt(dim * _LOG_MISS / 2)
    return min(math.sqrt(likely), radius_in_steps + math.sqrt(dim)) * (1 + _MARGIN)


@lru_cache(maxsize=256)
def gaussian_grid(*, local_epsilon: float, local_delta: float, dim: int, bits: int | None) -> GaussianGrid:
    """The finest grid on which ±(radius + 9.5σ) has codes of so many bits.

    Without ``bits``: the fewest on which rounding adds no more than 1 % to the variance, or, where σ would
    exceed what can be sampled, the best that can.

    Raises:
        ValueError: if no grid is fine enough, or a parameter is out of range.
    """
    ratio = noise_ratio(local_epsilon=local_epsilon, local_delta=local_delta * (1 - _ROUNDING_SHARE))

    def sigma(radius: float) -> int:
        distance = rounded_distance(radius, dim=dim, miss=local_delta * _ROUNDING_SHARE) * (1 + _MARGIN)
        return math.ceil(math.hypot(ratio * distance, math.sqrt(_SMOOTHING_VARIANCE)))

    def finest(width: int) -> GaussianGrid | None:
        def fits(radius: float) -> bool:
            noise = sigma(radius)
            return noise <= MAX_SIGMA and radius + _TAIL * noise + 1 <= (1 << (width - 1)) - 1

        low, high = -20.0, 40.0
        if not fits(2.0**low):
            return None
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(2.0**middle) else (low, middle)
        return GaussianGrid(sigma=sigma(2.0**low), radius_in_steps=2.0**low, bits=width)

    def loss(grid: GaussianGrid) -> float:
        return grid.sigma / (2 * ratio * grid.radius_in_steps)

    best = None
    for width in range(LEAST_BITS, MOST_BITS + 1) if bits is None else (bits,):
        grid = finest(width)
        if grid is not None and (best is None or loss(grid) < loss(best) * (1 - _MARGIN)):
            best = grid
        if best is not None and loss(best) <= _GOOD_ENOUGH:
            break
    if best is None:
        raise ValueError(
            f"no grid of {'so many as 40' if bits is None else bits} bits per coordinate holds the noise for "
            f"local_epsilon={local_epsilon} in dimension {dim}: allow more bits, or raise local_epsilon or "
            "local_delta"
        )
    return best
