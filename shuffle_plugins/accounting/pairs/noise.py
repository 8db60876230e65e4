"""The noise of sums: coins and crowds' bits through Gaussians that cover them, shares of Laplace noise.

Proofs: ``docs/proofs/sums.md``, and ``docs/proofs/counts.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, ndtr

from shuffle_plugins.accounting.losses import (
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
    profile_losses,
)
from shuffle_plugins.accounting.numerics.search import zero_between
from shuffle_plugins.accounting.numerics.sums import Floats, binomial_masses, binomial_window

FEWEST_TRIALS = 64
MOST_TRIALS = 10**15

FEWEST_COMPARED = 1 << 16  # trials whose masses are compared one by one
_COMPARED_REACH, _COMPARED_STEP = 32.0, 0.5  # standard deviations
_CELL_VARIANCE, _CELL_FOURTH, _CELL_SIXTH = 1 / 12, -1 / 120, 1 / 252  # cumulants of a uniform on one cell


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianCover:
    """A Gaussian of which centred binomial noise is a function, up to a distance in total variation.

    Attributes:
        deviation: its standard deviation, in units of the binomial's lattice.
        distance: between Bin(M, ½) and the image of the Gaussian under a channel that commutes with integer
            shifts, at most.
    """

    deviation: float
    distance: float


@lru_cache(maxsize=512)
def gaussian_cover(trials: int) -> GaussianCover:
    """The Gaussian that covers Bin(trials, ½), trials in [64, 1e15]: fair coins of honest clients."""
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
    # 1 << 32: trials whose outcomes are listed at once
    parts = -(-trials // (1 << 32))
    size, larger = divmod(trials, parts)
    return [(n, times) for n, times in ((size + 1, larger), (size, parts - larger)) if times]


class _ThreePoints(NamedTuple):
    """0 with the remaining probability, ±reach with half of ``outer`` each."""

    reach: float
    outer: float


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
    points = _three_points(trials)
    return math.sqrt(trials / 4 - _CELL_VARIANCE - points.outer * points.reach**2)


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
    """What :func:`_cell_mass` may be off by, over all cells together."""
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
    other; this is η, rounded up, which is charged to ε (``docs/proofs/sums.md``, "Large ε"). It is infinite
    where it is not computed: for fewer than 2**16 coins, and for tails further out than 32 deviations.
    """
    if trials < FEWEST_COMPARED or log_tail == -math.inf:
        return math.inf
    parts, total = _parts(trials), 0.0
    room = math.log(2) - log_tail + math.log(sum(times for _, times in parts))
    for part, times in parts:
        outer = _three_points(part).reach + _deviation(part) * math.sqrt(2 * room)
        deviations = max(math.sqrt(part * room / 2), outer) / (math.sqrt(part) / 2)
        place, found = math.ceil(deviations / _COMPARED_STEP), _log_ratios(part)
        total += times * found[place] if place < len(found) else math.inf
    return total


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


Long = npt.NDArray[np.longdouble]

LONG_ROUNDOFF = 64.0 * float(np.finfo(np.longdouble).eps)
LOG_TWO_PI = np.log(8 * np.arctan(np.longdouble(1)))
REACH = 12.0
"""Standard deviations of the window; what lies outside has a mass below 2·e^-72 (Hoeffding)."""


DRAWN_REACH = 28.0
"""Standard deviations beyond which drawn numbers of heads never lie."""


