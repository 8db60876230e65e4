"""Gaussian reports of any dimension: the profile of a shuffled round, read against the others' own records.

A record is a point of a ball of radius ρ, in units of the noise's standard deviation. What one slot adds
depends on the records x, x' and z of the neighbours and of the slot's owner through a plane; finitely many
*kinds* cover all planes. A sum of slots of any kinds is bounded by an exponential tilt and a certified normal
approximation of the tilted sum. Proofs: ``docs/proofs/noise.md``, section 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import special

from shuffle_plugins.accounting.losses import PrivacyLossDistribution, Resolution, discounted, finite_losses
from shuffle_plugins.accounting.numerics.normal_sums import Tilted, smoothed_bound
from shuffle_plugins.accounting.numerics.sums import TAIL, Floats, binomial_window
from shuffle_plugins.accounting.pairs.noise import gaussian_profile
from shuffle_plugins.accounting.terms import CohortDraw, Sampling

_REACH = 9.5  # standard deviations at which integrals over the noise end
_STEP, _COMMON_STEP = 0.5, 0.75  # of the trapezoidal rule: e^(−2π²/h²) is what it misses
_SHARES = (
    (0.12, (0.0, 0.01, 0.06, 1.0)),
    (0.3, (0.0, 0.01, 0.04, 0.12, 0.35, 1.0)),
    (math.inf, (0.0, 0.01, 0.03, 0.08, 0.2, 0.35, 0.5, 0.7, 1.0)),
)
"""Cells of 1 − (‖x − x'‖/2ρ)², for radii up to so much."""
_SKEWS_PER_RADIUS, _FEWEST_SKEWS, _MOST_SKEWS = 60, 4, 12  # cells of how much nearer z is to x' than to x
_DISTANCE = 1e-18  # total variation that all reports of a round may be moved by for a common part
_UNLIKELY = 1e-20  # chance of so few clients with the common part that it is charged to δ
_LEAST_CUT, _LARGEST_CUT = 6.0, 9.2  # standard deviations beyond which a report's weight is held
_OWN_KINK = 1e-2  # relative, that the rule may miss of the phantom's moments
_MARGIN = 1e-5  # relative, of exponents; far above rounding and the rule's error
_PROBED, _PROBED_DELTA, _PROBED_FLOOR = 7.0, 1e-9, 1e-15


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Laws of a slot: shape (kinds, nodes of the noise × nodes of the common factor)."""

    first: Floats  # R_x/R_z − 1
    second: Floats  # R_x'/R_z − 1
    mass: Floats
    length: Floats  # standard deviation of log R_x/R_z, shape (kinds, 1)


class _Draw(NamedTuple):
    """A round: radius of its ball, clients, reports that may be seen, and how likely each is seen."""

    radius: float
    population: int
    slots: int
    participation: float

    @property
    def common(self) -> float:
        """θ: the share of each record's law that is the centre's, too, but for 1e-18 in all."""
        t = -float(special.ndtri(min(_DISTANCE / max(self.slots * self.participation, 1.0), 0.5)))
        return math.exp(-(self.radius**2) / 2 - t * self.radius)

    @property
    def spread(self) -> float:
        """The standard deviation of the loss, roughly."""
        told = math.expm1(min(4 * self.radius**2, 600.0))
        return math.sqrt(self.slots * self.participation * told) / self.population


def gaussian_reports_profile(
    *, radius: float, population: int, slots: int, participation: float = 1.0
) -> tuple[Floats, Floats]:
    """Losses from 0 up and upper bounds on δ there, both directions alike; the last one holds on the right.

    Args:
        radius: ρ, of the ball of records, in units of the noise's standard deviation.
        population: n.
        slots: reports that may be seen.
        participation: the probability with which each of them is.
    """
    draw = _Draw(radius, population, slots, participation)
    spread, mean = min(draw.spread, 1e4), slots * participation
    far = np.concatenate([np.arange(0.0, 7.0, 0.125), np.geomspace(7.0, 60.0, 40)])
    excess = far * spread
    rate, unlikely = mean / population, 0.0
    if participation < 1:  # a rate that a random cohort exceeds with so small a chance
        rate, unlikely = min((mean + 10 * math.sqrt(mean) + 40) / population, 1.0), _UNLIKELY
    bounds = alone = _alone(radius, rate, excess) + unlikely
    # 64: below, a normal approximation says nothing
    if mean >= 64:
        # Where the tail is not reached nothing is gained, and much time saved by asking there first.
        probe = np.array([_PROBED]) * spread
        reached = _shuffled(draw, probe)
        if reached[0] < max(_PROBED_DELTA * spread, _PROBED_FLOOR):
            bounds = np.minimum(alone, _shuffled(draw, excess))
    bounds = np.minimum.accumulate(np.minimum(bounds, 1.0))
    last = min(int((bounds > bounds[-1] * (1 + 1e-6)).sum()) + 1, len(bounds))
    return np.log1p(excess[:last]), bounds[:last]


def _alone(radius: float, rate: float, excess: Floats) -> Floats:
    """A report with its sender's name, of a client that takes part with this probability."""
    return rate * gaussian_profile(np.log1p(excess / rate), mu=2 * radius) + 1e-30


def _planes(radius: float) -> tuple[Floats, Floats, Floats]:
    """Kinds that cover all x, x', z: half the distance η of x and x', and where the middle lies from z."""
    rows = []
    shares = next(cells for limit, cells in _SHARES if radius <= limit)
    skews = min(max(math.ceil(_SKEWS_PER_RADIUS * radius), _FEWEST_SKEWS), _MOST_SKEWS)
    for low, high in pairwise(shares):
        largest, least = radius**2 * (1 - low), radius**2 * (1 - high)
        widest = math.sqrt(largest) * (2 * radius - math.sqrt(largest))
        half = widest / skews
        for i in range(skews):
            skew = -widest + (2 * i + 1) * half
            middle = min(
                radius**2 * (1 + math.sqrt(high)) ** 2, 4 * radius**2 - least - 2 * max(abs(skew) - half, 0.0)
            )
            across = largest + half * radius
            across = max(across, abs(skew))
            middle = middle + half / radius
            eta = math.sqrt(across)
            rows.append((eta, skew / eta, math.sqrt(max(middle - (skew / eta) ** 2, 0.0))))
    eta, along, aside = np.array(rows).T
    return eta, along, aside


def _kinds(eta: Floats, along: Floats, aside: Floats) -> _Kinds:
    """The laws, cut where less than 1e-19 of each record's reports lie."""
    a, b = (along + eta)[:, None], (along - eta)[:, None]
    nodes = math.ceil((2 * _REACH + 2 * float(eta.max())) / _STEP)
    g = (-_REACH + b) + (2 * _REACH + a - b) * (np.arange(nodes + 1) / nodes)
    step = (2 * _REACH + a - b) / nodes
    weight = np.exp(-0.5 * g**2) / math.sqrt(2 * math.pi) * step
    s = aside[:, None]
    others = math.ceil((2 * _REACH + float(aside.max())) / _COMMON_STEP)
    c = -_REACH + (2 * _REACH + s) * (np.arange(others + 1) / others)
    common_weight = np.exp(-0.5 * c**2) / math.sqrt(2 * math.pi) * (2 * _REACH + s) / others
    common = s * c - s**2 / 2
    log_a, log_b = a * g - a**2 / 2, b * g - b**2 / 2
    kinds = len(eta)
    first = np.expm1(log_a[:, :, None] + common[:, None, :])
    second = np.expm1(log_b[:, :, None] + common[:, None, :])
    mass = weight[:, :, None] * common_weight[:, None, :]
    return _Kinds(
        first=first.reshape(kinds, -1),
        second=second.reshape(kinds, -1),
        mass=mass.reshape(kinds, -1),
        length=np.hypot(a, s),
    )


class _Tilted(NamedTuple):
    """Of each kind: log of the moment; mean, variance and third absolute moment under the tilt."""

    log_moment: Floats
    mean: Floats
    variance: Floats
    third: Floats


def _small_exponential(z: Floats) -> Floats:
    """e^z − 1 − z without cancellation."""
    series = np.full_like(z, 1 / 3628800)
    for factor in (362880, 40320, 5040, 720, 120, 24, 6, 2):
        series *= z
        series += 1 / factor
    series *= z * z
    large = np.abs(z) > 0.3
    if np.any(large):
        series[large] = np.expm1(z[large]) - z[large]
    return series


def _tilted(
    kinds: _Kinds,
    excess: float,
    c: float,
    *,
    thinned: float,
    scale: float,
    participation: float,
    cut: float,
    missed_at_most: float,
) -> _Tilted:
    """Under e^(c·X), X = scale·(κG − (1 − E)) with probability participation/κ, −scale·(1 − E) if thinned."""
    cap = np.expm1(kinds.length * (kinds.length / 2 + cut))
    x = np.minimum(kinds.first, cap) - (1 + excess) * kinds.second
    if thinned > 1:
        x = thinned * x - (thinned - 1) * excess
    x = scale * x
    z = c * x
    mass = kinds.mass * (participation / thinned)
    growth = (mass * _small_exponential(z)).sum(axis=1)
    empty = participation * (1 - 1 / thinned)
    place = scale * excess
    growth = growth + empty * float(_small_exponential(np.array([c * place]))[0])
    # The weights are held with a kink, of which the trapezoidal rule may miss h²/8 times the change in slope.
    tip = np.minimum(c * scale * thinned * cap[:, 0], 700.0)
    bend_there = participation * tip * np.expm1(tip) * kinds.length[:, 0] * (1 + 1 / cap[:, 0])
    missed = _STEP**2 / 8 * bend_there * np.exp(-((kinds.length[:, 0] + cut) ** 2) / 2)
    growth = np.where(missed <= missed_at_most * growth, growth + missed, np.inf)
    moment = 1 + growth
    tilted = np.expm1(z)
    mean = ((mass * tilted * x).sum(axis=1) + empty * math.expm1(min(c * place, 700.0)) * place) / moment
    tilted += 1
    tilted *= mass
    second = ((tilted * x * x).sum(axis=1) + empty * math.exp(min(c * place, 700.0)) * place**2) / moment
    variance = second - mean**2
    apart = x - mean[:, None]
    third = (tilted * np.abs(apart) * apart * apart).sum(axis=1)
    third += empty * math.exp(min(c * place, 700.0)) * np.abs(place - mean) ** 3
    third += (1 - participation) * np.abs(mean) ** 3
    return _Tilted(np.log1p(growth), mean, variance, third / moment)


def _shuffled(draw: _Draw, excess: Floats) -> Floats:
    theta, population, radius = draw.common, draw.population, np.array([draw.radius])
    kinds = _kinds(*_planes(draw.radius))
    phantom = _kinds(radius, np.zeros(1), radius)
    levels: tuple[float, ...] = (0.1, 1e-4, _UNLIKELY)
    if -math.log(_UNLIKELY) * (1 - theta) / (theta * population) < 5e-3:
        levels = (_UNLIKELY,)
    total = np.zeros(len(excess))
    left = 1.0
    for unlikely in levels:
        within = -math.log(unlikely) / (theta * population)  # u ≥ 1 − this, but for that chance
        u = 1 - min(within, 1 - 1e-9)
        # log of the chance that u is smaller, exactly
        log_chance = math.log(u) + (population - 1) * math.log1p(-theta * (1 - u))
        chance = min(math.exp(log_chance), 1.0)
        thinned = (1 - theta + theta * u) / u
        found = np.zeros(len(excess))
        for i, e in enumerate(excess.tolist()):
            bound = _bound(draw, kinds, phantom, e, thinned=thinned, lightest=theta / thinned)
            found[i] = min(bound, 1.0)  # infinite where the analysis says nothing
            # 1e-28: of a δ at which a profile may end
            if found[i] < 1e-28:
                found[i:] = found[i]
                break
        total += max(left - chance, 0.0) * found
        left = chance
    total += left
    # Reports moved for the common part, before both datasets; weights cut where the noise ends.
    return np.asarray(total * (1 + 1e-9) + 2 * (2 + excess) * _DISTANCE + 1e-30)


def _bound(
    draw: _Draw, kinds: _Kinds, phantom: _Kinds, excess: float, *, thinned: float, lightest: float
) -> float:
    """H_E at E = 1 + excess, for one size of the common part."""
    _, population, slots, participation = draw
    x, spread = -population * excess, draw.spread
    rate = min(slots * participation / population, 1.0)
    y = excess / spread
    density = math.exp(-y * y / 2) / math.sqrt(2 * math.pi)
    # 1e-5: of δ, that this may cost
    lost = 1e-5 * spread * max(density - y * float(special.ndtr(-y)), 0.0) / rate
    cut = min(max(-float(special.ndtri(min(lost, 0.1))), _LEAST_CUT), _LARGEST_CUT)
    lost = float(special.ndtr(-cut))
    own_cut = -float(special.ndtri(min(lost * population * lightest, 1e-5)))
    # About where the log of the farthest record's moment, up to its third one, times e^(cx)/c² is least.
    square = math.exp(min(4 * draw.radius**2, 150.0))
    second, third = (slots * participation * each for each in (square - 1, square**3 - 3 * square + 2))
    c = float(np.roots([third / 2, second, x, -2]).real.max())
    with np.errstate(over="ignore", invalid="ignore"):
        each = _tilted(
            kinds,
            excess,
            c,
            thinned=thinned,
            scale=1.0,
            participation=participation,
            cut=cut,
            missed_at_most=1e-6,
        )
        own = _tilted(
            phantom,
            excess,
            c,
            thinned=1.0,
            scale=1 / lightest,
            participation=rate,
            cut=own_cut,
            missed_at_most=_OWN_KINK,
        )
        missing = lost * slots * participation + float(special.ndtr(-own_cut)) * rate / lightest
        return (_sum_bound(each, own, c, x, slots, missing) + missing) / population


def _sum_bound(each: _Tilted, own: _Tilted, c: float, x: float, slots: int, missing: float) -> float:
    """E(x + S)₊ for slots of any of the kinds, and the phantom's."""
    largest = float(each.log_moment.max()) * (1 + _MARGIN)
    pad = 2 * (largest - each.log_moment) / c**2
    mean, variance = each.mean + c * pad, each.variance + pad
    own_mean, wrong = float(own.mean[0]), 2 * _OWN_KINK * abs(float(own.mean[0]))
    slack = _MARGIN * (abs(x) / slots + np.abs(mean).max())
    many = Tilted(
        log_moment=np.array([largest]),
        least_mean=np.array([mean.min() - slack]),
        largest_mean=np.array([mean.max() + slack]),
        least_variance=np.array([variance.min() * (1 - _MARGIN)]),
        largest_variance=np.array([variance.max() * (1 + _MARGIN)]),
        own_variance=np.array([each.variance.max()]),
        third=np.array([each.third.max()]),
    )
    phantom = Tilted(
        log_moment=own.log_moment[:1] * (1 + _MARGIN),
        least_mean=np.array([own_mean - wrong - missing]),
        largest_mean=np.array([own_mean + wrong]),
        least_variance=np.zeros(1),
        largest_variance=own.variance[:1] * (1 + 2 * _OWN_KINK),
        own_variance=own.variance[:1],
        third=own.third[:1],
    )
    return float(smoothed_bound(np.array([c]), np.array([x]), each=(slots, many), own=(1, phantom))[0])


_QUANTILES = (1e-20, 1e-3, 0.1)  # of a random cohort, at which it is cut into groups
_INSTANCE_QUANTILES = (1e-13, 0.01, 0.15, 0.5, 0.85, 0.99, 1 - 1e-13)
_CELLS, _SUM_REACH = 1500, 12.0  # cells of an instance's sum, and standard deviations they cover
_CUT_CODES, _FAR = 1e-20, 1e-15  # total variation: of codes that have an end, per report, and of rounding


@lru_cache(maxsize=512)
def gaussian_round_profile(
    *, radius: float, population: int, cohort: float, sampling: Sampling, sees_cohort: bool
) -> tuple[Floats, Floats] | None:
    """Losses from 0 up and δ there from above, or None where this analysis says nothing of small δ."""
    if sampling is not Sampling.POISSON:
        slots = int(cohort)
        if sees_cohort or sampling in (Sampling.FULL, Sampling.SINGLE_PASS):
            population = slots
        found = gaussian_reports_profile(radius=radius, population=population, slots=slots)
    elif sees_cohort:
        found = _over_cohorts(radius, population, cohort / population)
    else:
        found = gaussian_reports_profile(
            radius=radius, population=population, slots=population, participation=cohort / population
        )
    # 1e-12: δ to which a profile must fall: a bound that stays above it knows nothing of the tail
    return found if found[1][-1] <= 1e-12 else None


def _over_cohorts(radius: float, population: int, rate: float) -> tuple[Floats, Floats]:
    """The client took part, so the cohort is 1 + Bin(n − 1, γ), public; fewer reports cost more."""
    first, law = binomial_window(population - 1, rate)
    edges = np.unique(np.searchsorted(np.cumsum(law), _QUANTILES))
    masses = np.add.reduceat(law, edges)
    found = []
    for edge in edges.tolist():
        size = 1 + first + edge
        found.append(gaussian_reports_profile(radius=radius, population=size, slots=size))
    losses = found[-1][0]
    deltas = np.full(len(losses), TAIL + float(law[: edges[0]].sum()))
    for mass, (own, values) in zip(masses, found, strict=True):
        # Between points of a profile its chord, straight in E, is above it.
        deltas += mass * np.interp(np.expm1(losses), np.expm1(own), values)
    return losses, deltas


def gaussian_instance_losses(
    *, radius: float, draw: CohortDraw, resolution: Resolution
) -> PrivacyLossDistribution:
    """From below: everybody else holds x', the client x or x', as far apart as a ball allows.

    The sum of the reports is a function of what is seen: normal, and, where the client takes part, moved by
    2·radius. Under Poisson sampling with k reports the client takes part with probability k/n; all k of a
    range are taken to be the smallest in that probability and the largest in noise, which hides more.
    """
    if draw.sampling is not Sampling.POISSON:
        everybody = draw.sees_cohort or draw.sampling is Sampling.FULL
        parts = [(1.0, 1.0 if everybody else draw.cohort / draw.population, int(draw.cohort))]
    else:
        seen = int(draw.sees_cohort)
        first, law = binomial_window(draw.population - seen, draw.sampling_rate)
        edges = np.unique(np.searchsorted(np.cumsum(law), _INSTANCE_QUANTILES))
        few = len(law) <= len(_INSTANCE_QUANTILES)  # at γ = 1 there is one size
        if few:
            edges = np.arange(len(law) + 1)
        parts = []
        for low, high in pairwise(edges):
            size = seen + first + int(high) - few
            rate = 1.0 if seen else (first + int(low)) / draw.population
            parts.append((float(law[low:high].sum()), rate, size))
        parts = [part for part in parts if part[1] > 0]
    p, q = (
        np.concatenate(masses)
        for masses in zip(
            *(_sum_masses(2 * radius / math.sqrt(size), rate, mass) for mass, rate, size in parts),
            strict=True,
        )
    )
    found = finite_losses(None, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)
    return discounted(found, _FAR + draw.cohort * _CUT_CODES)


def _sum_masses(shift: float, rate: float, mass: float) -> tuple[Floats, Floats]:
    """Masses of cells of the sum under both datasets, times ``mass``."""
    edges = np.linspace(-_SUM_REACH, _SUM_REACH + shift, _CELLS + 1)[1:-1]
    q, moved = (_cell_masses(edges - centre) for centre in (0.0, shift))
    # 1e-13: relative, of a cell's mass
    kept = (1 - 1e-13) * mass
    return kept * ((1 - rate) * q + rate * moved), kept * q


def _cell_masses(edges: Floats) -> Floats:
    """Normal masses between the edges and beyond them, each from the side where it keeps its digits."""
    below, above = special.ndtr(edges), special.ndtr(-edges)
    inner = np.where(edges[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
    return np.concatenate([below[:1], inner, above[-1:]])
