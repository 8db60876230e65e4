"""One client app behind a ShuffleMod, asked by an in-process grid."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle.client import ShuffleMod
from flwr_shuffle.grids import InProcessGrid
from flwr_shuffle.messages import RECORD_KEY, Instruction, payload_of, read_plain_payload
from numpy.typing import NDArray

from shuffle_plugins.core import Reports
from shuffle_plugins.ledger import ClientLimits
from shuffle_plugins.mechanisms import MechanismSpec

Arrays = Mapping[str, NDArray[Any]]
GENEROUS = ClientLimits(max_local_epsilon=500.0, max_rounds=10_000)


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def adding(change: Arrays) -> Callable[[Message, Context], Message]:
    """Training that adds a constant to each array named; it answers the same whatever it is asked next."""

    made: dict[str, ArrayRecord] = {}

    def train(message: Message, context: Context) -> Message:
        if not made:
            new = {name: array.numpy() for name, array in message.content["arrays"].items()}  # type: ignore[union-attr]
            for name, step in change.items():
                new[name] = np.asarray(new[name] + step, dtype=new[name].dtype)
            made["arrays"] = record(new)
        metrics = MetricRecord({"num-examples": 17, "loss": 0.25})
        return Message(RecordDict(made | {"metrics": metrics}), reply_to=message)

    return train


def app(train: Callable[[Message, Context], Message], *, mod: ShuffleMod | None = None) -> ClientApp:
    client_app = ClientApp(mods=[mod or ShuffleMod(limits=GENEROUS)])
    client_app.train()(train)
    return client_app


def instruction(spec: MechanismSpec, **fields: Any) -> Instruction:
    return Instruction(
        **({"token": os.urandom(16), "run": "test", "server_round": 1, "mechanism": spec} | fields)
    )


def question(arrays: Arrays, asked: Instruction | None, *, node: int, kind: str = "train") -> Message:
    content = RecordDict({"arrays": record(arrays)})
    if asked is not None:
        content[RECORD_KEY] = asked.to_record()
    return Message(content, node, kind)


def ask(
    grid: InProcessGrid, arrays: Arrays, asked: Instruction | None, *, node: int | None = None
) -> Message:
    """The answer of one node, the first unless said otherwise."""
    first = grid.get_node_ids()[0] if node is None else node
    [answer] = grid.send_and_receive([question(arrays, asked, node=first)])
    return answer


def grid_of(train: Callable[[Message, Context], Message], **options: Any) -> InProcessGrid:
    mod = options.pop("mod", None)
    return InProcessGrid(app(train, mod=mod), **({"num_nodes": 1} | options))


def released(
    arrays: Arrays,
    train: Callable[[Message, Context], Message],
    spec: MechanismSpec,
    *,
    clients: int,
    dim: int,
) -> Reports:
    """What as many clients with the same data release in a round, decoded from their payloads alone."""
    grid = grid_of(train)
    client_app = app(train)
    content = {"arrays": record(arrays), RECORD_KEY: instruction(spec).to_record()}
    template = Message(RecordDict(), grid.get_node_ids()[0], "train")
    size = spec.report_bytes(dim=dim)
    parts = []
    for node in range(clients):
        context = Context(1, node, {}, RecordDict(), {})
        message = Message(RecordDict(dict(content)), reply_to=template)
        report = read_plain_payload(payload_of(client_app(message, context)), size=size)
        assert report is not None
        parts.append(Reports.from_bytes(report))
    return Reports.concat(parts)


def counts(reports: Reports, outcomes: Reports) -> torch.Tensor:
    """How often each outcome is among the reports."""
    rows = [torch.cat([f.values.reshape(len(r), -1) for f in r.fields], dim=1) for r in (outcomes, reports)]
    same = (rows[1].unsqueeze(1) == rows[0].unsqueeze(0)).all(dim=2)
    assert bool((same.sum(dim=1) == 1).all())
    return same.sum(dim=0)
