"""MNIST through the Opacus host with a multi-message sum: the accuracy of a trusted aggregator, without one.

60,000 clients of one image each; a cohort drawn without replacement for each round; every client's clipped
gradient goes through P_vec (Cheu, Joseph, Mao, Peng 2022), its noise calibrated so that the whole run is
(ε, δ)-private for replace-one neighbours. The model is linear on wavelet features that are fixed beforehand
(as in Tramèr, Boneh 2021). Beside it the same run with exact Gaussian noise of a trusted server at the same
ε, and without noise.

    python examples/mnist_vector_sum.py --data-dir DIR
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
import torch
from fixed_features import FEATURES, wavelet_features
from mnist_idx import load_mnist
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import FixedSizeSampler, PrivacyEngine
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from shuffle_plugins.accounting import FINE, LossComposition, gaussian_losses
from shuffle_plugins.core import rounded

matplotlib.use("Agg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).parent / "results"
EVALUATE_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run as it went."""

    steps: list[int]
    accuracies: list[float]
    seconds: float
    facts: dict[str, Any]

    @property
    def accuracy(self) -> float:
        """On the test set, after the last round."""
        return self.accuracies[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="MNIST in IDX files")
    parser.add_argument("--epsilon", type=float, default=2.93, help="of the whole run, replace-one (2.93)")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--cohort", type=int, default=4096, help="k, clients in a round (4096)")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=192.0)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--max-grad-norm", type=float, default=0.1)
    parser.add_argument("--physical-batch", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each kind")
    parser.add_argument("--results", type=Path, default=RESULTS / "mnist_vector_sum.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    try:
        (images, labels), (test_images, test_labels) = load_mnist(options.data_dir)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    train = TensorDataset(wavelet_features(images), labels)
    test = (wavelet_features(test_images), test_labels)
    kinds: dict[str, Callable[..., Run]] = {
        "vector-sum": with_vector_sum,
        "central Gaussian": with_central_noise,
        "no noise": without_noise,
    }
    runs = {name: [run(train, test, options) for _ in range(options.repeats)] for name, run in kinds.items()}
    report(runs, options)
    save(options.results, runs, options)
    draw(options.results.with_suffix(".png"), runs, options)


def linear_model() -> nn.Module:
    model = nn.Linear(FEATURES, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def sgd(model: nn.Module, options: argparse.Namespace) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=options.momentum)


def with_vector_sum(train: TensorDataset, test: tuple[Tensor, Tensor], options: argparse.Namespace) -> Run:
    """P_vec by one argument of the engine."""
    engine = PrivacyEngine()
    network = linear_model()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=network,
        optimizer=sgd(network, options),
        data_loader=DataLoader(train, batch_size=options.cohort),
        randomizer="vector-sum",
        target_epsilon=options.epsilon,
        target_delta=options.delta,
        num_steps=options.rounds,
        max_grad_norm=options.max_grad_norm,
    )
    steps, accuracies, seconds = fit("vector-sum", model, optimizer, loader, test, options)
    interval = engine.get_epsilon_interval(options.delta)
    protocol = optimizer.mechanism
    return Run(
        steps=steps,
        accuracies=accuracies,
        seconds=seconds,
        facts={
            "rounds": len(engine.accountant),
            "epsilon_certified": interval.upper,
            "epsilon_leaked_at_least": interval.lower,
            "noise_multiplier": optimizer.noise_multiplier,
            "noise_deviation_over_radius": math.sqrt(protocol.noise_variance) / protocol.radius,
            "parameters": protocol.dim,
            "levels": protocol.levels,
            "coins_per_coordinate": protocol.coins,
            "messages_per_client_and_round": protocol.messages_per_client,
            "bits_per_client_and_round_as_counts": protocol.bits_per_report,
        },
    )


def with_central_noise(train: TensorDataset, test: tuple[Tensor, Tensor], options: argparse.Namespace) -> Run:
    """Opacus's own optimizer with a trusted server's Gaussian noise, as little as ε allows, on k of n."""
    multiplier = gaussian_multiplier(train, options)
    run = central("central Gaussian", train, test, options, multiplier=multiplier)
    run.facts["noise_multiplier"] = multiplier
    return run


def without_noise(train: TensorDataset, test: tuple[Tensor, Tensor], options: argparse.Namespace) -> Run:
    """The same with clipping alone."""
    return central("no noise", train, test, options, multiplier=0.0)


def central(
    name: str,
    train: TensorDataset,
    test: tuple[Tensor, Tensor],
    options: argparse.Namespace,
    *,
    multiplier: float,
) -> Run:
    model = GradSampleModule(linear_model())
    optimizer = DPOptimizer(
        sgd(model, options),
        noise_multiplier=multiplier,
        max_grad_norm=options.max_grad_norm,
        expected_batch_size=options.cohort,
    )
    sampler = FixedSizeSampler(population=len(train), cohort=options.cohort)
    loader = DataLoader(train, batch_sampler=sampler)
    steps, accuracies, seconds = fit(name, model, optimizer, loader, test, options)
    return Run(steps=steps, accuracies=accuracies, seconds=seconds, facts={"rounds": steps[-1]})


def gaussian_multiplier(train: TensorDataset, options: argparse.Namespace) -> float:
    """Least deviation over the clipping norm that gives (ε, δ) for replace-one neighbours, k of n."""

    def epsilon(multiplier: float) -> float:
        law = gaussian_losses(
            noise_multiplier=multiplier / 2, sampling_rate=options.cohort / len(train), resolution=FINE
        )
        return LossComposition([law], [options.rounds]).epsilon(options.delta)

    low = high = 1.0
    while epsilon(high) > options.epsilon:
        low, high = high, 2 * high
    while high > low * (1 + 1e-3):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(middle) <= options.epsilon else (middle, high)
    return high


def fit(
    name: str,
    model: nn.Module,
    optimizer: Any,
    loader: DataLoader[Any],
    test: tuple[Tensor, Tensor],
    options: argparse.Namespace,
) -> tuple[list[int], list[float], float]:
    criterion = nn.CrossEntropyLoss()
    steps, accuracies, seconds = [], [], 0.0
    taken = 0
    interval = 0.2 if sys.stderr.isatty() else 20
    with tqdm(total=options.rounds, unit="round", desc=name, mininterval=interval) as progress:
        while taken < options.rounds:
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=options.physical_batch, optimizer=optimizer
            ) as batches:
                started = time.perf_counter()
                for x, y in batches:
                    optimizer.zero_grad()
                    criterion(model(x), y).backward()
                    optimizer.step()
                    if optimizer._is_last_step_skipped:
                        continue
                    taken += 1
                    progress.update()
                    seconds += time.perf_counter() - started
                    if taken % EVALUATE_EVERY == 0 or taken == options.rounds:
                        steps.append(taken)
                        accuracies.append(accuracy(model, test))
                        progress.set_postfix(accuracy=f"{accuracies[-1]:.4f}", refresh=False)
                    started = time.perf_counter()
                    if taken == options.rounds:
                        break
    return steps, accuracies, seconds


