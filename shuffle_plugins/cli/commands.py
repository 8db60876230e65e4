"""``shuffle-plugins``: the subcommands, the options that they share, and what becomes of errors.

A subcommand stands in a module of this package, loaded only if it is asked for.
"""

from __future__ import annotations

import codecs
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature, signature
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from shuffle_plugins import __version__, accounting, mechanisms
from shuffle_plugins.core.extras import missing_extra

GENERIC = "generic"
"""The value of ``--mechanism`` for bounds that hold for every randomizer of that ε0."""

SAMPLINGS = {
    "without-replacement": "k of n each round",
    "poisson": "each with probability k/n",
    "full": "everybody, every round; sampling earns nothing",
    "single-pass": "one pass, in batches of k",
    "check-in": "each picks its round of a pass in secret",
    "epoch": "batches of a fresh, secret shuffle of everybody, as DataLoader(shuffle=True) has them",
}
ADVERSARIES = {
    "model-observer": "reads the model, does not see who took part",
    "server": "sees who took part, too; count only the rounds that one client takes part in",
}


def read_number(text: str | float) -> float:
    """A decimal number; 60_000, 60,000 and 6e4 are all read."""
    try:
        return float(Decimal(str(text).replace("_", "").replace(",", "")))
    except InvalidOperation as error:
        raise typer.BadParameter(f"{text!r} is not a number") from error


def read_whole(text: str | int) -> int:
    """A whole number, which may be written as 1e6 or 1,000,000."""
    value = read_number(text)
    if not (math.isfinite(value) and value.is_integer()):
        raise typer.BadParameter(f"{text!r} is not a whole number")
    return int(value)


def read_list(text: str, parse: Callable[[str], Any], option: str) -> list[Any]:
    """Values separated by commas, sorted, each once."""
    if "000" in text.split(","):
        raise typer.BadParameter(
            f"{text!r}: a comma separates values here, so write thousands as 1_000 or 1000", param_hint=option
        )
    try:
        return sorted({parse(item) for item in text.split(",") if item.strip()})
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint=option) from error


def refuse_given(context: typer.Context, names: Iterable[str], because: str) -> None:
    """Refuse options of the command that were typed where they mean nothing, and say why."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{because}: leave out --{name.replace('_', '-')}")


def option(spec: str, help: str, read: Callable[[Any], Any] | None = None) -> Any:
    """An option of typer, ``spec`` its names and how help calls its value; a flag's has no such word."""
    names = [word for word in spec.split() if word.startswith("-")]
    value = " ".join(word for word in spec.split() if word not in names)
    return typer.Option(*names, metavar=value, parser=read, help=help)


number_option = partial(option, read=read_number)
whole_option = partial(option, read=read_whole)


def choice_option(spec: str, what: str, among: Mapping[str, str]) -> Any:
    """An option whose value is one of a few words; ``among`` has what they mean, where they do not say it."""

    def read(text: str) -> str:
        if text not in among:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(among)}")
        return text

    told = ", ".join(f"{name} ({text})" if text else name for name, text in among.items())
    return option(spec, f"{what}: {told}.", read)


class AskedNumber(NamedTuple):
    """A number of a question: an option of the command line, a slider of the page.

    ``spec`` is as of :func:`option`, ``symbol`` how formulas call it; ``read`` raises ``typer.BadParameter``;
    ``decades`` are powers of ten at the slider's ends, and it starts at ``start``.
    """

    spec: str
    symbol: str
    read: Callable[[Any], Any]
    decades: tuple[int, int]
    start: str
    label: str
    hint: str = ""

    def option(self) -> Any:
        """The option of a command that asks for this number."""
        return option(self.spec, f"{self.label}, {self.symbol}. {self.hint}".strip(), self.read)


