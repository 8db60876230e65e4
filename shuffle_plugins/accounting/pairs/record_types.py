r"""What the reports of the other clients can be: a few types that cover all of their records.

A client that holds z reports by R_z. What that does for the client whose record is x or x' is told by the law
of (R_x/R_z, R_x'/R_z) under R_z, as :data:`~shuffle_plugins.accounting.pairs.instances.Atoms`. Types *cover*
the records if, for every E ≥ 1, all x and x' and every z, the law of (R_x − E·R_x')/R_z is in convex order
below a mixture of those of the types.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from shuffle_plugins.accounting.pairs.instances import Atoms, checked_atoms, information

_ROUNDOFF = 2.0**-48  # of sums of a few terms
_SAME = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordTypes:
    """Types that cover the records of a randomizer that all clients share.

    Attributes:
        types: two or three laws of (R_x/R_z − 1, R_x'/R_z − 1) under R_z. Exchanging x and x' turns the set
            of them into itself: the bound then holds for both directions.
        common: θ in (0, 1], such that θ·w ≤ R_z for every z, with a probability density w.
        shared: the law of (R_x/w − 1, R_x'/w − 1) under w, or one that covers it for all x and x'.

    Raises:
        ValueError: if a law's masses do not sum to one, or its gains do not have the mean zero; or if the
            types are not symmetric.
    """

    types: tuple[Atoms, ...]
    common: float
    shared: Atoms

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", tuple(map(_checked, self.types)))
        object.__setattr__(self, "shared", _checked(self.shared))
        object.__setattr__(self, "common", float(self.common))
        if len(self.types) not in (2, 3):
            raise ValueError(f"two or three types of others can be mixed, got {len(self.types)}")
        if not 0 < self.common <= 1:
            raise ValueError(f"what all records have in common must be in (0, 1], got {self.common!r}")
        exchanged = [tuple((v, u, mass) for u, v, mass in each) for each in self.types]
        if not all(any(_alike(each, other) for other in self.types) for each in exchanged):
            raise ValueError("exchanging the two records must turn the types of others into each other")

    @classmethod
    def generic(cls, local_epsilon: float) -> Self:
        """Of any ε0-LDP randomizer: binary response with z = x or x', ternary response with a third value.

        ``docs/proofs/accounting.md``, section 3c. In common all records have 1/e^ε0 of (R_x + R_x')/2.
        """
        share = 1 / (math.exp(local_epsilon) + 2)
        ternary: dict[tuple[int, ...], float] = {(1, 0, 0): share, (0, 1, 0): share, (0, 0, 1): share}
        return cls(
            types=(*_binary(local_epsilon), _two_levels(local_epsilon, ternary)),
            common=math.exp(-local_epsilon),
            shared=_opposite(local_epsilon),
        )

    @classmethod
    def sign(cls, local_epsilon: float) -> Self:
        """Of a public index and a bit flipped with probability 1/(e^ε0 + 1): the other's bit is like x or x'.

        ``docs/proofs/accounting.md``, section 3b. In common all records have fair bits.
        """
        return cls(
            types=_binary(local_epsilon),
            common=2 / (math.exp(local_epsilon) + 1),
            shared=_opposite(local_epsilon),
        )

    @classmethod
    def two_level(cls, *, local_epsilon: float, shares: Mapping[tuple[int, ...], float]) -> Self:
        """Of reports that are likely, by e^ε0, or not, where any three records are like any other three.

        A record z is x, x' or a third one.

        Args:
            local_epsilon: ε0.
            shares: for each (a, b, c) of zeros and ones, how much of the probability that reports have in
                common is in those that are likely for x if a, for x' if b, and for a third record if c.
        """
        both: dict[tuple[int, int], float] = {}
        for (a, b, _), share in shares.items():
            both[a, b] = both.get((a, b), 0.0) + share
        gain = math.expm1(local_epsilon)
        common = math.fsum(shares.values())
        rest = min(gain * math.fsum(share for (a, _), share in both.items() if a), 1.0)  # 1 − common
        return cls(
            types=(
                *_like_either(local_epsilon, both),
                _two_levels(local_epsilon, shares),
            ),
            common=common,
            shared=tuple(
                (common * gain * a - rest, common * gain * b - rest, m / common)
                for (a, b), m in both.items()
                if m > 0
            ),
        )

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Self:
        """Rebuild it from its fields as a plain sequence."""
        types, common, shared = state
        return cls(types=tuple(types), common=common, shared=shared)

    def thinned(self, participation: float) -> Self:
        """Of the same reports where a client sends none, whatever it holds, with probability 1 − γ.

        That none was sent is one more report, as likely for all records, so that they have more in common.
        """
        if participation == 1:
            return self
        absent, rest = 1 - participation, 1 - self.common
        common = 1 - participation * rest
        more = absent * rest / self.common  # of R_x/w at reports, relative to what it was

        def with_none(law: Atoms) -> Atoms:
            return (*((u, v, participation * mass) for u, v, mass in law), (0.0, 0.0, absent))

        seen = participation * self.common / common
        shared = tuple((u + more * (1 + u), v + more * (1 + v), mass * seen) for u, v, mass in self.shared)
        none = (-participation * rest, -participation * rest, absent / common)
        return replace(
            self,
            types=tuple(map(with_none, self.types)),
            common=common,
            shared=(*shared, none),
        )

    @property
    def information(self) -> float:
        """What one report of the type that hides least tells, as a variance of u − v."""
        return max(map(information, self.types))

    @property
    def excess(self) -> float:
        """How much more n reports tell, times n and relative to that, as client 1's own is one of them."""
        rest = 1 - self.common
        return information(self.shared) / self.common / self.common / self.information + rest / self.common


def _binary(local_epsilon: float) -> tuple[Atoms, Atoms]:
    """Binary response: the other holds x, or x'."""
    return _like_either(local_epsilon, dict.fromkeys([(1, 0), (0, 1)], 1 / (math.exp(local_epsilon) + 1)))


def _like_either(local_epsilon: float, shares: Mapping[tuple[int, int], float]) -> tuple[Atoms, Atoms]:
    """The other holds x, or x': what is likely for it is what is likely for that record."""
    return (
        _two_levels(local_epsilon, {(a, b, a): share for (a, b), share in shares.items()}),
        _two_levels(local_epsilon, {(a, b, b): share for (a, b), share in shares.items()}),
    )


def _two_levels(local_epsilon: float, shares: Mapping[tuple[int, ...], float]) -> Atoms:
    """Reports that are likely for x, x' and the other, or not: every class of them."""
    law: dict[tuple[int, int], float] = {}
    for (a, b, c), share in shares.items():
        law[a - c, b - c] = law.get((a - c, b - c), 0.0) + share * math.exp(c * local_epsilon)
    total = math.fsum(law.values())  # one, but for rounding
    return tuple(
        (math.expm1(i * local_epsilon), math.expm1(j * local_epsilon), mass / total)
        for (i, j), mass in law.items()
        if mass > 0
    )


def _opposite(local_epsilon: float) -> Atoms:
    """Read against the even mixture of x and x', weights 2/(1 + e^∓ε0) in either order."""
    gain = math.tanh(local_epsilon / 2)
    return (gain, -gain, 0.5), (-gain, gain, 0.5)


def _alike(one: Atoms, two: Atoms) -> bool:
    """Whether two laws are the same but for rounding: as much mass near each of their points."""
    reach = _SAME * max(abs(gain) for *gains, _ in (*one, *two) for gain in gains)

    def near(law: Atoms, u: float, v: float) -> float:
        return math.fsum(mass for a, b, mass in law if abs(a - u) <= reach and abs(b - v) <= reach)

    return all(math.isclose(near(one, u, v), near(two, u, v), rel_tol=_SAME) for u, v, _ in (*one, *two))


def _checked(atoms: Iterable[tuple[float, float, float]]) -> Atoms:
    """One law, whose means are zero as nearly as sums can be: those of many reports are to have none."""
    found = checked_atoms(atoms, within=_ROUNDOFF)
    for i in (0, 1):
        mean = math.fsum(atom[i] * atom[2] for atom in found)
        if abs(mean) > _ROUNDOFF * math.fsum(abs(atom[i]) * atom[2] for atom in found):
            raise ValueError(f"gains of other clients' reports must have mean 0, got {mean!r}")
    return found
