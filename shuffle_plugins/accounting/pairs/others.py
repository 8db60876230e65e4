r"""Pairs in which client 1's report is read against the others' own laws.

Under the blanket pair a report of another client hides only by the part that every record could have sent.
Here it hides by all of its law R_z: with r, r' client 1's laws under its two records, and n clients of whom
k report,

.. math:: H_E ≤ E\Big[\Big(1 - E + \frac1D \sum_i \Big(\frac{r - E r'}{R_{z_i}} - (1 - E)\Big)\Big)_+\Big]

over the k reports, up to terms of relative order 1/n that are bounded too: D is a little above n. What others
hold is not known, so this is the largest value over all of their datasets. By convexity it is enough to look
at a few extreme laws, the types, and at how many of the others have which.

The value of a mix of types is an integral along a line of the complex plane of an exponential that is affine
in the numbers of others of each type. So it extends to numbers that are not whole, and between the corners of
a cell of mixes it is, up to an error of second order that is bounded and added, at most what it is there.
Proofs: ``docs/proofs/accounting.md``, sections 3b and 3c.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.mixed_sums import MixedSums
from shuffle_plugins.accounting.numerics.profiles import hull_outcomes, joined, profile_points

_FINEST = 1.5e-3  # tolerance; what is finer takes longer and gains next to nothing
_COMMON = 0.02  # probability of a bucket of shares from which every point of the profile is computed
_RARE_STEP = 4  # points of the profile to one at which a bucket of less probability is computed
_SCOUTS, _ROUGH = 32, 0.02  # points that look for the end of the profile; smoothing where little matters
_FEW, _MOST_SMOOTHED = 0.4, 5e-3  # reports whose variance smooths a sum, and the most as a share
_SMALL = 0.1  # deviation of the loss, relative to the largest, up to which its formula holds
_NO_END = 5.0  # deviations, before which no profile ends
_UNIFORM_REACH = 12.0  # deviations of the loss that points cover evenly
_LOG_NEGLIGIBLE = math.log(1e-40)  # of a δ at which a profile may end


@dataclass(frozen=True, kw_only=True, slots=True)
class OthersPair(ABC):
    """The envelope, over all datasets of the others, of a round; symmetric in P and Q.

    All clients use one randomizer, which does not follow from reports of the round.

    Attributes:
        local_epsilon: ε0.
        population: n.
        slots: k, reports that are seen of a uniform subset of the clients; n under Poisson sampling.
    """

    local_epsilon: float
    population: int
    slots: int

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
    @abstractmethod
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""

    @abstractmethod
    def shares(self) -> tuple[list[Share], float]:
        """Buckets of u, the share of what others' reports have in common that still tells nothing of them.

        Returns:
            The buckets, and the probability of u in none of them.
        """


@dataclass(frozen=True, kw_only=True)
class Share(ABC):
    """Upper bounds on the profile, given a bucket of the share u.

    Attributes:
        pair: the pair.
        mass: probability of the bucket.
    """

    pair: OthersPair
    mass: float

    @property
    @abstractmethod
    def unit(self) -> float:
        """What the sums are multiples of one over."""

    @abstractmethod
    def sums(self, growth: Floats) -> MixedSums:
        """The profile's sums at E, times :attr:`unit`, for E − 1 of shape (losses,)."""

    def bound(self, losses: Floats, *, share: float) -> Floats:
        """The largest value of all mixes at E = e^loss ≥ 1, shape (losses,).

        Args:
            losses: increasing.
            share: by which the variance of the sums is smoothed, at most.
        """
        found = np.minimum(self.sums(np.expm1(losses)).largest(share) / self.unit * (1 + 1e-14), 1.0)
        # A profile falls, so a bound holds at every larger loss too.
        return np.minimum.accumulate(np.where(losses >= self.pair.largest_loss, 0.0, found))

    def log_bound(self, losses: Floats) -> Floats:
        """Chernoff's bound on the logarithm of the same, and of u being in the bucket."""
        return self.sums(np.expm1(losses)).log_bound() + math.log(max(self.mass, 1e-300) / self.unit)


def others_losses(pair: OthersPair, *, tolerance: float) -> tuple[Floats, Floats, Floats, float]:
    """A finite pair that dominates: losses, P and Q masses of its outcomes, and the P mass left out.

    Args:
        pair: the pair.
        tolerance: relative excess of the variance of the loss, in (0, 0.1].
    """
    shares, left_out = pair.shares()
    tolerance = max(tolerance, _FINEST)
    last, deviation = _last_loss(pair, shares), math.sqrt(pair.information)
    if deviation > _SMALL * pair.largest_loss:
        scouts = np.union1d(np.linspace(0.0, last, _SCOUTS), np.geomspace(1e-3 * last, last, _SCOUTS))
        rough = hull_outcomes(scouts, _profile(shares, scouts, smoothing=_ROUGH))
        deviation = math.sqrt(float(((rough.p + rough.q) * rough.loss**2).sum()))
    if deviation > 0:
        step = deviation * math.sqrt(3 * tolerance)
        losses = profile_points(last, step=step, uniform=_UNIFORM_REACH * deviation)
        right = hull_outcomes(
            losses, _profile(shares, losses, smoothing=tolerance / 3 + min(_FEW / pair.slots, _MOST_SMOOTHED))
        )
    else:
        right = rough
    right, left, rest = joined(right, right, total=1.0)
    return (
        np.concatenate([right.loss, [0.0], -left.loss]),
        np.concatenate([right.p, [rest], left.q]),
        np.concatenate([right.q, [rest], left.p]),
        right.beyond + left_out,
    )


def _profile(shares: list[Share], losses: Floats, *, smoothing: float) -> Floats:
    """Upper bounds on H_E at E = e^loss ≥ 1, shape (losses,)."""
    total = np.zeros(len(losses))
    some = np.unique(np.append(np.arange(0, len(losses), _RARE_STEP), len(losses) - 1))
    for share in shares:
        if share.mass > _COMMON:
            total += share.mass * share.bound(losses, share=smoothing)
            continue
        # Where a bucket is rare a rougher value does. In E it is convex, so a chord is above it.
        few = share.bound(losses[some], share=max(smoothing, _ROUGH))
        total += share.mass * np.interp(np.expm1(losses), np.expm1(losses[some]), few)
    return np.minimum.accumulate(np.minimum(total * (1 + 1e-12), 1.0))


def _last_loss(pair: OthersPair, shares: list[Share]) -> float:
    """Where the profile has ended: at the largest loss, or with less than 1e-40 left of each bucket's."""
    end, first = pair.largest_loss, _NO_END * math.sqrt(pair.information)
    if end <= first:
        return end
    losses = np.geomspace(first, end, _SCOUTS)
    bounds = np.max([share.log_bound(losses) for share in shares], axis=0)
    ended = np.flatnonzero(bounds < _LOG_NEGLIGIBLE)
    return float(losses[ended[0]]) if len(ended) else end
