"""Privacy losses of counted bits: from above where they are flipped unevenly, and of datasets from below."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
    profile_losses,
)
from shuffle_plugins.accounting.numerics.binomial import TAIL, bernstein_reach, binomial_window
from shuffle_plugins.accounting.numerics.grid import Floats, tally
from shuffle_plugins.accounting.pairs.bits import (
    BitPair,
    BitResponse,
    bit_losses,
    enough_noise,
    likely_share,
)

_BUCKETS = 256
_SAMPLED_EDGES = (0.0, 0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.7, 0.85, 0.93, 0.97, 0.99, 1.0)
"""Of buckets of datasets on a sample, as shares of the clients: fine where few or nearly all hold a bit."""
_WEIGHTS = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.05, 1.25, 1.6, 2.2])
_FINE_WEIGHTS = np.arange(641) / 160
_PARTS, _STRIPS = 16, 8
_NEAR = 1e-12  # of a side, so that rounding loses no corner
_RARE = 1e-24  # probability of a count that is left out
_LARGEST_LOSS = 100.0  # of a grid; beyond it the bound on δ is flat
_GROWTH = 0.02  # of the distance of losses, relative to the loss
_MOST_TERMS = 1 << 30  # of the convolution of a crowd's count with a client's own
_LEAST_BIAS = 2.0**-50  # of which biases are multiples, so that floats hold the probabilities exactly


@lru_cache(maxsize=64)
def counted_losses(response: BitResponse, *, others: int, resolution: Resolution) -> PrivacyLossDistribution:
    """From above, of one count when the differing client holds a one (P) or a zero (Q), for every dataset.

    Args:
        response: how each bit is randomised.
        others: clients beside the differing one.
        resolution: how finely losses are resolved on their grid.

    Raises:
        ArithmeticError: if the count is too large to compute.
    """
    loss, p, q, missing = bit_losses(BitPair(response=response, others=others, buckets=_BUCKETS))
    return finite_losses(loss, p, q, missing=missing, kind="upper", resolution=resolution, symmetric=False)


@lru_cache(maxsize=64)
def sampled_counts_losses(
    response: BitResponse, *, population: int, cohort: int, resolution: Resolution
) -> PrivacyLossDistribution:
    """From above, of all counts of a sample whose clients hold at most one bit each, for every dataset.

    ``docs/proofs/tags.md``, Claim 8: the larger of a few thousand datasets, of which each is a pair of two
    counts and of what others tell of the client that stands in if the differing one is not drawn.

    Args:
        response: how each bit is randomised.
        population, cohort: n and k, k < n.
        resolution: how finely losses are resolved on their grid.
    """
    gamma, crowds = cohort / population, _crowds(response, population=population, others=cohort - 1)
    noise = (cohort - 1) * min(response.one * response.not_one, response.zero * response.not_zero)
    gain = gamma * (response.one - response.zero)
    cell = 2 * gain / math.sqrt(max(noise, gain)) / resolution.cells
    top = min(
        math.log1p(gamma * (response.one / response.zero * response.not_zero / response.not_one - 1)),
        _LARGEST_LOSS,
    )
    losses = [0.0]
    while losses[-1] < top:
        losses.append(losses[-1] + max(cell, _GROWTH * losses[-1]))
    grid = np.array(losses)
    told: dict[int, Floats] = {}
    worst = np.zeros(len(grid))
    for held, wanted in product(crowds, crowds):
        if held.least_count + wanted.least_count > cohort - 1:
            continue
        p, q, neither = (
            np.multiply.outer(first, second).ravel()
            for first, second in (
                (held.one, wanted.zero),
                (held.zero, wanted.one),
                (held.zero, wanted.zero),
            )
        )
        larger = p - q >= _RARE
        p, q, neither = p[larger], q[larger], neither[larger]
        for strip, x, y in _corners(held, wanted):
            if strip not in told:
                told[strip] = _told(crowds, further=strip / _STRIPS)
            base = gamma * q + (1 - gamma) * (x * p + y * q + (1 - x - y) * _WEIGHTS[:, None] * neither)
            np.maximum(worst, told[strip] @ _hockey_sticks(gamma * (p - q), base, grid), out=worst)
    # Left out: rare counts of each bit, tails of the windows, and crowds that do not resemble the rest.
    left_out = (_PARTS + 2) * max(crowd.left_out for crowd in crowds) + 100 * TAIL
    left_out += _RARE * max(len(crowd.zero) for crowd in crowds) ** 2
    return profile_losses(grid, worst * (1 + 1e-9) + left_out, resolution=resolution)


@dataclass(frozen=True, slots=True)
class _Crowd:
    """One bit's count over those who are drawn in any case, and who of the rest may hold the bit.

    Attributes:
        zero, one: laws of the count with one more client, who does not hold the bit or does.
        least_count: how many of the crowd hold the bit, at least.
        least, most: share of the rest that hold it.
        left_out: mass of the rarest counts.
    """

    zero: Floats
    one: Floats
    least_count: float
    least: float
    most: float
    left_out: float

    @property
    def told(self) -> tuple[Floats, Floats]:
        """The likelihood that the last client holds the bit, over that it does not, and its law if not."""
        seen = self.zero > 0
        return self.one[seen] / self.zero[seen], self.zero[seen]


def _crowds(response: BitResponse, *, population: int, others: int) -> list[_Crowd]:
    """Buckets of datasets, by how many of the others that are drawn in any case hold a bit."""
    edges = np.append(np.array(_SAMPLED_EDGES) * enough_noise(response, others), others + 1.0)
    edges = np.unique(np.floor(edges))
    low, high = edges[:-1], edges[1:] - 1
    rest = population - 1 - others
    least = ((population - 1) * likely_share(low, others, upper=False) - high) / rest
    most = ((population - 1) * likely_share(high, others, upper=True) - low) / rest
    found = []
    for ones, zeros, first, last in zip(low, others - high, least.clip(0, 1), most.clip(0, 1), strict=True):
        _, of_ones = binomial_window(int(ones), response.one)
        _, of_zeros = binomial_window(int(zeros), response.zero)
        count = np.convolve(of_ones, of_zeros)
        zero = np.convolve(count, [response.not_zero, response.zero])
        one = np.convolve(count, [response.not_one, response.one])
        kept = np.maximum(zero, one) >= _RARE
        found.append(
            _Crowd(
                zero=zero[kept],
                one=one[kept],
                least_count=float(ones),
                least=float(first),
                most=float(last),
                left_out=float(np.maximum(zero, one)[~kept].sum()),
            )
        )
    return found


def _corners(held: _Crowd, wanted: _Crowd) -> set[tuple[int, float, float]]:
    """Shares of the rest that hold either bit, at whose mixtures all possible ones are, strip by strip.

    Each with the number of its strip: that many of ``_STRIPS`` parts of the rest hold neither, at least.
    """
    sides = ((held.least, held.most), (wanted.least, wanted.most))
    neither = [k / _STRIPS for k in range(_STRIPS + 1)]
    found = [*product(*sides)]
    found += [(x, 1 - share - x) for x in sides[0] for share in neither]
    found += [(1 - share - y, y) for y in sides[1] for share in neither]
    corners = set()
    for x, y in found:
        if (
            sides[0][0] - _NEAR <= x <= sides[0][1] + _NEAR
            and sides[1][0] - _NEAR <= y <= sides[1][1] + _NEAR
        ):
            place = (1 - x - y) * _STRIPS
            first, last = math.floor(place - _NEAR), math.floor(place + _NEAR)
            corners |= {(strip, x, y) for strip in (first, last) if 0 <= strip < _STRIPS}
    return corners


def _told(crowds: list[_Crowd], *, further: float) -> Floats:
    """What further bits tell of the client that stands in: the law of a weight, its masses on ``_WEIGHTS``.

    The weight is Σ g_i·ρ_i over the bits, g_i the share of those with further bits that hold bit i. The
    shares are cut into ``_PARTS`` parts: whatever they are, some partition of them costs as much.

    Args:
        crowds: buckets of datasets.
        further: share of the rest that hold further bits, at least.
    """
    sums: list[list[Floats]] = [[np.eye(1, len(_FINE_WEIGHTS))[0]], *([] for _ in range(_PARTS))]
    for size in range(_PARTS, 0, -1):
        # So large a share is only held where many of the crowd hold the bit, too.
        share = size / _PARTS
        part = _lowest(
            [
                _spread(share * values, mass, _FINE_WEIGHTS)
                for values, mass in (
                    crowd.told for crowd in crowds if crowd.most >= further * (share - 1 / _PARTS)
                )
            ]
        )
        for total in range(_PARTS - size + 1):
            for before in sums[total]:
                law = np.convolve(before, part)
                law[len(_FINE_WEIGHTS) - 1] += law[len(_FINE_WEIGHTS) :].sum()
                sums[total + size] = [_lowest([*sums[total + size], law[: len(_FINE_WEIGHTS)]])]
    return _spread(_FINE_WEIGHTS, sums[-1][0], _WEIGHTS)


def _lowest(laws: list[Floats]) -> Floats:
    """A law on ``_FINE_WEIGHTS`` with the mean of a falling convex function at least that of all these."""
    below = np.max([law[:-1].cumsum().cumsum() for law in laws], axis=0)  # Σ (t − weight)₊ at every t
    return np.diff(np.diff(below, prepend=0.0), prepend=0.0, append=1.0)


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
    """From below, of one count when nobody else holds a one, or everybody else.

    Args:
        response, others, resolution: as of :func:`counted_losses`.
        held: whether everybody else holds a one.

    Raises:
        ArithmeticError: if no outcome is within floating-point range.
    """
    first, noise = binomial_window(others, response.one if held else response.zero)
    before, at = np.append(0.0, noise), np.append(noise, 0.0)
    p = response.not_one * at + response.one * before
    q = response.not_zero * at + response.zero * before
    # A count at an edge may come from more or less noise than the window has: it is likelier than it seems.
    known = slice(int(first > 0), len(noise) + int(first + len(noise) > others))
    return finite_losses(
        None, p[known], q[known], missing=0.0, kind="lower", resolution=resolution, symmetric=False
    )


def has_leaning_instance(*, others: int, own: int) -> bool:
    """Whether :func:`leaning_instance` can list the outcomes."""
    return _reach(others) * _reach(own) <= _MOST_TERMS


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
        others: bits of all others.
        own: bits of the client.
        opposite: whether everybody else leans to zero.
        resolution: how finely losses are resolved on their grid.

    Raises:
        ArithmeticError: if no outcome is within floating-point range.
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
