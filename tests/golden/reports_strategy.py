"""A run of a Flower strategy that was begun before, with its ledger, and goes on now."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvgM
from flwr_shuffle import (
    ClientLimits,
    FixedSize,
    InProcessGrid,
    PrivateEvaluation,
    ShuffleMod,
    ShuffleStrategy,
)
from reports_answers import FILES, Questions
from reports_files import of_spending

from shuffle_plugins.protocols import VectorSum

CLIENTS, DIM = 20, 6
MODEL = {"weight": np.linspace(-1, 1, DIM, dtype=np.float32).reshape(2, 3), "batches": np.array(7)}
LOCAL = {"randomizer": "linf-coordinate", "local_epsilon": 1.0, "clipping_norm": 0.1}
SUM = {"randomizer": VectorSum(dim=DIM, cohort=CLIENTS, levels=6, coins=2000)}
RUNS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "coordinate": (
        lambda: FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.7, server_momentum=0.9),
        LOCAL | {"sampling": FixedSize(10), "minimum_reports": 5},
    ),
    "evaluated": (
        lambda: FedAdam(fraction_evaluate=0.0),
        LOCAL
        | {
            "sampling": FixedSize(CLIENTS),
            "evaluation": PrivateEvaluation(metrics={"loss": (0, 1)}, local_epsilon=0.5),
        },
    ),
    "vector-sum": (lambda: FedAdam(fraction_evaluate=0.0), SUM | {"sampling": FixedSize(CLIENTS)}),
}


def record() -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in MODEL.items()})


def grid(*, summed: bool) -> InProcessGrid:
    limits = ClientLimits(max_local_epsilon=400.0, max_rounds=1000)
    if summed:
        limits = replace(limits, max_local_epsilon=float("inf"), max_epsilon=1e4, delta=1e-3)
    app = ClientApp(mods=[ShuffleMod(limits=limits)])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        arrays = next(iter(message.content.array_records.values()))
        moved = {
            name: Array(np.asarray(array.numpy() + 1, array.numpy().dtype)) for name, array in arrays.items()
        }
        metrics = MetricRecord({"num-examples": 1, "loss": 0.5})
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def _(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=message)

    return InProcessGrid(app, num_nodes=CLIENTS)


def strategy(name: str, ledger: Path) -> ShuffleStrategy:
    inner, options = RUNS[name]
    return ShuffleStrategy(
        inner(), population=CLIENTS, delta=1e-4, poll_interval=0.01, ledger=ledger, app="golden", **options
    )


def path_of(name: str) -> Path:
    return FILES / f"strategy-{name}.sqlite"


def write_files() -> None:
    for name in RUNS:
        path_of(name).unlink(missing_ok=True)
        strategy(name, path_of(name)).start(grid(summed=name == "vector-sum"), record(), num_rounds=2)


def resumed(name: str) -> dict[str, Any]:
    """What a run of then goes on from: the model bit by bit, its cost, and its cost after one more round."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copy(path_of(name), folder))
        going_on = strategy(name, path)
        seen: list[dict[str, str]] = []

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            seen.append({name: array.numpy().tobytes().hex() for name, array in arrays.items()})
            return MetricRecord({"round": server_round})

        before = of_spending(going_on.spending())
        result = going_on.start(
            grid(summed=name == "vector-sum"), record(), num_rounds=3, evaluate_fn=evaluate
        )
        return {
            "before": before,
            "model": seen[0],
            "trained": sorted(result.train_metrics_clientapp),
            "after": of_spending(going_on.spending()),
        }


def questions() -> Questions:
    return {f"resumed:{name}": partial(resumed, name) for name in RUNS}
