"""Words that all of the accounting shares: who is drawn, who looks, and what an accountant answers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from enum import StrEnum
from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING, Literal, get_args

from shuffle_plugins.core import checks, rounded

if TYPE_CHECKING:  # the command line's --help loads no NumPy
    from shuffle_plugins.accounting.losses import BoundKind

Method = Literal["pld", "rdp"]
"""How upper bounds of rounds compose: privacy loss distributions, the tightest, or Rényi divergences."""

MAX_POPULATION = 10**15
"""Above this a population does not fit a float64 exactly, together with the counts that are taken from it."""


class NeighbouringRelation(StrEnum):
    """Which two datasets are neighbours.

    ``REPLACE_ONE``, of everything that is shuffled: one client's record is replaced by another.
    ``ADD_OR_REMOVE_ONE``, of a trusted server: one of them has one client's record more.
    """

    REPLACE_ONE = "replace-one"
    ADD_OR_REMOVE_ONE = "add-or-remove-one"


NEIGHBOURING_RELATION = NeighbouringRelation.REPLACE_ONE.value


class Unit(StrEnum):
    """The unit of privacy: neighbours differ in all that one client holds, in one record, or in all data of
    one person, provided that every person is one client and no two share one.
    """

    CLIENT = "client"
    RECORD = "record"
    USER = "user"


class Sampling(StrEnum):
    """How the clients of a round are chosen from the population.

    ``WITHOUT_REPLACEMENT``: k of n, uniformly. ``POISSON``: each client with probability γ, on its own; the
    number of reports is public. ``FULL``: everybody. ``SINGLE_PASS``: anybody cuts the population into
    disjoint batches. ``CHECK_IN``: each client picks, in secret and uniformly, the one round of a pass in
    which it reports. ``EPOCH``: the population is put into a fresh order, uniformly and in secret, and cut
    into batches, as ``DataLoader(shuffle=True)`` does; what a batch does may follow from earlier ones.
    """

    WITHOUT_REPLACEMENT = "without-replacement"
    POISSON = "poisson"
    FULL = "full"
    SINGLE_PASS = "single-pass"
    CHECK_IN = "check-in"
    EPOCH = "epoch"


class Adversary(StrEnum):
    """Against whom a guarantee holds.

    ``MODEL_OBSERVER`` sees what a round releases but not who took part, so sampling amplifies. ``SERVER``
    also sees who took part: only rounds in which the client took part may be recorded, each at the cost of
    full participation in its cohort. ``LOCAL`` sees every report with its sender's name: it costs its
    ``local_epsilon``, and no round can be measured against it.
    """

    MODEL_OBSERVER = "model-observer"
    SERVER = "server"
    LOCAL = "local"

    @property
    def sees(self) -> str:
        """What it is taken to see, in a few words."""
        return {
            "model-observer": "sees all that the rounds release, but not who took part",
            "server": "sees all that the rounds release, and who took part in which",
            "local": "sees every report with its sender's name: nobody is trusted",
        }[self]


_DRAWN = {
    Sampling.WITHOUT_REPLACEMENT: "k of n are drawn uniformly for each round; the adversary must not learn "
    "who was drawn",
    Sampling.POISSON: "each client is drawn with probability k/n, independently of the others; the adversary "
    "must not learn who was drawn, though it may learn how many",
    Sampling.FULL: "everybody takes part, so that nothing about sampling has to be secret and sampling earns "
    "nothing",
    Sampling.SINGLE_PASS: "anybody cuts the population into disjoint batches, of which nothing has to be "
    "secret; a client is in one batch of each pass, and a pass counts as one round",
    Sampling.CHECK_IN: "each client picks one batch of a pass uniformly; the adversary must not learn "
    "which, and a pass counts as one round",
    Sampling.EPOCH: "the population is put into a fresh uniform order and cut into batches; the adversary "
    "must not learn the order, and an epoch counts as one round",
}


def check_method(method: Method) -> Method:
    """Return the method; ValueError if there is no such."""
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {get_args(Method)}, got {method!r}")
    return method


def round_adversary(adversary: Adversary | str) -> Adversary:
    """The adversary that a round is measured against; not ``LOCAL``, before whom no round hides anything."""
    found = checks.choice(Adversary, "adversary", adversary)
    if found is Adversary.LOCAL:
        raise ValueError(
            "the adversary 'local' sees every report with its sender's name, so no shuffling or sampling "
            "hides it: its ε is the local_epsilon of a client's reports, added up; use that instead"
        )
    return found


def honest_clients(count: int, fraction: float) -> int:
    """How many of so many clients are counted on: the product of decimals, rounded down; 0.7 of 10 are 7."""
    return math.floor(Fraction(repr(checks.number("honest_fraction", fraction, above=0, at_most=1))) * count)


@dataclass(frozen=True, kw_only=True)
class CohortDraw:
    """How a round's cohort comes about, and who looks: fields as of ``Round``, which derives from it."""

    population: int
    cohort: float
    sampling: Sampling
    adversary: Adversary

    @property
    def sampling_rate(self) -> float:
        """γ = cohort / population."""
        return self.cohort / self.population

    @property
    def sees_cohort(self) -> bool:
        """Whether the adversary sees who took part."""
        return self.adversary is Adversary.SERVER

    @property
    def secrecy(self) -> str:
        """How clients are sampled, and what of it must stay secret for ε to hold."""
        if self.sees_cohort:
            return (
                "the adversary sees who takes part, so that sampling earns nothing; counted are the rounds "
                "that one client takes part in"
            )
        return _DRAWN[self.sampling]

    @property
    def spans_batches(self) -> bool:
        """Whether a report hides among those of other batches, whose inputs may follow from it."""
        return self.sampling is Sampling.CHECK_IN or (
            self.sampling is Sampling.EPOCH and not self.sees_cohort
        )


