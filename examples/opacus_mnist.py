"""Train a digit classifier with Opacus under the subsampled shuffle model, and read a certified ε interval.

An ordinary Opacus script but for the import of PrivacyEngine. By default it trains on the handwritten digits
that ship with scikit-learn (1,797 images of 8×8), in seconds:

    python examples/opacus_mnist.py

With --data-dir it trains on MNIST in IDX files (also the directory that torchvision writes), by the recipes
of docs/reference/mnist.md, each within ten minutes on two cores. One randomised report per sample, or a
multi-message sum; a linear model on fixed wavelet features, or the convolutional network of Opacus's
examples/mnist.py:

    python examples/opacus_mnist.py --data-dir DIR
    python examples/opacus_mnist.py --data-dir DIR --randomizer vector-sum
    python examples/opacus_mnist.py --data-dir DIR --model cnn
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import matplotlib
import torch
from fixed_features import FEATURES, wavelet_features
from mnist_idx import load_mnist, opacus_network
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import PrivacyEngine
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.accounting.published import published_bound
from shuffle_plugins.core import rounded
from shuffle_plugins.mechanisms import LocalRandomizer
from shuffle_plugins.randomness import SeededRandomness

matplotlib.use("Agg")
from matplotlib import pyplot as plt

LOOKS = 20
OPACUS_MEAN, OPACUS_DEVIATION = 0.1307, 0.3081  # of all pixels, as Opacus's examples/mnist.py has them
AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Hyper-parameters that go together: k, steps and the step's size, and what the run may cost."""

    batch_size: int
    num_steps: int
    learning_rate: float
    momentum: float
    max_grad_norm: float
    target_epsilon: float | None = 2.93
    local_epsilon: float | None = None


