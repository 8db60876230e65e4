"""What a privacy statement takes from an accountant: guarantees, rounds, a budget, and who took part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shuffle_plugins.accounting.accountant import ShuffleAccountant
from shuffle_plugins.accounting.federated.accountant import ClientSpread, FederatedAccountant
from shuffle_plugins.accounting.intervals import EpsilonInterval
from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.accounting.statement.parts import Guarantee, StatedRounds, StatedTarget
from shuffle_plugins.accounting.terms import Adversary, Unit
from shuffle_plugins.core import checks


@dataclass(frozen=True, slots=True)
class _Entry:
    """A round, how many times, what of its sampling must stay secret, and whether anything was released."""

    round: Round
    steps: int
    local_delta: float
    secrecy: str
    released: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """What an accountant says at one δ.

    Attributes:
        guarantees: against each adversary.
        rounds: by kind.
        spread: over clients; None if it is not known.
        unit: the unit of privacy that the rounds themselves allow.
        largest_population: the largest n; None without rounds.
    """

    guarantees: tuple[Guarantee, ...]
    rounds: tuple[StatedRounds, ...]
    spread: ClientSpread | None
    unit: Unit
    largest_population: int | None


def read(accountant: ShuffleAccountant | FederatedAccountant, *, delta: float) -> Read:
    """What an accountant says at δ; nothing is recorded in it."""
    spread = None
    if isinstance(accountant, FederatedAccountant):
        guarantees, spread = _federated_guarantees(accountant, delta), accountant.client_spread(delta)
        entries = [
            _Entry(each.observer, 1, each.local_delta, each.secrecy, released)
            for each, _, released in accountant.history
        ]
    else:
        guarantees = _guarantees(accountant, delta)
        entries = [
            _Entry(each, steps, each.local_delta, each.secrecy, True) for each, steps in accountant.history
        ]
    records = any(entry.round.UNIT is Unit.RECORD for entry in entries)
    return Read(
        guarantees=guarantees,
        rounds=_grouped(entries),
        spread=spread,
        unit=Unit.RECORD if records else Unit.CLIENT,
        largest_population=max((entry.round.population for entry in entries), default=None),
    )


def compared(
    accountant: ShuffleAccountant | FederatedAccountant,
    *,
    epsilon: float,
    delta: float,
    adversary: Adversary,
) -> StatedTarget:
    """A budget, and what the rounds cost at its δ.

    Args:
        accountant: the rounds.
        epsilon, delta: the budget.
        adversary: against whom it is; that of the rounds where they have one.

    Raises:
        ValueError: if the budget is out of range.
    """
    checks.target_epsilon(epsilon)
    if isinstance(accountant, FederatedAccountant):
        found = accountant.epsilon(delta, adversary=adversary, lower=False)
    else:
        found = accountant.epsilon(delta, lower=False)
    return StatedTarget(epsilon=epsilon, delta=delta, adversary=found.adversary, spent=found.upper)


def _grouped(entries: Iterable[_Entry]) -> tuple[StatedRounds, ...]:
    found: dict[tuple[Any, ...], StatedRounds] = {}
    for entry in entries:
        each = entry.round
        key = (each.KIND, each.description, entry.local_delta, each.sampling, entry.secrecy)
        one = StatedRounds(
            mechanism=each.description,
            rounds=entry.steps,
            unreleased=0 if entry.released else entry.steps,
            local_epsilon=each.local_epsilon,
            local_delta=entry.local_delta,
            population=(each.population, each.population),
            cohort=(each.cohort, each.cohort),
            sampling=each.sampling.value,
            seen=each.seen,
            secrecy=entry.secrecy,
            source=each.SOURCE,
        )
        found[key] = found[key].with_more(one) if key in found else one
    return tuple(found.values())


def _guarantees(accountant: ShuffleAccountant, delta: float) -> tuple[Guarantee, ...]:
    if not accountant.history:
        return (Guarantee.of_nothing(delta=delta),)
    adversary = accountant.history[0][0].adversary
    try:
        found, detail = accountant.epsilon(delta), ""
    except ValueError as error:  # δ was checked: no ε can be certified
        found, detail = None, str(error)
    watched = Guarantee(
        adversary=adversary.value, sees=adversary.sees, delta=delta, epsilon=found, detail=detail
    )
    left = Guarantee.of_sum(
        accountant.local_epsilon(delta), delta=delta, detail="for a client that took part in every round"
    )
    return watched, left


def _federated_guarantees(accountant: FederatedAccountant, delta: float) -> tuple[Guarantee, ...]:
    if not accountant.num_rounds:
        return (Guarantee.of_nothing(delta=delta),)
    most = accountant.worst_client_rounds
    of_whom = {
        Adversary.MODEL_OBSERVER: "for any client",
        Adversary.SERVER: f"for the client that took part most often, in {most} of {accountant.num_rounds} "
        "rounds; every other client's is no larger",
    }
    found = []
    for adversary, detail in of_whom.items():
        epsilon: EpsilonInterval | None = None
        try:
            epsilon = accountant.epsilon(delta, adversary=adversary)
        except ValueError as error:  # δ was checked: no ε can be certified
            detail = f"{detail}; {error}"
        found.append(
            Guarantee(
                adversary=adversary.value, sees=adversary.sees, delta=delta, epsilon=epsilon, detail=detail
            )
        )
    local = accountant.epsilon(delta, adversary=Adversary.LOCAL, lower=False).upper
    return (*found, Guarantee.of_sum(local, delta=delta, detail="for the client that reported most"))
