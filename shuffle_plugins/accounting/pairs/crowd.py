"""The pair of reports on a sign about a public place.

A sign of another client is like one record's of client 1, or like the other's.

Bounds over all datasets of the others are those of :mod:`~shuffle_plugins.accounting.pairs.others`, with two
types. Proof: ``docs/proofs/accounting.md``, section 3b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shuffle_plugins.accounting.numerics.binomial import TAIL
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.mixed_sums import MixedSums
from shuffle_plugins.accounting.pairs.others import MixedShare, OthersPair, Share

# −log of probabilities by which it is told apart how few blanket reports there are, by how many are expected
_RARENESS = ((500.0, (12.0, 3.0, 0.8)), (1e6, (10.0, 2.5)))
_HALVINGS = 100
_FEW = 8  # reports


@dataclass(frozen=True, kw_only=True, slots=True)
class CrowdLaws:
    """One report, told apart by no more than matters: classes of reports and their probabilities.

    All laws are over the same classes. Exchanging the two records, and the classes along with them, must turn
    the set of the others' laws into itself: the pair is symmetric.

    Attributes:
        second: under the differing client's replacement record.
        difference: what the differing client's record gives beyond that.
        others: laws of other clients. The law of any record z must be such that (r − E·r')/R_z is, in
            convex order and for every E ≥ 1, below a mixture of those of the laws given.
    """

    second: tuple[float, ...]
    difference: tuple[float, ...]
    others: tuple[tuple[float, ...], ...]

    @classmethod
    def sign(cls, local_epsilon: float, *, participation: float = 1.0) -> CrowdLaws:
        """A public random index, and the record's bit there flipped with probability 1/(e^ε0 + 1).

        The classes are the two bits where the two records differ, and no report at all, which has probability
        1 − ``participation``. The others' bits are like one record's or like the other's.
        """
        zero = participation / (math.exp(local_epsilon) + 1)
        one = participation / (1 + math.exp(-local_epsilon))
        apart = participation * math.tanh(local_epsilon / 2)
        absent = (1 - participation,) if participation < 1 else ()
        return cls(
            second=(zero, one, *absent),
            difference=(apart, -apart, *(0.0 for _ in absent)),
            others=((zero, one, *absent), (one, zero, *absent)),
        )

    @property
    def blanket(self) -> Floats:
        """What all of the others' laws have in common."""
        return np.asarray(np.min(np.array(self.others), axis=0), dtype=np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class CrowdPair(OthersPair):
    """The envelope over all datasets of others; symmetric in P and Q.

    Attributes:
        laws: of one report.
    """

    laws: CrowdLaws

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""
        gain = max(float((np.array(self.laws.difference) ** 2 / law).sum()) for law in self.laws.others)
        return self.slots * gain / self.population**2

    @property
    def common_reports(self) -> float:
        """That of the signs' blanket."""
        return self.slots * float(self.laws.blanket.sum())

    def shares(self) -> tuple[list[Share], float]:
        """Buckets of u, narrower where few blanket reports are expected, but for a probability of 1e-30."""
        theta = float(self.laws.blanket.sum())
        blanket = (self.population - 1) * theta
        between = next((steps for most, steps in _RARENESS if blanket < most), ())
        rareness = sorted([0.0, *between, -math.log(TAIL)])
        ends = [_blanket_share(theta, self.population - 1, rare) for rare in rareness]
        return [
            _Crowd(
                pair=self,
                mass=math.exp(-rareness[i]) - math.exp(-rareness[i + 1]),
                theta=theta,
                least=ends[i + 1],
                most=ends[i],
            )
            for i in range(len(rareness) - 1)
        ], TAIL


def _blanket_share(theta: float, others: int, rareness: float) -> float:
    """θ_u/θ at the u below which u is with probability e^(−rareness): u·(1 − θ + θu)^others."""
    low, high = 0.0, rareness  # of −log u
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        log_probability = -middle + others * math.log1p(theta * math.expm1(-middle))
        low, high = (middle, high) if log_probability > -rareness else (low, middle)
    return math.exp(-high) / (1 + theta * math.expm1(-high))


_Atoms = tuple[Floats, Floats, Floats]
"""(r − r')/a and r'/a − 1 of a report drawn from a, and the probabilities."""


@dataclass(frozen=True, kw_only=True)
class _Crowd(MixedShare):
    """Given an interval that θ_u/θ lies in.

    Attributes:
        theta: mass of the blanket.
        least, most: the interval.
    """

    pair: CrowdPair
    theta: float
    least: float
    most: float

    @property
    def unit(self) -> float:
        """N − 1 others, and what client 0's report counts for."""
        return self.pair.population - 1 + 1 / (self.theta * self.most)

    @cached_property
    def _laws(self) -> tuple[list[_Atoms], _Atoms, int]:
        """Of the types, of the one further report, and how many reports of types there are."""
        laws, pair = self.pair.laws, self.pair
        floors = [_floor(np.array(law), laws.blanket, self.least, self.most) for law in laws.others]
        types = [self._atoms(floor) for floor in floors]
        scale = self.unit / (1 + (pair.population - 1) * self.theta * self.least)
        apart, second, masses = self._atoms(laws.blanket / self.theta)
        visible = pair.slots / pair.population
        own = (scale * apart, scale * second, visible * masses)
        if pair.slots == pair.population:
            return types, own, pair.slots - 1
        # Client 0's report is in sight, or one more of the others', which may be of either type. That one is
        # put there in any case, or counts by what all types have in common, whichever adds less.
        either = self._atoms(np.min(floors, axis=0))
        least = min(map(_variance, types))
        few = pair.slots <= _FEW  # of which variances say little
        if not few and visible * least < (1 - visible) * (_variance(either) - least):
            return types, own, pair.slots
        rest = (either[0], either[1], (1 - visible) * either[2])
        apart, second, masses = (np.concatenate(each) for each in zip(own, rest, strict=True))
        return types, (apart, second, masses), pair.slots - 1

    def _atoms(self, law: Floats) -> _Atoms:
        """For a sub-density a; nothing is likely where a lacks mass."""
        laws = self.pair.laws
        difference = np.append(np.array(laws.difference) / law, 0.0)
        second = np.append(np.array(laws.second) / law - 1, -1.0)
        return difference, second, np.append(law, max(1 - float(law.sum()), 0.0))

    def sums(self, growth: Floats) -> MixedSums:
        """Those of the theorem."""
        types, own, trials = self._laws
        *each, last = [(apart - growth[:, None] * second, mass) for apart, second, mass in [*types, own]]
        return MixedSums(
            shift=-self.unit * growth,
            types=each,
            own=last,
            trials=trials,
            participation=1.0,
            own_participation=1.0,
        )


def _variance(atoms: _Atoms) -> float:
    return float((atoms[2] * atoms[0] ** 2).sum())


def _floor(law: Floats, blanket: Floats, least: float, most: float) -> Floats:
    """The least that a_u = θ_u·w + (1 − θ_u)·V can be, class by class, for θ_u/θ between two numbers."""
    theta = float(blanket.sum())
    rest = law - blanket
    if rest.sum() <= 0:
        return least * blanket
    rest = rest / rest.sum()
    ends = [share * blanket + (1 - share * theta) * rest for share in (least, most)]
    return np.asarray(np.minimum(*ends), dtype=np.float64)
