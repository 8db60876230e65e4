"""Pictures by the names of torchvision's, whatever their folder is: there is nothing to download."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from torch.utils.data import Dataset


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The 1,797 digits of scikit-learn as bytes of 28 by 28 pixels, in a random order, and what they are."""
    found = load_digits()
    small = (found.images * 15.9).astype(np.uint8)
    large = np.pad(small.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    order = np.random.default_rng(0).permutation(len(large))
    return large[order], found.target[order]


def colours(count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pictures of 32 by 32 pixels in ten colours, the colour being the class."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(10, size=count)
    colour = np.random.default_rng(0).integers(40, 215, size=(10, 1, 1, 3))
    noise = draw.integers(-40, 40, size=(count, 32, 32, 3))
    return (colour[labels] + noise).astype(np.uint8), labels


class _Pictures(Dataset):
    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Callable[[np.ndarray], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        download: bool = False,
    ) -> None:
        self.transform, self.target_transform = transform, target_transform
        self.data, self.targets = self._load(train=train)

    def _load(self, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        picture, label = self.data[index], int(self.targets[index])
        return (
            self.transform(picture) if self.transform else picture,
            self.target_transform(label) if self.target_transform else label,
        )


class MNIST(_Pictures):
    """1,500 of scikit-learn's digits to train on, 297 to test on."""

    def _load(self, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
        images, labels = digits()
        part = slice(None, 1500) if train else slice(1500, None)
        return images[part], labels[part]


class CIFAR10(_Pictures):
    """800 drawn pictures to train on, 200 to test on."""

    def _load(self, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
        return colours(800, seed=1) if train else colours(200, seed=2)