def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    features, labels = test
    with torch.no_grad():
        return float((model(features).argmax(dim=1) == labels).float().mean())


def report(runs: dict[str, list[Run]], options: argparse.Namespace) -> None:
    table = Table(title=f"MNIST, n = 60,000, k = {options.cohort:,}, {options.rounds} rounds")
    for column in ("noise", "test accuracy", "ε certified", "σ / clipping norm", "seconds a round"):
        table.add_column(column, justify="left" if column == "noise" else "right")
    for name, repeats in runs.items():
        facts = repeats[-1].facts
        epsilon = facts.get("epsilon_certified", options.epsilon if name == "central Gaussian" else None)
        table.add_row(
            name,
            ", ".join(f"{run.accuracy:.2%}" for run in repeats),
            "∞" if epsilon is None else rounded(epsilon, up=True),
            f"{facts.get('noise_deviation_over_radius', facts.get('noise_multiplier', 0)):.3f}",
            f"{mean(run.seconds for run in repeats) / options.rounds:.2f}",
        )
    Console().print(table)


def save(path: Path, runs: dict[str, list[Run]], options: argparse.Namespace) -> None:
    settings = {
        name: value for name, value in vars(options).items() if name not in ("data_dir", "results", "repeats")
    }
    content = {
        "settings": settings | {"population": 60_000, "features": FEATURES, "neighbours": "replace-one"},
        "runs": {
            name: [
                {
                    "accuracy": run.accuracy,
                    "seconds_per_round": round(run.seconds / options.rounds, 3),
                    **run.facts,
                    "curve": list(zip(run.steps, run.accuracies, strict=True)),
                }
                for run in repeats
            ]
            for name, repeats in runs.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def draw(path: Path, runs: dict[str, list[Run]], options: argparse.Namespace) -> None:
    figure, axes = plt.subplots(figsize=(4.5, 3.6), layout="constrained")
    for (name, repeats), colour in zip(runs.items(), ("tab:blue", "tab:orange", "tab:gray"), strict=True):
        for index, run in enumerate(repeats):
            label = f"{name}: {mean(r.accuracy for r in repeats):.2%}" if index == 0 else None
            axes.plot(run.steps, run.accuracies, color=colour, label=label, linewidth=1.2)
    axes.set(
        title=f"MNIST, ε = {options.epsilon:g}, δ = {options.delta:g}, replace-one",
        xlabel="round",
        ylabel="test accuracy",
        ylim=(0.9, 1),
    )
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
