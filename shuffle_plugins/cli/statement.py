"""``shuffle-plugins statement``: everything that has to be said beside an ε."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any, cast

import typer

from shuffle_plugins import accounting
from shuffle_plugins.cli import options, output
from shuffle_plugins.cli.questions import AskedRounds

# The δ of a ledger's statement unless one is given, as of `budget`: ledgers hold rounds, and no δ.
_LEDGER_DELTA = 1e-5
_SQLITE, _ZIP = b"SQLite format 3\0", b"PK\x03\x04"  # how ledgers, and files of torch.save, begin
_CHECKPOINT_KEY = "privacy_accountant_state_dict"  # under which Opacus saves an accountant's state
_NEEDED = ("population", "local_epsilon", "rounds", "delta")


def statement_command(
    context: typer.Context,
    *,
    saved: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Ledger, checkpoint or saved state; only read.",
            show_default=False,
        ),
    ] = None,
    delta: Annotated[
        float | None,
        options.number_option(
            "--delta", "-d", metavar="DELTA", help="δ in (0, 1); of a ledger 1e-5 unless given."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="Which model of a ledger that holds several.")
    ] = None,
    unit: Annotated[
        accounting.Unit | None,
        typer.Option(
            "--unit",
            metavar="UNIT",
            help="What a client stands for: client, record or user. A checkpoint's are records unless given, "
            "all others clients.",
        ),
    ] = None,
    target_epsilon: Annotated[
        float | None, options.number_option("--target-epsilon", metavar="EPS", help="Budget to compare with.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", metavar="", help="Print Markdown.")] = False,
    as_json: options.JsonOption = False,
    population: options.AnyPopulationOption = None,
    local_epsilon: options.AnyLocalEpsilonOption = None,
    rounds: options.AnyRoundsOption = None,
    cohort: options.CohortOption = None,
    sampling: options.SamplingOption = "without-replacement",
    adversary: options.AdversaryOption = "model-observer",
    method: options.MethodOption = "pld",
    mechanism: options.MechanismOption = options.GENERIC,
    dim: options.DimOption = None,
    local_delta: options.LocalDeltaOption = 0.0,
    records_per_client: options.RecordsOption = 1,
    samples_per_client: options.SamplesOption = 1,
) -> None:
    """What has to be said beside an ε: unit, neighbours, adversary, trust, and what is not covered.

    FILE is a server's or a client's ledger, a checkpoint of the Opacus engine, or an accountant's
    state_dict() as JSON or by torch.save. Without it the options describe the rounds.
    """
    if markdown and as_json:
        raise typer.BadParameter("give --markdown or --json, not both")
    about: dict[str, Any] = {
        "unit": accounting.Unit.CLIENT if unit is None else unit,
        "target_epsilon": target_epsilon,
        "target_adversary": accounting.Adversary(adversary),
    }
    if saved is None:
        if model is not None:
            raise typer.BadParameter("--model is for a ledger")
        needed = _NEEDED if sampling == "full" else (*_NEEDED, "cohort")
        missing = [f"--{name.replace('_', '-')}" for name in needed if context.params[name] is None]
        if missing:
            raise typer.BadParameter(f"without a FILE, {' and '.join(missing)} must be given")
        accountant = accounting.ShuffleAccountant(method=method)
        asked = AskedRounds.of(context.params).round(cast(float, local_epsilon))
        accountant.step(asked, num_steps=cast(int, rounds))
        found = accounting.PrivacyStatement.of(
            accountant, delta=cast(float, delta), subject="rounds as described", **about
        )
    else:
        describing = {each.name for each in fields(AskedRounds)} - {"adversary"} | {"local_epsilon", "rounds"}
        options.refuse_given(context, sorted(describing), "the file holds the rounds")
        found = _of_file(saved, delta=delta, model=model, about=about, unit=unit)
    if as_json:
        output.print_json(found.to_dict())
    else:
        print(found.to_markdown() if markdown else found.to_text(width=min(output.width(), 100)))


def _of_file(
    path: Path,
    *,
    delta: float | None,
    model: str | None,
    about: dict[str, Any],
    unit: accounting.Unit | None,
) -> accounting.PrivacyStatement:
    with path.open("rb") as file:
        beginning = file.read(len(_SQLITE))
    if beginning == _SQLITE:
        from shuffle_plugins.ledger import read_statement

        return read_statement(path, delta=_LEDGER_DELTA if delta is None else delta, model=model, **about)
    if model is not None:
        raise typer.BadParameter("--model is for a ledger")
    state = _read_torch(path) if beginning.startswith(_ZIP) else _read_json(path)
    target = state.get("target")
    if isinstance(target, (list, tuple)) and len(target) == 2 and about["target_epsilon"] is None:
        about = about | {"target_epsilon": target[0], "target_delta": target[1]}
        delta = target[1] if delta is None else delta
    if delta is None:
        raise typer.BadParameter("--delta is needed: a saved state has rounds, and no δ")
    of_engine = _is_of_engine(state)
    if of_engine and unit is None:
        about = about | {"unit": accounting.Unit.RECORD}
    subject = "a saved accountant of the Opacus engine" if of_engine else "a saved accountant"
    return accounting.PrivacyStatement.of(
        _accountant_of(state), delta=delta, subject=subject, warnings=state.get("warnings", ()), **about
    )


def _is_of_engine(state: Mapping[str, Any]) -> bool:
    """Whether an accountant of the Opacus engine wrote the state: it says by which of the two."""
    return "mechanism" in state


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is no ledger, no JSON and no file of torch.save ({error}); give json.dumps of an "
            "accountant's state_dict()"
        ) from error
    return _checked(found, path)


def _read_torch(path: Path) -> Mapping[str, Any]:
    import torch

    try:
        found = torch.load(path, weights_only=True, map_location="cpu")
    except (RuntimeError, UnpicklingError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} cannot be read by torch.load with weights_only=True: {reason}") from error
    return _checked(found, path)


def _checked(found: Any, path: Path) -> Mapping[str, Any]:
    if isinstance(found, Mapping):
        found = found.get(_CHECKPOINT_KEY, found)
    if not isinstance(found, Mapping) or "history" not in found:
        raise ValueError(f"{path} holds no accountant's state: give what its state_dict() returned")
    return cast(Mapping[str, Any], found)


def _accountant_of(
    state: Mapping[str, Any],
) -> accounting.ShuffleAccountant | accounting.FederatedAccountant:
    """The accountant whose state it is: of one adversary, of federated rounds, or of the Opacus engine."""
    kept = {name: accounting.as_tuples(value) for name, value in state.items()}
    if "participation" in kept:
        federated = accounting.FederatedAccountant(method=kept.get("method", "pld"))
        federated.load_state_dict(kept)
        return federated
    if not _is_of_engine(kept):
        accountant = accounting.ShuffleAccountant(method=kept.get("method", "pld"))
        accountant.load_state_dict(kept)
        return accountant
    # The engine's own form: its accountant's name ends in the method.
    if kept.get("neighbouring_relation") != accounting.NEIGHBOURING_RELATION:
        raise ValueError(f"the state is for other neighbours than {accounting.NEIGHBOURING_RELATION}")
    method = str(kept["mechanism"]).rpartition("_")[2]
    accountant = accounting.ShuffleAccountant(method=cast(accounting.Method, method))
    try:
        for saved_round, steps in kept["history"]:
            accountant.step(accounting.Round.from_state(saved_round), num_steps=steps)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the saved history is damaged: {error}") from error
    return accountant
