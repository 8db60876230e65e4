r"""Discrete Gaussian noise on a grid, for vectors in an l2 ball, (ε0, δ0)-LDP.

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
from typing import ClassVar

from shuffle_plugins.accounting import Atoms
from shuffle_plugins.compressors import stochastic_round
from shuffle_plugins.core import Reports, Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.noise.additive_law import discrete_gaussian_instance
from shuffle_plugins.mechanisms.noise.approximate_noise import (
    DEFAULT_LOCAL_DELTA,
    ApproximateNoise,
    noise_ratio,
)
from shuffle_plugins.mechanisms.noise.discrete_sampling import MAX_SIGMA, discrete_gaussian
from shuffle_plugins.randomness import Randomness

LEAST_BITS, MOST_BITS = 6, 40
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


class DiscreteGaussian(ApproximateNoise):
    r"""x/h rounded to whole numbers without bias, plus noise with P[k] ∝ :math:`e^{-k^2/(2σ^2)}`.

    (ε0, δ0) holds for the whole l2 ball and the rounding in it: see
    :mod:`shuffle_plugins.mechanisms.noise.discrete_gaussian`. Noise is drawn from its exact law
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
