"""Fashion-MNIST of 60,000 clients in Flower, within ε against the server: windows of sums beside plain sums.

Each client holds one image; 4,000 take part in each of 90 rounds, in turn, so that each is in six. A linear
model on the frontier's features, of which 256 random projections are kept so that a run takes minutes and
not hours: less accurate than in examples/frontier, with the same noise. ``ShuffleStrategy`` draws the
cohorts, keeps them apart, opens the windows, keeps the budget and its ledger; every client's report is a
Flower message of its own. As in flower_population.py clients' work is done in batches, and they keep no
ledgers.

    python examples/flower_windows.py --data-dir DIR --sum windowed-sum --epsilon 1

DIR has a folder ``fashion-mnist`` with its IDX files. Ctrl-C, or kill it, whenever you like: a run goes on
from its ledger after its last completed round, with a new series of windows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from flower_population import PopulationGrid, test_accuracy
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvgM
from flwr_shuffle import Cyclic, ShuffleStrategy
from torch import Tensor, nn
from torch.nn import functional

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.ledger import BudgetLedger
from shuffle_plugins.protocols import VectorSum, WindowedSum, prefix_noise, window_coefficients

sys.path.insert(0, str(Path(__file__).parent / "frontier"))

COHORT, ROUNDS, DELTA, FEATURES, CLASSES = 4000, 90, 1e-5, 256, 10
CLIP, MOMENTUM = 0.005, 0.9
WEIGHT_NOISE = 2.0  # deviation of the noise in each weight after all rounds, as of planning.training_recipe
RESULTS = Path(__file__).parent / "results" / "flower_windows.json"
SUMS = ("vector-sum", "windowed-sum")


class LinearGrid(PopulationGrid):
    """Clients that hold one row of features each and train a linear model without a bias."""

    def _updates(self, parameters: dict[str, Tensor], clients: Tensor) -> Tensor:
        rows = self._images[clients]
        errors = torch.softmax(rows @ parameters["weight"].T, dim=1)
        errors -= functional.one_hot(self._labels[clients], CLASSES)
        return (errors[:, :, None] * rows[:, None, :]).flatten(1).neg_()


def projected(rows: Tensor) -> Tensor:
    """Public random combinations of a row's features, of length one."""
    mixing = torch.randn(rows.shape[1], FEATURES, generator=torch.Generator().manual_seed(7))
    return torch.cat([functional.normalize(part.float() @ mixing) for part in rows.split(4000)])


def sum_of(
    name: str, *, epsilon: float, population: int, cohort: int, rounds: int
) -> tuple[VectorSum, float]:
    """The sum within ε for those who take part most often, and the server's learning rate that suits it."""
    apart = population // cohort
    run = {"rounds": rounds, "momentum": MOMENTUM}
    coefficients = window_coefficients(band=apart, **run) if name == "windowed-sum" else (1,)
    asked = {
        "cohort": cohort,
        "epsilon": epsilon,
        "delta": DELTA,
        "num_steps": math.ceil(rounds / apart),
        "dim": FEATURES * CLASSES,
        "radius": CLIP,
    }
    if name == "windowed-sum":
        protocol = WindowedSum.calibrated(**asked, coefficients=coefficients)
    else:
        protocol = VectorSum.calibrated(**asked)
    deviation = (
        coefficients[0] * math.sqrt(protocol.noise_variance) / cohort * prefix_noise(coefficients, **run)
    )
    return protocol, WEIGHT_NOISE * (1 - MOMENTUM) / (deviation * math.sqrt(rounds))


def train(
    name: str,
    epsilon: float,
    *,
    train_split: tuple[Tensor, Tensor],
    test_split: tuple[Tensor, Tensor],
    ledger: Path,
    cohort: int = COHORT,
    rounds: int = ROUNDS,
) -> dict[str, float | int | str]:
    """Train within ε against the server, and say what came of it."""
    grid, network = LinearGrid(*train_split), nn.Linear(FEATURES, CLASSES, bias=False)
    nn.init.zeros_(network.weight)
    population = len(train_split[1])
    protocol, rate = sum_of(name, epsilon=epsilon, population=population, cohort=cohort, rounds=rounds)
    ledger.parent.mkdir(parents=True, exist_ok=True)
    with BudgetLedger(ledger, model=f"{name} {epsilon:g}") as kept:
        strategy = ShuffleStrategy(
            FedAvgM(fraction_evaluate=0.0, server_learning_rate=rate, server_momentum=MOMENTUM),
            randomizer=protocol,
            sampling=Cyclic(cohort),
            population=population,
            ledger=kept,
            delta=DELTA,
            max_epsilon=epsilon,
            budget_against=Adversary.SERVER,
        )
        found = [0.0]

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            found.append(test_accuracy(network, arrays, *test_split))
            print(f"{name}, ε = {epsilon:g}, round {server_round}: {found[-1]:.1%}", flush=True)
            return MetricRecord({"accuracy": found[-1]})

        strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=rounds, evaluate_fn=evaluate)
        spent = strategy.spending()
    return {
        "sum": name,
        "target_epsilon": epsilon,
        "accuracy": round(found[-1], 4),
        "epsilon_server": math.ceil(1e4 * spent.server.upper) / 1e4,
        "epsilon_observer": math.ceil(1e4 * spent.observer.upper) / 1e4,
        "most_rounds_of_a_client": spent.worst_client_rounds,
        "rounds": spent.num_rounds,
        "cohort": cohort,
        "population": population,
        "features": FEATURES,
        **grid.sizes,
    }


def keep(results: Path, told: dict[str, float | int | str]) -> None:
    """Put a run into the result file, in place of an older one of the same sum and ε."""
    runs = json.loads(results.read_text()) if results.exists() else []
    same = [(run["sum"], run["target_epsilon"]) != (told["sum"], told["target_epsilon"]) for run in runs]
    runs = [*(run for run, other in zip(runs, same, strict=True) if other), told]
    results.write_text(json.dumps(runs, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    from data import load  # of the frontier

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="where features are kept (DIR/features)")
    parser.add_argument("--sum", choices=SUMS, nargs="+", default=list(SUMS), dest="sums")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--ledger", type=Path, default=Path("flower_windows.db"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    cache = options.cache or options.data_dir / "features"
    task = load("fashion-mnist", scales=3, filters=0, data=options.data_dir, cache=cache)
    splits = {
        f"{part}_split": (projected(rows), labels)
        for part, (rows, labels) in (("train", task.train), ("test", task.test))
    }
    for epsilon in options.epsilon:
        for name in options.sums:
            keep(options.results, train(name, epsilon, ledger=options.ledger, **splits))


if __name__ == "__main__":
    main()
