"""What a budget ledger says, for people: by model and by run. Only reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shuffle_plugins.accounting import FederatedSpending
from shuffle_plugins.ledger.budget import (
    BudgetFile,
    LedgerRound,
    RoundState,
    read_accountant,
    read_models,
    read_rounds,
)
from shuffle_plugins.ledger.client import Charged, ClientSpending, epsilon_of, read_reports
from shuffle_plugins.ledger.database import StrPath
from shuffle_plugins.ledger.errors import LedgerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Rounds of a run, or of a model over all its runs, and what they cost.

    Attributes:
        rounds: number of rounds in each state.
        reports: reports received.
        spending: their cost; rounds left open are charged the most they can have cost.
    """

    rounds: dict[RoundState, int]
    reports: int
    spending: FederatedSpending


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelBudget:
    """What one model cost.

    Attributes:
        model: name of the model.
        runs: each run's part, by its name, in the order they began.
        total: all runs together; their ε compose and do not add up.
    """

    model: str
    runs: dict[str, Spent]
    total: Spent


def read_budget(path: StrPath, *, delta: float, model: str | None = None) -> list[ModelBudget]:
    """The budgets in a file that others may be writing to.

    Args:
        path: a budget ledger; it is not made.
        delta: δ in (0, 1) of every ε.
        model: only this one; all of them by default.

    Raises:
        FileNotFoundError: if there is no such file.
        LedgerError: if it is no budget ledger, or has no rounds of ``model``.
        ValueError: if ``delta`` is out of range, or less than what the rounds' own δ0 adds up to.
    """
    with BudgetFile(path, create=False) as database, database.reading() as connection:
        models = read_models(connection)
        if model is not None and model not in models:
            known = ", ".join(map(repr, models)) or "none"
            raise LedgerError(f"{path} has no rounds of {model!r}; models in it: {known}")
        kept = []
        for name in models if model is None else [model]:
            rounds = read_rounds(connection, name)
            whole = read_accountant(connection, name)
            names = list(dict.fromkeys(each.run for each in rounds))
            parts = (
                {run: read_accountant(connection, name, run=run) for run in names} if len(names) > 1 else {}
            )
            kept.append((name, rounds, whole, names, parts))
    # The file is free again: composing may take a second.
    budgets = []
    for name, rounds, whole, names, parts in kept:
        total = _spent(rounds, whole.spending(delta))
        runs = {
            run: _spent([each for each in rounds if each.run == run], part.spending(delta))
            for run, part in parts.items()
        }
        budgets.append(ModelBudget(model=name, runs=runs or {names[0]: total}, total=total))
    return budgets


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSpent:
    """What a client has spent in a run, or in all of them.

    Attributes:
        spending: its reports, Σ ε0 and Σ δ0: its guarantee if nobody is trusted.
        epsilon: the certified ε against a server that knows when it took part, each round being of as many
            reports as the client was promised; infinite if there is none.
    """

    spending: ClientSpending
    epsilon: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientBudget:
    """What one client has spent, by run and in all."""

    runs: dict[str, ClientSpent]
    total: ClientSpent
    delta: float


def read_client_budget(path: StrPath, *, delta: float) -> ClientBudget:
    """What is in a client's ledger, which others may be writing to.

    Args:
        path: a client's ledger; it is not made.
        delta: δ in (0, 1) of every ε.

    Raises:
        FileNotFoundError: if there is no such file.
        LedgerError: if it is no client's ledger.
        ValueError: if ``delta`` is out of range.
    """
    runs = read_reports(path)
    everything: Counter[Charged] = Counter()
    for history in runs.values():
        everything.update(history)
    return ClientBudget(
        runs={run: _client_spent(history, delta) for run, history in runs.items()},
        total=_client_spent(everything, delta),
        delta=delta,
    )


def _client_spent(history: Mapping[Charged, int], delta: float) -> ClientSpent:
    return ClientSpent(spending=ClientSpending.of(history), epsilon=epsilon_of(history, delta=delta))


def _spent(rounds: Sequence[LedgerRound], spending: FederatedSpending) -> Spent:
    states = Counter(each.state for each in rounds)
    received = (e.charged.reports for e in rounds if e.charged is not None and e.state is not RoundState.OPEN)
    return Spent(
        rounds={state: states[state] for state in RoundState}, reports=sum(received), spending=spending
    )
