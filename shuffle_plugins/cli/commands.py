"""``shuffle-plugins``: the subcommands put together, and what happens to their errors.

A subcommand is a module of this package, loaded only if it is asked for. What subcommands share is in
``options`` (names, and how values are read), ``questions`` (rounds, and the bounds on them), ``output`` and
``tables``.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from shuffle_plugins import __version__
from shuffle_plugins.cli.wrong_names import no_such_option, with_options
from shuffle_plugins.core import missing_extra

_COMMANDS = (
    "epsilon",
    "statement",
    "compare",
    "calibrate",
    "plan",
    "recipe",
    "round-costs",
    "bandit",
    "audit",
    "estimate",
    "mechanisms",
    "budget",
    "keys",
    "dap-task",
    "app",
)

_ancestry = typer.BadParameter.__mro__
# Base of all complaints about a command line: its name and package depend on the version of typer.
_CommandLineError = cast(type[typer.BadParameter], _ancestry[_ancestry.index(Exception) - 1])


class _Command(TyperCommand):
    def get_help_option(self, ctx: Any) -> Any:
        return _as_flag(super().get_help_option(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ValueError as error:
            options = {str(each.name): each.opts[0] for each in self.get_params(ctx) if "--" in each.opts[0]}
            raise ValueError(with_options(str(error), options)) from error


class _Group(TyperGroup):
    def get_help_option(self, ctx: Any) -> Any:
        return _as_flag(super().get_help_option(ctx))


def _as_flag(option: Any) -> Any:
    """The option, shown without a type: newer typer prints ``<bool>`` after a flag."""
    if option is not None:
        option.metavar = ""
    return option


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
        cls=_Group,
        callback=_root,
        invoke_without_command=True,
        help="What rounds of the shuffle model cost: certified ε for replace-one neighbours.",
        context_settings={"help_option_names": ["--help", "-h"]},
        pretty_exceptions_enable=False,
    )
    for name in [name for name in _COMMANDS if name in arguments[:1]] or _COMMANDS:
        module = name.replace("-", "_")
        command = getattr(import_module(f"shuffle_plugins.cli.{module}"), f"{module}_command")
        if isinstance(command, typer.Typer):
            for part in command.registered_commands:
                part.cls = _Command
            application.add_typer(command, name=name, cls=_Group)
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
    except _CommandLineError as error:
        return _refuse(_complaint(error))
    except ValueError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if advice := missing_extra(error):
            return _refuse(advice)
        raise
    except OSError as error:
        known = error.filename is not None and error.strerror is not None
        return _refuse(f"{error.filename} cannot be used: {error.strerror}" if known else str(error))
    except ArithmeticError as error:
        return _refuse(f"out of numerical reach: {error}")
    except typer.Abort:
        return 130
    return status if isinstance(status, int) else 0


def _complaint(error: Any) -> str:
    """What is wrong with the command line, with a hint for a name that is not known."""
    typed, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    unknown = type(error).__name__ == "NoSuchOption"  # where the class is depends on typer's version
    if unknown and isinstance(typed, str) and context is not None:
        options = [name for option in context.command.get_params(context) for name in option.opts]
        return no_such_option(typed, known=options, command=context.command_path)
    if "Did you mean" in getattr(error, "message", ""):  # typer's hint, which newer click repeats
        return str(error.message)
    return str(error.format_message())


def _refuse(message: str) -> int:
    print("error:", " ".join(message.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
