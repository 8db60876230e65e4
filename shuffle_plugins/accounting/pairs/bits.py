r"""Randomised bits that are only counted: the pair of binary randomized response.

A round of binary randomized response is a count of ones. Counting exactly gives ε lower than the blanket's,
by the factor :math:`\sqrt{(e+1)/(2e)}` when rounds are large. No single dataset is the worst one at every ε,
so the pair is an envelope over a few dozen groups of datasets. Proof: ``docs/proofs/accounting.md``, Claim 3.

The same holds of bits whose ones and zeros are kept with different probabilities, as in optimal unary
encoding; there P and Q are not mirror images, and the envelope has two sides (``docs/proofs/tags.md``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy import fft
from scipy.special import expit

from shuffle_plugins.accounting.numerics.binomial import TAIL, bernstein_reach
from shuffle_plugins.accounting.numerics.grid import Floats, tally, transform_size
from shuffle_plugins.accounting.numerics.profiles import (
    PositiveLosses,
    hockey_sticks,
    hull_outcomes,
    mirrored,
)

MOST_COUNTED = 20.0
"""Beyond this ε0 a bit of noise is too rare to count; the blanket is as good."""

_CELLS = 64  # grid cells per standard deviation of the loss
_MOST_POINTS = 20_000  # grid points up to the largest loss
_PIECE = 4.0  # tilted standard deviations that one transform serves
_TAILS_CUT = 3 * TAIL  # left out by windows of counts
_FADED = -42.0  # log of a negligible Fourier coefficient
_MOST_TRANSFORM = 1 << 22  # points for the law of one count
_ENOUGH_NOISE = 8.0  # times that of the bits of least variance


@dataclass(frozen=True, kw_only=True, slots=True)
class BitPair:
    """The envelope of binary randomized response over all datasets; symmetric in P and Q.

    Attributes:
        local_epsilon: ε0.
        population: n, which bounds how far the rest of the clients can differ from those who make the noise.
        others: k − 1, reports in the count beside the last one.
        participation: γ, probability that the last report is the differing client's.
        buckets: how many groups of datasets to bound together; each costs a relative 1/(2·buckets) of ε.
        spare: how many more reports there may be, which then hide nobody.
    """

    local_epsilon: float
    population: int
    others: int
    participation: float
    buckets: int = 64
    spare: int = 0

    @property
    def slots(self) -> int:
        """Number of reports in the count."""
        return self.others + 1

    @property
    def one_sided(self) -> bool:
        """False: exchanging P and Q changes nothing."""
        return False

    @property
    def largest_ratio(self) -> float:
        """A bound on the ratio of the masses of P and Q at every outcome."""
        return 1.0 + self.participation * math.expm1(self.local_epsilon)

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""
        bit = BitResponse.symmetric(self.local_epsilon)
        noise = max(self.others, 1) * bit.one * bit.zero
        return (self.participation * (bit.one - bit.zero)) ** 2 / noise


@dataclass(frozen=True, kw_only=True, slots=True)
class UnevenBitPair:
    """The envelope over all datasets of counted bits that are not flipped evenly, everybody taking part.

    P is the law of the count if the differing client holds a one, Q if it holds a zero. See
    :class:`BitResponse` for what the bits are.

    Attributes:
        response: probabilities of a one.
        others: reports in the count beside the differing client's.
        buckets: how many groups of datasets to bound together.
    """

    response: BitResponse
    others: int
    buckets: int = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class BitResponse:
    """How a bit is randomised: the probabilities of sending a one. Complements are kept for their digits.

    Attributes:
        one: by a client who holds a one.
        zero: by a client who holds a zero; smaller.
        not_one: 1 − ``one``.
        not_zero: 1 − ``zero``.
    """

    one: float
    zero: float
    not_one: float
    not_zero: float

    @classmethod
    def symmetric(cls, local_epsilon: float) -> BitResponse:
        """Binary randomized response: a bit is flipped with probability 1/(e^ε0 + 1)."""
        one, zero = 1.0 / (1.0 + math.exp(-local_epsilon)), 1.0 / (math.exp(local_epsilon) + 1.0)
        return cls(one=one, zero=zero, not_one=zero, not_zero=one)

    @classmethod
    def optimal(cls, local_epsilon: float) -> BitResponse:
        """A one becomes a fair coin, a zero is flipped with probability 1/(e^ε0 + 1)."""
        even = cls.symmetric(local_epsilon)
        return cls(one=0.5, zero=even.zero, not_one=0.5, not_zero=even.one)

    @property
    def flipped(self) -> BitResponse:
        """The same bits, each read as its opposite; whoever holds a one now holds a zero."""
        return BitResponse(one=self.not_zero, zero=self.not_one, not_one=self.zero, not_zero=self.one)


@dataclass(frozen=True, slots=True)
class _Datasets:
    """Who makes the noise, and what the rest would report; one dataset a row, all arrays (rows,)."""

    zeros: Floats
    ones: Floats
    rest_one: Floats  # probability of a one
    rest_zero: Floats


def bit_outcomes(pair: BitPair) -> tuple[Floats, Floats, float]:
    """As :func:`bit_losses`, without the losses."""
    return bit_losses(pair)[1:]


def bit_losses(pair: BitPair) -> tuple[Floats, Floats, Floats, float]:
    """Losses, P and Q masses of an upper law of the pair, one outcome per point of a grid of losses.

    Returns:
        Three arrays (outcomes,), and a bound on the P mass that tails of counts leave out of them.
    """
    if pair.participation == 0:
        return np.zeros(1), np.ones(1), np.ones(1), 0.0
    response = BitResponse.symmetric(pair.local_epsilon)
    losses, sticks = _profiles(
        _datasets(pair, response), response, participation=pair.participation, information=pair.information
    )
    outcomes = hull_outcomes(losses, sticks.max(axis=0))
    loss = np.concatenate([-outcomes.loss[::-1], [0.0], outcomes.loss])
    return (loss, *mirrored(outcomes), _TAILS_CUT * pair.largest_ratio)


def uneven_outcomes(pair: UnevenBitPair) -> tuple[Floats, Floats, Floats, float]:
    """Losses, P and Q masses of an upper law of the pair, and a bound on the P or Q mass left out of it.

    The profile is convex in E on both sides of 1. Left of 1 it is that of the exchanged pair, which is the
    pair of the opposite bits.

    Raises:
        ArithmeticError: if there is more mass than one, so that no pair has this profile.
    """
    up = _uneven_side(pair.response, *_uneven_datasets(pair))
    down = _uneven_side(pair.response.flipped, *reversed(_uneven_datasets(pair)))
    p = np.concatenate([down.q[::-1], [0.0], up.p])
    q = np.concatenate([down.p[::-1], [0.0], up.q])
    most = max(float(p.sum()) + up.beyond, float(q.sum()) + down.beyond)
    if not most <= 1 + 1e-9:
        raise ArithmeticError(f"no pair has the profile of these bounds: they have a mass of {most:g}")
    middle = len(down.loss)
    p[middle] = q[middle] = max(1.0 - most, 0.0)
    loss = np.concatenate([-down.loss[::-1], [0.0], up.loss])
    ratio = max(pair.response.one / pair.response.zero, pair.response.not_zero / pair.response.not_one)
    missing = max(1.0 - float(p.sum()), 1.0 - float(q.sum()), 0.0)
    return loss, p, q, missing + _TAILS_CUT * ratio


def _uneven_side(response: BitResponse, ones: Floats, zeros: Floats) -> PositiveLosses:
    even = np.full(len(ones), 0.5)  # nobody is left to report but the differing client
    datasets = _Datasets(zeros=zeros, ones=ones, rest_one=even, rest_zero=even)
    variance = ones * response.one * response.not_one + zeros * response.zero * response.not_zero
    information = (response.one - response.zero) ** 2 / max(float(variance.min()), response.zero)
    losses, sticks = _profiles(datasets, response, participation=1.0, information=information)
    return hull_outcomes(losses, sticks.max(axis=0))


def _uneven_datasets(pair: UnevenBitPair) -> tuple[Floats, Floats]:
    """How many ones and zeros make the noise in each bucket of datasets.

    Buckets are fine while the bits of larger variance are few. From where these alone make several times the
    noise that all the others would, one bucket holds all datasets.
    """
    bit, others = pair.response, pair.others
    edges = np.unique(np.floor(np.linspace(0, enough_noise(bit, others), pair.buckets + 1)))
    if edges[-1] <= others:
        edges = np.append(edges, others + 1)
    heavy, light = edges[:-1], others + 1 - edges[1:]
    of_one, of_zero = bit.one * bit.not_one, bit.zero * bit.not_zero
    return (heavy, light) if of_one > of_zero else (light, heavy)


def enough_noise(bit: BitResponse, others: int) -> float:
    """Bits of the larger variance that make several times the noise of all others; or one more than all."""
    of_one, of_zero = bit.one * bit.not_one, bit.zero * bit.not_zero
    lighter, heavier = min(of_one, of_zero), max(of_one, of_zero)
    return min(float(others + 1), math.ceil(_ENOUGH_NOISE * (others + 1) * lighter / heavier) + 1)


def _datasets(pair: BitPair, response: BitResponse) -> _Datasets:
    """Buckets of datasets, symmetric under exchanging ones and zeros, at the ends of what the rest may be."""
    others = pair.others
    half = np.unique(np.floor(np.linspace(0, (others + 1) / 2, pair.buckets // 2 + 1)))
    edges = np.unique(np.concatenate([half, others + 1 - half]))
    low, high = edges[:-1], edges[1:] - 1  # ones among the others, inclusive
    one, zero = response.one, response.zero
    rest = pair.population - 1 - others
    if rest - pair.spare <= 0 or pair.participation >= 1:
        even = np.full(len(low), 0.5)
        return _Datasets(zeros=others - high, ones=low, rest_one=even, rest_zero=even)
    # Sampling makes the others resemble the population, but for a probability of 1e-30 (Hoeffding 1963).
    least = (pair.population - 1) * likely_share(low, others, upper=False) - high - pair.spare
    most = (pair.population - 1) * likely_share(high, others, upper=True) - low
    share = np.concatenate([least / rest, most / (rest - pair.spare)]).clip(0.0, 1.0)
    return _Datasets(
        zeros=np.tile(others - high, 2),
        ones=np.tile(low, 2),
        rest_one=zero + (one - zero) * share,
        rest_zero=one - (one - zero) * share,
    )


def likely_share(count: Floats, trials: int, *, upper: bool, tail: float = TAIL) -> Floats:
    """The furthest share y of ones with trials·KL(count/trials ‖ y) at most log(2/tail)."""
    if trials == 0:
        return np.full(len(count), 1.0 if upper else 0.0)
    seen = count / trials
    inside, outside = seen.copy(), np.full(len(count), 1.0 if upper else 0.0)
    for _ in range(60):
        middle = (inside + outside) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            divergence = np.where(seen > 0, seen * np.log(seen / middle), 0.0)
            divergence += np.where(seen < 1, (1 - seen) * np.log((1 - seen) / (1 - middle)), 0.0)
        likely = trials * divergence <= math.log(2 / tail)
        inside, outside = np.where(likely, middle, inside), np.where(likely, outside, middle)
    return outside


def _profiles(
    datasets: _Datasets, bit: BitResponse, *, participation: float, information: float
) -> tuple[Floats, Floats]:
    """A grid of losses from 0 up, and every dataset's Σ (P − E·Q)₊ at E = e^loss, shape (rows, points)."""
    one, zero = bit.one, bit.zero
    gamma = participation
    noise, whole = _noise(datasets, bit)
    before, at = noise[:, :-1], noise[:, 1:]
    q = at * (gamma * bit.not_zero + (1 - gamma) * datasets.rest_zero)[:, None]
    q += before * (gamma * zero + (1 - gamma) * datasets.rest_one)[:, None]
    gain = gamma * (one - zero) * (before - at)
    rows, columns = np.nonzero(whole & (gain > 0) & (q > 0) & (gain + q > TAIL * TAIL))
    q, gain = q[rows, columns], gain[rows, columns]
    loss = np.log1p(gain / q)
    top = float(loss.max())
    cell = max(min(math.sqrt(information) / _CELLS, top / 8), top / _MOST_POINTS)
    points = math.ceil(top / cell) + 2
    index = np.floor(loss / cell)
    share = np.clip(np.expm1(loss - index * cell) / math.expm1(cell), 0.0, 1.0)
    place = rows * points + index.astype(np.int64)
    size = len(datasets.ones) * points
    mass = tally(place, (1 - share) * q, size) + tally(place + 1, share * q, size)
    losses = cell * np.arange(points, dtype=np.float64)
    return losses, hockey_sticks(losses, mass.reshape(-1, points))


