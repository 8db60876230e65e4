r"""Pairs in which client 1's report is read against the others' own laws.

The *profile* of a pair (P, Q) is H_E = Σ (P − E·Q)₊ for E = e^ε: the δ at ε. Under the blanket pair a report
of another client hides only by the part that every record could have sent. Here it hides by all of its law
R_z, where z is that client's record: with r, r' client 1's laws under its two records, and n clients of whom
k report,

.. math::

    H_E ≤ \mathbb{E}\Big[\Big(1 - E + \frac1D \sum_i \Big(\frac{r - E r'}{R_{z_i}} - (1 - E)\Big)\Big)_+\Big],

the mean over the k reports, each ratio taken at report i; D is n and a little more. It is bounded for all
datasets of the others, by what is known of their laws: a few extreme ones, the *types*, that cover all
(:class:`MixPair`), or how much one report tells at most (:class:`SpreadPair`). D depends on *u*, a random
number in [0, 1] that the adversary may know: the weight that is left to the part of the others' laws that
every record could have sent. Bounds for u in a few buckets are added up, each times the bucket's probability.
Proofs: ``docs/proofs/accounting.md``, sections 3b to 3d.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from typing_extensions import override

from shuffle_plugins.accounting.losses.distribution import hull_outcomes, joined, profile_points
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.mixed_sums import Law, MixedSums
from shuffle_plugins.accounting.numerics.normal_sums import BoundedTerms, log_chernoff, positive_part_bound
from shuffle_plugins.accounting.pairs.reports import Atoms, InformationBound, RecordTypes, information

_FINEST = 1.5e-3  # tolerance; what is finer takes longer and gains next to nothing
_COMMON = 0.02  # probability of a bucket of shares from which every point of the profile is computed
_RARE_STEP = 4  # of less probable buckets one point of the profile in so many is computed
_LESS_ROUGH = 2.0  # smoothing where a bucket is rare only as its round is: the variance of so many reports
_FAR_APART = 6  # points at which a rare bucket is looked at first
_SCOUTS = 32  # points of a first rough profile
_LITTLE = 1e-4  # largest relative error that a rare bucket's cheap bound may add to the profile, …
_LITTLE_OF_ROUGH = 0.01  # … and to the first, rough one
_NEGLIGIBLE = 1e-33  # of a δ that is one of up to 10^9 rounds'
_ROUGH = 0.014  # smoothing of rough profiles, as a share of the sum's variance
_FEW = 0.25  # smoothing: the variance of so many reports, …
_MOST_SMOOTHED = 5e-3  # … as a share of the sum's at most this
_FEW_SLOTS = 256  # up to which all sums are smoothed little
_SMALL = 0.1  # deviation of the loss over the largest loss, up to which √information stands for it
_NO_END = 5.0  # deviations of the loss; no profile ends before
_UNIFORM_REACH = 12.0  # deviations of the loss that points cover evenly
_LOG_NEGLIGIBLE = math.log(1e-40)  # of a δ at which a profile may end
_SHARES = (0.6, 1.5, 3.0, 6.0, 14.0, 72.0)  # ends of buckets of 1 − u, in units of its mean
_NO_MATTER = 2e-4  # relative change of the others' laws within a bucket that needs no finer one
_WIDEST = 0.01  # of a bucket, nevertheless


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """An interval of u, represented by the values at its end that give the largest bound.

    In the sum that bounds the profile the k reports count with two different weights. One of them stands in
    the place that client 1's report would have: the proof invents a client 0 to send it. The k − 1 others are
    the reports of the other clients.

    Attributes:
        mass: the probability that u lies in the interval.
        kept: the smallest share, for u in the interval, that is left of the law of another client's report
            when client 1's likelihood is divided by it.
        own: n times the weight of the report in client 1's place.
        others: n times the weight of each report of another client.
    """

    mass: float
    kept: float
    own: float
    others: float


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
        return 1.0 + self.slots / self.population * math.expm1(self.local_epsilon)

    @property
    def largest_loss(self) -> float:
        """Logarithm of :attr:`largest_ratio`, accurate where that is close to one."""
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

        Args:
            bucket: that u is in.
            growth: E − 1, increasing, shape (losses,).
            share: variance of the Gaussian that smooths a sum, over the sum's own, at most.
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
        n, common = self.population, self.common
        unit, rest = 1 / max(n * common, 1.0), 1 - common
        first = min(_NO_MATTER / max(rest, _NO_MATTER), _WIDEST)
        ends = [0.0, *(min(max(share * unit, first), 0.999) for share in _SHARES)]

        def below(gap: float) -> float:
            return (1 - gap) * math.exp((n - 1) * math.log1p(-common * gap))

        found = []
        for near, far in pairwise(ends):
            if far <= near:
                continue
            kept = rest + common * (1 - far)
            found.append(
                Bucket(
                    mass=max(below(near) - below(far), 0.0) + 1e-13 * below(near),  # rounded up
                    kept=(1 - far) / kept,
                    own=n / (1 + (n - 1) * common * (1 - far) / kept),
                    others=n * common / (1 + (n - 1) * common),
                )
            )
        return found, below(ends[-1])


def others_losses(
    pair: OthersPair,
    *,
    tolerance: float,
    mass: float = 1.0,
    beside: Callable[[Floats], Floats] | None = None,
) -> tuple[Floats, Floats, Floats, float]:
    """A pair with finitely many outcomes that dominates the round.

    Args:
        pair: of the round.
        tolerance: by how much the variance of the loss may exceed the pair's, as a share of it, in (0, 0.1];
            at least 1.5e-3 is taken.
        mass: probability of the round, one of several of which one takes place. Buckets that are rare
            together with it are resolved roughly, and where few reports are in common a sum is smoothed more.
        beside: the profile, at losses, of other such rounds, times their probabilities. What is next to
            nothing beside it is only bounded roughly.

    Returns:
        Losses log(P/Q), P masses and Q masses of the outcomes, shape (outcomes,) each, and the P mass that is
        in none of them.
    """
    buckets, left_out = pair.buckets()

    def profile(losses: Floats, smoothing: float, *, little: float) -> Floats:
        others = 0.0 if beside is None else beside(losses) / mass
        return _profile(pair, buckets, losses, smoothing=smoothing, mass=mass, beside=others, little=little)

    tolerance = max(tolerance, _FINEST)
    last, deviation = _last_loss(pair, buckets), math.sqrt(pair.information)
    if deviation > _SMALL * pair.largest_loss:
        scouts = np.union1d(np.linspace(0.0, last, _SCOUTS), np.geomspace(1e-3 * last, last, _SCOUTS))
        rough = hull_outcomes(scouts, profile(scouts, _ROUGH, little=_LITTLE_OF_ROUGH if mass < 1 else 0.0))
        deviation = math.sqrt(float(((rough.p + rough.q) * rough.loss**2).sum()))
    if deviation > 0:
        step = deviation * math.sqrt(3 * tolerance)
        losses = profile_points(last, step=step, uniform=_UNIFORM_REACH * deviation)
        few = min(_FEW / pair.slots, _MOST_SMOOTHED)
        if mass < 1 and pair.slots > _FEW_SLOTS:  # sums of few telling reports have jumps, which take long
            few = min(_FEW / (pair.slots * pair.common), _ROUGH)
        smoothing = tolerance / (8 if mass < 1 else 3) + few
        right = hull_outcomes(losses, profile(losses, smoothing, little=_LITTLE if mass < 1 else 0.0))
    else:
        right = rough
    return *joined(right, right, total=1.0), right.beyond + left_out


def _profile(
    pair: OthersPair,
    buckets: list[Bucket],
    losses: Floats,
    *,
    smoothing: float,
    mass: float = 1.0,
    beside: float | Floats = 0.0,
    little: float = 0.0,
) -> Floats:
    """Upper bounds on H_E at E = e^loss ≥ 1, shape (losses,)."""
    total = np.zeros(len(losses))
    some = np.unique(np.append(np.arange(0, len(losses), _RARE_STEP), len(losses) - 1))
    for bucket in sorted(buckets, key=lambda each: -each.mass):
        if mass * bucket.mass > _COMMON:
            total += bucket.mass * pair.profile(bucket, losses, share=smoothing)
            continue
        # Where a bucket is rare a rougher value does. In E it is convex, so a chord is above it.
        rough = _ROUGH
        if bucket.mass > _COMMON:
            rough = min(max(_LESS_ROUGH / (pair.slots * pair.common), _MOST_SMOOTHED), _ROUGH)
        enough = None
        if little:
            enough = np.maximum(little * (total + beside)[some], _NEGLIGIBLE) / max(bucket.mass, 1e-300)
        few = _rare_bound(pair, bucket, losses[some], smoothing=max(smoothing, rough), enough=enough)
        total += bucket.mass * np.interp(np.expm1(losses), np.expm1(losses[some]), few)
    return np.minimum.accumulate(np.minimum(total * (1 + 1e-12), 1.0))


def _rare_bound(
    pair: OthersPair, bucket: Bucket, losses: Floats, *, smoothing: float, enough: Floats | None
) -> Floats:
    """Upper bounds of a bucket at some losses."""
    found, left = np.ones(len(losses)), np.arange(len(losses))
    if enough is not None:
        found = np.exp(np.minimum(pair.log_profile(bucket, losses) + 1e-9, 0.0))
        left = np.flatnonzero((found > enough) & (losses < pair.largest_loss))
    if enough is None or len(left) > 2 * _FAR_APART:
        apart = left[np.unique(np.linspace(0, len(left) - 1, _FAR_APART).astype(np.int64))[:-1]]
        certain = apart[pair.profile(bucket, losses[apart], share=_ROUGH) >= 1.0]
        left = left[left > (certain[-1] if len(certain) else -1)]
    if len(left):
        found[left] = np.minimum(found[left], pair.profile(bucket, losses[left], share=smoothing))
    return pair.at_most(found, losses)


def _last_loss(pair: OthersPair, buckets: list[Bucket]) -> float:
    """Where the profile has ended: at the largest loss, or with less than 1e-40 left of each bucket's."""
    end, first = pair.largest_loss, _NO_END * math.sqrt(pair.information)
    if end <= first:
        return end
    losses = np.geomspace(first, end, _SCOUTS)
    logs = [math.log(max(each.mass, 1e-300)) + pair.log_profile(each, losses) for each in buckets]
    bounds = np.max(logs, axis=0)
    ended = np.flatnonzero(bounds < _LOG_NEGLIGIBLE)
    return float(losses[ended[0]]) if len(ended) else end


