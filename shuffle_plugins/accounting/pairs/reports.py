r"""What one report tells: its blanket, its gains beside others alike, types of others, its information.

Against everybody else's law :math:`R_z`, a report y of the differing client has the gains
:math:`u = R_x(y)/R_z(y) - 1` and :math:`v = R_{x'}(y)/R_z(y) - 1`. Types *cover* all records if, for every
E ≥ 1, all x, x' and z, the law of (R_x − E·R_x')/R_z is in convex order below a mixture of those of the types
(``docs/proofs/accounting.md``, section 3c).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any, Self

import numpy as np

from shuffle_plugins.accounting.numerics.sums import Floats
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import LocalEpsilon, NotNegative, Positive, Ranged, in_range, one_of

Atoms = tuple[tuple[float, float, float], ...]
"""Triples (u, v, mass): the two gains of a report, and how likely it is under everybody else's record."""

_MOST_READINGS = 400
_MOST_LISTED = 64
_ROUNDOFF = 1e-12


def two_level_atoms(*, local_epsilon: float, shares: Mapping[tuple[int, ...], float]) -> Atoms:
    """Of mechanisms whose reports are likely, by e^ε0, or not.

    Args:
        local_epsilon: ε0 in nats.
        shares: for each (a, b, c) how much of the blanket's mass is in reports that are likely for x if a,
            for x' if b, and for z if c. Where nothing is likely the mass follows from the others.
    """
    atoms: dict[tuple[float, float], float] = {}
    for (a, b, c), share in shares.items():
        if share <= 0 or not (a or b or c):
            continue
        gains = math.expm1((a - c) * local_epsilon), math.expm1((b - c) * local_epsilon)
        atoms[gains] = atoms.get(gains, 0.0) + share * math.exp(c * local_epsilon)
    return _completed(atoms)


def product_atoms(*, likely: Sequence[float], held: Sequence[int]) -> Atoms:
    """Of reports of several signs, each flipped by itself; x is all plus and x' all minus.

    Args:
        likely: for each sign, the probability that it is sent as it is; above 1/2.
        held: what z has for each: 1, −1, or 0 for a fair coin.
    """
    digits = 14 - math.ceil(math.log10(math.fsum(math.log(up / (1 - up)) for up in likely)))
    laws = {(0.0, 0.0): 1.0}
    for up, sign in zip(likely, held, strict=True):
        mean = 2 * up - 1
        other = (1 + sign * mean) / 2
        parts = [((1 + s * mean) / 2, (1 - s * mean) / 2, (other if s > 0 else 1 - other)) for s in (1, -1)]
        grown: dict[tuple[float, float], float] = {}
        for (u, v), mass in laws.items():
            for first, second, third in parts:
                # Kept as logarithms, so that equal products meet.
                key = (
                    round(u + math.log(first / third), digits),
                    round(v + math.log(second / third), digits),
                )
                grown[key] = grown.get(key, 0.0) + mass * third
        laws = grown
    gains = {(math.expm1(u), math.expm1(v)): mass for (u, v), mass in laws.items()}
    if len(gains) <= _MOST_LISTED:
        return _completed(gains)
    firsts, seconds = (np.array([pair[side] for pair in gains]) for side in (0, 1))
    return read_coarsely(firsts, seconds, np.array(list(gains.values())))


def diluted(atoms: Atoms, share: float) -> Atoms:
    """Of a mechanism whose report is, with probability ``share``, one of these, and else tells nothing."""
    if share >= 1:
        return atoms
    return _completed({(u, v): share * mass for u, v, mass in atoms if u or v})


def read_coarsely(u: Floats, v: Floats, mass: Floats) -> Atoms:
    """Reports of many gains, put together where u − v is nearly the same; at equal means.

    Args:
        u: gains, R_x/R_z − 1.
        v: gains, R_x'/R_z − 1.
        mass: under R_z; what is missing to one tells nothing.
    """
    score = u - v
    order = np.argsort(score, kind="stable")
    u, v, mass, score = u[order], v[order], mass[order], score[order]
    energy = float(mass @ score**2)
    # Least is lost where cells are as wide as the density to the power −1/3.
    gaps = np.gradient(score) if len(score) > 2 else np.ones(len(score))
    along = np.cumsum(np.cbrt(mass * gaps**2))
    for cells in np.unique(np.round(np.geomspace(4, _MOST_READINGS, 24))):
        index = np.minimum((along / along[-1] * cells).astype(np.int64), int(cells) - 1)
        if len(mass) <= 16:  # as they are
            index = np.arange(len(mass))
        total, first, second = (
            np.bincount(index, weights=column).astype(np.float64) for column in (mass, mass * u, mass * v)
        )
        keep = total > 0
        total, first, second = total[keep], first[keep], second[keep]
        # 1 - 2e-4: of the information, where reports are read coarsely
        if float(((first - second) ** 2 / total).sum()) >= (1 - 2e-4) * energy:
            break
    columns = zip((first / total).tolist(), (second / total).tolist(), total.tolist(), strict=True)
    return _completed({(a, b): m for a, b, m in columns})


