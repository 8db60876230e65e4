"""The task, as without any privacy: data, model, training and testing; and who is who in a simulation."""

from __future__ import annotations

import gzip
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from flwr_shuffle import SimulatedNodes
from sklearn.datasets import load_digits
from torch import Tensor, nn

Examples = tuple[Tensor, Tensor]

_DIGITS_FOR_TRAINING = 1500


def network(images: Tensor) -> nn.Module:
    """A linear classifier for images (n, pixels): 650 parameters for the digits, 7,850 for MNIST."""
    return nn.Linear(images.shape[1], 10)


def client_examples(data_dir: str, *, partition: int, partitions: int) -> Examples:
    """The examples of one client: an equal share of the training images."""
    images, labels = _splits(data_dir)[0]
    return images[partition::partitions], labels[partition::partitions]


def test_examples(data_dir: str) -> Examples:
    """The images that no client has."""
    return _splits(data_dir)[1]


def train(model: nn.Module, examples: Examples, *, steps: int, learning_rate: float) -> None:
    """A few steps of gradient descent on all of a client's examples."""
    images, labels = examples
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def accuracy(model: nn.Module, examples: Examples) -> float:
    """Share of images that the model names rightly."""
    images, labels = examples
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


def simulated_nodes(context: Context) -> SimulatedNodes:
    """Which of a simulation's nodes are aggregators or mix nodes, as the run-config says; by default none."""
    return SimulatedNodes(
        context,
        aggregators=int(context.run_config["simulated-aggregators"]),
        mixers=int(context.run_config["simulated-mixers"]),
    )


@lru_cache(maxsize=1)
def _splits(data_dir: str) -> tuple[Examples, Examples]:
    return _mnist(Path(data_dir).expanduser()) if data_dir else _digits()


def _digits() -> tuple[Examples, Examples]:
    values, names = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(names))  # the same for all clients
    images = torch.from_numpy(values[order]).float().div(16)
    labels = torch.from_numpy(names[order]).long()
    train, test = slice(None, _DIGITS_FOR_TRAINING), slice(_DIGITS_FOR_TRAINING, None)
    return (images[train], labels[train]), (images[test], labels[test])


def _mnist(folder: Path) -> tuple[Examples, Examples]:
    train, test = (
        (
            torch.from_numpy(_idx(folder, f"{name}-images-idx3-ubyte")).flatten(1).float().div(255),
            torch.from_numpy(_idx(folder, f"{name}-labels-idx1-ubyte")).long(),
        )
        for name in ("train", "t10k")
    )
    return train, test


def _idx(folder: Path, name: str) -> np.ndarray:
    """Read an IDX file of unsigned bytes, plain or gzipped, from a folder or from MNIST/raw below it."""
    for place in (folder, folder / "MNIST" / "raw"):
        for path, opener in ((place / name, open), (place / f"{name}.gz", gzip.open)):
            if path.is_file():
                with opener(path, "rb") as file:
                    data = file.read()
                shape = np.frombuffer(data, ">i4", count=data[3], offset=4)
                return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy()
    raise FileNotFoundError(f"no {name} or {name}.gz in {folder}, nor in MNIST/raw below it")
