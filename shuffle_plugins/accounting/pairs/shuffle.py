"""The pairs of a shuffled round: its reports' blanket under its sampling and before its adversary."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from shuffle_plugins.accounting.numerics.binomial import TAIL, binomial_between, binomial_window, window_ends
from shuffle_plugins.accounting.numerics.grid import Cells
from shuffle_plugins.accounting.pairs.bits import MOST_COUNTED, BitPair
from shuffle_plugins.accounting.pairs.blanket import Blanket, Form
from shuffle_plugins.accounting.pairs.counts import (
    Pair,
    PairMixture,
    alike_pair,
    blanket_pair,
    mirror_pair,
    slot_pair,
    third_record_pair,
)
from shuffle_plugins.accounting.pairs.crowd import CrowdLaws, CrowdPair
from shuffle_plugins.accounting.pairs.instances import Atoms, two_level_atoms
from shuffle_plugins.accounting.pairs.mixes import MixPair
from shuffle_plugins.accounting.pairs.others import OthersPair
from shuffle_plugins.accounting.pairs.record_types import RecordTypes
from shuffle_plugins.accounting.pairs.slots import LARGEST_WEIGHT
from shuffle_plugins.accounting.pairs.spread import SpreadPair
from shuffle_plugins.accounting.terms import CohortDraw, Sampling

_INNER_PLACES = (-4.0, -3.0, -2.25, -1.5, -0.75, 0.0, 0.75, 1.5, 2.25, 3.5)
_PLACES = (
    (1e5, (-10.5, -9.25, -8.0, -7.0, -6.0, -5.0, *_INNER_PLACES)),
    (1e7, (-9.0, -7.5, -6.25, -5.0, *_INNER_PLACES)),
    (math.inf, (-6.0, -4.0, -2.5, -1.25, 0.0, 1.25, 2.5)),
)
"""Edges of buckets of a random cohort's sizes, in deviations, of cohorts up to so large."""
_FEW_SIZES = 24  # of a cohort, each of which is accounted by itself
_LOWER_PLACES = (-8.5, -7.5, -6.5, -5.5, -4.5, -3.5, 4.75, 6.5)
"""Further ones where a bucket counts as its largest size: there the smallest cohorts tell most."""
_BIT_BUCKETS = (
    (30_000, 256),
    (3_000_000, 128),
)  # groups of datasets up to so many reports: a fraction of a second
_FEWEST_BIT_BUCKETS = 64
_MOST_BIT_COUNTS = 350_000  # buckets times √reports
_TAIL_BIT_BUCKETS, _BIT_TAIL = 8, 1e-7  # sizes of less probability than this need fewer groups
_MOST_BIT_COHORTS = 96
_MOST_COUNTED_REPORTS = 2e9  # counting more takes too long
_FEWEST_ACTIVE = 0.1  # expected blanket reports for each record: with fewer, little is won over the blanket
_MOST_SLOTTED = 30.0  # ε0 above which a slot's weights differ by too many orders of magnitude to be summed
_MANY_BLANKETS, _CLEARLY_LESS = 3e3, 0.97  # blanket reports, and a ratio of variances
_BIT_COHORT_WIDTH = 0.004  # relative, of a bucket of random cohorts


def upper_pair(blanket: Blanket, draw: CohortDraw) -> PairMixture:
    """The dominating pair of a round whose reports have this blanket."""

    return _placed(draw, partial(blanket_pair, blanket), upper=True)


def upper_pairs(
    blanket: Blanket, draw: CohortDraw, *, mechanism: str, channel_fixed: bool
) -> tuple[PairMixture, ...]:
    """The dominating pairs of a round, of which each may be the smaller one somewhere.

    Args:
        blanket: privacy blanket of the reports.
        draw: who takes part, and who looks.
        mechanism: name of the randomizer; ``"generic"`` is the worst case of all.
        channel_fixed: whether one channel serves all reports that a report hides among. Only then is what
            others hold used; otherwise the blanket's pairs are all.
    """
    fixed = channel_fixed and not draw.spans_batches
    if fixed and (spread := _spread_pairs(blanket, draw)):
        plain = replace(blanket, information_bound=None)
        return *upper_pairs(plain, draw, mechanism=mechanism, channel_fixed=True), spread
    slotted = blanket.high > 0 and blanket.local_epsilon <= _MOST_SLOTTED
    slots = [_placed(draw, partial(slot_pair, blanket), upper=True)] if slotted else []
    pairs = (upper_pair(blanket, draw), *slots)
    if fixed and (mixes := _mixes(blanket, draw, mechanism=mechanism)):
        return _beside_blanket(mixes, *pairs)
    if slotted or not fixed or blanket.local_epsilon > MOST_COUNTED:
        return pairs
    if blanket.form is Form.BIT and draw.cohort <= _MOST_COUNTED_REPORTS:
        return (*pairs, _bit_pair(blanket.local_epsilon, draw))
    if blanket.form is Form.SIGN and draw.cohort * blanket.differing >= _FEWEST_ACTIVE:
        signs = _placed(draw, partial(_sign_pair, blanket), upper=True)
        return _beside_blanket(signs, *pairs)
    return pairs