# Chosen on MNIST; docs/reference/mnist.md says how.
RECIPES = {
    ("features", "privunit"): Recipe(
        batch_size=6_000, num_steps=200, learning_rate=30.0, momentum=0.9, max_grad_norm=0.1
    ),
    ("features", "vector-sum"): Recipe(
        batch_size=6_000, num_steps=200, learning_rate=200.0, momentum=0.9, max_grad_norm=0.1
    ),
    ("cnn", "privunit"): Recipe(
        batch_size=6_000, num_steps=100, learning_rate=0.1, momentum=0.9, max_grad_norm=1.0
    ),
    ("cnn", "vector-sum"): Recipe(
        batch_size=2_000, num_steps=200, learning_rate=1.0, momentum=0.9, max_grad_norm=1.0
    ),
}
DIGITS = Recipe(
    batch_size=300,
    num_steps=100,
    learning_rate=1.0,
    momentum=0.0,
    max_grad_norm=1.0,
    target_epsilon=2.43,
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data, model and hyper-parameters that go together."""

    name: str
    train: TensorDataset
    test: tuple[Tensor, Tensor]
    model: nn.Module
    recipe: Recipe


def digits() -> Task:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(images).float().div(16)[order]
    y = torch.from_numpy(labels).long()[order]
    return Task(
        name="scikit-learn digits",
        train=TensorDataset(x[:1500], y[:1500]),
        test=(x[1500:], y[1500:]),
        model=nn.Linear(64, 10),
        recipe=DIGITS,
    )


def mnist(directory: Path, *, model: str, randomizer: str) -> Task:
    (images, labels), (test_images, test_labels) = load_mnist(directory)
    recipe = RECIPES.get((model, randomizer), RECIPES[model, "privunit"])
    if model == "cnn":
        images, test_images = ((x - OPACUS_MEAN) / OPACUS_DEVIATION for x in (images, test_images))
        network = opacus_network()
    else:
        images, test_images = wavelet_features(images), wavelet_features(test_images)
        network = nn.Linear(FEATURES, 10, bias=False)
        nn.init.zeros_(network.weight)
    return Task(
        name=f"MNIST, {model}",
        train=TensorDataset(images, labels),
        test=(test_images, test_labels),
        model=network,
        recipe=recipe,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="train on MNIST in IDX files instead")
    parser.add_argument(
        "--model", choices=("features", "cnn"), default="features", help="what to train on MNIST (features)"
    )
    parser.add_argument(
        "--randomizer", default="privunit", help="a vector mechanism (privunit), or vector-sum, multi-message"
    )
    parser.add_argument(
        "--target-epsilon", type=float, help="ε of the whole run, for which the noise is found"
    )
    parser.add_argument("--local-epsilon", type=float, help="ε0 of one gradient, in place of a target")
    parser.add_argument(
        "--max-grad-norm",
        type=float,
        help="radius of the randomizer's ball: ℓ∞ for linf-coordinate, ℓ2 for the others named here",
    )
    parser.add_argument("--batch-size", type=int, help="k, samples in a round")
    parser.add_argument("--num-steps", type=int, help="rounds")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--momentum", type=float)
    parser.add_argument("--delta", type=float, default=1e-5, help="δ at which ε is reported (1e-5)")
    parser.add_argument(
        "--sampling", choices=("without-replacement", "poisson"), default="without-replacement"
    )
    parser.add_argument("--seed", type=int, help="repeat a run exactly; protects nobody")
    parser.add_argument("--figure", type=Path, default=Path("outputs/opacus_mnist.png"))
    parser.add_argument("--results", type=Path, help="JSON file that this run's numbers are added to")
    options = parser.parse_args()
    if options.seed is not None:
        torch.manual_seed(options.seed)
    try:
        if options.target_epsilon is not None and options.local_epsilon is not None:
            parser.error("give --target-epsilon or --local-epsilon, not both")
        task = (
            mnist(options.data_dir, model=options.model, randomizer=options.randomizer)
            if options.data_dir
            else digits()
        )
        task = replace(task, recipe=chosen(task.recipe, options))
        if task.recipe.num_steps < 1 or task.recipe.batch_size < 1 or not 0 < options.delta < 1:
            parser.error("--num-steps and --batch-size take positive numbers, --delta one between 0 and 1")
        engine, private = make_private(task, options)
    except (OSError, ValueError, TypeError) as error:
        parser.error(str(error))
    warnings.filterwarnings("ignore", message="Full backward hook is firing")  # Opacus's own, harmless
    print(engine.training_plan)
    started = time.perf_counter(), time.process_time()
    steps, accuracies = train(task, engine, *private)
    took = {
        "seconds": round(time.perf_counter() - started[0], 1),
        "processor_seconds": round(time.process_time() - started[1], 1),
        "threads": torch.get_num_threads(),
    }
    optimizer = private[1]
    report(task, options, engine, optimizer, accuracy=accuracies[-1])
    if options.results:
        save(options.results, task, options, engine, optimizer, accuracies[-1], took)
    draw(
        options.figure,
        title=f"{task.name}, {options.randomizer}",
        steps=steps,
        accuracies=accuracies,
        shuffle_round=optimizer.round,
        delta=options.delta,
    )
    print(f"figure: {options.figure}")


def chosen(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    """The recipe with what the command line says otherwise."""
    said = {f.name: getattr(options, f.name) for f in fields(Recipe)}
    if options.target_epsilon is not None or options.local_epsilon is not None:
        recipe = replace(recipe, target_epsilon=None, local_epsilon=None)
    return replace(recipe, **{name: value for name, value in said.items() if value is not None})


def make_private(task: Task, options: argparse.Namespace):
    engine, recipe = PrivacyEngine(), task.recipe
    arguments = {
        "module": task.model,
        "optimizer": torch.optim.SGD(
            task.model.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum
        ),
        "data_loader": DataLoader(task.train, batch_size=recipe.batch_size),
        "randomizer": options.randomizer,
        "max_grad_norm": recipe.max_grad_norm,
        "sampling": options.sampling,
        "randomness": None if options.seed is None else SeededRandomness(options.seed),
    }
    if recipe.target_epsilon is None:
        return engine, engine.make_private(**arguments, local_epsilon=recipe.local_epsilon)
    return engine, engine.make_private_with_epsilon(
        **arguments,
        target_epsilon=recipe.target_epsilon,
        target_delta=options.delta,
        num_steps=recipe.num_steps,
    )


def train(task: Task, engine: PrivacyEngine, model, optimizer, loader) -> tuple[list[int], list[float]]:
    criterion = nn.CrossEntropyLoss()
    steps: list[int] = []
    accuracies: list[float] = []
    num_steps = task.recipe.num_steps
    look_every = max(1, num_steps // LOOKS)
    with tqdm(
        total=num_steps, unit="round", desc=task.name, mininterval=0.1 if sys.stderr.isatty() else 20
    ) as progress:
        while len(engine.accountant) < num_steps:
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=AT_ONCE, optimizer=optimizer
            ) as batches:
                for x, y in batches:
                    model.train()
                    optimizer.zero_grad()
                    criterion(model(x), y).backward()
                    optimizer.step()
                    taken = len(engine.accountant)
                    if taken == progress.n:  # a physical batch: the round goes on
                        continue
                    progress.update(taken - progress.n)
                    if taken % look_every == 0 or taken == num_steps:
                        steps.append(taken)
                        accuracies.append(accuracy(model, task.test))
                        progress.set_postfix(accuracy=f"{accuracies[-1]:.3f}", refresh=False)
                    if taken == num_steps:
                        break
    return steps, accuracies


def noise_of(optimizer) -> tuple[str, float]:
    """What sets the privacy of a step, and its value."""
    if isinstance(optimizer.mechanism, LocalRandomizer):
        return "ε0 of one gradient", optimizer.local_epsilon
    return "noise multiplier", optimizer.noise_multiplier


def report(
    task: Task, options: argparse.Namespace, engine: PrivacyEngine, optimizer, *, accuracy: float
) -> None:
    shuffle_round, mechanism = optimizer.round, optimizer.mechanism
    interval = engine.get_epsilon_interval(options.delta)
    published = "does not apply"
    local = isinstance(mechanism, LocalRandomizer)
    if local and options.sampling == "without-replacement":
        value = published_bound("subsampled shuffle RDP, published").epsilon(
            local_epsilon=shuffle_round.local_epsilon,
            population=shuffle_round.population,
            cohort=int(shuffle_round.cohort),
            num_steps=len(engine.accountant),
            delta=options.delta,
        )
        published = f"{value:.3f}"
    table = Table(title=f"{task.name}: n = {len(task.train):,}, k = {task.recipe.batch_size:,}")
    table.add_column("", style="bold")
    table.add_column("value", justify="right")
    noise, its_value = noise_of(optimizer)
    for label, value in (
        ("test accuracy", f"{accuracy:.1%}"),
        (f"ε certified, at δ = {options.delta:g} (replace-one)", rounded(interval.upper, up=True)),
        ("ε that this mechanism really leaks, at least", rounded(interval.lower, up=False)),
        ("ε by the published bound (Girgis et al. 2021, Thm 1)", published),
        (noise, f"{its_value:.4g}"),
        ("rounds", f"{len(engine.accountant):,}"),
        (
            "bits per gradient on the wire",
            f"{mechanism.bits_per_report:,}",
        ),
        ("bits per gradient as float32", f"{32 * mechanism.dim:,}"),
    ):
        table.add_row(label, value)
    Console().print(table)


def save(
    path: Path,
    task: Task,
    options: argparse.Namespace,
    engine: PrivacyEngine,
    optimizer,
    accuracy: float,
    took: dict[str, float | int],
) -> None:
    """Add this run to a JSON list, with what its steps took on the clock and in processor time."""
    interval = engine.get_epsilon_interval(options.delta)
    noise = engine.training_plan.expected_noise
    run = {
        "task": task.name,
        "randomizer": options.randomizer,
        **asdict(task.recipe),
        "parameters": noise.dim,
        "delta": options.delta,
        "seed": options.seed,
        "epsilon_certified": interval.upper,
        "epsilon_leaked_at_least": interval.lower,
        noise_of(optimizer)[0]: noise_of(optimizer)[1],
        "signal_to_noise_ratio": noise.signal_to_noise_ratio,
        "accuracy": accuracy,
        **took,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*runs, run], indent=1, ensure_ascii=False) + "\n")


def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    images, labels = test
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


def draw(
    path: Path, *, title: str, steps: list[int], accuracies: list[float], shuffle_round, delta: float
) -> None:
    uppers, lowers = [], []
    for count in steps:
        accountant = ShuffleAccountant()
        accountant.step(shuffle_round, num_steps=count)
        interval = accountant.epsilon(delta)
        uppers.append(interval.upper)
        lowers.append(interval.lower)
    figure, left = plt.subplots(figsize=(6.4, 4), layout="constrained")
    right = left.twinx()
    left.set_zorder(right.get_zorder() + 1)
    left.patch.set_visible(False)
    right.fill_between(steps, lowers, uppers, color="tab:orange", alpha=0.3, linewidth=0)
    (certified,) = right.plot(steps, uppers, color="tab:orange", label="ε certified, down to a real leak")
    (learned,) = left.plot(steps, accuracies, color="tab:blue", marker=".", label="test accuracy")
    left.set(title=title, xlabel="round", ylabel="test accuracy", ylim=(0, 1))
    left.yaxis.label.set_color("tab:blue")
    right.set_ylabel(f"ε at δ = {delta:g} (replace-one)", color="tab:orange")
    right.set_ylim(bottom=0)
    left.legend(handles=[learned, certified], loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