_SMOOTHING = 0.4  # reports whose variance smooths a sum, at least
_LEAST_GAIN = 0.998  # of the variance, for which it is worth the time


@dataclass(frozen=True, kw_only=True, slots=True)
class MixPair(OthersPair):
    """The envelope, over all datasets, of a round whose clients share a randomizer; symmetric in P and Q.

    Attributes:
        others: types that cover the records of all clients; thinned under Poisson sampling.
    """

    others: RecordTypes

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""
        return self.slots * self.others.information / self.population**2

    @property
    def common(self) -> float:
        """That of what covers all of the types."""
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
        extra = self.others.excess / self.population + _SMOOTHING / self.slots
        return self.information * (1 + extra) < _LEAST_GAIN * other

    @override
    def scaled_profile(self, bucket: Bucket, growth: Floats, *, share: float) -> Floats:
        return self.sums(bucket, growth).largest(share)

    @override
    def log_scaled_profile(self, bucket: Bucket, growth: Floats) -> Floats:
        return self.sums(bucket, growth).log_bound()

    def sums(self, bucket: Bucket, growth: Floats) -> MixedSums:
        """Those of section 3c of the proofs at E = 1 + ``growth``, shape (losses,)."""
        types = [_law(each, growth, bucket.kept) for each in self.others.types]
        values, masses = _law(self.others.shared, growth, 1.0)
        visible, trials = self.slots / self.population, min(self.slots, self.population - 1)
        own = bucket.own * values, visible * masses
        if self.stands_in:
            values, masses = _law(self.others.shared, growth, bucket.kept * self.common)
            own = (
                np.column_stack([own[0], bucket.others * values]),
                np.append(own[1], (1 - visible) * masses),
            )
            trials -= 1
        return MixedSums(
            shift=-self.population * growth,
            types=[(bucket.others * values, masses) for values, masses in types],
            own=own,
            trials=trials,
        )