def information(atoms: Atoms) -> float:
    """Variance of the privacy loss of one report, times the square of how many hide it."""
    return sum(mass * (u - v) * (u - v) for u, v, mass in atoms)  # infinite, not an error, at the largest ε0


def most_telling(candidates: Iterable[Atoms]) -> Atoms:
    """The one of the most :func:`information`."""
    return max(candidates, key=information)


def checked_atoms(atoms: Iterable[tuple[float, float, float]], *, within: float) -> Atoms:
    """One law's atoms as floats; ``within`` bounds errors of their mass, and of means relative to gains."""
    found = tuple((float(u), float(v), float(mass)) for u, v, mass in atoms)
    if not all(map(math.isfinite, (x for atom in found for x in atom))):
        raise ValueError("an instance's atoms must be finite numbers")
    if any(mass < 0 or min(u, v) < -1 for u, v, mass in found):
        raise ValueError("an instance's atom needs a mass that is not negative, and gains of at least -1")
    total = math.fsum(mass for _, _, mass in found)
    means = [math.fsum(atom[i] * atom[2] for atom in found) for i in (0, 1)]
    sizes = [math.fsum(abs(atom[i]) * atom[2] for atom in found) for i in (0, 1)]
    if abs(total - 1) > within or any(
        abs(mean) > within * (1 + size) for mean, size in zip(means, sizes, strict=True)
    ):
        raise ValueError(
            f"an instance's masses must sum to 1 and its gains have mean 0, got {total!r} and {means}: check "
            "that the atoms are (R_x/R_z − 1, R_x'/R_z − 1, R_z) and that none is missing"
        )
    return found


def _completed(atoms: Mapping[tuple[float, float], float]) -> Atoms:
    """With the mass of all other reports, read as one, such that no gain has a mean."""
    mass = math.fsum(atoms.values())
    found = [(u, v, m) for (u, v), m in atoms.items() if m > 0]
    left = 1 - mass
    if left > _ROUNDOFF:
        mean_u = math.fsum(u * m for u, _, m in found)
        mean_v = math.fsum(v * m for _, v, m in found)
        found.append((-mean_u / left, -mean_v / left, left))
    return tuple(found)


