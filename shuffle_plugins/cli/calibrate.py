"""``shuffle-plugins calibrate``: the largest ε0, the most rounds, or the cohort that stays within (ε, δ)."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from shuffle_plugins import accounting
from shuffle_plugins.cli import options, output
from shuffle_plugins.cli.questions import AskedRounds, answer_json, show_answer, warnings
from shuffle_plugins.core import rounded

_T = TypeVar("_T")


class Unknown(StrEnum):
    """The quantity that ``calibrate`` solves for, given the others."""

    LOCAL_EPSILON = "local-epsilon"
    ROUNDS = "rounds"
    COHORT = "cohort"


def calibrate_command(
    context: typer.Context,
    *,
    target_epsilon: options.TargetOption,
    delta: options.DeltaOption,
    population: options.PopulationOption,
    solve: Annotated[
        Unknown,
        typer.Option("--solve", metavar="WHAT", help="What to solve for: local-epsilon, rounds or cohort."),
    ] = Unknown.LOCAL_EPSILON,
    cohort: options.SolvableCohortOption = None,
    local_epsilon: Annotated[
        float | None,
        options.number_option(
            "--local-epsilon",
            "-e",
            metavar="EPS0",
            help="ε0 of one report. Required unless solved for.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        options.whole_option(
            "--rounds",
            "-t",
            metavar="T",
            help=f"{options.ROUNDS_HELP} Required unless solved for.",
        ),
    ] = None,
    sampling: options.SamplingOption = "without-replacement",
    adversary: options.AdversaryOption = "model-observer",
    method: options.MethodOption = "pld",
    mechanism: options.MechanismOption = options.GENERIC,
    dim: options.DimOption = None,
    local_delta: options.LocalDeltaOption = 0.0,
    records_per_client: options.RecordsOption = 1,
    samples_per_client: options.SamplesOption = 1,
    as_json: options.JsonOption = False,
) -> None:
    """The largest ε0, the most rounds, or the cohort that stays within (ε, δ)."""
    given = {Unknown.LOCAL_EPSILON: local_epsilon, Unknown.ROUNDS: rounds, Unknown.COHORT: cohort}
    if given[solve] is not None:
        raise typer.BadParameter(f"leave out --{solve}: it is what --solve asks for")
    asked = AskedRounds.of(context.params)
    goal: dict[str, Any] = {
        "target_epsilon": target_epsilon,
        "delta": delta,
        "sampling": sampling,
        "adversary": adversary,
        "mechanism": mechanism,
        "method": method,
        "records_per_client": records_per_client,
        "samples_per_client": samples_per_client,
    }
    found: float
    with output.progress("calibrating", as_json=as_json):
        match solve:
            case Unknown.LOCAL_EPSILON:
                rounds = _needed(rounds, "--rounds")
                among, taken = asked.participants()
                found = local_epsilon = accounting.calibrate_local_epsilon(
                    **goal,
                    population=among,
                    cohort=taken,
                    num_steps=rounds,
                    blanket_factory=asked.blanket_factory(),
                    channel_fixed=True,
                )
            case Unknown.ROUNDS:
                local_epsilon = _needed(local_epsilon, "--local-epsilon")
                found = rounds = accounting.calibrate_num_steps(
                    target_epsilon=target_epsilon,
                    delta=delta,
                    shuffle_round=asked.round(local_epsilon),
                    method=method,
                )
            case Unknown.COHORT:
                local_epsilon, rounds = _needed(local_epsilon, "--local-epsilon"), _needed(rounds, "--rounds")
                found = accounting.calibrate_cohort(
                    **goal,
                    population=population,
                    local_epsilon=local_epsilon,
                    num_steps=rounds,
                    blanket=asked.blanket(local_epsilon),
                    channel_fixed=True,
                )
                asked = replace(asked, cohort=found)
    answer = asked.compare(local_epsilon=local_epsilon, num_steps=rounds, delta=delta)
    told = [*warnings(answer), *_capped(solve, found)]
    if as_json:
        beside = answer.beside(accounting.FEW_PUBLISHED)
        output.print_json({"solve": solve.value, "value": found, **answer_json(beside), "warnings": told})
    else:
        shown = f"{found:,}" if isinstance(found, int) else rounded(found, up=False, digits=6)
        output.show(f"[bold]{solve} = {shown}[/] keeps the certified ε within {target_epsilon:g}")
        show_answer(answer, published=accounting.FEW_PUBLISHED)
    output.warn(told)


def _needed(value: _T | None, option: str) -> _T:
    if value is None:
        raise typer.BadParameter(f"{option} is needed")
    return value


def _capped(solve: Unknown, found: float) -> list[str]:
    """That the solver's largest value was reached before the target was."""
    if solve is Unknown.LOCAL_EPSILON and found >= accounting.LARGEST_SEARCHED_LOCAL_EPSILON:
        cap = f"ε0 = {accounting.LARGEST_SEARCHED_LOCAL_EPSILON:g}"
    elif solve is Unknown.ROUNDS and found >= accounting.MAX_NUM_STEPS:
        cap = f"T = {accounting.MAX_NUM_STEPS:,}"
    else:
        return []
    return [f"{cap} is the solver's cap, not the target's: more may stay within the target too"]
