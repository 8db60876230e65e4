"""The part of a binomial law that matters, accurate at any number of trials."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shuffle_plugins.accounting.numerics.grid import Floats

TAIL = 1e-30
LOG_TAIL = math.log(2 / TAIL)


def bernstein_reach(variance: npt.ArrayLike) -> Floats:
    """How far a binomial count strays from its mean but for a probability of 1e-30 (Bernstein)."""
    third = LOG_TAIL / 3
    return np.asarray(third + np.sqrt(third**2 + 2 * LOG_TAIL * np.asarray(variance)), dtype=np.float64)


@lru_cache(maxsize=512)
def binomial_window(trials: int, probability: float) -> tuple[int, Floats]:
    """The binomial masses that matter: all but at most 1e-30 of the law, as (first count, masses).

    Bernstein's inequality gives the window; masses come from ratios of neighbours, starting at the mode, so
    they are accurate to a few thousand units in the last place at any ``trials``.
    """
    if trials == 0 or probability <= 0.0:
        return 0, np.ones(1)
    if probability >= 1.0:
        return trials, np.ones(1)
    mean = trials * probability
    variance = mean * (1 - probability)
    reach = float(bernstein_reach(variance))
    low, high = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    mode = min(max(int((trials + 1) * probability), low), high)
    odds = probability / (1 - probability)
    above = np.arange(mode + 1, high + 1, dtype=np.float64)
    below = np.arange(mode, low, -1, dtype=np.float64)
    rising = np.cumprod((trials - above + 1) / above * odds)
    falling = np.cumprod(below / ((trials - below + 1) * odds))
    mass = np.concatenate([falling[::-1], [1.0], rising])
    mass /= mass.sum()
    mass.setflags(write=False)
    return low, mass
