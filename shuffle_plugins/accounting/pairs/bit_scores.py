"""How much Gaussian noise the count of a crowd's random bits is worth to each of them.

A crowd of bits is added up, each a one with a probability in [q, 1 − q]. Let the probability of one of them
be (1 + τ·v)/2 with v in [−1, 1] and τ = 1 − 2q. Moving it from v to v' changes the law of the count no more
than moving the mean of a unit Gaussian by c·|v − v'|: the pair is c·|v − v'|-GDP (Dong, Roth, Su 2022), up to
a total variation. Such pairs multiply to the Gaussian pair of the root of the squares, so a vector of counts
costs what its ℓ2 distance does, wherever its entries move.

The law is affine in v. So for a small step it is enough that the score S = d/dv log P_v(count) is below c·Z
in convex order, Z a unit Gaussian: E(S − x)₊ ≤ E(c·Z − x)₊ for all x. Steps add up along the way from v to v'
(group privacy of Gaussians). ``docs/proofs/counts.md`` has the proof. Here c is searched for, and the order
checked at every count that is not cut off as a tail, for every crowd that there can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import erfcx, ndtr

from shuffle_plugins.accounting.numerics.grid import Floats

CUT_TAIL = 32 * math.log(10)
"""−log of the mass that is cut off a count, at most; of each of the three cuts that there are."""

_REACH = 17.0  # deviations of a binomial that are listed: beyond lies less than 1e-62
_MOST_LISTED = 1 << 19  # bits of a crowd whose makeup is told apart
_BUCKETS = 48  # of the share of ones that the rest of the crowd leans to
_LEAST = 1e-280  # a mass that floats can tell from nothing, also once multiplied
_SLACK = 1e-8  # relative, for roundoff in masses and in their differences
_PRECISION = 1e-4  # relative, of c


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

    Raises:
        ValueError: if so few others hide nobody.
    """
    if crowd < 1:
        raise ValueError("a client's bits that no others join hide nobody")
    found: list[float] = []
    coins = _fewest_coins(crowd, flip)
    if coins > 0:
        found.append(_shift([_Law.of_coins(coins, flip, own=own)], start=_leading(crowd, flip)))
    if crowd <= _MOST_LISTED:
        found.append(_shift(_makeups(crowd, flip, own=own), start=_leading(crowd, flip)))
    best = min(found, default=math.inf)
    if not best < math.inf:
        raise ValueError(f"{crowd} bits of other clients, at least {flip:.3g} likely each, hide nobody")
    return ScoreCover(shift=best * (1 + _SLACK), distance=min(1.0, 3 * math.exp(-CUT_TAIL)))


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
        """From the masses of the crowd's count.

        Args:
            crowd: masses of ``first``, ``first + 1``, …; log-concave, so that scores increase.
            flip: q.
            first: least count that is listed.
            lowest, highest: counts that may be seen, the bit included; others are cut off.
        """
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
        keep = (score >= _below(score, least)) & (count <= highest + 1)
        return cls(
            score=score[keep],
            above=(gain / 2 * without - score * from_above)[keep],
            below=(gain / 2 * without + score * from_below)[keep],
        )

    def within(self, shift: float) -> bool:
        """Whether the scores are below a Gaussian of this deviation, in convex order.

        Between two scores E(S − x)₊ is a line, and the Gaussian's is above its tangent in the middle: so the
        ends of the line are compared with that.
        """
        x = self.score
        middle, half = (x[1:] + x[:-1]) / 2, (x[1:] - x[:-1]) / 2
        right = middle >= 0
        value, slope = _gaussian_excess(np.abs(middle), shift)
        slope = np.where(right, -slope, slope)
        left_end = np.where(right, self.above[:-1], self.below[:-1])
        right_end = np.where(right, self.above[1:], self.below[1:])
        return bool(np.all(left_end <= value - slope * half) and np.all(right_end <= value + slope * half))


def _below(score: Floats, least: float) -> float:
    """The largest score that is at most ``least``; the smallest one if there is none."""
    return float(score[max(int(np.searchsorted(score, least, side="right")) - 1, 0)])


def _gaussian_excess(x: Floats, deviation: float) -> tuple[Floats, Floats]:
    """E(deviation·Z − x)₊ at x ≥ 0, and how steeply it falls."""
    u = x / deviation
    density = np.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
    tail = ndtr(-u)
    # 1 − u·m(u), m the Mills ratio, loses few digits up to some tens of deviations.
    value = deviation * density * (1 - u * math.sqrt(math.pi / 2) * erfcx(u / math.sqrt(2)))
    return value, tail


def _makeups(crowd: int, flip: float, *, own: int) -> Iterator[_Law]:
    """Crowds of bits of the probabilities q and 1 − q, by how many there are of each, in buckets.

    Of a bucket only the bits that all its crowds have are counted. Buckets lie symmetrically: exchanging
    zeros and ones turns a bit with v = 1 in one of them into one with v = −1 in another.
    """
    half = np.unique(np.round(np.linspace(0, crowd / 2, _BUCKETS // 2 + 1)).astype(int))
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
    reach = _REACH * math.sqrt(mean * (1 - probability)) + room + 60
    low, high = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    middle = min(max(math.floor(mean), low), high)
    odds = probability / (1 - probability)
    rising = np.arange(middle, high, dtype=np.float64)
    falling = np.arange(middle, low, -1, dtype=np.float64)
    above = np.cumprod((trials - rising) / (rising + 1) * odds)
    below = np.cumprod(falling / (trials - falling + 1) / odds)
    mass = np.concatenate([below[::-1], [1.0], above])
    return low, np.asarray(mass / mass.sum(), dtype=np.float64)


def _shift(laws: Iterator[_Law] | list[_Law], *, start: float) -> float:
    """The least c within which all laws are, to a part in ten thousand; infinite if none is found."""
    shift, checked = start, 0
    for law in laws:
        checked += 1
        if law.within(shift):
            continue
        short = shift
        while not law.within(shift):
            short, shift = shift, 1.3 * shift
            if shift > 100 * start:
                return math.inf
        while shift > short * (1 + _PRECISION):
            middle = math.sqrt(short * shift)
            short, shift = (short, middle) if law.within(middle) else (middle, shift)
    return shift if checked else math.inf
