"""What every node runs: an ordinary Flower client, behind a mod that lets its share of a sum out."""

from __future__ import annotations

import math

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import NodeConfig, ShuffleMod, register_aggregator

from flower_lora import task


def node_config(context: Context) -> NodeConfig:
    """What a simulated node is and agrees to; in a deployment its operator says so by ``--node-config``."""
    own = task.simulated_nodes(context).node_config
    if "shuffle-role" in own:
        return own
    # a sum has no ε0: a client limits what all of its rounds may cost
    limits = {"shuffle-max-local-epsilon": math.inf, "shuffle-max-epsilon": 50.0, "shuffle-delta": 1e-3}
    return {**own, **limits, "shuffle-max-rounds": 200}


app = ClientApp(mods=[ShuffleMod(node_config=node_config)])
register_aggregator(app)


@app.train()
def train(message: Message, context: Context) -> Message:
    config = context.run_config
    named = str(config["model"])
    model = task.adapted(named)
    task.adapt(model, message.content["arrays"].to_torch_state_dict())
    examples = task.client_examples(
        str(config["data-dir"]),
        partition=int(context.node_config["partition-id"]),
        each=int(config["sentences-per-client"]),
    )
    task.train(
        model,
        examples,
        named=named,
        steps=int(config["local-steps"]),
        learning_rate=float(config["learning-rate"]),
    )
    return Message(RecordDict({"arrays": ArrayRecord(task.adapters(model))}), reply_to=message)
