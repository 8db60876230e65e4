"""The part of a binomial law that matters, accurate at any number of trials."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from shuffle_plugins.accounting.numerics.grid import Cells, Floats

TAIL = 1e-30
LOG_TAIL = math.log(2 / TAIL)
MOST_LISTED = 1 << 20
"""Counts of a window up to which each is listed; sums over wider ones are integrals."""
_GAUSS_POINTS = 8
_SERIES_FROM = 32.0


def bernstein_reach(variance: npt.ArrayLike, *, tail: float = TAIL) -> Floats:
    """How far a binomial count strays from its mean but for a probability of ``tail`` (Bernstein).

    So does a hypergeometric one, of the same or a larger variance: Hoeffding 1963, Theorem 4.
    """
    log_tail = math.log(2 / tail)
    third = log_tail / 3
    return np.asarray(third + np.sqrt(third**2 + 2 * log_tail * np.asarray(variance)), dtype=np.float64)


def window_ends(trials: int, probability: float) -> tuple[int, int]:
    """The first and the last count of :func:`binomial_window`."""
    if trials == 0 or probability <= 0.0:
        return 0, 0
    if probability >= 1.0:
        return trials, trials
    mean = trials * probability
    reach = float(bernstein_reach(mean * (1 - probability)))
    return max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))


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
    low, high = window_ends(trials, probability)
    mass = binomial_masses(trials, probability, low=low, high=high)
    mass.setflags(write=False)
    return low, mass


def binomial_masses(trials: int, probability: float, *, low: int, high: int) -> Floats:
    """Masses of the counts from ``low`` to ``high``, scaled to a sum of one, from ratios of neighbours."""
    mode = min(max(int((trials + 1) * probability), low), high)
    odds = probability / (1 - probability)
    above = np.arange(mode + 1, high + 1, dtype=np.float64)
    below = np.arange(mode, low, -1, dtype=np.float64)
    rising = np.cumprod((trials - above + 1) / above * odds)
    falling = np.cumprod(below / ((trials - below + 1) * odds))
    mass = np.concatenate([falling[::-1], [1.0], rising])
    return np.asarray(mass / mass.sum(), dtype=np.float64)


def hypergeometric_window(*, draws: int, marked: int, among: int) -> tuple[int, Floats]:
    """As :func:`binomial_window`, of how many of ``draws`` out of ``among`` are ``marked``."""
    least, most = max(0, draws + marked - among), min(draws, marked)
    mean = draws * marked / among
    reach = float(bernstein_reach(mean * (1 - marked / among)))
    low, high = max(least, math.floor(mean - reach)), min(most, math.ceil(mean + reach))
    counts = np.arange(low, high, dtype=np.float64)
    ratio = (marked - counts) * (draws - counts) / ((counts + 1) * (among - marked - draws + counts + 1))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratio))])
    mass = np.exp(logs - logs.max())
    return low, np.asarray(mass / mass.sum(), dtype=np.float64)


def binomial_between(trials: int, probability: float, *, edges: Cells) -> Floats:
    """Masses of the window's counts from each edge up to, but not including, the next one."""
    first, last = window_ends(trials, probability)
    if last - first < MOST_LISTED:
        _, mass = binomial_window(trials, probability)
        return np.asarray(np.add.reduceat(mass, edges[:-1] - first), dtype=np.float64)
    mass = _integrated(trials, probability, edges.astype(np.float64))
    return np.asarray(mass / mass.sum(), dtype=np.float64)


def _integrated(trials: int, probability: float, edges: Floats) -> Floats:
    """Masses between edges, of a window of millions of counts."""
    deviation = math.sqrt(trials * probability * (1 - probability))
    pieces = max(1, math.ceil(float(np.diff(edges).max()) / deviation * 8))
    width = np.diff(edges)[:, None] / pieces
    starts = edges[:-1, None] + width * np.arange(pieces) - 0.5
    places, weights = np.polynomial.legendre.leggauss(_GAUSS_POINTS)
    counts = starts[:, :, None] + width[:, :, None] * (places + 1) / 2
    mass = np.exp(log_probability(successes=counts, trials=trials, success=probability))
    mass *= width[:, :, None] * weights / 2
    far = (counts - trials * probability) / deviation  # f″ is (far² − 1)·f/deviation²
    mass *= 1 - (far**2 - 1) / (24 * deviation**2)
    return np.asarray(mass.sum(axis=(1, 2)), dtype=np.float64)


def log_probability(*, successes: Floats, trials: npt.ArrayLike, success: float) -> Floats:
    """log P[Bin(k, p) = h] for h in [0, k] and p in (0, 1), with absolute error near 1e-12.

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


def log_sum(logs: Floats) -> float:
    """log Σ e^x over all entries x, accurate where it is small; SciPy's takes many times as long."""
    place = int(logs.argmax())
    largest = float(logs[place])
    if not math.isfinite(largest):
        return largest
    others = np.exp(logs - largest)
    others[place] = 0.0
    return largest + math.log1p(float(others.sum()))


def _deviance(excess: Floats, mean: Floats) -> Floats:
    """x·log(x/μ) − x + μ at x = μ + excess, as a series where that would lose digits; not used at x = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = excess / mean
        series = x * x * (1 / 2 - x * (1 / 6 - x * (1 / 12 - x * (1 / 20 - x * (1 / 30 - x / 42)))))
        return np.asarray(mean * np.where(np.abs(x) < 1e-2, series, (1 + x) * np.log1p(x) - x))


def _stirling_error(n: Floats) -> Floats:
    """log n! − log(√(2πn)·(n/e)^n) for n ≥ 1."""
    inverse = 1 / np.asarray(n)
    square = inverse * inverse
    found = np.asarray(inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))))
    few = np.asarray(n < _SERIES_FROM)
    m = n[few]
    found[few] = gammaln(m + 1) - (m + 0.5) * np.log(m) + m - 0.5 * math.log(2 * math.pi)
    return found
