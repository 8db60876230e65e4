"""Exact confidence limits on a probability from counts, and the lower bound on ε that two of them give."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from shuffle_plugins.core import checks

_ROUNDING = 1e-9  # relative; scipy's inverse beta functions are good to about 1e-13


def clopper_pearson_lower(successes: ArrayLike, trials: int, *, error: float) -> NDArray[np.float64]:
    """A one-sided lower confidence limit on the success probability of independent trials, rounded down.

    Whatever the true probability is, the limit lies above it with probability at most ``error`` in (0, 1)
    (Clopper and Pearson 1934). ``successes`` are counts in [0, trials], of any shape.
    """
    checks.whole("trials", trials)
    checks.number("error", error, above=0, below=1)
    counts = np.asarray(successes, dtype=np.float64)
    if not bool(np.all((counts >= 0) & (counts <= trials) & (counts == np.floor(counts)))):
        raise ValueError(f"counts must be whole numbers in [0, {trials}]")
    limits = special.betaincinv(np.maximum(counts, 1), trials - counts + 1, error)
    slack = np.maximum(_ROUNDING * np.minimum(limits, 1 - limits), 4 * np.spacing(limits))
    rounded: NDArray[np.float64] = np.where(counts == 0, 0.0, limits - slack)
    return rounded


def clopper_pearson_upper(successes: ArrayLike, trials: int, *, error: float) -> NDArray[np.float64]:
    """The upper limit, rounded up, below which it lies with probability at most ``error``."""
    limits = 1 - clopper_pearson_lower(trials - np.asarray(successes), trials, error=error)
    rounded: NDArray[np.float64] = np.minimum(np.nextafter(limits, 2.0), 1.0)
    return rounded


def epsilon_lower_bound(
    true_positives: ArrayLike, false_positives: ArrayLike, *, trials: int, delta: float, confidence: float
) -> NDArray[np.float64]:
    """ε below which no mechanism with these counts is (ε, δ)-DP, at a joint confidence for each entry.

    (ε, δ)-DP says P[S | D] ≤ e^ε·P[S | D'] + δ for every event S. Both probabilities, of which trials on D
    and on D' have counts of any shape, are bounded by Clopper-Pearson with half of the error each, so
    log((TPR_low - δ)/FPR_high), clamped at 0 and rounded down, exceeds the true ε with probability at most
    1 - confidence, if the event was fixed before these trials (Jagielski, Ullman, Oprea 2020).
    """
    checks.number("delta", delta, at_least=0, below=1)
    error = (1 - checks.confidence(confidence)) / 2
    hit = clopper_pearson_lower(true_positives, trials, error=error) - delta
    miss = clopper_pearson_upper(false_positives, trials, error=error)
    ratio = np.maximum(hit, 0.0) / miss
    bounds: NDArray[np.float64] = np.log(np.maximum(ratio, 1.0)) * (1 - _ROUNDING)
    return bounds
