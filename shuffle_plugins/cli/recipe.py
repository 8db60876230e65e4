"""``shuffle-plugins recipe``: every setting of a training run for a target (ε, δ), with its reason."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from shuffle_plugins.cli import options, output


def recipe_command(
    *,
    population: options.PopulationOption,
    target_epsilon: options.TargetOption,
    delta: options.DeltaOption,
    dim: Annotated[int, options.whole_option("--dim", metavar="D", help="Trained parameters of the model.")],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="KIND",
            help="linear: a linear classifier on rows of length one, whose weights start from zero; or "
            "network.",
        ),
    ] = "linear",
    mechanism: Annotated[
        str,
        typer.Option(
            "--mechanism",
            metavar="NAME",
            help="Randomizer of one report per record; best compares all of them. Or a sum, such as "
            "vector-sum, if records may send many messages: far less noise.",
        ),
    ] = "best",
    cohort: Annotated[
        int | None,
        options.whole_option(
            "--cohort", "-k", metavar="K", help="Records of a step; a tenth of N unless given."
        ),
    ] = None,
    rounds: Annotated[
        int | None, options.whole_option("--rounds", "-t", metavar="T", help="Steps; 200 unless given.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Settings of a training run for a target (ε, δ), without tuning on the data, and why.

    Mechanism, records of a step, steps, noise, clipping and learning rate of stochastic gradient descent. ε
    is for replace-one neighbours, against an observer of the model.
    """
    from shuffle_plugins import planning

    found = planning.training_recipe(
        target_epsilon=target_epsilon,
        delta=delta,
        population=population,
        dim=dim,
        model=model,
        mechanism=mechanism,
        cohort=cohort,
        num_steps=rounds,
    )
    warnings = output.delta_warnings(delta, population=population)
    if (noisy := found.warning()) is not None:
        warnings.append(noisy)
    output.warn(warnings)
    if as_json:
        values = asdict(found) | {
            "epsilon": output.interval_json(found.epsilon),
            "neighbouring_relation": found.neighbouring_relation,
            "signal_to_noise_ratio": found.expected_noise.signal_to_noise_ratio,
            "settings": [
                {"name": name, "value": value, "reason": reason} for name, value, reason in found.settings()
            ],
            "warnings": warnings,
        }
        del values["expected_noise"]
        output.print_json(values)
        return
    from shuffle_plugins.cli.tables import plain_table

    table = plain_table(found.title)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("why")
    for row in found.settings():
        table.add_row(*row)
    output.show(table)