def _law(atoms: Atoms, growth: Floats, kept: float) -> Law:
    """What a report adds, less its mean, if it is read against that share of its law (Lemma 10)."""
    u, v, mass = np.array(atoms).T
    values = ((u - v) - growth[:, None] * (v + (1 - kept))) / kept
    if kept == 1:
        return values, mass
    return np.column_stack([values, growth]), np.append(kept * mass, 1 - kept)


# All three only decide whether this bound is computed (SpreadPair.helps). It is valid whatever they are.
_LOUDEST = 30.0  # the largest ε0 at which it is tried; above it no round has enough reports
_LEAST_GAIN_OF_SPREAD = 0.97  # it is computed if its variance is below this share of the other pair's
# A sum that is not quite normal adds a share of this pair's variance to it, which is taken to be _EXTRA/√s.
# Here s = k·I/(e^ε0 − 1)² is the sum's variance over the square of its largest term; it grows with k. The
# real share is rather larger: then the bound is computed in vain.
_EXTRA = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class SpreadPair(OthersPair):
    """The round of a randomizer of which only ε0 and an :class:`InformationBound` are known.

    Its profile is an upper bound for all records of all clients, and for all randomizers within these bounds.
    It also holds with x and x' exchanged, so it serves for P against Q and for Q against P.

    Attributes:
        information_bound: upper bounds on what one report can tell.
        participation: probability with which the report in a slot is seen. Under Poisson sampling this is
            γ, and ``slots`` is n; otherwise it is 1, and ``slots`` is k.
    """

    information_bound: InformationBound
    participation: float

    @property
    def information(self) -> float:
        """Variance of the round's privacy loss where losses are small: k·I/n² with k reports expected."""
        return self.slots * self.participation * self.information_bound.information / self.population**2

    def helps(self, other: float) -> bool:
        """Whether it is expected to be clearly smaller than a pair whose ``information`` is ``other``."""
        if self.local_epsilon > _LOUDEST:
            return False
        reports = self.slots * self.participation
        steady = reports * self.information_bound.information / math.expm1(self.local_epsilon) ** 2
        return self.information * (1 + _EXTRA / math.sqrt(steady)) < _LEAST_GAIN_OF_SPREAD * other

    @property
    def common(self) -> float:
        """θ of the bound."""
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
        factor = 1 + growth  # E
        # With r = R_x and r' = R_x': r − E·r' + (E − 1)·R_z = E·(r̃ − r'), r̃ a mixture of r and R_z. So the
        # variance of (r − E·r')/R_z under R_z is at most E²·I.
        spread = known.information * factor**2
        each = BoundedTerms(
            count=min(self.slots, n - 1),
            variance=self.participation * bucket.others**2 * ((spread + growth**2) / bucket.kept - growth**2),
            above=bucket.others * (np.maximum(e - factor, 0.0) / bucket.kept + growth),
            below=bucket.others * np.maximum((factor * e - 1) / bucket.kept - growth, 0.0),
        )
        top = known.heaviest  # r/w and r'/w lie in [top/e, top]
        above = np.maximum(top - factor * top / e + growth, 1e-300)
        below = np.maximum(factor * top - top / e - growth, 1e-300)
        own = BoundedTerms(
            count=1,
            variance=self.participation * self.slots / n * bucket.own**2 * above * below,
            above=bucket.own * above,
            below=bucket.own * below,
        )
        return -n * growth, each, own