def _beside_blanket(others: PairMixture, *blanket: PairMixture) -> tuple[PairMixture, ...]:
    """All pairs, or the first alone if it is the smaller one everywhere but for rounding.

    It is where many blanket reports are expected: by Lemma 10 the blanket's pair then gains at most what
    these may fall short of their mean.
    """
    for pair in others.pairs:
        if not isinstance(pair, OthersPair):
            return *blanket, others
        if pair.population * math.exp(-pair.local_epsilon) < _MANY_BLANKETS:
            return *blanket, others
    if others.information > _CLEARLY_LESS * blanket[-1].information:
        return *blanket, others
    return (others,)


def mixed(blanket: Blanket, draw: CohortDraw, *, mechanism: str) -> bool:
    """Whether a round of one fixed channel is accounted by all that the others can hold, too."""
    return not draw.spans_batches and bool(
        _mixes(blanket, draw, mechanism=mechanism) or _spread_pairs(blanket, draw)
    )


def _mixes(blanket: Blanket, draw: CohortDraw, *, mechanism: str) -> PairMixture | None:
    """The pair over all mixes of others, where it is smaller by more than next to nothing."""
    others = blanket.others
    if mechanism == "generic" and blanket.form is Form.CORNERS:
        others = RecordTypes.generic(blanket.local_epsilon)
    if others is None:
        return None
    found = _placed(draw, partial(_mix_pair, blanket, others), upper=True, few=True)
    helped = (mass for mass, pair in zip(found.masses, found.pairs, strict=True) if isinstance(pair, MixPair))
    return found if math.fsum(helped) > 0.5 else None


def _spread_pairs(blanket: Blanket, draw: CohortDraw) -> PairMixture | None:
    """The pair of what a report tells at most, where it is smaller by more than next to nothing."""
    bound = blanket.information_bound
    if bound is None:
        return None

    def build(*, population: int, slots: int, participation: float) -> Pair:
        place = {"population": population, "slots": slots}
        spread = SpreadPair(
            local_epsilon=blanket.local_epsilon, information_bound=bound, participation=participation, **place
        )
        common = blanket_pair(blanket, participation=participation, **place)
        known = [common.information]
        if blanket.form is Form.SIGN:
            known.append(_sign_pair(blanket, participation=participation, **place).information)
        if blanket.others:
            types = MixPair(
                local_epsilon=blanket.local_epsilon,
                others=blanket.others,
                participation=participation,
                **place,
            )
            known.append(types.information)
        return spread if spread.helps(min(known)) else common

    found = _placed(draw, build, upper=True, few=True)
    helped = (
        mass for mass, pair in zip(found.masses, found.pairs, strict=True) if isinstance(pair, SpreadPair)
    )
    return found if math.fsum(helped) > 0.5 else None


def _mix_pair(
    blanket: Blanket, others: RecordTypes, *, population: int, slots: int, participation: float
) -> Pair:
    """The pair of mixes, or the blanket's for cohorts of so few that it is as good."""
    common = blanket_pair(blanket, population=population, slots=slots, participation=participation)
    mixes = MixPair(
        local_epsilon=blanket.local_epsilon,
        others=others,
        population=population,
        slots=slots,
        participation=participation,
    )
    return mixes if mixes.helps(common.information) else common


