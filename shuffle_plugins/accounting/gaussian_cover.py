"""Binomial noise is a post-processing of Gaussian noise, up to a distance that is computed.

Sums in the shuffle model get their noise from fair coins of many clients: Bin(M, ½). Take a Gaussian of
variance s², add an independent symmetric variable on three points {−r, 0, r}, and round to the lattice of the
binomial. Each step commutes with integer shifts. So one and the same channel takes N(0, s²) to nearly
Bin(M, ½) and N(z, s²) to nearly z + Bin(M, ½), for every integer z. An integer query with binomial noise is
therefore, up to total variation ``distance``, a function of the same query with Gaussian noise: whatever is
known of the Gaussian mechanism holds for it, in any number of dimensions, under sampling and composition.

The three points are chosen so that the second, fourth and sixth cumulants of both sides agree; odd ones
vanish. What is left is of the order of 0.02/s⁴, and s² is less than the binomial's variance M/4 by a share of
about 1.8/√M. The distance is not taken from an expansion but summed over all outcomes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

FEWEST_TRIALS = 64
MOST_TRIALS = 10**15

_Long = npt.NDArray[np.longdouble]

_REACH = 12.0
_MOST_SUMMED = 1 << 32  # trials whose outcomes are listed at once
_ROUNDOFF = 64.0 * float(np.finfo(np.longdouble).eps)
_LOG_TWO_PI = np.log(8 * np.arctan(np.longdouble(1)))
_CELL_VARIANCE, _CELL_FOURTH, _CELL_SIXTH = 1 / 12, -1 / 120, 1 / 252  # cumulants of a uniform on one cell


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianCover:
    """A Gaussian of which centred binomial noise is nearly a function.

    Attributes:
        deviation: its standard deviation s, in units of the binomial's lattice.
        distance: bound on the total variation between Bin(M, ½) and the channel's image of the Gaussian.
    """

    deviation: float
    distance: float


@lru_cache(maxsize=512)
def gaussian_cover(trials: int) -> GaussianCover:
    """The Gaussian that covers Bin(trials, ½).

    Args:
        trials: M, the number of fair coins of honest clients, in [64, 1e15].

    Raises:
        ValueError: if ``trials`` is out of range.
    """
    if type(trials) is not int or not FEWEST_TRIALS <= trials <= MOST_TRIALS:
        raise ValueError(
            f"trials must be an int in [{FEWEST_TRIALS}, {MOST_TRIALS:g}], got {trials!r}: fewer coins "
            "are no cover for anybody"
        )
    parts = -(-trials // _MOST_SUMMED)
    if parts > 1:
        # A binomial is a sum of independent ones, and so are the covers: variances and distances add up.
        smaller = trials // parts
        covers = [(_cover(smaller + 1), trials - smaller * parts), (_cover(smaller), parts - trials % parts)]
        return GaussianCover(
            deviation=math.sqrt(sum(cover.deviation**2 * times for cover, times in covers)),
            distance=min(1.0, sum(cover.distance * times for cover, times in covers)),
        )
    return _cover(trials)


@dataclass(frozen=True, slots=True)
class _ThreePoints:
    """0 with the remaining probability, ±reach with half of ``outer`` each."""

    reach: float
    outer: float

    @property
    def variance(self) -> float:
        return self.outer * self.reach**2


def _three_points(trials: int) -> _ThreePoints:
    """The symmetric law on three points that makes up the cumulants which a Gaussian and a cell lack."""
    fourth = -trials / 8 - _CELL_FOURTH
    sixth = trials / 4 - _CELL_SIXTH

    def moments(variance: float) -> tuple[float, float]:
        fourth_moment = fourth + 3 * variance**2
        return fourth_moment, sixth + 15 * fourth_moment * variance - 30 * variance**3

    def excess(variance: float) -> float:
        fourth_moment, sixth_moment = moments(variance)
        return sixth_moment * variance - fourth_moment**2

    deviation = math.sqrt(trials) / 2
    variance = float(brentq(excess, 0.6 * deviation, 1.5 * deviation))
    square = moments(variance)[0] / variance
    return _ThreePoints(reach=math.sqrt(square), outer=variance / square)


@lru_cache(maxsize=512)
def _cover(trials: int) -> GaussianCover:
    points = _three_points(trials)
    deviation = math.sqrt(trials / 4 - _CELL_VARIANCE - points.variance)
    scale = math.sqrt(trials) / 2
    # Both laws are symmetric: list one half, the middle outcome of an even number of trials once.
    first = (trials + 1) // 2
    last = min(trials - 1, math.ceil(trials / 2 + _REACH * scale))
    counts = np.arange(first, last + 1, dtype=np.int64)
    centred = (2 * counts - trials).astype(np.longdouble) / 2
    binomial = _binomial(counts, trials)
    image = (1 - np.longdouble(points.outer)) * _cell_mass(centred, deviation)
    for shift in (points.reach, -points.reach):
        image += np.longdouble(points.outer) / 2 * _cell_mass(centred - np.longdouble(shift), deviation)
    times = np.where(centred == 0, 1, 2)
    apart = float((np.abs(binomial - image) * times).sum())
    # Of each law at most this much lies further out: Hoeffding, and a Gaussian tail moved by the points.
    reached = float(centred[-1]) + 0.5
    beyond = 2 * math.exp(-2 * reached**2 / trials) + 2 * math.exp(
        -(max(reached - points.reach, 0.0) ** 2) / (2 * deviation**2)
    )
    return GaussianCover(deviation=deviation, distance=min(1.0, (apart + beyond) / 2 + _ROUNDOFF))


def _binomial(counts: npt.NDArray[np.int64], trials: int) -> _Long:
    """Masses of Bin(trials, ½): Stirling's series, whose error after five terms is below its sixth."""
    k = counts.astype(np.longdouble)
    m = np.longdouble(trials)
    u = (2 * counts - trials).astype(np.longdouble) / m
    exponent = -(m / 2) * ((1 + u) * np.log1p(u) + (1 - u) * np.log1p(-u))
    exponent += _stirling(m) - _stirling(k) - _stirling(m - k)
    exponent += (np.log(m) - np.log(k) - np.log(m - k) - _LOG_TWO_PI) / 2
    return np.asarray(np.exp(exponent), dtype=np.longdouble)


def _stirling(n: _Long | np.longdouble) -> _Long:
    """log n! − (n log n − n + ½ log 2πn)."""
    inverse = 1 / n
    square = inverse * inverse
    one = np.longdouble(1)
    series = (
        one / 12 - (one / 360 - (one / 1260 - (one / 1680 - one / 1188 * square) * square) * square) * square
    )
    return np.asarray(series * inverse, dtype=np.longdouble)


def _cell_mass(centre: _Long, deviation: float) -> _Long:
    """Mass of a centred Gaussian within ½ of ``centre``: the density's Taylor series over the cell."""
    s = np.longdouble(deviation)
    y = centre / s
    half = 1 / (2 * s)
    h, y2 = half * half, y * y
    density = np.exp(-(y2 + _LOG_TWO_PI) / 2)
    second = y2 - 1
    fourth = (y2 - 6) * y2 + 3
    sixth = ((y2 - 15) * y2 + 45) * y2 - 15
    eighth = (((y2 - 28) * y2 + 210) * y2 - 420) * y2 + 105
    series = 1 + h * (second / 6 + h * (fourth / 120 + h * (sixth / 5040 + h * eighth / 362880)))
    return np.asarray(2 * half * density * series, dtype=np.longdouble)
