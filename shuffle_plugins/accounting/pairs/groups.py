r"""Pairs of rounds in one encoding whose groups of clients have an ε0 each.

Reports of all groups look alike: there is one density w with :math:`θ_g w ≤ R^{(g)}_z` for every group g and
record z. ``common`` is θ_g; u is the random number of :mod:`shuffle_plugins.accounting.pairs.others`. Proofs:
``docs/proofs/accounting.md``, section 3e.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from shuffle_plugins.accounting.numerics.sums import (
    TAIL,
    Floats,
    Law,
    MixedSums,
    bernstein_reach,
    hypergeometric_window,
)
from shuffle_plugins.accounting.pairs.others import Bucket, OthersPair, mixed_law
from shuffle_plugins.accounting.pairs.reports import Atoms, Blanket, information

_CROWDED = (0.3, 0.03, 1e-3, 1e-6, 1e-12, TAIL)
"""Each case has a most number of reports of every group, which some group exceeds with this probability."""
_PLACES = (-4.0, -2.5, -1.75, -1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 1.75, 2.5, 4.0)
"""With two groups, the first group's number of reports is cut into intervals, one case each; the second group
has the rest. These are the ends of the intervals, in standard deviations from the mean.
"""
_LISTED = 1e6  # reports, up to which the law of a group's number of them is computed number by number


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherClients:
    """Other clients of one group.

    Attributes:
        count: how many there are, at least 1.
        common: θ in (0, 1), the probability with which each sends a draw of w, whatever it holds.
        types: two laws that cover, for all z, the law of (R_x/R_z − 1, R_x'/R_z − 1) under R_z, with client
            1's R_x and R_x' and this group's R_z; empty to read reports against θ·w.
    """

    count: int
    common: float
    types: tuple[Atoms, ...] = ()

    def variance(self, spread: float) -> float:
        """What their reports, weighed by θ, add to a sum's variance; ``spread`` is of u − v under w."""
        most = max(map(information, self.types)) if self.types else spread / self.common
        return self.count * self.common**2 * most


@dataclass(frozen=True, kw_only=True, slots=True)
class _GroupsBucket(Bucket):
    """An interval of u in which at most ``counts`` reports are of each group."""

    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupsPair(OthersPair):
    """The largest profile that a round has for a member of one group; symmetric in P and Q.

    Attributes:
        local_epsilon: ε0 of client 1's own group.
        population: n, all clients of all groups.
        slots: k, how many of them report, drawn uniformly; n if ``rate`` is below 1.
        rate: γ under Poisson sampling, else 1.
        shared: the law of (R_x/w − 1, R_x'/w − 1) under w, of client 1's two worst records.
        others: everybody else, by groups.
        least: the smallest θ of all groups, client 1's own among them.
    """

    rate: float
    shared: Atoms
    others: tuple[OtherClients, ...]
    least: float

    @property
    @override
    def largest_loss(self) -> float:
        hidden = self.population - self.slots
        if not hidden:
            return self.local_epsilon
        # Who reports in client 1's place may be louder, so that its report is rarer still.
        instead = hidden / self.slots * self.least / (1 + min(v for _, v, _ in self.shared))
        return math.log1p(math.expm1(self.local_epsilon) / (1 + instead))

    @property
    def clones(self) -> float:
        """How many other clients send a draw of w, on average."""
        return math.fsum(each.count * each.common for each in self.others)

    @property
    def _seen(self) -> float:
        return self.rate * self.slots / self.population

    @property
    def _by_blanket(self) -> bool:
        """Whether everybody reports and nothing but w is used: Claim 14, which needs no u; else Claim 15."""
        return self._seen == 1 and not self.others[0].types

    @property
    @override
    def information(self) -> float:
        spread = information(self.shared)
        if self._by_blanket:
            return spread / (self.clones + self.least)
        others = math.fsum(each.variance(spread) for each in self.others)
        return self._seen * others / (1 + self.clones) ** 2

    @property
    @override
    def common(self) -> float:
        return self.clones / self.population

    @override
    def scaled_profile(self, bucket: Bucket, growth: Floats, *, share: float) -> Floats:
        return self._sums(bucket, growth).largest(share)

    @override
    def log_scaled_profile(self, bucket: Bucket, growth: Floats) -> Floats:
        return self._sums(bucket, growth).log_bound()

    @override
    def buckets(self) -> tuple[list[Bucket], float]:
        counts = tuple(each.count for each in self.others)
        if self._by_blanket:
            return [_GroupsBucket(mass=1.0, near=0.0, far=0.0, counts=counts)], 0.0
        shares, left_out = OthersPair.buckets(self)
        cases = [(1.0, counts)]
        if self.slots < self.population:
            cases, left_out = self._cases(), left_out + TAIL
        found: list[Bucket] = [
            _GroupsBucket(mass=share.mass * mass, near=share.near, far=share.far, counts=seen)
            for share in shares
            for mass, seen in cases
        ]
        return found, left_out

    @override
    def _beyond(self, gap: float) -> float:
        logs = (each.count * math.log1p(-each.common * gap) for each in self.others)
        return (1 - gap) * math.exp(math.fsum(logs))

    def _cases(self) -> list[tuple[float, tuple[int, ...]]]:
        """Probabilities, and how many of the k reports are of each group at most: more of any cost more."""
        among = self.population - 1
        if len(self.others) == 2 and self.slots <= _LISTED:
            first, law = hypergeometric_window(draws=self.slots, marked=self.others[0].count, among=among)
            counts = first + np.arange(len(law))
            mean = float(law @ counts)
            places = np.array(_PLACES) * math.sqrt(float(law @ (counts - mean) ** 2)) + mean - first
            inner = np.clip(np.rint(places), 0, len(law)).astype(np.int64)
            edges = np.unique(np.concatenate([[0], inner, [len(law)]]))
            masses = np.add.reduceat(law, edges[:-1]) * (1 + 1e-12)
            ends = zip(edges[:-1].tolist(), edges[1:].tolist(), masses.tolist(), strict=True)
            return [(mass, (first + end - 1, self.slots - first - start)) for start, end, mass in ends]
        found, before = [], 1.0
        for left in _CROWDED:
            each = left / len(self.others)
            found.append(
                (before - left, tuple(self._most(group.count, among, each) for group in self.others))
            )
            before = left
        return found

    def _most(self, size: int, among: int, left: float) -> int:
        """A number of the k reports that are of a group, exceeded with a probability of at most ``left``."""
        end, mean = min(self.slots, size), self.slots * size / among
        if mean > _LISTED:
            return min(end, math.ceil(mean + float(bernstein_reach(mean * (1 - size / among), tail=left))))
        first, law = hypergeometric_window(draws=self.slots, marked=size, among=among)
        above = np.cumsum(law[::-1])[::-1] * (1 + 1e-9) + TAIL  # at least so many
        far = np.flatnonzero(above <= left)
        return min(end, first + (int(far[0]) - 1 if len(far) else len(law)))

    def _sums(self, bucket: Bucket, growth: Floats) -> MixedSums:
        """n times what is to be positive at E = 1 + ``growth``, shape (losses,)."""
        assert isinstance(bucket, _GroupsBucket)
        if self._by_blanket:
            unit = self.population / (self.clones + self.least)
            own = self._clone(self.least, self.least, unit, growth)
        else:
            clones = math.fsum(each.count * _tilted(each.common, bucket.far) for each in self.others)
            unit = self.population / (1 + clones)
            own = self._thinned(_times(unit, mixed_law(self.shared, growth, 1.0)), self._seen)
        further: list[tuple[Law, int]] = [(own, 1)]
        groups: list[tuple[tuple[Law, Law], int]] = []
        for each, count in zip(self.others, bucket.counts, strict=True):
            weight, kept = _tilted(each.common, bucket.near), _tilted(each.common, bucket.far)
            if each.types:
                first, second = (mixed_law(law, growth, kept / each.common) for law in each.types)
                one, two = (self._thinned(_times(weight * unit, law), self.rate) for law in (first, second))
                groups.append(((one, two), count))
            else:
                further.append((self._thinned(self._clone(weight, kept, unit, growth), self.rate), count))
        types, trials = groups.pop(0) if groups else ((further[-1][0],), further.pop()[1])
        return MixedSums(
            shift=-self.population * growth, types=list(types), trials=trials, further=further, groups=groups
        )

    def _clone(self, weight: float, kept: float, unit: float, growth: Floats) -> Law:
        """A report that is read against ``kept``·w, as it is a draw of w with at least that probability."""
        return _times(weight * unit, mixed_law(self.shared, growth, kept))

    @staticmethod
    def _thinned(law: Law, rate: float) -> Law:
        return law[0], rate * law[1]


def _tilted(common: float, gap: float) -> float:
    """θ_u at u = 1 − gap."""
    return common * (1 - gap) / (1 - common * gap)


def _times(factor: float, law: Law) -> Law:
    return factor * law[0], law[1]


def shared_atoms(blanket: Blanket) -> Atoms:
    """``shared`` of a :class:`GroupsPair` whose reports have two levels; w is the blanket, scaled to one."""
    high, low = blanket.mass * blanket.strong - 1, blanket.mass * blanket.weak - 1
    laws = (
        (high, low, blanket.differing),
        (low, high, blanket.differing),
        (low, low, blanket.low),
        (high, high, blanket.high),
    )
    return tuple((u, v, mass / blanket.mass) for u, v, mass in laws if mass > 0)


def sign_types(own: float, other: float) -> tuple[Atoms, Atoms]:
    """What a bit of a client of ε0 ``other`` hides of one of ε0 ``own``: it holds x, or x'.

    Reports are a uniform index and one bit.
    """
    (q1, p1), (q, p) = ((1 / (1 + math.exp(-level)), 1 / (1 + math.exp(level))) for level in (own, other))

    def law(held: tuple[float, float]) -> Atoms:
        likelihoods = zip((q1, p1), (p1, q1), held, strict=True)
        return tuple((u / r - 1, v / r - 1, r) for u, v, r in likelihoods)

    return law((q, p)), law((p, q))