def _by_upper(compare: Callable[[float, float], bool]) -> Callable[[_Interval, object], bool]:
    """A comparison of an interval with a number, or with another interval of the same question."""

    def compared(interval: _Interval, other: object) -> bool:
        if isinstance(other, _Interval):
            if other._at != interval._at:
                raise ValueError(f"intervals at {interval._at} and at {other._at} have no order")
            other = other.upper
        return compare(interval.upper, float(other)) if isinstance(other, Real) else NotImplemented

    return compared


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interval:
    lower: float
    upper: float
    neighbouring_relation: str
    adversary: str
    upper_bound: str
    lower_bound: str

    @property
    def _at(self) -> str:
        raise NotImplementedError

    def __format__(self, spec: str) -> str:
        """Both ends by a format of numbers, such as ``.3f``, rounded outwards; without one, ``str``."""
        if not spec:
            return str(self)
        ends = []
        for end, rounding in ((self.lower, ROUND_FLOOR), (self.upper, ROUND_CEILING)):
            with localcontext(rounding=rounding):
                ends.append(format(Decimal(end), spec))
        return f"[{', '.join(ends)}]"

    __lt__, __le__ = _by_upper(operator.lt), _by_upper(operator.le)
    __gt__, __ge__ = _by_upper(operator.gt), _by_upper(operator.ge)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonInterval(_Interval):
    """What ε is known to be at ``delta``.

    ``f"{interval:.3f}"`` prints both ends, rounded outwards. ``interval <= 3.0`` and the other comparisons,
    also with another interval at the same δ, are of ``upper``.

    Attributes:
        lower: ε that a real mechanism (with the generic blanket: the worst one) and adversary attain.
        upper: certified ε. This is the guarantee.
        upper_bound, lower_bound: names of the bounds behind the ends.
    """

    delta: float

    @classmethod
    def below(
        cls,
        upper: float,
        *,
        bound: str,
        delta: float,
        adversary: str,
        neighbouring_relation: str = NEIGHBOURING_RELATION,
    ) -> EpsilonInterval:
        """Of an upper end alone, and the name of its bound."""
        return cls(
            lower=0.0,
            upper=upper,
            delta=delta,
            neighbouring_relation=neighbouring_relation,
            adversary=adversary,
            upper_bound=bound,
            lower_bound="none",
        )

    @property
    def _at(self) -> str:
        return f"δ = {self.delta:g}"

    def __str__(self) -> str:
        return _in_a_line("ε", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaInterval(_Interval):
    """What δ is known to be at ``epsilon``: certified bounds, with the fields of :class:`EpsilonInterval`."""

    epsilon: float

    @property
    def _at(self) -> str:
        return f"ε = {self.epsilon:g}"

    def __str__(self) -> str:
        return _in_a_line("δ", self)


def known(quantity: str, found: EpsilonInterval | DeltaInterval) -> str:
    """The interval as text, such as ``ε ∈ [0.2, 0.3]``; without a lower bound, ``ε ≤ 0.3``."""
    upper, lower = rounded(found.upper, up=True), rounded(found.lower, up=False)
    return f"{quantity} ∈ [{lower}, {upper}]" if found.lower_bound != "none" else f"{quantity} ≤ {upper}"


def _in_a_line(quantity: str, found: EpsilonInterval | DeltaInterval) -> str:
    return (
        f"{known(quantity, found)} at {found._at} ({found.neighbouring_relation} neighbours, "
        f"adversary: {found.adversary}; upper: {found.upper_bound}, lower: {found.lower_bound})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBound:
    """One bound on ε: its name, whether it bounds from above or below, its value and where it comes from."""

    name: str
    kind: BoundKind
    epsilon: float
    source: str


def delta_warning(delta: float, *, population: int | None) -> str | None:
    """That δ is more than one client's share of the population; None if it is not, or there are no rounds."""
    if population is None or delta <= 1 / population:
        return None
    return "δ is above 1/population: showing the data of one client, drawn at random, would be allowed"
