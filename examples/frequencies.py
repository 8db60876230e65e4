"""Who writes which digit, and how heavily: a private histogram without a trusted server.

Every writer holds one handwritten digit, of the 1,797 that come with scikit-learn or of MNIST's 60,000, and a
category: the digit, and which of eight classes its amount of ink falls into. The histogram of the 80
categories is estimated by one shuffled report per client, by everybody's coins, and, for comparison, by
reports that nobody shuffles and by a trusted server's Gaussian noise, all at the same (ε, δ), replace-one.

    python examples/frequencies.py
    python examples/frequencies.py --data-dir DIR        # MNIST's idx files
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import torch
from mnist_idx import load_mnist
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor

from shuffle_plugins.accounting import NEIGHBOURING_RELATION, ShuffleAccountant
from shuffle_plugins.protocols import FrequencyEstimation, Histogram, HistogramSum, Intervals
from shuffle_plugins.protocols.published import central_gaussian

matplotlib.use("Agg")
from matplotlib import pyplot as plt

INK_CLASSES = 8
CATEGORIES = 10 * INK_CLASSES
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to get the histogram.

    Attributes:
        name: what to call it.
        trusted: who is trusted with what.
        spent: certified ε.
        messages, bits: of one client; None for a trusted server.
        predicted: √E‖f̂ − f‖².
        histogram: the estimate.
        intervals: for single categories; None for a trusted server.
    """

    name: str
    trusted: str
    spent: float
    messages: int | None
    bits: int | None
    predicted: float
    histogram: Histogram
    intervals: Intervals | None


def categories(data_dir: Path | None) -> tuple[str, Tensor]:
    """Name of the data and each client's category: digit · 8 + class of ink.

    Classes are public: eight equal parts of the usual amounts of ink, the outer ones with what lies beyond.
    """
    if data_dir is None:
        images, labels = load_digits(return_X_y=True)
        ink, digits = torch.from_numpy(images).mean(dim=1) / 16, torch.from_numpy(labels)
        name, light, heavy = "digits", 0.22, 0.38
    else:
        (images, digits), _ = load_mnist(data_dir)
        ink, name, light, heavy = images.flatten(1).mean(dim=1), "mnist", 0.05, 0.21
    classes = ((ink - light) / (heavy - light) * INK_CLASSES).floor().clamp(0, INK_CLASSES - 1)
    return name, digits.to(torch.int64) * INK_CLASSES + classes.to(torch.int64)


def rows(held: Tensor, *, epsilon: float, delta: float) -> list[Row]:
    size = {"categories": CATEGORIES, "cohort": len(held)}
    shuffled = FrequencyEstimation.calibrated(**size, epsilon=epsilon, delta=delta)
    one = ShuffleAccountant()
    one.step(shuffled.round())
    seen = shuffled.estimate(shuffled.collect(held))

    coins = HistogramSum.calibrated(**size, epsilon=epsilon, delta=delta)
    many = ShuffleAccountant()
    many.step(coins.round())
    total = sum(coins.total(coins.randomize(part)) for part in held.split(1_000))
    counted = coins.estimate(total, reports=len(held))

    local = FrequencyEstimation(**size, local_epsilon=epsilon)
    unshuffled = local.estimate(local.randomize(held))

    error = central_gaussian(**size, epsilon=epsilon, delta=delta)
    counts = torch.bincount(held, minlength=CATEGORIES).double()
    noise = torch.randn(CATEGORIES, dtype=torch.float64) * math.sqrt(error / CATEGORIES) * len(held)
    return [
        Row(
            name=f"one report, not shuffled ({local.oracle})",
            trusted="nobody",
            spent=local.local_epsilon,
            messages=1,
            bits=local.bits_per_report,
            predicted=math.sqrt(local.squared_error),
            histogram=unshuffled,
            intervals=local.intervals(unshuffled),
        ),
        Row(
            name=f"one report, shuffled ({shuffled.oracle})",
            trusted=f"a shuffler (without: ε = {shuffled.local_epsilon:.2f})",
            spent=one.epsilon(delta, lower=False).upper,
            messages=1,
            bits=shuffled.bits_per_report,
            predicted=math.sqrt(shuffled.squared_error),
            histogram=seen,
            intervals=shuffled.intervals(seen),
        ),
        Row(
            name="everybody's coins",
            trusted="a shuffler",
            spent=many.epsilon(delta, lower=False).upper,
            messages=coins.messages_per_client,
            bits=coins.bits_per_report,
            predicted=math.sqrt(coins.squared_error),
            histogram=counted,
            intervals=coins.intervals(counted),
        ),
        Row(
            name="Gaussian noise",
            trusted="the server, with everything",
            spent=epsilon,
            messages=None,
            bits=None,
            predicted=math.sqrt(error),
            histogram=Histogram(counts=counts + noise, reports=len(held)),
            intervals=None,
        ),
    ]


