"""``dap-task``: a sum for a target (ε, δ), as the configuration of a DAP deployment."""

from __future__ import annotations

from typing import Annotated, Any

from shuffle_plugins.cli import commands, output
from shuffle_plugins.cli.commands import choice_option, number_option, option, whole_option

_PROTOCOLS = (
    *("counted-unary", "laplace-histogram", "laplace-vector-sum"),
    *("histogram-sum", "unary-l1-sum", "vector-sum"),
)


def dap_task_command(
    *,
    length: Annotated[int, whole_option("--length D", "Bits, categories, or numbers in a vector.")],
    cohort: Annotated[int, whole_option("--cohort -k K", "Reports in a batch, at least.")],
    target_epsilon: commands.TargetOption,
    delta: commands.DeltaOption,
    protocol: Annotated[
        str, choice_option("--protocol NAME", "Which sum", dict.fromkeys(_PROTOCOLS, ""))
    ] = "counted-unary",
    encoding: Annotated[
        str, option("--encoding HOW", "Of unary encoding: symmetric or optimal.")
    ] = "symmetric",
    held: Annotated[int, whole_option("--held M", "Ones that a client's bits may have.")] = 1,
    rounds: Annotated[int, whole_option("--rounds -t T", "Batches that a client takes part in.")] = 1,
    honest_fraction: Annotated[
        float, number_option("--honest-fraction H", "Share of clients counted on.")
    ] = 1.0,
    vdaf: Annotated[
        str | None,
        option("--vdaf NAME", "Prio3MultihotCountVec, or Prio3SumVec, as janus and Divvi Up need."),
    ] = None,
    form: Annotated[
        str,
        choice_option(
            "--format FORM",
            "What for",
            {"json": "everything", "janus": "of a task file, YAML", "divviup": "JSON"},
        ),
    ] = "json",
) -> None:
    """Print what a DAP deployment (janus, Divvi Up) must know to take a private sum of K clients."""
    from shuffle_plugins import protocols
    from shuffle_plugins.protocols.dap import Vdaf

    common: dict[str, Any] = {
        "cohort": cohort,
        "epsilon": target_epsilon,
        "delta": delta,
        "num_steps": rounds,
        "honest_fraction": honest_fraction,
    }
    built: protocols.SummingProtocol[Any]
    if protocol == "counted-unary":
        built = protocols.CountedUnary.calibrated(length=length, held=held, encoding=encoding, **common)
    elif protocol == "unary-l1-sum":
        built = protocols.UnaryL1Sum.calibrated(dim=length, encoding=encoding, **common)
    elif protocol == "laplace-histogram":
        built = protocols.LaplaceHistogram.calibrated(categories=length, **common)
    elif protocol == "laplace-vector-sum":
        built = protocols.LaplaceVectorSum.calibrated(dim=length, **common)
    elif protocol == "histogram-sum":
        built = protocols.HistogramSum.calibrated(categories=length, **common)
    else:
        built = protocols.VectorSum.calibrated(dim=length, **common)
    if vdaf is None and form != "json":
        vdaf = Vdaf.SUM_VEC
    task = protocols.dap_task(built, vdaf=vdaf)
    if task.offset and form != "json":
        output.remark(
            f"Every client must subtract the offset {task.offset:,} from each of its counts before it shares "
            f"them. For each report the collector must add {task.offset:,} to each sum, which DapTask.total "
            "does. Janus and Divvi Up know nothing of the offset.",
            aside=True,
        )
    if form == "janus":
        output.remark(task.janus_yaml().removesuffix("\n"))
    elif form == "divviup":
        output.print_json(task.divviup())
    else:
        found = output.certified(built.round(), delta=delta, rounds=rounds)
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