_BATCHES = (
    "The expected number under poisson and check-in, the smallest batch under single-pass, the batch under "
    "epoch; under full everybody's."
)
_COUNTED = (
    "Passes under single-pass and check-in, epochs under epoch. Against a server, only the rounds that one "
    "client takes part in."
)
_OF_A_LAW = (
    "Only for a mechanism with a law of its own; needed where that depends on it, as privunit's and k-rr's "
    "do."
)
_VECTOR = "Length of a client's vector, or number of categories"
NUMBERS = {
    "population": AskedNumber(
        "--population -n N", "n", read_whole, (1, 9), "60000", "Clients in the population"
    ),
    "cohort": AskedNumber(
        "--cohort -k K", "k", read_number, (0, 9), "10000", "Reports shuffled together", _BATCHES
    ),
    "local-epsilon": AskedNumber(
        "--local-epsilon -e EPS0", "ε0", read_number, (-2, 1), "1.5", "Local ε of one report"
    ),
    "rounds": AskedNumber("--rounds -t T", "T", read_whole, (0, 6), "1200", "Rounds", _COUNTED),
    "delta": AskedNumber(
        "--delta -d DELTA",
        "δ",
        read_number,
        (-12, -1),
        "1e-5",
        "Probability beyond the factor e^ε; well below 1/n",
    ),
    "dim": AskedNumber("--dim D", "d", read_whole, (0, 7), "1000", _VECTOR, _OF_A_LAW),
}
"""The numbers of a question, by their options' names without dashes in front."""


PopulationOption = Annotated[int, NUMBERS["population"].option()]
CohortOption = Annotated[float | None, NUMBERS["cohort"].option()]
LocalEpsilonOption = Annotated[float, NUMBERS["local-epsilon"].option()]
RoundsOption = Annotated[int, NUMBERS["rounds"].option()]
DeltaOption = Annotated[float, NUMBERS["delta"].option()]
DimOption = Annotated[int | None, NUMBERS["dim"].option()]
VectorDimOption = Annotated[int, whole_option("--dim D", "Length of a client's vector.")]
SamplingOption = Annotated[str, choice_option("--sampling SCHEME", "How the cohort is chosen", SAMPLINGS)]
AdversaryOption = Annotated[str, choice_option("--adversary WHO", "Who watches", ADVERSARIES)]
MethodOption = Annotated[
    Literal["pld", "rdp"],
    choice_option("--method HOW", "How the certified interval composes", {"pld": "tightest", "rdp": ""}),
]
TargetOption = Annotated[float, number_option("--target-epsilon EPS", "ε to stay within.")]
RadiusOption = Annotated[float, number_option("--radius R", "Radius of the ball of the vectors.")]
JsonOption = Annotated[bool, option("--json", "Print JSON, nothing else.")]
PlotOption = Annotated[Path | None, option("--plot FILE", "Draw a picture of it (needs Matplotlib).")]


