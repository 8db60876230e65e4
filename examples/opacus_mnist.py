"""Train a digit classifier with Opacus under the subsampled shuffle model, and read a certified ε interval.

An ordinary Opacus script but for the import of PrivacyEngine. By default it trains on the handwritten digits
that ship with scikit-learn (1,797 images of 8×8), in well under two minutes on two cores:

    python examples/opacus_mnist.py

With --data-dir it trains on MNIST in IDX files (also the directory that torchvision writes).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import torch
from mnist_idx import load_mnist, paper_network
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import PrivacyEngine
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.accounting.published import subsampled_rdp
from shuffle_plugins.randomness import SeededRandomness

matplotlib.use("Agg")
from matplotlib import pyplot as plt


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data, model and hyper-parameters that go together."""

    name: str
    train: TensorDataset
    test: tuple[Tensor, Tensor]
    model: nn.Module
    batch_size: int
    epochs: int
    learning_rate: float
    local_epsilon: float


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
        batch_size=300,
        epochs=20,
        learning_rate=1.0,
        local_epsilon=3.0,
    )


def mnist(directory: Path) -> Task:
    (images, labels), test = load_mnist(directory)
    return Task(
        name="MNIST",
        train=TensorDataset(images, labels),
        test=test,
        model=paper_network(),
        batch_size=2000,
        epochs=5,
        learning_rate=1.0,
        local_epsilon=4.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="train on MNIST in IDX files instead")
    parser.add_argument("--randomizer", default="privunit", help="name of a vector mechanism (privunit)")
    parser.add_argument("--local-epsilon", type=float, help="ε0 of one gradient")
    parser.add_argument(
        "--max-grad-norm",
        type=float,
        default=1.0,
        help="radius of the randomizer's ball (1.0): ℓ2 for privunit, ℓ∞ for linf-coordinate",
    )
    parser.add_argument("--batch-size", type=int, help="k, samples in a round")
    parser.add_argument("--epochs", type=int, help="passes of n/k rounds")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--delta", type=float, default=1e-5, help="δ at which ε is reported (1e-5)")
    parser.add_argument(
        "--sampling", choices=("without-replacement", "poisson"), default="without-replacement"
    )
    parser.add_argument("--seed", type=int, help="repeat a run exactly; protects nobody")
    parser.add_argument("--figure", type=Path, default=Path("outputs/opacus_mnist.png"))
    options = parser.parse_args()
    if options.seed is not None:
        torch.manual_seed(options.seed)
    try:
        task = mnist(options.data_dir) if options.data_dir else digits()
        for name in ("local_epsilon", "batch_size", "epochs", "learning_rate"):
            if getattr(options, name) is None:
                setattr(options, name, getattr(task, name))
        if options.epochs < 1 or options.batch_size < 1 or not 0 < options.delta < 1:
            parser.error("--epochs and --batch-size take positive numbers, --delta one between 0 and 1")
        engine, private = make_private(task, options)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    warnings.filterwarnings("ignore", message="Full backward hook is firing")  # Opacus's own, harmless
    steps, accuracies = train(task, options, engine, *private)
    optimizer = private[1]
    report(task, options, engine, optimizer, accuracy=accuracies[-1])
    draw(
        options.figure,
        title=f"{task.name}, {options.randomizer}, ε0 = {options.local_epsilon:g}",
        steps=steps,
        accuracies=accuracies,
        shuffle_round=optimizer.shuffle_round,
        delta=options.delta,
    )
    print(f"figure: {options.figure}")


def make_private(task: Task, options: argparse.Namespace):
    engine = PrivacyEngine()
    private = engine.make_private(
        module=task.model,
        optimizer=torch.optim.SGD(task.model.parameters(), lr=options.learning_rate),
        data_loader=DataLoader(task.train, batch_size=options.batch_size),
        randomizer=options.randomizer,
        local_epsilon=options.local_epsilon,
        max_grad_norm=options.max_grad_norm,
        sampling=options.sampling,
        randomness=None if options.seed is None else SeededRandomness(options.seed),
    )
    return engine, private


def train(
    task: Task, options: argparse.Namespace, engine: PrivacyEngine, model, optimizer, loader
) -> tuple[list[int], list[float]]:
    criterion = nn.CrossEntropyLoss()
    steps: list[int] = []
    accuracies: list[float] = []
    with tqdm(
        total=options.epochs * len(loader),
        unit="round",
        desc=task.name,
        mininterval=0.1 if sys.stderr.isatty() else 5,
    ) as progress:
        for _ in range(options.epochs):
            model.train()
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=500, optimizer=optimizer
            ) as batches:
                for x, y in batches:
                    optimizer.zero_grad()
                    criterion(model(x), y).backward()
                    optimizer.step()
            progress.update(len(engine.accountant) - progress.n)
            steps.append(len(engine.accountant))
            accuracies.append(accuracy(model, task.test))
            progress.set_postfix(accuracy=f"{accuracies[-1]:.3f}", refresh=False)
    return steps, accuracies


def report(
    task: Task, options: argparse.Namespace, engine: PrivacyEngine, optimizer, *, accuracy: float
) -> None:
    shuffle_round, mechanism = optimizer.shuffle_round, optimizer.mechanism
    interval = engine.get_epsilon_interval(options.delta)
    published = "does not apply"
    if options.sampling == "without-replacement":
        value = subsampled_rdp.epsilon(
            local_epsilon=shuffle_round.local_epsilon,
            population=shuffle_round.population,
            cohort=int(shuffle_round.cohort),
            num_steps=len(engine.accountant),
            delta=options.delta,
        )
        published = f"{value:.3f}"
    table = Table(title=f"{task.name}: n = {len(task.train):,}, k = {options.batch_size:,}")
    table.add_column("", style="bold")
    table.add_column("value", justify="right")
    for label, value in (
        ("test accuracy", f"{accuracy:.1%}"),
        (f"ε certified, at δ = {options.delta:g} (replace-one)", f"{interval.upper:.3f}"),
        ("ε that this mechanism really leaks, at least", f"{interval.lower:.3f}"),
        ("ε by the published bound (Girgis et al. 2021, Thm 1)", published),
        ("ε0 of one gradient", f"{shuffle_round.local_epsilon:g}"),
        ("rounds", f"{len(engine.accountant):,}"),
        ("bits per gradient on the wire", f"{mechanism.bits_per_report:,}"),
        ("bits per gradient as float32", f"{32 * mechanism.dim:,}"),
    ):
        table.add_row(label, value)
    Console().print(table)


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
