"""Coefficients of images as rows of length one, for a linear model that is trained by clipped gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shuffle_plugins.core import checks

_LEAST_VARIANCE = 1e-5  # as torch's group norm
# Added to a place's deviation, by order, so that an empty place of an image in [0, 1] stays near zero.
_FLOORS = (1e-5, 0.02, 0.003)
_LARGEST_VALUE = 1e15  # coefficient: sums of squares of larger ones, or of less than 1/this, leave float32
_IMAGES_AT_ONCE = 1000


def some_at_a_time(function: Callable[[Tensor], Tensor], images: Tensor, *, at_once: int) -> Tensor:
    """What a function makes of images, some at a time."""
    return torch.cat([function(part) for part in torch.split(images, at_once)])


def place_normalized(coefficients: Tensor, *, orders: Sequence[int]) -> Tensor:
    """Every place's coefficients of each order with mean 0 and deviation about 1, and the row of length 1.

    A place is one pixel of the coefficients' coarse grid. What it then says is which waves are strong there
    compared with the others, and not how much contrast there is. Order 0, the blurred image, has one
    coefficient a place, and gets mean 0 and deviation 1 over all places. All of this is taken from one image
    alone, so it spends no privacy.

    Args:
        coefficients: of images with values in [0, 1]: (images, channels, rows, columns), or with colours,
            (images, colours, channels, rows, columns). Each colour is normalised by itself; a row has all.
        orders: how many channels there are of order 0, 1 and 2, as :attr:`Scattering.orders` says.

    Returns:
        (images, colours·channels·rows·columns), of the same floating type. The row of an image of zeros is 0.
    """
    _check_coefficients(coefficients)
    if len(orders) > len(_FLOORS) or sum(orders) != coefficients.shape[-3]:
        raise ValueError(
            f"orders must be at most {len(_FLOORS)} numbers that add up to the {coefficients.shape[-3]} "
            f"channels, got {tuple(orders)}"
        )

    def rows(part: Tensor) -> Tensor:
        split = torch.split(part.float(), list(orders), dim=-3)
        normal = [_standard(each, floor) for each, floor in zip(split, _FLOORS, strict=False)]
        return functional.normalize(torch.cat(normal, dim=-3).flatten(1)).to(part.dtype)

    return some_at_a_time(rows, coefficients, at_once=_IMAGES_AT_ONCE)


def _standard(part: Tensor, floor: float) -> Tensor:
    """Without the mean, divided by the deviation: those of a place's channels, or of all places of one."""
    axes = (-3,) if part.shape[-3] > 1 else (-2, -1)
    centred = part - part.mean(dim=axes, keepdim=True)
    variance = centred.square().mean(dim=axes, keepdim=True)
    if part.shape[-3] > 1:
        return centred / (variance.sqrt() + floor)
    return centred / (variance + _LEAST_VARIANCE).sqrt()


def group_normalized(coefficients: Tensor, *, groups: int = 1) -> Tensor:
    """Every group of an image's channels with mean 0 and variance 1, and the whole row of length about 1.

    Group normalisation (Wu, He 2018) takes its mean and variance from one image alone, so it spends no
    privacy (Tramèr, Boneh 2021). Coefficients are as of :func:`place_normalized`, colours further channels;
    the channels are split into ``groups`` of equal size, in their order. Returns (images,
    channels·rows·columns), of the same floating type. A group that is the same everywhere is 0.
    """
    _check_coefficients(coefficients)
    flat = coefficients.flatten(1, -3)
    if flat.shape[1] % checks.whole("groups", groups):
        raise ValueError(f"groups must divide the number of channels, {flat.shape[1]}, got {groups}")
    scale = 1 / math.sqrt(math.prod(flat.shape[1:]))

    def rows(part: Tensor) -> Tensor:
        normal = functional.group_norm(part.float(), groups, eps=_LEAST_VARIANCE)
        return normal.flatten(1).mul_(scale).to(part.dtype)

    return some_at_a_time(rows, flat, at_once=_IMAGES_AT_ONCE)


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
        """
        _check_coefficients(coefficients)
        checks.number("strength", strength, at_least=0, at_most=1)
        flat = coefficients.detach().flatten(1, -3).double()
        if len(flat) < max(2, flat.shape[1]):
            raise ValueError(
                "coefficients must be those of several pictures, at least as many as there are channels, got "
                f"{len(flat)} of {flat.shape[1]} channels"
            )
        mean, deviation = (of(flat, dim=(0, 2, 3)) for of in (torch.mean, torch.std))
        largest = flat.abs().amax(dim=(0, 2, 3))
        # A channel whose deviation is less than this of its largest value varies by rounding only.
        least = (1e-6 * largest).clamp(min=1 / _LARGEST_VALUE)
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
        # Added to each eigenvalue, over the average one, so that no channel is multiplied by thousands.
        gains = (values.clamp(min=0) / values.mean() + 1e-3) ** (-strength / 2)
        return cls(mean=mean.float(), matrix=((vectors * gains) @ vectors.T / deviation).float())

    def __call__(self, coefficients: Tensor) -> Tensor:
        """The images' coefficients as rows of ℓ2 norm 1, (images, channels·rows·columns), of the same dtype.

        Every image is changed by itself, and mean and matrix are public, so this spends no privacy.
        Coefficients are as :meth:`fit` takes them, with as many channels; below 1e15, or rows are not of
        length 1. A picture whose coefficients are the public mean is a row of zeros.
        """
        _check_coefficients(coefficients)
        flat = coefficients.flatten(1, -3)
        if flat.shape[1] != len(self.mean):
            raise ValueError(
                f"coefficients must have {len(self.mean)} channels, got {flat.shape[1]}: fit to pictures "
                "that went through the same scattering, of the same order"
            )
        mean, matrix = self.mean.to(flat.device)[:, None], self.matrix.to(flat.device)

        def rows(part: Tensor) -> Tensor:
            whitened = matrix @ (part.flatten(2).float() - mean)
            return functional.normalize(whitened.flatten(1)).to(part.dtype)

        return some_at_a_time(rows, flat, at_once=_IMAGES_AT_ONCE)


def _check_coefficients(coefficients: Tensor) -> None:
    if coefficients.dim() not in (4, 5) or not coefficients.is_floating_point():
        raise ValueError(
            "coefficients must be floating point of shape (images, channels, rows, columns), or with colours "
            f"before the channels, got {coefficients.dtype} {tuple(coefficients.shape)}"
        )