def taking_part(population: int, cohort: float | None, *, sampling: str) -> float:
    """k to account for, from the options that give it; under full participation it is n."""
    if sampling != "full":
        if cohort is None:
            raise typer.BadParameter(
                f"--cohort is needed under {sampling} sampling; if everybody reports in every round, give "
                "--sampling full instead"
            )
        return cohort
    if cohort not in (None, population):
        raise typer.BadParameter(
            f"under full sampling everybody takes part, {population:,} clients and not {cohort:,.12g}: leave "
            "out --cohort; if the same few take part in every round, they are the --population"
        )
    return population


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Rounds of one kind, and the δ at which they are asked about; its fields are options of commands.

    A command that solves for ε0 or the number of rounds, or lists several, leaves them out at first.
    """

    population: PopulationOption
    local_epsilon: LocalEpsilonOption
    rounds: RoundsOption
    delta: DeltaOption
    cohort: CohortOption = None
    sampling: SamplingOption = "without-replacement"
    adversary: AdversaryOption = "model-observer"
    method: MethodOption = "pld"
    mechanism: Annotated[
        str,
        option(
            "--mechanism NAME",
            "Randomizer whose own law to use: one that `mechanisms` lists, with its default options; generic "
            "is the bound for all of them, whatever their options.",
        ),
    ] = GENERIC
    dim: DimOption = None
    local_delta: Annotated[
        float,
        number_option(
            "--local-delta DELTA0",
            "δ0 of one report, for (ε0, δ0)-LDP randomizers; only with the generic law.",
        ),
    ] = 0.0
    records_per_client: Annotated[
        int,
        whole_option(
            "--records-per-client M",
            "Records that each client has, m. One that takes part draws --samples-per-client of them in "
            "secret and reports on each; neighbours then differ in one record of one client.",
        ),
    ] = 1
    samples_per_client: Annotated[
        int,
        whole_option(
            "--samples-per-client S",
            "Records that a client that takes part reports on, s; k·s reports are shuffled.",
        ),
    ] = 1

    def participants(self) -> tuple[int, float]:
        """(n, k) to account for; under full participation both are n."""
        return self.population, taking_part(self.population, self.cohort, sampling=self.sampling)

    def blanket_factory(self) -> Callable[[float], accounting.Blanket] | None:
        """The mechanism's blanket as a function of ε0; None for the generic one."""
        if self.mechanism == GENERIC:
            if self.dim is not None:
                raise typer.BadParameter("generic takes no --dim: leave it out, or name a --mechanism")
            return None
        if self.local_delta > 0:
            raise typer.BadParameter("--local-delta is for --mechanism generic")
        mechanisms.registry.check_known(self.mechanism, *mechanisms.ONE_MESSAGE)
        return self._own_blanket

    def _own_blanket(self, local_epsilon: float) -> accounting.Blanket:
        name = self.mechanism
        dims = (2, 3, 1_000) if self.dim is None else (self.dim,)  # does it depend on the dimension?
        own, *others = {mechanisms.blanket(name, local_epsilon=local_epsilon, dim=dim) for dim in dims}
        if others:
            raise typer.BadParameter(
                f"--dim is needed: how much a report of {name} tells depends on the length of the vector or "
                "the number of categories"
            )
        if own.local_epsilon != local_epsilon:
            raise typer.BadParameter(
                f"reports of {name} are (ε0, δ0)-LDP: use --mechanism generic with --local-delta"
            )
        return own

    def blanket(self) -> accounting.Blanket | None:
        """The mechanism's blanket at this ε0; None for the generic one."""
        factory = self.blanket_factory()
        return None if factory is None else factory(self.local_epsilon)

    def round(self) -> accounting.ShuffleRound | accounting.SampledRecordsRound:
        """One such round, for the accountant."""
        population, cohort = self.participants()
        clients = accounting.ShuffleRound(
            local_epsilon=self.local_epsilon,
            population=population,
            cohort=cohort,
            sampling=accounting.Sampling(self.sampling),
            adversary=accounting.Adversary(self.adversary),
            mechanism=self.mechanism,
            blanket=self.blanket(),
            local_delta=self.local_delta,
            channel_fixed=True,
        )
        if self.records_per_client == self.samples_per_client == 1:
            return clients
        return accounting.SampledRecordsRound.of(
            clients, records_per_client=self.records_per_client, samples_per_client=self.samples_per_client
        )

    def compare(self) -> accounting.Comparison:
        """The project's own bounds on these rounds; ``beside`` of the answer adds published ones."""
        return accounting.compare(
            shuffle_round=self.round(),
            num_steps=self.rounds,
            delta=self.delta,
            method=self.method,
            published=(),
        )


