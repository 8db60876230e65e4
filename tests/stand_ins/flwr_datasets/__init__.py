"""In place of Flower's datasets, for apps of others: it replaces a download, and nothing else.

Flowers are made up: 150 of them, with lengths as irises have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOWERS = 150
COLUMNS = {"SepalLengthCm": (5.84, 0.83), "SepalWidthCm": (3.06, 0.44), "PetalLengthCm": (3.76, 1.77)}


class Frame(dict[str, NDArray[np.float64]]):
    """As much of a pandas data frame as the app needs."""

    @property
    def columns(self) -> list[str]:
        return list(self)

    def __len__(self) -> int:
        return len(next(iter(self.values())))

    def __getitem__(self, asked: Any) -> Any:
        return (
            Frame({name: self[name] for name in asked})
            if isinstance(asked, list)
            else super().__getitem__(asked)
        )


def flowers() -> Frame:
    """All rows of the data set, as pandas has them."""
    drawn = np.random.default_rng(150)
    return Frame({name: drawn.normal(*law, FLOWERS).round(1).clip(2, 10) for name, law in COLUMNS.items()})


class _Partition:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def with_format(self, kind: str) -> _Partition:
        assert kind == "pandas"
        return self

    def __getitem__(self, rows: slice) -> Frame:
        return Frame({name: column[rows] for name, column in self._frame.items()})


class FederatedDataset:
    def __init__(self, *, dataset: str, partitioners: dict[str, Any]) -> None:
        assert dataset == "scikit-learn/iris"
        self._partitions = partitioners["train"].num_partitions

    def load_partition(self, partition_id: int, split: str) -> _Partition:
        assert split == "train"
        return _Partition(Frame({n: c[partition_id :: self._partitions] for n, c in flowers().items()}))
