r"""Pairs in which client 1's report is read against the others' own laws.

With r, r' client 1's laws under its two records, and n clients of whom k report,

.. math::

    H_E ≤ \mathbb{E}\Big[\Big(1 - E + \frac1D \sum_i \Big(\frac{r - E r'}{R_{z_i}} - (1 - E)\Big)\Big)_+\Big],

the sum over the k reports, each ratio taken at report i. D is n and a little more: it depends on *u*, a
random number in [0, 1] that the adversary may know, the weight left to what every record could have sent.
Bounds for u in a few buckets are added up. Proofs: ``docs/proofs/accounting.md``, sections 3b to 3d.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from typing_extensions import override

from shuffle_plugins.accounting.losses import hull_outcomes, joined, profile_points
from shuffle_plugins.accounting.numerics.normal_sums import BoundedTerms, log_chernoff, positive_part_bound
from shuffle_plugins.accounting.numerics.sums import Floats, Law, MixedSums
from shuffle_plugins.accounting.pairs.reports import Atoms, InformationBound, RecordTypes, information

_COMMON = 0.02  # probability of a bucket of shares from which every point of the profile is computed
_SCOUTS = 32  # points of a first rough profile
_ROUGH = 0.014  # smoothing of rough profiles, as a share of the sum's variance
_FEW = 0.25  # smoothing: the variance of so many reports, …
_MOST_SMOOTHED = 5e-3  # … as a share of the sum's at most this
_FEW_SLOTS = 256  # up to which all sums are smoothed little
SHARES = (0.6, 1.5, 3.0, 6.0, 14.0, 72.0)
"""Ends of buckets of 1 − u, in units of its mean."""
_NO_MATTER = 2e-4  # relative change of the others' laws within a bucket that needs no finer one


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """An interval of u, represented by the values at its end that give the largest bound.

    Attributes:
        mass: the probability that u lies in the interval.
        near, far: 1 − u is between them.
    """

    mass: float
    near: float
    far: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OthersPair(ABC):
    """The largest profile that a round has for any dataset of the other clients; symmetric in P and Q.

    All clients use one randomizer, which is chosen before the round and not by reports of it.

    Attributes:
        local_epsilon: ε0.
        population: n.
        slots: k, reports that are seen: those of a uniform subset of the clients. Under Poisson sampling n,
            as each client may report.
    """

    local_epsilon: float
    population: int
    slots: int

    @property
    def one_sided(self) -> bool:
        """False: with every dataset the one with the two records exchanged counts too."""
        return False

    @property
    def largest_ratio(self) -> float:
        """A bound on the ratio of the masses of P and Q at every outcome."""
        return math.exp(self.largest_loss)

    @property
    def largest_loss(self) -> float:
        """A bound on the loss of every outcome."""
        return math.log1p(self.slots / self.population * math.expm1(self.local_epsilon))

    @property
    @abstractmethod
    def information(self) -> float:
        """Variance of one round's privacy loss, by a formula that holds where losses are small."""

    @property
    @abstractmethod
    def common(self) -> float:
        """What all records' laws have in common, in (0, 1]."""

    @abstractmethod
    def scaled_profile(self, bucket: Bucket, growth: Floats, *, share: float) -> Floats:
        """n times the largest profile for all datasets of the others at E = 1 + ``growth``, given a bucket.

        ``share`` is the variance of the Gaussian that smooths a sum, over the sum's own.
        """

    @abstractmethod
    def log_scaled_profile(self, bucket: Bucket, growth: Floats) -> Floats:
        """Chernoff's bound on the logarithm of the same."""

    def profile(self, bucket: Bucket, losses: Floats, *, share: float) -> Floats:
        """The largest profile for all datasets of the others at E = e^loss ≥ 1, given a bucket."""
        return self.at_most(
            self.scaled_profile(bucket, np.expm1(losses), share=share) / self.population, losses
        )

    def log_profile(self, bucket: Bucket, losses: Floats) -> Floats:
        """Chernoff's bound on its logarithm."""
        return self.log_scaled_profile(bucket, np.expm1(losses)) - math.log(self.population)

    def at_most(self, found: Floats, losses: Floats) -> Floats:
        """Bounds on a profile, less what its being one forbids: it falls, and it ends."""
        found = np.minimum(found * (1 + 1e-14), 1.0)
        return np.minimum.accumulate(np.where(losses >= self.largest_loss, 0.0, found))

    def buckets(self) -> tuple[list[Bucket], float]:
        """Buckets of u, and the probability of u in none of them."""
        unit, rest = 1 / max(self.population * self.common, 1.0), 1 - self.common
        # 0.01: of a bucket, nevertheless
        first = min(_NO_MATTER / max(rest, _NO_MATTER), 0.01)
        ends = [0.0, *(min(max(share * unit, first), 0.999) for share in SHARES)]
        found = []
        for near, far in pairwise(ends):
            if far > near:
                after, beyond = self._beyond(near), self._beyond(far)
                mass = max(after - beyond, 0.0) + 1e-13 * after  # rounded up
                found.append(Bucket(mass=mass, near=near, far=far))
        return found, self._beyond(ends[-1])

    def _beyond(self, gap: float) -> float:
        """The probability that 1 − u is at least that."""
        return (1 - gap) * math.exp((self.population - 1) * math.log1p(-self.common * gap))

    def kept(self, bucket: Bucket) -> float:
        """The smallest share of the law of another's report that divides client 1's likelihood."""
        return (1 - bucket.far) / (1 - self.common + self.common * (1 - bucket.far))

    def own_weight(self, bucket: Bucket) -> float:
        """n times the weight of the report in client 1's place, which the proof's client 0 sends."""
        return self.population / (1 + (self.population - 1) * self.common * self.kept(bucket))

    @property
    def weight(self) -> float:
        """n times the weight of each report of another client."""
        return self.population * self.common / (1 + (self.population - 1) * self.common)


