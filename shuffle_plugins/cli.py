"""``shuffle-plugins``: accounting questions answered in a shell. Neighbouring relation: replace-one."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from shuffle_plugins import __version__
from shuffle_plugins.accounting import (
    Adversary,
    Blanket,
    Method,
    Sampling,
    ShuffleRound,
    calibrate_cohort,
    calibrate_local_epsilon,
    calibrate_num_steps,
)
from shuffle_plugins.comparison import Comparison, compare
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.plotting import PlottingUnavailable, plot_comparisons
from shuffle_plugins.tables import bounds_table, rounded, rounds_table, verdict

T = TypeVar("T")

_GENERIC = "generic"
_PIPE_WIDTH = 110
_PLOT_POINTS = 13
_PROBE_DIMS = (1, 2, 1_000)

app = typer.Typer(
    name="shuffle-plugins",
    help="What rounds of the shuffle model cost: certified ε for replace-one neighbours.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Unknown(StrEnum):
    """What ``calibrate`` solves for."""

    LOCAL_EPSILON = "local-epsilon"
    ROUNDS = "rounds"
    COHORT = "cohort"


def _number(text: str | float) -> float:
    """A decimal number; 60_000, 60,000 and 6e4 are all read."""
    try:
        return float(Decimal(str(text).replace("_", "").replace(",", "")))
    except InvalidOperation as error:
        raise typer.BadParameter(f"{text!r} is not a number") from error


def _whole(text: str | int) -> int:
    value = _number(text)
    if not (math.isfinite(value) and value.is_integer()):
        raise typer.BadParameter(f"{text!r} is not a whole number")
    return int(value)


def _listed(text: str, parse: Callable[[str], Any], option: str) -> list[Any]:
    try:
        return sorted({parse(item) for item in text.split(",") if item.strip()})
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint=option) from error


PopulationOption = Annotated[
    int, typer.Option("--population", "-n", parser=_whole, metavar="N", help="Clients in the population, n.")
]
CohortOption = Annotated[
    float | None,
    typer.Option(
        "--cohort",
        "-k",
        parser=_number,
        metavar="K",
        help="Reports shuffled together, k.",
    ),
]
LocalEpsilonOption = Annotated[
    float,
    typer.Option("--local-epsilon", "-e", parser=_number, metavar="EPS0", help="ε0 of one report."),
]
RoundsOption = Annotated[
    int,
    typer.Option("--rounds", "-t", parser=_whole, metavar="T", help="Rounds (or passes)."),
]
DeltaOption = Annotated[
    float, typer.Option("--delta", "-d", parser=_number, metavar="DELTA", help="Total δ in (0, 1).")
]
SamplingOption = Annotated[Sampling, typer.Option("--sampling", help="How the cohort is chosen.")]
AdversaryOption = Annotated[
    Adversary, typer.Option("--adversary", help="Who watches: only the model's readers, or the server too.")
]
MechanismOption = Annotated[
    str,
    typer.Option(
        "--mechanism", metavar="NAME", help="Randomizer whose own blanket to use; generic covers all of them."
    ),
]
DimOption = Annotated[
    int | None,
    typer.Option("--dim", parser=_whole, metavar="D", help="Length of a client's vector, where it matters."),
]
MethodOption = Annotated[Method, typer.Option("--method", help="How the certified interval composes.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw ε against rounds (needs Matplotlib)."),
]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command("epsilon")
def epsilon_command(
    population: PopulationOption,
    local_epsilon: LocalEpsilonOption,
    rounds: RoundsOption,
    delta: DeltaOption,
    cohort: CohortOption = None,
    sampling: SamplingOption = Sampling.WITHOUT_REPLACEMENT,
    adversary: AdversaryOption = Adversary.MODEL_OBSERVER,
    mechanism: MechanismOption = _GENERIC,
    dim: DimOption = None,
    method: MethodOption = "pld",
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """The ε of T rounds at δ, by every bound."""
    shuffle_round = _round(
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        sampling=sampling,
        adversary=adversary,
        mechanism=mechanism,
        dim=dim,
    )
    answer = compare(shuffle_round=shuffle_round, num_steps=rounds, delta=delta, method=method)
    if plot is not None:
        others = [
            compare(shuffle_round=shuffle_round, num_steps=num_steps, delta=delta, method=method)
            for num_steps in _spread(rounds)
            if num_steps != rounds
        ]
        plot_comparisons(comparisons=[*others, answer], path=plot)
    if as_json:
        _print_json(_answer_json(answer))
    else:
        _print(bounds_table(answer), verdict(answer))


@app.command("compare")
def compare_command(
    population: PopulationOption,
    local_epsilon: Annotated[
        str,
        typer.Option("--local-epsilon", "-e", metavar="EPS0[,EPS0...]", help="One ε0 or several."),
    ],
    delta: DeltaOption,
    cohort: CohortOption = None,
    rounds: Annotated[
        str, typer.Option("--rounds", "-t", metavar="T[,T...]", help="Numbers of rounds, one or more.")
    ] = "1,10,100,1000,10000",
    sampling: SamplingOption = Sampling.WITHOUT_REPLACEMENT,
    adversary: AdversaryOption = Adversary.MODEL_OBSERVER,
    mechanism: MechanismOption = _GENERIC,
    dim: DimOption = None,
    method: MethodOption = "pld",
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """The ε of every bound over several numbers of rounds and several ε0."""
    steps = _listed(rounds, _whole, "--rounds")
    levels = _listed(local_epsilon, _number, "--local-epsilon")
    if not steps or not levels:
        raise typer.BadParameter("give at least one number of rounds and one ε0")
    answers = [
        compare(
            shuffle_round=_round(
                local_epsilon=level,
                population=population,
                cohort=cohort,
                sampling=sampling,
                adversary=adversary,
                mechanism=mechanism,
                dim=dim,
            ),
            num_steps=num_steps,
            delta=delta,
            method=method,
        )
        for level in levels
        for num_steps in steps
    ]
    if plot is not None:
        plot_comparisons(comparisons=answers, path=plot)
    if as_json:
        _print_json(
            [
                {"local_epsilon": a.shuffle_round.local_epsilon, "rounds": a.num_steps, **_answer_json(a)}
                for a in answers
            ]
        )
    else:
        _print(*(rounds_table([a for a in answers if a.shuffle_round.local_epsilon == e]) for e in levels))


@app.command("calibrate")
def calibrate_command(
    target_epsilon: Annotated[
        float,
        typer.Option("--target-epsilon", parser=_number, metavar="EPS", help="ε to stay within."),
    ],
    delta: DeltaOption,
    population: PopulationOption,
    solve: Annotated[Unknown, typer.Option("--solve", help="What to solve for.")] = Unknown.LOCAL_EPSILON,
    cohort: CohortOption = None,
    local_epsilon: Annotated[
        float | None,
        typer.Option("--local-epsilon", "-e", parser=_number, metavar="EPS0", help="ε0 of one report."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", "-t", parser=_whole, metavar="T", help="Rounds (or passes)."),
    ] = None,
    sampling: SamplingOption = Sampling.WITHOUT_REPLACEMENT,
    adversary: AdversaryOption = Adversary.MODEL_OBSERVER,
    mechanism: MechanismOption = _GENERIC,
    dim: DimOption = None,
    method: MethodOption = "pld",
    as_json: JsonOption = False,
) -> None:
    """The largest ε0, the most rounds, or the cohort that stays within (ε, δ)."""
    if sampling is Sampling.FULL and solve is not Unknown.COHORT:
        cohort = population if cohort is None else cohort
    given = {Unknown.LOCAL_EPSILON: local_epsilon, Unknown.ROUNDS: rounds, Unknown.COHORT: cohort}
    if given[solve] is not None:
        raise typer.BadParameter(f"leave out --{solve}: it is what --solve asks for")
    found: float
    match solve:
        case Unknown.LOCAL_EPSILON:
            rounds, cohort = _needed(rounds, "--rounds"), _needed(cohort, "--cohort")
            found = local_epsilon = calibrate_local_epsilon(
                target_epsilon=target_epsilon,
                delta=delta,
                population=population,
                cohort=cohort,
                num_steps=rounds,
                sampling=sampling,
                adversary=adversary,
                mechanism=mechanism,
                blanket_factory=_blanket_factory(mechanism, dim),
                method=method,
            )
        case Unknown.ROUNDS:
            local_epsilon = _needed(local_epsilon, "--local-epsilon")
            found = rounds = calibrate_num_steps(
                target_epsilon=target_epsilon,
                delta=delta,
                shuffle_round=_round(
                    local_epsilon=local_epsilon,
                    population=population,
                    cohort=cohort,
                    sampling=sampling,
                    adversary=adversary,
                    mechanism=mechanism,
                    dim=dim,
                ),
                method=method,
            )
        case Unknown.COHORT:
            local_epsilon, rounds = _needed(local_epsilon, "--local-epsilon"), _needed(rounds, "--rounds")
            factory = _blanket_factory(mechanism, dim)
            found = cohort = calibrate_cohort(
                target_epsilon=target_epsilon,
                delta=delta,
                population=population,
                local_epsilon=local_epsilon,
                num_steps=rounds,
                sampling=sampling,
                adversary=adversary,
                mechanism=mechanism,
                blanket=factory(local_epsilon) if factory else None,
                method=method,
            )
    answer = compare(
        shuffle_round=_round(
            local_epsilon=local_epsilon,
            population=population,
            cohort=cohort,
            sampling=sampling,
            adversary=adversary,
            mechanism=mechanism,
            dim=dim,
        ),
        num_steps=rounds,
        delta=delta,
        method=method,
    )
    if as_json:
        _print_json({"solve": solve.value, "value": found, **_answer_json(answer)})
    else:
        shown = rounded(found, up=False, digits=6)
        _print(f"[bold]{solve} = {shown}[/] keeps the certified ε within {target_epsilon:g}")
        _print(bounds_table(answer), verdict(answer))


@app.command("mechanisms")
def mechanisms_command(
    dim: Annotated[
        int | None, typer.Option("--dim", parser=_whole, metavar="D", help="Length of a client's vector.")
    ] = None,
    local_epsilon: Annotated[
        float | None,
        typer.Option("--local-epsilon", "-e", parser=_number, metavar="EPS0", help="ε0 of one report."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The randomizers by name; with --dim and --local-epsilon also their norm, bits and error (unit ball)."""
    if (dim is None) != (local_epsilon is None):
        raise typer.BadParameter("give --dim and --local-epsilon together, or neither")
    listed = []
    for name in registry.available():
        entry: dict[str, Any] = {"name": name, "summary": registry.summary(name)}
        if dim is not None and local_epsilon is not None:
            entry |= _mechanism_facts(name, dim=dim, local_epsilon=local_epsilon)
        listed.append(entry)
    if as_json:
        _print_json(listed)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", style="bold", no_wrap=True)
    if dim is not None:
        for heading in ("norm", "bits per report", "mean squared error at 0"):
            table.add_column(heading, justify="right")
    table.add_column("what it is")
    for entry in listed:
        cells = [entry["name"]]
        if dim is not None:
            error = entry.get("mean_squared_error_at_zero")
            cells += [entry.get("norm", "—"), f"{entry['bits']:,}" if "bits" in entry else "—"]
            cells.append("—" if error is None else f"{error:.4g}")
        table.add_row(*cells, entry.get("unavailable", entry["summary"]))
    _print(table)