def lower_pairs(blanket: Blanket, draw: CohortDraw, *, mechanism: str) -> dict[str, PairMixture]:
    """Exact pairs of real instances of a round, by name: what an adversary really can learn.

    Empty if the blanket is itself only a bound and names no third record, and for single passes, whose cost
    is attained only before those who know the batches. The generic worst case has two instances: binary
    response with everybody else at 0, and ternary response with everybody else at the third value.

    Args:
        blanket: privacy blanket of the reports.
        draw: who takes part, and who looks.
        mechanism: name of the randomizer; ``"generic"`` is the worst case of all.
    """
    if draw.sampling is Sampling.SINGLE_PASS:
        return {}
    if draw.sampling is Sampling.EPOCH:
        # An instance of one input per record for the whole epoch, so that the order tells nothing.
        draw = _instance_of_an_epoch(draw)
    local_epsilon = blanket.local_epsilon
    generic = mechanism == "generic"
    if generic:
        blanket = Blanket.generic(local_epsilon)
    outside = 1 / (math.exp(local_epsilon) + 2) if generic else blanket.outside
    found: dict[str, PairMixture] = {}
    if outside > 0:
        third = partial(third_record_pair, local_epsilon=local_epsilon, outside=outside)
        name = "3-RR instance" if generic else f"{mechanism} instance, third record"
        found[name] = _placed(draw, third, upper=False)
    if blanket.exact:
        name = "binary-RR" if generic else mechanism
        found[f"{name} instance"] = _placed(draw, partial(mirror_pair, blanket), upper=False)
    for number, atoms in enumerate(filter(_in_range, blanket.instances)):
        name = f"{mechanism} instance, all others alike" + (f" ({number + 1})" if number else "")
        found[name] = _placed(draw, partial(alike_pair, atoms), upper=False)
    return found


def alike_atoms(blanket: Blanket, *, mechanism: str) -> tuple[Atoms, ...]:
    """What one report tells in the instances of :func:`lower_pairs`: in all of them others are alike.

    Args:
        blanket: privacy blanket of the reports.
        mechanism: name of the randomizer; ``"generic"`` is the worst case of all.
    """
    local_epsilon = blanket.local_epsilon
    if mechanism == "generic":
        blanket = Blanket.generic(local_epsilon)
    outside = 1 / (math.exp(local_epsilon) + 2) if mechanism == "generic" else blanket.outside
    found = list(blanket.instances)
    if outside > 0:
        third: dict[tuple[int, ...], float] = {(1, 0, 0): outside, (0, 1, 0): outside}
        found.append(two_level_atoms(local_epsilon=local_epsilon, shares=third))
    if blanket.exact:
        mirror: dict[tuple[int, ...], float] = {(1, 0, 0): blanket.differing, (0, 1, 1): blanket.differing}
        found.append(two_level_atoms(local_epsilon=local_epsilon, shares=mirror))
    return tuple(filter(_in_range, found))


def _in_range(atoms: Atoms) -> bool:
    """Whether a slot can add what these reports tell: at an ε0 above 161 some tell more."""
    return all(max(u, v) <= LARGEST_WEIGHT for u, v, _ in atoms)


def _instance_of_an_epoch(draw: CohortDraw) -> CohortDraw:
    """An epoch whose loader drops a last batch that is not full, and whose inputs follow from nothing."""
    cohort = int(draw.cohort)
    reports = cohort if draw.sees_cohort else draw.population // cohort * cohort
    return replace(draw, sampling=Sampling.WITHOUT_REPLACEMENT, cohort=reports)


def _placed(draw: CohortDraw, build: Callable[..., Pair], *, upper: bool, few: bool = False) -> PairMixture:
    """A pair under the sampling and before the adversary of a round.

    ``build`` makes it of a ``population``, ``slots`` and their ``participation``.

    Against a server that sees the cohort, the cohort is the population. A client who checks in to a secret
    round of a pass, or comes in a secret batch of an epoch, hides among the whole population.
    """
    population, sampling = draw.population, draw.sampling
    if sampling is Sampling.POISSON or (sampling is Sampling.CHECK_IN and draw.sees_cohort):
        if draw.sees_cohort:
            return _random_cohorts(draw, build, upper=upper, few=few)
        rate = draw.sampling_rate
        return PairMixture.single(build(population=population, slots=population, participation=rate))
    if draw.spans_batches:
        return PairMixture.single(build(population=population, slots=population, participation=1.0))
    cohort = int(draw.cohort)
    if draw.sees_cohort or sampling in (Sampling.FULL, Sampling.SINGLE_PASS, Sampling.EPOCH):
        population = cohort
    return PairMixture.single(build(population=population, slots=cohort, participation=1.0))


def _random_cohorts(draw: CohortDraw, build: Callable[..., Pair], *, upper: bool, few: bool) -> PairMixture:
    """Poisson cohorts, against a server: the client took part, so the cohort is 1 + Bin(n − 1, γ) and public.

    With full participation fewer clients are worse, so a bucket of cohort sizes is replaced by its smallest
    size in an upper bound and by its largest in a lower one.
    """
    first, last = window_ends(draw.population - 1, draw.sampling_rate)
    edges = _cohort_edges(draw, first=first, size=last - first + 1, upper=upper, few=few)
    sizes = 1 + first + (edges[:-1] if upper else edges[1:] - 1)
    law = binomial_between(draw.population - 1, draw.sampling_rate, edges=first + edges)
    return PairMixture(
        masses=tuple(float(mass) for mass in law),
        pairs=tuple(build(population=size, slots=size, participation=1.0) for size in map(int, sizes)),
        dropped=TAIL,
    )


