"""Many shuffles of the same clients in one round: composed first, then hidden by sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.losses import (
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
    profile_losses,
)

_LARGEST_LOSS = 600.0  # e to this power, times a mass, is a float


def sampled_composition(
    laws: Sequence[PrivacyLossDistribution],
    counts: Sequence[int],
    *,
    sampling_rate: float,
    resolution: Resolution,
) -> PrivacyLossDistribution:
    """From above, the privacy loss distribution of independent shuffles of one sample of fixed size."""
    composition = LossComposition(laws, counts)
    sums, deviation = composition.sums, math.sqrt(composition.sums.variance)
    # A δ of 1e-25 is left to outcomes of infinite loss.
    largest = min(sums.pure, composition.epsilon(max(1e-25, 4 * sums.missing)), _LARGEST_LOSS)
    mean = math.fsum(
        count * float((law.p * law.loss).sum() / law.p.sum()) for law, count in zip(laws, counts, strict=True)
    )
    # Losses from 0 up at which the profile is asked for: between them its chord is above it. Below the first
    # it is 1 but for e^-200, and one chord is as good as many. So it is everywhere if the loss is nearly
    # certain: then nobody is protected.
    lowest = max(0.0, mean - 20 * deviation)
    if deviation < 1e-3 * largest or lowest >= largest:
        losses = np.linspace(0.0, largest, 16)
    else:
        points = min(math.ceil(2 * resolution.cells * (largest - lowest) / deviation) + 2, 20_000)
        losses = np.union1d(0.0, np.linspace(lowest, largest, points))
    deltas = composition.deltas(losses)
    return profile_losses(losses, deltas, resolution=resolution, sampling_rate=sampling_rate)


def sampled_instance(
    laws: Sequence[PrivacyLossDistribution],
    counts: Sequence[int],
    *,
    sampling_rate: float,
    resolution: Resolution,
    exchanged: bool = False,
) -> PrivacyLossDistribution:
    """From below: everybody else holds x', and the client x or x', which are opposite in every message.

    P is the law of what is seen when the client holds x and takes part with probability γ, Q when it holds
    x', and the reverse if ``exchanged``. Composed losses are rounded down, so that one direction is no bound
    for the other.
    """
    if exchanged:
        loss, q = LossComposition([law.reversed() for law in laws], counts, whole=True).outcomes()
        loss = np.minimum(loss, _LARGEST_LOSS)
        with np.errstate(over="ignore"):
            seen = sampling_rate * q * np.exp(-loss) + (1 - sampling_rate) * q
        if sampling_rate < 1:
            loss = -np.log1p(sampling_rate * np.expm1(-loss))
        p, q = q, seen
    else:
        loss, p = LossComposition(laws, counts, whole=True).outcomes()
        q = p * np.exp(-loss)
        p = sampling_rate * p + (1 - sampling_rate) * q
        loss = np.minimum(loss, _LARGEST_LOSS)
        if sampling_rate < 1:  # where nothing is sampled, losses below -37 would be rounded to -inf
            loss = np.log1p(sampling_rate * np.expm1(loss))
    return finite_losses(loss, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)
