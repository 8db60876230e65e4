"""Clients with known updates and a strategy around them, in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr_shuffle.grids import InProcessGrid, Waiting
from flwr_shuffle.messages import instruction_of, plain_payload, reply
from flwr_shuffle.settings import FixedSize
from flwr_shuffle.strategy import ShuffleStrategy
from flwr_shuffle.updates import Layout
from mod_harness import record as record
from numpy.typing import NDArray

CLIENTS = 20
MODEL = {
    "weight": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "scale": np.array(0.5, dtype=np.float32),
    "mean": np.zeros(2, dtype=np.float64),
    "batches": np.array(7, dtype=np.int64),
}
DIM = 9


def numpy_of(arrays: ArrayRecord) -> dict[str, NDArray[Any]]:
    return {name: array.numpy() for name, array in arrays.items()}


def update(client: int) -> NDArray[np.float64]:
    """What a client's training adds to the floating-point entries; inside a ball of radius 1."""
    direction = np.random.default_rng(client).normal(size=DIM)
    return 0.8 * direction / np.linalg.norm(direction)


def train(message: Message, context: Context) -> Message:
    """Training as a plain Flower client does it; the count of batches moves too."""
    arrays = next(iter(message.content.array_records.values()))
    layout = Layout.of(arrays)
    moved = layout.shifted(arrays, torch.from_numpy(update(int(context.node_config["partition-id"]))))
    if "batches" in moved:
        moved["batches"] = Array(np.asarray(moved["batches"].numpy() + 100))
    metrics = MetricRecord({"num-examples": 1, "loss": 0.5})
    return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)


def honest_payload(message: Message, context: Context) -> bytes:
    """A payload as a client makes it that keeps no books: an unsealed report of its update."""
    asked = instruction_of(message)
    assert asked is not None
    mechanism = asked.mechanism.build(dim=DIM)
    mine = torch.from_numpy(update(int(context.node_config["partition-id"])))
    report = mechanism.randomize(mine.unsqueeze(0), clip=True).to_bytes()
    chosen = np.random.default_rng().random() < asked.participation
    return plain_payload(report if chosen else None, size=len(report))


def client_app(payload: Callable[[Message, Context], bytes] = honest_payload) -> ClientApp:
    """Clients that answer with a payload of one's own making."""
    app = ClientApp()

    @app.train()
    def _(message: Message, context: Context) -> Message:
        return reply(payload(message, context), to=message)

    return app


def plain_app() -> ClientApp:
    """Clients without any protection."""
    app = ClientApp()
    app.train()(train)
    return app


def grid_of(
    payload: Callable[[Message, Context], bytes] = honest_payload, *, clients: int = CLIENTS
) -> InProcessGrid:
    return InProcessGrid(client_app(payload), num_nodes=clients)


def shuffled(inner: Strategy | None = None, **options: Any) -> ShuffleStrategy:
    """A strategy over all 20 clients, whose noise is next to none: ε0 = 400."""
    chosen: dict[str, Any] = {
        "randomizer": "laplace",
        "local_epsilon": 400.0,
        "clipping_norm": 3.0,
        "sampling": FixedSize(CLIENTS),
        "population": CLIENTS,
        "delta": 1e-6,
        "waiting": Waiting(poll_interval=0.01),
    }
    return ShuffleStrategy(inner or FedAvg(fraction_evaluate=0.0), **(chosen | options))


def delta(layout: Layout, new: ArrayRecord, old: ArrayRecord) -> torch.Tensor:
    """What training changed, (dim,)."""
    return layout.flatten(new) - layout.flatten(old)