def asks(*, optional: Collection[str] = (), without: Collection[str] = ()) -> Callable[[Any], Any]:
    """Give a command options for the fields of each of its parameters whose type is a dataclass.

    Those ``without`` are not asked for, ``optional`` ones may be left out and are None then. A parameter of
    the command's own takes the place of the field of the same name, and is part of the dataclass too.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(signature(command, eval_str=True).parameters)
        asked = {name: own.pop(name).annotation for name in list(own) if is_dataclass(own[name].annotation)}
        shared = {}
        for kind in asked.values():
            hints = get_type_hints(kind, include_extras=True)
            for each in fields(kind):
                hint, default = hints[each.name], each.default
                if each.name in optional:
                    hint, default = Annotated[get_args(hint)[0] | None, get_args(hint)[1]], None
                if each.name not in {*without, *own}:
                    shared[each.name] = Parameter(
                        each.name,
                        Parameter.KEYWORD_ONLY,
                        default=Parameter.empty if default is MISSING else default,
                        annotation=hint,
                    )

        def run(**given: Any) -> None:
            made = {
                name: kind(**{each.name: given[each.name] for each in fields(kind) if each.name in given})
                for name, kind in asked.items()
            }
            command(**made, **{name: given[name] for name in own})

        run.__doc__ = command.__doc__
        mine = (each.replace(kind=Parameter.KEYWORD_ONLY) for each in own.values())
        parameters = [*shared.values(), *mine]
        cast(Any, run).__signature__ = Signature(parameters)
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def check_one_report(mechanism: str) -> None:
    """Refuse a sum of many messages, and a name that no mechanism has."""
    mechanisms.registry.check_known(mechanism, *mechanisms.ONE_MESSAGE)
    if mechanisms.kind_of(mechanism) is mechanisms.Kind.SUMS:
        raise ValueError(
            f"{mechanism} is a sum of many messages per client; this command takes mechanisms with one "
            "report per client (`shuffle-plugins mechanisms` lists them)"
        )


# -- the command line ---------------------------------------------------------------------------------------

_MODULES = {
    "epsilon": "rounds",
    "central": "rounds",
    "statement": "spent",
    "compare": "rounds",
    "calibrate": "rounds",
    "plan": "plan",
    "recipe": "plan",
    "round-costs": "costs",
    "bandit": "bandit",
    "audit": "audit",
    "estimate": "estimate",
    "mechanisms": "costs",
    "budget": "spent",
    "keys": "keys",
    "dap-task": "dap_task",
    "app": "page",
}

ELSEWHERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("eps0", "epsilon0", "e0", "eps-local", "epsilon-local"), ("--local-epsilon",)),
    **dict.fromkeys(("eps", "epsilon"), ("--target-epsilon", "--local-epsilon", "--epsilon")),
    **dict.fromkeys(("clients", "num-clients", "users", "records", "n"), ("--population",)),
    **dict.fromkeys(("batch", "batch-size", "clients-per-round", "k"), ("--cohort",)),
    **dict.fromkeys(("steps", "num-steps", "num-rounds", "iterations", "epochs", "t"), ("--rounds",)),
    **dict.fromkeys(("dimension", "parameters", "num-parameters", "d"), ("--dim",)),
    **dict.fromkeys(("randomizer", "randomiser", "protocol"), ("--mechanism",)),
    **dict.fromkeys(("clip", "clipping-norm", "max-grad-norm", "sensitivity"), ("--radius",)),
    **dict.fromkeys(("delta0",), ("--local-delta",)),
    **dict.fromkeys(("target-delta",), ("--delta",)),
    **dict.fromkeys(("figure", "picture", "output"), ("--plot",)),
}
"""Options of the same meaning, by the names that other tools and papers give it, without their dashes.