def upper_half(trials: int, *, reach: float = REACH) -> npt.NDArray[np.int64]:
    """Numbers of heads from the middle up to ``reach`` standard deviations, never all of them."""
    last = min(trials - 1, math.ceil(trials / 2 + reach * math.sqrt(trials) / 2))
    return np.arange((trials + 1) // 2, last + 1, dtype=np.int64)


def masses(counts: npt.NDArray[np.int64], trials: int) -> Long:
    """Probability of each number of heads, shape of ``counts``, by Stirling's series for the factorials.

    The series after five terms is off by less than its sixth; all counts must be in [1, trials - 1].
    """
    k = counts.astype(np.longdouble)
    m = np.longdouble(trials)
    u = (2 * counts - trials).astype(np.longdouble) / m
    # (1 + u) log(1 + u) + (1 - u) log(1 - u) in terms of the order of u², so that nothing large cancels.
    exponent = -(m / 2) * (2 * u * np.arctanh(u) + np.log1p(-u * u))
    exponent += _stirling(m) - _stirling(k) - _stirling(m - k)
    exponent += (np.log(m) - np.log(k) - np.log(m - k) - LOG_TWO_PI) / 2
    return np.asarray(np.exp(exponent), dtype=np.longdouble)


def _stirling(n: Long | np.longdouble) -> Long:
    """log n! − (n log n − n + ½ log 2πn)."""
    inverse = 1 / n
    square = inverse * inverse
    one = np.longdouble(1)
    series = (
        one / 12 - (one / 360 - (one / 1260 - (one / 1680 - one / 1188 * square) * square) * square) * square
    )
    return np.asarray(series * inverse, dtype=np.longdouble)


_REACH = 13.0  # deviations of the loss that a profile is followed
_LARGEST_LOSS = 600.0  # e to this power, times a mass, is a float
_ROUNDOFF = 5e-10  # relative, of a Gaussian profile


def gaussian_profile(losses: Floats, *, mu: float) -> Floats:
    """δ(ε) of the Gaussian mechanism: N(μ, 1) against N(0, 1), at ε = ``losses`` ≥ 0, rounded up."""
    values, off = _gaussian_deltas(losses, mu)
    return np.asarray(values + off, dtype=np.float64)


def _gaussian_deltas(losses: Floats, mu: float) -> tuple[Floats, Floats]:
    """The same, and by how much it may be off.

    Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle, Wang 2018, Theorem 8), as a difference of Mills ratios so that
    far tails keep their digits.
    """
    near = losses / mu - mu / 2
    density = np.exp(-(near**2) / 2) / math.sqrt(2 * math.pi)
    far, further = _mills(np.maximum(near, 0.0)), _mills(near + mu)
    above = np.where(near > 0, density * far, ndtr(-near))
    values = np.maximum(np.where(near > 0, density * (far - further), above - density * further), 0.0)
    # Below a mu of about 1e-5 the digits that the difference loses are more than the relative allowance.
    # 32 * 2.0**-53: of the terms of its differences; 11 is the most that was seen against 60 digits
    return values, np.maximum(values * _ROUNDOFF, (32 * 2.0**-53) * (above + density * further))


def delta_of_gaussian(epsilon: float, *, mu: float) -> tuple[float, float]:
    """δ at ε ≥ 0 of N(μ, 1) against N(0, 1), rounded down and up."""
    if mu == 0:
        return 0.0, 0.0
    value, off = (float(each[0]) for each in _gaussian_deltas(np.array([epsilon]), mu))
    return max(value - off, 0.0), min(value + off + 1e-300, 1.0)


def _mills(x: Floats) -> Floats:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)), dtype=np.float64)


def profile_reach(mu: float, *, cells: int) -> Floats:
    """Losses from 0 up at which a Gaussian profile is asked for, ``cells`` to half a deviation."""
    largest = mu * mu / 2 + _REACH * mu
    _check_losses(largest, mu)
    return np.linspace(0.0, largest, math.ceil(2 * cells * largest / mu) + 1)


def _check_losses(largest: float, mu: float) -> None:
    if not largest <= _LARGEST_LOSS:
        raise ArithmeticError(
            f"a noise multiplier of {1 / mu:.3g} protects nobody: losses reach {largest:.3g}"
        )


