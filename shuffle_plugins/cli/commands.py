"""``shuffle-plugins``: the subcommands put together, and what happens to their errors.

A subcommand stands in a module of this package, loaded only if it is asked for.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from shuffle_plugins import __version__
from shuffle_plugins.core.extras import missing_extra

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
