"""``bandit``: the batches of a private linear bandit, what they cost and what they tell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shuffle_plugins.cli import commands, output
from shuffle_plugins.cli.commands import choice_option, number_option, option, whole_option
from shuffle_plugins.cli.output import up


def bandit_command(
    context: typer.Context,
    *,
    actions: Annotated[
        str,
        option("--actions FILE|K", "A .npy or .csv file of actions, a row each, or how many random ones."),
    ],
    horizon: Annotated[int, whole_option("--horizon -t T", "Clients in all, each for one action.")],
    model: Annotated[
        str,
        choice_option(
            "--model WHO",
            "Who is trusted",
            {"shuffled": "", "central": "the server", "local": "", "non-private": ""},
        ),
    ] = "shuffled",
    epsilon: Annotated[
        float | None, number_option("--epsilon -e EPS", "ε that a client may spend; if local its ε0.")
    ] = None,
    delta: Annotated[float | None, number_option("--delta -d DELTA", "δ; needed if shuffled.")] = None,
    dim: Annotated[int, whole_option("--dim D", "Dimensions of random actions.")] = 2,
    mechanism: Annotated[
        str, choice_option("--mechanism NAME", "Of rewards", {"laplace": "", "binary-rr": ""})
    ] = "laplace",
    bound: Annotated[
        str,
        choice_option(
            "--bound NAME",
            "Of ε0 if shuffled",
            {"certified": "by the accountant", "published": "closed form"},
        ),
    ] = "certified",
    as_json: commands.JsonOption = False,
) -> None:
    """The batches of a linear bandit: clients, ε0, certified ε, and the width of its estimates.

    As they will be if no action is dropped; dropping actions changes a batch by few clients. Actions whose
    estimated rewards lie more than two widths below the best one are dropped.
    """
    from shuffle_plugins import bandits

    if model != "shuffled":
        unused = ("bound",) if model == "local" else ("bound", "mechanism")
        commands.refuse_given(context, unused, f"rewards are {model}")
    if model == "non-private" and (epsilon is not None or delta is not None):
        raise typer.BadParameter("without privacy there is no --epsilon and no --delta")
    if model != "non-private" and epsilon is None:
        raise typer.BadParameter("--epsilon is needed")
    if (model == "shuffled") != (delta is not None):
        raise typer.BadParameter(
            "--delta is needed if rewards are shuffled: else they cost none, leave out --delta"
        )
    given: dict[str, dict[str, Any]] = {
        "NonPrivate": {},
        "CentralModel": {"epsilon": epsilon},
        "LocalModel": {"local_epsilon": epsilon, "mechanism": mechanism},
        "ShuffledModel": {"epsilon": epsilon, "delta": delta, "mechanism": mechanism, "bound": bound},
    }
    kind = "NonPrivate" if model == "non-private" else f"{model.capitalize()}Model"
    if actions.replace("_", "").replace(",", "").isdecimal():
        drawn = bandits.Environment.random(actions=commands.read_whole(actions), dim=dim, seed=0)
        features = drawn.actions
    else:
        commands.refuse_given(context, ("dim",), "the file holds the actions")
        features = _read(Path(actions))
    privacy = getattr(bandits, kind)(**given[kind])
    bandit = bandits.LinearBandit(actions=features, horizon=horizon, privacy=privacy)
    output.progress("planning")
    plan = bandit.plan()
    last = horizon - sum(batch.size for batch in plan)
    spent = [batch.noise.epsilon for batch in plan if batch.noise.epsilon is not None]
    dearest = max(spent, key=lambda cost: cost.upper) if spent else None
    values = {
        "model": model,
        "horizon": horizon,
        "epsilon": None if dearest is None else dearest.upper,
        "delta": None if dearest is None else dearest.delta,
        "batches": [
            {
                "batch": batch.number,
                "clients": batch.size,
                "actions": len(batch.actions),
                "local_epsilon": batch.noise.local_epsilon,
                "epsilon": None if batch.noise.epsilon is None else batch.noise.epsilon.upper,
                "width": batch.width,
            }
            for batch in plan
        ],
        "best_action_clients": last,
    }
    if output.answered(as_json, values):
        return
    rows = [
        {
            "batch": str(batch.number),
            "clients": f"{batch.size:,}",
            "actions": str(len(batch.actions)),
            "ε0": None if batch.noise.local_epsilon is None else up(batch.noise.local_epsilon),
            "ε": None if batch.noise.epsilon is None else up(batch.noise.epsilon.upper),
            "width": up(batch.width),
        }
        for batch in plan
    ]
    title = f"{len(features):,} actions in {features.shape[1]} dimensions, {horizon:,} clients"
    output.show(
        output.table(rows, title=title),
        "Actions whose estimated rewards lie more than 2 widths below the best one are dropped.",
        f"{last:,} clients are left for the action that looks best.",
    )
    if dearest is not None:
        output.show(f"Each client is in one batch, so the run costs what the dearest batch does: {dearest}")


def _read(path: Path) -> Any:
    """The table in a .npy or .csv file; a file that is not there, or no table, is an error with its name."""
    import warnings

    import numpy as np

    try:
        if path.suffix == ".npy":
            found = np.load(path, allow_pickle=False)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an empty file, which is refused below
                found = np.loadtxt(path, delimiter=",", ndmin=2)
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"{path} is no table of numbers ({error}); give one row of numbers per action, without a heading "
            "line"
        ) from error
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iuf" or not found.size:
        raise ValueError(f"{path} is no table of real numbers")
    return found