Only those of them are named that the command has.
"""

_ancestry = typer.BadParameter.__mro__
# Base of all complaints about a command line: its name and package depend on the version of typer.
_CommandLineError = cast(type[typer.BadParameter], _ancestry[_ancestry.index(Exception) - 1])


class _Command(TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        from shuffle_plugins.cli.output import working

        working.begin()
        try:
            return super().invoke(ctx)
        except ValueError as error:
            options = {str(each.name): each.opts[0] for each in self.get_params(ctx) if "--" in each.opts[0]}
            raise ValueError(_with_options(str(error), options)) from error
        finally:
            working.end()


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", metavar="", help="Print version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        text = context.get_help()  # printed already, and empty, if typer has Rich
        if text:
            print(text)
        raise typer.Exit(2)


def _application(arguments: Sequence[str]) -> typer.Typer:
    """The command line with the one subcommand that the arguments begin with, or else with all of them."""
    application = typer.Typer(
        name="shuffle-plugins",
        callback=_root,
        invoke_without_command=True,
        help="What rounds of the shuffle model cost: certified ε for replace-one neighbours.",
        context_settings={"help_option_names": ["--help", "-h"]},
        pretty_exceptions_enable=False,
    )
    for name in [name for name in _MODULES if name in arguments[:1]] or _MODULES:
        module = import_module(f"shuffle_plugins.cli.{_MODULES[name]}")
        command = getattr(module, f"{name.replace('-', '_')}_command")
        if isinstance(command, typer.Typer):
            for part in command.registered_commands:
                part.cls = _Command
            application.add_typer(command, name=name)
        else:
            application.command(name, cls=_Command)(command)
    return application


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line; bad input ends in one line on stderr and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # the other one may have no ε
    try:
        status = _application(given)(given, standalone_mode=False)
        return status if isinstance(status, int) else 0
    except typer.Abort:
        return 130
    except _CommandLineError as error:
        told = _complaint(error)
    except ValueError as error:
        told = str(error)
    except ModuleNotFoundError as error:
        if (told := missing_extra(error) or "") == "":
            raise
    except OSError as error:
        known = error.filename is not None and error.strerror is not None
        told = f"{error.filename} cannot be used: {error.strerror}" if known else str(error)
    except ArithmeticError as error:
        told = f"out of numerical reach: {error}"
    print("error:", " ".join(told.split()), file=sys.stderr)
    return 2


def _complaint(error: Any) -> str:
    """What is wrong with the command line, with a hint for a name that is not known."""
    typed, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    unknown = type(error).__name__ == "NoSuchOption"  # where the class is depends on typer's version
    if unknown and isinstance(typed, str) and context is not None:
        options = [name for option in context.command.get_params(context) for name in option.opts]
        return _no_such_option(typed, known=options, command=context.command_path)
    if "Did you mean" in getattr(error, "message", ""):  # typer's hint, which newer click repeats
        return str(error.message)
    return str(error.format_message())


def _no_such_option(given: str, *, known: Iterable[str], command: str) -> str:
    """That an option does not exist, and which one of the command's was probably meant."""
    bare = {name.lstrip("-"): name for name in known if name.startswith("--")}
    typed = given.lstrip("-").replace("_", "-").lower()
    meant = [name for name in ELSEWHERE.get(typed, ()) if name in bare.values()]
    meant += [name for rest, name in bare.items() if len(typed) > 1 and rest.startswith(typed)]
    meant = meant or [bare[near] for near in get_close_matches(typed, bare)]
    hint = f"Did you mean {' or '.join(dict.fromkeys(meant))}?" if meant else ""
    return f"No such option {given}. {hint or f'`{command} --help` lists the options.'}"


def _with_options(message: str, options: Mapping[str, str]) -> str:
    """A message of the library with options for its arguments' names: ``--rounds``, not ``num_steps``.

    It may begin with an argument's name; inside it only names with an underscore are replaced.
    """
    named = {option.lstrip("-").replace("-", "_"): option for option in options.values()} | dict(options)
    other = {"num_steps": "rounds", "num_trials": "trials"}
    named |= {name: named[ours] for name, ours in other.items() if ours in named}
    return re.sub(r"\A\w+|\b[a-z]+(_[a-z]+)+\b", lambda found: named.get(found[0], found[0]), message)
