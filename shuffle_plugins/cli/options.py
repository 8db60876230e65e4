"""The options that several commands share: their names, their help, and how their values are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from shuffle_plugins import accounting

GENERIC = "generic"
"""The value of ``--mechanism`` for bounds that hold for every randomizer of that ε0."""


def read_number(text: str | float) -> float:
    """A decimal number; 60_000, 60,000 and 6e4 are all read."""
    try:
        return float(Decimal(str(text).replace("_", "").replace(",", "")))
    except InvalidOperation as error:
        raise typer.BadParameter(f"{text!r} is not a number") from error


def read_whole(text: str | int) -> int:
    """Read a whole number, which may be written as 1e6 or 1,000,000."""
    value = read_number(text)
    if not (math.isfinite(value) and value.is_integer()):
        raise typer.BadParameter(f"{text!r} is not a whole number")
    return int(value)


def read_list(text: str, parse: Callable[[str], Any], option: str) -> list[Any]:
    """Values separated by commas, in order, each once."""
    try:
        return sorted({parse(item) for item in text.split(",") if item.strip()})
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint=option) from error


def refuse_given(context: typer.Context, names: Iterable[str], because: str) -> None:
    """Refuse options that were typed where they mean nothing.

    Args:
        context: of the command.
        names: of its parameters.
        because: why they mean nothing.
    """
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{because}: leave out --{name.replace('_', '-')}")


def _chosen(text: str, choices: Iterable[str]) -> str:
    names = [str(choice) for choice in choices]
    if text not in names:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(names)}")
    return text


def _sampling(text: str) -> str:
    return _chosen(text, accounting.Sampling)


def _adversary(text: str) -> str:
    return _chosen(text, (accounting.Adversary.MODEL_OBSERVER, accounting.Adversary.SERVER))


def _method(text: str) -> str:
    return _chosen(text, get_args(accounting.Method))


def number_option(*names: str, metavar: str, help: str) -> Any:
    """An option whose value is a number."""
    return typer.Option(*names, parser=read_number, metavar=metavar, help=help)


def whole_option(*names: str, metavar: str, help: str) -> Any:
    """An option whose value is a whole number."""
    return typer.Option(*names, parser=read_whole, metavar=metavar, help=help)


ROUNDS_HELP = (
    "Rounds; under single-pass sampling and check-in, passes; under epoch, epochs; against a server, only "
    "the rounds that one client takes part in."
)

_POPULATION = whole_option("--population", "-n", metavar="N", help="Clients in the population, n.")
PopulationOption = Annotated[int, _POPULATION]
AnyPopulationOption = Annotated[int | None, _POPULATION]
_COHORT_HELP = (
    "Reports shuffled together, k: the expected number under poisson sampling or check-in, the smallest "
    "batch under single-pass, the batch under epoch. Required {}except under full, where it is N."
)
CohortOption = Annotated[
    float | None, number_option("--cohort", "-k", metavar="K", help=_COHORT_HELP.format(""))
]
SolvableCohortOption = Annotated[
    float | None,
    number_option("--cohort", "-k", metavar="K", help=_COHORT_HELP.format("unless solved for, and ")),
]
RecordsOption = Annotated[
    int,
    whole_option(
        "--records-per-client",
        metavar="M",
        help="Records that each client has, m. One that takes part draws --samples-per-client of them in "
        "secret and reports on each; neighbours then differ in one record of one client.",
    ),
]
SamplesOption = Annotated[
    int,
    whole_option(
        "--samples-per-client",
        metavar="S",
        help="Records that a client that takes part reports on, s; k·s reports are shuffled.",
    ),
]
_LOCAL_EPSILON = number_option("--local-epsilon", "-e", metavar="EPS0", help="ε0 of one report.")
LocalEpsilonOption = Annotated[float, _LOCAL_EPSILON]
AnyLocalEpsilonOption = Annotated[float | None, _LOCAL_EPSILON]
_ROUNDS = whole_option("--rounds", "-t", metavar="T", help=ROUNDS_HELP)
RoundsOption = Annotated[int, _ROUNDS]
AnyRoundsOption = Annotated[int | None, _ROUNDS]
TargetOption = Annotated[float, number_option("--target-epsilon", metavar="EPS", help="ε to stay within.")]
DeltaOption = Annotated[float, number_option("--delta", "-d", metavar="DELTA", help="Total δ in (0, 1).")]
SamplingOption = Annotated[
    str,
    typer.Option(
        "--sampling",
        parser=_sampling,
        metavar="SCHEME",
        help="How the cohort is chosen: without-replacement, poisson, full (everybody in it; sampling "
        "earns nothing), single-pass (batches of one pass over everybody), check-in (each client picks its "
        "round of a pass in secret) or epoch (batches of a fresh, secret shuffle of everybody, as "
        "DataLoader(shuffle=True) has them).",
    ),
]
AdversaryOption = Annotated[
    str,
    typer.Option(
        "--adversary",
        parser=_adversary,
        metavar="WHO",
        help="Who watches: model-observer (reads the model, does not see who took part) or server (sees the "
        "cohort too; --rounds then counts only the rounds that one client takes part in).",
    ),
]
MechanismOption = Annotated[
    str,
    typer.Option(
        "--mechanism",
        metavar="NAME",
        help="Randomizer whose own law to use: one that `mechanisms` lists, with its default options; "
        "generic is the bound for all of them, whatever their options.",
    ),
]
LocalDeltaOption = Annotated[
    float,
    number_option(
        "--local-delta",
        metavar="DELTA0",
        help="δ0 of one report, for (ε0, δ0)-LDP randomizers; only with the generic law.",
    ),
]
DimOption = Annotated[
    int | None,
    whole_option(
        "--dim",
        metavar="D",
        help="Length of a client's vector, or number of categories; needed where the mechanism's law depends "
        "on it, as privunit's and k-rr's do.",
    ),
]
VectorDimOption = Annotated[int, whole_option("--dim", metavar="D", help="Length of a client's vector.")]
RadiusOption = Annotated[
    float, number_option("--radius", metavar="R", help="Radius of the ball of the vectors.")
]
MethodOption = Annotated[
    Literal["pld", "rdp"],
    typer.Option(
        "--method",
        parser=_method,
        metavar="HOW",
        help="How the certified interval composes: pld (tightest) or rdp.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, nothing else.")]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw ε against rounds (needs Matplotlib).")
]
TrialsOption = Annotated[int, whole_option("--trials", metavar="N", help="Simulated rounds per dataset.")]
ConfidenceOption = Annotated[
    float, number_option("--confidence", metavar="C", help="Confidence of the attack's bound.")
]
