"""What scripts turn a picture into numbers with: the four of torchvision's transforms that they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Compose:
    """One transform after another."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    """Bytes of (height, width) or (height, width, channels) as numbers from 0 to 1, channels first."""

    def __call__(self, picture: np.ndarray) -> Tensor:
        return torch.from_numpy(np.atleast_3d(picture)).permute(2, 0, 1).float() / 255


class Normalize:
    """Numbers less a mean, over a deviation, by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(each).view(-1, 1, 1) for each in (mean, std))

    def __call__(self, picture: Tensor) -> Tensor:
        return (picture - self.mean) / self.std


def _not_here(*_: Any, **__: Any) -> Callable[[Any], Any]:
    def refuse(picture: Any) -> Any:
        raise NotImplementedError("the stand-in augments no pictures")

    return refuse


RandomCrop = RandomHorizontalFlip = _not_here
