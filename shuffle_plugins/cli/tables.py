"""Bounds as tables for a terminal. Upper bounds are rounded up, lower bounds down."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from shuffle_plugins import accounting
from shuffle_plugins.cli.options import GENERIC
from shuffle_plugins.core import rounded

WIDE = 110
"""Columns that the widest layout needs."""

NOTHING = "—"
"""What stands in a cell that has no value."""

_NO_BREAK = "\N{NO-BREAK SPACE}"
# Columns that the longest name of a bound takes when it is broken at its spaces.
_BOUND_COLUMN = 22
# Columns between two cells of a table, with and without collapse_padding.
_WIDE_GAP, _NARROW_GAP = 3, 2
# Columns of a title that is broken into lines, so that it is no wider than the table under it.
_TITLE = 54


def plain_table(title: str = "", *, title_style: str = "", wide: bool = True) -> Table:
    """An empty table with a rule under its headings and no other lines, the style of all tables here.

    Args:
        title: shown above it, as it is: without markup.
        title_style: Rich's name of a style.
        wide: whether there is room for padding on both sides of every cell.
    """
    return Table(
        title=escape(title) or None,
        title_justify="left",
        title_style=title_style,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=not wide,
    )


def times(ratio: float) -> str:
    """How many times as much, rounded to the nearest: a ratio is no bound. Only what is equal is 1."""
    if ratio == 1 or not math.isfinite(ratio):
        return f"{ratio:g}"
    if 0.1 <= ratio < 1000:
        return f"{ratio:.{3 if ratio < 10 else 2 if ratio < 100 else 1}f}"
    return f"{ratio:,.0f}" if 1000 <= ratio < 10**9 else f"{ratio:.4g}"


def bounds_table(answer: accounting.Comparison, *, width: int = WIDE) -> Table:
    """One row per bound; those behind the certified interval in bold.

    Args:
        answer: the result to show.
        width: columns there are; below ``WIDE`` sources stand under their bounds.
    """
    wide = width >= WIDE
    table = _bounds(_question(answer, rounds=f"T = {answer.num_steps:,}", wide=wide))
    table.add_column("ε", justify="right", no_wrap=True)
    table.add_column("× certified", justify="right", no_wrap=True)
    if wide:
        table.add_column("source", style="dim")

    def add(name: str, kind: str, epsilon: str, ratio: str, source: str, style: str | None) -> None:
        cells = [kind, epsilon, ratio]
        if wide:
            table.add_row(escape(name), *cells, escape(source), style=style)
        else:
            table.add_row(f"{escape(name)}\n[not bold dim]{escape(source)}[/]", *cells, style=style)

    certified = answer.interval.upper
    reported = {answer.interval.upper_bound, answer.interval.lower_bound}
    for bound in answer.bounds:
        up = bound.kind == "upper"
        add(
            bound.name,
            bound.kind,
            rounded(bound.epsilon, up=up),
            times(bound.epsilon / certified) if certified > 0 else NOTHING,
            bound.source,
            "bold" if bound.name in reported else None,
        )
    for missing in answer.out_of_range:
        add(missing.name, "upper", NOTHING, NOTHING, missing.reason, "dim")
    return table


def rounds_tables(answers: Sequence[accounting.Comparison], *, width: int = WIDE) -> Iterator[Table]:
    """One row per bound, one column per answer: the same kind of round, different numbers of them.

    Args:
        answers: in the order of their columns, at least one.
        width: columns there are; answers that do not fit beside each other go into a further table.
    """
    values = [{(str(bound.kind), bound.name): bound.epsilon for bound in answer.bounds} for answer in answers]
    missing = [("upper", each.name) for answer in answers for each in answer.out_of_range]
    named = dict.fromkeys([*(key for column in reversed(values) for key in column), *missing])
    rows = sorted(named, key=lambda row: row[0] == "lower")
    wide = width >= WIDE
    heading = "T = {:,}" if wide else "T={:,}"
    columns = [
        [
            heading.format(answer.num_steps),
            *(rounded(found[row], up=row[0] == "upper") if row in found else NOTHING for row in rows),
        ]
        for answer, found in zip(answers, values, strict=True)
    ]
    gap = _WIDE_GAP if wide else _NARROW_GAP
    edges = 2
    pages = list(_pages(columns, room=width - edges - _BOUND_COLUMN - len("upper") - gap, gap=gap))
    for page in pages:
        table = _bounds(_question(answers[0], wide=wide) if page is pages[0] else "", wide=wide)
        for column in page:
            table.add_column(column[0], justify="right", no_wrap=True)
        for place, (kind, name) in enumerate(rows, start=1):
            table.add_row(escape(name), kind, *(column[place] for column in page))
        if page is pages[-1]:
            table.caption, table.caption_justify = relation(answers[0]), "left"
            if missing:
                table.caption += f" · {NOTHING} outside the range of the theorem"
        yield table


def _pages(columns: Sequence[list[str]], *, room: int, gap: int) -> Iterator[list[list[str]]]:
    """Columns in their order, as many to a page as its room holds, at least one."""
    page: list[list[str]] = []
    left = room
    for column in columns:
        needed = max(map(len, column)) + gap
        if page and needed > left:
            yield page
            page, left = [], room
        page.append(column)
        left -= needed
    yield page


def verdict(answer: accounting.Comparison) -> str:
    """The certified interval in one line."""
    lower, upper = rounded(answer.interval.lower, up=False), rounded(answer.interval.upper, up=True)
    if answer.interval.lower_bound == "none":
        return f"[bold]ε ≤ {upper}[/] (no lower bound) at δ = {answer.interval.delta:g} · {relation(answer)}"
    return f"[bold]ε ∈ \\[{lower}, {upper}][/] at δ = {answer.interval.delta:g} · {relation(answer)}"


def relation(answer: accounting.Comparison) -> str:
    """Whose privacy the numbers are about, and against whom."""
    of_records = isinstance(answer.shuffle_round, accounting.SampledRecordsRound)
    what = f"{answer.interval.neighbouring_relation}{' record' if of_records else ''}"
    return f"{what} neighbours · adversary: {answer.interval.adversary}"


def _bounds(title: str, *, wide: bool = True) -> Table:
    table = plain_table(title, wide=wide)
    table.add_column("bound")
    table.add_column("kind", no_wrap=True)
    return table


def _question(answer: accounting.Comparison, *, rounds: str | None = None, wide: bool = True) -> str:
    asked = answer.shuffle_round
    records = (
        [f"{asked.samples_per_client:,} of {asked.records_per_client:,} records"]
        if isinstance(asked, accounting.SampledRecordsRound)
        else []
    )
    parts = [
        f"n = {asked.population:,}",
        f"k = {asked.cohort:,.12g} ({asked.sampling})",
        *records,
        f"ε0 = {_given(asked.local_epsilon)} ({_mechanism(asked)})",
        *([rounds] if rounds else []),
        f"δ = {answer.interval.delta:g}",
    ]
    if wide:
        return " · ".join(parts)
    unbroken = [part.replace(" ", _NO_BREAK) for part in parts]
    lines = textwrap.fill(f"{_NO_BREAK}· ".join(unbroken), _TITLE, break_on_hyphens=False)
    return lines.replace(_NO_BREAK, " ")


def _mechanism(asked: accounting.ShuffleRound | accounting.SampledRecordsRound) -> str:
    return f"{GENERIC}: any mechanism" if asked.mechanism == GENERIC else asked.mechanism


def _given(value: float) -> str:
    """A short number as typed, 0.3 and not 0.299999; a long one, of a calibration, rounded down."""
    short = f"{value:g}"
    return short if float(short) == value else rounded(value, up=False, digits=6)
