"""Binomial noise is a post-processing of Gaussian noise, up to a distance that is computed.

Sums in the shuffle model get their noise from fair coins of many clients: Bin(M, ½). A channel that commutes
with integer shifts takes a Gaussian to nearly that. So an integer query with binomial noise is, up to total
variation ``distance``, a function of the same query with Gaussian noise, whose variance s² is less than M/4
by a share of about 1.8/√M: all that is known of the Gaussian mechanism holds for it. Construction and proof:
``docs/proofs/sums.md``, "The cover". The distance is summed over all outcomes, not taken from an expansion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shuffle_plugins.accounting.numerics.search import zero_between
from shuffle_plugins.accounting.pairs.fair_coins import LOG_TWO_PI, LONG_ROUNDOFF, Long, masses, upper_half

FEWEST_TRIALS = 64
MOST_TRIALS = 10**15

_MOST_SUMMED = 1 << 32  # trials whose outcomes are listed at once
FEWEST_COMPARED = 1 << 16  # trials whose masses are compared one by one
_COMPARED_REACH, _COMPARED_STEP = 32.0, 0.5  # standard deviations
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
    covers = [(_cover(part), times) for part, times in _parts(trials)]
    return GaussianCover(
        deviation=covering_deviation(trials),
        distance=min(1.0, math.fsum(cover.distance * times for cover, times in covers)),
    )


def covering_deviation(trials: int) -> float:
    """Deviation of the Gaussian that covers Bin(trials, ½), without summing up its distance."""
    return math.sqrt(math.fsum(_deviation(part) ** 2 * times for part, times in _parts(trials)))


def _parts(trials: int) -> list[tuple[int, int]]:
    """Sizes of smaller binomials, and their numbers, that add up: so do their covers."""
    parts = -(-trials // _MOST_SUMMED)
    size, larger = divmod(trials, parts)
    return [(n, times) for n, times in ((size + 1, larger), (size, parts - larger)) if times]


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
    variance = zero_between(excess, 0.6 * deviation, 1.5 * deviation)
    square = moments(variance)[0] / variance
    return _ThreePoints(reach=math.sqrt(square), outer=variance / square)


def _deviation(trials: int) -> float:
    return math.sqrt(trials / 4 - _CELL_VARIANCE - _three_points(trials).variance)


@lru_cache(maxsize=512)
def _cover(trials: int) -> GaussianCover:
    points, deviation = _three_points(trials), _deviation(trials)
    # Both laws are symmetric: list one half, the middle outcome of an even number of trials once.
    counts = upper_half(trials)
    centred = (2 * counts - trials).astype(np.longdouble) / 2
    binomial = masses(counts, trials)
    image = _image(centred, points, deviation)
    times = np.where(centred == 0, 1, 2)
    apart = float((np.abs(binomial - image) * times).sum())
    # Of each law at most this much lies further out: Hoeffding, and a Gaussian tail moved by the points.
    reached = float(centred[-1]) + 0.5
    beyond = 2 * math.exp(-2 * reached**2 / trials) + 2 * math.exp(
        -(max(reached - points.reach, 0.0) ** 2) / (2 * deviation**2)
    )
    distance = (apart + beyond + _left_out(deviation)) / 2 + LONG_ROUNDOFF
    return GaussianCover(deviation=deviation, distance=min(1.0, distance))


def _left_out(deviation: float) -> float:
    """What :func:`_cell_mass` may be off by, over all cells together.

    Its series ends before the tenth derivative of the density φ. Over all cells the largest of |φ⁽¹⁰⁾| add up
    to at most E|He₁₀|/2h + E|He₁₁|, h half a cell, and E|He_n| ≤ √n! (Cauchy–Schwarz).
    """
    half = 1 / (2 * deviation)
    mean, variation = math.sqrt(math.factorial(10)), math.sqrt(math.factorial(11))
    return half**10 / math.factorial(11) * (mean + 2 * half * variation)


def _cell_mass(centre: Long, deviation: float) -> Long:
    """Mass of a centred Gaussian within ½ of ``centre``: the density's Taylor series over the cell."""
    s = np.longdouble(deviation)
    y = centre / s
    half = 1 / (2 * s)
    h, y2 = half * half, y * y
    density = np.exp(-(y2 + LOG_TWO_PI) / 2)
    second = y2 - 1
    fourth = (y2 - 6) * y2 + 3
    sixth = ((y2 - 15) * y2 + 45) * y2 - 15
    eighth = (((y2 - 28) * y2 + 210) * y2 - 420) * y2 + 105
    series = 1 + h * (second / 6 + h * (fourth / 120 + h * (sixth / 5040 + h * eighth / 362880)))
    return np.asarray(2 * half * density * series, dtype=np.longdouble)


