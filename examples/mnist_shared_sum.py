"""MNIST with 60,000 clients and a sum that nobody sees: central accuracy without any trusted process.

The run of examples/mnist_vector_sum.py through Flower's messages and a ``SharedSumStage``: 60,000 clients of
one image each, 4,096 of them in each round. A client's clipped gradient becomes counts by P_vec; its counts
are shared between the server and aggregators, which check, expand and add up sealed seeds as they would in a
deployment. The server learns the total alone. Only the clients' gradients and coins are made in batches.
Such clients keep no ledgers of their own, and hold their signing keys in memory.

    python examples/mnist_shared_sum.py --data-dir DIR

Ctrl-C, or kill it, whenever you like: a run goes on from its ledger after its last completed round.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from fixed_features import FEATURES, wavelet_features
from flower_population import PopulationGrid
from flwr.app import ArrayRecord, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvgM
from flwr_shuffle import FixedSize, SharedSumStage, ShuffleStrategy, register_aggregator
from flwr_shuffle.messages import Instruction
from mnist_idx import load_mnist
from torch import Tensor, nn
from tqdm import tqdm

from shuffle_plugins.core import rounded
from shuffle_plugins.ledger import BudgetLedger
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.secure_aggregation import seal_seed, share
from shuffle_plugins.shuffler import SpentTokens, state_beside
from shuffle_plugins.shuffler.keys import (
    ServiceKey,
    SigningKey,
    public_key_bytes,
    read_service_key,
    write_private_key,
)

POPULATION, DELTA = 60_000, 1e-5
AT_ONCE = 256
RESULTS = Path(__file__).parent / "results"


class SharingGrid(PopulationGrid):
    """A grid whose clients share their counts; the last nodes are the aggregators."""

    aggregators: tuple[bytes, ...] = ()

    def _payloads(self, clients: Tensor, arrays: ArrayRecord, instruction: Instruction) -> Iterable[bytes]:
        parameters = arrays.to_torch_state_dict()
        dim = sum(value.numel() for value in parameters.values())
        mechanism, shared = instruction.mechanism.build(dim=dim), instruction.shared
        assert shared is not None
        assert mechanism.counts is not None
        terms = shared.of_round(instruction, mechanism, dim=dim, aggregators=self.aggregators)
        for part in clients.split(AT_ONCE):
            reports = mechanism.randomize(self._updates(parameters, part))
            for client, report in zip(part.tolist(), reports.split(), strict=True):
                mine = share(
                    mechanism.total(report).numpy() - mechanism.counts.lowest,
                    layout=terms.layout,
                    aggregators=len(self.aggregators),
                    check_seed=shared.check_seed,
                )
                data = mine.share.to_bytes()
                envelopes = (
                    seal_seed(
                        seed, terms=terms, share=data, aggregator_key=key, signing_key=signing_key(client)
                    )
                    for seed, key in zip(mine.seeds, self.aggregators, strict=True)
                )
                yield b"".join([data, *envelopes])

    def _updates(self, parameters: dict[str, Tensor], clients: Tensor) -> Tensor:
        """Minus the gradient of the cross entropy of each client's image, (clients, dim)."""
        features, labels = self._images[clients], self._labels[clients]
        scores = features @ parameters["weight"].T + parameters["bias"]
        errors = scores.softmax(dim=1) - nn.functional.one_hot(labels, 10)
        weights = errors.unsqueeze(2) * features.unsqueeze(1)
        return torch.cat([weights.flatten(1), errors], dim=1).neg_()


def signing_key(client: int) -> SigningKey:
    """A client's key, the same in every process of a simulation; a real one comes from its own entropy."""
    return SigningKey.from_private_bytes(np.random.default_rng([7, client]).bytes(32))


def aggregators_of(folder: Path, count: int) -> list[dict[str, str | int]]:
    """The aggregators' ``node_config``; their files are made in the first run."""
    folder.mkdir(parents=True, exist_ok=True)
    enrolled = folder / "enrolled"
    if not enrolled.exists():
        keys = (public_key_bytes(signing_key(client)).hex() for client in range(POPULATION))
        enrolled.write_text("".join(f"{key}\n" for key in keys))
    for place in range(count):
        path = folder / f"aggregator-{place}.key"
        if not path.exists():
            key = ServiceKey.generate()
            SpentTokens.create(state_beside(path), public_key=key.public.sealing)
            write_private_key(path, key)
    return [
        {
            "shuffle-role": "aggregator",
            "shuffle-aggregator-key-file": str(folder / f"aggregator-{place}.key"),
            "shuffle-enrolled-file": str(enrolled),
            "shuffle-min-batch": 2,
        }
        for place in range(count)
    ]