def _mechanism_facts(name: str, *, dim: int, local_epsilon: float) -> dict[str, Any]:
    import torch

    try:
        mechanism = registry.get(name, local_epsilon=local_epsilon, dim=dim)
    except ValueError as error:
        return {"unavailable": str(error)}
    return {
        "norm": str(mechanism.norm),
        "bits": mechanism.bits_per_report,
        "mean_squared_error_at_zero": float(mechanism.variance(torch.zeros(1, dim))[0]),
    }


def _needed(value: T | None, option: str) -> T:
    if value is None:
        raise typer.BadParameter(f"{option} is needed")
    return value


def _round(
    *,
    local_epsilon: float,
    population: int,
    cohort: float | None,
    sampling: Sampling,
    adversary: Adversary,
    mechanism: str,
    dim: int | None,
) -> ShuffleRound:
    if cohort is None:
        if sampling is not Sampling.FULL:
            raise typer.BadParameter(f"--cohort is needed under {sampling} sampling")
        cohort = population
    factory = _blanket_factory(mechanism, dim)
    return ShuffleRound(
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        sampling=sampling,
        adversary=adversary,
        mechanism=mechanism,
        blanket=factory(local_epsilon) if factory else None,
    )


def _blanket_factory(mechanism: str, dim: int | None) -> Callable[[float], Blanket] | None:
    if mechanism == _GENERIC:
        return None

    def blanket(local_epsilon: float) -> Blanket:
        if dim is not None:
            return registry.blanket(mechanism, local_epsilon=local_epsilon, dim=dim)
        found = {registry.blanket(mechanism, local_epsilon=local_epsilon, dim=probe) for probe in _PROBE_DIMS}
        if len(found) > 1:
            raise typer.BadParameter(f"--dim is needed: the blanket of {mechanism} depends on the dimension")
        return found.pop()

    return blanket


