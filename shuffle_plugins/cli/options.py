"""The command line's options: what they are called, how they are read, which of them go together."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_type_hints

import typer

if TYPE_CHECKING:
    from shuffle_plugins.accounting import Method

GENERIC = "generic"
BEST = "best"


def number(text: str | float) -> float:
    """A decimal number; 60_000, 60,000 and 6e4 are all read."""
    try:
        return float(Decimal(str(text).replace("_", "").replace(",", "")))
    except InvalidOperation as error:
        raise typer.BadParameter(f"{text!r} is not a number") from error


def whole(text: str | int) -> int:
    """A number without a fraction."""
    value = number(text)
    if not (math.isfinite(value) and value.is_integer()):
        raise typer.BadParameter(f"{text!r} is not a whole number")
    return int(value)


def listed(text: str, parse: Callable[[str], Any], option: str) -> list[Any]:
    """Values separated by commas, in order, each once."""
    try:
        return sorted({parse(item) for item in text.split(",") if item.strip()})
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint=option) from error


def _chosen(text: str, choices: Iterable[str]) -> str:
    names = [str(choice) for choice in choices]
    if text not in names:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(names)}")
    return text


def _sampling(text: str) -> str:
    from shuffle_plugins.accounting import Sampling

    return _chosen(text, Sampling)


def _adversary(text: str) -> str:
    from shuffle_plugins.accounting import Adversary

    return _chosen(text, (Adversary.MODEL_OBSERVER, Adversary.SERVER))


def _method(text: str) -> str:
    from shuffle_plugins.accounting import Method

    return _chosen(text, get_args(Method))


ROUNDS_HELP = (
    "Rounds; under single-pass sampling and check-in, passes; under epoch, epochs; against a server, only "
    "the rounds that one client takes part in."
)

PopulationOption = Annotated[
    int, typer.Option("--population", "-n", parser=whole, metavar="N", help="Clients in the population, n.")
]
CohortOption = Annotated[
    float | None,
    typer.Option(
        "--cohort",
        "-k",
        parser=number,
        metavar="K",
        help="Reports shuffled together, k: the expected number under poisson sampling or check-in, the "
        "smallest batch under single-pass, the batch under epoch. Required except under full, where it "
        "defaults to N.",
    ),
]
SolvableCohortOption = Annotated[
    float | None,
    typer.Option(
        "--cohort",
        "-k",
        parser=number,
        metavar="K",
        help="Reports shuffled together, k: the expected number under poisson sampling or check-in, the "
        "smallest batch under single-pass, the batch under epoch. Required unless solved for, and except "
        "under full, where it defaults to N.",
    ),
]
LocalEpsilonOption = Annotated[
    float,
    typer.Option("--local-epsilon", "-e", parser=number, metavar="EPS0", help="ε0 of one report."),
]
RoundsOption = Annotated[int, typer.Option("--rounds", "-t", parser=whole, metavar="T", help=ROUNDS_HELP)]
TargetOption = Annotated[
    float, typer.Option("--target-epsilon", parser=number, metavar="EPS", help="ε to stay within.")
]
DeltaOption = Annotated[
    float, typer.Option("--delta", "-d", parser=number, metavar="DELTA", help="Total δ in (0, 1).")
]
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
        help="Randomizer whose own law to use: one that `mechanisms` lists; generic covers all of them.",
    ),
]
LocalDeltaOption = Annotated[
    float,
    typer.Option(
        "--local-delta",
        parser=number,
        metavar="DELTA0",
        help="δ0 of one report, for (ε0, δ0)-LDP randomizers; only with the generic law.",
    ),
]
DimOption = Annotated[
    int | None,
    typer.Option(
        "--dim",
        parser=whole,
        metavar="D",
        help="Length of a client's vector, or number of categories; needed where the mechanism's law depends "
        "on it, as privunit's and k-rr's do.",
    ),
]
MethodOption = Annotated[
    str,
    typer.Option(
        "--method",
        parser=_method,
        metavar="HOW",
        help="How the certified interval composes: pld (tightest) or rdp.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON, nothing else.")]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw ε against rounds (needs Matplotlib)."),
]


TrialsOption = Annotated[
    int, typer.Option("--trials", parser=whole, metavar="N", help="Simulated rounds per dataset.")
]
ConfidenceOption = Annotated[
    float, typer.Option("--confidence", parser=number, metavar="C", help="Confidence of the attack's bound.")
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """How rounds are run, before whom, and how they are added up."""

    sampling: SamplingOption = "without-replacement"
    adversary: AdversaryOption = "model-observer"
    method: MethodOption = "pld"

    @property
    def composition(self) -> Method:
        """``method``, as the accounting types it."""
        return cast("Method", self.method)


@dataclass(frozen=True, kw_only=True, slots=True)
class Randomizer:
    """Whose blanket is used."""

    mechanism: MechanismOption = GENERIC
    dim: DimOption = None
    local_delta: LocalDeltaOption = 0.0


def unfolded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a parameter for every field of its parameters that are dataclasses.

    Options that several commands share are declared once, as a dataclass; typer reads plain parameters only.
    """
    groups: dict[str, type[Any]] = {}
    parameters = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if not is_dataclass(hints[name]):
            parameters.append(_keyword(name, hints[name], parameter.default))
            continue
        groups[name] = hints[name]
        inner = get_type_hints(hints[name], include_extras=True)
        for field in fields(hints[name]):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(_keyword(field.name, inner[field.name], default))

    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _keyword(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
