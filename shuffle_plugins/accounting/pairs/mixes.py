"""The pair of a randomizer that all clients share: client 1's report is read against others of a few types.

The others' reports hide client 1's whatever their records are, but records of different types hide it
differently. A few types cover all records, and H_E is at most the largest value over all mixes of them
(:mod:`~shuffle_plugins.accounting.pairs.others`). That is less than the blanket's pair, which hides client 1
only among what all records have in common. Proof: ``docs/proofs/accounting.md``, section 3c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.mixed_sums import Law, MixedSums
from shuffle_plugins.accounting.pairs.instances import Atoms
from shuffle_plugins.accounting.pairs.others import OthersPair, Share
from shuffle_plugins.accounting.pairs.record_types import RecordTypes

_REACH = 72.0  # −log of the probability of the shares that are left out
_FIRST_SHARE, _SHARE_GROWTH = 1.0, 4.0  # buckets of 1 − u, in units of its mean
_NO_MATTER = 2e-4  # relative change of the others' laws within a bucket that needs no finer one
_WIDEST = 0.01  # of a bucket, nevertheless
_FEW = 2.0  # reports whose variance smooths a sum, at least
_FEWEST_REPORTS, _FEWEST_COMMON = 150, 30  # below, also of what all have in common, the blanket is as good
_LEAST_GAIN = 0.99  # of the variance, for which it is worth the time


@dataclass(frozen=True, kw_only=True, slots=True)
class MixPair(OthersPair):
    """The envelope, over all datasets, of a round whose clients share a randomizer; symmetric in P and Q.

    Attributes:
        others: types that cover the records of all clients.
        participation: 1, or γ under Poisson sampling.
    """

    others: RecordTypes
    participation: float

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""
        return self.slots * self.participation * self.others.information / self.population**2

    def helps(self, information: float) -> bool:
        """Whether it is expected to be smaller, by more than next to nothing, than a pair of so much."""
        reports = self.slots * self.participation
        if reports < _FEWEST_REPORTS or self.population * self.others.common < _FEWEST_COMMON:
            return False
        # What client 1's own report costs, and smoothing.
        extra = self.others.excess / self.population + 2 * _FEW / reports
        return self.information * (1 + extra) < _LEAST_GAIN * information

    def shares(self) -> tuple[list[Share], float]:
        """Buckets of u, each by its worst end, and the probability of those left out."""
        n, common = self.population, self.others.common
        rest = 1 - common
        unit = 1 / max(n * common, 1.0)
        first = max(_FIRST_SHARE, min(_NO_MATTER / max(rest, _NO_MATTER), _WIDEST) / unit)
        steps = [0.0]
        while steps[-1] < _REACH:
            steps.append(first * _SHARE_GROWTH ** (len(steps) - 1))
        ends = [min(step * unit, 0.999) for step in steps]

        def below(gap: float) -> float:
            return (1 - gap) * math.exp((n - 1) * math.log1p(-common * gap))

        largest_others = n * common / (1 + (n - 1) * common)
        found: list[Share] = []
        for near, far in pairwise(ends):
            if far <= near:
                continue
            kept = rest + common * (1 - far)
            seen = common * (1 - far) / kept
            found.append(
                _Mixes(
                    pair=self,
                    mass=max(below(near) - below(far), 0.0) + 1e-13 * below(near),  # rounded up
                    kept=(1 - far) / kept,
                    own=n / (1 + (n - 1) * seen),
                    others=largest_others,
                )
            )
        return found, below(ends[-1])


@dataclass(frozen=True, kw_only=True)
class _Mixes(Share):
    """Given a bucket of u.

    Attributes:
        kept: share of each other client's law that client 1's likelihood is read against, at least.
        own: weight of the report that client 1's stands for, times n.
        others: weight of each other report, times n.
    """

    pair: MixPair
    kept: float
    own: float
    others: float

    @property
    def unit(self) -> float:
        """The population, n: sums are n times the profile."""
        return float(self.pair.population)

    def sums(self, growth: Floats) -> MixedSums:
        """Those of the theorem."""
        pair = self.pair
        types = [_law(each, growth, self.kept) for each in pair.others.types]
        own = _law(pair.others.shared, growth, 1.0)
        return MixedSums(
            shift=-pair.population * growth,
            types=[(self.others * values, masses) for values, masses in types],
            own=(self.own * own[0], own[1]),
            trials=min(pair.slots, pair.population - 1),
            participation=pair.participation,
            own_participation=pair.participation * pair.slots / pair.population,
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
