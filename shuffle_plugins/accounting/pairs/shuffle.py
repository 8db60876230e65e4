"""A shuffled round under its sampling and before its adversary: its pairs, and their privacy losses.

Three kinds of evidence bound a round from above, each by a pair: what any report hides, its blanket
(``SlotPair``); what the others' own records hide, by types (``MixPair``); and how much one report can tell at
most (``SpreadPair``). Datasets in which all others hold one record bound it from below. Proofs:
``docs/proofs/accounting.md``, sections 1 to 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from shuffle_plugins.accounting.losses import (
    COARSE,
    FINE,
    LOSS_ERROR,
    STORED_CELLS,
    BoundKind,
    PrivacyLossDistribution,
    Resolution,
    condense,
    deviation_of,
    finite_losses,
)
from shuffle_plugins.accounting.numerics.sums import TAIL, Cells, Floats, binomial_between, window_ends
from shuffle_plugins.accounting.pairs.bits import BitPair, BitResponse, bit_losses
from shuffle_plugins.accounting.pairs.others import MixPair, OthersPair, SpreadPair, others_losses
from shuffle_plugins.accounting.pairs.reports import Atoms, Blanket, Form, RecordTypes, two_level_atoms
from shuffle_plugins.accounting.pairs.slots import SlotPair, slot_losses, slot_losses_from_below
from shuffle_plugins.accounting.terms import CohortDraw, Sampling

Outcomes = tuple[Floats, Floats, Floats, float]
"""Losses, P and Q masses, and a bound on the P mass of outcomes left out."""

Pair = SlotPair | BitPair | OthersPair

_INNER_PLACES = (-4.0, -3.0, -2.25, -1.5, -0.75, 0.0, 0.75, 1.5, 2.25, 3.5)
_PLACES = (
    (1e5, (-10.5, -9.25, -8.0, -7.0, -6.0, -5.0, *_INNER_PLACES)),
    (1e7, (-9.0, -7.5, -6.25, -5.0, *_INNER_PLACES)),
    (math.inf, (-6.0, -4.0, -2.5, -1.25, 0.0, 1.25, 2.5)),
)
"""Edges of buckets of a random cohort's sizes, in deviations, of cohorts up to so large."""
_LOWER_PLACES = (-8.5, -7.5, -6.5, -5.5, -4.5, -3.5, 4.75, 6.5)
"""Further ones where a bucket counts as its largest size: there the smallest cohorts tell most."""
_NOBODY_HIDES = 60.0  # ε0 above which not one blanket report of 10^12 is to be expected
_MANY_BLANKETS, _CLEARLY_LESS = 3e3, 0.97  # blanket reports, and a ratio of variances


@dataclass(frozen=True, kw_only=True)
class PairMixture:
    """A pair whose component is public. Masses of components may fall short of one by ``dropped``.

    Upper bounds charge ``dropped`` to δ, lower ones lose it.
    """

    pairs: tuple[Pair, ...]
    masses: tuple[float, ...] = (1.0,)
    dropped: float = 0.0

    @property
    def information(self) -> float:
        """Mean of the components' information."""
        return math.fsum(m * pair.information for m, pair in zip(self.masses, self.pairs, strict=True))

    def share_of(self, *kinds: type) -> float:
        """Probability of the components of some kinds."""
        return math.fsum(
            mass for mass, pair in zip(self.masses, self.pairs, strict=True) if isinstance(pair, kinds)
        )


def upper_pair(blanket: Blanket, draw: CohortDraw) -> PairMixture:
    """The dominating pair of a round whose reports have this blanket."""
    return _placed(draw, partial(blanket_pair, blanket), upper=True)


