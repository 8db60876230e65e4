"""Real numbers to whole numbers, unbiased, by private coins."""

from __future__ import annotations

from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness.chacha import PROBABILITY_BITS
from shuffle_plugins.randomness.sources import Randomness

_CHUNK = 1 << 16  # values handled at a time, which fit a cache


def stochastic_round(values: Tensor, *, randomness: Randomness) -> Tensor:
    """A whole number next to each value, int64 of the same shape: its floor, or the next one up.

    Up with probability f = value - floor(value), rounded down to a multiple of 2**-62; one word per value.
    Values are floating point, of absolute value below 2**62.
    """
    if not values.is_floating_point():
        raise ValueError(f"only floating point is rounded, got {values.dtype}")
    flat = values.detach().reshape(-1)
    rounded = torch.empty(flat.shape, dtype=torch.int64, device=values.device)
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].double()
        if not bool((part.abs() < (2.0**62)).all()):  # larger values do not fit the thresholds' 62 bits
            raise ValueError("a value is NaN, infinite, or 2**62 or more in absolute value: clip it first")
        low = part.floor()
        up = randomness.bernoulli((part - low).mul_(2.0**PROBABILITY_BITS).to(torch.int64))
        rounded[start : start + _CHUNK] = low.to(torch.int64) + up
    return rounded.reshape(values.shape)
