"""What every node runs: an ordinary Flower client, behind a mod that lets one randomised report out."""

from __future__ import annotations

import math

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import NodeConfig, ShuffleMod, register_aggregator, register_mix_node
from torch import nn

from flower_mnist import task


def node_config(context: Context) -> NodeConfig:
    """What a simulated node is and agrees to; in a deployment its operator says so by ``--node-config``."""
    own = task.simulated_nodes(context).node_config
    if "shuffle-role" in own:
        return own
    if context.run_config["simulated-aggregators"]:
        limits = {"shuffle-max-local-epsilon": math.inf, "shuffle-max-epsilon": 50.0, "shuffle-delta": 1e-3}
    else:
        limits = {"shuffle-max-local-epsilon": 8.0}
    return {**own, **limits, "shuffle-max-rounds": 200}


app = ClientApp(mods=[ShuffleMod(node_config=node_config)])
register_mix_node(app)
register_aggregator(app)


@app.train()
def train(message: Message, context: Context) -> Message:
    model, examples = _given(message, context)
    task.train(
        model,
        examples,
        steps=int(context.run_config["local-steps"]),
        learning_rate=float(context.run_config["learning-rate"]),
    )
    records = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(examples[1])}),  # never leaves the client
    }
    return Message(RecordDict(records), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, examples = _given(message, context)
    told = MetricRecord({"accuracy": task.accuracy(model, examples)})  # leaves as a randomised report
    return Message(RecordDict({"metrics": told}), reply_to=message)


def _given(message: Message, context: Context) -> tuple[nn.Module, task.Examples]:
    """The model that was sent, and this client's examples."""
    examples = task.client_examples(
        str(context.run_config["data-dir"]),
        partition=int(context.node_config["partition-id"]),
        partitions=int(context.node_config["num-partitions"]),
    )
    model = task.network(examples[0])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model, examples