def others_losses(
    pair: OthersPair, *, tolerance: float, mass: float = 1.0
) -> tuple[Floats, Floats, Floats, float]:
    """Losses, P and Q masses of a finite pair that dominates the round, and the P mass in none of them.

    Args:
        pair: of the round.
        tolerance: by how much the variance of the loss may exceed the pair's, as a share of it, in (0, 0.1];
            at least 1.5e-3 is taken.
        mass: probability of the round, one of several of which one takes place. Buckets that are rare
            together with it are resolved roughly, and where few reports are in common a sum is smoothed more.
    """
    buckets, left_out = pair.buckets()
    # 1.5e-3: tolerance; what is finer takes longer and gains next to nothing
    tolerance = max(tolerance, 1.5e-3)
    last, deviation = _last_loss(pair, buckets), math.sqrt(pair.information)
    # 0.1: deviation of the loss over the largest loss, up to which √information stands for it
    if deviation > 0.1 * pair.largest_loss:
        scouts = np.union1d(np.linspace(0.0, last, _SCOUTS), np.geomspace(1e-3 * last, last, _SCOUTS))
        rough = hull_outcomes(scouts, _profile(pair, buckets, scouts, smoothing=_ROUGH, mass=mass))
        deviation = math.sqrt(float(((rough.p + rough.q) * rough.loss**2).sum()))
    if deviation > 0:
        step = deviation * math.sqrt(3 * tolerance)
        # 12.0: deviations of the loss that points cover evenly
        losses = profile_points(last, step=step, uniform=12.0 * deviation)
        few = min(_FEW / pair.slots, _MOST_SMOOTHED)
        if mass < 1 and pair.slots > _FEW_SLOTS:  # sums of few telling reports have jumps, which take long
            few = min(_FEW / (pair.slots * pair.common), _ROUGH)
        smoothing = tolerance / (8 if mass < 1 else 3) + few
        right = hull_outcomes(losses, _profile(pair, buckets, losses, smoothing=smoothing, mass=mass))
    else:
        right = rough
    return *joined(right, right, total=1.0), right.beyond + left_out


