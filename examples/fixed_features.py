"""Features of digits that nobody has to learn: wavelet energies in eight directions, place by place."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

DIRECTIONS = 8
PLACES = 6
FEATURES = (1 + 2 * DIRECTIONS) * PLACES**2

_BLUR = 0.8  # of the low-pass filter, in strides
_SMALLEST = 0.02  # deviation of energies below which a place is taken for empty
_SCALE = 2 / math.sqrt(FEATURES)
_AT_ONCE = 250


def wavelet_features(images: Tensor) -> Tensor:
    """First-order scattering coefficients (Bruna, Mallat 2013) at two scales, and the blurred image.

    What each place shows is its energies over directions and scales, less their mean and over their
    deviation. Every image is transformed alone by numbers fixed beforehand, so no privacy is spent.

    Args:
        images: (n, 1, 28, 28) in [0, 1].

    Returns:
        (n, 612) float32, rows of norm about 1.
    """
    return torch.cat([_features(part) for part in images.split(_AT_ONCE)])


def _features(images: Tensor) -> Tensor:
    fine = _energies(images, _wavelets(width=0.8, frequency=3 * math.pi / 4, size=7), stride=1)
    coarse = _energies(images, _wavelets(width=1.6, frequency=3 * math.pi / 8, size=11), stride=2)
    energies = torch.cat([_blurred(functional.avg_pool2d(fine, 2), 2), _blurred(coarse, 2)], dim=1)
    centred = energies - energies.mean(dim=1, keepdim=True)
    deviation = centred.square().mean(dim=1, keepdim=True).sqrt()
    shape = functional.group_norm(_blurred(images, 4), 1)
    return torch.cat([shape, centred / (deviation + _SMALLEST)], dim=1).flatten(1) * _SCALE


def _wavelets(*, width: float, frequency: float, size: int) -> Tensor:
    """Morlet wavelets, one a direction, as pairs of real filters: (2·directions, 1, size, size)."""
    y, x = torch.meshgrid(*(torch.arange(size) - size // 2.0,) * 2, indexing="ij")
    filters = []
    for direction in range(DIRECTIONS):
        angle = math.pi * direction / DIRECTIONS
        along, across = (
            x * math.cos(angle) + y * math.sin(angle),
            y * math.cos(angle) - x * math.sin(angle),
        )
        envelope = torch.exp(-(along.square() + 0.25 * across.square()) / (2 * width**2))
        wave = torch.polar(envelope, frequency * along)
        wave = wave - envelope * (wave.sum() / envelope.sum())
        filters.append(wave / (4 * math.pi * width**2))
    waves = torch.stack(filters)
    return torch.cat([waves.real, waves.imag])[:, None]


def _energies(images: Tensor, wavelets: Tensor, *, stride: int) -> Tensor:
    padding = wavelets.shape[-1] // 2
    real, imaginary = functional.conv2d(images, wavelets, padding=padding, stride=stride).chunk(2, dim=1)
    return (real.square() + imaginary.square()).sqrt()


def _blurred(maps: Tensor, stride: int) -> Tensor:
    offsets = torch.arange(-stride, stride + 1).float()
    bell = torch.exp(-offsets.square() / (2 * (_BLUR * stride) ** 2))
    kernel = bell[:, None] * bell
    n, channels, *size = maps.shape
    flat = maps.reshape(n * channels, 1, *size)
    small = functional.conv2d(flat, (kernel / kernel.sum())[None, None], stride=stride, padding=stride // 2)
    return small.reshape(n, channels, *small.shape[-2:])