def gaussian_losses(
    *, noise_multiplier: float, sampling_rate: float, resolution: Resolution
) -> PrivacyLossDistribution:
    """From above, the privacy losses of a Gaussian mechanism on a sample of fixed size, replace-one.

    Args:
        noise_multiplier: deviation over replace-one sensitivity.
        sampling_rate: γ in (0, 1].
        resolution: how finely losses are kept.

    Raises:
        ArithmeticError: if the noise is so small that losses leave floating-point range.
    """
    return participation_losses(
        noise_multiplier=noise_multiplier,
        norm=1.0,
        participation=1.0,
        sampling_rate=sampling_rate,
        resolution=resolution,
    )


def participation_profile(
    *, mu: float, centre: float, participation: float, cells: int
) -> tuple[Floats, Floats]:
    """ε ≥ 0 and δ(ε), rounded up, of Gaussian noise on data that are there with a probability only.

    γ·N(0, 1) + (1−γ)·N(centre, 1) against γ·N(μ, 1) + (1−γ)·N(centre, 1), the larger of both directions:
    with γ a record is there, otherwise the zero vector (docs/proofs/sums.md, "Secret participation"). The
    best test of the two accepts below a threshold t, and ε follows from t without a search: points are
    thresholds at equal distances.

    Args:
        mu: μ, how far the two records are apart, in deviations of the noise.
        centre: how far a record is from the zero vector at most, in [μ/2, μ].
        participation: γ in (0, 1].
        cells: points for half a deviation of the noise.
    """
    gamma = participation
    count = math.ceil(2 * cells * (mu / 2 + _REACH))
    t = np.linspace(mu / 2, -_REACH, count + 1)
    near, far = np.exp(centre * t - centre**2 / 2), np.exp(mu * t - mu**2 / 2)
    below = (1 - gamma) * near + gamma * far
    with np.errstate(divide="ignore", over="ignore"):
        excess = -gamma * np.expm1(mu * t - mu**2 / 2) / below  # E - 1
    losses = np.log1p(excess)
    losses[0], excess[0] = 0.0, 0.0
    _check_losses(losses[-1], mu)
    # γ·Φ(t) less what the other law accepts, each of whose two parts is φ(t) times a difference of Mills
    # ratios: tails keep their digits.
    at_zero, at_other = (1 - gamma) * excess * near, gamma * (1 + excess) * far
    mills = _mills(-t)
    density = np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    values = density * (at_zero * (mills - _mills(centre - t)) + at_other * (mills - _mills(mu - t)))
    # 1e-13: of Mills ratios' differences, over the distance between them
    rounding = 1 + _ROUNDOFF + 1e-13 / centre
    return losses, np.asarray(np.maximum(values, 0.0) * rounding, dtype=np.float64)


def participation_losses(
    *,
    noise_multiplier: float,
    norm: float,
    participation: float,
    sampling_rate: float,
    resolution: Resolution,
) -> PrivacyLossDistribution:
    """From above, the privacy losses of Gaussian noise on a sum in which each record is by its own coin.

    Args:
        noise_multiplier: deviation over replace-one sensitivity.
        norm: largest norm of a record, over the sensitivity, in [½, 1].
        participation: probability with which a record is in the sum.
        sampling_rate: γ in (0, 1], with which a client is one of those who answer.
        resolution: how finely losses are kept.

    Raises:
        ArithmeticError: as :func:`gaussian_losses`.
    """
    mu = 1.0 / noise_multiplier
    losses, deltas = participation_profile(
        mu=mu, centre=norm * mu, participation=participation, cells=resolution.cells
    )
    return profile_losses(losses, deltas, resolution=resolution, sampling_rate=sampling_rate)


def has_binomial_instance(*, trials: int, shift: int) -> bool:
    """Whether :func:`binomial_losses` can list the outcomes."""
    # 1 << 36: coins of which every outcome within reach is listed, some millions
    return shift > 0 and trials <= 1 << 36


