"""In place of Flower Datasets, for apps of others: it replaces a download from a hub, and nothing else.

Pictures are those of the ``torchvision`` that stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torchvision.datasets import colours, digits

from flwr_datasets.partitioner import IidPartitioner

Columns = dict[str, Any]


class _Rows:
    """As much of a ``datasets.Dataset`` as the apps use: columns by name, rows by number."""

    def __init__(self, columns: Columns, transform: Callable[[Columns], Columns] | None = None) -> None:
        self._columns, self._transform = columns, transform

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        batch = {name: [column[key]] for name, column in self._columns.items()}
        if self._transform:
            batch = self._transform(batch)
        return {name: column[0] for name, column in batch.items()}

    def with_format(self, kind: str) -> _Rows:
        assert kind == "numpy"
        return self

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
    """Pictures in the place of "uoft-cs/cifar10" or "ylecun/mnist", divided among clients."""

    def __init__(self, *, dataset: str, partitioners: Mapping[str, IidPartitioner]) -> None:
        if dataset == "uoft-cs/cifar10":
            images, labels = colours(1200, seed=1)
            columns = {"img": images, "label": labels}
        elif dataset == "ylecun/mnist":
            images, labels = digits()
            columns = {"image": images, "label": labels}
        else:
            raise ValueError(f"the stand-in has nothing in place of {dataset}")
        self._rows, self._partitioner = _Rows(columns), partitioners["train"]

    def load_partition(self, partition_id: int, split: str = "train") -> _Rows:
        """The rows of one client."""
        assert split == "train"
        places = np.arange(partition_id, len(self._rows), self._partitioner.num_partitions)
        return self._rows._taken(places)
