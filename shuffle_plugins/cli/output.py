"""What commands print: JSON for programs, tables and remarks for people, and that they are at work.

Upper bounds are rounded up, lower bounds down.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from shuffle_plugins import accounting
from shuffle_plugins.cli.commands import GENERIC
from shuffle_plugins.core import rounded

if TYPE_CHECKING:
    from rich.status import Status

WIDE = 110
"""Columns that the widest layout needs."""

NOTHING = "—"
"""What stands in a cell that has no value."""

_PATIENCE = 1.0  # seconds before a command says that it works: answers that come sooner need not


class _Working:
    """A line on a terminal's stderr, after a second, that says what a command is at; gone when it prints."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._timer = Timer(0, int)

    def begin(self, what: str = "working") -> None:
        self.end()
        if sys.stderr.isatty():
            self._status = Console(stderr=True).status(f"{what} …")
            self._timer = Timer(_PATIENCE, self._status.start)
            self._timer.daemon = True
            self._timer.start()

    def step(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    def end(self) -> None:
        if self._status is not None:
            self._timer.cancel()
            self._timer.join()
            self._status.stop()
            self._status = None


working = _Working()
"""Begun for every command; every way to print ends it."""


def progress(what: str) -> Callable[[int, int], None]:
    """A function of the steps done and expected, which tells a terminal until something is printed."""
    working.begin(what)
    return lambda done, expected: working.step(f"{what}: {done:,} of {expected:,} …")


# -- printing -----------------------------------------------------------------------------------------------


def width() -> int:
    """Columns to print in: the terminal's, or $COLUMNS; enough for the widest layout in a pipe without it."""
    asked = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or (asked.isdecimal() and int(asked) > 0):
        return max(60, Console().width)  # narrower than this no table can be read
    return WIDE


def show(*parts: Any) -> None:
    """Print tables, and text with Rich's markup."""
    working.end()
    console = Console(highlight=False, width=width())
    for part in parts:
        console.print(part)


def remark(text: str | None, *, aside: bool = False) -> None:
    """Print a text if there is one: on stderr where stdout holds what a program reads."""
    working.end()
    if text is not None:
        print(text, file=sys.stderr if aside else sys.stdout)


def warn(texts: Iterable[str]) -> None:
    """Print warnings, on stderr; JSON holds them besides."""
    for text in texts:
        remark(f"Warning: {text}", aside=True)


def print_json(value: Any) -> None:
    """Print a value as JSON, which has no infinities and no NaN."""
    remark(json.dumps(value, indent=2, allow_nan=False))


def answered(as_json: bool, values: Any, *, warnings: Sequence[str] | None = None) -> bool:
    """Print warnings, and the answer if it is for a program; whether it was, so that nobody else reads it."""
    warn(warnings or ())
    if as_json:
        print_json(values if warnings is None else values | {"warnings": warnings})
    return as_json


def certified(charged: accounting.Round, *, delta: float, rounds: int = 1) -> accounting.EpsilonInterval:
    """ε of so many such rounds."""
    accountant = accounting.ShuffleAccountant()
    accountant.step(charged, num_steps=rounds)
    return accountant.epsilon(delta)


def interval_json(found: accounting.EpsilonInterval) -> dict[str, Any]:
    """Both ends of an interval and the bounds behind them; ``lower`` is null if no lower bound is known."""
    return {
        "lower": None if found.lower_bound == "none" else found.lower,
        "upper": found.upper,
        "upper_bound": found.upper_bound,
        "lower_bound": found.lower_bound,
    }


def delta_warnings(delta: float, *, population: int) -> list[str]:
    """The warning of a δ above 1/population, if it is."""
    found = accounting.delta_warning(delta, population=population)
    return [] if found is None else [found]


def left_out(mechanisms: Iterable[tuple[str, str]]) -> None:
    """Print mechanisms that were left out, name and reason of each: the names of each reason in one line."""
    names: dict[str, list[str]] = {}
    for name, reason in mechanisms:
        names.setdefault(reason.removeprefix(f"{name} "), []).append(name)
    for reason, each in names.items():
        remark(f"Left out: {', '.join(each)}: {reason}.")


def check_picture(path: Path | None) -> None:
    """Refuse a picture that cannot be written, before the minutes that computing it may take."""
    if path is not None:
        from shuffle_plugins.cli.plotting import check_drawable

        check_drawable(path)


def picture_written(path: Path, *, as_json: bool) -> None:
    """Tell where the picture is."""
    remark(f"Picture written to {path}", aside=as_json)


# -- tables -------------------------------------------------------------------------------------------------


def table(
    rows: Iterable[Mapping[str, str | Text | None]],
    *,
    text: Mapping[str, str] | None = None,
    title: str = "",
    styles: Sequence[str] = (),
) -> Table:
    """A table with a rule under its headings and no other lines, as all of them here are.

    ``rows`` hold cells by heading, all with those of the first, without markup; ``text`` the headings of
    columns that hold text, with a style of Rich or none; others hold numbers.
    """
    found = list(rows)
    headings = list(found[0]) if found else []
    made = Table(
        title=escape(title) or None,
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=width() < WIDE,
    )
    for heading in headings:
        if heading in (text or {}):
            made.add_column(heading, style=(text or {})[heading])
        else:
            made.add_column(heading, justify="right", no_wrap=True)
    for row, style in zip_longest(found, styles):
        cells = [NOTHING if cell is None else cell for cell in (row or {}).values()]
        made.add_row(*(escape(cell) if isinstance(cell, str) else cell for cell in cells), style=style)
    return made


def legend(meanings: Mapping[str, str]) -> Table:
    """What words of a table mean."""
    made = Table.grid(padding=(0, 2))
    for _ in range(2):
        made.add_column(style="dim")
    for row in meanings.items():
        made.add_row(*row)
    return made


def times(ratio: float) -> str:
    """How many times as much, rounded to the nearest: a ratio is no bound. Only what is equal is 1."""
    if ratio == 1 or not math.isfinite(ratio):
        return f"{ratio:g}"
    if 0.1 <= ratio < 1000:
        return f"{ratio:.{3 if ratio < 10 else 2 if ratio < 100 else 1}f}"
    return f"{ratio:,.0f}" if 1000 <= ratio < 10**9 else f"{ratio:.4g}"


up = partial(rounded, up=True)
down = partial(rounded, up=False)


def interval(found: accounting.EpsilonInterval) -> str:
    """Both ends, or the upper one if no lower one is known."""
    if found.lower_bound == "none":
        return f"ε ≤ {up(found.upper)}"
    return f"ε ∈ [{down(found.lower)}, {up(found.upper)}]"


def relation(answer: accounting.Comparison) -> str:
    """Whose privacy the numbers are about, and against whom."""
    of_records = isinstance(answer.shuffle_round, accounting.SampledRecordsRound)
    what = f"{answer.interval.neighbouring_relation}{' record' if of_records else ''}"
    return f"{what} neighbours · adversary: {answer.interval.adversary}"


def verdict(answer: accounting.Comparison) -> str:
    """The certified interval in one line, with Rich's markup."""
    unknown = " (no lower bound)" if answer.interval.lower_bound == "none" else ""
    found = f"[bold]{escape(interval(answer.interval))}[/]{unknown}"
    return f"{found} at δ = {answer.interval.delta:g} · {relation(answer)}"


def bounds_table(answer: accounting.Comparison) -> Table:
    """One row per bound; those behind the certified interval in bold."""
    wide, certified = width() >= WIDE, answer.interval.upper
    reported = {answer.interval.upper_bound, answer.interval.lower_bound}
    rows: list[dict[str, str | Text | None]] = []
    styles = []
    for name, kind, epsilon, source in [
        *((each.name, each.kind, each.epsilon, each.source) for each in answer.bounds),
        *((each.name, "upper", None, each.reason) for each in answer.out_of_range),
    ]:
        known = certified > 0 and epsilon is not None
        rows.append(
            {
                "bound": name if wide else Text.assemble(name, "\n", (source, "not bold dim")),
                "kind": kind,
                "ε": None if epsilon is None else rounded(epsilon, up=kind == "upper"),
                "× certified": times(epsilon / certified) if known and epsilon is not None else None,
                **({"source": source} if wide else {}),
            }
        )
        styles.append("dim" if epsilon is None else "bold" if name in reported else "")
    title = _question(answer, rounds=f"T = {answer.num_steps:,}", wide=wide)
    return table(rows, text={"bound": "", "kind": "", "source": "dim"}, title=title, styles=styles)


def rounds_tables(answers: Sequence[accounting.Comparison]) -> Iterator[Table]:
    """One row per bound, one column per answer: the same kind of round, different numbers of them.

    Answers that do not fit beside each other go into further tables.
    """
    wide = width() >= WIDE
    missing = [("upper", each.name) for answer in answers for each in answer.out_of_range]
    known = [(str(bound.kind), bound.name) for answer in reversed(answers) for bound in answer.bounds]
    names = sorted(dict.fromkeys([*known, *missing]), key=lambda name: name[0] == "lower")
    beside = max(1, (width() - 32) // 12)
    for start in range(0, len(answers), beside):
        rows: list[dict[str, str | Text | None]] = [{"bound": name, "kind": kind} for kind, name in names]
        for answer in answers[start : start + beside]:
            values = {(str(bound.kind), bound.name): bound.epsilon for bound in answer.bounds}
            for row, (kind, name) in zip(rows, names, strict=True):
                epsilon = values.get((kind, name))
                shown = None if epsilon is None else rounded(epsilon, up=kind == "upper")
                row[f"T={answer.num_steps:,}"] = shown
        title = "" if start else _question(answers[0], wide=wide)
        made = table(rows, text={"bound": "", "kind": ""}, title=title)
        made.columns[0].min_width = 22  # of a bound's name, broken at its spaces
        if start + beside >= len(answers):
            made.caption, made.caption_justify = relation(answers[0]), "left"
            made.caption += f" · {NOTHING} outside the range of the theorem" if missing else ""
        yield made


def _question(answer: accounting.Comparison, *, rounds: str = "", wide: bool) -> str:
    asked = answer.shuffle_round
    records = (
        f"{asked.samples_per_client:,} of {asked.records_per_client:,} records"
        if isinstance(asked, accounting.SampledRecordsRound)
        else ""
    )
    # A short number as typed, 0.3 and not 0.299999; a long one, of a calibration, rounded down.
    short = f"{asked.local_epsilon:g}"
    level = short if float(short) == asked.local_epsilon else down(asked.local_epsilon, digits=6)
    mechanism = f"{GENERIC}: any mechanism" if asked.mechanism == GENERIC else asked.mechanism
    parts = (
        f"n = {asked.population:,}",
        f"k = {asked.cohort:,.12g} ({asked.sampling})",
        records,
        f"ε0 = {level} ({mechanism})",
        rounds,
        f"δ = {answer.interval.delta:g}",
    )
    said = " · ".join(filter(None, parts))
    return said if wide else said.replace(" = ", "=")
