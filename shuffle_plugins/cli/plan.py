"""``shuffle-plugins plan``: the cohort, ε0 and number of rounds with the least error within (ε, δ)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shuffle_plugins import planning
from shuffle_plugins.cli import options, output
from shuffle_plugins.cli.plan_tables import footing, headline, plan_json, plan_tables
from shuffle_plugins.cli.questions import check_one_report

# planning.BEST_MECHANISM, the value of --mechanism for all of them, without loading the planner for --help.
_BEST = "best"


def plan_command(
    *,
    population: options.PopulationOption,
    target_epsilon: options.TargetOption,
    delta: options.DeltaOption,
    dim: options.VectorDimOption,
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
    sampling: options.SamplingOption = "without-replacement",
    adversary: options.AdversaryOption = "model-observer",
    method: options.MethodOption = "pld",
    radius: options.RadiusOption = 1.0,
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
        options.number_option(
            "--spread",
            metavar="S",
            help="Root mean square distance of the vectors from their mean; the worst case unless given.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        options.number_option(
            "--tolerance",
            metavar="SHARE",
            help="Error to give away for less communication, as a share.",
        ),
    ] = 0.05,
    as_json: options.JsonOption = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw error and ε0 against k (Matplotlib).")
    ] = None,
) -> None:
    """The cohort, ε0 and rounds with the least error of the averaged vectors within (ε, δ)."""
    output.check_picture(plot)
    if mechanism != _BEST:
        check_one_report(mechanism)
    steps = None if rounds is None else options.read_list(rounds, options.read_whole, "--rounds")
    with output.progress("planning", as_json=as_json) as progress:
        found = planning.plan(
            target_epsilon=target_epsilon,
            delta=delta,
            population=population,
            dim=dim,
            mechanism=mechanism,
            num_steps=steps,
            cohorts=None if cohort is None else options.read_list(cohort, options.read_whole, "--cohort"),
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
