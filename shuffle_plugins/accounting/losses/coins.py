"""Privacy losses of sums with noise of coins: the covering Gaussian's from above, a binomial's from below."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfcx, ndtr

from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
    profile_losses,
)
from shuffle_plugins.accounting.numerics.binomial import TAIL, binomial_window
from shuffle_plugins.accounting.numerics.grid import Floats

_REACH = 13.0  # deviations of the loss that a profile is followed
_LARGEST_LOSS = 600.0  # e to this power, times a mass, is a float
_ROUNDOFF = 5e-10  # relative, of a Gaussian profile
_MOST_COUNTED = 1 << 36  # coins of which every outcome within reach is listed, some millions


def gaussian_profile(losses: Floats, *, mu: float) -> Floats:
    """δ(ε) of the Gaussian mechanism: N(μ, 1) against N(0, 1), at ε = ``losses`` ≥ 0, rounded up.

    Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle, Wang 2018, Theorem 8), as a difference of Mills ratios so that
    far tails keep their digits.
    """
    near = losses / mu - mu / 2
    tail = np.maximum(near, 0.0)
    density = np.exp(-(tail**2) / 2) / math.sqrt(2 * math.pi)
    # Where ``near`` is positive: φ(near)·(m(near) − m(near + μ)), m the Mills ratio.
    far_side = density * (_mills(tail) - _mills(tail + mu))
    near_side = ndtr(-near) - np.exp(np.minimum(losses, _LARGEST_LOSS)) * ndtr(-near - mu)
    values = np.where(near > 0, far_side, near_side)
    return np.asarray(np.maximum(values, 0.0) * (1 + _ROUNDOFF), dtype=np.float64)


def _mills(x: Floats) -> Floats:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)), dtype=np.float64)


def gaussian_losses(
    *, noise_multiplier: float, sampling_rate: float, resolution: Resolution
) -> PrivacyLossDistribution:
    """From above, the privacy losses of a Gaussian mechanism on a sample of fixed size, replace-one.

    Args:
        noise_multiplier: deviation over replace-one sensitivity.
        sampling_rate: γ in (0, 1].
        resolution: how finely losses are resolved on their grid.

    Raises:
        ArithmeticError: if the noise is so small that losses leave floating-point range.
    """
    mu = 1.0 / noise_multiplier
    largest = mu * mu / 2 + _REACH * mu
    if largest > _LARGEST_LOSS:
        raise ArithmeticError(
            f"a noise multiplier of {noise_multiplier:.3g} protects nobody: losses reach {largest:.3g}"
        )
    count = math.ceil(2 * resolution.cells * largest / mu)
    losses = np.linspace(0.0, largest, count + 1)
    deltas = gaussian_profile(losses, mu=mu)
    return profile_losses(losses, deltas, resolution=resolution, sampling_rate=sampling_rate)


def has_binomial_instance(*, trials: int, shift: int) -> bool:
    """Whether :func:`binomial_losses` can list the outcomes."""
    return shift > 0 and trials <= _MOST_COUNTED


def binomial_losses(
    *, trials: int, shift: int, sampling_rate: float, resolution: Resolution
) -> PrivacyLossDistribution:
    """From below: everybody else holds x', and the client x or x', which differ in one coordinate.

    P is the law of that coordinate's number of heads when the client holds x and takes part with probability
    γ.

    Args:
        trials: fair coins added to the coordinate.
        shift: how far x and x' are apart, in steps of the lattice, at least 1.
        sampling_rate: γ in (0, 1].
        resolution: how finely losses are resolved on their grid.

    Raises:
        ArithmeticError: if no outcome of both is within floating-point range.
    """
    _, mass = binomial_window(trials, 0.5)
    if shift >= len(mass):
        raise ArithmeticError("the two records' counts have no outcome in common that floats can tell")
    q = mass[shift:] * (1 - TAIL)
    p = (1 - sampling_rate) * q + sampling_rate * mass[:-shift] * (1 - TAIL)
    return finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)
