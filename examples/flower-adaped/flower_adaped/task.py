"""The task, as without any privacy: data, networks, and the settings of AdaPeD."""

from __future__ import annotations

import gzip
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call

from shuffle_plugins.optim import AdaPeD, ClientModels
from shuffle_plugins.protocols import PoissonBinomialSum, VectorSum

Examples = tuple[Tensor, Tensor]

SUMS = {"poisson-binomial": PoissonBinomialSum, "vector-sum": VectorSum}

_DIGITS_FOR_TRAINING = 1500


def network(data_dir: str) -> nn.Module:
    """For MNIST two convolutional and three fully connected layers, 44,426 parameters; for digits 2,410."""
    if not data_dir:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def method(config: Mapping[str, Any]) -> AdaPeD:
    """AdaPeD with the run's settings."""
    return AdaPeD(
        predict=partial(functional_call, network(str(config["data-dir"]))),
        personal_rate=float(config["personal-rate"]),
        global_rate=float(config["global-rate"]),
        dissimilarity_rate=float(config["dissimilarity-rate"]),
        dissimilarity_scale=float(config["dissimilarity-scale"]),
    )


def initial(config: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the server sends first: a random global model, and ψ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = {n: v.detach() for n, v in network(str(config["data-dir"])).named_parameters()}
    psi = torch.tensor(float(config["dissimilarity"]))
    return method(config).arrays(ClientModels(personal_model=model, global_model=model, dissimilarity=psi))


def state_dict(arrays: Mapping[str, Tensor]) -> OrderedDict[str, Tensor]:
    """The arrays as Flower's ArrayRecord takes them."""
    return OrderedDict((name, value.detach()) for name, value in arrays.items())


def client_examples(
    data_dir: str, *, partition: int, partitions: int, classes: int
) -> tuple[Examples, Examples]:
    """A client's training images, of a few random classes, and the test images of these classes.

    A class's training images are shared out evenly among the clients that have the class.
    """
    (images, labels), (test_images, test_labels) = _splits(data_dir)
    generator = np.random.default_rng([7, partitions])  # the same for all clients
    drawn = np.stack([generator.permutation(10)[:classes] for _ in range(partitions)])
    mine = []
    for digit in drawn[partition].tolist():
        owners = np.flatnonzero((drawn == digit).any(axis=1)).tolist()
        places = (labels == digit).nonzero().flatten()
        mine.append(places[owners.index(partition) :: len(owners)])
    held = torch.cat(mine)
    tested = torch.isin(test_labels, torch.from_numpy(drawn[partition]))
    return (images[held], labels[held]), (test_images[tested], test_labels[tested])


def test_examples(data_dir: str) -> Examples:
    """The images that no client has."""
    return _splits(data_dir)[1]


def batches(examples: Examples, config: Mapping[str, Any]) -> Iterator[Examples]:
    """The batches of a round's local steps, each drawn at random from the client's images."""
    images, labels = examples
    for _ in range(int(config["local-steps"])):
        chosen = torch.randint(len(labels), (int(config["batch-size"]),))
        yield images[chosen], labels[chosen]


def accuracy(model: Mapping[str, Tensor], examples: Examples) -> float:
    """Share of images that the model, given by its parameters, names rightly."""
    images, labels = examples
    network_of = network("" if images.shape[1] == 64 else "mnist")
    with torch.no_grad():
        return float(
            (functional_call(network_of, dict(model), (images,)).argmax(dim=1) == labels).float().mean()
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
