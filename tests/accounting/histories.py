"""Rounds and histories that many tests ask about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shuffle_plugins.accounting import (
    FederatedAccountant,
    FederatedRound,
    Method,
    Round,
    ShuffleAccountant,
    ShuffleRound,
)
from shuffle_plugins.mechanisms import registry


def shuffled(
    local_epsilon: float, population: int, cohort: float, *, dim: int | None = None, **fields: Any
) -> ShuffleRound:
    """A shuffled round of one channel; ``dim`` takes the blanket of the registered ``mechanism``."""
    if dim is not None:
        fields["blanket"] = registry.blanket(fields["mechanism"], local_epsilon=local_epsilon, dim=dim)
    fields = {"channel_fixed": True, **fields}
    return ShuffleRound(local_epsilon=local_epsilon, population=population, cohort=cohort, **fields)


def accountant_of(*entries: Round | tuple[Round, int], method: Method = "pld") -> ShuffleAccountant:
    """An accountant of rounds, each with its number of steps if there are several."""
    accountant = ShuffleAccountant(method=method)
    for entry in entries:
        each, steps = (entry, 1) if isinstance(entry, Round) else entry
        accountant.step(each, num_steps=steps)
    return accountant


def recorded(*entries: tuple[FederatedRound, Iterable[str] | None]) -> FederatedAccountant:
    """An accountant of federated rounds, each with its participants."""
    accountant = FederatedAccountant()
    for each, participants in entries:
        accountant.step(each, participants=participants)
    return accountant
