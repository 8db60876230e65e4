"""``shuffle-plugins dap-task``: a sum for a target (ε, δ), as the configuration of a DAP deployment."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from shuffle_plugins import accounting
from shuffle_plugins.cli import options, output


class Sum(StrEnum):
    """Protocols that a DAP deployment can add up."""

    COUNTED_UNARY = "counted-unary"
    HISTOGRAM_SUM = "histogram-sum"
    UNARY_L1_SUM = "unary-l1-sum"
    VECTOR_SUM = "vector-sum"


class ExportForm(StrEnum):
    """The form in which a task is printed: our JSON, or what janus or Divvi Up read."""

    JSON = "json"
    JANUS = "janus"
    DIVVIUP = "divviup"


def dap_task_command(
    *,
    length: Annotated[
        int,
        options.whole_option("--length", metavar="D", help="Bits, categories, or numbers in a vector."),
    ],
    cohort: Annotated[
        int, options.whole_option("--cohort", "-k", metavar="K", help="Reports in a batch, at least.")
    ],
    target_epsilon: options.TargetOption,
    delta: options.DeltaOption,
    protocol: Annotated[
        Sum,
        typer.Option(
            "--protocol",
            metavar="NAME",
            help="counted-unary (histograms and bits), histogram-sum, unary-l1-sum or vector-sum.",
        ),
    ] = Sum.COUNTED_UNARY,
    encoding: Annotated[
        str,
        typer.Option("--encoding", metavar="HOW", help="Of unary encoding: symmetric or optimal."),
    ] = "symmetric",
    held: Annotated[
        int, options.whole_option("--held", metavar="M", help="Ones that a client's bits may have.")
    ] = 1,
    rounds: Annotated[
        int, options.whole_option("--rounds", "-t", metavar="T", help="Batches that a client takes part in.")
    ] = 1,
    honest_fraction: Annotated[
        float,
        options.number_option("--honest-fraction", metavar="H", help="Share of clients counted on."),
    ] = 1.0,
    vdaf: Annotated[
        str | None,
        typer.Option(
            "--vdaf",
            metavar="NAME",
            help="Prio3MultihotCountVec, or Prio3SumVec, which janus and Divvi Up run; the latter is the "
            "default for them.",
        ),
    ] = None,
    form: Annotated[
        ExportForm,
        typer.Option(
            "--format",
            metavar="FORM",
            help="json (everything), janus (part of a task file, YAML) or divviup (part of a task, JSON).",
        ),
    ] = ExportForm.JSON,
) -> None:
    """Print what a DAP deployment (janus, Divvi Up) must know to take a private sum of K clients."""
    from shuffle_plugins import protocols

    common: dict[str, Any] = {
        "cohort": cohort,
        "epsilon": target_epsilon,
        "delta": delta,
        "num_steps": rounds,
        "honest_fraction": honest_fraction,
    }
    built: protocols.SummingProtocol
    if protocol is Sum.COUNTED_UNARY:
        built = protocols.CountedUnary.calibrated(length=length, held=held, encoding=encoding, **common)
    elif protocol is Sum.UNARY_L1_SUM:
        built = protocols.UnaryL1Sum.calibrated(dim=length, encoding=encoding, **common)
    elif protocol is Sum.HISTOGRAM_SUM:
        built = protocols.HistogramSum.calibrated(categories=length, **common)
    else:
        built = protocols.VectorSum.calibrated(dim=length, **common)
    if vdaf is None and form is not ExportForm.JSON:
        vdaf = protocols.Vdaf.SUM_VEC
    task = protocols.dap_task(built, vdaf=vdaf)
    if task.offset and form is not ExportForm.JSON:
        output.remark(
            f"Every client must subtract the offset {task.offset:,} from each of its counts before it shares "
            f"them. For each report the collector must add {task.offset:,} to each sum, which DapTask.total "
            "does. Janus and Divvi Up know nothing of the offset.",
            as_json=True,
        )
    if form is ExportForm.JANUS:
        print(task.janus_yaml(), end="")
    elif form is ExportForm.DIVVIUP:
        output.print_json(task.divviup())
    else:
        accountant = accounting.ShuffleAccountant()
        accountant.step(built.round(), num_steps=rounds)
        found = accountant.epsilon(delta)
        output.print_json(
            {
                "vdaf": {"type": str(task.vdaf), **task.parameters},
                "vdaf_config": task.vdaf_config().hex(),
                "min_batch_size": task.min_batch_size,
                "client": task.client,
                "epsilon": output.interval_json(found),
                "delta": delta,
                "rounds": rounds,
                "neighbouring_relation": found.neighbouring_relation,
                "error": built.worst_variance**0.5,
            }
        )
