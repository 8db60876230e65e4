r"""The pair of a randomizer of which no more is known than how much one report can tell.

With :math:`R_z` the law of a report about z, the *information* of records x, x' among others that hold z is
:math:`\sum_y (R_x(y) - R_{x'}(y))^2 / R_z(y)`. In large rounds it is all that matters: the loss of a round is
close to normal, with that variance over the number of reports. So a bound on the largest information of any
three records, with ε0, bounds the round; what sums of so many bounded terms differ from normal ones by is
added (:mod:`~shuffle_plugins.accounting.numerics.normal_sums`). Where no record can be extreme in all of
its coordinates the information is far below that of any blanket. Proof: ``docs/proofs/accounting.md``,
section 3d.
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

_LOUDEST = 30.0  # ε0, above which no round is large enough
_LEAST_STEADY = 0.3  # variance of a sum, in units of its largest term's square
_LEAST_GAIN = 0.97  # of the variance, for which it is worth the time
_EXTRA = 0.5  # of the variance, over the root of the number above: less than bounded terms add


@dataclass(frozen=True, kw_only=True, slots=True)
class InformationBound:
    """How much a report can tell, at most, whoever the other clients are.

    Attributes:
        information: at least Σ (R_x − R_x')²/R_z for all records x, x' and z. Where a report names a place,
            the law of which is the same for all records, the mean over places counts.
        common: θ in (0, 1], such that θ·w ≤ R_z for all z, with a probability density w, for all x and x'.
        heaviest: at least R_x/w and R_x'/w; both are to be at least e^−ε0 times that.

    Raises:
        ValueError: if a number is out of range.
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
        """Of a randomizer whose blanket, the least of all of its laws, has that mass: w is the blanket."""
        return cls(information=information, common=mass, heaviest=math.exp(local_epsilon) * mass)

    @classmethod
    def of_any(cls, *, local_epsilon: float, information: float) -> Self:
        """Of any ε0-LDP randomizer: w is the larger of both records' laws, over its mass."""
        share = math.exp(-local_epsilon)
        return cls(information=information, common=share, heaviest=2 / (1 + share))

    @classmethod
    def from_state(cls, state: Sequence[float]) -> Self:
        """Rebuild it from its fields as a plain sequence."""
        return cls(**dict(zip(("information", "common", "heaviest"), state, strict=True)))

    def state(self) -> tuple[float, ...]:
        """Its fields as a plain tuple."""
        return astuple(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpreadPair(OthersPair):
    """The envelope, over all datasets, of all randomizers that tell no more; symmetric in P and Q.

    Attributes:
        told: by a report, at most.
        participation: 1, or γ under Poisson sampling.
    """

    told: InformationBound
    participation: float

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""
        return self.slots * self.participation * self.told.information / self.population**2

    def helps(self, information: float) -> bool:
        """Whether it is expected to be smaller, by more than next to nothing, than a pair of so much."""
        if self.local_epsilon > _LOUDEST:
            return False
        reports = self.slots * self.participation
        steady = reports * self.told.information / math.expm1(self.local_epsilon) ** 2
        if steady < _LEAST_STEADY:
            return False
        return self.information * (1 + _EXTRA / math.sqrt(steady)) < _LEAST_GAIN * information

    def shares(self) -> tuple[list[Share], float]:
        """Buckets of u, each by its worst end, and the probability of those left out."""
        buckets, left_out = common_buckets(population=self.population, common=self.told.common)
        return [_Spread(pair=self, mass=each.mass, bucket=each) for each in buckets], left_out


@dataclass(frozen=True, kw_only=True)
class _Spread(Share):
    """Given a bucket of u.

    Attributes:
        bucket: the bucket.
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
        """x, the reports of others, and the one that stands for client 1's, for n times the profile."""
        pair, told, bucket = self.pair, self.pair.told, self.bucket
        e, n = math.exp(pair.local_epsilon), pair.population
        factor = 1 + growth  # E
        # r − E·r' + (E − 1)·R_z is E times a mixture of r and R_z, less r'.
        spread = told.information * factor**2
        each = BoundedTerms(
            count=min(pair.slots, n - 1),
            variance=pair.participation * bucket.others**2 * ((spread + growth**2) / bucket.kept - growth**2),
            above=bucket.others * (np.maximum(e - factor, 0.0) / bucket.kept + growth),
            below=bucket.others * np.maximum((factor * e - 1) / bucket.kept - growth, 0.0),
        )
        top = told.heaviest
        above = np.maximum(top - factor * top / e + growth, 1e-300)
        below = np.maximum(factor * top - top / e - growth, 1e-300)
        own = BoundedTerms(
            count=1,
            variance=pair.participation * pair.slots / n * bucket.own**2 * above * below,
            above=bucket.own * above,
            below=bucket.own * below,
        )
        return -n * growth, each, own
