"""Federated MNIST of 60,000 clients with one image each, 10,000 a round, through Flower's messages.

The network is that of examples/paper_mnist.py (13,706 parameters), and so are population and cohort: the
numbers compare. A client takes one step of SGD on its image; its update is clipped, randomised and leaves as
one payload in a Flower message of its own, encoded as ``ShuffleMod`` encodes it. ``ShuffleStrategy`` draws
the cohort, shuffles, keeps the budget ledger, and moves the model by the mean. Only the clients' work is done
in batches, ten thousand in one process: gradients by ``torch.func.vmap``, reports in one call. Such clients
keep no ledgers of their own.

    python examples/flower_population.py --data-dir DIR --run privunit
    python examples/flower_population.py --data-dir DIR --draw-only      # the picture of all runs so far

Ctrl-C, or kill it, whenever you like: a run goes on from its ledger after its last completed round.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvgM
from flwr_shuffle import FixedSize, InProcessGrid, MechanismSpec, NodeConfig, ShuffleStrategy
from flwr_shuffle.messages import Instruction, instruction_of, payload_of, plain_payload, reply
from mnist_idx import load_mnist, paper_network
from torch import Tensor
from torch.func import functional_call, grad, vmap
from tqdm import tqdm

from shuffle_plugins.core import rounded
from shuffle_plugins.ledger import BudgetLedger

matplotlib.use("Agg")
from matplotlib import pyplot as plt

POPULATION, COHORT, DELTA = 60_000, 10_000, 1e-5
GRADIENTS_AT_ONCE = 500
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A mechanism with the rounds and the server's learning rate that go with it."""

    spec: MechanismSpec
    rounds: int
    learning_rate: float


RUNS = {
    "projunit": Run(
        spec=MechanismSpec(name="projunit", local_epsilon=3.0, radius=1.0), rounds=150, learning_rate=1.0
    ),
    "linf-block": Run(
        spec=MechanismSpec(name="linf-block", local_epsilon=3.0, radius=0.01), rounds=200, learning_rate=1.0
    ),
    "privunit": Run(
        spec=MechanismSpec(name="privunit", local_epsilon=4.0, radius=1.0), rounds=80, learning_rate=1.5
    ),
    "l2-block": Run(
        spec=MechanismSpec(name="l2-block", local_epsilon=4.0, radius=1.0), rounds=60, learning_rate=1.0
    ),
}


class PopulationGrid(InProcessGrid):
    """A grid whose clients hold one example each; those asked in one round work together.

    Args:
        images: (clients, 1, 28, 28).
        labels: (clients,).
        client_app: what nodes run that are no clients; they come after the clients.
        others: the ``node_config`` of each of those.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        client_app: ClientApp | None = None,
        others: Sequence[NodeConfig] = (),
    ) -> None:
        super().__init__(
            client_app or ClientApp(),
            num_nodes=len(images) + len(others),
            node_config=lambda i: others[i - len(images)] if i >= len(images) else {},
        )
        self._images, self._labels = images, labels
        self._first = self.get_node_ids()[0]
        self._network = paper_network()
        self.sizes: dict[str, int] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Answer a round's instruction with one report from every client asked."""
        asked = list(messages)
        instruction = instruction_of(asked[0]) if asked else None
        if instruction is None:
            return super().send_and_receive(asked, timeout=timeout)
        clients = torch.tensor([message.metadata.dst_node_id - self._first for message in asked])
        payloads = self._payloads(clients, asked[0].content["arrays"], instruction)
        replies = [reply(payload, to=message) for payload, message in zip(payloads, asked, strict=True)]
        self.sizes = {
            "payload_bytes": len(payload_of(replies[0])),
            "reply_bytes": sent_bytes(replies[0]),
            "instruction_bytes": sent_bytes(asked[0]),
        }
        return replies

    def _payloads(self, clients: Tensor, arrays: ArrayRecord, instruction: Instruction) -> Iterable[bytes]:
        parameters = arrays.to_torch_state_dict()
        dim = sum(value.numel() for value in parameters.values())
        mechanism = instruction.mechanism.build(dim=dim)
        size = instruction.mechanism.report_bytes(dim=dim)
        return chain.from_iterable(
            (plain_payload(report, size=size) for report in reports.each_to_bytes())
            for reports in (
                mechanism.randomize(self._updates(parameters, part), clip=True)
                for part in clients.split(GRADIENTS_AT_ONCE)
            )
        )

    def _updates(self, parameters: dict[str, Tensor], clients: Tensor) -> Tensor:
        """What one step of SGD with rate 1 changes in the model of each client, (clients, dim)."""

        def loss(own: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            scores = functional_call(self._network, own, (image.unsqueeze(0),))
            return torch.nn.functional.cross_entropy(scores, label.unsqueeze(0))

        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(
            parameters, self._images[clients], self._labels[clients]
        )
        return torch.cat([gradients[name].flatten(1) for name in parameters], dim=1).neg_()


def train(run: Run, options: argparse.Namespace) -> None:
    train_split, (images, labels) = load_mnist(options.data_dir)
    grid = PopulationGrid(*train_split)
    network = paper_network()
    name = f"{run.spec.name}-{run.spec.local_epsilon:g}"
    log = options.ledger.with_name(f"{options.ledger.name}-{name}.curve.json")
    curve: list[dict[str, float]] = json.loads(log.read_text()) if log.exists() else []
    options.ledger.parent.mkdir(parents=True, exist_ok=True)
    rounds = options.rounds or run.rounds

    with (
        BudgetLedger(options.ledger, model=name) as ledger,
        tqdm(total=rounds, unit="round", initial=len(curve)) as progress,
    ):
        strategy = ShuffleStrategy(
            FedAvgM(fraction_evaluate=0.0, server_learning_rate=run.learning_rate),
            randomizer=run.spec,
            sampling=FixedSize(COHORT),
            population=POPULATION,
            ledger=ledger,
            delta=DELTA,
        )
        ends = [time.perf_counter()]

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            """Test accuracy, with what it cost; the time it takes is not the round's."""
            accuracy = test_accuracy(network, arrays, images, labels)
            if server_round > len(curve):
                spent = strategy.spending()
                curve.append(
                    {
                        "round": server_round,
                        "accuracy": accuracy,
                        "epsilon_observer": spent.observer.upper,
                        "epsilon_observer_lower": spent.observer.lower,
                        "epsilon_server": spent.server.upper,
                        "epsilon_nobody_trusted": spent.local_epsilon,
                        "most_rounds_of_a_client": spent.worst_client_rounds,
                        "seconds": round(time.perf_counter() - ends[-1], 3),
                    }
                )
                log.write_text(json.dumps(curve))
                progress.update()
                progress.set_postfix(
                    accuracy=f"{accuracy:.4f}",
                    observer=rounded(spent.observer.upper, up=True),
                    server=rounded(spent.server.upper, up=True),
                )
            ends.append(time.perf_counter())
            return MetricRecord({"accuracy": accuracy})

        strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=rounds, evaluate_fn=evaluate)
    if grid.sizes:
        write(options.results, name=name, run=run, curve=curve, sizes=grid.sizes)


