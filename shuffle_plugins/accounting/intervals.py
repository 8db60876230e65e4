"""What an accountant answers: intervals of ε and of δ that say what they hold for, and named bounds."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from numbers import Real

from shuffle_plugins.accounting.losses.distribution import BoundKind
from shuffle_plugins.core import rounded


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
    """What intervals of ε and of δ share; :class:`EpsilonInterval` says what the fields are."""

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
    also with another interval at the same δ, are of ``upper``, the guarantee.

    Attributes:
        lower: ε that a real mechanism and adversary attain, rounded down. With the generic blanket it bounds
            the worst case over ε0-LDP randomizers; it says that ``upper`` cannot be improved below it.
        upper: certified ε, rounded up. This is the guarantee.
        delta: δ both are for.
        neighbouring_relation: always ``"replace-one"``.
        adversary: against whom the rounds were measured.
        upper_bound: name of the bound behind ``upper``.
        lower_bound: name of the bound behind ``lower``.
    """

    delta: float

    @property
    def _at(self) -> str:
        return f"δ = {self.delta:g}"

    def __str__(self) -> str:
        """One line: the interval, δ, relation, adversary and the bounds' names."""
        return _in_a_line("ε", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaInterval(_Interval):
    """What δ is known to be at ``epsilon``: certified bounds, with the fields of :class:`EpsilonInterval`."""

    epsilon: float

    @property
    def _at(self) -> str:
        return f"ε = {self.epsilon:g}"

    def __str__(self) -> str:
        """One line: the interval, ε, relation, adversary and the bounds' names."""
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
