"""What every node runs: local steps on three things, of which the client's own model never leaves it.

The personal model is kept in the node's ``Context.state``, which lasts for a run. To keep it over runs, give
a file: ``personal-model-file`` in the node's ``node_config``, or in simulations, whose nodes have none, a
folder for all: ``personal-models`` in the run-config.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import NodeConfig, ShuffleMod
from torch import Tensor

from flower_adaped import task

PERSONAL_MODEL = "personal-model"


def node_config(context: Context) -> NodeConfig:
    """What a simulated client agrees to; in a deployment its operator says so by ``--node-config``."""
    limits: NodeConfig = {"shuffle-max-local-epsilon": 8.0}
    if context.run_config["randomizer"] in task.SUMS:
        limits = {"shuffle-max-local-epsilon": math.inf, "shuffle-max-epsilon": 50.0, "shuffle-delta": 1e-3}
    return {**limits, "shuffle-max-rounds": 1000}


# Only a simulation may ask for accuracies as they are: `allow` counts for nothing in a deployment.
app = ClientApp(mods=[ShuffleMod(allow=["evaluate"], node_config=node_config)])


@app.train()
def train(message: Message, context: Context) -> Message:
    method = task.method(context.run_config)
    models = method.received(
        message.content["arrays"].to_torch_state_dict(), personal_model=personal_model(context)
    )
    models = method.train(models, task.batches(_examples(context)[0], context.run_config))
    keep(context, models.personal_model)
    arrays = ArrayRecord(task.state_dict(method.arrays(models)))  # nothing of the personal model
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy of the personal model on the client's own test images."""
    method = task.method(context.run_config)
    models = method.received(
        message.content["arrays"].to_torch_state_dict(), personal_model=personal_model(context)
    )
    _, test = _examples(context)
    told = {"accuracy": task.accuracy(models.personal_model, test), "num-examples": len(test[1])}
    return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)


def personal_model(context: Context) -> dict[str, Tensor] | None:
    """The model that this node kept, of this run or else of the run before; None in its first round."""
    if PERSONAL_MODEL in context.state:
        kept = context.state.array_records[PERSONAL_MODEL]
        return dict(kept.to_torch_state_dict())
    path = _file(context)
    if path is None or not path.exists():
        return None
    with np.load(path) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def keep(context: Context, model: dict[str, Tensor]) -> None:
    """Keep the personal model in the node's state, and in its file if it has one.

    Raises:
        ValueError: if it is not finite: the one of before is kept, and the server is told of no change.
    """
    if not all(bool(value.isfinite().all()) for value in model.values()):
        raise ValueError("training left no finite personal model; the one of before is kept")
    context.state[PERSONAL_MODEL] = ArrayRecord(task.state_dict(model))
    if (path := _file(context)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".tmp")
        with written.open("wb") as file:
            np.savez(file, **{name: value.numpy() for name, value in model.items()})
        os.replace(written, path)  # a crash leaves the old model or the new one


def _file(context: Context) -> Path | None:
    own = str(context.node_config.get("personal-model-file", ""))
    folder = str(context.run_config["personal-models"])
    if own:
        return Path(own)
    if not folder or "shuffle-ledger-file" in context.node_config:
        return None  # where a node has an operator, no server says where to write
    return Path(folder) / f"client-{context.node_config['partition-id']}.npz"


def _examples(context: Context) -> tuple[task.Examples, task.Examples]:
    return task.client_examples(
        str(context.run_config["data-dir"]),
        partition=int(context.node_config["partition-id"]),
        partitions=int(context.node_config["num-partitions"]),
        classes=int(context.run_config["classes"]),
    )
