"""Comparisons as tables for a terminal. Upper bounds are rounded up, lower bounds down."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

from shuffle_plugins.core.rounding import rounded

if TYPE_CHECKING:
    from shuffle_plugins.accounting import EpsilonInterval
    from shuffle_plugins.accounting.comparison import Comparison
    from shuffle_plugins.ledger.summary import ClientBudget, ClientSpent, ModelBudget, Spent
    from shuffle_plugins.planning.choosing import Choice

WIDE = 110
"""Columns that the widest layout needs."""

_NOTHING = "—"
_NO_BREAK = "\N{NO-BREAK SPACE}"
_BOUND_COLUMN = 22
_WIDE_GAP, _NARROW_GAP = 3, 2
_TITLE = 54


def bounds_table(answer: Comparison, *, width: int = WIDE) -> Table:
    """One row per bound; those behind the certified interval in bold.

    Args:
        answer: what to show.
        width: columns there are; below ``WIDE`` sources stand under their bounds.
    """
    wide = width >= WIDE
    table = _table(_question(answer, rounds=f"T = {answer.num_steps:,}", wide=wide))
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
            rounded(bound.epsilon / certified, up=up, digits=3) if certified > 0 else _NOTHING,
            bound.source,
            "bold" if bound.name in reported else None,
        )
    for missing in answer.out_of_range:
        add(missing.name, "upper", _NOTHING, _NOTHING, missing.reason, "dim")
    return table


def rounds_tables(answers: Sequence[Comparison], *, width: int = WIDE) -> Iterator[Table]:
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
            *(rounded(found[row], up=row[0] == "upper") if row in found else _NOTHING for row in rows),
        ]
        for answer, found in zip(answers, values, strict=True)
    ]
    gap = _WIDE_GAP if wide else _NARROW_GAP
    edges = 2
    pages = list(_pages(columns, room=width - edges - _BOUND_COLUMN - len("upper") - gap, gap=gap))
    for page in pages:
        table = _table(_question(answers[0], wide=wide) if page is pages[0] else "", wide=wide)
        for column in page:
            table.add_column(column[0], justify="right", no_wrap=True)
        for place, (kind, name) in enumerate(rows, start=1):
            table.add_row(escape(name), kind, *(column[place] for column in page))
        if page is pages[-1]:
            table.caption, table.caption_justify = relation(answers[0]), "left"
            if missing:
                table.caption += f" · {_NOTHING} outside the range of the theorem"
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


def verdict(answer: Comparison) -> str:
    """The certified interval in one line."""
    lower, upper = rounded(answer.interval.lower, up=False), rounded(answer.interval.upper, up=True)
    if answer.interval.lower_bound == "none":
        return f"[bold]ε ≤ {upper}[/] (no lower bound) at δ = {answer.interval.delta:g} · {relation(answer)}"
    return f"[bold]ε ∈ \\[{lower}, {upper}][/] at δ = {answer.interval.delta:g} · {relation(answer)}"


def relation(answer: Comparison) -> str:
    """Whose privacy the numbers are about, and against whom."""
    return f"{answer.interval.neighbouring_relation} neighbours · adversary: {answer.interval.adversary}"


def _table(title: str, *, wide: bool = True) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=not wide,
    )
    table.add_column("bound")
    table.add_column("kind", no_wrap=True)
    return table


def _question(answer: Comparison, *, rounds: str | None = None, wide: bool = True) -> str:
    asked = answer.shuffle_round
    parts = [
        f"n = {asked.population:,}",
        f"k = {asked.cohort:,.12g} ({asked.sampling})",
        f"ε0 = {rounded(asked.local_epsilon, up=False, digits=6)} ({asked.mechanism})",
        *([rounds] if rounds else []),
        f"δ = {answer.interval.delta:g}",
    ]
    if wide:
        return " · ".join(parts)
    unbroken = [part.replace(" ", _NO_BREAK) for part in parts]
    lines = textwrap.fill(f"{_NO_BREAK}· ".join(unbroken), _TITLE, break_on_hyphens=False)
    return lines.replace(_NO_BREAK, " ")


def catalogue_table(entries: Sequence[Mapping[str, str]]) -> Table:
    """Name and summary of each mechanism."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("what it is")
    for entry in entries:
        table.add_row(escape(entry["name"]), escape(entry["summary"]))
    return table


