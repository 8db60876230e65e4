"""What a privacy statement consists of: guarantees, rounds, a budget, accesses to the data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, TypeVar

from shuffle_plugins.accounting.intervals import EpsilonInterval
from shuffle_plugins.accounting.terms import NEIGHBOURING_RELATION, Adversary

_Number = TypeVar("_Number", int, float)

NOTHING_RECORDED = "no round was recorded: this says nothing of anything that was released all the same"
_ALL_NAMED = "Σ ε0, no amplification"
_NO_LOCAL = "none: what a client sends is not private by itself, or Σ δ0 of its reports exceeds δ"


class Cover(StrEnum):
    """Whether ε covers an access to the data."""

    COVERED = "covered"
    NOT_COVERED = "not covered"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class DataAccess:
    """Something that is computed from the clients' data.

    Attributes:
        what: what is computed.
        cover: whether ε covers it.
        detail: why, or under which condition.
    """

    what: str
    cover: Cover
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantee:
    """What holds against one adversary.

    Attributes:
        adversary: its name; ``"any"`` if nothing was recorded.
        sees: what it is taken to see.
        delta: δ in [0, 1).
        epsilon: ε at δ; None if none can be certified.
        detail: whose ε it is, or why there is none; may be empty.
    """

    adversary: str
    sees: str
    delta: float
    epsilon: EpsilonInterval | None
    detail: str = ""

    @classmethod
    def of_nothing(cls, *, delta: float) -> Self:
        """ε = 0, as nothing was recorded."""
        found = EpsilonInterval(
            lower=0.0,
            upper=0.0,
            delta=delta,
            neighbouring_relation=NEIGHBOURING_RELATION,
            adversary="any",
            upper_bound="there is nothing to bound",
            lower_bound="none",
        )
        return cls(adversary="any", sees="sees nothing", delta=delta, epsilon=found, detail=NOTHING_RECORDED)

    @classmethod
    def of_sum(cls, local_epsilon: float, *, delta: float, detail: str = "") -> Self:
        """What is left if nobody is trusted: Σ ε0, or nothing if that is infinite."""
        return cls.bounded(
            local_epsilon,
            bound=_ALL_NAMED,
            adversary=Adversary.LOCAL,
            delta=delta,
            detail=detail,
            none=_NO_LOCAL,
        )

    @classmethod
    def bounded(
        cls, upper: float, *, bound: str, adversary: Adversary, delta: float, detail: str, none: str
    ) -> Self:
        """From an upper end alone.

        Args:
            upper: certified ε, or infinity.
            bound: its name.
            adversary: against whom.
            delta: δ of ε.
            detail: said if there is an ε.
            none: said if there is none.
        """
        found = EpsilonInterval(
            lower=0.0,
            upper=upper,
            delta=delta,
            neighbouring_relation=NEIGHBOURING_RELATION,
            adversary=adversary.value,
            upper_bound=bound,
            lower_bound="none",
        )
        finite = upper < math.inf
        return cls(
            adversary=adversary.value,
            sees=adversary.sees,
            delta=delta,
            epsilon=found if finite else None,
            detail=detail if finite else none,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedRounds:
    """Rounds of one kind, whose numbers of clients may differ.

    Attributes:
        mechanism: what makes them private, as they describe it.
        rounds: how many there are.
        unreleased: how many of them let nothing out, and are charged before the server alone.
        local_epsilon: ε0 of what a client sends in one; infinite if that alone is not private, None if it is
            not known.
        local_delta: its δ0.
        population: smallest and largest n.
        cohort: smallest and largest k; None if it is not known.
        sampling: how clients are chosen.
        seen: what may be seen of the clients' messages.
        secrecy: what of the sampling must stay secret.
        source: where the bounds on these rounds come from.
    """

    mechanism: str
    rounds: int
    unreleased: int
    local_epsilon: float | None
    local_delta: float
    population: tuple[int, int]
    cohort: tuple[float, float] | None
    sampling: str
    seen: str
    secrecy: str
    source: str

    def with_more(self, other: StatedRounds) -> StatedRounds:
        """These rounds and more of the same kind."""
        return replace(
            self,
            rounds=self.rounds + other.rounds,
            unreleased=self.unreleased + other.unreleased,
            population=_both(self.population, other.population),
            cohort=None if self.cohort is None or other.cohort is None else _both(self.cohort, other.cohort),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedTarget:
    """A budget, and how the rounds so far compare with it.

    Attributes:
        epsilon: ε that must not be exceeded.
        delta: its δ.
        adversary: against whom.
        spent: certified ε of the rounds so far, at that δ; infinite if there is none.
    """

    epsilon: float
    delta: float
    adversary: str
    spent: float

    @property
    def exceeded(self) -> bool:
        """Whether the rounds cost more than the budget."""
        return not self.spent <= self.epsilon

    @property
    def warning(self) -> str | None:
        """That the budget is exceeded; None if it is not."""
        over = (
            f"the budget ε ≤ {self.epsilon:g} at δ = {self.delta:g} against the {self.adversary} is exceeded"
        )
        return over if self.exceeded else None


def _both(one: tuple[_Number, _Number], other: tuple[_Number, _Number]) -> tuple[_Number, _Number]:
    """Smallest and largest of two ranges."""
    return min(one[0], other[0]), max(one[1], other[1])
