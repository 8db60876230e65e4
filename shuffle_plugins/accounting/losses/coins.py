"""Privacy loss laws of sum rounds: the covering Gaussian's from above, a binomial instance's from below."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfcx, ndtr

from shuffle_plugins.accounting.losses.distribution import PrivacyLossDistribution, Resolution, finite_losses
from shuffle_plugins.accounting.numerics.binomial import TAIL, binomial_window
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.profiles import hull_outcomes, mirrored
from shuffle_plugins.accounting.rounds.coins import SumRound

_REACH = 13.0  # deviations of the loss that a profile is followed
_LARGEST_LOSS = 600.0
_ROUNDOFF = 5e-10  # relative, of a Gaussian profile
_MOST_COUNTED = 1 << 36  # trials of which every outcome is listed
INSTANCE = "binomial instance"


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


def upper_law(sum_round: SumRound, resolution: Resolution) -> PrivacyLossDistribution:
    """The law of the Gaussian that covers the round. Its distance from the round is not in it.

    The accountant charges that as ``replacement_distance``.

    Raises:
        ArithmeticError: if the noise is so small that losses leave floating-point range.
    """
    return gaussian_losses(
        noise_multiplier=sum_round.noise_multiplier,
        sampling_rate=sum_round.sampling_rate,
        resolution=resolution,
    )


def gaussian_losses(
    *, noise_multiplier: float, sampling_rate: float, resolution: Resolution
) -> PrivacyLossDistribution:
    """From above, the law of a Gaussian mechanism on a sample of fixed size, replace-one.

    Its profile is γ·δ_μ(log(1 + (E − 1)/γ)) at E = e^ε ≥ 1, with μ one over the multiplier: Balle, Barthe,
    Gaboardi 2018, Theorem 11. For E < 1 it follows by symmetry (Zhu, Dong, Wang 2022).

    Args:
        noise_multiplier: deviation over replace-one sensitivity.
        sampling_rate: γ in (0, 1].
        resolution: how finely.

    Raises:
        ArithmeticError: if the noise is so small that losses leave floating-point range.
    """
    mu, gamma = 1.0 / noise_multiplier, sampling_rate
    largest = mu * mu / 2 + _REACH * mu
    if largest > _LARGEST_LOSS:
        raise ArithmeticError(
            f"a noise multiplier of {noise_multiplier:.3g} protects nobody: losses reach {largest:.3g}"
        )
    count = math.ceil(2 * resolution.cells * largest / mu)
    own = np.linspace(0.0, largest, count + 1)
    losses = np.log1p(gamma * np.expm1(own))
    outcomes = hull_outcomes(losses, gamma * gaussian_profile(own, mu=mu))
    p, q = mirrored(outcomes)
    loss = np.concatenate([-outcomes.loss[::-1], [0.0], outcomes.loss])
    return finite_losses(
        loss, p, q, missing=outcomes.beyond, kind="upper", resolution=resolution, symmetric=True
    )


def has_instance(sum_round: SumRound) -> bool:
    """Whether the round has an instance whose outcomes can be listed."""
    return sum_round.attained > 0 and sum_round.trials <= _MOST_COUNTED


def instance_law(sum_round: SumRound, resolution: Resolution) -> PrivacyLossDistribution:
    """Everybody else holds x', and the client x or x', ``attained`` apart in one coordinate.

    P is the law of that coordinate's count when the client holds x and takes part with probability γ.

    Raises:
        ArithmeticError: if no outcome of both is within floating-point range.
    """
    _, mass = binomial_window(sum_round.trials, 0.5)
    shift, gamma = sum_round.attained, sum_round.sampling_rate
    if shift >= len(mass):
        raise ArithmeticError("the two records' counts have no outcome in common that floats can tell")
    q = mass[shift:] * (1 - TAIL)
    p = (1 - gamma) * q + gamma * mass[:-shift] * (1 - TAIL)
    return finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)
