r"""Randomised bits that are only counted: the pair of binary randomized response.

A round of binary randomized response is a count of ones. Whatever bits the others hold, each of theirs adds
the same variance to it, while the privacy blanket counts only what they report blindly; so counting exactly
lowers ε by the factor :math:`\sqrt{(e+1)/(2e)}` when rounds are large. No single dataset is the worst one at
every ε, so the pair is an envelope over datasets (``docs/accounting.md``, Claim 3):

- Order the other clients at random; the first k − 1 make the noise, and the last report is the differing
  client's with probability γ, otherwise that of one of the rest.
- The divergence is convex in every other client's probability of a one. So the noise comes from n1 clients
  who hold a one and n0 who hold a zero, n0 + n1 = k − 1, and the rest hold ones in a proportion x̄.
- Taking noise away can only raise it. So all n1 in [l, u] are covered by l ones and k − 1 − u zeros: a few
  dozen such buckets bound every dataset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import fft

from shuffle_plugins.accounting.binomial import LOG_TAIL, TAIL, bernstein_reach
from shuffle_plugins.accounting.grid import Floats

_CELLS = 64  # grid cells per standard deviation of the loss
_MOST_POINTS = 20_000  # grid points up to the largest loss
_PIECE = 4.0  # tilted standard deviations that one transform serves
_FADED = -42.0  # log of a negligible Fourier coefficient
_MOST_TRANSFORM = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class BitPair:
    """The envelope of binary randomized response over all datasets; symmetric in P and Q.

    Attributes:
        local_epsilon: ε0.
        population: n, which bounds how far the rest of the clients can differ from those who make the noise.
        others: k − 1, reports in the count beside the last one.
        participation: γ, probability that the last report is the differing client's.
        buckets: how many groups of datasets to bound together; each costs a relative 1/(2·buckets) of ε.
    """

    local_epsilon: float
    population: int
    others: int
    participation: float
    buckets: int = 64

    @property
    def slots(self) -> int:
        """Reports in the count."""
        return self.others + 1

    @property
    def one_sided(self) -> bool:
        """Exchanging P and Q changes nothing."""
        return False

    @property
    def largest_ratio(self) -> float:
        """A bound on P/Q."""
        return 1.0 + self.participation * math.expm1(self.local_epsilon)

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""
        one, zero = _response(self.local_epsilon)
        noise = max(self.others, 1) * one * zero
        return (self.participation * (one - zero)) ** 2 / noise


def _response(local_epsilon: float) -> tuple[float, float]:
    """Probabilities of a one, by a client who holds a one and by a client who holds a zero."""
    return 1.0 / (1.0 + math.exp(-local_epsilon)), 1.0 / (math.exp(local_epsilon) + 1.0)


@dataclass(frozen=True, slots=True)
class _Datasets:
    """Who makes the noise, and what the rest would report; one dataset a row, all arrays (rows,)."""

    zeros: Floats
    ones: Floats
    rest_one: Floats  # probability of a one
    rest_zero: Floats


def bit_outcomes(pair: BitPair) -> tuple[Floats, Floats]:
    """P and Q masses of an upper law of the pair, one outcome per point of a grid of losses.

    Returns:
        Two arrays (outcomes,); each sums to one up to tails of 1e-30.
    """
    if pair.participation == 0:
        return np.ones(1), np.ones(1)
    datasets = _datasets(pair)
    top = math.log1p(pair.participation * math.expm1(pair.local_epsilon))
    cell = max(min(math.sqrt(pair.information) / _CELLS, top / 8), top / _MOST_POINTS)
    points = math.ceil(top / cell) + 2
    sticks = _hockey_sticks(pair, datasets, cell=cell, points=points)
    return _symmetric_law(sticks.max(axis=0), cell=cell)


def _datasets(pair: BitPair) -> _Datasets:
    others = pair.others
    edges = np.unique(np.linspace(0, others + 1, pair.buckets + 1).round())
    low, high = edges[:-1], edges[1:] - 1  # ones among the others, inclusive
    one, zero = _response(pair.local_epsilon)
    rest = pair.population - 1 - others
    if rest <= 0 or pair.participation >= 1:
        half = np.full(len(low), 0.5)
        return _Datasets(zeros=others - high, ones=low, rest_one=half, rest_zero=half)
    # Sampling makes the others resemble the population, but for a probability of 2e-30 (Hoeffding 1963).
    least = (pair.population - 1) * _likely_share(low, others, upper=False)
    most = (pair.population - 1) * _likely_share(high, others, upper=True)
    share = np.concatenate([(least - high) / rest, (most - low) / rest]).clip(0.0, 1.0)
    return _Datasets(
        zeros=np.tile(others - high, 2),
        ones=np.tile(low, 2),
        rest_one=zero + (one - zero) * share,
        rest_zero=one - (one - zero) * share,
    )


def _likely_share(count: Floats, trials: int, *, upper: bool) -> Floats:
    """The furthest share y of ones with trials·KL(count/trials ‖ y) at most the logarithm of the tail."""
    if trials == 0:
        return np.full(len(count), 1.0 if upper else 0.0)
    seen = count / trials
    inside, outside = seen.copy(), np.full(len(count), 1.0 if upper else 0.0)
    for _ in range(60):
        middle = (inside + outside) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            divergence = np.where(seen > 0, seen * np.log(seen / middle), 0.0)
            divergence += np.where(seen < 1, (1 - seen) * np.log((1 - seen) / (1 - middle)), 0.0)
        likely = trials * divergence <= LOG_TAIL
        inside, outside = np.where(likely, middle, inside), np.where(likely, outside, middle)
    return outside


def _hockey_sticks(pair: BitPair, datasets: _Datasets, *, cell: float, points: int) -> Floats:
    """Σ (P − E·Q)₊ of every dataset at E = e^(i·cell), i = 0 … points − 1; shape (rows, points)."""
    one, zero = _response(pair.local_epsilon)
    gamma = pair.participation
    noise = _noise(datasets, one=one, zero=zero)  # (rows, counts), from a count below the mode on
    before, at = noise[:, :-1], noise[:, 1:]
    q = at * (gamma * one + (1 - gamma) * datasets.rest_zero)[:, None]
    q += before * (gamma * zero + (1 - gamma) * datasets.rest_one)[:, None]
    gain = gamma * (one - zero) * (before - at)
    rows, columns = np.nonzero((gain > 0) & (q > TAIL * TAIL))
    q, gain = q[rows, columns], gain[rows, columns]
    loss = np.log1p(gain / q)
    index = np.minimum(np.floor(loss / cell), points - 2)
    share = np.clip(np.expm1(loss - index * cell) / math.expm1(cell), 0.0, 1.0)
    place = rows * points + index.astype(np.int64)
    size = len(datasets.ones) * points
    mass = np.bincount(place, weights=(1 - share) * q, minlength=size)
    mass += np.bincount(place + 1, weights=share * q, minlength=size)
    # δ at a point is δ at the next one, plus the distance times the Q mass above.
    above = np.cumsum(mass.reshape(-1, points)[:, ::-1], axis=1)[:, ::-1]
    gaps = np.exp(cell * np.arange(points - 1)) * math.expm1(cell)
    rises = (gaps * above[:, 1:])[:, ::-1]
    sticks = np.zeros((len(datasets.ones), points))
    sticks[:, :-1] = np.cumsum(rises, axis=1)[:, ::-1]
    return sticks


def _symmetric_law(stick: Floats, *, cell: float) -> tuple[Floats, Floats]:
    """The symmetric law whose hockey stick is given at E = e^(i·cell), i ≥ 0, and is linear in between."""
    ratio = np.exp(cell * np.arange(len(stick)))
    slope = np.append(-np.diff(stick) / np.diff(ratio), 0.0)
    q = np.maximum(slope[:-1] - slope[1:], 0.0)
    p = q * ratio[1:]
    centre = 1.0 - float((p + q).sum())
    if centre < -1e-9:
        raise ArithmeticError(f"the envelope over datasets is not a privacy profile (mass {centre:g})")
    middle = np.array([max(centre, 0.0)])
    return np.concatenate([q[::-1], middle, p]), np.concatenate([p[::-1], middle, q])


def _noise(datasets: _Datasets, *, one: float, zero: float) -> Floats:
    """Masses of the others' count of ones, from below its mode to its upper tail; shape (rows, counts).

    Each row begins at its own count. The law is read off its characteristic function under exponential tilts,
    one for every stretch of counts, so that far tails are as accurate as the middle.
    """
    zeros, ones = datasets.zeros, datasets.ones
    mean = zeros * zero + ones * one
    variance = (zeros + ones) * one * zero
    start = np.maximum(np.floor(mean) - 3, -1)
    end = np.minimum(np.ceil(mean + bernstein_reach(variance)), zeros + ones)
    width = int((end - start).max()) + 2
    counts = start[:, None] + np.arange(width)
    law = np.zeros(counts.shape)
    reached = start
    while np.any(reached < end):
        deviation = np.sqrt(np.maximum(_tilted(datasets, reached, one=one, zero=zero)[1], 0.25))
        stop = np.minimum(reached + np.ceil(_PIECE * deviation), end)
        piece = (counts >= reached[:, None]) & (counts <= stop[:, None])
        _fill(law, counts, piece, datasets, centre=(reached + stop) / 2, one=one, zero=zero)
        reached = stop
    return law


def _tilted(datasets: _Datasets, centre: Floats, *, one: float, zero: float) -> tuple[Floats, Floats]:
    """The tilt that moves the mean to ``centre``, kept inside the support, and the variance there."""
    zeros, ones = datasets.zeros, datasets.ones
    total = zeros + ones
    wanted = np.clip(centre, np.minimum(0.25, total / 2), np.maximum(total - 0.25, total / 2))
    low, high = np.full(len(total), -1100.0), np.full(len(total), 1100.0)
    base = math.log(one / zero)
    for _ in range(64):
        tilt = (low + high) / 2
        mean = zeros / (1 + np.exp(np.minimum(base - tilt, 700.0)))
        mean += ones / (1 + np.exp(np.minimum(-base - tilt, 700.0)))
        low, high = np.where(mean < wanted, tilt, low), np.where(mean < wanted, high, tilt)
    tilt = (low + high) / 2
    one_a = 1 / (1 + np.exp(np.minimum(base - tilt, 700.0)))
    one_b = 1 / (1 + np.exp(np.minimum(-base - tilt, 700.0)))
    return tilt, zeros * one_a * (1 - one_a) + ones * one_b * (1 - one_b)


def _fill(
    law: Floats,
    counts: Floats,
    piece: np.ndarray,
    datasets: _Datasets,
    *,
    centre: Floats,
    one: float,
    zero: float,
) -> None:
    """Write the law at the counts of one stretch per row."""
    tilt, variance = _tilted(datasets, centre, one=one, zero=zero)
    reach = float(bernstein_reach(variance.max()))
    size = fft.next_fast_len(int(2 * reach) + 4, real=True)
    if size > _MOST_TRANSFORM:
        raise ArithmeticError(f"a count of so many bits needs {size} points; use a smaller cohort")
    origin = np.round(centre) - size // 2
    angle = 2 * math.pi / size * np.arange(size // 2 + 1)
    least = float(variance.min())
    if least > 50:
        # |φ(ω)| ≤ exp(−2·variance·ω²/π²)
        angle = angle[: int(math.sqrt(-_FADED / least / 2) * math.pi / (2 * math.pi / size)) + 2]
    log_spectrum = np.zeros((len(tilt), len(angle)), dtype=np.complex128)
    normaliser = np.zeros(len(tilt))
    for trials, success, failure in (
        (datasets.zeros, zero, one),
        (datasets.ones, one, zero),
    ):
        # log E[e^(tilt·bit)] and the tilted bit's probability
        log_mean = np.logaddexp(math.log(failure), math.log(success) + tilt)
        normaliser += trials * log_mean
        tilted = np.exp(math.log(success) + tilt - log_mean)[:, None]
        kept = np.exp(math.log(failure) - log_mean)[:, None]
        half = np.sin(angle / 2)
        modulus = 0.5 * np.log1p(np.maximum(-4 * tilted * kept * half**2, -1 + 1e-300))
        phase = np.arctan2(tilted * np.sin(angle), 1 - 2 * tilted * half**2)
        log_spectrum += trials[:, None] * (modulus - 1j * phase)
    log_spectrum += 1j * origin[:, None] * angle
    with np.errstate(under="ignore"):
        tilted_law = fft.irfft(np.exp(log_spectrum), n=size, axis=1)
        rows, columns = np.nonzero(piece)
        at = counts[rows, columns]
        place = (at - origin[rows]).astype(np.int64)
        inside = (place >= 0) & (place < size) & (at >= 0) & (at <= (datasets.zeros + datasets.ones)[rows])
        value = np.maximum(tilted_law[rows, np.where(inside, place, 0)], 0.0)
        value = np.where(inside, value * np.exp(normaliser[rows] - tilt[rows] * at), 0.0)
    law[rows, columns] = value
