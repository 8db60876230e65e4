"""Scattering coefficients as rows of length one, their channels made less correlated by public pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shuffle_plugins.core import checks
from shuffle_plugins.features.normalization import check_coefficients

_RIDGE = 1e-3  # added to each eigenvalue, over the average one, so that no channel is multiplied by thousands
_CONSTANT = 1e-6  # a channel whose deviation is less than this of its largest value varies by rounding only
_LARGEST_VALUE = 1e15  # coefficient: sums of squares of larger ones, or of less than 1/this, leave float32
_IMAGES_AT_ONCE = 1000
_DISCS = 60
_SMALLEST, _LARGEST = 0.04, 0.5  # radii of discs, over a picture's longer side
_BEYOND = 0.2  # how far outside the picture a disc's middle may be, over that side


@dataclass(frozen=True, kw_only=True, eq=False)
class ChannelWhitening:
    r"""Makes coefficients rows of length 1, with channels that are less correlated and more equally strong.

    The noise of private training is as large in a direction in which all records are alike as in one that
    tells them apart. So a channel's mean over public pictures is subtracted, and the channels are multiplied
    by a matrix. With D the channels' standard deviations, and Σ the covariance of channels, each divided by
    its deviation, of public pictures that are scaled to length 1, over its average eigenvalue, that matrix is
    :math:`(Σ + 0.001·I)^{-strength/2}\,D^{-1}`. Strength 1 is whitening (of this kind also called ZCA).

    :meth:`fit` is for **public** pictures, for example those of :func:`dead_leaves`. What it finds depends on
    each of them; fitted to private images it would reveal them, and no accountant would know.

    Attributes:
        mean: (channels,) float32.
        matrix: (channels, channels) float32.
    """

    mean: Tensor
    matrix: Tensor

    @classmethod
    def fit(cls, coefficients: Tensor, *, strength: float = 0.5) -> ChannelWhitening:
        """The whitening of these public pictures' coefficients.

        Args:
            coefficients: (pictures, channels, rows, columns), or with colours, (pictures, colours, channels,
                rows, columns), which become further channels; of many more pictures than channels. Not the
                pictures themselves.
            strength: from 0, which leaves the channels' correlations as they are, to 1.

        Raises:
            ValueError: if the coefficients have other dimensions, are not floating point, not finite or not
                of ordinary size, or a channel or every picture is the same, or ``strength`` is out of range.
        """
        check_coefficients(coefficients)
        checks.number("strength", strength, at_least=0, at_most=1)
        flat = coefficients.detach().flatten(1, -3).double()
        if len(flat) < max(2, flat.shape[1]):
            raise ValueError(
                "coefficients must be those of several pictures, at least as many as there are channels, got "
                f"{len(flat)} of {flat.shape[1]} channels"
            )
        mean, deviation = (of(flat, dim=(0, 2, 3)) for of in (torch.mean, torch.std))
        largest = flat.abs().amax(dim=(0, 2, 3))
        least = (_CONSTANT * largest).clamp(min=1 / _LARGEST_VALUE)
        if not bool(((deviation > least) & (largest < _LARGEST_VALUE)).all()):  # NaN is neither
            raise ValueError(
                "coefficients must be finite and of ordinary size, and no channel the same everywhere"
            )
        scaled = ((flat - mean[:, None, None]) / deviation[:, None, None]).flatten(2)
        scaled = scaled / scaled.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)
        across = (scaled - scaled.mean(dim=0)).transpose(0, 1).flatten(1)
        covariance = across @ across.T
        if not float(covariance.trace()) > 1e-9 * len(flat):  # of which each picture gives at most 1
            raise ValueError("coefficients must be those of several pictures that differ")
        values, vectors = torch.linalg.eigh(covariance)
        gains = (values.clamp(min=0) / values.mean() + _RIDGE) ** (-strength / 2)
        return cls(mean=mean.float(), matrix=((vectors * gains) @ vectors.T / deviation).float())

    def __call__(self, coefficients: Tensor) -> Tensor:
        """The images' coefficients as rows of ℓ2 norm 1.

        Every image is changed by itself, and mean and matrix are public, so this spends no privacy.

        Args:
            coefficients: as :meth:`fit` takes them, with as many channels; below 1e15, or rows are not of
                length 1.

        Returns:
            (images, channels·rows·columns), of the same floating type; computed in float32. A picture whose
            coefficients are the public mean is a row of zeros.

        Raises:
            ValueError: if the coefficients have other dimensions or channels, or are not floating point.
        """
        check_coefficients(coefficients)
        flat = coefficients.flatten(1, -3)
        if flat.shape[1] != len(self.mean):
            raise ValueError(
                f"coefficients must have {len(self.mean)} channels, got {flat.shape[1]}: fit to pictures "
                "that went through the same scattering, of the same order"
            )
        mean, matrix = self.mean.to(flat.device)[:, None], self.matrix.to(flat.device)
        rows = flat.new_empty(len(flat), math.prod(flat.shape[1:]))
        for start in range(0, len(flat), _IMAGES_AT_ONCE):
            part = matrix @ (flat[start : start + _IMAGES_AT_ONCE].flatten(2).float() - mean)
            rows[start : start + _IMAGES_AT_ONCE] = functional.normalize(part.flatten(1))
        return rows


def dead_leaves(count: int, *, height: int, width: int, colours: int = 1, seed: int = 0) -> Tensor:
    """Random pictures of discs that hide one another, whose edges have the statistics of photographs.

    They are public, as nobody's data are in them: statistics of theirs cost no privacy. There are 60 discs in
    a picture. Radii have a density ∝ r⁻³ between 4 and 50 % of the longer side, and each disc and the ground
    have a colour that is uniform on [0, 1]. Lee, Mumford, Huang 2001, "Occlusion models for natural images";
    Baradad et al. 2021, "Learning to see by looking at noise".

    Args:
        count: number of pictures.
        height: pixels of a column.
        width: pixels of a row.
        colours: colour channels.
        seed: the same seed gives the same pictures.

    Returns:
        (count, colours, height, width) float32, in [0, 1].

    Raises:
        ValueError: if a number is not a positive whole one, or ``seed`` not a whole one from 0 up.
    """
    for name, value in {"count": count, "height": height, "width": width, "colours": colours}.items():
        checks.whole(name, value)
    checks.whole("seed", seed, at_least=0)
    coins = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, 1, 1, generator=coins, dtype=torch.float32)

    side = max(height, width)
    pictures = uniform(colours).repeat(1, 1, height, width)
    rows, columns = (torch.arange(size, dtype=torch.float32) for size in (height, width))
    for _ in range(_DISCS):
        radius = side / (_SMALLEST**-2 + uniform() * (_LARGEST**-2 - _SMALLEST**-2)).sqrt()
        down, across = ((1 + 2 * _BEYOND) * uniform() - _BEYOND for _ in range(2))
        inside = (rows[:, None] - height * down).square() + (
            columns - width * across
        ).square() < radius.square()
        colour = uniform(colours)
        pictures = torch.where(inside[:, None], colour, pictures)
    return pictures