def test_accuracy(network: torch.nn.Module, arrays: ArrayRecord, images: Tensor, labels: Tensor) -> float:
    network.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        guesses = torch.cat([network(part).argmax(dim=1) for part in images.split(2000)])
    return float((guesses == labels).float().mean())


def sent_bytes(part: Any) -> int:
    """Bytes of a message as Flower sends it: itself and every record and array in it, one object each."""
    return len(part.deflate()) + sum(map(sent_bytes, (part.children or {}).values()))


def write(path: Path, *, name: str, run: Run, curve: list[dict[str, float]], sizes: dict[str, int]) -> None:
    """Put a run beside the others in the results, and draw them."""
    results = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    results |= {
        "population": POPULATION,
        "cohort": COHORT,
        "delta": DELTA,
        "neighbouring_relation": "replace-one",
        "parameters": sum(parameter.numel() for parameter in paper_network().parameters()),
    }
    last = curve[-1]
    results["runs"][name] = {
        "mechanism": run.spec.name,
        "local_epsilon": run.spec.local_epsilon,
        "clipping_norm": run.spec.radius,
        "options": dict(run.spec.options),
        "server_learning_rate": run.learning_rate,
        "rounds": last["round"],
        "accuracy": last["accuracy"],
        "epsilon_observer": last["epsilon_observer"],
        "epsilon_server": last["epsilon_server"],
        "median_seconds_per_round": median(point["seconds"] for point in curve),
        **sizes,
        "bytes_up_per_round": COHORT * sizes["reply_bytes"],
        "bytes_down_per_round": COHORT * sizes["instruction_bytes"],
        "curve": curve,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    draw(path, results)


def draw(path: Path, results: dict[str, Any]) -> None:
    """Accuracy by certified ε, against an observer of the model and against the server."""
    figure, panels = plt.subplots(2, figsize=(4.5, 7.6), layout="constrained")
    for axes, side in zip(panels, ("observer", "server"), strict=True):
        for name, run in results["runs"].items():
            epsilons = [point[f"epsilon_{side}"] for point in run["curve"]]
            accuracies = [point["accuracy"] for point in run["curve"]]
            axes.plot(epsilons, accuracies, label=f"{name}, {run['payload_bytes']:,} bytes a report")
        axes.set(xlabel=f"certified ε at δ = {results['delta']:g} (replace-one)", xlim=(0, None), ylim=(0, 1))
        axes.grid(alpha=0.3)
    opacus = json.loads((RESULTS / "paper_mnist_fig5a.json").read_text())["curve"]
    panels[0].plot(
        [point["epsilon_upper"] for point in opacus],
        [point["accuracy"] for point in opacus],
        color="0.5",
        linestyle=":",
        label="through Opacus, linf-coordinate-1.5, 5 seeds",
    )
    panels[0].set(title="against an observer of the model", ylabel="test accuracy")
    panels[1].set(title="against the server, which draws the cohort", ylabel="test accuracy")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", fontsize=9)
    figure.savefig(path.with_suffix(".png"), dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="MNIST in IDX files")
    parser.add_argument("--run", choices=RUNS, default=next(iter(RUNS)))
    parser.add_argument("--rounds", type=int, help="instead of the run's own number")
    parser.add_argument("--ledger", type=Path, default=Path("outputs/flower_population.db"))
    parser.add_argument("--results", type=Path, default=RESULTS / "flower_population.json")
    parser.add_argument("--draw-only", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if options.draw_only:
        draw(options.results, json.loads(options.results.read_text()))
        return
    if options.data_dir is None:
        parser.error("--data-dir is needed to train")
    torch.set_num_threads(options.threads)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    train(RUNS[options.run], options)


if __name__ == "__main__":
    main()
