"""``statement`` and ``budget``: what has been spent, and what has to be said beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuffle_plugins import accounting
from shuffle_plugins import ledger as ledgers
from shuffle_plugins.cli import commands, output
from shuffle_plugins.cli.commands import number_option, option
from shuffle_plugins.cli.output import up

if TYPE_CHECKING:
    from shuffle_plugins.ledger.budget import Budget, Spent
    from shuffle_plugins.ledger.client import ClientSpending

_LEDGER_DELTA = 1e-5  # unless one is given: ledgers hold rounds, and no δ
_SQLITE, _ZIP = b"SQLite format 3\0", b"PK\x03\x04"  # how ledgers, and files of torch.save, begin
_CHECKPOINT_KEY = "privacy_accountant_state_dict"  # under which Opacus saves an accountant's state
_NEEDED = ("population", "local_epsilon", "rounds", "delta")


# -- statement ----------------------------------------------------------------------------------------------


@commands.asks(optional=_NEEDED)
def statement_command(
    context: typer.Context,
    *,
    asked: commands.Question,
    saved: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="Ledger, checkpoint or saved state; only read.", show_default=False
        ),
    ] = None,
    model: Annotated[str | None, option("--model M", "Which model of a ledger that holds several.")] = None,
    unit: Annotated[
        accounting.Unit | None, option("--unit UNIT", "What a client stands for: client, record or user.")
    ] = None,
    target_epsilon: Annotated[
        float | None, number_option("--target-epsilon EPS", "Budget to compare with.")
    ] = None,
    markdown: Annotated[bool, option("--markdown", "Print Markdown.")] = False,
    as_json: commands.JsonOption = False,
) -> None:
    """What has to be said beside an ε: unit, neighbours, adversary, trust, and what is not covered.

    FILE is a server's or a client's ledger, a checkpoint of the Opacus engine, or an accountant's
    state_dict() as JSON or by torch.save. Without it the options describe the rounds. Of a ledger δ is 1e-5
    unless given.
    """
    if markdown and as_json:
        raise typer.BadParameter("give --markdown or --json, not both")
    about: dict[str, Any] = {
        "unit": accounting.Unit.CLIENT if unit is None else unit,
        "target_epsilon": target_epsilon,
        "target_adversary": accounting.Adversary(asked.adversary),
    }
    if saved is not None:
        rounds = {each.name for each in fields(commands.Question)} - {"adversary", "delta"}
        commands.refuse_given(context, sorted(rounds), "the file holds the rounds")
        found = _of_file(saved, delta=asked.delta, model=model, about=about, unit=unit)
    else:
        if model is not None:
            raise typer.BadParameter("--model is for a ledger")
        needed = _NEEDED if asked.sampling == "full" else (*_NEEDED, "cohort")
        missing = [f"--{name.replace('_', '-')}" for name in needed if getattr(asked, name) is None]
        if missing:
            raise typer.BadParameter(f"without a FILE, {' and '.join(missing)} must be given")
        accountant = accounting.ShuffleAccountant(method=asked.method)
        accountant.step(asked.round(), num_steps=asked.rounds)
        found = accounting.PrivacyStatement.of(
            accountant, delta=asked.delta, subject="rounds as described", **about
        )
    if not output.answered(as_json, found.to_dict()):
        output.remark(found.to_markdown() if markdown else found.to_text(width=min(output.width(), 100)))


def _of_file(
    path: Path, *, delta: float | None, model: str | None, about: dict[str, Any], unit: accounting.Unit | None
) -> accounting.PrivacyStatement:
    with path.open("rb") as file:
        beginning = file.read(len(_SQLITE))
    if beginning == _SQLITE:
        delta = _LEDGER_DELTA if delta is None else delta
        return ledgers.read_statement(path, delta=delta, model=model, **about)
    if model is not None:
        raise typer.BadParameter("--model is for a ledger")
    state = _read_state(path, by_torch=beginning.startswith(_ZIP))
    target = state.get("target")
    if isinstance(target, (list, tuple)) and len(target) == 2 and about["target_epsilon"] is None:
        about = about | {"target_epsilon": target[0], "target_delta": target[1]}
        delta = target[1] if delta is None else delta
    if delta is None:
        raise typer.BadParameter("--delta is needed: a saved state has rounds, and no δ")
    subject = "a saved accountant"
    if "mechanism" in state:  # an accountant of the Opacus engine says by which of the two it is
        subject += " of the Opacus engine"
        if unit is None:
            about = about | {"unit": accounting.Unit.RECORD}
    return accounting.PrivacyStatement.of(
        _accountant_of(state), delta=delta, subject=subject, warnings=state.get("warnings", ()), **about
    )


def _read_state(path: Path, *, by_torch: bool) -> Mapping[str, Any]:
    if by_torch:
        import torch

        try:
            found = torch.load(path, weights_only=True, map_location="cpu")
        except (RuntimeError, UnpicklingError, EOFError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(
                f"{path} cannot be read by torch.load with weights_only=True: {reason}"
            ) from error
    else:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{path} is no ledger, no JSON and no file of torch.save ({error}); give json.dumps of an "
                "accountant's state_dict()"
            ) from error
    if isinstance(found, Mapping):
        found = found.get(_CHECKPOINT_KEY, found)
    if not isinstance(found, Mapping) or not {"history", "core"} & set(found):
        raise ValueError(f"{path} holds no accountant's state: give what its state_dict() returned")
    return found


def _accountant_of(state: Mapping[str, Any]) -> accounting.ShuffleAccountant | accounting.FederatedAccountant:
    """The accountant whose state it is: of one adversary, of federated rounds, or of the Opacus engine."""
    if "core" in state:  # the engine's own form
        return _accountant_of(state["core"])
    kept = {name: accounting.as_tuples(value) for name, value in state.items()}
    kind = accounting.FederatedAccountant if "participation" in kept else accounting.ShuffleAccountant
    accountant = kind(method=kept.get("method", "pld"))
    accountant.load_state_dict(kept)
    return accountant


# -- budget -------------------------------------------------------------------------------------------------


def budget_command(
    ledger: Annotated[
        Path, typer.Argument(metavar="LEDGER", help="File of a server's or of a client's ledger; only read.")
    ],
    model: Annotated[str | None, option("--model M", "Only this model; all unless given.")] = None,
    delta: Annotated[
        float | None, number_option("--delta -d DELTA", "δ in (0, 1), the run's own; else 1e-5.")
    ] = None,
    as_json: commands.JsonOption = False,
) -> None:
    """What federated training has cost, by model and run, or one client by run; also while it is going on."""
    asked = _LEDGER_DELTA if delta is None else delta
    found: Any
    if ledgers.is_client_ledger(ledger):
        if model is not None:
            raise typer.BadParameter("--model is for a server's ledger; this is a client's")
        client = ledgers.read_client_budget(ledger, delta=asked)
        found = _by_run(client, _client_json, client=True, delta=client.delta)
        parts = [_client_parts(client)] if client.runs else []
    else:
        budgets = ledgers.read_budget(ledger, delta=asked, model=model)
        found = [_by_run(each, _model_json, model=each.model) for each in budgets]
        parts = [_model_parts(budget) for budget in budgets]
    if output.answered(as_json, found):
        return
    for each in parts:
        output.show(*each, "")
    if not parts:
        output.remark("No rounds yet.")
    elif delta is None:
        output.remark(f"A ledger has no δ of its own: this is for {asked:g}; give the run's by --delta.")


def _by_run(budget: Budget[Any], plain: Callable[[Any], dict[str, Any]], **facts: Any) -> dict[str, Any]:
    runs = [{"run": run, **plain(spent)} for run, spent in budget.runs.items()]
    return facts | plain(budget.total) | {"runs": runs}


def _model_json(spent: Spent) -> dict[str, Any]:
    spending = spent.spending
    return {
        "rounds": {str(state): count for state, count in spent.rounds.items()},
        "rounds_charged": spending.num_rounds,
        "reports": spent.reports,
        "worst_client_rounds": spending.worst_client_rounds,
        "delta": spending.delta,
        "neighbouring_relation": spending.observer.neighbouring_relation,
        **{
            name: {"adversary": end.adversary, **output.interval_json(end)}
            for name, end in (("observer", spending.observer), ("server", spending.server))
        },
        "local_epsilon": _finite(spending.local_epsilon),
    }


def _client_json(spent: ClientSpending) -> dict[str, Any]:
    return {
        "rounds": spent.reports,
        "server_upper": _finite(spent.epsilon),
        "local_epsilon": _finite(spent.local_epsilon),
        "local_delta": spent.local_delta,
    }


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _model_parts(budget: Budget[Spent]) -> list[Any]:
    def row(run: str, spent: Spent) -> dict[str, str]:
        spending = spent.spending
        return {
            "run": run,
            "rounds": ", ".join(f"{count:,} {state}" for state, count in spent.rounds.items() if count),
            "reports": f"{spent.reports:,}",
            "ε observer": up(spending.observer.upper),
            "ε server": up(spending.server.upper),
            "ε local": up(spending.local_epsilon),
        }

    def ends(end: accounting.EpsilonInterval) -> str:
        upper = f"at most {up(end.upper)} by {end.upper_bound}"
        known = end.lower_bound != "none"
        return f"{upper}; at least {output.down(end.lower)} by {end.lower_bound}" if known else upper

    spending = budget.total.spending
    return [
        _runs(f"Budget of {budget.model}", budget, row),
        f"at δ = {spending.delta:g} · {spending.observer.neighbouring_relation} neighbours · "
        f"{spending.num_rounds:,} rounds charged",
        f"observer: reads the model, does not see who took part · {ends(spending.observer)}",
        f"server: sees who answers; the client with most rounds, {spending.worst_client_rounds:,} · "
        f"{ends(spending.server)}",
        "local: nobody is trusted; Σ ε0 of the client with most reports",
    ]


def _client_parts(budget: Budget[ClientSpending]) -> list[Any]:
    def row(run: str, spent: ClientSpending) -> dict[str, str]:
        return {
            "run": run,
            "rounds": f"{spent.reports:,}",
            "ε server": up(spent.epsilon),
            "Σ ε0": up(spent.local_epsilon),
            "Σ δ0": up(spent.local_delta),
        }

    return [
        _runs("A client's ledger", budget, row),
        f"ε server: at δ = {budget.delta:g}, replace-one neighbours, against a server that knows in which "
        "rounds the client took part; each round as one of the fewest reports that the client was promised",
        "Σ ε0, Σ δ0: nobody is trusted",
    ]


def _runs(title: str, budget: Budget[Any], row: Any) -> Any:
    rows = [row(run, spent) for run, spent in budget.runs.items()]
    several = len(rows) > 1
    rows += [row("all runs", budget.total)] if several else []
    text = {"run": ""} if budget.model is None else {"run": "", "rounds": ""}
    styles = [*[""] * (len(rows) - 1), "bold" if several else ""]
    return output.table(rows, text=text, title=title, styles=styles)
