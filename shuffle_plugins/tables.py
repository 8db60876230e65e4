"""Comparisons as tables for a terminal. Upper bounds are rounded up, lower bounds down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from rich import box
from rich.table import Table

from shuffle_plugins.comparison import Comparison

_NOTHING = "—"


def bounds_table(answer: Comparison) -> Table:
    """One row per bound; those behind the certified interval in bold."""
    table = _table(_question(answer, rounds=f"T = {answer.num_steps:,}"))
    table.add_column("ε", justify="right", no_wrap=True)
    table.add_column("× certified", justify="right", no_wrap=True)
    table.add_column("source", style="dim")
    certified = answer.interval.upper
    reported = {answer.interval.upper_bound, answer.interval.lower_bound}
    for bound in answer.bounds:
        table.add_row(
            bound.name,
            bound.kind,
            rounded(bound.epsilon, up=bound.kind == "upper"),
            rounded(bound.epsilon / certified, up=True, digits=3) if certified > 0 else _NOTHING,
            bound.source,
            style="bold" if bound.name in reported else None,
        )
    for missing in answer.out_of_range:
        table.add_row(missing.name, "upper", _NOTHING, _NOTHING, missing.reason, style="dim")
    return table


def rounds_table(answers: Sequence[Comparison]) -> Table:
    """One row per bound, one column per answer: the same kind of round, different numbers of them."""
    table = _table(_question(answers[0]))
    table.caption, table.caption_justify = relation(answers[0]), "left"
    if any(answer.out_of_range for answer in answers):
        table.caption += f" · {_NOTHING} outside the range of the theorem"
    for answer in answers:
        table.add_column(f"T = {answer.num_steps:,}", justify="right", no_wrap=True)
    cells = [{(str(bound.kind), bound.name): bound.epsilon for bound in answer.bounds} for answer in answers]
    missing = [("upper", each.name) for answer in answers for each in answer.out_of_range]
    rows = dict.fromkeys([*(key for column in reversed(cells) for key in column), *missing])
    for kind, name in sorted(rows, key=lambda row: row[0] == "lower"):
        values = (column.get((kind, name)) for column in cells)
        table.add_row(
            name, kind, *(_NOTHING if v is None else rounded(v, up=kind == "upper") for v in values)
        )
    return table


def verdict(answer: Comparison) -> str:
    """The certified interval in one line."""
    lower, upper = rounded(answer.interval.lower, up=False), rounded(answer.interval.upper, up=True)
    return f"[bold]ε ∈ \\[{lower}, {upper}][/] at δ = {answer.interval.delta:g} · {relation(answer)}"


def relation(answer: Comparison) -> str:
    """Whose privacy the numbers are about, and against whom."""
    return f"{answer.interval.neighbouring_relation} neighbours · adversary: {answer.interval.adversary}"


def rounded(value: float, *, up: bool, digits: int = 4) -> str:
    """A number to so many significant digits, rounded towards one side."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    exact = Decimal(value)
    place = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    number = float(exact.quantize(place, rounding=ROUND_CEILING if up else ROUND_FLOOR))
    return f"{number:,.0f}" if abs(number) >= 10**digits else f"{number:.{digits}g}"


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("bound")
    table.add_column("kind", no_wrap=True)
    return table


def _question(answer: Comparison, *, rounds: str | None = None) -> str:
    asked = answer.shuffle_round
    parts = [
        f"n = {asked.population:,}",
        f"k = {asked.cohort:,.12g} ({asked.sampling})",
        f"ε0 = {rounded(asked.local_epsilon, up=False, digits=6)} ({asked.mechanism})",
        *([rounds] if rounds else []),
        f"δ = {answer.interval.delta:g}",
    ]
    return " · ".join(parts)
