r"""The pair of a round whose others are told apart: client 1's report is read against the others' own laws.

The others' reports hide client 1's whatever their records are, but records of different types hide it
differently. For every ε0-LDP randomizer that all clients share, three types of others cover all: those that
hold what client 1 held before, or after, in binary randomized response, and those that hold a third value in
ternary response. H_E is at most the largest value over all mixes of the three. That is less than the
blanket's pair, which hides client 1 only among what all records have in common.

The value of a mix is an integral along a line of the complex plane of an exponential that is affine in the
numbers of others of each type. So it extends to numbers that are not whole, and between the nodes of a
lattice of mixes it is, up to an error of second order that is bounded and added, at most what it is at the
nodes. Proofs: ``docs/proofs/accounting.md``, section 3c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.mixed_sums import MixedSums
from shuffle_plugins.accounting.numerics.profiles import (
    PositiveLosses,
    hull_outcomes,
    joined,
    profile_points,
)

_REACH = 72.0  # −log of the probability of the shares that are left out
_FIRST_SHARE, _SHARE_GROWTH = 1.0, 4.0  # buckets of 1 − u, in units of its mean
_NO_MATTER = 1e-3  # relative change of a weight within a bucket that needs no finer one
_STRIDES, _COARSE_STRIDES, _SCOUT_STRIDES = 12, 8, 4  # of the lattice of mixes
_FINEST = 1.5e-3  # tolerance; what is finer takes longer and gains next to nothing
_FINE = 3e-3  # tolerance up to which the lattice is fine
_COMMON = 0.02  # probability of a bucket of shares from which it is, too
_RARE_STEP = 4  # points of the profile to one at which a bucket of less probability is computed
_SCOUTS, _ROUGH = 64, 0.02  # points that look for the end of the profile; smoothing where little matters
_FEW = 2.0  # reports whose variance smooths a sum, at least
_FEWEST_REPORTS = 150  # below, the blanket's pair is as good
_LEAST_GAIN = 0.99  # of the variance, for which it is worth the time
_UNIFORM_REACH = 12.0
_LOG_NEGLIGIBLE = math.log(1e-40)  # of a δ at which a profile may end


@dataclass(frozen=True, kw_only=True, slots=True)
class MixPair:
    """The envelope, over all datasets and all ε0-LDP randomizers, of a round; symmetric in P and Q.

    All clients use one randomizer, which does not follow from reports of the round.

    Attributes:
        local_epsilon: ε0.
        population: n.
        slots: k, or n under Poisson sampling.
        participation: 1, or γ under Poisson sampling.
    """

    local_epsilon: float
    population: int
    slots: int
    participation: float

    @property
    def one_sided(self) -> bool:
        """False: the datasets include every one with the two records exchanged."""
        return False

    @property
    def largest_ratio(self) -> float:
        """A bound on the ratio of the masses of P and Q at every outcome; of a random cohort, everybody's."""
        return 1.0 + self.slots / self.population * math.expm1(self.local_epsilon)

    @property
    def largest_loss(self) -> float:
        """The logarithm of the same, which keeps its digits where the ratio is one but for rounding."""
        return math.log1p(self.slots / self.population * math.expm1(self.local_epsilon))

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""
        e = math.exp(self.local_epsilon)
        each = math.expm1(self.local_epsilon) ** 2 * max(1 / e, 2 / (e + 2))
        return self.slots * self.participation * each / self.population**2


def mixes_help(*, local_epsilon: float, population: int, reports: float) -> bool:
    """Whether this pair is expected to be smaller than the generic blanket's by more than next to nothing."""
    if reports < _FEWEST_REPORTS:
        return False
    e, gap = math.exp(-local_epsilon), -math.expm1(-local_epsilon)
    least = max(e, 2 * e / (1 + 2 * e))
    # What the share of the others' reports that is common to all records costs, to first order.
    extra = (4 / least + (1 + e) / gap * max(gap / e, 1.0)) / population
    # And what smoothing costs.
    extra += 2 * _FEW / reports
    return least * (1 + extra) < _LEAST_GAIN * 2 * e / (1 + e)


def mix_losses(pair: MixPair, *, tolerance: float) -> tuple[Floats, Floats, Floats, float]:
    """A finite pair that dominates: losses, P and Q masses of its outcomes, and the P mass left out.

    Args:
        pair: the pair.
        tolerance: relative excess of the variance of the loss, in (0, 0.1].
    """
    profile = _Profile(pair)
    right = profile.outcomes(max(tolerance, _FINEST))
    right, left, rest = joined(right, right, total=1.0)
    return (
        np.concatenate([right.loss, [0.0], -left.loss]),
        np.concatenate([right.p, [rest], left.q]),
        np.concatenate([right.q, [rest], left.p]),
        right.beyond + profile.left_out,
    )


@dataclass(frozen=True, slots=True)
class _Share:
    """A bucket of shares u of the others' reports that are common to all records.

    Attributes:
        mass: its probability.
        odds: largest ratio of a report's likelihoods under two records, the others' as they are seen.
        own: weight of the report that client 1's stands for, times n.
        others: weight of each other report, times n.
    """

    mass: float
    odds: float
    own: float
    others: float


