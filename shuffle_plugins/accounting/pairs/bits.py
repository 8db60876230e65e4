"""Randomised bits that are only counted: envelopes over datasets, none of which is the worst at every ε.

Proofs: ``docs/proofs/accounting.md``, Claim 3, and ``docs/proofs/tags.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
from numpy import fft

from shuffle_plugins.accounting.losses import (
    PositiveLosses,
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
    hockey_sticks,
    hull_outcomes,
    joined,
    profile_losses,
    spread_to_grid,
)
from shuffle_plugins.accounting.numerics.sums import TAIL, Floats, bernstein_reach, binomial_window, tally

_TAILS_CUT = 3 * TAIL  # left out by windows of counts
_FARTHEST = 12.0  # deviations of a count beyond which less than 1e-30 lies


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


@dataclass(frozen=True, kw_only=True, slots=True)
class BitPair:
    """The envelope over all datasets of counted bits: P if the differing client holds a one, Q if a zero.

    Attributes:
        response: probabilities of a one.
        others: reports in the count beside the differing client's.
        buckets: how many groups of datasets to bound together; each costs a relative 1/(2·buckets) of ε.
    """

    response: BitResponse
    others: int
    buckets: int = 64

    @property
    def slots(self) -> int:
        """Number of reports in the count."""
        return self.others + 1

    @property
    def one_sided(self) -> bool:
        """Whether exchanging P and Q changes anything."""
        return self.response != self.response.flipped

    @property
    def largest_ratio(self) -> float:
        """A bound on the ratio of the masses of P and Q at every outcome."""
        bit = self.response
        return max(bit.one / bit.zero, bit.not_zero / bit.not_one)

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""
        bit = self.response
        noise = min(bit.one * bit.not_one, bit.zero * bit.not_zero)
        return (bit.one - bit.zero) ** 2 / (max(self.others, 1) * noise)


def bit_losses(pair: BitPair) -> tuple[Floats, Floats, Floats, float]:
    """Losses, P and Q masses of an upper law of the pair, and a bound on the P or Q mass left out of it.

    The profile is convex in E on both sides of 1. Left of 1 it is that of the exchanged pair, which is the
    pair of the opposite bits.
    """
    ones, zeros = _buckets(pair)
    up = down = _side(pair.response, ones, zeros)
    if pair.one_sided:
        down = _side(pair.response.flipped, zeros, ones)
    loss, p, q = joined(up, down, total=1.0)
    return loss, p, q, max(up.beyond, down.beyond) + _TAILS_CUT * pair.largest_ratio


def _side(bit: BitResponse, ones: Floats, zeros: Floats) -> PositiveLosses:
    """The largest profile of these datasets, at losses from 0 up."""
    variance = ones * bit.one * bit.not_one + zeros * bit.zero * bit.not_zero
    laws = []
    for heads, tails, of_noise in zip(ones.tolist(), zeros.tolist(), variance.tolist(), strict=True):
        noise = np.append(0.0, _noise(int(heads), int(tails), float(bernstein_reach(of_noise)), bit))
        q = noise[1:] * bit.not_zero + noise[:-1] * bit.zero
        gain = (bit.one - bit.zero) * (noise[:-1] - noise[1:])
        told = (gain > 0) & (q > 0) & (gain + q > TAIL * TAIL)
        laws.append((gain[told], q[told]))
    top = max(float(np.log1p((gain / q).max())) for gain, q in laws)
    deviation = (bit.one - bit.zero) / math.sqrt(max(float(variance.min()), bit.zero))
    # 64: grid cells per standard deviation of the loss
    # 20_000: grid points up to the largest loss
    cell = max(min(deviation / 64, top / 8), top / 20_000)
    losses = cell * np.arange(math.ceil(top / cell) + 2, dtype=np.float64)
    worst = np.zeros(len(losses))
    for gain, q in laws:
        first, mass = spread_to_grid(np.log1p(gain / q), q, cell=cell)
        np.maximum(
            worst, hockey_sticks(losses, np.pad(mass, (first, len(losses) - first - len(mass)))), out=worst
        )
    return hull_outcomes(losses, worst)


def _noise(ones: int, zeros: int, reach: float, bit: BitResponse) -> Floats:
    """Masses of a count of ones from its mean to its upper tail, each to many digits."""
    (low, of_ones), (first, of_zeros) = (
        binomial_window.__wrapped__(ones, bit.one),
        binomial_window.__wrapped__(zeros, bit.zero),
    )
    mean = max((ones * bit.one + zeros * bit.zero) * (1 - 1e-12) - low - first, 0.0)
    size = len(of_ones) + len(of_zeros) - 1
    # 100_000: masses of two counts, up to which they are multiplied one by one
    if len(of_ones) * len(of_zeros) <= 100_000:
        law = np.convolve(of_ones, of_zeros)
    else:
        # A transform's errors are as large everywhere. Of several tilted laws each tells what it has most of.
        law, best = np.zeros(size), np.zeros(size)
        length, place = 1 << (size - 1).bit_length(), np.arange(size) - mean
        deviation = reach / _FARTHEST
        for tilt in np.arange(0.0, _FARTHEST + 4, 4.0) / deviation:
            tilted = (
                np.exp(tilt * (np.arange(len(each)) - len(each) / 2)) * each for each in (of_ones, of_zeros)
            )
            found = fft.irfft(np.prod([fft.rfft(each, length) for each in tilted], axis=0), length)[:size]
            share = found / found.max()
            better = share > best
            shift = tilt * (len(of_ones) / 2 + len(of_zeros) / 2 - mean)
            law[better] = found[better] * np.exp(shift - tilt * place[better])
            best[better] = share[better]
    end = math.ceil(mean + reach)
    # Past the last count of all there is nothing to know; past others there is.
    return np.append(law[math.floor(mean) : end + 1], [0.0] * (low + first + end >= ones + zeros))


def _buckets(pair: BitPair) -> tuple[Floats, Floats]:
    """How many ones and zeros make the noise in each bucket of datasets."""
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
    # 8.0: times that of the bits of least variance
    return min(float(others + 1), math.ceil(8.0 * (others + 1) * lighter / heavier) + 1)


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


_BUCKETS = 256
_FEW_SHARES = 0.5 * np.linspace(0, 1, 15) ** 2
_SAMPLED_EDGES = np.append(_FEW_SHARES, 1 - _FEW_SHARES[-2::-1])
"""Of buckets of datasets on a sample, as shares of the clients: fine where few or nearly all hold a bit."""
_LEVELS = ((1e-5, 1), (1e-11, 2), (TAIL, 4))
"""But for which probability a sample resembles the rest of the clients, and one in how many edges is used."""
_WEIGHTS = np.array([0, 1 / 160, 1 / 80, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9])
_WEIGHTS = np.append(
    _WEIGHTS, [1.05, 1.25, 1.6, 2.2]
)  # fine near 0, where the client that stands in hides nothing
_STRIPS = np.array([0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1])
_NEAR = 1e-12  # of a side, so that rounding loses no corner
_RARE = 1e-24  # probability of a count that is left out
_MOST_COUNTS, _MOST_COUNTS_ELSEWHERE = 128, 32  # of two bits and of the third one's
_LEAST_BIAS = 2.0**-50  # of which biases are multiples, so that floats hold the probabilities exactly


@lru_cache(maxsize=64)
def counted_losses(response: BitResponse, *, others: int, resolution: Resolution) -> PrivacyLossDistribution:
    """From above, of one count when the differing client holds a one (P) or a zero (Q), for every dataset."""
    loss, p, q, missing = bit_losses(BitPair(response=response, others=others, buckets=_BUCKETS))
    return finite_losses(loss, p, q, missing=missing, kind="upper", resolution=resolution, symmetric=False)


@lru_cache(maxsize=64)
def sampled_counts_losses(
    response: BitResponse, *, population: int, cohort: int, resolution: Resolution
) -> PrivacyLossDistribution:
    """From above, of all counts of a sample whose clients hold at most one bit each, for every dataset.

    ``docs/proofs/tags.md``, Claim 8: the largest of a few thousand datasets, of which each is a pair of two
    counts and of what others tell of the client that stands in if the differing one is not drawn.

    Args:
        response: how each bit is randomised.
        population, cohort: n and k, k < n.
        resolution: how finely losses are kept.
    """
    gamma = cohort / population
    noise = (cohort - 1) * min(response.one * response.not_one, response.zero * response.not_zero)
    gain = gamma * (response.one - response.zero)
    cell = 2 * gain / math.sqrt(max(noise, gain)) / resolution.cells
    top = min(
        math.log1p(gamma * (response.one / response.zero * response.not_zero / response.not_one - 1)),
        # 100.0: of a grid; beyond it the bound on δ is flat
        100.0,
    )
    losses = [0.0]
    while losses[-1] < top:
        # 0.02: of the distance of losses, relative to the loss
        losses.append(losses[-1] + max(cell, 0.02 * losses[-1]))
    grid = np.array(losses)
    delta, unlike = np.zeros(len(grid)), 1.0
    even = response.one == response.not_zero
    # 10.0: variance of a count, from which fine buckets take long and gain 2 %
    much = enough_noise(response, cohort - 1) * response.one * response.not_one > 10.0
    coarser = 1 if not much else 2 if even else 3
    for tail, every in _LEVELS:
        crowds = _crowds(response, population=population, others=cohort - 1, tail=tail, every=every * coarser)
        delta += unlike * _largest_hockey_sticks(
            crowds, response, population=population, cohort=cohort, grid=grid
        )
        # Left out: rare counts of each bit.
        delta += 2 * max(crowd.left_out for crowd in crowds)
        delta += _RARE * max(len(crowd.zero) for crowd in crowds) ** 2
        unlike = 2 * tail  # the two bits
    # Left out: crowds that do not resemble the rest at all, and tails of the windows.
    return profile_losses(grid, delta * (1 + 1e-9) + unlike + 100 * TAIL, resolution=resolution)


def _largest_hockey_sticks(
    crowds: list[_Crowd], response: BitResponse, *, population: int, cohort: int, grid: Floats
) -> Floats:
    """The largest H_E at E = e^loss of these datasets, for the losses of the grid."""
    gamma, rest = cohort / population, population - cohort
    told: dict[tuple[int, int], Floats] = {}
    worst = np.zeros(len(grid))
    for held, wanted in product(crowds, crowds):
        both, most = held.least_count + wanted.least_count, held.most_count + wanted.most_count
        if both > cohort - 1:
            continue
        p, q, neither = (
            np.multiply.outer(first, second).ravel()
            for first, second in ((held.one, wanted.zero), (held.zero, wanted.one), (held.zero, wanted.zero))
        )
        larger = p - q >= _RARE
        p, q, neither = p[larger], q[larger], neither[larger]
        # Of those drawn in any case so many hold a third bit; and so many do not, but no more count than
        # there are clients outside who hold it.
        further = max(cohort - 1 - most, 0)
        shares = np.minimum(_STRIPS * (both + 1) / rest, 1.0)
        for least, largest in pairwise(np.append(shares, 1.0)):
            zeros = int(np.clip(least * rest - 1, 0, both))
            for x, y in _corners(held, wanted, least=least, most=largest):
                if (further, zeros) not in told:
                    told[further, zeros] = _told(response, ones=further, zeros=zeros)
                base = gamma * q + (1 - gamma) * (x * p + y * q + (1 - x - y) * _WEIGHTS[:, None] * neither)
                sticks = _hockey_sticks(gamma * (p - q), base, grid)
                np.maximum(worst, told[further, zeros] @ sticks, out=worst)
    return worst


@dataclass(frozen=True, slots=True)
class _Crowd:
    """One bit's count over those who are drawn in any case, and who of the rest may hold the bit.

    Attributes:
        zero, one: laws of the count with one more client, who does not hold the bit or does.
        least_count, most_count: how many of the crowd hold the bit.
        least, most: share of the rest that hold it.
        left_out: mass of the rarest counts.
    """

    zero: Floats
    one: Floats
    least_count: int
    most_count: int
    least: float
    most: float
    left_out: float


def _crowds(response: BitResponse, *, population: int, others: int, tail: float, every: int) -> list[_Crowd]:
    """Buckets of datasets, by how many of the others that are drawn in any case hold a bit."""
    enough = enough_noise(response, others)
    # Beyond enough noise a bucket says only how few are left to hold a third bit.
    beyond = np.geomspace(enough, others + 1.0, 2 + 2 * math.ceil(math.log2((others + 1) / enough)))
    edges = np.unique(np.floor(np.concatenate([_SAMPLED_EDGES[::every] * enough, beyond])))
    low, high = edges[:-1], edges[1:] - 1
    rest = population - 1 - others
    least = ((population - 1) * likely_share(low, others, upper=False, tail=tail) - high) / rest
    most = ((population - 1) * likely_share(high, others, upper=True, tail=tail) - low) / rest
    found = []
    for ones, zeros, first, last in zip(low, others - high, least.clip(0, 1), most.clip(0, 1), strict=True):
        _, of_ones = binomial_window(int(min(ones, enough)), response.one)
        _, of_zeros = binomial_window(int(zeros), response.zero)
        count = np.convolve(of_ones, of_zeros)
        zero = np.convolve(count, [response.not_zero, response.zero])
        one = np.convolve(count, [response.not_one, response.one])
        kept = np.maximum(zero, one) >= _RARE
        found.append(
            _Crowd(
                zero=zero[kept],
                one=one[kept],
                least_count=int(ones),
                most_count=others - int(zeros),
                least=float(first),
                most=float(last),
                left_out=float(np.maximum(zero, one)[~kept].sum()),
            )
        )
    return found


def _corners(held: _Crowd, wanted: _Crowd, *, least: float, most: float) -> set[tuple[float, float]]:
    """Corners of the shares of the rest that hold either bit, where ``least`` to ``most`` hold neither."""
    sides = ((held.least, held.most), (wanted.least, wanted.most))
    found = [*product(*sides)]
    for neither in (least, most):
        found += [(x, 1 - neither - x) for x in sides[0]] + [(1 - neither - y, y) for y in sides[1]]
    return {
        (x, y)
        for x, y in found
        if sides[0][0] - _NEAR <= x <= sides[0][1] + _NEAR
        and sides[1][0] - _NEAR <= y <= sides[1][1] + _NEAR
        and least - _NEAR <= 1 - x - y <= most + _NEAR
    }


def _told(response: BitResponse, *, ones: int, zeros: int) -> Floats:
    """What a third bit tells of the client that stands in: masses of a likelihood ratio on ``_WEIGHTS``."""
    zero, one = _counts(response, ones=ones, zeros=zeros)
    seen = zero > 0
    law = _spread(one[seen] / zero[seen], zero[seen], _WEIGHTS)
    law[0] += max(1.0 - float(law.sum()), 0.0)  # what a window has cut off hides nothing
    return law


def _spread(values: Floats, mass: Floats, places: Floats) -> Floats:
    """The masses put on ``places`` at equal mean: falling convex functions of the values only gain by it."""
    inside = np.minimum(values, places[-1])
    place = np.clip(np.searchsorted(places, inside, side="right") - 1, 0, len(places) - 2)
    share = (inside - places[place]) / (places[place + 1] - places[place])
    return tally(place, (1 - share) * mass, len(places)) + tally(place + 1, share * mass, len(places))


def _hockey_sticks(gain: Floats, q: Floats, losses: Floats) -> Floats:
    """Σ (gain − (E − 1)·Q)₊ at E = e^loss for each row of Q, shape (rows, losses)."""
    rows, points = len(q), len(losses)
    with np.errstate(divide="ignore"):
        place = np.searchsorted(losses, np.log1p(gain / q)) + (points + 1) * np.arange(rows)[:, None]
    above = [
        tally(place.ravel(), mass.ravel(), rows * (points + 1)).reshape(rows, -1)[:, ::-1].cumsum(axis=1)
        for mass in (np.broadcast_to(gain, q.shape), q)
    ]
    beyond, rest = (each[:, ::-1][:, 1:] for each in above)
    return np.asarray(np.maximum(beyond - np.expm1(losses) * rest, 0.0), dtype=np.float64)


def counted_instance(
    response: BitResponse, *, others: int, resolution: Resolution, held: bool = False
) -> PrivacyLossDistribution:
    """From below, of one count when nobody else holds a one, or (``held``) everybody else."""
    q, p = _counts(response, ones=others if held else 0, zeros=0 if held else others)
    return finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)


def elsewhere_instance(
    response: BitResponse, *, population: int, cohort: int, resolution: Resolution
) -> PrivacyLossDistribution:
    """From below, of a sample where all others hold a bit that is neither the client's old nor its new one.

    If the client is not drawn, one of the others stands in for it. Neighbouring counts are seen as one where
    there are many of them.
    """
    gamma = cohort / population
    zero, one = _merged(_counts(response, ones=0, zeros=cohort - 1), most=_MOST_COUNTS)
    without, standing = _merged(_counts(response, ones=cohort - 1, zeros=0), most=_MOST_COUNTS_ELSEWHERE)
    drawn = np.multiply.outer(gamma * without, np.multiply.outer(one, zero))
    rest = np.multiply.outer((1 - gamma) * standing, np.multiply.outer(zero, zero))
    p, q = drawn + rest, drawn.swapaxes(1, 2) + rest
    return finite_losses(
        None, p.ravel(), q.ravel(), missing=0.0, kind="lower", resolution=resolution, symmetric=True
    )


def _counts(response: BitResponse, *, ones: int, zeros: int) -> tuple[Floats, Floats]:
    """Laws of a count of so many ones and zeros with one more zero, and with one more one."""
    (low, of_ones), (first, of_zeros) = (
        binomial_window(ones, response.one),
        binomial_window(zeros, response.zero),
    )
    count = np.convolve(of_ones, of_zeros)
    # A count at an edge may come from more or less noise than the window has: it is likelier than it seems.
    known = slice(int(low + first > 0), len(count) + int(low + first + len(count) > ones + zeros))
    return (
        np.convolve(count, [response.not_zero, response.zero])[known],
        np.convolve(count, [response.not_one, response.one])[known],
    )


def _merged(laws: tuple[Floats, Floats], *, most: int) -> tuple[Floats, Floats]:
    """The same with neighbouring counts added up until at most ``most`` are left."""
    edges = np.arange(0, len(laws[0]), -(-len(laws[0]) // most))
    return np.add.reduceat(laws[0], edges), np.add.reduceat(laws[1], edges)


def has_leaning_instance(*, others: int, own: int) -> bool:
    """Whether :func:`leaning_instance` can list the outcomes."""
    # 1 << 30: of the convolution of a crowd's count with a client's own
    return _reach(others) * _reach(own) <= 1 << 30


def leaning_instance(
    *, bias: float, others: int, own: int, opposite: bool, resolution: Resolution
) -> PrivacyLossDistribution:
    """From below, of one count to which the differing client adds bits that lean to one (P), or do not (Q).

    Bits are ones with probability ½ + bias under P. Under Q the client's are like everybody else's, ½ − bias
    if ``opposite`` is true, otherwise ½. P and Q are each within 2e-30 of the true law in total variation;
    it is left to the caller to take that off (``discounted``).

    Args:
        bias: in (0, ½); rounded down, as a larger one can be made smaller: by flipping every bit of the count
            with one probability, which scales everybody's bias and keeps a fair bit fair.
        others, own: bits of all others, and of the client.
        opposite: whether everybody else leans to zero.
        resolution: how finely losses are kept.
    """
    bias = math.floor(bias / _LEAST_BIAS) * _LEAST_BIAS
    rest = 0.5 - bias if opposite else 0.5
    _, crowd = binomial_window(others, rest)
    (high, ones), (low, zeros) = binomial_window(own, 0.5 + bias), binomial_window(own, rest)
    first, last = min(high, low), max(high + len(ones), low + len(zeros))

    def seen(start: int, mass: Floats) -> Floats:
        return np.convolve(crowd, np.pad(mass, (start - first, last - start - len(mass))))

    return finite_losses(
        None,
        seen(high, ones),
        seen(low, zeros),
        missing=0.0,
        kind="lower",
        resolution=resolution,
        symmetric=False,
    )


def _reach(bits: int) -> float:
    """Counts of so many bits that are listed, at most."""
    return min(bits, 2 * float(bernstein_reach(bits / 4))) + 1
