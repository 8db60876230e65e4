"""Public random indices: which coefficient the client at each position of a round is asked about."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.compressors.public_bits import public_random_bytes

_WORD = 8


def check_position(position: int) -> int:
    """Return the position.

    Raises:
        ValueError: unless it is a whole number in [0, 2**40].
    """
    if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position <= 1 << 40:
        raise ValueError(f"position must be a whole number in [0, 2**40], got {position!r}")
    return position


def check_public(public_seed: int | None, *, position: int) -> tuple[int | None, int]:
    """Return the seed, or None, and the position of the first row.

    Raises:
        ValueError: unless the seed is a whole number or None, and the position one that it has a meaning for.
    """
    if public_seed is not None and type(public_seed) is not int:
        raise ValueError(f"public_seed must be a whole number, got {public_seed!r}")
    if check_position(position) and public_seed is None:
        raise ValueError("position has a meaning only with public_seed")
    return public_seed, position


def public_indices(
    purpose: str, *, seed: int, position: int, clients: int, highs: Tensor, device: torch.device
) -> Tensor:
    """Indices below ``highs`` of the clients at positions ``position``, ``position + 1``, …

    They depend on the purpose, the seed and the position alone, and not on how a round is cut into batches.
    Uniform up to 2**-62·high, exactly so for powers of two. Time and memory grow with ``position + clients``.

    Args:
        purpose: what they are for.
        seed: any whole number.
        position: of the first client in the round.
        clients: how many.
        highs: int64 (count,), positive.
        device: where the result goes.

    Returns:
        int64 (clients, count).

    Raises:
        ValueError: if the seed is not a whole number, or the position is out of range.
    """
    count = len(highs)
    end = (check_position(position) + clients) * count * _WORD
    data = public_random_bytes(f"{purpose} indices", seed=seed, count=end)
    words = np.frombuffer(data, dtype="<u8", offset=position * count * _WORD) >> np.uint64(2)
    drawn = torch.from_numpy(words.astype(np.int64)).view(clients, count)
    return drawn.remainder_(highs.to("cpu")).to(device)
