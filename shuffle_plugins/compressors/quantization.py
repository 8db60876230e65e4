"""Real numbers to whole numbers, unbiased: by private coins, or by a public dither taken off again."""

from __future__ import annotations

import math

import numpy as np

from shuffle_plugins.compressors.public_bits import public_random_bytes
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness import PROBABILITY_BITS, Randomness

_CHUNK = 1 << 16  # values handled at a time, which fit a cache
_LIMIT = 2.0**62  # larger values do not fit the thresholds' 62 bits
_DITHER_LIMIT = 2.0**52  # larger float64 values have no digits left for the dither
_DITHER_BITS = 32  # bits of a public offset


def stochastic_round(values: Tensor, *, randomness: Randomness) -> Tensor:
    """A whole number next to each value, int64 of the same shape: its floor, or the next one up.

    Up with probability f = value - floor(value), so the variance is f(1 - f) ≤ 1/4. That probability is
    rounded down to a multiple of 2**-62; the expectation is off by at most 2**-53, and whole numbers stay.

    Args:
        values: floating point of any shape, of absolute value below 2**62.
        randomness: one word per value, drawn in chunks.

    Raises:
        ValueError: if the values are not floating point, not finite, or too large.
    """
    _check_floating(values)
    flat = values.detach().reshape(-1)
    rounded = torch.empty(flat.shape, dtype=torch.int64, device=values.device)
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].double()
        _check_size(part, _LIMIT)
        low = part.floor()
        up = randomness.bernoulli((part - low).mul_(2.0**PROBABILITY_BITS).to(torch.int64))
        rounded[start : start + _CHUNK] = low.to(torch.int64) + up
    return rounded.reshape(values.shape)


def public_dither(size: int | tuple[int, ...], *, seed: int) -> Tensor:
    """Public numbers uniform on the midpoints of a grid of step 2**-32 in (-1/2, 1/2), float64.

    The same for everybody who knows the seed, on every machine. A seed is used for one batch.

    Args:
        size: shape of the result.
        seed: public seed, any whole number.

    Raises:
        ValueError: if the seed is not a whole number.
    """
    shape = (size,) if isinstance(size, int) else tuple(size)
    drawn = public_random_bytes("dither", seed=seed, count=_DITHER_BITS // 8 * math.prod(shape))
    grid = np.frombuffer(drawn, dtype="<u4").astype(np.float64)
    grid += 0.5
    grid *= 2.0**-_DITHER_BITS
    grid -= 0.5
    return torch.from_numpy(grid.reshape(shape))


def dithered_round(values: Tensor, *, dither: Tensor) -> Tensor:
    """The whole number nearest to value + dither, int64 of the same shape. It takes no private coins.

    :func:`dithered_value` of it has an error uniform on [-1/2, 1/2], whatever the value: variance 1/12, a
    third of the worst of :func:`stochastic_round` (Schuchman 1964, subtractive dither).

    Args:
        values: floating point, of absolute value below 2**52.
        dither: of the same shape, from :func:`public_dither`.

    Raises:
        ValueError: if shapes differ, or values are not floating point, not finite, or too large.
    """
    _check_floating(values)
    if dither.shape != values.shape:
        raise ValueError(f"values {tuple(values.shape)} need as many dithers, got {tuple(dither.shape)}")
    wide = values.detach().double()
    _check_size(wide, _DITHER_LIMIT)
    return (wide + dither.to(wide.device)).add_(0.5).floor_().to(torch.int64)


def dithered_value(rounded: Tensor, *, dither: Tensor) -> Tensor:
    """What a dithered whole number stands for, float64: unbiased for the value to 2**-33 + 2**-52·|value|.

    Args:
        rounded: from :func:`dithered_round`.
        dither: the one it was made with.

    Raises:
        ValueError: if shapes differ.
    """
    if dither.shape != rounded.shape:
        raise ValueError(f"values {tuple(rounded.shape)} need as many dithers, got {tuple(dither.shape)}")
    return rounded - dither.to(rounded.device)


def _check_floating(values: Tensor) -> None:
    if not values.is_floating_point():
        raise ValueError(f"only floating point is rounded, got {values.dtype}")


def _check_size(values: Tensor, limit: float) -> None:
    if not bool((values.abs() < limit).all()):
        raise ValueError(f"a value is NaN, infinite, or {limit:g} or more in absolute value: clip it first")
