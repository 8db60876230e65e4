"""The pair of every ε0-LDP randomizer: client 1's report is read against others of three types.

The others' reports hide client 1's whatever their records are, but records of different types hide it
differently. For every ε0-LDP randomizer that all clients share, three types of others cover all: those that
hold what client 1 held before, or after, in binary randomized response, and those that hold a third value in
ternary response. H_E is at most the largest value over all mixes of the three
(:mod:`~shuffle_plugins.accounting.pairs.others`). That is less than the blanket's pair, which hides client 1
only among what all records have in common. Proof: ``docs/proofs/accounting.md``, section 3c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.mixed_sums import MixedSums
from shuffle_plugins.accounting.pairs.others import OthersPair, Share

_REACH = 72.0  # −log of the probability of the shares that are left out
_FIRST_SHARE, _SHARE_GROWTH = 1.0, 4.0  # buckets of 1 − u, in units of its mean
_NO_MATTER = 1e-3  # relative change of a weight within a bucket that needs no finer one
_FEW = 2.0  # reports whose variance smooths a sum, at least
_FEWEST_REPORTS = 150  # below, the blanket's pair is as good
_LEAST_GAIN = 0.99  # of the variance, for which it is worth the time


@dataclass(frozen=True, kw_only=True, slots=True)
class MixPair(OthersPair):
    """The envelope, over all datasets and all ε0-LDP randomizers, of a round; symmetric in P and Q.

    Attributes:
        participation: 1, or γ under Poisson sampling.
    """

    participation: float

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""
        e = math.exp(self.local_epsilon)
        each = math.expm1(self.local_epsilon) ** 2 * max(1 / e, 2 / (e + 2))
        return self.slots * self.participation * each / self.population**2

    def shares(self) -> tuple[list[Share], float]:
        """Buckets of u, each by its worst end, and the probability of those left out."""
        n, e = self.population, math.exp(self.local_epsilon)
        common = 1 / e
        rest = -math.expm1(-self.local_epsilon)  # 1 − common
        unit = 1 / max(n * common, 1.0)
        first = max(_FIRST_SHARE, _NO_MATTER * min(rest, common) / unit)
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
                    odds=e * max(kept / (1 - far), 1 / kept),
                    own=n / (1 + (n - 1) * seen),
                    others=largest_others,
                )
            )
        return found, below(ends[-1])


@dataclass(frozen=True, kw_only=True)
class _Mixes(Share):
    """Given a bucket of u.

    Attributes:
        odds: largest ratio of a report's likelihoods under two records, the others' as they are seen.
        own: weight of the report that client 1's stands for, times n.
        others: weight of each other report, times n.
    """

    pair: MixPair
    odds: float
    own: float
    others: float

    @property
    def unit(self) -> float:
        """n."""
        return float(self.pair.population)

    def sums(self, growth: Floats) -> MixedSums:
        """Those of the theorem."""
        pair = self.pair
        e = math.exp(pair.local_epsilon)
        own = self.own * (2 + growth) * math.expm1(pair.local_epsilon) / (e + 1)
        return MixedSums(
            shift=-pair.population * growth,
            types=[(self.others * values, masses) for values, masses in _types(growth, self.odds)],
            own=(np.stack([own, -own], axis=1), np.array([0.5, 0.5])),
            trials=min(pair.slots, pair.population - 1),
            participation=pair.participation,
            own_participation=pair.participation * pair.slots / pair.population,
        )


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
