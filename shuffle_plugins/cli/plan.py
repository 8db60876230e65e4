"""``shuffle-plugins plan``: the cohort, ε0 and number of rounds with the least error within (ε, δ)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shuffle_plugins import planning
from shuffle_plugins.cli import options, output
from shuffle_plugins.cli.plan_tables import (
    footing,
    headline,
    legend,
    plan_json,
    plan_tables,
    sum_plan_json,
    sums_legend,
    sums_table,
)
from shuffle_plugins.cli.questions import check_one_report

# planning.BEST_MECHANISM, the value of --mechanism for all of them, without loading the planner for --help.
_BEST = "best"
_FOR_TRAINING = (
    "This is the least error of averages. To train a model, ask `shuffle-plugins recipe`: it chooses "
    "clipping and the learning rate, too."
)
_ANNOUNCED = "Planning: every k and T tried is certified, which can take a minute."


def plan_command(
    *,
    population: options.PopulationOption,
    target_epsilon: options.TargetOption,
    delta: options.DeltaOption,
    dim: options.VectorDimOption,
    mechanism: Annotated[
        str,
        typer.Option(
            "--mechanism",
            metavar="NAME",
            help="Randomizer; best compares all of them. Or a sum, vector-sum or poisson-binomial: then the "
            "server's drawing of clients is compared with clients that take part in secret.",
        ),
    ] = _BEST,
    rounds: Annotated[
        str | None,
        typer.Option(
            "--rounds",
            "-t",
            metavar="T,…",
            help="Rounds, one number or several to choose from; searched unless given. Under single-pass "
            "sampling and check-in, passes; under epoch, epochs. Of a sum 1 unless given.",
        ),
    ] = None,
    cohort: Annotated[
        str | None,
        typer.Option(
            "--cohort",
            "-k",
            metavar="K,…",
            help="Reports per round, one number or several to choose from; searched unless given. Of a sum, "
            "clients whose data are in a round, all N unless given.",
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
    """The cohort, ε0 and rounds with the least error of the averaged vectors within (ε, δ).

    To train a model, `recipe` is the command to begin with.
    """
    output.check_picture(plot)
    steps = None if rounds is None else options.read_list(rounds, options.read_whole, "--rounds")
    cohorts = None if cohort is None else options.read_list(cohort, options.read_whole, "--cohort")
    vectors = None if norm is None else planning.check_norm(norm)
    warnings = output.delta_warnings(delta, population=population)
    if mechanism in planning.SUMS:
        if sampling != "without-replacement" or method != "pld" or plot is not None:
            raise typer.BadParameter(
                "a sum is planned for all its ways of drawing clients, by pld, without a picture: leave out "
                "--sampling, --method and --plot"
            )
        with output.progress("planning", as_json=as_json):
            sums = planning.plan_sums(
                target_epsilon=target_epsilon,
                delta=delta,
                population=population,
                dim=dim,
                mechanism=mechanism,
                num_steps=1 if steps is None else steps,
                cohorts=cohorts,
                adversary=adversary,
                radius=radius,
                norm="l2" if vectors is None else vectors,
                spread=spread,
            )
        output.warn(warnings)
        if as_json:
            output.print_json(sum_plan_json(sums) | {"warnings": warnings})
            return
        output.show(sums_table(sums, width=output.width()), sums_legend(), footing(sums))
        for text in sums.remarks():
            output.remark(text)
        return
    if mechanism != _BEST:
        check_one_report(mechanism)
    with output.progress("planning", as_json=as_json, announced=_ANNOUNCED) as progress:
        found = planning.plan(
            target_epsilon=target_epsilon,
            delta=delta,
            population=population,
            dim=dim,
            mechanism=mechanism,
            num_steps=steps,
            cohorts=cohorts,
            sampling=sampling,
            adversary=adversary,
            method=method,
            radius=radius,
            norm=vectors,
            spread=spread,
            tolerance=tolerance,
            whole_grid=plot is not None,
            progress=progress,
        )
    output.warn(warnings)
    if as_json:
        output.print_json(plan_json(found) | {"warnings": warnings})
    else:
        output.show(headline(found), *plan_tables(found, width=output.width()), legend(found), footing(found))
        for text in found.remarks():
            output.remark(text)
        if steps is None:
            output.remark(_FOR_TRAINING)
        output.left_out((each.mechanism, each.reason) for each in found.dismissed)
        if found.adversary == "server":
            output.remark(
                "Reports hide their clients' data from a server, but not who sent them. In a sum clients can "
                f"take part in secret, so that sampling counts against a server too: --mechanism "
                f"{planning.SUMS[0]}."
            )
    if plot is not None:
        from shuffle_plugins.cli.plotting import plot_plan

        plot_plan(plan=found, path=plot)
    output.picture_written(plot, as_json=as_json)
