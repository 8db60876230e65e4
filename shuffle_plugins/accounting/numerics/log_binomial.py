"""Binomial probabilities in logarithms, accurate at any size (Loader 2000)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

_SERIES_FROM = 32.0


def log_probability(
    *, successes: NDArray[np.float64], trials: ArrayLike, success: float
) -> NDArray[np.float64]:
    """log P[Bin(k, p) = h] for whole h in [0, k] and p in (0, 1), with absolute error near 1e-12.

    Counts and trials broadcast against each other.

    The plain ``gammaln`` form cancels numbers of size k·log k and is off by more than 1e-6 at k = 1e9;
    Loader's form sums two deviances and Stirling's corrections, all of them small.
    """
    trials = np.asarray(trials, dtype=np.float64)
    failures = trials - successes
    inside = (successes > 0) & (failures > 0)
    h, f = np.where(inside, successes, 1.0), np.where(inside, failures, 1.0)
    excess = successes - trials * success
    deviance = _deviance(excess, trials * success) + _deviance(-excess, trials * (1 - success))
    corrections = _stirling_error(np.maximum(trials, 1.0)) - _stirling_error(h) - _stirling_error(f)
    # at an end (h = 0 or k) the guarded values above are not used
    with np.errstate(divide="ignore", invalid="ignore"):
        log_root = 0.5 * np.log(trials / (2 * math.pi * h * f))
    ends = np.where(successes == 0, trials * math.log1p(-success), trials * math.log(success))
    return np.where(inside, corrections - deviance + log_root, ends)


def log_sum(logs: NDArray[np.float64]) -> float:
    """log Σ e^x over all entries x, accurate where it is small; SciPy's takes many times as long."""
    place = int(logs.argmax())
    largest = float(logs[place])
    if not math.isfinite(largest):
        return largest
    others = np.exp(logs - largest)
    others[place] = 0.0
    return largest + math.log1p(float(others.sum()))


def _deviance(excess: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """x·log(x/μ) − x + μ at x = μ + excess; not used at x = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = excess / mean
        return mean * ((1 + relative) * np.log1p(relative) - relative)


def _stirling_error(n: NDArray[np.float64]) -> NDArray[np.float64]:
    """log n! − log(√(2πn)·(n/e)^n) for n ≥ 1."""
    inverse = 1 / np.asarray(n)
    square = inverse * inverse
    found = np.asarray(inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))))
    few = np.asarray(n < _SERIES_FROM)
    m = n[few]
    found[few] = gammaln(m + 1) - (m + 0.5) * np.log(m) + m - 0.5 * math.log(2 * math.pi)
    return found
