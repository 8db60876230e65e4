"""``shuffle-plugins plan``: the cohort, ε0 and number of rounds with the least error within (ε, δ)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shuffle_plugins import planning
from shuffle_plugins.cli import output
from shuffle_plugins.cli.options import (
    AdversaryOption,
    DeltaOption,
    JsonOption,
    MethodOption,
    PopulationOption,
    SamplingOption,
    TargetOption,
    read_list,
    read_number,
    read_whole,
)
from shuffle_plugins.cli.plan_tables import footing, headline, plan_json, plan_tables

# The value of --mechanism for "compare all of them"; planning.BEST, without loading the planner for --help.
_BEST = "best"


def plan_command(
    *,
    population: PopulationOption,
    target_epsilon: TargetOption,
    delta: DeltaOption,
    dim: Annotated[
        int, typer.Option("--dim", parser=read_whole, metavar="D", help="Length of a client's vector.")
    ],
    mechanism: Annotated[
        str, typer.Option("--mechanism", metavar="NAME", help="Randomizer; best compares all of them.")
    ] = _BEST,
    rounds: Annotated[
        str | None,
        typer.Option(
            "--rounds",
            "-t",
            metavar="T,…",
            help="Rounds, one number or several to choose from; searched unless given. Under single-pass "
            "sampling and check-in, passes; under epoch, epochs.",
        ),
    ] = None,
    cohort: Annotated[
        str | None,
        typer.Option(
            "--cohort",
            "-k",
            metavar="K,…",
            help="Reports per round, one number or several to choose from; searched unless given.",
        ),
    ] = None,
    sampling: SamplingOption = "without-replacement",
    adversary: AdversaryOption = "model-observer",
    method: MethodOption = "pld",
    radius: Annotated[
        float,
        typer.Option("--radius", parser=read_number, metavar="R", help="Radius of the ball of the vectors."),
    ] = 1.0,
    norm: Annotated[
        str | None,
        typer.Option(
            "--norm",
            metavar="NORM",
            help="Norm of that ball, l1, l2 or linf: the mechanism's own unless given, l2 for best.",
        ),
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(
            "--spread",
            parser=read_number,
            metavar="S",
            help="Root mean square distance of the vectors from their mean; the worst case unless given.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            parser=read_number,
            metavar="SHARE",
            help="Error to give away for less communication, as a share.",
        ),
    ] = 0.05,
    as_json: JsonOption = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw error and ε0 against k (Matplotlib).")
    ] = None,
) -> None:
    """The cohort, ε0 and rounds with the least error of the averaged vectors within (ε, δ)."""
    output.check_picture(plot)
    steps = None if rounds is None else read_list(rounds, read_whole, "--rounds")
    with output.progress("planning", as_json=as_json) as progress:
        found = planning.plan(
            target_epsilon=target_epsilon,
            delta=delta,
            population=population,
            dim=dim,
            mechanism=mechanism,
            num_steps=steps,
            cohorts=None if cohort is None else read_list(cohort, read_whole, "--cohort"),
            sampling=sampling,
            adversary=adversary,
            method=method,
            radius=radius,
            norm=None if norm is None else planning.check_norm(norm),
            spread=spread,
            tolerance=tolerance,
            whole_grid=plot is not None,
            progress=progress,
        )
    if as_json:
        output.print_json(plan_json(found))
    else:
        output.show(headline(found), *plan_tables(found, width=output.width()), footing(found))
        for text in found.remarks():
            output.remark(text)
        for left in found.dismissed:
            output.remark(f"Left out: {left.mechanism}: {left.reason}.")
    if plot is not None:
        from shuffle_plugins.cli.plotting import plot_plan

        plot_plan(plan=found, path=plot)
    output.picture_written(plot, as_json=as_json)
