"""The draws of real runs: what clients send, and what a trusted server adds. Secure, and exact on a grid."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.accounting import Floats
from shuffle_plugins.bandits.designs import Indices
from shuffle_plugins.bandits.privacy import LaplaceReports, RewardNoise, SumNoise, checked_rewards
from shuffle_plugins.core import Reports
from shuffle_plugins.core.reports import Field
from shuffle_plugins.mechanisms.base import LocalRandomizer
from shuffle_plugins.mechanisms.discrete_sampling import discrete_laplace
from shuffle_plugins.mechanisms.noise import Laplace
from shuffle_plugins.mechanisms.signs import BinaryRandomizedResponse
from shuffle_plugins.randomness.sources import Randomness, secure


def reward_mechanism(noise: RewardNoise) -> LocalRandomizer:
    """The mechanism with which each client of the batch randomises its reward."""
    if noise.local_epsilon is None:
        raise ValueError("clients of this batch send their rewards as they are")
    if isinstance(noise, LaplaceReports):
        return Laplace(local_epsilon=noise.local_epsilon, dim=1)
    return BinaryRandomizedResponse(local_epsilon=noise.local_epsilon)


def randomized(noise: RewardNoise, rewards: Floats, *, randomness: Randomness | None) -> Reports:
    """A report for each reward."""
    column = torch.from_numpy(np.ascontiguousarray(rewards)).reshape(-1, 1)
    return reward_mechanism(noise).randomize(column, randomness=randomness)


def released_totals(
    noise: RewardNoise,
    reports: Floats | Reports,
    *,
    places: Indices,
    played: int,
    randomness: Randomness | None,
) -> Floats:
    """Unbiased sums of the rewards of each of ``played`` actions, with all the noise that the model asks
    for.

    Args:
        noise: of the batch.
        reports: rewards if a server is trusted or nothing is protected, else reports of the mechanism.
        places: of each report's action among those played.
        played: how many actions were played.
        randomness: of the server's noise.
    """
    if noise.local_epsilon is not None:
        if not isinstance(reports, Reports):
            raise ValueError("clients must randomise their rewards first: pass what batch.randomize() gives")
        mechanism = reward_mechanism(noise)
        mechanism.layout.check(reports)
        chosen = torch.from_numpy(places)
        return np.array(
            [float(mechanism.sum(_among(reports, chosen == place))[0]) for place in range(played)]
        )
    if isinstance(reports, Reports):
        raise ValueError("this batch takes rewards as they are, not reports of a mechanism")
    rewards = checked_rewards(reports)
    if not isinstance(noise, SumNoise):
        exact: Floats = np.bincount(places, weights=rewards, minlength=played).astype(np.float64)
        return exact
    source = secure(randomness)
    steps = noise.steps
    whole = _rounded(torch.from_numpy(rewards) * steps, source)
    sums = torch.zeros(played, dtype=torch.int64).index_add_(0, torch.from_numpy(places), whole)
    scale = noise.scale.limit_denominator(1 << 30)
    if scale < noise.scale:  # rounded down: the noise must not be smaller
        scale += Fraction(1, 1 << 30)
    noisy = sums + discrete_laplace(played, scale=scale, randomness=source)
    found: Floats = noisy.double().div_(steps).numpy()
    return found


def _rounded(scaled: Tensor, randomness: Randomness) -> Tensor:
    """Whole numbers, one of the two nearest, without bias."""
    low = scaled.floor()
    up = randomness.uniform(len(scaled)) < scaled - low
    return low.to(torch.int64) + up.to(torch.int64)


def _among(reports: Reports, chosen: Tensor) -> Reports:
    fields = tuple(Field(field.values[chosen], field.bits) for field in reports.fields)
    return Reports(mechanism=reports.mechanism, dim=reports.dim, fields=fields)
