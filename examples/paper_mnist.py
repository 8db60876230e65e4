"""The MNIST run of "Rényi Differential Privacy of the Subsampled Shuffle Model" (NeurIPS 2021), in full.

60,000 clients of one image each; 10,000 drawn without replacement for each of 1,200 rounds; one coordinate of
each gradient, clipped to 1/100 and randomised with ε0 = 1.5; learning rate 0.3, then 0.18 from epoch 71 on.
An hour or two on two cores. Ctrl-C whenever you like: the run goes on from its last epoch.

    python examples/paper_mnist.py --data-dir DIR
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import matplotlib
import torch
from mnist_idx import load_mnist, paper_network
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.published import published_bound
from shuffle_plugins.mechanisms import registry

matplotlib.use("Agg")
from matplotlib import pyplot as plt

COHORT, LOCAL_EPSILON, CLIP, DELTA = 10_000, 1.5, 1 / 100, 1e-5
EPOCHS, FIRST_RATE, SECOND_RATE, RATE_CHANGES_AFTER = 200, 0.3, 0.18, 70
PUBLISHED_POINTS = ((1.4, 0.80, 0.018), (2.91, 0.90, 0.005))  # ε, accuracy, its deviation over ten runs
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="MNIST in IDX files")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--checkpoint", type=Path, default=Path("outputs/paper_mnist.pt"))
    parser.add_argument("--results", type=Path, default=RESULTS / "paper_mnist.json")
    parser.add_argument("--physical-batch", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train(options)


def train(options: argparse.Namespace) -> None:
    (images, labels), test = load_mnist(options.data_dir)
    network = paper_network()
    engine = PrivacyEngine(accountant="subsampled_shuffle_pld")
    model, optimizer, loader = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=FIRST_RATE),
        data_loader=DataLoader(TensorDataset(images, labels), batch_size=COHORT),
        randomizer="linf-coordinate",
        local_epsilon=LOCAL_EPSILON,
        max_grad_norm=CLIP,
    )
    curve: list[dict[str, float]] = []
    seconds = 0.0
    if options.checkpoint.exists():
        saved = engine.load_checkpoint(path=options.checkpoint, module=model, optimizer=optimizer)
        curve, seconds = saved["curve"], saved["seconds"]
    criterion = nn.CrossEntropyLoss()
    with tqdm(total=options.epochs, initial=len(curve), unit="epoch") as progress:
        for epoch in range(len(curve) + 1, options.epochs + 1):
            started = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = FIRST_RATE if epoch <= RATE_CHANGES_AFTER else SECOND_RATE
            model.train()
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=options.physical_batch, optimizer=optimizer
            ) as batches:
                for x, y in batches:
                    optimizer.zero_grad(set_to_none=True)
                    criterion(model(x), y).backward()
                    optimizer.step()
            seconds += time.perf_counter() - started
            curve.append({"epoch": epoch, "steps": len(engine.accountant), "accuracy": accuracy(model, test)})
            options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            engine.save_checkpoint(
                path=options.checkpoint,
                module=model,
                optimizer=optimizer,
                checkpoint_dict={"curve": curve, "seconds": seconds},
            )
            progress.update()
            progress.set_postfix(accuracy=f"{curve[-1]['accuracy']:.4f}")
    interval = engine.get_epsilon_interval(DELTA)
    core = account(steps=len(engine.accountant))
    if interval.upper != core.epsilon(DELTA).upper:
        raise AssertionError("the engine's ε is not the core accountant's for the same rounds")
    write(options.results, curve=curve, seconds=seconds, parameters=optimizer.mechanism.dim)


def accuracy(model: nn.Module, test: tuple[torch.Tensor, torch.Tensor]) -> float:
    images, labels = test
    model.eval()
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(dim=1) for part in images.split(2000)])
    return float((guesses == labels).float().mean())


def account(*, steps: int) -> ShuffleAccountant:
    """The core accountant after so many rounds of the one-coordinate mechanism, whose blanket is generic."""
    blanket = registry.blanket("linf-coordinate", local_epsilon=LOCAL_EPSILON, dim=13_706)
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=LOCAL_EPSILON,
            population=60_000,
            cohort=COHORT,
            mechanism="linf-coordinate",
            blanket=blanket,
        ),
        num_steps=steps,
    )
    return accountant


def write(path: Path, *, curve: list[dict[str, float]], seconds: float, parameters: int) -> None:
    """Add both ε to every point of the curve and save it."""
    for point in tqdm(curve, desc="accounting"):
        interval = account(steps=int(point["steps"])).epsilon(DELTA)
        point["epsilon_lower"], point["epsilon_upper"] = interval.lower, interval.upper
        point["epsilon_published"] = published_bound("subsampled shuffle RDP, published").epsilon(
            local_epsilon=LOCAL_EPSILON,
            population=60_000,
            cohort=COHORT,
            num_steps=int(point["steps"]),
            delta=DELTA,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "population": 60_000,
        "cohort": COHORT,
        "local_epsilon": LOCAL_EPSILON,
        "clip_linf": CLIP,
        "delta": DELTA,
        "parameters": parameters,
        "mechanism": "linf-coordinate",
        "neighbouring_relation": "replace-one",
        "learning_rates": [FIRST_RATE, SECOND_RATE],
    }
    result = {
        "settings": settings,
        "training_seconds": round(seconds),
        "beside_the_paper": [beside(point, curve) for point in PUBLISHED_POINTS],
        "curve": curve,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
    draw(path.with_suffix(".png"), curve)


def beside(point: tuple[float, float, float], curve: list[dict[str, float]]) -> dict[str, float]:
    """This run at the last epoch whose published ε is within the paper's, beside what the paper reports."""
    epsilon, accuracy_there, deviation = point
    within = [entry for entry in curve if entry["epsilon_published"] <= epsilon]
    ours = within[-1] if within else {}
    return {
        "paper_epsilon": epsilon,
        "paper_accuracy": accuracy_there,
        "paper_deviation": deviation,
        **{f"this_run_{name}": value for name, value in ours.items()},
    }


def draw(path: Path, curve: list[dict[str, float]]) -> None:
    """Accuracy against ε by the published bound and by the pair, with the paper's two points."""
    accuracies = [point["accuracy"] for point in curve]
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    published = [point["epsilon_published"] for point in curve]
    lower, upper = ([point[f"epsilon_{side}"] for point in curve] for side in ("lower", "upper"))
    axes.plot(upper, accuracies, color="tab:orange", label="this run, certified ε")
    axes.fill_betweenx(accuracies, lower, upper, color="tab:orange", alpha=0.3, linewidth=0)
    axes.plot(published, accuracies, color="tab:blue", label="this run, ε by the published bound")
    for epsilon, value, deviation in PUBLISHED_POINTS:
        axes.errorbar(epsilon, value, deviation, fmt="k.", capsize=3)
    axes.errorbar([], [], [], fmt="k.", capsize=3, label="paper, 10 runs")
    axes.set(xlabel=f"ε at δ = {DELTA:g} (replace-one)", ylabel="test accuracy", xlim=(0, None), ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