def upper_pairs(
    blanket: Blanket, draw: CohortDraw, *, mechanism: str, channel_fixed: bool
) -> tuple[PairMixture, ...]:
    """The dominating pairs of a round, of which each may be the smaller one somewhere.

    What others hold is used only if the channel is fixed: one serves all reports that a report hides among.
    """
    fixed = channel_fixed and not draw.spans_batches
    if fixed and (spread := _spread_pairs(blanket, draw)):
        plain = replace(blanket, information_bound=None)
        return *upper_pairs(plain, draw, mechanism=mechanism, channel_fixed=True), spread
    common = upper_pair(blanket, draw)
    others = _mixes(blanket, draw, mechanism=mechanism) if fixed else None
    if others is None:
        return (common,)
    # Where many blanket reports are expected, these fall short of their mean by little, and only by as much
    # can the blanket's pair be the smaller one anywhere (Lemma 10).
    alone = others.information <= _CLEARLY_LESS * common.information and all(
        isinstance(pair, OthersPair) and pair.population * math.exp(-pair.local_epsilon) >= _MANY_BLANKETS
        for pair in others.pairs
    )
    return (others,) if alone else (common, others)


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
    three = len(others.types) > 2  # mixes of which take longer
    found = _placed(draw, partial(_mix_pair, blanket, others), upper=True, few=three)
    return found if found.share_of(MixPair, BitPair) > 0.5 else None


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
        if blanket.others:
            types = MixPair(
                local_epsilon=blanket.local_epsilon, others=blanket.others.thinned(participation), **place
            )
            known.append(types.information)
        return spread if spread.helps(min(known)) else common

    found = _placed(draw, build, upper=True, few=True)
    return found if found.share_of(SpreadPair) > 0.5 else None


def _mix_pair(
    blanket: Blanket, others: RecordTypes, *, population: int, slots: int, participation: float
) -> Pair:
    """The pair of mixes, the blanket's where it is as good, or that of a small count to which all report."""
    counted = blanket.form is Form.BIT and slots == population and participation == 1
    if counted and population * others.common < _MANY_BLANKETS:
        bit = BitResponse.symmetric(blanket.local_epsilon)
        # 256: groups of datasets: a fraction of a second
        return BitPair(response=bit, others=slots - 1, buckets=256)
    common = blanket_pair(blanket, population=population, slots=slots, participation=participation)
    loud = blanket.local_epsilon > _NOBODY_HIDES
    # 0.2: reports expected of what all have in common; below, the blanket is as good
    if loud or slots * participation * others.common < 0.2:
        return common
    mixes = MixPair(
        local_epsilon=blanket.local_epsilon,
        others=others.thinned(participation),
        population=population,
        slots=slots,
    )
    return mixes if mixes.helps(common.information) else common


def lower_pairs(blanket: Blanket, draw: CohortDraw, *, mechanism: str) -> dict[str, PairMixture]:
    """Exact pairs of real instances of a round, by name: what an adversary really can learn.

    Empty if the blanket is itself only a bound and names no third record, and for single passes, whose cost
    is attained only before those who know the batches. The generic worst case has two instances: binary
    response with everybody else at 0, and ternary response with everybody else at the third value.
    """
    if draw.sampling is Sampling.SINGLE_PASS:
        return {}
    if draw.sampling is Sampling.EPOCH:
        # One input per record for the whole epoch, so that the order tells nothing, and a loader that drops
        # a last batch that is not full.
        cohort = int(draw.cohort)
        reports = cohort if draw.sees_cohort else draw.population // cohort * cohort
        draw = replace(draw, sampling=Sampling.WITHOUT_REPLACEMENT, cohort=reports)
    return {
        name: _placed(draw, partial(alike_pair, atoms), upper=False)
        for name, atoms in alike_atoms(blanket, mechanism=mechanism).items()
    }


def alike_atoms(blanket: Blanket, *, mechanism: str) -> dict[str, Atoms]:
    """What one report tells in datasets in which all others are alike, by the names of :func:`lower_pairs`.

    Reports are read as "for x", "for x'" or neither. If the others hold a third record, it makes the first
    two no likelier than the blanket does, in K-ary randomized response 1/(e + K − 1) each; or they hold x'.
    """
    local_epsilon = blanket.local_epsilon
    generic = mechanism == "generic"
    if generic:
        blanket = Blanket.generic(local_epsilon)
    outside = 1 / (math.exp(local_epsilon) + 2) if generic else blanket.outside
    found: dict[str, Atoms] = {}
    if outside > 0:
        name = "3-RR instance" if generic else f"{mechanism} instance, third record"
        found[name] = two_level_atoms(
            local_epsilon=local_epsilon, shares={(1, 0, 0): outside, (0, 1, 0): outside}
        )
    if blanket.exact:
        differing = blanket.differing
        name = f"{'binary-RR' if generic else mechanism} instance"
        found[name] = two_level_atoms(
            local_epsilon=local_epsilon, shares={(1, 0, 0): differing, (0, 1, 1): differing}
        )
    for number, atoms in enumerate(blanket.instances):
        name = f"{mechanism} instance, all others alike" + (f" ({number + 1})" if number else "")
        found[name] = atoms
    return found