def errors(row: Row, truth: Tensor) -> dict[str, float]:
    raw, nearest = row.histogram.frequencies - truth, row.histogram.distribution - truth
    return {"l2": float(raw.norm()), "projected_l2": float(nearest.norm()), "largest": float(raw.abs().max())}


def show(found: list[Row], truth: Tensor, *, title: str) -> None:
    table = Table(title=title)
    for column in (
        "protocol",
        "trusted",
        "ε",
        "messages",
        "bits",
        "ℓ2 predicted",
        "ℓ2",
        "projected",
        "largest",
    ):
        table.add_column(column)
    for row in found:
        measured = errors(row, truth)
        table.add_row(
            row.name,
            row.trusted,
            f"{row.spent:.3f}",
            f"{row.messages:,}" if row.messages is not None else "",
            f"{row.bits:,}" if row.bits is not None else "",
            f"{row.predicted:.4f}",
            *(f"{value:.4f}" for value in measured.values()),
        )
    Console(width=140).print(table)


def draw(found: list[Row], truth: Tensor, *, title: str, path: Path) -> None:
    drawn = [row for row in found if row.intervals is not None]
    figure, panels = plt.subplots(
        len(drawn), 1, figsize=(12, 2.6 * len(drawn)), sharex=True, sharey=True, layout="constrained"
    )
    places = torch.arange(CATEGORIES)
    top = 1.6 * float(truth.max())
    for panel, row in zip(panels, drawn, strict=True):
        panel.bar(places, truth, width=0.9, color="#c8c8c8", label="the truth")
        panel.vlines(
            places,
            row.intervals.lower,
            row.intervals.upper,
            color="#0072b2",
            alpha=0.5,
            label="95 % intervals",
        )
        panel.plot(places, row.histogram.distribution, ".", color="#d55e00", label="estimate, projected")
        panel.set_title(f"{row.name}: ℓ2 error {errors(row, truth)['projected_l2']:.4f}", fontsize="medium")
        panel.set_ylim(0, top)
        panel.set_ylabel("share")
    figure.legend(
        *panels[0].get_legend_handles_labels(), fontsize="small", loc="outside lower center", ncols=3
    )
    panels[-1].set_xticks(
        [digit * INK_CLASSES + (INK_CLASSES - 1) / 2 for digit in range(10)], [f"“{d}”" for d in range(10)]
    )
    panels[-1].set_xlabel("digit; within it, eight classes of ink from light to heavy")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, help="MNIST's idx files; else scikit-learn's digits")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--output-dir", type=Path, default=RESULTS)
    options = parser.parse_args()
    name, held = categories(options.data_dir)
    truth = torch.bincount(held, minlength=CATEGORIES).double() / len(held)
    found = rows(held, epsilon=options.epsilon, delta=options.delta)
    title = (
        f"{name}: {len(held):,} clients, {CATEGORIES} categories, "
        f"ε = {options.epsilon:g}, δ = {options.delta:g} ({NEIGHBOURING_RELATION})"
    )
    show(found, truth, title=title)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    path = options.output_dir / f"frequencies_{name}.json"
    results = {
        "clients": len(held),
        "categories": CATEGORIES,
        "epsilon": options.epsilon,
        "delta": options.delta,
        "rows": [
            {
                "protocol": row.name,
                "epsilon": row.spent,
                "messages": row.messages,
                "bits": row.bits,
                "predicted_l2": row.predicted,
            }
            | errors(row, truth)
            for row in found
        ],
    }
    path.write_text(json.dumps(results, indent=1) + "\n")
    draw(found, truth, title=title, path=path.with_suffix(".png"))


if __name__ == "__main__":
    main()