def _cohort_edges(draw: CohortDraw, *, first: int, size: int, upper: bool, few: bool) -> Cells:
    """Where buckets of ``size`` cohort sizes begin and end: close around the mean, wide in the tails.

    Sizes far above the mean are one bucket from above: they are rare, and little better than those before.
    Those far below are rare but worse, which is felt in small cohorts. ``few`` halves the number of buckets.
    """
    if size <= _FEW_SIZES:
        return np.arange(size + 1)
    mean = (draw.population - 1) * draw.sampling_rate - first
    deviation = math.sqrt(max((draw.population - 1) * draw.sampling_rate * (1 - draw.sampling_rate), 1.0))
    places = np.array(next(places for largest, places in _PLACES if draw.cohort <= largest))
    if few:
        places = places[::2]
    if not upper:
        places = np.union1d(places, _LOWER_PLACES)
    wanted = mean + deviation * places
    inner = np.clip(np.rint(wanted), 0, size).astype(np.int64)
    return np.unique(np.concatenate([[0], inner, [size]]))


def _sign_pair(blanket: Blanket, *, population: int, slots: int, participation: float) -> Pair:
    """The crowd pair, or the blanket's for cohorts of so few blanket reports that little is lost."""
    if slots * participation * blanket.differing < _FEWEST_ACTIVE:
        return blanket_pair(blanket, population=population, slots=slots, participation=participation)
    return CrowdPair(
        local_epsilon=blanket.local_epsilon,
        population=population,
        slots=slots,
        laws=CrowdLaws.sign(blanket.local_epsilon, participation=participation),
    )


def _bit_pair(local_epsilon: float, draw: CohortDraw) -> PairMixture:
    """Counts of bits. The number of bits is always public."""
    population = draw.population

    if draw.sees_cohort or draw.sampling is not Sampling.POISSON:

        def counted(population: int, slots: int, participation: float) -> BitPair:
            return BitPair(
                local_epsilon=local_epsilon,
                population=population,
                others=slots - 1,
                participation=slots / population,
                buckets=_bit_buckets(slots),
            )

        return _lightened(_placed(draw, counted, upper=True))
    # A bucket of cohort sizes gets its least noise and its largest participation: both can only cost more.
    first, law = binomial_window(population, draw.sampling_rate)
    width = max(1, int(_BIT_COHORT_WIDTH * draw.cohort), -(-len(law) // _MOST_BIT_COHORTS))
    starts = np.arange(0, len(law), width)
    least = first + starts
    most = first + np.minimum(starts + width, len(law)) - 1
    masses = tuple(float(mass) for mass in np.add.reduceat(law, starts))
    return PairMixture(
        masses=masses,
        pairs=tuple(
            BitPair(
                local_epsilon=local_epsilon,
                population=population,
                others=max(int(low) - 1, 0),
                participation=int(high) / population,
                buckets=min(_bit_buckets(int(high)), _FEWEST_BIT_BUCKETS)
                if mass > _BIT_TAIL
                else _TAIL_BIT_BUCKETS,
                spare=int(high) - max(int(low), 1) if high > 0 else 0,
            )
            for low, high, mass in zip(least, most, masses, strict=True)
        ),
        dropped=TAIL,
    )


def _lightened(mixture: PairMixture) -> PairMixture:
    """The same with fewer groups of datasets where there are many components, and fewest in rare ones."""
    if len(mixture.pairs) == 1:
        return mixture
    limits = (_FEWEST_BIT_BUCKETS if mass > _BIT_TAIL else _TAIL_BIT_BUCKETS for mass in mixture.masses)
    pairs = (
        replace(pair, buckets=min(pair.buckets, limit)) if isinstance(pair, BitPair) else pair
        for pair, limit in zip(mixture.pairs, limits, strict=True)
    )
    return replace(mixture, pairs=tuple(pairs))


def _bit_buckets(reports: int) -> int:
    """As many groups of datasets as take a fraction of a second: a group lists some dozen √reports counts."""
    most = max(_TAIL_BIT_BUCKETS, int(_MOST_BIT_COUNTS / math.sqrt(max(reports, 1))))
    return min(next((few for limit, few in _BIT_BUCKETS if reports <= limit), _FEWEST_BIT_BUCKETS), most)
