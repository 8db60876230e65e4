"""What tuning reaches on MNIST at a certified ε, and what any run reaches at a signal-to-noise ratio.

A linear model on the wavelet features of examples/fixed_features.py, n = 60,000. Cohorts are drawn and
gradients clipped as in a real run; in place of the randomizer, the mean of a cohort gets Gaussian noise of
the same variance: of PrivUnit's reports (`privunit`), or of the least Gaussian noise at that ε (`vector-sum`,
whose own noise is 1 % more in deviation). So a setting takes seconds. Accuracy is that of the last model on
the test set, and settings are chosen by it: what comes out best is an optimistic mark to hold a real run to.

    python benchmarks/mnist_tuning.py --data-dir DIR
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from fixed_features import FEATURES, wavelet_features
from mnist_idx import load_mnist
from mnist_vector_sum import gaussian_multiplier

from shuffle_plugins.accounting import calibrate_local_epsilon
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning import report_error

CLASSES, POPULATION, DELTA = 10, 60_000, 1e-5
DIM = FEATURES * CLASSES
CLIPPING, MOMENTUM = 0.1, 0.9  # the first only scales the learning rate, as nearly every gradient is longer
COHORTS_AND_ROUNDS = ((2_000, 200), (6_000, 60), (6_000, 200), (6_000, 400), (20_000, 60))
LEARNING_RATES = {"privunit": (10.0, 30.0, 60.0), "vector-sum": (100.0, 200.0)}
RATIOS, RATIO_ROUNDS, RATIO_COHORT = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (10, 50, 200), 2_000
RATIO_LEARNING_RATES = (1.0, 3.0, 10.0, 30.0, 90.0)


def deviation(route: str, *, epsilon: float, cohort: int, rounds: int) -> float:
    """Of the noise in one coordinate of a cohort's mean, over the clipping norm."""
    if route == "vector-sum":
        setting = argparse.Namespace(cohort=cohort, rounds=rounds, delta=DELTA, epsilon=epsilon)
        return gaussian_multiplier(range(POPULATION), setting) / cohort
    local_epsilon = calibrate_local_epsilon(
        target_epsilon=epsilon,
        delta=DELTA,
        population=POPULATION,
        cohort=cohort,
        num_steps=rounds,
        mechanism=route,
        blanket_factory=lambda level: registry.blanket(route, local_epsilon=level, dim=DIM),
        channel_fixed=True,
    )
    error = report_error(route, local_epsilon=local_epsilon, dim=DIM, radius=1.0, norm="l2")
    return math.sqrt(error.variance / cohort / DIM)


def accuracy(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    cohort: int,
    rounds: int,
    learning_rate: float,
    noise: float,
    seed: int,
) -> float:
    """Of the last model, on the test set."""
    coins = torch.Generator().manual_seed(seed)
    x, labels = train
    norms, targets = x.norm(dim=1), functional.one_hot(labels, CLASSES).float()
    weights = torch.zeros(FEATURES, CLASSES)
    velocity = torch.zeros_like(weights)
    for _ in range(rounds):
        drawn = torch.randperm(len(x), generator=coins)[:cohort]
        rows = x[drawn]
        errors = torch.softmax(rows @ weights, dim=1) - targets[drawn]
        # A sample's gradient is the outer product of features and error, so its norm is that of the norms.
        lengths = errors.norm(dim=1) * norms[drawn]
        mean = rows.T @ (errors * (CLIPPING / lengths.clamp(min=CLIPPING))[:, None]) / cohort
        velocity = MOMENTUM * velocity + mean
        velocity += noise * CLIPPING * torch.randn(weights.shape, generator=coins)
        weights = weights - learning_rate * velocity
    return float(((test[0] @ weights).argmax(dim=1) == test[1]).float().mean())


def by_ratio(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Iterator[dict[str, float]]:
    """Best accuracy over learning rates for a signal-to-noise ratio of the whole run."""
    for rounds in RATIO_ROUNDS:
        for ratio in RATIOS:
            found = [
                accuracy(
                    train,
                    test,
                    cohort=RATIO_COHORT,
                    rounds=rounds,
                    learning_rate=learning_rate,
                    noise=math.sqrt(rounds / DIM) / ratio,
                    seed=0,
                )
                for learning_rate in RATIO_LEARNING_RATES
            ]
            best = max(range(len(found)), key=found.__getitem__)
            yield {
                "rounds": rounds,
                "ratio_over_the_run": ratio,
                "best_learning_rate": RATIO_LEARNING_RATES[best],
                "accuracy": round(found[best], 4),
            }


def by_setting(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], *, epsilon: float
) -> Iterator[dict[str, object]]:
    """Every route, k, number of rounds and learning rate at one certified ε."""
    for route, learning_rates in LEARNING_RATES.items():
        for cohort, rounds in COHORTS_AND_ROUNDS:
            noise = deviation(route, epsilon=epsilon, cohort=cohort, rounds=rounds)
            for learning_rate in learning_rates:
                value = accuracy(
                    train,
                    test,
                    cohort=cohort,
                    rounds=rounds,
                    learning_rate=learning_rate,
                    noise=noise,
                    seed=0,
                )
                yield {
                    "epsilon": epsilon,
                    "route": route,
                    "cohort": cohort,
                    "rounds": rounds,
                    "learning_rate": learning_rate,
                    "signal_to_noise_ratio": round(1 / (noise * math.sqrt(DIM)), 3),
                    "accuracy": round(value, 4),
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="MNIST in IDX files")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2.93])
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).parent / "results" / "mnist_tuning.json"
    )
    options = parser.parse_args()
    (images, labels), (test_images, test_labels) = load_mnist(options.data_dir)
    train, test = (wavelet_features(images), labels), (wavelet_features(test_images), test_labels)
    settings = {"delta": DELTA, "clipping": CLIPPING, "momentum": MOMENTUM, "parameters": DIM}
    told: dict[str, list[dict[str, Any]]] = {"runs": [], "by_ratio": []}

    def keep(name: str, found: Iterator[dict[str, Any]]) -> None:
        for each in found:
            print(*each.values(), flush=True)
            told[name].append(each)
            options.results.write_text(json.dumps({"settings": settings, **told}, indent=1) + "\n")

    for epsilon in options.epsilon:
        keep("runs", by_setting(train, test, epsilon=epsilon))
    keep("by_ratio", by_ratio(train, test))


if __name__ == "__main__":
    main()
