"""The privacy blanket of a randomizer, reduced to the few numbers that accounting needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from typing import Any, Self

from shuffle_plugins.accounting.pairs.instances import Atoms, checked_atoms
from shuffle_plugins.accounting.pairs.record_types import RecordTypes
from shuffle_plugins.accounting.pairs.spread import InformationBound
from shuffle_plugins.core import checks

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Blanket:
    r"""Law of one report's two weights under the privacy blanket, at the corners of :math:`[1, e^{ε_0}]^2`.

    Let :math:`ω(y) = \inf_x R_x(y)`. A report drawn from ω weighs :math:`r_0 = R_{x_1}(y)/ω(y)` for the
    differing client's record and :math:`r_1 = R_{x_1'}(y)/ω(y)` for its replacement. Both lie in
    :math:`[1, e^{ε_0}]` and have mean one under ω. What matters for accounting is how often the pair is
    where; the rest of a report's mass is outside the blanket and carries no weight.

    The law is that of the worst pair of records: for every other pair, equal records among them, and every
    E ≥ 0, the law of :math:`r_0 - E r_1` must spread, at equal mean, to the one given (convex order). Epochs
    and check-ins, in which records' meanings change from batch to batch, rest on this (Claim 6 of
    ``docs/proofs/accounting.md``, which proves it for all laws of corners that some pair attains).

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
        instances: datasets in which everybody else holds one record z, each as triples (u, v, mass): with
            R_z, the law of a report about z, u = R_x/R_z − 1 and v = R_x'/R_z − 1 have that mass under R_z.
            Exact, or a coarser reading of reports; each makes a lower bound.
        others: types that cover the records of all other clients, if it is proved that some do. The reports
            then hide each other by all that they are, not by the blanket alone; the smaller bound holds.
        information_bound: upper bounds on what one report can tell, if they are known. The accountant then
            computes both the bound that follows from them and the bound that follows from the masses, and
            takes the smaller one.

    Raises:
        ValueError: if a mass is negative or the weights do not have mean one.
    """

    local_epsilon: float
    differing: float
    low: float = 0.0
    high: float = 0.0
    edges: tuple[tuple[float, float], ...] = ()
    exact: bool = True
    outside: float = 0.0
    tail: float = 0.0
    form: Form = Form.CORNERS
    instances: tuple[Atoms, ...] = ()
    others: RecordTypes | None = None
    information_bound: InformationBound | None = None

    def __post_init__(self) -> None:
        checks.local_epsilon(self.local_epsilon)
        object.__setattr__(self, "form", Form(self.form))
        object.__setattr__(self, "edges", tuple((float(r), float(mass)) for r, mass in self.edges))
        instances = (checked_atoms(each, within=_MASS_TOLERANCE) for each in self.instances)
        object.__setattr__(self, "instances", tuple(instances))
        if self.others is not None:
            self._check_others(self.others)
        if self.information_bound is not None and (self.form is Form.CLONES or self.tail):
            raise ValueError(
                "only a blanket of pure reports (no tail, not clones) may carry an information_bound"
            )
        masses = (self.differing, self.low, self.high, self.outside, self.tail, *(m for _, m in self.edges))
        if not all(math.isfinite(x) and x >= 0 for x in masses):
            raise ValueError("blanket masses must be finite and not negative")
        e = math.exp(self.local_epsilon)
        if not all(1 < r < e for r, _ in self.edges):
            raise ValueError("an edge's weight must lie between 1 and e^ε0")
        if self.form is not Form.CORNERS and (self.low or self.high or self.edges or self.tail):
            raise ValueError(f"a blanket of the form {self.form} has differing reports only")
        if self.outside > self.differing or (self.outside and self.form is not Form.CORNERS):
            raise ValueError("no third record can be outside of more reports than there are")
        if self.tail >= 1:
            raise ValueError(f"the tail must be a probability below 1, got {self.tail!r}")
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

        Also for randomizers that are chosen by what earlier clients of the round reported (Claim 6).

        Args:
            local_epsilon: ε0 in nats, in [1e-9, 500].
            exact: leave it true for the worst case itself and for a mechanism that attains it; a mechanism
                merely bounded by it says False, and gets no lower bound.
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
            local_epsilon=local_epsilon,
            differing=math.exp(-local_epsilon) / 2,
            exact=False,
            form=Form.CLONES,
        )

    @classmethod
    def bit(cls, local_epsilon: float, *, exact: bool = True) -> Self:
        """Binary randomized response of one number per client: reports are bits, and only counted.

        Arguments are those of :meth:`generic`.
        """
        return replace(cls.sign(local_epsilon, exact=exact), form=Form.BIT)

    @classmethod
    def sign(cls, local_epsilon: float, *, exact: bool = True) -> Self:
        """A public index, drawn without looking at the record, and the record's bit there, randomised.

        The bit is flipped with probability 1/(e^ε0 + 1), and the index is drawn by one law for all records
        and clients: one coordinate of many, one coefficient, one bit plane, or the only bit. The others'
        reports hide by all that they are, not by the blanket alone. Arguments are those of
        :meth:`generic`; ``exact`` says whether some record has a one, and another a zero, at every index.
        """
        return replace(cls.generic(local_epsilon, exact=exact), others=RecordTypes.sign(local_epsilon))

    @classmethod
    def from_atoms(cls, *, local_epsilon: float, atoms: Iterable[tuple[float, float, float]]) -> Self:
        """Reduce any blanket law to corner masses.

        A pair of weights inside the square is split over the four corners at equal mean. That is a
        mean-preserving spread, so accounting with the result is a valid upper bound; it is exact when every
        atom is a corner already.

        Args:
            local_epsilon: ε0 in nats.
            atoms: triples (r0, r1, mass) with both weights in [1, e^ε0].

        Raises:
            ValueError: if a weight is outside [1, e^ε0], or the masses do not belong to one randomizer.
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
        """The blanket as a plain tuple of float, bool, str and tuples, for checkpoints.

        Without instances, types of others and a bound on information it is as it was before there were any.
        """
        *fields, form, instances, others, information = astuple(self)
        last = [instances, others, information]
        while last and not last[-1]:
            last.pop()
        return (*fields, form.value, *last)

    @classmethod
    def from_state(cls, state: tuple[Any, ...]) -> Self:
        """Rebuild a blanket from :meth:`state`.

        Raises:
            ValueError: if the tuple is not one that :meth:`state` writes.
        """
        names = [field.name for field in dataclass_fields(cls)]
        if not isinstance(state, (tuple, list)) or not len(names) - 3 <= len(state) <= len(names):
            raise ValueError(f"not the state of a Blanket: {state!r}")
        fields = dict(zip(names, state, strict=False))
        try:
            if fields.get("others") is not None:
                fields["others"] = RecordTypes.from_state(fields["others"])
            if fields.get("information_bound") is not None:
                fields["information_bound"] = InformationBound.from_state(fields["information_bound"])
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"not the state of a Blanket: {state!r}") from error


def _corner_coordinate(weight: float, largest: float) -> float:
    """Where in [0, 1] a weight lies between 1 and e^ε0, freed of rounding; nan outside.

    A weight is 1 only if it is so close to it in units of one and of the range: what is small beside e^ε0 may
    still tell a lot.
    """
    above, fraction = weight - 1.0, (weight - 1.0) / (largest - 1.0)
    if not -1e-9 <= fraction <= 1 + 1e-9:
        return math.nan
    if abs(above) <= 1e-9 and fraction < 1e-9:
        return 0.0
    return 1.0 if fraction > 1 - 1e-9 else max(fraction, 0.0)
