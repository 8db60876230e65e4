r"""A bound on a round's privacy that uses only ε0 and how much one report can tell.

Client 1 holds the record x or x'; these are the two neighbouring datasets. :math:`R_z` is the distribution
of a report about the record z. The *information* of a randomizer is

.. math:: I = \sup_{x, x', z} \sum_y (R_x(y) - R_{x'}(y))^2 / R_z(y).

In a large round the privacy loss is nearly normal. If all n clients report and all but client 1 hold z, its
variance is the sum above over n. So an upper bound on I, together with ε0, gives an upper bound on the
*profile* of the round: the δ at each ε, H_E = Σ (P − E·Q)₊ for E = e^ε.

At each E the profile is bounded by the mean positive part of a sum of independent bounded variables, one for
each report. :mod:`~shuffle_plugins.accounting.numerics.normal_sums` bounds that mean from the variables'
variances and ranges; it includes the error of treating such a sum as normal.

This helps where no record can have extreme values in all of its coordinates, such as the vectors of an ℓ2
ball. There I is far below the value that follows from the blanket (the part of R_z that is common to all z).
Proof: ``docs/proofs/accounting.md``, section 3d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Self

import numpy as np
from typing_extensions import override

from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.normal_sums import BoundedTerms, log_chernoff, positive_part_bound
from shuffle_plugins.accounting.pairs.others import CommonBucket, OthersPair, Share, common_buckets
from shuffle_plugins.core import checks

# All three only decide whether this bound is computed (SpreadPair.helps). It is valid whatever they are.
_LOUDEST = 30.0  # the largest ε0 at which it is tried; above it no round has enough reports
_LEAST_GAIN = 0.97  # it is computed if its variance is below this share of the other pair's
# A sum that is not quite normal adds a share of this pair's variance to it, which is taken to be _EXTRA/√s.
# Here s = k·I/(e^ε0 − 1)² is the sum's variance over the square of its largest term; it grows with k. The
# real share is rather larger: then the bound is computed in vain.
_EXTRA = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class InformationBound:
    """What is known of a randomizer: upper bounds on how much one of its reports can tell.

    R_z is the distribution of a report about the record z. For any two records x and x' of client 1 there has
    to be a probability density w over reports, which may depend on x and x', with the properties below.

    Attributes:
        information: I, an upper bound on Σ_y (R_x(y) − R_x'(y))²/R_z(y) for all records x, x' and z; above 0.
            If a report names a place (say, which coordinate it is about) that is drawn with the same
            probabilities for all records, this is the mean over places of the sum given the place.
        common: θ in (0, 1], such that θ·w(y) ≤ R_z(y) for all records z and reports y.
        heaviest: h above 0, such that R_x(y)/w(y) and R_x'(y)/w(y) lie between e^−ε0·h and h for all y.

    Raises:
        ValueError: if a number is not finite or not in its range.
    """

    information: float
    common: float
    heaviest: float

    def __post_init__(self) -> None:
        checks.number("information", self.information, above=0)
        checks.number("common", self.common, above=0, at_most=1)
        checks.number("heaviest", self.heaviest, above=0)

    @classmethod
    def of_blanket(cls, *, local_epsilon: float, information: float, mass: float) -> Self:
        """For a randomizer whose blanket is known; w is the blanket, scaled to a total of one.

        Args:
            local_epsilon: ε0 in nats.
            information: I, as the attribute.
            mass: total mass of the blanket, the least of R_z(y) over all z at each y; in (0, 1].

        Raises:
            ValueError: if a number is out of range.
        """
        return cls(information=information, common=mass, heaviest=math.exp(local_epsilon) * mass)

    @classmethod
    def of_any(cls, *, local_epsilon: float, information: float) -> Self:
        """For any ε0-LDP randomizer; w is the larger of R_x and R_x' at each y, scaled to a total of one.

        Args:
            local_epsilon: ε0 in nats.
            information: I, as the attribute.

        Raises:
            ValueError: if a number is out of range.
        """
        share = math.exp(-local_epsilon)
        return cls(information=information, common=share, heaviest=2 / (1 + share))

    @classmethod
    def from_state(cls, state: Sequence[float]) -> Self:
        """Rebuild it from what :meth:`state` gives.

        Raises:
            ValueError: if these are not three numbers in their ranges.
        """
        return cls(**dict(zip(("information", "common", "heaviest"), state, strict=True)))

    def state(self) -> tuple[float, ...]:
        """Information, common and heaviest as a plain tuple."""
        return astuple(self)


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
        """Whether this pair's bound is expected to be clearly smaller than that of another pair.

        This is an estimate that saves time; it has no influence on what is proved.

        Args:
            other: ``information`` of another pair of the same round: the variance of its privacy loss.

        Returns:
            True if this pair's variance, with an allowance for sums that are not normal, is at least 3 per
            cent smaller. False if ε0 is above 30, or if there are so few reports that the allowance is large.
        """
        if self.local_epsilon > _LOUDEST:
            return False
        reports = self.slots * self.participation
        steady = reports * self.information_bound.information / math.expm1(self.local_epsilon) ** 2
        return self.information * (1 + _EXTRA / math.sqrt(steady)) < _LEAST_GAIN * other

    def shares(self) -> tuple[list[Share], float]:
        """Bounds on the profile for each bucket of u, valid for every u in the bucket.

        u is a random number in [0, 1] that the proof lets the adversary know. The smaller it is, the less
        the other clients' reports hide that of client 1.

        Returns:
            The buckets, and the probability that u is in none of them.
        """
        buckets, left_out = common_buckets(population=self.population, common=self.information_bound.common)
        return [_Spread(pair=self, mass=each.mass, bucket=each) for each in buckets], left_out


@dataclass(frozen=True, kw_only=True)
class _Spread(Share):
    """Upper bounds on the profile of a :class:`SpreadPair`, given that u is in one bucket.

    Attributes:
        bucket: the bucket, with the weights of the reports at its worst end.
    """

    pair: SpreadPair
    bucket: CommonBucket

    @override
    def bound(self, losses: Floats, *, share: float) -> Floats:
        shift, each, own = self._terms(np.expm1(losses))
        found = positive_part_bound(shift, each=each, own=own) / self.pair.population
        return self.at_most(found, losses)

    @override
    def log_bound(self, losses: Floats) -> Floats:
        shift, each, own = self._terms(np.expm1(losses))
        scale = math.log(max(self.mass, 1e-300) / self.pair.population)
        return log_chernoff(shift, each=each, own=own) + scale

    def _terms(self, growth: Floats) -> tuple[Floats, BoundedTerms, BoundedTerms]:
        """What n times the profile is bounded by: E[(x + all terms)₊].

        Args:
            growth: E − 1, shape (losses,).

        Returns:
            x = n·(1 − E), the terms of the other clients' reports, and the single term of the report that
            takes the place of client 1's. All means are zero.
        """
        pair, known, bucket = self.pair, self.pair.information_bound, self.bucket
        e, n = math.exp(pair.local_epsilon), pair.population
        factor = 1 + growth  # E
        # With r = R_x and r' = R_x': r − E·r' + (E − 1)·R_z = E·(r̃ − r'), r̃ a mixture of r and R_z. So the
        # variance of (r − E·r')/R_z under R_z is at most E²·I.
        spread = known.information * factor**2
        each = BoundedTerms(
            count=min(pair.slots, n - 1),
            variance=pair.participation * bucket.others**2 * ((spread + growth**2) / bucket.kept - growth**2),
            above=bucket.others * (np.maximum(e - factor, 0.0) / bucket.kept + growth),
            below=bucket.others * np.maximum((factor * e - 1) / bucket.kept - growth, 0.0),
        )
        top = known.heaviest  # r/w and r'/w lie in [top/e, top]
        above = np.maximum(top - factor * top / e + growth, 1e-300)
        below = np.maximum(factor * top - top / e - growth, 1e-300)
        own = BoundedTerms(
            count=1,
            variance=pair.participation * pair.slots / n * bucket.own**2 * above * below,
            above=bucket.own * above,
            below=bucket.own * below,
        )
        return -n * growth, each, own
