"""How far the noise of a run should move a model: the rule behind ``planning.training_recipe``.

From the signal-to-noise ratio of a step's mean gradient, and from the standard deviation that the noise of
all steps together gives each weight, the learning rate follows. This measures the accuracy at each
deviation: of a linear classifier on fixed features, and of the network of Opacus's MNIST example. Gradients
are clipped as in a real run; the noise is Gaussian. The best deviation is chosen on MNIST; the other data
set shows how it does there.

    python benchmarks/learning_rate.py --data-dir DIR     # ten minutes; goes on after the last finished run

DIR has the folders ``mnist`` and ``fashion-mnist`` with IDX files.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from mnist_idx import load_mnist, opacus_network

from shuffle_plugins.features import Scattering, place_normalized

CLIPPING, MOMENTUM = 0.1, 0.9
LINEAR = [
    {"data": data, "model": "linear", "ratio": ratio, "steps": steps, "cohort": 2000, "deviation": deviation}
    for data, ratio, steps in (
        *(("mnist", ratio, 200) for ratio in (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)),
        *(("mnist", 4.0, steps) for steps in (50, 600)),
        *(("fashion-mnist", ratio, 200) for ratio in (2.0, 16.0)),
    )
    for deviation in (0.5, 1.0, 2.0, 4.0, 8.0)
]
NETWORK = [
    {
        "data": "mnist",
        "model": "network",
        "ratio": ratio,
        "steps": 100,
        "cohort": 1000,
        "deviation": deviation,
    }
    for ratio in (1.25, 5.6)
    for deviation in (0.03, 0.1, 0.3)
]


@cache
def images_of(folder: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images as the network takes them, and labels."""
    train, test = load_mnist(folder)
    return ((train[0] - 0.1307) / 0.3081, train[1]), ((test[0] - 0.1307) / 0.3081, test[1])


@cache
def rows_of(folder: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Fixed features, rows of length one, and labels."""
    scattering = Scattering(height=28, width=28, order=1)
    parts = [
        (place_normalized(scattering(images[:, 0]), orders=scattering.orders), labels)
        for images, labels in load_mnist(folder)
    ]
    return parts[0], parts[1]


def rate(asked: dict, *, dim: int) -> tuple[float, float]:
    """Learning rate, and deviation of the noise in each coordinate of a step's mean."""
    noise = CLIPPING / asked["ratio"] / math.sqrt(dim)
    return asked["deviation"] * (1 - MOMENTUM) / (noise * math.sqrt(asked["steps"])), noise


def linear(folder: Path, asked: dict) -> tuple[float, float]:
    """Learning rate and test accuracy."""
    (rows, labels), (test_rows, test_labels) = rows_of(folder)
    targets = functional.one_hot(labels).float()
    weights = torch.zeros(targets.shape[1], rows.shape[1])
    velocity = torch.zeros_like(weights)
    learning_rate, noise = rate(asked, dim=weights.numel())
    coins = torch.Generator().manual_seed(0)
    for _ in range(asked["steps"]):
        drawn = torch.randperm(len(rows), generator=coins)[: asked["cohort"]]
        errors = torch.softmax(rows[drawn] @ weights.T, dim=1) - targets[drawn]
        # A gradient is the outer product of errors and features, so its length is the product of theirs.
        lengths = errors.norm(dim=1) * rows[drawn].norm(dim=1)
        mean = (errors * (CLIPPING / lengths.clamp(min=CLIPPING))[:, None]).T @ rows[drawn] / asked["cohort"]
        velocity = MOMENTUM * velocity + mean + noise * torch.randn(weights.shape, generator=coins)
        weights = weights - learning_rate * velocity
    return learning_rate, share_right(test_rows @ weights.T, test_labels)


def network(folder: Path, asked: dict) -> tuple[float, float]:
    """Learning rate and test accuracy."""
    (images, labels), (test_images, test_labels) = images_of(folder)
    torch.manual_seed(0)
    model = opacus_network()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in weights.items()}
    learning_rate, noise = rate(asked, dim=sum(p.numel() for p in weights.values()))

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, weights, (image[None],)), label[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    for _ in range(asked["steps"]):
        drawn = torch.randperm(len(images))[: asked["cohort"]]
        mean = {name: noise * torch.randn_like(p) for name, p in weights.items()}
        for part in drawn.split(250):
            each = gradients(weights, images[part], labels[part])
            lengths = sum(g.flatten(1).square().sum(dim=1) for g in each.values()).sqrt()
            factors = CLIPPING / lengths.clamp(min=CLIPPING) / asked["cohort"]
            for name, g in each.items():
                mean[name] += torch.tensordot(factors, g, dims=1)
        for name in weights:
            velocity[name] = MOMENTUM * velocity[name] + mean[name]
            weights[name] = weights[name] - learning_rate * velocity[name]
    with torch.no_grad():
        return learning_rate, share_right(functional_call(model, weights, (test_images,)), test_labels)


def share_right(outputs: Tensor, labels: Tensor) -> float:
    """Share of the test images that the trained model classifies correctly."""
    return float((outputs.argmax(dim=1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).parent / "results" / "learning_rate.json"
    )
    options = parser.parse_args()
    told = json.loads(options.results.read_text()) if options.results.exists() else []
    for asked in (*LINEAR, *NETWORK):
        if any(asked.items() <= each.items() for each in told):
            continue
        measure = linear if asked["model"] == "linear" else network
        learning_rate, accuracy = measure(options.data_dir / asked["data"], asked)
        told.append({**asked, "learning_rate": float(f"{learning_rate:.3g}"), "accuracy": round(accuracy, 4)})
        unfinished = options.results.with_suffix(".part")
        unfinished.write_text("[\n" + ",\n".join(json.dumps(each) for each in told) + "\n]\n")
        unfinished.replace(options.results)
        print(*told[-1].values(), flush=True)


if __name__ == "__main__":
    main()