_ROUNDOFF_OF_SUMS = 2.0**-48  # of sums of a few terms
_SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class RecordTypes(Ranged):
    """Types that cover the records of a randomizer that all clients share.

    Attributes:
        types: two or three laws of (R_x/R_z − 1, R_x'/R_z − 1) under R_z. Exchanging x and x' turns the set
            of them into itself: the bound then holds for both directions.
        common: θ in (0, 1], such that θ·w ≤ R_z for every z, with a probability density w.
        shared: the law of (R_x/w − 1, R_x'/w − 1) under w, or one that covers it for all x and x'.

    Raises:
        ValueError: if masses do not sum to one, gains have a mean, or the types are not symmetric.
    """

    types: tuple[Atoms, ...]
    common: Annotated[float, in_range(above=0, at_most=1)]
    shared: Atoms

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "types", tuple(map(_checked, self.types)))
        object.__setattr__(self, "shared", _checked(self.shared))
        if len(self.types) not in (2, 3):
            raise ValueError(f"two or three types of others can be mixed, got {len(self.types)}")
        exchanged = [tuple((v, u, mass) for u, v, mass in each) for each in self.types]
        if not all(any(_alike(each, other) for other in self.types) for each in exchanged):
            raise ValueError("exchanging the two records must turn the types of others into each other")

    @classmethod
    def generic(cls, local_epsilon: float) -> Self:
        """Of any ε0-LDP randomizer: binary response with z = x or x', ternary response with a third value.

        ``docs/proofs/accounting.md``, section 3c.
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

        ``docs/proofs/accounting.md``, section 3b.
        """
        return cls(
            types=_binary(local_epsilon),
            common=2 / (math.exp(local_epsilon) + 1),
            shared=_opposite(local_epsilon),
        )

    @classmethod
    def two_level(cls, *, local_epsilon: float, shares: Mapping[tuple[int, ...], float]) -> Self:
        """Of reports that are likely, by e^ε0, or not, where any three records are like any other three.

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
            types=(*_like_either(local_epsilon, both), _two_levels(local_epsilon, shares)),
            common=common,
            shared=tuple(
                (common * gain * a - rest, common * gain * b - rest, m / common)
                for (a, b), m in both.items()
                if m > 0
            ),
        )

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
        return replace(self, types=tuple(map(with_none, self.types)), common=common, shared=(*shared, none))

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
    found = checked_atoms(atoms, within=_ROUNDOFF_OF_SUMS)
    for i in (0, 1):
        mean = math.fsum(atom[i] * atom[2] for atom in found)
        if abs(mean) > _ROUNDOFF_OF_SUMS * math.fsum(abs(atom[i]) * atom[2] for atom in found):
            raise ValueError(f"gains of other clients' reports must have mean 0, got {mean!r}")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class InformationBound(Ranged):
    """Upper bounds on how much one report of a randomizer can tell.

    For any two records x and x' of client 1 there has to be a probability density w over reports, which may
    depend on x and x', with the properties below. R_z is the law of a report about the record z.

    Attributes:
        information: I, an upper bound on Σ_y (R_x(y) − R_x'(y))²/R_z(y) for all records x, x' and z. If a
            report names a place that is drawn by one law for all records, the mean over places of the sum
            given the place.
        common: θ in (0, 1], such that θ·w(y) ≤ R_z(y) for all records z and reports y.
        heaviest: h, such that R_x(y)/w(y) and R_x'(y)/w(y) lie between e^−ε0·h and h for all y.
    """

    information: Positive
    common: Annotated[float, in_range(above=0, at_most=1)]
    heaviest: Positive

    @classmethod
    def of_blanket(cls, *, local_epsilon: float, information: float, mass: float) -> Self:
        """For a randomizer whose blanket of this total mass is known; w is the blanket, scaled to one."""
        return cls(information=information, common=mass, heaviest=math.exp(local_epsilon) * mass)

    @classmethod
    def of_any(cls, *, local_epsilon: float, information: float) -> Self:
        """For any ε0-LDP randomizer; w is the larger of R_x and R_x' at each y, scaled to a total of one."""
        share = math.exp(-local_epsilon)
        return cls(information=information, common=share, heaviest=2 / (1 + share))


_MASS_TOLERANCE = 1e-11


class Form(StrEnum):
    """What the reports of a blanket are, and so how they are accounted.

    ``CORNERS``: both weights of every report are 1 or e^ε0, but for those listed as edges.
    ``CLONES``: weights relative to the even mixture of the two records, one of 1/(e^ε0 + 1) and one of
    e^ε0/(e^ε0 + 1) of 2·e^ε0. (ε0, δ0) reports are accounted by it.
    ``BIT``: a report is one randomised bit and nothing else, so that its shuffle is a count.
    """

    CORNERS = "corners"
    CLONES = "clones"
    BIT = "bit"


@dataclass(frozen=True, kw_only=True)
class Blanket(Ranged):
    r"""Law of one report's two weights under the privacy blanket, at the corners of :math:`[1, e^{ε_0}]^2`.

    Let :math:`ω(y) = \inf_x R_x(y)`. A report drawn from ω weighs :math:`r_0 = R_{x_1}(y)/ω(y)` for the
    differing client's record and :math:`r_1 = R_{x_1'}(y)/ω(y)` for its replacement; both have mean one. The
    rest of a report's mass carries no weight.

    The law is that of the worst pair of records: for every other pair, equal records among them, and every
    E ≥ 0, the law of :math:`r_0 - E r_1` must spread, at equal mean, to the one given (convex order). Epochs
    and check-ins rest on this (Claim 6 of ``docs/proofs/accounting.md``).

    Attributes:
        local_epsilon: ε0 of the randomizer, in nats.
        differing: mass of :math:`(e^{ε_0}, 1)`, equal to the mass of :math:`(1, e^{ε_0})`.
        low: mass of :math:`(1, 1)`.
        high: mass of :math:`(e^{ε_0}, e^{ε_0})`.
        edges: pairs (r, mass) with 1 < r < e^ε0: that mass at (r, 1) and as much at (1, r).
        exact: whether two records of the mechanism really have these atoms. Only then does the blanket also
            give a lower bound on what the mechanism leaks.
        outside: mass of the reports of weights (e^ε0, 1) to which some third record gives no more than the
            blanket, and by symmetry of those of weights (1, e^ε0); zero if there is no such record. It makes
            a lower bound.
        tail: mass of the differing client's own report that the weights leave out, charged to δ.
        form: what the reports are.
        instances: datasets in which everybody else holds one record; each makes a lower bound.
        others: types that cover the records of all other clients, if it is proved that some do. The reports
            then hide each other by all that they are, not by the blanket alone; the smaller bound holds.
        information_bound: upper bounds on what one report can tell, if they are known: the smaller bound
            holds.

    Raises:
        ValueError: if a mass is negative or the weights do not have mean one.
    """

    local_epsilon: LocalEpsilon
    differing: NotNegative
    low: NotNegative = 0.0
    high: NotNegative = 0.0
    edges: tuple[tuple[float, float], ...] = ()
    exact: bool = True
    outside: NotNegative = 0.0
    tail: Annotated[float, in_range(at_least=0, below=1)] = 0.0
    form: Annotated[Form, one_of(Form)] = Form.CORNERS
    instances: tuple[Atoms, ...] = ()
    others: RecordTypes | None = None
    information_bound: InformationBound | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "edges", tuple((float(r), float(mass)) for r, mass in self.edges))
        instances = (checked_atoms(each, within=_MASS_TOLERANCE) for each in self.instances)
        object.__setattr__(self, "instances", tuple(instances))
        if self.others is not None:
            self._check_others(self.others)
        if self.information_bound is not None and (self.form is Form.CLONES or self.tail):
            raise ValueError(
                "only a blanket of pure reports (no tail, not clones) may carry an information_bound"
            )
        e = math.exp(self.local_epsilon)
        if not all(1 < r < e and 0 <= mass < math.inf for r, mass in self.edges):
            raise ValueError("an edge's weight must lie between 1 and e^ε0, and have a mass")
        if self.form is not Form.CORNERS and (self.low or self.high or self.edges or self.tail):
            raise ValueError(f"a blanket of the form {self.form} has differing reports only")
        if self.outside > self.differing or (self.outside and self.form is not Form.CORNERS):
            raise ValueError("no third record can be outside of more reports than there are")
        mean_weight = (self.strong + self.weak) * self.differing + self.low + e * self.high + self.tail
        mean_weight += math.fsum(mass * (r + 1) for r, mass in self.edges)
        if abs(mean_weight - 1) > _MASS_TOLERANCE:
            raise ValueError(
                f"blanket weights must have mean 1, got {mean_weight!r}: check that the atoms are "
                "(R_x1/ω, R_x1'/ω, ω) and that none is missing"
            )

    def _check_others(self, others: RecordTypes) -> None:
        if self.form is Form.CLONES or self.tail:
            raise ValueError("only pure reports have types of others: no tail, not clones")
        most, rounding = math.exp(self.local_epsilon), 2.0**-50  # of 1 + u where u is next to −1
        for u, v, _ in (atom for law in others.types for atom in law):
            low, high = min(1.0, 1 + u, 1 + v) + rounding, max(1.0, 1 + u, 1 + v)
            if high > most * low * (1 + _MASS_TOLERANCE):
                raise ValueError(
                    f"an other's report has the likelihoods (1 + {u!r}, 1 + {v!r}), relative to its own, "
                    f"which are further apart than ε0={self.local_epsilon!r} allows"
                )

    @property
    def strong(self) -> float:
        """The larger weight of a report that speaks for one record."""
        return math.exp(self.local_epsilon) * self.weak

    @property
    def difference(self) -> float:
        """``strong`` − ``weak``, free of cancellation."""
        return math.expm1(self.local_epsilon) * self.weak

    @property
    def weak(self) -> float:
        """The smaller weight of a report that speaks for one record."""
        return 2 / (1 + math.exp(-self.local_epsilon)) if self.form is Form.CLONES else 1.0

    @classmethod
    def generic(cls, local_epsilon: float, *, exact: bool = True) -> Self:
        """Binary randomized response: the worst case over every ε0-LDP randomizer (Claim 2 of the proofs).

        Also for randomizers that are chosen by what earlier clients of the round reported (Claim 6). A
        mechanism merely bounded by it is not ``exact``, and gets no lower bound.
        """
        checks.local_epsilon(local_epsilon)
        return cls(local_epsilon=local_epsilon, differing=1.0 / (math.exp(local_epsilon) + 1.0), exact=exact)

    @classmethod
    def clones(cls, local_epsilon: float) -> Self:
        """A blanket of clones: what (ε0, δ0) reports still have once their δ0 is charged (Theorem 3.8).

        Feldman, McMillan, Talwar 2021: a report is a clone of the differing client's with probability e^-ε0.
        Of ε0-LDP reports it holds too, and is wider than :meth:`generic`.
        """
        checks.local_epsilon(local_epsilon)
        return cls(
            local_epsilon=local_epsilon, differing=math.exp(-local_epsilon) / 2, exact=False, form=Form.CLONES
        )

    @classmethod
    def bit(cls, local_epsilon: float, *, exact: bool = True) -> Self:
        """Binary randomized response of one number per client: reports are bits, and only counted."""
        return replace(cls.sign(local_epsilon, exact=exact), form=Form.BIT)

    @classmethod
    def sign(cls, local_epsilon: float, *, exact: bool = True) -> Self:
        """A public index, drawn without looking at the record, and the record's bit there, randomised.

        The bit is flipped with probability 1/(e^ε0 + 1), and the index is drawn by one law for all records
        and clients: one coordinate of many, one coefficient, one bit plane, or the only bit. ``exact`` says
        whether some record has a one, and another a zero, at every index.
        """
        return replace(cls.generic(local_epsilon, exact=exact), others=RecordTypes.sign(local_epsilon))

    @classmethod
    def from_atoms(cls, *, local_epsilon: float, atoms: Iterable[tuple[float, float, float]]) -> Self:
        """Any blanket law, as triples (r0, r1, mass) with weights in [1, e^ε0], split over the corners.

        That is a mean-preserving spread, so a valid upper bound; exact when every atom is a corner already.
        """
        checks.local_epsilon(local_epsilon)
        e = math.exp(local_epsilon)
        differing = mirrored = low = high = 0.0
        corners_only = True
        for r0, r1, mass in atoms:
            x, y = (_corner_coordinate(r, e) for r in (r0, r1))
            if math.isnan(x) or math.isnan(y) or not mass >= 0:
                raise ValueError(f"atom ({r0}, {r1}, {mass}) is not a blanket atom at ε0={local_epsilon}")
            corners_only = corners_only and {x, y} <= {0.0, 1.0}
            differing += mass * x * (1 - y)
            mirrored += mass * (1 - x) * y
            low += mass * (1 - x) * (1 - y)
            high += mass * x * y
        if abs(differing - mirrored) > _MASS_TOLERANCE:
            raise ValueError("the two records' weights must have equal mean: atoms are incomplete")
        return cls(
            local_epsilon=local_epsilon,
            differing=max(differing, mirrored),
            low=low,
            high=high,
            exact=corners_only,
        )

    def shared(self) -> Self:
        """The same of a randomizer that all clients share and that follows from no report of the round.

        It has the types of others that cover every such randomizer, where these give the smaller bound.
        """
        others = RecordTypes.generic(self.local_epsilon)
        gain = math.expm1(self.local_epsilon)
        own = 2 * self.differing * gain * gain + 2 * math.fsum(m * (r - 1) ** 2 for r, m in self.edges)
        return replace(self, others=others) if others.information < own else self

    @property
    def mass(self) -> float:
        """Total mass of the blanket, at most one."""
        return 2 * self.differing + self.low + self.high + 2 * math.fsum(mass for _, mass in self.edges)

    def state(self) -> tuple[Any, ...]:
        """The blanket as a plain tuple, for checkpoints."""
        return tuple(each.value if isinstance(each, Form) else each for each in astuple(self))

    @classmethod
    def from_state(cls, state: tuple[Any, ...]) -> Self:
        """Rebuild a blanket from :meth:`state`."""
        try:
            found = _named(cls, state)
            for name, kind in (("others", RecordTypes), ("information_bound", InformationBound)):
                if found[name] is not None:
                    found[name] = kind(**_named(kind, found[name]))
            return cls(**found)
        except TypeError as error:
            raise ValueError(f"not the state of a Blanket: {state!r}") from error


def _named(kind: type[Any], state: Sequence[Any]) -> dict[str, Any]:
    """A dataclass's fields from a plain sequence of them."""
    names = [each.name for each in fields(kind)]
    if not isinstance(state, (tuple, list)) or len(state) != len(names):
        raise ValueError(f"not the state of a {kind.__name__}: {state!r}")
    return dict(zip(names, state, strict=True))


def _corner_coordinate(weight: float, largest: float) -> float:
    """Where in [0, 1] a weight lies between 1 and e^ε0, freed of rounding; nan outside."""
    above, fraction = weight - 1.0, (weight - 1.0) / (largest - 1.0)
    if not -1e-9 <= fraction <= 1 + 1e-9:
        return math.nan
    if abs(above) <= 1e-9 and fraction < 1e-9:
        return 0.0
    return 1.0 if fraction > 1 - 1e-9 else max(fraction, 0.0)
