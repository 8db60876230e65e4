"""Privacy losses of shuffled reports with Gaussian noise, for vectors of any dimension."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy import special

from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    discounted,
    finite_losses,
    profile_losses,
)
from shuffle_plugins.accounting.numerics.binomial import TAIL, binomial_window
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.pairs.gaussian_reports import gaussian_reports_profile
from shuffle_plugins.accounting.terms import CohortDraw, Sampling

_REACHED = 1e-12  # δ to which a profile must fall: a bound that stays above it knows nothing of the tail
_QUANTILES = (1e-20, 1e-3, 0.1)  # of a random cohort, at which it is cut into groups
_INSTANCE_QUANTILES = (1e-13, 0.01, 0.15, 0.5, 0.85, 0.99, 1 - 1e-13)
_CELLS, _REACH = 1500, 12.0  # cells of an instance's sum, and standard deviations they cover
_CUT_CODES, _FAR = 1e-20, 1e-15  # total variation: of codes that have an end, per report, and of rounding
_ROUNDOFF = 1e-13  # relative, of a cell's mass


@lru_cache(maxsize=512)
def gaussian_round_profile(
    *, radius: float, population: int, cohort: float, sampling: Sampling, sees_cohort: bool
) -> tuple[Floats, Floats] | None:
    """Losses from 0 up and δ there from above, or None where this analysis says nothing of small δ.

    Args:
        radius: of the ball of records, in units of the noise's standard deviation.
        population, cohort, sampling: as of a round.
        sees_cohort: whether the adversary sees who took part.
    """
    if sampling is not Sampling.POISSON:
        slots = int(cohort)
        everybody = sees_cohort or sampling in (Sampling.FULL, Sampling.SINGLE_PASS)
        found = gaussian_reports_profile(
            radius=radius, population=slots if everybody else population, slots=slots
        )
    elif sees_cohort:
        found = _over_cohorts(radius, population, cohort / population)
    else:
        found = gaussian_reports_profile(
            radius=radius, population=population, slots=population, participation=cohort / population
        )
    return found if found[1][-1] <= _REACHED else None


def _over_cohorts(radius: float, population: int, rate: float) -> tuple[Floats, Floats]:
    """The client took part, so the cohort is 1 + Bin(n − 1, γ), public; fewer reports cost more."""
    first, law = binomial_window(population - 1, rate)
    edges = np.unique(np.searchsorted(np.cumsum(law), _QUANTILES))
    masses = np.add.reduceat(law, edges)
    found = []
    for edge in edges.tolist():
        size = 1 + first + edge
        found.append(gaussian_reports_profile(radius=radius, population=size, slots=size))
    losses = found[-1][0]
    deltas = np.full(len(losses), TAIL + float(law[: edges[0]].sum()))
    for mass, (own, values) in zip(masses, found, strict=True):
        # Between points of a profile its chord, straight in E, is above it.
        deltas += mass * np.interp(np.expm1(losses), np.expm1(own), values)
    return losses, deltas


def gaussian_report_losses(
    profile: tuple[Floats, Floats], *, resolution: Resolution
) -> PrivacyLossDistribution:
    """From above, the privacy loss distribution of the round with this profile."""
    losses, deltas = profile
    return profile_losses(losses, deltas, resolution=resolution)


def gaussian_instance_losses(
    *, radius: float, draw: CohortDraw, resolution: Resolution
) -> PrivacyLossDistribution:
    """From below: everybody else holds x', the client x or x', as far apart as a ball allows.

    The sum of the reports is a function of what is seen: normal, and, where the client takes part, moved by
    2·radius. Under Poisson sampling with k reports the client takes part with probability k/n; all k of a
    range are taken to be the smallest in that probability and the largest in noise, which hides more.
    """
    if draw.sampling is not Sampling.POISSON:
        everybody = draw.sees_cohort or draw.sampling is Sampling.FULL
        parts = [(1.0, 1.0 if everybody else draw.cohort / draw.population, int(draw.cohort))]
    else:
        seen = int(draw.sees_cohort)
        first, law = binomial_window(draw.population - seen, draw.sampling_rate)
        edges = np.unique(np.searchsorted(np.cumsum(law), _INSTANCE_QUANTILES))
        few = len(law) <= len(_INSTANCE_QUANTILES)  # at γ = 1 there is one size
        if few:
            edges = np.arange(len(law) + 1)
        parts = []
        for low, high in pairwise(edges):
            size = seen + first + int(high) - few
            rate = 1.0 if seen else (first + int(low)) / draw.population
            parts.append((float(law[low:high].sum()), rate, size))
        parts = [part for part in parts if part[1] > 0]
    p, q = (
        np.concatenate(masses)
        for masses in zip(
            *(_sum_masses(2 * radius / math.sqrt(size), rate, mass) for mass, rate, size in parts),
            strict=True,
        )
    )
    found = finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)
    return discounted(found, _FAR + draw.cohort * _CUT_CODES)


def _sum_masses(shift: float, rate: float, mass: float) -> tuple[Floats, Floats]:
    """Masses of cells of the sum under both datasets, times ``mass``."""
    edges = np.linspace(-_REACH, _REACH + shift, _CELLS + 1)[1:-1]
    q, moved = (_cell_masses(edges - centre) for centre in (0.0, shift))
    kept = (1 - _ROUNDOFF) * mass
    return kept * ((1 - rate) * q + rate * moved), kept * q


def _cell_masses(edges: Floats) -> Floats:
    """Normal masses between the edges and beyond them, each from the side where it keeps its digits."""
    below, above = special.ndtr(edges), special.ndtr(-edges)
    inner = np.where(edges[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
    return np.concatenate([below[:1], inner, above[-1:]])
