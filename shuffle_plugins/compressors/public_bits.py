"""Bits that everybody derives from a public seed. They hide nothing, and carry no client's data."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np

from shuffle_plugins.core import checks

if TYPE_CHECKING:
    from torch import Tensor


def public_random_bytes(purpose: str, *, seed: int, count: int) -> bytes:
    """SHAKE-256 of the purpose and the seed: the same on every machine, in every version.

    Args:
        purpose: what the bits are for; different purposes give independent bits.
        seed: public seed, any whole number.
        count: how many bytes to return.
    """
    checks.whole("public seed", seed, at_least=-math.inf)
    return hashlib.shake_256(f"shuffle_plugins public {purpose} {seed}".encode()).digest(count)


def public_signs(purpose: str, *, seed: int, count: int) -> Tensor:
    """Fair public signs +1 and -1, (count,) int8: bit i, most significant first, of the bytes."""
    import torch  # public_random_bytes is asked without it

    data = np.frombuffer(public_random_bytes(purpose, seed=seed, count=(count + 7) // 8), dtype=np.uint8)
    return torch.from_numpy(1 - 2 * np.unpackbits(data, count=count).view(np.int8))