def _profile(
    pair: OthersPair, buckets: list[Bucket], losses: Floats, *, smoothing: float, mass: float = 1.0
) -> Floats:
    """Upper bounds on H_E at E = e^loss ≥ 1, shape (losses,)."""
    total = np.zeros(len(losses))
    # 4: of less probable buckets one point of the profile in so many is computed
    some = np.unique(np.append(np.arange(0, len(losses), 4), len(losses) - 1))
    for bucket in buckets:
        if mass * bucket.mass > _COMMON:
            total += bucket.mass * pair.profile(bucket, losses, share=smoothing)
            continue
        # Where a bucket is rare a rougher value does. In E it is convex, so a chord is above it.
        rough = _ROUGH
        if bucket.mass > _COMMON:
            # 2.0: smoothing where a bucket is rare only as its round is: the variance of so many reports
            rough = min(max(2.0 / (pair.slots * pair.common), _MOST_SMOOTHED), _ROUGH)
        few = pair.profile(bucket, losses[some], share=max(smoothing, rough))
        total += bucket.mass * np.interp(np.expm1(losses), np.expm1(losses[some]), few)
    return np.minimum.accumulate(np.minimum(total * (1 + 1e-12), 1.0))


def _last_loss(pair: OthersPair, buckets: list[Bucket]) -> float:
    """Where the profile has ended: at the largest loss, or with less than 1e-40 left of each bucket's."""
    # 5.0: deviations of the loss; no profile ends before
    end, first = pair.largest_loss, 5.0 * math.sqrt(pair.information)
    if end <= first:
        return end
    losses = np.geomspace(first, end, _SCOUTS)
    logs = [math.log(max(each.mass, 1e-300)) + pair.log_profile(each, losses) for each in buckets]
    bounds = np.max(logs, axis=0)
    # math.log(1e-40): of a δ at which a profile may end
    ended = np.flatnonzero(bounds < math.log(1e-40))
    return float(losses[ended[0]]) if len(ended) else end


@dataclass(frozen=True, kw_only=True, slots=True)
class MixPair(OthersPair):
    """The envelope, over all datasets, of a round whose clients share a randomizer; symmetric in P and Q.

    Attributes:
        others: types that cover the records of all clients; thinned under Poisson sampling.
    """

    others: RecordTypes

    @property
    @override
    def information(self) -> float:
        return self.slots * self.others.information / self.population**2

    @property
    @override
    def common(self) -> float:
        return self.others.common

    @property
    def stands_in(self) -> bool:
        """Whether a report that may be in client 0's place is read against what all types have in common.

        That is less than one more report of any type, if most clients report.
        """
        hidden = 1 - self.slots / self.population
        return 0 < hidden * information(self.others.shared) < self.others.information * self.others.common

    def helps(self, other: float) -> bool:
        """Whether it is expected to be clearly smaller than a pair whose ``information`` is ``other``."""
        # What client 1's own report costs, and smoothing.
        # 0.4: reports whose variance smooths a sum, at least
        extra = self.others.excess / self.population + 0.4 / self.slots
        # 0.998: of the variance, for which it is worth the time
        return self.information * (1 + extra) < 0.998 * other

    @override
    def scaled_profile(self, bucket: Bucket, growth: Floats, *, share: float) -> Floats:
        return self.sums(bucket, growth).largest(share)

    @override
    def log_scaled_profile(self, bucket: Bucket, growth: Floats) -> Floats:
        return self.sums(bucket, growth).log_bound()

    def sums(self, bucket: Bucket, growth: Floats) -> MixedSums:
        """Those of section 3c of the proofs at E = 1 + ``growth``, shape (losses,)."""
        kept, weight = self.kept(bucket), self.weight
        types = [mixed_law(each, growth, kept) for each in self.others.types]
        values, masses = mixed_law(self.others.shared, growth, 1.0)
        visible, trials = self.slots / self.population, min(self.slots, self.population - 1)
        own = self.own_weight(bucket) * values, visible * masses
        if self.stands_in:
            values, masses = mixed_law(self.others.shared, growth, kept * self.common)
            own = (
                np.column_stack([own[0], weight * values]),
                np.append(own[1], (1 - visible) * masses),
            )
            trials -= 1
        return MixedSums(
            shift=-self.population * growth,
            types=[(weight * values, masses) for values, masses in types],
            trials=trials,
            further=[(own, 1)],
        )


