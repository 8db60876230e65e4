"""A server that keeps all it sees."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import FixedSize, MixNodeStage, SelfSampling, SharedSumStage, ShuffleStrategy, Waiting
from flwr_shuffle.grids import Anonymous, Replies

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.shuffler.keys import SealingKey
from tested_app.pauses import add_line, folder, note, pause

DIM = 40
DELTA = 1e-3
SUM = VectorSum.with_noise(dim=DIM, cohort=3, noise_multiplier=2.0, overhead=0.3)
ROUND: dict[str, Any] = {"randomizer": "privunit", "local_epsilon": 2.0, "clipping_norm": 1.0}

app = ServerApp()


class PausingStage(MixNodeStage):
    """A stage that can be killed with a batch in its hands."""

    def collect(self, replies: Replies) -> Anonymous:
        pause(f"replied-{replies.instruction.server_round}")
        return super().collect(replies)


class PausingFedAvg(FedAvg):
    """A strategy that can be killed when a round is in the books, and what it made of it is not."""

    def aggregate_train(self, server_round, replies):
        pause(f"aggregating-{server_round}")
        return super().aggregate_train(server_round, replies)


class WatchedGrid:
    """A grid that writes down every message as its server sees it."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        for message in sent:
            add_line("seen", json.dumps(_told("sent", message)))
        received = list(self._grid.send_and_receive(sent, timeout=timeout))
        for message in received:
            add_line("seen", json.dumps(_told("received", message)))
        return received


Grid.register(WatchedGrid)


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = ShuffleStrategy(
        PausingFedAvg(fraction_evaluate=0.0),
        **(_summed(config) if config["aggregator-public-keys"] else _mixed(config)),
        population=int(config["population"]),
        ledger=str(config["ledger-file"]) or None,
        delta=DELTA,
        waiting=Waiting(poll_interval=0.3),
    )

    def released(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        spent = {
            str(adversary): strategy.accountant.epsilon(DELTA, adversary=adversary, lower=False).upper
            for adversary in Adversary
        }
        weight = arrays["weight"].numpy().tolist()
        add_line("released", json.dumps({"round": server_round, "spent": spent, "weight": weight}))
        return None

    strategy.start(
        grid=WatchedGrid(grid),
        initial_arrays=ArrayRecord({"weight": Array(np.zeros(DIM, np.float32))}),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=released,
    )
    note("finished", str(folder()))


def _mixed(config) -> dict[str, Any]:
    """What a strategy needs to have reports mixed."""
    analyzer_key = SealingKey.generate()
    add_line("analyzer-keys", analyzer_key.private_bytes_raw().hex())
    stage = PausingStage(
        mixer_public_key=str(config["mixer-public-key"]),
        analyzer_private_key=analyzer_key,
        waiting=Waiting(poll_interval=0.3, answer_timeout=20),
        exclude_after=2,
    )
    return ROUND | {
        "sampling": SelfSampling(float(config["participation"])),
        "shuffler": stage,
        "minimum_reports": int(config["minimum-reports"]),
    }


def _summed(config) -> dict[str, Any]:
    """What a strategy needs to have counts added up."""
    stage = SharedSumStage(
        aggregator_public_keys=str(config["aggregator-public-keys"]).split(","),
        waiting=Waiting(poll_interval=0.3, answer_timeout=20),
    )
    return {"randomizer": SUM, "sampling": FixedSize(int(config["population"])), "shuffler": stage}


def _told(direction: str, message: Message) -> dict:
    metadata = message.metadata
    told = {
        "direction": direction,
        "type": metadata.message_type,
        "from": metadata.src_node_id,
        "to": metadata.dst_node_id,
        "reply-to": metadata.reply_to_message_id,
        "created": metadata.created_at,
        "error": message.error.reason if message.has_error() else None,
        "records": {},
    }
    if message.has_content():
        told["records"] = {
            key: {name: _plain(value) for name, value in record.items()}
            for key, record in message.content.items()
            if isinstance(record, ConfigRecord | MetricRecord)
        }
        told["keys"] = sorted(message.content)
    return told


def _plain(value):
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