def binomial_losses(
    *, trials: int, shift: int, sampling_rate: float, resolution: Resolution, zero: int = 0
) -> PrivacyLossDistribution:
    """From below: the client holds x or x', which differ in one coordinate, and everybody else the same.

    P is the law of that coordinate's number of heads when the client holds x and takes part with probability
    γ.

    Args:
        trials: fair coins added to the coordinate.
        shift: how far x and x' are apart, in steps of the lattice, at least 1.
        sampling_rate, resolution: as of :func:`gaussian_losses`.
        zero: steps from x' up to what is there if the client does not take part, in [0, shift].
    """
    _, mass = binomial_window(trials, 0.5)
    if shift >= len(mass):
        raise ArithmeticError("the two records' counts have no outcome in common that floats can tell")
    size = len(mass) - shift  # the counts that are possible with x, x' and neither
    absent = mass[shift - zero : shift - zero + size]
    p = (1 - sampling_rate) * absent + sampling_rate * mass[:size]
    q = (1 - sampling_rate) * absent + sampling_rate * mass[shift:]
    return finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)


CUT_TAIL = 32 * math.log(10)
"""−log of the mass that is cut off a count, at most; of each of the three cuts that there are."""

_LEAST = 1e-280  # a mass that floats can tell from nothing, also once multiplied


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreCover:
    """The Gaussian that a crowd's count is compared with.

    Attributes:
        shift: c: a bit that moves by all of [−1, 1] counts as a Gaussian's mean moved by 2c.
        distance: bound on the total variation that the comparison leaves out, for each count.
    """

    shift: float
    distance: float


@lru_cache(maxsize=1024)
def score_cover(*, crowd: int, own: int, flip: float) -> ScoreCover:
    """The Gaussian that covers a count to which each client adds several bits of one probability.

    Args:
        crowd: bits of other clients who follow the protocol.
        own: bits of the client itself; each of them moves.
        flip: q in (0, ½), the least probability of a one.
    """
    if crowd < 1:
        raise ValueError("a client's bits that no others join hide nobody")
    found: list[float] = []
    coins = _fewest_coins(crowd, flip)
    if coins > 0:
        found.append(_shift([_Law.of_coins(coins, flip, own=own)], start=_leading(crowd, flip)))
    # 1 << 19: bits of a crowd whose makeup is told apart
    if crowd <= 1 << 19:
        found.append(_shift(_makeups(crowd, flip, own=own), start=_leading(crowd, flip)))
    best = min(found, default=math.inf)
    if not best < math.inf:
        raise ValueError(f"{crowd} bits of other clients, at least {flip:.3g} likely each, hide nobody")
    # 1e-8: relative, for roundoff in masses and in their differences
    return ScoreCover(shift=best * (1 + 1e-8), distance=min(1.0, 3 * math.exp(-CUT_TAIL)))


def _leading(crowd: int, flip: float) -> float:
    """c of a large crowd: the root of the Fisher information."""
    return (1 - 2 * flip) / (2 * math.sqrt(max(crowd, 1) * flip * (1 - flip)))


def _fewest_coins(crowd: int, flip: float) -> int:
    """Fair coins that the crowd tosses at least, but for a tail: each bit is one with probability 2q."""
    mean = 2 * flip * crowd
    return math.floor(mean - math.sqrt(2 * mean * CUT_TAIL))  # Chernoff


