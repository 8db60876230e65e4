"""``shuffle-plugins budget``: what a server's or a client's ledger says has been spent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shuffle_plugins import accounting
from shuffle_plugins import ledger as ledgers
from shuffle_plugins.cli import options, output
from shuffle_plugins.cli.tables import plain_table
from shuffle_plugins.core import rounded

# The δ to answer for unless one is given: ledgers hold rounds, and no δ.
_DELTA = 1e-5


def budget_command(
    ledger: Annotated[
        Path, typer.Argument(metavar="LEDGER", help="File of a server's or of a client's ledger; only read.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="Only this model; all unless given.")
    ] = None,
    delta: Annotated[
        float | None,
        options.number_option(
            "--delta",
            "-d",
            metavar="DELTA",
            help="δ in (0, 1), the run's own; else 1e-5.",
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """What federated training has cost, by model and run, or one client by run; also while it is going on."""
    asked = _DELTA if delta is None else delta
    if ledgers.is_client_ledger(ledger):
        if model is not None:
            raise typer.BadParameter("--model is for a server's ledger; this is a client's")
        client = ledgers.read_client_budget(ledger, delta=asked)
        if as_json:
            return output.print_json(_client_json(client))
        found = [(_client_table(client), *_client_footing(client))] if client.runs else []
    else:
        budgets = ledgers.read_budget(ledger, delta=asked, model=model)
        if as_json:
            return output.print_json([_model_json(budget) for budget in budgets])
        found = [(_model_table(budget), *_model_footing(budget)) for budget in budgets]
    for table, *footing in found:
        output.show(table, *footing, "")
    if not found:
        output.remark("No rounds yet.")
    elif delta is None:
        output.remark(f"A ledger has no δ of its own: this is for {_DELTA:g}; give the run's by --delta.")
    return None


def _model_table(budget: ledgers.ModelBudget) -> Table:
    return _table(
        f"Budget of {budget.model}",
        left=("run", "rounds"),
        right=("reports", "ε observer", "ε server", "ε local"),
        runs={run: _model_cells(spent) for run, spent in budget.runs.items()},
        total=_model_cells(budget.total),
    )


def _client_table(budget: ledgers.ClientBudget) -> Table:
    return _table(
        "A client's ledger",
        left=("run",),
        right=("rounds", "ε server", "Σ ε0", "Σ δ0"),
        runs={run: _client_cells(spent) for run, spent in budget.runs.items()},
        total=_client_cells(budget.total),
    )


def _table(
    title: str,
    *,
    left: Iterable[str],
    right: Iterable[str],
    runs: Mapping[str, list[str]],
    total: list[str],
) -> Table:
    """One row per run, and one for all of them if there are several."""
    table = plain_table(title, title_style="bold")
    for heading in left:
        table.add_column(heading)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    for run, cells in runs.items():
        table.add_row(escape(run), *cells)
    if len(runs) > 1:
        table.add_row("all runs", *total, style="bold")
    return table


def _model_cells(spent: ledgers.Spent) -> list[str]:
    states = ", ".join(f"{count:,} {state}" for state, count in spent.rounds.items() if count)
    spending = spent.spending
    epsilons = (spending.observer.upper, spending.server.upper, spending.local_epsilon)
    return [states, f"{spent.reports:,}", *(rounded(epsilon, up=True) for epsilon in epsilons)]


def _client_cells(spent: ledgers.ClientSpent) -> list[str]:
    spending = spent.spending
    sums = (spent.epsilon, spending.local_epsilon, spending.local_delta)
    return [f"{spending.reports:,}", *(rounded(value, up=True) for value in sums)]


def _model_footing(budget: ledgers.ModelBudget) -> list[str]:
    """What the numbers of a model's budget mean, a line for each adversary."""
    spending = budget.total.spending
    relation = spending.observer.neighbouring_relation
    return [
        f"at δ = {spending.delta:g} · {relation} neighbours · {spending.num_rounds:,} rounds charged",
        f"observer: reads the model, does not see who took part · {_ends(spending.observer)}",
        f"server: sees who answers; the client with most rounds, {spending.worst_client_rounds:,} · "
        f"{_ends(spending.server)}",
        "local: nobody is trusted; Σ ε0 of the client with most reports",
    ]


def _client_footing(budget: ledgers.ClientBudget) -> list[str]:
    """What the numbers of a client's ledger mean."""
    return [
        f"ε server: at δ = {budget.delta:g}, replace-one neighbours, against a server that knows in which "
        "rounds the client took part; each round as one of the fewest reports that the client was promised",
        "Σ ε0, Σ δ0: nobody is trusted",
    ]


def _ends(found: accounting.EpsilonInterval) -> str:
    upper = f"at most {rounded(found.upper, up=True)} by {found.upper_bound}"
    if found.lower_bound == "none":
        return upper
    return f"{upper}; at least {rounded(found.lower, up=False)} by {found.lower_bound}"


def _model_json(budget: ledgers.ModelBudget) -> dict[str, Any]:
    runs = [{"run": run, **_spent_json(spent)} for run, spent in budget.runs.items()]
    return {"model": budget.model, **_spent_json(budget.total), "runs": runs}


def _spent_json(spent: ledgers.Spent) -> dict[str, Any]:
    spending = spent.spending
    return {
        "rounds": {str(state): count for state, count in spent.rounds.items()},
        "rounds_charged": spending.num_rounds,
        "reports": spent.reports,
        "worst_client_rounds": spending.worst_client_rounds,
        "delta": spending.delta,
        "neighbouring_relation": spending.observer.neighbouring_relation,
        "observer": _interval_json(spending.observer),
        "server": _interval_json(spending.server),
        "local_epsilon": _finite(spending.local_epsilon),
    }


def _interval_json(found: accounting.EpsilonInterval) -> dict[str, Any]:
    return {"adversary": found.adversary, **output.interval_json(found)}


def _client_json(budget: ledgers.ClientBudget) -> dict[str, Any]:
    runs = [{"run": run, **_client_spent_json(spent)} for run, spent in budget.runs.items()]
    return {"client": True, "delta": budget.delta, **_client_spent_json(budget.total), "runs": runs}


def _client_spent_json(spent: ledgers.ClientSpent) -> dict[str, Any]:
    spending = spent.spending
    return {
        "rounds": spending.reports,
        "server_upper": _finite(spent.epsilon),
        "local_epsilon": _finite(spending.local_epsilon),
        "local_delta": spending.local_delta,
    }


def _finite(epsilon: float) -> float | None:
    """The number, or null in its place: JSON has no infinity."""
    return epsilon if math.isfinite(epsilon) else None
