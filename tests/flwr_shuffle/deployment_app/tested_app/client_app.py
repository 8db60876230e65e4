"""Clients whose updates are known to the test, the mix node, and hostile nodes."""

from __future__ import annotations

import json

import flwr_shuffle.client
import flwr_shuffle.service_nodes as nodes
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import ShuffleMod, register_aggregator, register_mix_node
from flwr_shuffle.messages import Step, instruction_of

from shuffle_plugins.secure_aggregation import share
from tested_app.hostile import hostile_mod
from tested_app.pauses import add_line, pause

app = ClientApp(mods=[hostile_mod, ShuffleMod()])
register_mix_node(app)
register_aggregator(app)


def _paused_batch(*of, mixed=nodes._mixed):
    """The mixer has written the round down and mixed it; its answer is not out."""
    answer = mixed(*of)
    pause("mixed")
    return answer


def _paused_sum(aggregator, request, aggregated=nodes._aggregated):
    """An aggregator has written the round down and added up; its answer is not out."""
    answer = aggregated(aggregator, request)
    if request.step is Step.ADD:
        pause("summed")
    return answer


def _noted_share(counts, **options):
    """A client's counts and seeds, for the test to look for where they should not be."""
    shared = share(counts, **options)
    if counts.any():
        seeds = [seed.hex() for seed in shared.seeds]
        add_line("drawn", json.dumps({"counts": counts.tolist(), "seeds": seeds}))
    return shared


nodes._mixed = _paused_batch
nodes._aggregated = _paused_sum
flwr_shuffle.client.share = _noted_share


@app.train()
def train(message: Message, context: Context) -> Message:
    partition = int(context.node_config["partition-id"])
    instruction = instruction_of(message)
    assert instruction is not None
    pause(f"train-{partition}-{instruction.server_round}")
    weight = message.content["arrays"]["weight"].numpy().copy()
    weight[partition] += 1
    records = {
        "arrays": ArrayRecord({"weight": Array(weight.astype(np.float32))}),
        "metrics": MetricRecord(
            {"num-examples": 1000 + partition, f"told{partition}by{1000 + partition}": 0.5}
        ),
    }
    return Message(RecordDict(records), reply_to=message)