@dataclass(frozen=True, slots=True)
class _Law:
    """Scores of a bit with v = −1 in one crowd, and what they exceed on average.

    Attributes:
        score: increasing, those that may be seen of any v, shape (counts,).
        above: E(S − score)₊, for scores above 0.
        below: E(score − S)₊, for the others.
    """

    score: Floats
    above: Floats
    below: Floats

    @classmethod
    def of_coins(cls, coins: int, flip: float, *, own: int) -> _Law:
        """A crowd of fair coins alone; the rest of each bit is revealed."""
        low, mass = _binomial(coins, 0.5, room=own)
        cut = math.sqrt(coins * (CUT_TAIL + math.log(2)) / 2)  # Hoeffding, both tails
        return cls.of(mass, flip, first=low, lowest=coins / 2 - cut - own, highest=coins / 2 + cut + own)

    @classmethod
    def of(cls, crowd: Floats, flip: float, *, first: int, lowest: float, highest: float) -> _Law:
        """From the masses of the crowd's count."""
        gain = 1 - 2 * flip
        listed = np.flatnonzero(crowd > _LEAST)  # no gaps: the law is log-concave
        first, crowd = first + int(listed[0]), crowd[listed[0] : listed[-1] + 1]
        with_one, without = np.append(0.0, crowd), np.append(crowd, 0.0)
        law = (1 - flip) * without + flip * with_one  # of the count, at v = −1
        score = gain / 2 * (with_one - without) / law
        count = first + np.arange(len(law))
        from_below = np.cumsum(law)
        from_above = np.append(np.cumsum(law[::-1])[::-1][1:], 0.0)
        # A score at v = 1 is 1/(1/S + 2): those of low counts are further from 0 than at v = −1.
        least = score[max(int(np.searchsorted(count, lowest)) - 1, 0)]
        least = least / (1 + 2 * least) if least < 0 else least
        least = score[max(int(np.searchsorted(score, least, side="right")) - 1, 0)]
        keep = (score >= least) & (count <= highest + 1)
        return cls(
            score=score[keep],
            above=(gain / 2 * without - score * from_above)[keep],
            below=(gain / 2 * without + score * from_below)[keep],
        )

    def within(self, shift: float) -> bool:
        """Whether the scores are below a Gaussian of this deviation, in convex order."""
        x = self.score
        middle, half = (x[1:] + x[:-1]) / 2, (x[1:] - x[:-1]) / 2
        right = middle >= 0
        # E(shift·Z − x)₊ at x ≥ 0, and how steeply it falls.
        u = np.abs(middle) / shift
        density = np.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
        value = shift * density * (1 - u * _mills(u))  # loses few digits up to some tens of deviations
        slope = np.where(right, -ndtr(-u), ndtr(-u))
        left_end = np.where(right, self.above[:-1], self.below[:-1])
        right_end = np.where(right, self.above[1:], self.below[1:])
        return bool(np.all(left_end <= value - slope * half) and np.all(right_end <= value + slope * half))


