"""``mechanisms`` and ``round-costs``: error and bits of a report, and what a round costs every party."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, cast

import typer

from shuffle_plugins import mechanisms, planning
from shuffle_plugins.cli import commands, output
from shuffle_plugins.cli.commands import option, whole_option


def mechanisms_command(
    dim: commands.DimOption = None,
    local_epsilon: Annotated[float | None, commands.NUMBERS["local-epsilon"].option()] = None,
    norm: Annotated[
        str | None,
        option("--norm NORM", "Clients' ball, l1, l2 or linf, or categories; else each one's own."),
    ] = None,
    radius: commands.RadiusOption = 1.0,
    timed: Annotated[bool, option("--time", "Measure the time of a report too; some ten seconds.")] = False,
    as_json: commands.JsonOption = False,
    plot: commands.PlotOption = None,
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
        names = mechanisms.available(*mechanisms.ONE_MESSAGE)
        entries = [{"name": name, "summary": mechanisms.summary(name)} for name in names]
        if not output.answered(as_json, entries):
            output.show(output.table(entries, text={"name": "bold", "summary": ""}))
        return
    output.check_picture(plot)
    found, refused = planning.choices(
        local_epsilon=local_epsilon, dim=dim, norm=cast(Any, norm), radius=radius, timed=timed
    )
    if not output.answered(as_json, [*map(asdict, found), *map(asdict, refused)]):
        least = min((choice.variance for choice in found), default=0.0)
        cells = []
        for choice in found:
            of_delta = f" (δ0 = {choice.local_delta:g})" if choice.local_delta else ""
            row: dict[str, str | None] = {
                "name": f"{choice.name}{of_delta}",
                "takes": choice.domain,
                "mean squared error": output.up(choice.variance),
            }
            if norm is not None:  # all answer the same question, so that their errors compare
                row["× least"] = output.times(choice.variance / least) if least > 0 else None
            row["bits"] = f"{choice.bits:,}"
            if timed:
                row["µs"] = None if choice.seconds is None else f"{choice.seconds * 1e6:.3g}"
            if output.width() >= output.WIDE:
                row["what it is"] = choice.summary
            cells.append(row)
        output.show(output.table(cells, text={"name": "bold", "takes": "", "what it is": "dim"}))
        output.left_out((each.name, each.reason) for each in refused)
    if plot is not None:
        from shuffle_plugins.cli.plotting import plot_choices

        panels: dict[str, list[planning.Choice]] = {}
        for each in found:
            domain = norm or each.domain
            held = (
                domain
                if domain == "categories"
                else f"{domain} ball".replace("inf", "∞").replace("l", "ℓ", 1)
            )
            title = f"{held}, dim = {dim:,}, ε0 = {local_epsilon:g}"
            panels.setdefault(title, []).append(each)
        plot_choices(panels=panels, path=plot)
        output.picture_written(plot, as_json=as_json)


def round_costs_command(
    context: typer.Context,
    *,
    clients: Annotated[str, option("--clients -k K,…", "Clients of a round, one number or several.")],
    dim: Annotated[int | None, whole_option("--dim D", "Counts of a client in a shared sum.")] = None,
    largest: Annotated[
        int, whole_option("--largest C", "Largest count of a client: highest − lowest of the mechanism's.")
    ] = 8191,
    aggregators: Annotated[int, whole_option("--aggregators A", "Aggregators of the sum.")] = 1,
    verified: Annotated[
        bool, option("--verified", "Clients prove that their counts are within bounds.")
    ] = False,
    report_bytes: Annotated[
        int | None, whole_option("--report-bytes B", "Bytes of a report that is mixed, not summed.")
    ] = None,
    mixers: Annotated[int, whole_option("--mixers M", "Mixers in the cascade.")] = 1,
    as_json: commands.JsonOption = False,
) -> None:
    """What a shared sum (--dim) or a mixed round (--report-bytes) costs each party.

    Bytes are exact, without the framing of messages and without the model; seconds are of one core of the
    machine that the benchmarks ran on.
    """
    if (dim is None) == (report_bytes is None):
        raise typer.BadParameter("give --dim for a shared sum, or --report-bytes for reports that are mixed")
    if dim is None:
        commands.refuse_given(
            context, ("largest", "aggregators", "verified"), "reports are mixed, not summed"
        )
    else:
        commands.refuse_given(context, ("mixers",), "a sum is not mixed")
    rows = []
    for each in commands.read_list(clients, commands.read_whole, "--clients"):
        if report_bytes is not None:
            costs = planning.mixed_round_costs(clients=each, report_bytes=report_bytes, mixers=mixers)
        else:
            costs = planning.sum_round_costs(
                clients=each, size=cast(int, dim), largest=largest, aggregators=aggregators, verified=verified
            )
        rows += [(each, cost) for cost in costs]
    if output.answered(as_json, [{"clients": each, **asdict(cost)} for each, cost in rows]):
        return
    from rich.filesize import decimal

    cells = [
        {
            "clients": f"{each:,}",
            "party": cost.party,
            "receives": decimal(cost.received),
            "sends": decimal(cost.sent),
            "seconds of a core": f"{cost.seconds:,.3g}" if cost.seconds < 100 else f"{cost.seconds:,.0f}",
            "memory": decimal(cost.memory),
        }
        for each, cost in rows
    ]
    output.show(output.table(cells, text={"party": ""}))
