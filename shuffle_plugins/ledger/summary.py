"""What a budget ledger says, for people: by model and by run. Only reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Generic, TypeVar

from shuffle_plugins.accounting import (
    Adversary,
    FederatedAccountant,
    FederatedSpending,
    PrivacyStatement,
    ShuffleAccountant,
    Unit,
)
from shuffle_plugins.accounting.statement import Guarantee, StatedTarget
from shuffle_plugins.core import checks
from shuffle_plugins.core.database import StrPath
from shuffle_plugins.ledger.budget import (
    BudgetFile,
    LedgerRound,
    RoundState,
    read_accountant,
    read_models,
    read_rounds,
)
from shuffle_plugins.ledger.client import (
    Charged,
    ClientSpending,
    LedgerError,
    accountant_of,
    is_client_ledger,
    read_reports,
)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Rounds of a run, or of a model over all its runs, and what they cost."""

    rounds: dict[RoundState, int]  # how many in each state
    reports: int  # received
    spending: FederatedSpending  # rounds left open are charged the most they can have cost

    @classmethod
    def of(cls, rounds: Sequence[LedgerRound], spending: FederatedSpending) -> Spent:
        """From the rounds as they stand."""
        states = Counter(each.state for each in rounds)
        kept = [each for each in rounds if each.charged is not None and each.state is not RoundState.OPEN]
        return cls(
            rounds={state: states[state] for state in RoundState},
            reports=sum(each.charged.reports for each in kept if each.charged is not None),
            spending=spending,
        )


_Part = TypeVar("_Part", Spent, ClientSpending)


@dataclass(frozen=True, kw_only=True)
class Budget(Generic[_Part]):
    """What one model has cost, or one client has spent; ε of runs compose and do not add up."""

    model: str | None  # None for a client
    runs: dict[str, _Part]  # in the order they began
    total: _Part
    delta: float


def read_budget(path: StrPath, *, delta: float, model: str | None = None) -> list[Budget[Spent]]:
    """The budgets, of one model or all, in a file that others may be writing to.

    A ValueError if ``delta`` is less than what the rounds' own δ0 adds up to.
    """
    with BudgetFile(path, create=False) as database, database.reading() as connection:
        kept = {}
        for name in _models(connection, path, model):
            rounds = read_rounds(connection, name)
            runs = list(dict.fromkeys(each.run for each in rounds))
            asked = runs if len(runs) == 1 else [*runs, None]  # None: of all runs together
            kept[name] = rounds, {run: read_accountant(connection, name, run=run) for run in asked}
    # The file is free again: composing may take a second.
    budgets = []
    for name, (rounds, accountants) in kept.items():
        parts = {
            run: Spent.of([each for each in rounds if run in (None, each.run)], part.spending(delta))
            for run, part in accountants.items()
        }
        total = list(parts.values())[-1]
        by_run = {run: part for run, part in parts.items() if run is not None}
        budgets.append(Budget(model=name, runs=by_run, total=total, delta=delta))
    return budgets


def read_client_budget(path: StrPath, *, delta: float) -> Budget[ClientSpending]:
    """What is in a client's ledger, which others may be writing to."""
    runs = read_reports(path)
    return Budget(
        model=None,
        runs={run: ClientSpending.of(history, delta=delta) for run, history in runs.items()},
        total=ClientSpending.of(_together(runs.values()), delta=delta),
        delta=delta,
    )


def _together(histories: Iterable[Mapping[Charged, int]]) -> Counter[Charged]:
    everything: Counter[Charged] = Counter()
    for history in histories:
        everything.update(history)
    return everything


def _models(connection: Connection, path: StrPath, model: str | None) -> list[str]:
    """The models in a ledger, or the one that is asked for."""
    models = read_models(connection)
    if model is None:
        return models
    if model not in models:
        known = ", ".join(map(repr, models)) or "none"
        raise LedgerError(f"{path} has no rounds of {model!r}; models in it: {known}")
    return [model]


def read_statement(
    path: StrPath,
    *,
    delta: float,
    model: str | None = None,
    unit: Unit = Unit.CLIENT,
    target_epsilon: float | None = None,
    target_adversary: Adversary = Adversary.MODEL_OBSERVER,
) -> PrivacyStatement:
    """The privacy statement of a budget ledger's model, or of a client's ledger; only reads.

    ``model`` is needed where the ledger holds several. The target's adversary is that of the budget; of a
    client's ledger it is always the server.
    """
    if is_client_ledger(path):
        if model is not None:
            raise LedgerError(f"{path} is a client's ledger, which has no models: leave the model out")
        history = _together(read_reports(path).values())
        return _client_statement(history, delta=delta, unit=unit, target_epsilon=target_epsilon)
    with BudgetFile(path, create=False) as database, database.reading() as connection:
        models = _models(connection, path, model)
        if len(models) > 1:
            raise LedgerError(f"{path} has several models; name one of {', '.join(map(repr, models))}")
        name = models[0] if models else None
        accountant = FederatedAccountant() if name is None else read_accountant(connection, name)
        rounds = [] if name is None else read_rounds(connection, name)
    left_open = sum(each.state is RoundState.OPEN for each in rounds)
    warnings = [f"rounds that were begun and not ended, each charged the most that it can cost: {left_open}"]
    return PrivacyStatement.of(
        accountant,
        delta=delta,
        subject="a budget ledger" if name is None else f"the model {name!r} of a budget ledger",
        unit=unit,
        warnings=warnings if left_open else (),
        target_epsilon=target_epsilon,
        target_adversary=target_adversary,
    )


def _client_statement(
    history: Mapping[Charged, int], *, delta: float, unit: Unit, target_epsilon: float | None
) -> PrivacyStatement:
    """The statement of one client, against a server that knows in which rounds it took part."""
    spending, target = ClientSpending.of(history, delta=delta), None
    if target_epsilon is not None:
        target = StatedTarget(
            epsilon=checks.target_epsilon(target_epsilon),
            delta=delta,
            adversary=Adversary.SERVER.value,
            spent=spending.epsilon,
        )
    stated = PrivacyStatement.of(
        accountant_of(history) or ShuffleAccountant(),
        delta=delta,
        subject="one client's ledger",
        unit=unit,
        trust=(
            "the server is taken at its word on how many reports a round has; in a sealed round the mix node "
            "gives out no fewer than were promised",
            "who shuffles or adds up is unknown to the ledger. Somebody must be trusted to let nobody see "
            "more of the rounds than is said under them",
        ),
        warnings=() if target is None or target.warning is None else (target.warning,),
    )
    if not history:
        return replace(stated, target=target)
    bound = stated.guarantees[0].epsilon
    server = Guarantee.bounded(
        spending.epsilon,
        bound="none" if bound is None else bound.upper_bound,
        adversary=Adversary.SERVER,
        delta=delta,
        detail="for this client, each round being of as few reports as it was promised",
        none="a report protects nothing by itself and was promised nothing, or Σ δ0 reaches δ",
    )
    local = spending.local_epsilon if spending.local_delta <= delta else math.inf
    return replace(
        stated,
        guarantees=(server, Guarantee.of_sum(local, delta=delta, detail="for this client")),
        target=target,
    )