def _makeups(crowd: int, flip: float, *, own: int) -> Iterator[_Law]:
    """Crowds of bits of the probabilities q and 1 − q, by how many there are of each, in buckets."""
    # 48: of the share of ones that the rest of the crowd leans to
    half = np.unique(np.round(np.linspace(0, crowd / 2, 48 // 2 + 1)).astype(int))
    edges = np.unique(np.concatenate([half[:-1], [crowd // 2, crowd - crowd // 2], crowd - half[:-1]]))
    for least, most in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        likely, unlikely = least, crowd - most  # of crowds with so many likely ones, or up to ``most``
        first, mass = _binomial(unlikely, flip, room=own)
        other, other_mass = _binomial(likely, 1 - flip, room=own)
        law = np.convolve(mass, other_mass)
        first += other
        tail = math.exp(-CUT_TAIL) / 2
        low = first + int(np.searchsorted(np.cumsum(law), tail))
        high = first + len(law) - 1 - int(np.searchsorted(np.cumsum(law[::-1]), tail))
        yield _Law.of(law, flip, first=first, lowest=low - own, highest=high + own)


def _binomial(trials: int, probability: float, *, room: int) -> tuple[int, Floats]:
    """The least count listed, and the masses of it and those after it, from the ratios of neighbours."""
    mean = trials * probability
    # 17.0: deviations of a binomial that are listed: beyond lies less than 1e-62
    reach = 17.0 * math.sqrt(mean * (1 - probability)) + room + 60
    low, high = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    return low, binomial_masses(trials, probability, low=low, high=high)


def _shift(laws: Iterable[_Law], *, start: float) -> float:
    """The least c within which all laws are, to a part in ten thousand; infinite if none is found."""
    shift, checked = start, False
    for law in laws:
        checked = True
        if law.within(shift):
            continue
        short = shift
        while not law.within(shift):
            short, shift = shift, 1.3 * shift
            if shift > 100 * start:
                return math.inf
        # 1e-4: relative, of c
        while shift > short * (1 + 1e-4):
            middle = math.sqrt(short * shift)
            short, shift = (short, middle) if law.within(middle) else (middle, shift)
    return shift if checked else math.inf


_POISSON_TAIL = 1e-30  # what is left out of a Poisson number's mass, on either side


@lru_cache(maxsize=64)
def poisson_masses(mean: float) -> tuple[int, Floats, float]:
    """The first number listed, the masses of it and those after it, and their relative error at most."""
    reach = -math.log(_POISSON_TAIL)  # Chernoff's bounds on both tails
    low = max(0, math.floor(mean - math.sqrt(2 * mean * reach)))
    high = math.ceil(mean + math.sqrt(2 * mean * reach) + reach / 3) + 1
    steps = np.log(np.longdouble(mean) / np.arange(low + 1, high + 1))  # small near the mode
    logs = np.append(np.longdouble(0), np.cumsum(steps))
    masses = np.exp(logs - logs.max())
    error = len(masses) * LONG_ROUNDOFF + 2.0**-50
    return low, np.asarray(masses / masses.sum(), dtype=np.float64), error


def poisson_profile(losses: Floats, *, mean: float) -> Floats:
    """δ at ``losses`` ≥ 0, rounded up, of (A + 1, B) against (A, B + 1), A and B Poisson of this mean.

    The likelihood ratio at (a, b) is a/b, so of each b it is a tail of A (``docs/proofs/tags.md``, "Decoys").
    """
    low, masses, error = poisson_masses(mean)
    numbers = np.arange(low, low + len(masses) + 1, dtype=np.float64)  # of B, or of B + 1
    held, before = np.append(masses, 0.0), np.append(0.0, masses)
    tails = np.append(np.cumsum(masses[::-1])[::-1], 0.0)  # P[A ≥ low], …, and 0
    found = []
    for factor in np.exp(np.minimum(losses, _LARGEST_LOSS)).tolist():
        least = np.floor(np.minimum(factor * numbers, 1e15)).astype(np.int64) + 1 - low
        first, second = (tails[np.clip(least - less, 0, len(masses))] for less in (1, 0))
        kept, taken = float(held @ first), factor * float(before @ second)
        found.append(max(kept - taken, 0.0) + 4 * error * (kept + taken))
    return np.asarray(found) + 4 * _POISSON_TAIL


@lru_cache(maxsize=256)
def shared_laplace_loss(*, rate: float, shape: float, shift: int) -> float:
    """log p(0)/p(shift) of the difference of two Pólya numbers of this shape in (0, 1], rounded up.

    That is the largest privacy loss between two sums ``shift`` steps apart whose noise it is. p is to a
    constant Σ_j w(j)·w(j + k), with w(j) = (shape)_j/j!·e^(−rate·j).
    """
    terms = math.ceil(60 / rate) + 2  # of each sum: beyond lies less than e^-100 of it
    if terms + shift > 1 << 26:
        raise ValueError(
            f"noise that falls by {rate:.3g} a step is too wide to account for: use fewer levels"
        )
    j = np.arange(1, terms + shift, dtype=np.float64)
    weights = np.exp(np.append(0.0, np.cumsum(np.log1p((shape - 1) / j))) - rate * np.append(0.0, j))
    here = float(weights[:terms] @ weights[:terms])
    there = float(weights[:terms] @ weights[shift:])
    return (math.log(here) - math.log(there)) * (1 + 1e-9) + 1e-9
