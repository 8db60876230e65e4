"""A run through Flower's simulation engine, started by ``test_simulation.py``; prints what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from flwr_shuffle import ClientLimits, FixedSize, ShuffleMod, ShuffleStrategy

CLIENTS, COHORT, ROUNDS, DELTA = 10, 8, 2, 1e-3
RANDOMIZER, LOCAL_EPSILON, CLIP, DIM = "privunit", 6.0, 1.0, 40

app = ClientApp(
    mods=[
        ShuffleMod(limits=ClientLimits(max_local_epsilon=LOCAL_EPSILON, max_rounds=100), allow=["evaluate"])
    ]
)


@app.train()
def train(message: Message, context: Context) -> Message:
    """An update towards ones, far outside of the ball, beside a metric that must not leave."""
    moved = ArrayRecord([message.content["arrays"].to_numpy_ndarrays()[0] + 100])
    secret = MetricRecord({"num-examples": 1, "secret": 1234.5})
    return Message(RecordDict({"arrays": moved, "metrics": secret}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    told = {"num-examples": 1, "partition": int(context.node_config["partition-id"])}
    return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    simulate(grid, context, file=CONFIG)
    strategy = ShuffleStrategy(
        FedAvg(min_evaluate_nodes=CLIENTS),
        evaluation="raw",
        randomizer=RANDOMIZER,
        local_epsilon=LOCAL_EPSILON,
        clipping_norm=CLIP,
        sampling=FixedSize(COHORT),
        population=CLIENTS,
        ledger=sys.argv[1],
        delta=DELTA,
    )
    initial = ArrayRecord({"0": Array(np.zeros(DIM, dtype=np.float32))})
    result = strategy.start(grid, initial, num_rounds=ROUNDS, evaluate_config=ConfigRecord())
    assert result.arrays is not None
    rounds = {number: dict(record) for number, record in result.train_metrics_clientapp.items()}
    evaluated = {number: dict(record) for number, record in result.evaluate_metrics_clientapp.items()}
    model = result.arrays.to_numpy_ndarrays()[0].tolist()
    print(json.dumps({"rounds": rounds, "evaluated": evaluated, "model": model}))


if __name__ == "__main__":
    from simulated_example import EitherApp, simulate  # needs the example's folder on the path

    CONFIG = Path(sys.argv[1]).with_name("example-config.json")
    run_simulation(
        server,
        EitherApp(app, file=CONFIG),
        CLIENTS,
        backend_config={
            "init_args": {"num_cpus": 1},  # one actor: every further one imports PyTorch again
            "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
        },
    )
