"""``shuffle-plugins compare``: every bound over several numbers of rounds and several ε0."""

from __future__ import annotations

from typing import Annotated

import typer

from shuffle_plugins import accounting
from shuffle_plugins.cli import options, output
from shuffle_plugins.cli.questions import AskedRounds, answer_json, warnings
from shuffle_plugins.cli.tables import rounds_tables


def compare_command(
    context: typer.Context,
    *,
    population: options.PopulationOption,
    local_epsilon: Annotated[
        str,
        typer.Option("--local-epsilon", "-e", metavar="EPS0,…", help="One ε0 or several, comma-separated."),
    ],
    delta: options.DeltaOption,
    cohort: options.CohortOption = None,
    rounds: Annotated[
        str,
        typer.Option("--rounds", "-t", metavar="T,…", help=f"One number or several. {options.ROUNDS_HELP}"),
    ] = "1,10,100,1000,10000",
    sampling: options.SamplingOption = "without-replacement",
    adversary: options.AdversaryOption = "model-observer",
    method: options.MethodOption = "pld",
    mechanism: options.MechanismOption = options.GENERIC,
    dim: options.DimOption = None,
    local_delta: options.LocalDeltaOption = 0.0,
    records_per_client: options.RecordsOption = 1,
    samples_per_client: options.SamplesOption = 1,
    as_json: options.JsonOption = False,
    plot: options.PlotOption = None,
) -> None:
    """The ε of every bound over several numbers of rounds and several ε0; up to seconds for each of them."""
    output.check_picture(plot)
    steps = options.read_list(rounds, options.read_whole, "--rounds")
    levels = options.read_list(local_epsilon, options.read_number, "--local-epsilon")
    if not steps or not levels:
        raise typer.BadParameter("give at least one number of rounds and one ε0")
    asked = AskedRounds.of(context.params)
    answers: list[accounting.Comparison] = []
    with output.progress("comparing", as_json=as_json) as progress:
        for level in levels:
            for num_steps in steps:
                answer = asked.compare(local_epsilon=level, num_steps=num_steps, delta=delta)
                answers.append(answer.beside(accounting.ALL_PUBLISHED))
                progress(len(answers), len(levels) * len(steps))
    if as_json:
        output.print_json([answer_json(answer) for answer in answers])
    else:
        for level in levels:
            same = [answer for answer in answers if answer.shuffle_round.local_epsilon == level]
            output.show(*rounds_tables(same, width=output.width()))
    output.warn(warnings(answers[0]))
    if plot is not None:
        from shuffle_plugins.cli.plotting import plot_comparisons

        plot_comparisons(comparisons=answers, path=plot)
    output.picture_written(plot, as_json=as_json)
