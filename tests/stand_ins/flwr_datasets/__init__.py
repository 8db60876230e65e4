"""In place of Flower Datasets, for apps of others: it replaces a download from a hub, and nothing else.

Pictures are those of the ``torchvision`` that stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torchvision.datasets import colours

from flwr_datasets.partitioner import IidPartitioner

Columns = dict[str, Any]


class _Rows:
    """As much of a ``datasets.Dataset`` as the app uses."""

    def __init__(self, columns: Columns, transform: Callable[[Columns], Columns] | None = None) -> None:
        self._columns, self._transform = columns, transform

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, place: int) -> Any:
        batch = {name: [column[place]] for name, column in self._columns.items()}
        if self._transform:
            batch = self._transform(batch)
        return {name: column[0] for name, column in batch.items()}

    def with_transform(self, transform: Callable[[Columns], Columns]) -> _Rows:
        return _Rows(self._columns, transform)

    def _taken(self, places: np.ndarray) -> _Rows:
        return _Rows({name: column[places] for name, column in self._columns.items()}, self._transform)

    def train_test_split(self, *, test_size: float, seed: int) -> _Split:
        order = np.random.default_rng(seed).permutation(len(self))
        tests = round(test_size * len(self))
        return _Split(train=self._taken(order[tests:]), test=self._taken(order[:tests]))


class _Split(dict[str, _Rows]):
    def with_transform(self, transform: Callable[[Columns], Columns]) -> _Split:
        return _Split({name: rows.with_transform(transform) for name, rows in self.items()})


class FederatedDataset:
    """5,000 pictures in the place of "uoft-cs/cifar10", divided among clients."""

    def __init__(self, *, dataset: str, partitioners: Mapping[str, IidPartitioner]) -> None:
        assert dataset == "uoft-cs/cifar10"
        images, labels = colours(5000, seed=1)
        self._rows, self._partitioner = _Rows({"img": images, "label": labels}), partitioners["train"]

    def load_partition(self, partition_id: int) -> _Rows:
        """The rows of one client."""
        places = np.arange(partition_id, len(self._rows), self._partitioner.num_partitions)
        return self._rows._taken(places)