def _spread(rounds: int) -> list[int]:
    """About a dozen numbers of rounds from 1 to T, evenly spread in logarithm."""
    if rounds < 1:
        return []
    ratio = math.log(rounds) / (_PLOT_POINTS - 1)
    return sorted({round(math.exp(i * ratio)) for i in range(_PLOT_POINTS)})


def _answer_json(answer: Comparison) -> dict[str, Any]:
    return {
        "lower": answer.interval.lower,
        "upper": answer.interval.upper,
        "neighbouring_relation": answer.interval.neighbouring_relation,
        "bounds": [
            {"name": b.name, "kind": b.kind, "epsilon": b.epsilon, "source": b.source} for b in answer.bounds
        ],
    }


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _print(*parts: Any) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    for part in parts:
        console.print(part)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line; bad input ends in one line on stderr and exit code 2."""
    try:
        status = app(list(sys.argv[1:] if arguments is None else arguments), standalone_mode=False)
    except typer.TyperException as error:
        return _refuse(error.format_message())
    except (ValueError, OSError, PlottingUnavailable) as error:
        return _refuse(str(error))
    except ArithmeticError as error:
        return _refuse(f"out of numerical reach: {error}")
    except typer.Abort:
        return 130
    return status if isinstance(status, int) else 0


def _refuse(message: str) -> int:
    if message:  # typer prints the help itself when no command is given
        print("error:", " ".join(message.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
