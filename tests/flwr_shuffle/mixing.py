"""A run with a mix node in one process: keys in files, clients that seal chosen reports, a spied grid."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    ClientLimits,
    MixNodeStage,
    ShuffleMod,
    ShuffleStrategy,
    SimulatedNodes,
    Waiting,
    register_mix_node,
)
from flwr_shuffle.grids import Anonymous, InProcessGrid, Replies
from flwr_shuffle.messages import RECORD_KEY, Instruction, context_of, instruction_of, payload_of, reply
from flwr_shuffle.service_stages import ServiceStage

from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.shuffler import SpentTokens, state_beside
from shuffle_plugins.shuffler.envelopes import seal
from shuffle_plugins.shuffler.keys import (
    ServiceKey,
    SigningKey,
    enrol_client,
    parse_mix_cascade,
    public_key_bytes,
    write_private_key,
)

DIM = 40
SPEC = MechanismSpec(name="linf-block", local_epsilon=2.0)
SIZE = SPEC.report_bytes(dim=DIM)

Relayed = Callable[[list[Message]], list[Message]]


class SpiedGrid(InProcessGrid):
    """Keeps all messages of a server; ``relay`` may change those that go out, ``receive`` those that come."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[Message] = []
        self.relay: Relayed = list
        self.receive: Relayed = list
        self.connected: Callable[[], Iterable[int]] | None = None

    def get_node_ids(self) -> list[int]:
        nodes = super().get_node_ids()
        return nodes if self.connected is None else [nodes[position] for position in self.connected()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        sent = self.relay(list(messages))
        replies = self.receive(super().send_and_receive(sent, timeout=timeout))
        self.seen += [*sent, *replies]
        return replies


def service_key(file: Path) -> ServiceKey:
    """A service node's keys in a file, with the file of its rounds."""
    key = ServiceKey.generate()
    write_private_key(file, key)
    SpentTokens.create(state_beside(file), public_key=key.public.sealing)
    return key


def client_key(file: Path) -> SigningKey:
    """A client's key in a file, and its name on the list beside it."""
    key = SigningKey.generate()
    write_private_key(file, key)
    enrol_client(file.parent / "enrolled", public_key_bytes(key))
    return key


class ServiceRun:
    """What a server does with its stage and its grid, in parts and as a whole."""

    stage: ServiceStage
    grid: SpiedGrid
    dim: int

    def instruction(self, **changes: Any) -> Instruction:
        raise NotImplementedError

    def answers(self, instruction: Instruction) -> list[Message]:
        raise NotImplementedError

    def begun(self, **changes: Any) -> tuple[Instruction, list[Message]]:
        """A round's instruction, and what all clients answer."""
        self.stage.open(self.grid)
        instruction = self.instruction(**changes)
        return instruction, self.answers(instruction)

    def collect(self, replies: list[Message], instruction: Instruction) -> Anonymous:
        self.stage.open(self.grid)
        asked = Replies(messages=replies, instruction=instruction, dim=self.dim, grid=self.grid)
        return self.stage.collect(asked)

    def round(self, **changes: Any) -> Anonymous:
        instruction, replies = self.begun(**changes)
        return self.collect(replies, instruction)


@dataclass(kw_only=True)
class MixedRun(ServiceRun):
    """Six clients and, as the first nodes, the mix nodes. ``dummies`` are positions of those that sit out."""

    folder: Path
    clients: int = 6
    mixers: int = 1
    minimum: int = 3
    dummies: set[int] = field(default_factory=set)
    sent: dict[int, bytes] = field(default_factory=dict)
    changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    connected: range | None = None
    dim: int = DIM
    restarted: int | None = None

    def __post_init__(self) -> None:
        self.mixer_keys = [service_key(self.mixer_file(place)) for place in range(self.mixers)]
        self.mixer_key = self.mixer_keys[0]
        places = range(self.mixers, self.mixers + self.clients)
        self.signing_keys = {i: client_key(self.folder / f"client{i}") for i in places}
        app = ClientApp()
        register_mix_node(app)
        app.train()(self._train)
        self.grid = SpiedGrid(app, num_nodes=self.clients + self.mixers, node_config=self.config)
        self.nodes = self.grid.get_node_ids()
        self.grid.connected = lambda: range(len(self.nodes)) if self.connected is None else self.connected
        self.stage = self.new_stage()

    def new_stage(self, **options: Any) -> MixNodeStage:
        waiting = Waiting(discovery_timeout=0.2, poll_interval=0.05)
        return MixNodeStage(**{"mixer_public_key": self.row, "waiting": waiting, **options})

    @property
    def row(self) -> str:
        return ",".join(key.public.hex() for key in self.mixer_keys)

    def mixer_file(self, position: int) -> Path:
        return self.folder / ("mixer" if position == 0 else f"mixer{position}")

    def config(self, position: int) -> dict[str, Any]:
        if position == self.restarted:
            position = 0
        if position >= self.mixers:
            return {"shuffle-mixer-public-key": self.row}
        pinned = {"shuffle-mixer-public-key": self.row} if self.mixers > 1 else {}
        return {
            **pinned,
            "shuffle-role": "mixer",
            "shuffle-mixer-key-file": str(self.mixer_file(position)),
            "shuffle-enrolled-file": str(self.folder / "enrolled"),
            "shuffle-min-batch": self.minimum,
        }

    def instruction(self, **changes: Any) -> Instruction:
        values = {
            "token": os.urandom(16),
            "run": "test",
            "server_round": 1,
            "mechanism": SPEC,
            "participation": 0.5,
            "analyzer_key": self.stage.analyzer_key,
            "mixers": self.stage.mixers,
        }
        return Instruction(**{**values, **changes})

    def answers(self, instruction: Instruction) -> list[Message]:
        content = RecordDict({RECORD_KEY: instruction.to_record()})
        mixers = {
            self.nodes[position] for position in (*range(self.mixers), self.restarted) if position is not None
        }
        nodes = [node for node in self.grid.get_node_ids() if node not in mixers]
        return self.grid.send_and_receive([Message(content, node, "train") for node in nodes])

    def _train(self, message: Message, context: Context) -> Message:
        instruction = instruction_of(message)
        assert instruction is not None
        position = int(context.node_config["partition-id"])
        vector = torch.full((1, DIM), 0.1 * position)
        report = SPEC.build(dim=DIM).randomize(vector, clip=True).to_bytes()
        self.sent[position] = report
        values = {
            "size": SIZE,
            "context": context_of(instruction, dim=DIM),
            "analyzer_key": instruction.analyzer_key,
            "mixer_key": [
                key.sealing for key in parse_mix_cascade(context.node_config["shuffle-mixer-public-key"])
            ],
            "signing_key": self.signing_keys[position],
        }
        values |= self.changes.get(position, {})
        honest = None if position in self.dummies else report
        return reply(seal(values.pop("report", honest), **values), to=message)


@dataclass(kw_only=True)
class TrainedRun:
    """Clients that train behind a mod, and mix nodes after them; a folder has everybody's keys. ``found`` is
    what came out of the stage, round by round, and ``sizes`` how long the last replies were.
    """

    folder: Path
    train: Callable[[Message, Context], Message]
    limits: ClientLimits
    options: dict[str, Any]
    clients: int = 8
    mixers: int = 0
    piece_bytes: int = 1 << 25

    def __post_init__(self) -> None:
        self.found: list[Anonymous] = []
        mod = ShuffleMod(limits=self.limits, node_config=lambda context: self._nodes(context).node_config)
        self.app = ClientApp(mods=[mod])
        self.app.train()(self.train)
        register_mix_node(self.app)
        self.grid = InProcessGrid(self.app, num_nodes=self.clients + self.mixers)
        keys = self._nodes(Context(1, 0, {}, RecordDict(), {})).mixer_public_keys
        waiting = Waiting(discovery_timeout=5.0, poll_interval=0.05)
        self.stage = (
            MixNodeStage(mixer_public_key=keys, piece_bytes=self.piece_bytes, waiting=waiting)
            if keys
            else None
        )

    def _nodes(self, context: Context) -> SimulatedNodes:
        return SimulatedNodes(context, mixers=self.mixers, folder=self.folder)

    def strategy(self, **changes: Any) -> ShuffleStrategy:
        chosen = {"population": self.clients, "shuffler": self.stage, **self.options, **changes}
        strategy = ShuffleStrategy(FedAvg(fraction_evaluate=0.0), **chosen)
        stage = strategy.settings.stage
        collect = stage.collect

        def spied(replies: Replies) -> Anonymous:
            self.sizes = {len(payload_of(reply)) for reply in replies.answers}
            self.found.append(collect(replies))
            return self.found[-1]

        stage.collect = spied  # type: ignore[method-assign]
        return strategy

    def run(self, strategy: ShuffleStrategy, *, dim: int = 4, rounds: int = 1) -> Any:
        start = ArrayRecord({"w": Array(np.zeros(dim, dtype=np.float32))})
        return strategy.start(self.grid, start, num_rounds=rounds)


def encoded(reports: Reports | None) -> list[bytes]:
    """Each report by itself, as bytes, sorted."""
    assert reports is not None
    return sorted(reports.narrow(i, i + 1).to_bytes() for i in range(len(reports)))