def choices_table(found: Sequence[Choice], *, one_question: bool, width: int = WIDE) -> Table:
    """One row per mechanism: error and bits of a report, and its time if it was measured.

    Args:
        found: in the order of their rows.
        one_question: whether all answer the same question, so that their errors compare.
        width: columns there are; below ``WIDE`` summaries are left out.
    """
    wide = width >= WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("takes", no_wrap=True)
    timed = any(choice.seconds is not None for choice in found)
    headings = {"mean squared error": True, "× least": one_question, "bits": True, "µs": timed}
    for heading, wanted in headings.items():
        if wanted:
            table.add_column(heading, justify="right", no_wrap=True)
    if wide:
        table.add_column("what it is", style="dim")
    least = min((choice.variance for choice in found), default=0.0)
    for choice in found:
        name = f"{choice.name} (δ0 = {choice.local_delta:g})" if choice.local_delta else choice.name
        cells = [escape(name), choice.domain, rounded(choice.variance, up=True)]
        if one_question:
            cells.append(rounded(choice.variance / least, up=True, digits=3) if least > 0 else _NOTHING)
        cells.append(f"{choice.bits:,}")
        if timed:
            cells.append(_NOTHING if choice.seconds is None else f"{choice.seconds * 1e6:.3g}")
        table.add_row(*cells, *([escape(choice.summary)] if wide else []))
    return table


def budget_table(budget: ModelBudget) -> Table:
    """One row per run of a model, and one for all of them if there are several."""
    table = Table(
        title=f"Budget of {escape(budget.model)}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("run")
    table.add_column("rounds")
    for heading in ("reports", "ε observer", "ε server", "ε local"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run, spent in budget.runs.items():
        table.add_row(escape(run), *_budget_cells(spent))
    if len(budget.runs) > 1:
        table.add_row("all runs", *_budget_cells(budget.total), style="bold")
    return table


def client_table(budget: ClientBudget) -> Table:
    """What a client has spent: one row per run, and one for all of them if there are several."""
    table = Table(
        title="A client's ledger",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("run")
    for heading in ("rounds", "ε server", "Σ ε0", "Σ δ0"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run, spent in budget.runs.items():
        table.add_row(escape(run), *_client_cells(spent))
    if len(budget.runs) > 1:
        table.add_row("all runs", *_client_cells(budget.total), style="bold")
    return table


def _client_cells(spent: ClientSpent) -> list[str]:
    spending = spent.spending
    sums = (spent.epsilon, spending.local_epsilon, spending.local_delta)
    return [f"{spending.reports:,}", *(rounded(value, up=True) for value in sums)]


def client_footing(budget: ClientBudget) -> list[str]:
    """What the numbers of a client's ledger mean."""
    return [
        f"ε server: at δ = {budget.delta:g}, replace-one neighbours, against a server that knows in which "
        "rounds the client took part; each round as one of the fewest reports that the client was promised",
        "Σ ε0, Σ δ0: nobody is trusted",
    ]


def _budget_cells(spent: Spent) -> list[str]:
    states = ", ".join(f"{count:,} {state}" for state, count in spent.rounds.items() if count)
    spending = spent.spending
    epsilons = (spending.observer.upper, spending.server.upper, spending.local_epsilon)
    return [states, f"{spent.reports:,}", *(rounded(epsilon, up=True) for epsilon in epsilons)]


def budget_footing(budget: ModelBudget) -> list[str]:
    """What the numbers of a model's budget mean, a line for each adversary."""
    spending = budget.total.spending
    relation = spending.observer.neighbouring_relation
    return [
        f"at δ = {spending.delta:g} · {relation} neighbours · {spending.num_rounds:,} rounds charged",
        f"observer: reads the model, does not see who took part · {_ends(spending.observer)}",
        f"server: sees who answers; the client with most rounds, {spending.worst_client_rounds:,} · "
        f"{_ends(spending.server)}",
        "local: nobody is trusted; Σ ε0 of the client with most reports",
    ]


def _ends(found: EpsilonInterval) -> str:
    upper = f"at most {rounded(found.upper, up=True)} by {found.upper_bound}"
    if found.lower_bound == "none":
        return upper
    return f"{upper}; at least {rounded(found.lower, up=False)} by {found.lower_bound}"
