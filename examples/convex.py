"""Private logistic regression and a private SVM on handwritten digits, by every optimiser of the package.

Each of the 1,437 training images of scikit-learn's digits is one client; the task is even or odd. A row of
the table is one optimiser in one privacy model at one ε: the plan is printed before it runs, the certified ε
after it. Takes some minutes.

    python examples/convex.py                    # writes examples/results/convex.{json,png}
    python examples/convex.py --epsilon 1        # one ε only
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from tqdm import tqdm

from shuffle_plugins.optim import (
    AGD,
    GD,
    SGD,
    CohortSGD,
    GradientModel,
    Local,
    OneMessage,
    OptimizationMethod,
    PanPrivate,
    PermutationSGD,
    Phased,
    Problem,
    SelfSampledSGD,
    Smoothed,
    Unprotected,
    VectorSums,
    logistic_regression,
    support_vector_machine,
)
from shuffle_plugins.randomness import SeededRandomness

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DELTA, RADIUS, REGULARISATION = 1e-5, 6.0, 0.02


@dataclass(frozen=True)
class Run:
    """One line of a plot."""

    name: str
    method: OptimizationMethod
    model: GradientModel
    convexity: float = 0.0


LOGISTIC = (
    Run("P_SGD", SGD(), VectorSums()),
    Run("P_AGD", AGD(), VectorSums()),
    Run("P_AGD, phased", Phased(inner=AGD()), VectorSums(), REGULARISATION),
    Run("P_GD", GD(), VectorSums()),
    Run("P_GD, phased", Phased(inner=GD()), VectorSums(), REGULARISATION),
    Run("pan-private AC-SA", AGD(), PanPrivate()),
    Run("CLDP-SGD", CohortSGD(num_steps=128), OneMessage()),
    Run("DSS-SGD", SelfSampledSGD(num_steps=128), OneMessage()),
    Run("SGD by reports, one epoch", SGD(), OneMessage()),
    Run("permuted SGD", PermutationSGD(), OneMessage()),
    Run("permuted noisy SGD", PermutationSGD(), OneMessage(mechanism="gaussian")),
    Run("local SGD", SGD(), Local()),
)
HINGE = (
    Run("P_SGD", SGD(), VectorSums()),
    Run("P_AGD, smoothed", Smoothed(inner=AGD()), VectorSums()),
    Run("P_AGD, smoothed, phased", Phased(inner=Smoothed(inner=AGD())), VectorSums(), REGULARISATION),
    Run("P_GD, smoothed", Smoothed(inner=GD()), VectorSums()),
    Run("CLDP-SGD", CohortSGD(num_steps=128), OneMessage()),
    Run("local SGD", SGD(), Local()),
)


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Train and test sets: pixels about their mid-grey, rows of norm at most 1, labels −1 and 1."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.from_numpy(images[order]) / 16 - 0.25
    x = torch.cat([x, torch.full((len(x), 1), 0.5, dtype=x.dtype)], dim=1)
    x = x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=1)
    y = torch.from_numpy(1.0 - 2 * (labels[order] % 2))
    cut = len(y) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def accuracy(parameters: Tensor, examples: tuple[Tensor, Tensor]) -> float:
    x, y = examples
    return float(((x @ parameters) * y > 0).double().mean())


def measured(
    run: Run,
    problem: Problem,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    epsilon: float,
    repeats: int,
) -> dict[str, object]:
    """Plan once, run a few times: loss on the training set, accuracy on the test set, certified ε."""
    asked = problem.regularised(run.convexity) if run.convexity else problem
    plan = run.method.plan(asked, population=len(train[1]), epsilon=epsilon, delta=DELTA, model=run.model)
    tqdm.write(plan.summary())
    results = [plan.run(train, randomness=SeededRandomness(seed)) for seed in range(repeats)]
    certified = None
    if plan.private:
        interval = results[0].epsilon(DELTA)
        tqdm.write(f"  certified: {interval}")
        certified = [interval.lower, interval.upper]
    losses = [problem.mean_loss(r.parameters, train) for r in results]
    scores = [accuracy(r.parameters, test) for r in results]
    return {
        "name": run.name,
        "epsilon": epsilon,
        "certified": certified,
        "loss": float(np.mean(losses)),
        "accuracy": float(np.mean(scores)),
        "accuracy_error": float(np.std(scores) / math.sqrt(repeats)),
        "steps": results[0].steps,
        "bound": plan.bound,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "convex.json")
    options = parser.parse_args()
    train, test = digits()
    features = train[0].shape[1]
    tasks = {
        "logistic regression": (logistic_regression(features=features, radius=RADIUS), LOGISTIC),
        "SVM": (support_vector_machine(features=features, radius=RADIUS), HINGE),
    }
    reference = LogisticRegression(C=100.0, fit_intercept=False, max_iter=5000)
    central = reference.fit(train[0].numpy(), train[1].numpy()).score(test[0].numpy(), test[1].numpy())
    found: dict[str, list[dict[str, object]]] = {}
    for title, (problem, runs) in tasks.items():
        exact = Run("not private", GD(num_steps=3000, step_size=2.0), Unprotected())
        rows = [measured(exact, problem, train, test, epsilon=1.0, repeats=1)]
        for run in tqdm(runs, desc=title):
            for epsilon in options.epsilon:
                try:
                    rows.append(measured(run, problem, train, test, epsilon=epsilon, repeats=options.repeats))
                except ValueError as error:
                    tqdm.write(f"{run.name} at ε = {epsilon:g}: {error}")
        found[title] = rows
    print("| problem | optimiser | ε asked | certified ε | steps | training loss | test accuracy |")
    print("|---|---|---|---|---|---|---|")
    for title, rows in found.items():
        for row in rows:
            known = "none" if row["certified"] is None else "–".join(f"{e:.3f}" for e in row["certified"])
            print(
                f"| {title} | {row['name']} | {row['epsilon']:g} | {known} | {row['steps']} | "
                f"{row['loss']:.3f} | {100 * row['accuracy']:.1f} % |"
            )
    options.results.parent.mkdir(parents=True, exist_ok=True)
    written = {"delta": DELTA, "sklearn_accuracy": central, "results": found}
    options.results.write_text(json.dumps(written, indent=1) + "\n")
    draw(found, options.results.with_suffix(".png"))


def draw(found: dict[str, list[dict[str, object]]], path: Path) -> None:
    figure, axes = plt.subplots(len(found), figsize=(4.5, 6.4 * len(found)), layout="constrained")
    for axis, (title, rows) in zip(axes, found.items(), strict=True):
        axis.set_prop_cycle(color=plt.get_cmap("tab20").colors)
        axis.axhline(rows[0]["accuracy"], color="black", linestyle=":", label="not private")
        for name in dict.fromkeys(row["name"] for row in rows[1:]):
            line = [row for row in rows if row["name"] == name]
            axis.errorbar(
                [row["epsilon"] for row in line],
                [row["accuracy"] for row in line],
                yerr=[row["accuracy_error"] for row in line],
                fmt="o-",
                markersize=4,
                label=name,
            )
        axis.set(
            title=f"{title},\ndigits even or odd, n = 1,437", xlabel=f"ε at δ = {DELTA:g}", xscale="log",
            ylabel="test accuracy",
        )  # fmt: skip
        levels = sorted({row["epsilon"] for row in rows[1:]})
        axis.set_xticks(levels, [f"{level:g}" for level in levels])
        axis.minorticks_off()
        axis.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
