"""MNIST from IDX files, and two networks for it: of the paper's experiment, and of Opacus's example."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def load_mnist(directory: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Read ((train images, labels), (test images, labels)).

    Args:
        directory: holds the four IDX files, plain or gzipped; the directory that torchvision writes (with
            ``MNIST/raw`` inside) will do too.

    Returns:
        Images (n, 1, 28, 28) float32 in [0, 1] and labels (n,) int64, for both splits.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is not what its name says.
    """
    splits = []
    for images_name, labels_name in _FILES.values():
        images = _read_idx(_find(directory, images_name), dimensions=3)
        labels = _read_idx(_find(directory, labels_name), dimensions=1)
        if images.shape[0] != labels.shape[0] or images.shape[1:] != (28, 28):
            raise ValueError(f"{directory}: images {images.shape} and labels {labels.shape} are not MNIST")
        splits.append(
            (torch.from_numpy(images).float().div_(255).unsqueeze(1), torch.from_numpy(labels).long())
        )
    return splits[0], splits[1]


def _find(directory: Path, name: str) -> Path:
    for folder in (directory, directory / "MNIST" / "raw", directory / "raw"):
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    raise FileNotFoundError(f"no {name} or {name}.gz in {directory}, nor in MNIST/raw below it")


def _read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        data = file.read()
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes((0, 0, 8, dimensions)):
        raise ValueError(f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions")
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
    if len(data) != header + int(np.prod(shape)):
        raise ValueError(f"{path} is cut short or too long for its shape {shape}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy()


def paper_network() -> nn.Sequential:
    """The convolutional network of the paper's MNIST experiment, 13,706 parameters.

    Table 1 of the paper leaves padding, pooling stride and activation open and counts 13,170 parameters. The
    authors' public script settles them: pooling moves by one pixel, both convolutions have 16 filters,
    activations are tanh, weights start from Glorot's uniform law. That network has 13,706 parameters.
    """
    network = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 16, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)
    return network


def opacus_network() -> nn.Sequential:
    """The convolutional network of Opacus's examples/mnist.py (Apache-2.0), 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
