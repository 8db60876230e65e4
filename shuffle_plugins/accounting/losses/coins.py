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
from shuffle_plugins.accounting.numerics.binomial import binomial_window
from shuffle_plugins.accounting.numerics.grid import Floats

_REACH = 13.0  # deviations of the loss that a profile is followed
_LARGEST_LOSS = 600.0  # e to this power, times a mass, is a float
_ROUNDOFF = 5e-10  # relative, of a Gaussian profile
_LOST = 32 * 2.0**-53  # of the terms of its differences; 11 is the most that was seen against 60 digits
_CANCELLATION = 1e-13  # of Mills ratios' differences, over the distance between them
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
    far, further = _mills(tail), _mills(tail + mu)
    above, below = ndtr(-near), np.exp(np.minimum(losses, _LARGEST_LOSS)) * ndtr(-near - mu)
    values = np.maximum(np.where(near > 0, density * (far - further), above - below), 0.0)
    # Below a mu of about 1e-5 the digits that the difference loses are more than the relative allowance.
    lost = _LOST * np.where(near > 0, density * far, above + below)
    return np.asarray(np.maximum(values * (1 + _ROUNDOFF), values + lost), dtype=np.float64)


def _mills(x: Floats) -> Floats:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)), dtype=np.float64)


def gaussian_losses(
    *, noise_multiplier: float, sampling_rate: float, resolution: Resolution
) -> PrivacyLossDistribution:
    """From above, the privacy losses of a Gaussian mechanism on a sample of fixed size, replace-one.

    Args:
        noise_multiplier: deviation over replace-one sensitivity.
        sampling_rate: γ in (0, 1].
        resolution: how finely losses are kept.

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


def participation_profile(
    *, mu: float, centre: float, participation: float, cells: int
) -> tuple[Floats, Floats]:
    """ε ≥ 0 and δ(ε), rounded up, of Gaussian noise on data that are there with a probability only.

    γ·N(0, 1) + (1−γ)·N(centre, 1) against γ·N(μ, 1) + (1−γ)·N(centre, 1), the larger of both directions:
    with γ a record is there, otherwise the zero vector (docs/proofs/sums.md, "Secret participation"). The
    best test of the two accepts below a threshold t, and ε follows from t without a search: points are
    thresholds at equal distances.

    Args:
        mu: μ, how far the two records are apart, in deviations of the noise.
        centre: how far a record is from the zero vector at most, in [μ/2, μ].
        participation: γ in (0, 1].
        cells: points for half a deviation of the noise.

    Raises:
        ArithmeticError: if the noise is so small that losses leave floating-point range.
    """
    gamma = participation
    count = math.ceil(2 * cells * (mu / 2 + _REACH))
    t = np.linspace(mu / 2, -_REACH, count + 1)
    near, far = np.exp(centre * t - centre**2 / 2), np.exp(mu * t - mu**2 / 2)
    below = (1 - gamma) * near + gamma * far
    with np.errstate(divide="ignore", over="ignore"):
        excess = -gamma * np.expm1(mu * t - mu**2 / 2) / below  # E - 1
    losses = np.log1p(excess)
    losses[0], excess[0] = 0.0, 0.0
    if not losses[-1] <= _LARGEST_LOSS:
        raise ArithmeticError(
            f"a noise multiplier of {1 / mu:.3g} protects nobody: losses reach {losses[-1]:.3g}"
        )
    # γ·Φ(t) less what the other law accepts, each of whose two parts is φ(t) times a difference of Mills
    # ratios: tails keep their digits.
    at_zero, at_other = (1 - gamma) * excess * near, gamma * (1 + excess) * far
    mills = _mills(-t)
    density = np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    values = density * (at_zero * (mills - _mills(centre - t)) + at_other * (mills - _mills(mu - t)))
    rounding = 1 + _ROUNDOFF + _CANCELLATION / centre
    return losses, np.asarray(np.maximum(values, 0.0) * rounding, dtype=np.float64)


def participation_losses(
    *,
    noise_multiplier: float,
    norm: float,
    participation: float,
    sampling_rate: float,
    resolution: Resolution,
) -> PrivacyLossDistribution:
    """From above, the privacy losses of Gaussian noise on a sum in which each record is by its own coin.

    Args:
        noise_multiplier: deviation over replace-one sensitivity.
        norm: largest norm of a record, over the sensitivity, in [½, 1].
        participation: probability with which a record is in the sum.
        sampling_rate: γ in (0, 1], with which a client is one of those who answer.
        resolution: how finely losses are resolved on their grid.

    Raises:
        ArithmeticError: as :func:`participation_profile`.
    """
    mu = 1.0 / noise_multiplier
    losses, deltas = participation_profile(
        mu=mu, centre=norm * mu, participation=participation, cells=resolution.cells
    )
    return profile_losses(losses, deltas, resolution=resolution, sampling_rate=sampling_rate)


def has_binomial_instance(*, trials: int, shift: int) -> bool:
    """Whether :func:`binomial_losses` can list the outcomes."""
    return shift > 0 and trials <= _MOST_COUNTED


def binomial_losses(
    *, trials: int, shift: int, sampling_rate: float, resolution: Resolution, zero: int = 0
) -> PrivacyLossDistribution:
    """From below: the client holds x or x', which differ in one coordinate, and everybody else the same.

    P is the law of that coordinate's number of heads when the client holds x and takes part with probability
    γ.

    Args:
        trials: fair coins added to the coordinate.
        shift: how far x and x' are apart, in steps of the lattice, at least 1.
        sampling_rate, resolution: as of :func:`gaussian_losses`.
        zero: steps from x' up to what is there if the client does not take part, in [0, shift].

    Raises:
        ArithmeticError: if no outcome of both is within floating-point range.
    """
    _, mass = binomial_window(trials, 0.5)
    if shift >= len(mass):
        raise ArithmeticError("the two records' counts have no outcome in common that floats can tell")
    size = len(mass) - shift  # the counts that are possible with x, x' and neither
    absent = mass[shift - zero : shift - zero + size]
    p = (1 - sampling_rate) * absent + sampling_rate * mass[:size]
    q = (1 - sampling_rate) * absent + sampling_rate * mass[shift:]
    return finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)
