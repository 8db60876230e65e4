"""What commands print: JSON for programs, tables and remarks for people, a progress bar while they wait."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

from rich.console import Console

from shuffle_plugins import accounting
from shuffle_plugins.cli.tables import WIDE

# Narrower than this no table can be read.
_NARROWEST = 60
# Seconds to wait before a progress bar appears: answers that come sooner need none.
_PATIENCE = 0.5


def print_json(value: Any) -> None:
    """Print a value as JSON; infinities and NaN are errors, as JSON has neither."""
    print(json.dumps(value, indent=2, allow_nan=False))


def interval_json(found: accounting.EpsilonInterval) -> dict[str, Any]:
    """Both ends of an interval and the bounds behind them; ``lower`` is null if no lower bound is known."""
    return {
        "lower": None if found.lower_bound == "none" else found.lower,
        "upper": found.upper,
        "upper_bound": found.upper_bound,
        "lower_bound": found.lower_bound,
    }


def width() -> int:
    """Columns to print in: the terminal's, or $COLUMNS; enough for the widest layout in a pipe without it."""
    asked = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or (asked.isdecimal() and int(asked) > 0):
        return max(_NARROWEST, Console().width)
    return WIDE


def show(*parts: Any) -> None:
    """Print tables, and text with Rich's markup."""
    console = Console(highlight=False, width=width())
    for part in parts:
        console.print(part)


def remark(text: str | None, *, as_json: bool = False) -> None:
    """Print a remark if there is one: on stderr where stdout holds JSON for a program to read."""
    if text is not None:
        print(text, file=sys.stderr if as_json else sys.stdout)


def warn(texts: Iterable[str]) -> None:
    """Print warnings, on stderr; JSON holds them besides."""
    for text in texts:
        print(f"Warning: {text}", file=sys.stderr)


def delta_warnings(delta: float, *, population: int) -> list[str]:
    """The warning of a δ above 1/population, if it is."""
    found = accounting.delta_warning(delta, population=population)
    return [] if found is None else [found]


def left_out(mechanisms: Iterable[tuple[str, str]]) -> None:
    """Print which mechanisms were left out: the names of each reason in one line.

    Args:
        mechanisms: name and reason of each.
    """
    names: dict[str, list[str]] = {}
    for name, reason in mechanisms:
        names.setdefault(reason.removeprefix(f"{name} "), []).append(name)
    for reason, each in names.items():
        remark(f"Left out: {', '.join(each)}: {reason}.")


@contextmanager
def progress(
    what: str, *, as_json: bool = False, announced: str | None = None
) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr after half a second, if a person watches.

    Args:
        what: stands beside the bar.
        as_json: print nothing, since a program reads the answer.
        announced: printed on stderr where there is no terminal to draw a bar on, once a first step of several
            is done.

    Yields:
        a function to call with the number of steps done and the number expected.
    """
    if as_json or not (sys.stdout.isatty() and sys.stderr.isatty()):
        told = as_json or announced is None

        def tell(done: int, expected: int) -> None:
            nonlocal told
            if not told and done < expected:
                print(announced, file=sys.stderr, flush=True)
                told = True

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    started = Timer(_PATIENCE, bar.start)
    started.daemon = True
    started.start()
    try:
        yield lambda done, expected: bar.update(task, completed=done, total=expected)
    finally:
        started.cancel()
        started.join()
        bar.stop()


def check_picture(path: Path | None) -> None:
    """Refuse a picture that cannot be written, before the minutes that computing it may take."""
    if path is not None:
        from shuffle_plugins.cli.plotting import check_drawable

        check_drawable(path)


def picture_written(path: Path | None, *, as_json: bool) -> None:
    """Tell where the picture is, if one was asked for."""
    remark(None if path is None else f"Picture written to {path}", as_json=as_json)
