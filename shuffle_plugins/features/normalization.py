"""Features as rows of length about one, for a linear model that is trained by clipped gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from shuffle_plugins.core import checks

_LEAST_VARIANCE = 1e-5  # as torch's group norm
_ROWS_AT_ONCE = 1000


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
    if coefficients.dim() not in (4, 5) or not coefficients.is_floating_point():
        raise ValueError(
            "coefficients must be floating point of shape (images, channels, rows, columns), or with colours "
            f"before the channels, got {coefficients.dtype} {tuple(coefficients.shape)}"
        )
    channels = math.prod(coefficients.shape[1:-2])
    if channels % checks.whole("groups", groups):
        raise ValueError(f"groups must divide the number of channels, {channels}, got {groups}")
    flat = coefficients.flatten(1, -3)
    scale = 1 / math.sqrt(math.prod(flat.shape[1:]))
    rows = torch.empty(len(flat), math.prod(flat.shape[1:]), dtype=flat.dtype, device=flat.device)
    for start in range(0, len(flat), _ROWS_AT_ONCE):
        part = flat[start : start + _ROWS_AT_ONCE].float()
        normal = functional.group_norm(part, groups, eps=_LEAST_VARIANCE)
        rows[start : start + _ROWS_AT_ONCE] = normal.flatten(1) * scale
    return rows