def train(options: argparse.Namespace) -> None:
    (images, labels), (test_images, test_labels) = load_mnist(options.data_dir)
    test = wavelet_features(test_images)
    configs = aggregators_of(options.outputs / "keys", options.aggregators)
    public = [read_service_key(str(config["shuffle-aggregator-key-file"])).public for config in configs]
    app = ClientApp()
    register_aggregator(app)
    grid = SharingGrid(wavelet_features(images), labels, client_app=app, others=configs)
    grid.aggregators = tuple(key.sealing for key in public)
    network = nn.Linear(FEATURES, 10)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    protocol = VectorSum.calibrated(
        dim=sum(parameter.numel() for parameter in network.parameters()),
        radius=options.max_grad_norm,
        cohort=options.cohort,
        population=POPULATION,
        epsilon=options.epsilon,
        delta=DELTA,
        num_steps=options.rounds,
    )
    log = options.outputs / "curve.json"
    curve: list[dict[str, float]] = json.loads(log.read_text()) if log.exists() else []
    with (
        BudgetLedger(options.outputs / "budget.db", model="mnist-shared-sum") as ledger,
        tqdm(total=options.rounds, unit="round", initial=len(curve), mininterval=5) as progress,
    ):
        stage = SharedSumStage(aggregator_public_keys=[key.hex() for key in public])
        strategy = ShuffleStrategy(
            FedAvgM(
                fraction_evaluate=0.0,
                server_learning_rate=options.learning_rate,
                server_momentum=options.momentum,
            ),
            randomizer=protocol,
            sampling=FixedSize(options.cohort),
            population=POPULATION,
            shuffler=stage,
            ledger=ledger,
            delta=DELTA,
        )
        began = [time.perf_counter()]

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            network.load_state_dict(arrays.to_torch_state_dict())
            with torch.no_grad():
                accuracy = float((network(test).argmax(dim=1) == test_labels).float().mean())
            if server_round > len(curve):
                spent = strategy.spending()
                curve.append(
                    {
                        "round": server_round,
                        "accuracy": accuracy,
                        "epsilon_observer": spent.observer.upper,
                        "epsilon_server": spent.server.upper,
                        "seconds": round(time.perf_counter() - began[-1], 3),
                    }
                )
                log.write_text(json.dumps(curve))
                write(options, curve=curve, sizes=grid.sizes, protocol=protocol, trust=stage.trust)
                progress.update()
                progress.set_postfix(
                    accuracy=f"{accuracy:.4f}", epsilon=rounded(spent.observer.upper, up=True)
                )
            began.append(time.perf_counter())
            return MetricRecord({"accuracy": accuracy})

        strategy.start(
            grid, ArrayRecord(network.state_dict()), num_rounds=options.rounds, evaluate_fn=evaluate
        )


def write(
    options: argparse.Namespace,
    *,
    curve: list[dict[str, float]],
    sizes: dict[str, int],
    protocol: VectorSum,
    trust: str,
) -> None:
    """The results so far."""
    last = curve[-1]
    content = {
        "population": POPULATION,
        "cohort": options.cohort,
        "rounds": options.rounds,
        "rounds_done": last["round"],
        "aggregators": options.aggregators,
        "delta": DELTA,
        "neighbours": "replace-one",
        "trust": trust,
        "accuracy": last["accuracy"],
        "epsilon_observer": last["epsilon_observer"],
        "epsilon_server": last["epsilon_server"],
        "parameters": protocol.dim,
        "coins_per_coordinate": protocol.coins,
        "levels": protocol.levels,
        "learning_rate": options.learning_rate,
        "momentum": options.momentum,
        "max_grad_norm": options.max_grad_norm,
        **sizes,
        "counts_alone_bytes": protocol.layout.report_bytes,
        "median_seconds_per_round": median(point["seconds"] for point in curve),
        "curve": [
            point for point in curve if point["round"] % 10 == 0 or point["round"] in (1, last["round"])
        ],
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="MNIST in IDX files")
    parser.add_argument("--epsilon", type=float, default=2.93, help="of the whole run, replace-one (2.93)")
    parser.add_argument("--cohort", type=int, default=4096, help="k, clients in a round (4096)")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--aggregators", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=192.0)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--max-grad-norm", type=float, default=0.1)
    parser.add_argument("--outputs", type=Path, default=Path("outputs/mnist_shared_sum"))
    parser.add_argument("--results", type=Path, default=RESULTS / "mnist_shared_sum.json")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    train(options)


if __name__ == "__main__":
    main()