def log_ratio(trials: int, *, log_tail: float) -> float:
    """How far apart the logarithms of the masses of Bin(trials, ½) and of the channel's image are.

    Outside of outcomes whose mass is at most exp(``log_tail``) under either law, one is at most e^η times the
    other; this is η, rounded up, which is charged to ε (``docs/proofs/sums.md``, "Large ε").

    Args:
        trials: M.
        log_tail: negative.

    Returns:
        η; infinite where it is not computed: for fewer than 2**16 coins, and for tails further out than 32
        standard deviations.
    """
    if trials < FEWEST_COMPARED or log_tail == -math.inf:
        return math.inf
    parts = _parts(trials)
    share = log_tail - math.log(sum(times for _, times in parts))
    return math.fsum(_part_log_ratio(part, log_tail=share) * times for part, times in parts)


def _part_log_ratio(trials: int, *, log_tail: float) -> float:
    room = math.log(2) - log_tail
    outer = _three_points(trials).reach + _deviation(trials) * math.sqrt(2 * room)
    deviations = max(math.sqrt(trials * room / 2), outer) / (math.sqrt(trials) / 2)
    place = math.ceil(deviations / _COMPARED_STEP)
    found = _log_ratios(trials)
    return found[place] if place < len(found) else math.inf


@lru_cache(maxsize=64)
def _log_ratios(trials: int) -> tuple[float, ...]:
    """η up to 0, ½, 1, … standard deviations, rounded up."""
    points, deviation = _three_points(trials), _deviation(trials)
    counts = upper_half(trials, reach=_COMPARED_REACH)
    centred = (2 * counts - trials).astype(np.longdouble) / 2
    binomial, image = masses(counts, trials), _image(centred, points, deviation)
    largest = np.maximum.accumulate(np.abs(np.log1p((image - binomial) / binomial)))
    found = []
    for place in range(int(_COMPARED_REACH / _COMPARED_STEP)):
        reached = (place * _COMPARED_STEP) * math.sqrt(trials) / 2
        last = min(int(np.searchsorted(centred, np.longdouble(reached))), len(centred) - 1)
        # Both are exponentials of −y²/2 or so, which the machine knows to its own precision; and the Taylor
        # series over a cell stops before the tenth Hermite polynomial, at most max(y², 24)⁵ in size.
        y = (float(centred[last]) + points.reach + 1) / deviation
        roundoff = 2 * LONG_ROUNDOFF * (1 + y * y / 2)
        remainder = 4 * (max(y * y, 24.0) / (4 * deviation**2)) ** 5 / math.factorial(11)
        apart = (float(largest[last]) + roundoff + remainder) * (1 + 1e-9)
        found.append(apart if math.isfinite(apart) else math.inf)
    return tuple(found)


def _image(centred: Long, points: _ThreePoints, deviation: float) -> Long:
    """Masses that the channel's image of the Gaussian has at lattice points."""
    image = (1 - np.longdouble(points.outer)) * _cell_mass(centred, deviation)
    for shift in (points.reach, -points.reach):
        image += np.longdouble(points.outer) / 2 * _cell_mass(centred - np.longdouble(shift), deviation)
    return np.asarray(image, dtype=np.longdouble)
