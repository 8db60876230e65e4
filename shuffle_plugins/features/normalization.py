"""Features as rows of length about one, for a linear model that is trained by clipped gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from shuffle_plugins.core import checks

_LEAST_VARIANCE = 1e-5  # as torch's group norm
# Added to a place's deviation, by order, so that an empty place of an image in [0, 1] stays near zero.
_FLOORS = (1e-5, 0.02, 0.003)
_IMAGES_AT_ONCE = 1000


def place_normalized(coefficients: Tensor, *, orders: Sequence[int]) -> Tensor:
    """Every place's coefficients of each order with mean 0 and deviation about 1, and the row of length 1.

    A place is one pixel of the coefficients' coarse grid. What it then says is which waves are strong there
    compared with the others, and not how much contrast there is: a faint stroke counts as much as a bold one.
    Order 0, the blurred image, has one coefficient a place, and gets mean 0 and deviation 1 over all places.
    All of this is taken from one image alone, so it spends no privacy. Rows have one length, so that clipping
    weighs all records alike.

    Args:
        coefficients: of images with values in [0, 1]: (images, channels, rows, columns), or with colours,
            (images, colours, channels, rows, columns). Each colour is normalised by itself; a row has all.
        orders: how many channels there are of order 0, 1 and 2, as :attr:`Scattering.orders` says.

    Returns:
        (images, colours·channels·rows·columns), of the same floating type. The row of an image of zeros is 0.

    Raises:
        ValueError: if the coefficients have other dimensions or are not floating point, or other channels
            than ``orders`` says.
    """
    check_coefficients(coefficients)
    if len(orders) > len(_FLOORS) or sum(orders) != coefficients.shape[-3]:
        raise ValueError(
            f"orders must be at most {len(_FLOORS)} numbers that add up to the {coefficients.shape[-3]} "
            f"channels, got {tuple(orders)}"
        )
    rows = coefficients.new_empty(len(coefficients), math.prod(coefficients.shape[1:]))
    for start in range(0, len(coefficients), _IMAGES_AT_ONCE):
        part, first, normal = coefficients[start : start + _IMAGES_AT_ONCE].float(), 0, []
        for size, floor in zip(orders, _FLOORS, strict=False):
            normal.append(_standard(part.narrow(-3, first, size), floor))
            first += size
        flat = torch.cat(normal, dim=-3).flatten(1)
        rows[start : start + _IMAGES_AT_ONCE] = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return rows


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
    privacy (Tramèr, Boneh 2021 use it so with scattering coefficients). Rows of one length have gradients of
    like lengths, so that clipping weighs all records alike.

    Args:
        coefficients: (images, channels, rows, columns), or with colours, (images, colours, channels, rows,
            columns), which become further channels.
        groups: into how many groups of equal size the channels are split, in their order.

    Returns:
        (images, channels·rows·columns), of the same floating type. A group that is the same everywhere is 0.

    Raises:
        ValueError: if the coefficients have other dimensions or are not floating point, or the channels
            cannot be split so.
    """
    check_coefficients(coefficients)
    channels = math.prod(coefficients.shape[1:-2])
    if channels % checks.whole("groups", groups):
        raise ValueError(f"groups must divide the number of channels, {channels}, got {groups}")
    flat = coefficients.flatten(1, -3)
    scale = 1 / math.sqrt(math.prod(flat.shape[1:]))
    rows = torch.empty(len(flat), math.prod(flat.shape[1:]), dtype=flat.dtype, device=flat.device)
    for start in range(0, len(flat), _IMAGES_AT_ONCE):
        part = flat[start : start + _IMAGES_AT_ONCE].float()
        normal = functional.group_norm(part, groups, eps=_LEAST_VARIANCE)
        rows[start : start + _IMAGES_AT_ONCE] = normal.flatten(1) * scale
    return rows


def check_coefficients(coefficients: Tensor) -> None:
    """Refuse what are no coefficients of a batch of images."""
    if coefficients.dim() not in (4, 5) or not coefficients.is_floating_point():
        raise ValueError(
            "coefficients must be floating point of shape (images, channels, rows, columns), or with colours "
            f"before the channels, got {coefficients.dtype} {tuple(coefficients.shape)}"
        )
