"""What an accountant answers: intervals of ε and of δ that say what they hold for, and named bounds."""

from __future__ import annotations

from dataclasses import dataclass

from shuffle_plugins.accounting.losses.distribution import BoundKind
from shuffle_plugins.core import rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interval:
    """What intervals of ε and of δ share; :class:`EpsilonInterval` says what the fields are."""

    lower: float
    upper: float
    neighbouring_relation: str
    adversary: str
    upper_bound: str
    lower_bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonInterval(_Interval):
    """What ε is known to be at ``delta``.

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

    def __str__(self) -> str:
        """One line: the interval, δ, relation, adversary and the bounds' names."""
        return _in_a_line("ε", self, f"δ = {self.delta:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaInterval(_Interval):
    """What δ is known to be at ``epsilon``: certified bounds, with the fields of :class:`EpsilonInterval`."""

    epsilon: float

    def __str__(self) -> str:
        """One line: the interval, ε, relation, adversary and the bounds' names."""
        return _in_a_line("δ", self, f"ε = {self.epsilon:g}")


def known(quantity: str, found: EpsilonInterval | DeltaInterval) -> str:
    """The interval as text, such as ``ε ∈ [0.2, 0.3]``; without a lower bound, ``ε ≤ 0.3``."""
    upper, lower = rounded(found.upper, up=True), rounded(found.lower, up=False)
    return f"{quantity} ∈ [{lower}, {upper}]" if found.lower_bound != "none" else f"{quantity} ≤ {upper}"


def _in_a_line(quantity: str, found: EpsilonInterval | DeltaInterval, at: str) -> str:
    return (
        f"{known(quantity, found)} at {at} ({found.neighbouring_relation} neighbours, "
        f"adversary: {found.adversary}; upper: {found.upper_bound}, lower: {found.lower_bound})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBound:
    """One bound on ε: its name, whether it bounds from above or below, its value and where it comes from."""

    name: str
    kind: BoundKind
    epsilon: float
    source: str
