"""A run with aggregators in one process: real clients with key files, and a spied grid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    FixedSize,
    SharedSumStage,
    ShuffleMod,
    ShuffleStrategy,
    Waiting,
    register_aggregator,
    register_mix_node,
)
from flwr_shuffle.messages import RECORD_KEY, Instruction
from mixing import ServiceRun, SpiedGrid, client_key, service_key

from shuffle_plugins.mechanisms import PrivateSum, SumSpec
from shuffle_plugins.protocols import VectorSum

DIM = 24
COHORT = 4
SUM = VectorSum.with_noise(dim=DIM, cohort=COHORT, noise_multiplier=2.0, overhead=0.3)
MODEL = np.linspace(-1.0, 1.0, DIM)


def update_of(client: int) -> np.ndarray:
    """What a client's training adds to the model; its norm is below 1."""
    return np.full(DIM, 0.02 * (client + 1)) * (-1) ** np.arange(DIM)


@dataclass(kw_only=True)
class SharedRun(ServiceRun):
    """Six clients behind two aggregators, which are the first nodes."""

    folder: Path
    clients: int = 6
    aggregators: int = 2
    minimum: int = 3
    mechanism: PrivateSum = SUM
    max_epsilon: float = 1e4
    dim: int = DIM

    def __post_init__(self) -> None:
        self.keys = [service_key(self.folder / f"aggregator{i}") for i in range(self.aggregators)]
        self.enrolled = self.folder / "enrolled"
        self.signing_keys = [client_key(self.folder / f"client{i}") for i in range(self.clients)]
        self.app = ClientApp(mods=[ShuffleMod()])
        self.app.train()(self._train)
        register_aggregator(self.app)
        register_mix_node(self.app)
        self.grid = SpiedGrid(self.app, num_nodes=self.aggregators + self.clients, node_config=self.config)
        self.nodes = self.grid.get_node_ids()
        self.stage = self.new_stage()

    @property
    def pinned(self) -> list[str]:
        return [key.public.hex() for key in self.keys]

    def new_stage(self, **options: Any) -> SharedSumStage:
        waiting = Waiting(discovery_timeout=0.2, poll_interval=0.05)
        return SharedSumStage(**{"aggregator_public_keys": self.pinned, "waiting": waiting, **options})

    def config(self, position: int) -> dict[str, Any]:
        if position < self.aggregators:
            return {
                "shuffle-role": "aggregator",
                "shuffle-aggregator-key-file": str(self.folder / f"aggregator{position}"),
                "shuffle-enrolled-file": str(self.enrolled),
                "shuffle-min-batch": self.minimum,
            }
        client = position - self.aggregators
        return {
            "partition-id": client,
            "shuffle-aggregator-public-keys": ", ".join(self.pinned),
            "shuffle-signing-key-file": str(self.folder / f"client{client}"),
            "shuffle-max-local-epsilon": float("inf"),
            "shuffle-max-rounds": 100,
            "shuffle-max-epsilon": self.max_epsilon,
            "shuffle-delta": 1e-3,
            "shuffle-ledger-file": str(self.folder / f"ledger{client}"),
        }

    def strategy(self, **options: Any) -> ShuffleStrategy:
        chosen: dict[str, Any] = {
            "randomizer": self.mechanism,
            "sampling": FixedSize(self.clients),
            "population": self.clients,
            "delta": 1e-3,
            "waiting": Waiting(poll_interval=0.01),
            "shuffler": self.stage,
        }
        return ShuffleStrategy(FedAvg(fraction_evaluate=0.0), **(chosen | options))

    def instruction(self, **changes: Any) -> Instruction:
        values: dict[str, Any] = {
            "token": torch.randint(256, (16,), dtype=torch.uint8).numpy().tobytes(),
            "run": "test",
            "server_round": 1,
            "mechanism": SumSpec(protocol=self.mechanism),
            "minimum": self.mechanism.cohort,
            "shared": self.stage.shared(self.mechanism, clients=self.clients),
        }
        return Instruction(**{**values, **changes})

    def answers(self, instruction: Instruction) -> list[Message]:
        arrays = ArrayRecord({"w": Array(MODEL)})
        content = RecordDict({"arrays": arrays, RECORD_KEY: instruction.to_record()})
        messages = [Message(content, node, "train") for node in self.nodes[self.aggregators :]]
        return self.grid.send_and_receive(messages)

    def _train(self, message: Message, context: Context) -> Message:
        moved = message.content["arrays"]["w"].numpy() + update_of(int(context.node_config["partition-id"]))
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(moved)})}), reply_to=message)


def recorded(mechanism: PrivateSum, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The counts that clients will report by such a mechanism, in their order."""
    found: list[torch.Tensor] = []
    honest = type(mechanism).randomize

    def randomize(self: Any, *args: Any, **kwargs: Any) -> Any:
        reports = honest(self, *args, **kwargs)
        found.append(self.total(reports))
        return reports

    monkeypatch.setattr(type(mechanism), "randomize", randomize)
    return found