def _noise(datasets: _Datasets, bit: BitResponse) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Masses of the others' count of ones, from its mean to its upper tail; shape (rows, counts).

    Each row begins at its own count. Mean and mode differ by less than one (Darroch 1964), and P is above Q
    only past the mode. The law is read off its characteristic function under exponential tilts, one for every
    stretch of counts, so that far tails are as accurate as the middle.

    Returns:
        The masses, and whether both a count and the one before it are known, shape (rows, counts − 1).
    """
    zeros, ones = datasets.zeros, datasets.ones
    total = zeros + ones
    mean = zeros * bit.zero + ones * bit.one
    variance = zeros * (bit.zero * bit.not_zero) + ones * (bit.one * bit.not_one)
    start = np.floor(mean * (1 - 1e-12))
    end = np.minimum(np.ceil(mean + bernstein_reach(variance)), total)
    width = int((end - start).max()) + 2
    counts = start[:, None] + np.arange(width, dtype=np.float64)
    law = np.zeros(counts.shape)
    reached, written = start, False
    while not written or np.any(reached < end):
        deviation = np.sqrt(np.maximum(_tilted(datasets, reached, bit)[1], 0.25))
        stop = np.minimum(reached + np.ceil(_PIECE * deviation), end)
        piece = (counts >= reached[:, None]) & (counts <= stop[:, None])
        _fill(law, counts, piece, datasets, bit, centre=(reached + stop) / 2)
        reached, written = stop, True
    last = np.where(end == total, total + 1, end)  # past the last count of all there is nothing to know
    return law, counts[:, 1:] <= last[:, None]


def _tilted(datasets: _Datasets, centre: Floats, bit: BitResponse) -> tuple[Floats, Floats]:
    """The tilt that moves the mean to ``centre``, kept inside the support, and the variance there."""
    zeros, ones = datasets.zeros, datasets.ones
    total = zeros + ones
    wanted = np.clip(centre, np.minimum(0.25, total / 2), np.maximum(total - 0.25, total / 2))
    low, high = np.full(len(total), -1100.0), np.full(len(total), 1100.0)
    of_one, of_zero = math.log(bit.one / bit.not_one), -math.log(bit.not_zero / bit.zero)
    for _ in range(64):
        tilt = (low + high) / 2
        mean = zeros * expit(tilt + of_zero) + ones * expit(tilt + of_one)
        low, high = np.where(mean < wanted, tilt, low), np.where(mean < wanted, high, tilt)
    tilt = (low + high) / 2
    variance = zeros * expit(tilt + of_zero) * expit(-of_zero - tilt)
    variance += ones * expit(tilt + of_one) * expit(-of_one - tilt)
    return tilt, variance


def _fill(
    law: Floats,
    counts: Floats,
    piece: npt.NDArray[np.bool_],
    datasets: _Datasets,
    bit: BitResponse,
    *,
    centre: Floats,
) -> None:
    """Write the law at the counts of one stretch per row."""
    tilt, variance = _tilted(datasets, centre, bit)
    reach = float(bernstein_reach(variance.max()))
    size = transform_size(int(2 * reach) + 4)
    if size > _MOST_TRANSFORM:
        raise ArithmeticError(f"a count of so many bits needs {size} points; use a smaller cohort")
    origin = np.round(centre) - size // 2
    angle = 2 * math.pi / size * np.arange(size // 2 + 1)
    least = float(variance.min())
    if least > 50:
        # |φ(ω)| ≤ exp(−2·variance·ω²/π²)
        angle = angle[: int(math.sqrt(-_FADED / least / 2) * math.pi / (2 * math.pi / size)) + 2]
    log_modulus, turn = np.zeros((len(tilt), len(angle))), origin[:, None] * angle
    normaliser = np.zeros(len(tilt))
    half = np.sin(angle / 2)
    for trials, success, failure in (
        (datasets.zeros, bit.zero, bit.not_zero),
        (datasets.ones, bit.one, bit.not_one),
    ):
        # log E[e^(tilt·bit)], and what the tilted bit is likely to be
        log_mean = np.logaddexp(math.log(failure), math.log(success) + tilt)
        normaliser += trials * log_mean
        tilted = np.exp(math.log(success) + tilt - log_mean)[:, None]
        kept = np.exp(math.log(failure) - log_mean)[:, None]
        along, across = 1 - 2 * tilted * half**2, tilted * np.sin(angle)
        lost = 4 * tilted * kept * half**2
        # Near one its logarithm is small and wanted to full precision, near zero the modulus itself is.
        with np.errstate(divide="ignore"):
            modulus = np.where(lost < 0.5, np.log1p(-lost.clip(max=0.5)) / 2, np.log(np.hypot(along, across)))
        log_modulus += np.where(trials[:, None] > 0, trials[:, None] * modulus.clip(min=-1e300), 0.0)
        turn -= trials[:, None] * np.arctan2(across, along)
    with np.errstate(under="ignore"):
        tilted_law = fft.irfft(np.exp(log_modulus) * np.exp(1j * turn), n=size, axis=1)
        rows, columns = np.nonzero(piece)
        at = counts[rows, columns]
        place = (at - origin[rows]).astype(np.int64)
        if not np.all(np.isfinite(tilted_law)):
            raise ArithmeticError("the count of bits left floating-point range; please report this round")
        inside = (place >= 0) & (place < size) & (at >= 0) & (at <= (datasets.zeros + datasets.ones)[rows])
        value = np.maximum(tilted_law[rows, np.where(inside, place, 0)], 0.0)
        value = np.where(inside, value * np.exp(normaliser[rows] - tilt[rows] * at), 0.0)
    law[rows, columns] = value
