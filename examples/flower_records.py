"""CLDP-SGD and DSS-SGD as a Flower app: in every round a client reports on few of its many records.

    python examples/flower_records.py --data-dir DATA      # MNIST, 2,000 clients of 30 records each
    python examples/flower_records.py --data-dir DATA --self-sampling
    python examples/flower_records.py --data-dir DATA --samples-per-client 3

``ShuffleMod`` draws records of the client in secret and calls the app once for each. The app computes the
gradient of a linear classifier on that record, and returns the model moved by it. The mod clips the moves and
randomises each, the stage shuffles all clients' reports, and ``ShuffleStrategy`` adds them up. Its own ε is
for neighbours that differ in all records of a client; printed beside it is the ε for neighbours that differ
in one record (docs/proofs/accounting.md, section 2b).
All clients run in this process, one after another.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    ClientLimits,
    FixedSize,
    InProcessGrid,
    SelfSampling,
    ShuffleMod,
    ShuffleStrategy,
    Updates,
    drawn_record,
)
from mnist_idx import load_mnist
from torch import Tensor, nn

_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the app is run.

    Attributes:
        cohort: clients of a round; with self-sampling the expected number.
        rounds: of training.
        local_epsilon: ε0 of one report.
        learning_rate: of the step that a client takes.
        self_sampling: whether clients decide in secret to take part (DSS-SGD).
        delta: δ.
        samples: how many of its records a client reports on in a round.
    """

    cohort: int
    rounds: int
    local_epsilon: float
    learning_rate: float = 1.0
    self_sampling: bool = False
    delta: float = 1e-6
    samples: int = 1


def gradient(weights: Tensor, features: Tensor, label: Tensor) -> Tensor:
    """Of the cross-entropy of a linear classifier on one record, (classes, features)."""
    error = torch.softmax(weights @ features, dim=0)
    error[label] -= 1
    return torch.outer(error, features)


def client_app(features: Tensor, labels: Tensor, *, mod: ShuffleMod) -> ClientApp:
    """Clients of which the i-th has the records ``features[i]`` (m, features) and ``labels[i]`` (m,)."""
    app = ClientApp(mods=[mod])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        drawn = drawn_record(message)
        weights = torch.from_numpy(message.content["arrays"].to_numpy_ndarrays()[0])
        rate = float(message.content["config"]["learning-rate"])
        moved = weights - rate * gradient(weights, features[client, drawn], labels[client, drawn])
        content = RecordDict(
            {"arrays": ArrayRecord([moved.numpy()]), "metrics": MetricRecord({"num-examples": 1})}
        )
        return Message(content, reply_to=message)

    return app


def run(data: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], setting: Setting) -> dict[str, Any]:
    """Train on the clients' records and say what came out and what it cost.

    Args:
        data: features (clients, m, features), float32 and of length at most 1, and labels (clients, m).
        test: features (examples, features) and labels (examples,).
        setting: how.
    """
    features, labels = data
    clients, each, dim = features.shape
    spent = setting.local_epsilon * setting.samples  # by a client, in a round
    limits = ClientLimits(max_local_epsilon=spent, max_rounds=setting.rounds)
    rate = setting.cohort / clients
    strategy = ShuffleStrategy(
        FedAvg(fraction_evaluate=0.0),
        randomizer="privunit-g",
        local_epsilon=setting.local_epsilon,
        clipping_norm=2**0.5 * setting.learning_rate,  # no gradient is longer than √2 times the features
        sampling=SelfSampling(rate) if setting.self_sampling else FixedSize(setting.cohort),
        population=clients,
        updates=Updates(records_per_client=each, samples_per_client=setting.samples),
        delta=setting.delta,
    )
    grid = InProcessGrid(client_app(features, labels, mod=ShuffleMod(limits=limits)), num_nodes=clients)
    initial = ArrayRecord([np.zeros((_CLASSES, dim), dtype=np.float32)])
    result = strategy.start(
        grid,
        initial,
        num_rounds=setting.rounds,
        train_config=ConfigRecord({"learning-rate": setting.learning_rate}),
    )
    weights = torch.from_numpy(result.arrays.to_numpy_ndarrays()[0])
    accuracy = float((test[0] @ weights.T).argmax(dim=1).eq(test[1]).double().mean())
    record = strategy.accountant.records_epsilon(setting.delta, records_per_client=each)
    return {
        "accuracy": round(accuracy, 4),
        "clients": clients,
        "records_per_client": each,
        "samples_per_client": setting.samples,
        "epsilon_of_a_record": record.upper,
        "epsilon_of_a_record_lower": record.lower,
        "epsilon_of_a_client": strategy.spending().observer.upper,
        "rounds": strategy.accountant.num_rounds,
    }


def pooled(images: Tensor) -> Tensor:
    """Images (n, 1, 28, 28) as 7×7 means, centred, of length 1: (n, 49)."""
    small = nn.functional.avg_pool2d(images, 4).flatten(1)
    return nn.functional.normalize(small - small.mean(dim=1, keepdim=True))


def main() -> None:
    """Run on MNIST and print the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="where MNIST's idx files lie")
    parser.add_argument("--records-per-client", type=int, default=30)
    parser.add_argument("--samples-per-client", type=int, default=1)
    parser.add_argument("--cohort", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--local-epsilon", type=float, default=6.0)
    parser.add_argument("--learning-rate", type=float, default=1.0)
    parser.add_argument("--self-sampling", action="store_true", help="clients decide in secret: DSS-SGD")
    options = parser.parse_args()
    each = options.records_per_client
    (images, labels), (test_images, test_labels) = load_mnist(options.data_dir)
    clients = len(images) // each
    data = (
        pooled(images[: clients * each]).reshape(clients, each, -1),
        labels[: clients * each].reshape(clients, each),
    )
    setting = Setting(
        cohort=options.cohort,
        rounds=options.rounds,
        local_epsilon=options.local_epsilon,
        learning_rate=options.learning_rate,
        self_sampling=options.self_sampling,
        samples=options.samples_per_client,
    )
    print(json.dumps(run(data, (pooled(test_images), test_labels), setting), indent=2))


if __name__ == "__main__":
    main()
