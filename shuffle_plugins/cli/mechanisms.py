"""``shuffle-plugins mechanisms``: the randomizers by name, or their error and bits on one question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.markup import escape
from rich.table import Table

from shuffle_plugins import mechanisms, planning
from shuffle_plugins.cli import options, output
from shuffle_plugins.cli.tables import NOTHING, WIDE, plain_table, times
from shuffle_plugins.core import rounded

# How the title of a picture calls what clients hold.
_HELD = {"l1": "ℓ1 ball", "l2": "ℓ2 ball", "linf": "ℓ∞ ball", "categories": "categories"}


def mechanisms_command(
    dim: options.DimOption = None,
    local_epsilon: Annotated[
        float | None,
        options.number_option("--local-epsilon", "-e", metavar="EPS0", help="ε0 of one report."),
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option(
            "--norm",
            metavar="NORM",
            help="What clients hold: vectors in an l1, l2 or linf ball, or categories. Each mechanism's own "
            "unless given.",
        ),
    ] = None,
    radius: options.RadiusOption = 1.0,
    timed: Annotated[
        bool,
        typer.Option("--time", metavar="", help="Measure the time of a report too; some ten seconds."),
    ] = False,
    as_json: options.JsonOption = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw error against bits (Matplotlib).")
    ] = None,
) -> None:
    """The randomizers by name; with --dim and --local-epsilon also their error and bits.

    Those of other installed packages (entry point group shuffle_plugins.mechanisms) are listed too: in place
    of a summary stands the package's name, as "from my-package".
    """
    if (dim is None) != (local_epsilon is None):
        raise typer.BadParameter("give --dim and --local-epsilon together, or neither")
    if dim is None or local_epsilon is None:
        if norm is not None or plot is not None or radius != 1 or timed:
            raise typer.BadParameter("--norm, --radius, --time and --plot need --dim and --local-epsilon")
        one_message = mechanisms.available(*mechanisms.ONE_MESSAGE)
        entries = [{"name": name, "summary": mechanisms.summary(name)} for name in one_message]
        return output.print_json(entries) if as_json else output.show(_catalogue_table(entries))
    output.check_picture(plot)
    found, refused = planning.choices(
        local_epsilon=local_epsilon,
        dim=dim,
        norm=cast("planning.Domain | None", norm),
        radius=radius,
        timed=timed,
    )
    if as_json:
        output.print_json([*map(asdict, found), *map(asdict, refused)])
    else:
        output.show(_choices_table(found, one_question=norm is not None, width=output.width()))
        output.left_out((each.name, each.reason) for each in refused)
    if plot is not None:
        from shuffle_plugins.cli.plotting import plot_choices

        domains = dict.fromkeys(norm or each.domain for each in found)
        plot_choices(
            panels={
                f"{_HELD[domain]}, dim = {dim:,}, ε0 = {local_epsilon:g}": [
                    each for each in found if norm is not None or each.domain == domain
                ]
                for domain in domains
            },
            path=plot,
        )
    output.picture_written(plot, as_json=as_json)
    return None


def _catalogue_table(entries: Sequence[Mapping[str, str]]) -> Table:
    """Name and summary of each mechanism."""
    table = plain_table()
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("what it is")
    for entry in entries:
        table.add_row(escape(entry["name"]), escape(entry["summary"]))
    return table


def _choices_table(found: Sequence[planning.Choice], *, one_question: bool, width: int = WIDE) -> Table:
    """One row per mechanism: error and bits of a report, and its time if it was measured.

    Args:
        found: in the order of their rows.
        one_question: whether all answer the same question, so that their errors compare.
        width: columns there are; below ``WIDE`` summaries are left out.
    """
    wide = width >= WIDE
    table = plain_table()
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
            cells.append(times(choice.variance / least) if least > 0 else NOTHING)
        cells.append(f"{choice.bits:,}")
        if timed:
            cells.append(NOTHING if choice.seconds is None else f"{choice.seconds * 1e6:.3g}")
        table.add_row(*cells, *([escape(choice.summary)] if wide else []))
    return table