def _placed(draw: CohortDraw, build: Callable[..., Pair], *, upper: bool, few: bool = False) -> PairMixture:
    """A pair under the sampling and before the adversary of a round."""
    population, sampling = draw.population, draw.sampling
    slots, participation = population, 1.0
    if sampling is Sampling.POISSON or (sampling is Sampling.CHECK_IN and draw.sees_cohort):
        if draw.sees_cohort:
            return _random_cohorts(draw, build, upper=upper, few=few)
        participation = draw.sampling_rate
    elif not draw.spans_batches:
        slots = int(draw.cohort)
        if draw.sees_cohort or sampling in (Sampling.FULL, Sampling.SINGLE_PASS, Sampling.EPOCH):
            population = slots
    return PairMixture(pairs=(build(population=population, slots=slots, participation=participation),))


def _random_cohorts(draw: CohortDraw, build: Callable[..., Pair], *, upper: bool, few: bool) -> PairMixture:
    """Poisson cohorts, against a server: the client took part; the cohort is 1 + Bin(n − 1, γ), public."""
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
    """Where buckets of ``size`` cohort sizes begin and end: close around the mean, wide in the tails."""
    # 24: of a cohort, each of which is accounted by itself
    if size <= 24:
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


def blanket_pair(blanket: Blanket, *, population: int, slots: int, participation: float) -> SlotPair:
    """The pair that dominates ``slots`` clients who each report with probability ``participation``.

    ``slots`` = k, ``participation`` = 1 is k-of-n sampling (k = n: everybody takes part); ``slots`` = n,
    ``participation`` = γ is Poisson sampling. A report weighs its likelihoods under both records over the
    blanket's; one that is not of the blanket weighs nothing, and a client that sends none adds nothing.
    """
    # 40: reports, up to which all outcomes of a round are listed, whatever ε0
    if blanket.local_epsilon > _NOBODY_HIDES and slots > 40 and not blanket.tail:
        return _alone(blanket.local_epsilon, share=slots / population, participation=participation)
    # 30.0: ε0 above which reports of weights (e, e) are too rare to keep their digits in a sum
    if blanket.high > 0 and blanket.local_epsilon > 30.0:
        blanket = _without_high(blanket)
    weak = blanket.weak - 1.0
    strong, gain = weak + blanket.difference, math.expm1(blanket.local_epsilon)
    one_record = [(strong, weak, blanket.differing), *((r - 1.0, 0.0, mass) for r, mass in blanket.edges)]
    atoms = [(u, v, participation * mass) for u, v, mass in one_record]
    atoms += [(v, u, mass) for u, v, mass in atoms]
    atoms.append((gain, gain, participation * blanket.high))
    atoms.append((-1.0, -1.0, participation * max(0.0, 1.0 - blanket.mass)))
    rest = 1.0 - math.fsum(mass for _, _, mass in atoms)
    atoms.append((0.0, 0.0, max(rest, 0.0)))
    return SlotPair(
        population=population,
        slots=slots,
        atoms=tuple(atom for atom in atoms if atom[2] > 0),
        lost=participation * blanket.tail,
    )


def _alone(local_epsilon: float, *, share: float, participation: float) -> SlotPair:
    """A report that nobody hides, of binary response: what it tells is known to be another's, or of none."""
    mass = 1 / (math.exp(local_epsilon) + 1)
    gain, rest = share * math.expm1(local_epsilon), -share
    if participation < 1:  # who reports is known
        gain, rest, mass = math.expm1(local_epsilon), -1.0, participation * mass
    told = 2 * mass
    silent = participation - told
    atoms = ((gain, 0.0, mass), (0.0, gain, mass), (rest, rest, silent), (0.0, 0.0, 1 - participation))
    return SlotPair(population=1, slots=1, atoms=tuple(atom for atom in atoms if atom[2] > 0))


def _without_high(blanket: Blanket) -> Blanket:
    """Trade (e, e) reports, with (1, 1) and empty ones, for (e, 1) and (1, e) at equal mean."""
    e = math.exp(blanket.local_epsilon)
    paired = min(blanket.high, blanket.low)
    return replace(
        blanket,
        differing=blanket.differing + paired + (blanket.high - paired) * e / (e + 1),
        low=blanket.low - paired,
        high=0.0,
        outside=0.0,
        exact=False,
    )