def mixed_law(atoms: Atoms, growth: Floats, kept: float) -> Law:
    """What a report adds, less its mean, if it is read against that share of its law (Lemma 10)."""
    u, v, mass = np.array(atoms).T
    values = ((u - v) - growth[:, None] * (v + (1 - kept))) / kept
    if kept == 1:
        return values, mass
    return np.column_stack([values, growth]), np.append(kept * mass, 1 - kept)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpreadPair(OthersPair):
    """The round of a randomizer of which only ε0 and an :class:`InformationBound` are known.

    Attributes:
        information_bound: upper bounds on what one report can tell.
        participation: probability with which the report in a slot is seen: γ under Poisson sampling, else 1.
    """

    information_bound: InformationBound
    participation: float

    @property
    @override
    def information(self) -> float:
        return self.slots * self.participation * self.information_bound.information / self.population**2

    def helps(self, other: float) -> bool:
        """Whether it is expected to be clearly smaller than a pair whose ``information`` is ``other``."""
        # Above so large an ε0 no round has enough reports.
        if self.local_epsilon > 30.0:
            return False
        reports = self.slots * self.participation
        # A sum that is not quite normal adds a share of this pair's variance, taken to be half of 1/√s; s
        # is the sum's variance over the square of its largest term. The bound is valid whatever they are.
        steady = reports * self.information_bound.information / math.expm1(self.local_epsilon) ** 2
        return self.information * (1 + 0.5 / math.sqrt(steady)) < 0.97 * other

    @property
    @override
    def common(self) -> float:
        return self.information_bound.common

    @override
    def scaled_profile(self, bucket: Bucket, growth: Floats, *, share: float) -> Floats:
        shift, each, own = self._terms(bucket, growth)
        return positive_part_bound(shift, each=each, own=own)

    @override
    def log_scaled_profile(self, bucket: Bucket, growth: Floats) -> Floats:
        shift, each, own = self._terms(bucket, growth)
        return log_chernoff(shift, each=each, own=own)

    def _terms(self, bucket: Bucket, growth: Floats) -> tuple[Floats, BoundedTerms, BoundedTerms]:
        """What n times the profile is bounded by: E[(x + all terms)₊]."""
        known, e, n = self.information_bound, math.exp(self.local_epsilon), self.population
        kept, weight, own_weight = self.kept(bucket), self.weight, self.own_weight(bucket)
        factor = 1 + growth  # E
        # With r = R_x and r' = R_x': r − E·r' + (E − 1)·R_z = E·(r̃ − r'), r̃ a mixture of r and R_z. So the
        # variance of (r − E·r')/R_z under R_z is at most E²·I.
        spread = known.information * factor**2
        each = BoundedTerms(
            count=min(self.slots, n - 1),
            variance=self.participation * weight**2 * ((spread + growth**2) / kept - growth**2),
            above=weight * (np.maximum(e - factor, 0.0) / kept + growth),
            below=weight * np.maximum((factor * e - 1) / kept - growth, 0.0),
        )
        top = known.heaviest  # r/w and r'/w lie in [top/e, top]
        above = np.maximum(top - factor * top / e + growth, 1e-300)
        below = np.maximum(factor * top - top / e - growth, 1e-300)
        own = BoundedTerms(
            count=1,
            variance=self.participation * self.slots / n * own_weight**2 * above * below,
            above=own_weight * above,
            below=own_weight * below,
        )
        return -n * growth, each, own
