"""``shuffle-plugins round-costs``: bytes, seconds and memory of a round, for every party."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from shuffle_plugins.cli import options, output


def round_costs_command(
    context: typer.Context,
    *,
    clients: Annotated[
        str, typer.Option("--clients", "-k", metavar="K,…", help="Clients of a round, one number or several.")
    ],
    dim: Annotated[
        int | None, options.whole_option("--dim", metavar="D", help="Counts of a client in a shared sum.")
    ] = None,
    largest: Annotated[
        int,
        options.whole_option(
            "--largest",
            metavar="C",
            help="Largest count of a client: highest − lowest of the mechanism's counts.",
        ),
    ] = 8191,
    aggregators: Annotated[
        int, options.whole_option("--aggregators", metavar="A", help="Aggregators of the sum.")
    ] = 1,
    verified: Annotated[
        bool, typer.Option("--verified", help="Clients prove that their counts are within bounds.")
    ] = False,
    report_bytes: Annotated[
        int | None,
        options.whole_option(
            "--report-bytes", metavar="B", help="Bytes of a report that is mixed, not summed."
        ),
    ] = None,
    mixers: Annotated[int, options.whole_option("--mixers", metavar="M", help="Mixers in the cascade.")] = 1,
    as_json: options.JsonOption = False,
) -> None:
    """What a shared sum (--dim) or a mixed round (--report-bytes) costs each party.

    Bytes are exact, without the framing of messages and without the model; seconds are of one core of the
    machine that the benchmarks ran on.
    """
    from shuffle_plugins import planning

    if (dim is None) == (report_bytes is None):
        raise typer.BadParameter("give --dim for a shared sum, or --report-bytes for reports that are mixed")
    if dim is None:
        options.refuse_given(context, ("largest", "aggregators", "verified"), "reports are mixed, not summed")
    else:
        options.refuse_given(context, ("mixers",), "a sum is not mixed")
    rows = []
    for each in options.read_list(clients, options.read_whole, "--clients"):
        if report_bytes is not None:
            costs = planning.mixed_round_costs(clients=each, report_bytes=report_bytes, mixers=mixers)
        else:
            assert dim is not None
            costs = planning.sum_round_costs(
                clients=each, size=dim, largest=largest, aggregators=aggregators, verified=verified
            )
        rows += [{"clients": each, **asdict(cost)} for cost in costs]
    if as_json:
        output.print_json(rows)
        return
    from rich.filesize import decimal

    from shuffle_plugins.cli.tables import plain_table

    table = plain_table()
    for heading in ("clients", "party", "receives", "sends", "seconds of a core", "memory"):
        table.add_column(heading, justify="left" if heading == "party" else "right", no_wrap=True)
    for row in rows:
        sizes = {name: decimal(row[name]) for name in ("received", "sent", "memory")}
        table.add_row(
            f"{row['clients']:,}",
            row["party"],
            sizes["received"],
            sizes["sent"],
            f"{row['seconds']:,.3g}" if row["seconds"] < 100 else f"{row['seconds']:,.0f}",
            sizes["memory"],
        )
    output.show(table)