def alike_pair(atoms: Atoms, *, population: int, slots: int, participation: float) -> SlotPair:
    """Exact pair when all other clients hold one record, which gives a report these gains. A lower bound."""
    present = tuple((u, v, participation * mass) for u, v, mass in atoms)
    absent = ((0.0, 0.0, 1.0 - participation),) if participation < 1 else ()
    return SlotPair(population=population, slots=slots, atoms=(*present, *absent))


@lru_cache(maxsize=1024)  # mechanisms of one law, and both adversaries where all take part, have equal pairs
def pair_losses(
    mixture: PairMixture, *, kind: BoundKind, resolution: Resolution = FINE
) -> PrivacyLossDistribution:
    """The privacy losses of a pair, from above or from below."""
    parts = _parts(mixture, kind=kind, resolution=resolution)
    loss = np.concatenate([part[0] for part in parts])
    p, q = (
        np.concatenate([mass * part[i] for mass, part in zip(mixture.masses, parts, strict=True)])
        for i in (1, 2)
    )
    missing = math.fsum(mass * part[3] for mass, part in zip(mixture.masses, parts, strict=True))
    missing += mixture.dropped * max(pair.largest_ratio for pair in mixture.pairs)
    loss, p, q, certain = _finite(loss, p, q)
    if kind == "upper":
        missing += certain
    # 1e-9: more than rounding can take off all masses together: then outcomes are missing
    if kind == "upper" and not p.sum() + missing > 1 - 1e-9:
        raise ArithmeticError(f"the outcomes of {mixture} do not make up a probability law")
    if len(p) == 0:
        raise ArithmeticError(f"no outcome of {mixture} is within floating-point range")
    return finite_losses(
        loss,
        p,
        q,
        missing=missing,
        kind=kind,
        resolution=resolution,
        symmetric=not any(pair.one_sided for pair in mixture.pairs),
        loss_error=LOSS_ERROR * float(np.abs(loss).max()),
    )


def _finite(loss: Floats, p: Floats, q: Floats) -> Outcomes:
    """Outcomes of masses and a loss in floating-point range, and the P mass of the others."""
    keep = (p > 0) & (q > 0)
    return loss[keep], p[keep], q[keep], float(p[~keep].sum())


def _parts(mixture: PairMixture, *, kind: BoundKind, resolution: Resolution) -> list[Outcomes]:
    """Losses, masses and left-out mass of each component of the mixture."""
    pairs = mixture.pairs
    # 3: cells of a component's outcomes to one of the whole law's
    cells = 3 * STORED_CELLS[kind] * resolution.cells
    if len(pairs) == 1:
        return [outcomes_of(pairs[0], kind=kind, tolerance=resolution.tolerance)]
    tolerance = max(resolution.tolerance, FINE.tolerance)  # the choice of components is coarser than that
    # 48: one of so many of equal mass is resolved finely
    most = max(len(pairs), 48)
    parts = []
    for mass, pair in zip(mixture.masses, pairs, strict=True):
        allowed = tolerance / max(most * mass, tolerance / max(tolerance, COARSE.tolerance))
        if isinstance(pair, MixPair):  # each takes a tenth of a second at this tolerance
            allowed = max(allowed, COARSE.tolerance)
        loss, p, q, left_out = outcomes_of(pair, kind=kind, tolerance=max(tolerance, allowed), mass=mass)
        loss, p, q, certain = _finite(loss, p, q)
        if len(p):
            loss, p, q = condense(loss, p, q, cell=deviation_of(loss, p) / cells, kind=kind)
        parts.append((loss, p, q, left_out + certain * (kind == "upper")))
    return parts


def outcomes_of(pair: Pair, *, kind: BoundKind, tolerance: float, mass: float = 1.0) -> Outcomes:
    """A pair's outcomes; ``mass`` as of :func:`others_losses`."""
    if isinstance(pair, SlotPair):
        if kind == "lower":
            return (*slot_losses_from_below(pair), 0.0)
        return slot_losses(pair, tolerance=tolerance)
    if kind == "lower":
        raise ValueError("envelopes over what others hold are bounded from above only")
    if isinstance(pair, BitPair):
        return bit_losses(pair)
    return others_losses(pair, tolerance=tolerance, mass=mass)