def _shares(pair: MixPair) -> tuple[list[_Share], float]:
    """Buckets of u, each by its worst end, and the probability of those left out."""
    n, e = pair.population, math.exp(pair.local_epsilon)
    common = 1 / e
    rest = -math.expm1(-pair.local_epsilon)  # 1 − common
    unit = 1 / max(n * common, 1.0)
    first = max(_FIRST_SHARE, _NO_MATTER * min(rest, common) / unit)
    steps = [0.0]
    while steps[-1] < _REACH:
        steps.append(first * _SHARE_GROWTH ** (len(steps) - 1))
    ends = [min(step * unit, 0.999) for step in steps]

    def below(gap: float) -> float:
        return (1 - gap) * math.exp((n - 1) * math.log1p(-common * gap))

    largest_others = n * common / (1 + (n - 1) * common)
    found = []
    for near, far in pairwise(ends):
        if far <= near:
            continue
        kept = rest + common * (1 - far)
        seen = common * (1 - far) / kept
        found.append(
            _Share(
                mass=max(below(near) - below(far), 0.0) + 1e-13 * below(near),  # rounded up
                odds=e * max(kept / (1 - far), 1 / kept),
                own=n / (1 + (n - 1) * seen),
                others=largest_others,
            )
        )
    return found, below(ends[-1])


def _types(growth: Floats, odds: float) -> list[tuple[Floats, Floats]]:
    """What an other's report of each type adds, less its mean: values, shape (rows, atoms), and masses.

    Args:
        growth: E − 1, shape (rows,).
        odds: largest ratio of likelihoods.
    """
    gain, loss = odds - 1.0, (odds - 1.0) / odds
    one = np.ones_like(growth)
    rare, third = 1 / (odds + 1), 1 / (odds + 2)
    binary = np.array([rare, 1 - rare])
    before = np.stack([gain * one, -loss * one], axis=1)
    ternary = np.stack([gain * one, -(1 + growth) * gain, growth * loss], axis=1)
    return [
        (before, binary),
        (-(1 + growth)[:, None] * before, binary),
        (ternary, np.array([third, third, 1 - 2 * third])),
    ]


class _Profile:
    """H_E at E = e^loss ≥ 1, from above."""

    def __init__(self, pair: MixPair) -> None:
        self._pair = pair
        self._others = min(pair.slots, pair.population - 1)
        self._shares, self.left_out = _shares(pair)

    def outcomes(self, tolerance: float) -> PositiveLosses:
        """Outcomes of positive loss of a pair that dominates."""
        pair = self._pair
        # Beyond the largest loss of a cohort of the mean size next to nothing is left.
        rate = pair.participation * pair.slots / pair.population
        largest = math.log1p(rate * math.expm1(pair.local_epsilon))
        deviation = math.sqrt(pair.information)
        scouts = np.geomspace(min(0.1 * deviation, largest / 2), largest, _SCOUTS)
        log_bound = self._sums(scouts, self._shares[0], _SCOUT_STRIDES).log_bound() - math.log(
            pair.population
        )
        ended = np.nonzero(log_bound < _LOG_NEGLIGIBLE)[0]
        last = float(scouts[ended[0]]) if len(ended) else pair.largest_loss
        losses = profile_points(
            last, step=deviation * math.sqrt(3 * tolerance), uniform=_UNIFORM_REACH * deviation
        )
        strides = _STRIDES if tolerance <= _FINE else _COARSE_STRIDES
        share = max(tolerance / 2, _FEW / pair.slots)
        return hull_outcomes(losses, self.bound(losses, share=share, strides=strides))

    def bound(self, losses: Floats, *, share: float, strides: int) -> Floats:
        """Upper bounds, shape (losses,), from sums smoothed by that share of their variance."""
        total = np.zeros(len(losses))
        some = np.unique(np.append(np.arange(0, len(losses), _RARE_STEP), len(losses) - 1))
        for each in self._shares:
            if each.mass > _COMMON:
                total += each.mass * self._largest(losses, each, share, strides)
                continue
            # Where a bucket is rare a rougher value does. In E it is convex, so a chord is above it.
            rougher = min(share / max(each.mass, 1e-300), max(share, _ROUGH))
            few = self._largest(losses[some], each, rougher, _SCOUT_STRIDES)
            total += each.mass * np.interp(np.expm1(losses), np.expm1(losses[some]), few)
        total[losses >= self._pair.largest_loss] = 0.0
        return np.minimum.accumulate(np.minimum(total * (1 + 1e-12), 1.0))

    def _largest(self, losses: Floats, share: _Share, smoothing: float, strides: int) -> Floats:
        """The largest value of all mixes, given that bucket of shares."""
        found = self._sums(losses, share, strides).largest(smoothing) / self._pair.population
        return np.minimum(found, 1.0)

    def _sums(self, losses: Floats, share: _Share, strides: int) -> MixedSums:
        pair = self._pair
        growth = np.expm1(losses)
        e = math.exp(pair.local_epsilon)
        own = share.own * (2 + growth) * math.expm1(pair.local_epsilon) / (e + 1)
        return MixedSums(
            shift=-pair.population * growth,
            types=[(share.others * values, masses) for values, masses in _types(growth, share.odds)],
            own=(np.stack([own, -own], axis=1), np.array([0.5, 0.5])),
            trials=self._others,
            participation=pair.participation,
            own_participation=pair.participation * pair.slots / pair.population,
            strides=strides,
        )
