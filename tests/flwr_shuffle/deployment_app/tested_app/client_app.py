"""Clients whose updates are known to the test, the mix node, and hostile nodes."""

from __future__ import annotations

import json

import flwr_shuffle.client.packing
import flwr_shuffle.stages.aggregator_node
import flwr_shuffle.stages.mix_node
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import ShuffleMod, register_aggregator, register_mix_node
from flwr_shuffle.aggregate_messages import Step, answered_content
from flwr_shuffle.messages import instruction_of
from flwr_shuffle.mix_messages import mixed_content

from shuffle_plugins.secure_aggregation import share, share_with_proof
from tested_app.hostile import hostile_mod
from tested_app.pauses import add_line, pause

app = ClientApp(mods=[hostile_mod, ShuffleMod()])
register_mix_node(app)
register_aggregator(app)


def _paused_batch(*arguments, **options):
    """The mixer has written the round down and mixed it; its answer is not out."""
    pause("mixed")
    return mixed_content(*arguments, **options)


def _paused_sum(answer, *, request, aggregator):
    """An aggregator has written the round down, and checked proofs or added up; its answer is not out."""
    if request.step is not Step.CHECK:
        pause("verified" if request.step is Step.VERIFY else "summed")
    return answered_content(answer, request=request, aggregator=aggregator)


def _noted_share(counts, **options):
    """A client's counts and seeds, for the test to look for where they should not be."""
    shared = share(counts, **options)
    if counts.any():
        seeds = [seed.hex() for seed in shared.seeds]
        add_line("drawn", json.dumps({"counts": counts.tolist(), "seeds": seeds}))
    return shared


def _noted_proof(counts, **options):
    """A client's counts, which it has proven to be within bounds."""
    add_line("proven", json.dumps(counts.tolist()))
    return share_with_proof(counts, **options)


flwr_shuffle.stages.mix_node.mixed_content = _paused_batch
flwr_shuffle.stages.aggregator_node.answered_content = _paused_sum
flwr_shuffle.client.packing.share = _noted_share
flwr_shuffle.client.packing.share_with_proof = _noted_proof


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
