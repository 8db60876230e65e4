"""The pair of a randomizer that all clients share: client 1's report is read against others of a few types.

The others' reports hide client 1's whatever their records are, but records of different types hide it
differently. A few types cover all records, and H_E is at most the largest value over all mixes of them
(:mod:`~shuffle_plugins.accounting.pairs.others`). That is less than the blanket's pair, which hides client 1
only among what all records have in common. Proof: ``docs/proofs/accounting.md``, section 3c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.mixed_sums import Law, MixedSums
from shuffle_plugins.accounting.pairs.instances import Atoms, information
from shuffle_plugins.accounting.pairs.others import (
    CommonBucket,
    MixedShare,
    OthersPair,
    Share,
    common_buckets,
)
from shuffle_plugins.accounting.pairs.record_types import RecordTypes

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
    def common_reports(self) -> float:
        """That of what covers all of the types."""
        return self.slots * self.others.common

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

    def shares(self) -> tuple[list[Share], float]:
        """Buckets of u, each by its worst end, and the probability of those left out."""
        buckets, left_out = common_buckets(population=self.population, common=self.others.common)
        return [_Mixes(pair=self, mass=each.mass, bucket=each) for each in buckets], left_out


@dataclass(frozen=True, kw_only=True)
class _Mixes(MixedShare):
    """Given a bucket of u.

    Attributes:
        bucket: the bucket.
    """

    pair: MixPair
    bucket: CommonBucket

    @property
    def unit(self) -> float:
        """The population, n: sums are n times the profile."""
        return float(self.pair.population)

    def sums(self, growth: Floats) -> MixedSums:
        """Those of the theorem."""
        pair, bucket, others = self.pair, self.bucket, self.pair.others
        types = [_law(each, growth, bucket.kept) for each in others.types]
        values, masses = _law(others.shared, growth, 1.0)
        own, trials = (bucket.own * values, masses), min(pair.slots, pair.population - 1)
        visible = pair.slots / pair.population
        if pair.stands_in:
            values, masses = _law(others.shared, growth, bucket.kept * others.common)
            own = (
                np.column_stack([own[0], bucket.others * values]),
                np.append(visible * own[1], (1 - visible) * masses),
            )
            trials, visible = trials - 1, 1.0
        return MixedSums(
            shift=-pair.population * growth,
            types=[(bucket.others * values, masses) for values, masses in types],
            own=own,
            trials=trials,
            participation=1.0,
            own_participation=visible,
        )


def _law(atoms: Atoms, growth: Floats, kept: float) -> Law:
    """What a report adds, less its mean, if it is read against that share of its law: Lemma 10 of the proofs.

    Args:
        atoms: (R_x/R_z − 1, R_x'/R_z − 1, mass).
        growth: E − 1, shape (rows,).
        kept: the share.
    """
    u, v, mass = np.array(atoms).T
    values = ((u - v) - growth[:, None] * (v + (1 - kept))) / kept
    if kept == 1:
        return values, mass
    return np.column_stack([values, growth]), np.append(kept * mass, 1 - kept)
