"""Public random indices: which coefficient the client at each position of a round is asked about."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.compressors import public_random_bytes
from shuffle_plugins.core import checks

_WORD = 8  # bytes from which an index is drawn
_LAST_POSITION = 1 << 40  # more clients than any round has


def check_public(public_seed: int | None, *, position: int) -> tuple[int | None, int]:
    """Return the seed, or None, and the position of the first row.

    Raises:
        ValueError: unless the seed is a whole number or None, and the position one that it has a meaning for.
    """
    if public_seed is not None:
        checks.whole("public_seed", public_seed, at_least=-math.inf)
    elif _checked_position(position):
        raise ValueError("position has a meaning only with public_seed")
    return public_seed, _checked_position(position)


def _checked_position(position: int) -> int:
    return checks.whole("position", position, at_least=0, at_most=_LAST_POSITION)


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
    end = (_checked_position(position) + clients) * count * _WORD
    data = public_random_bytes(f"{purpose} indices", seed=seed, count=end)
    words = np.frombuffer(data, dtype="<u8", offset=position * count * _WORD) >> np.uint64(2)
    drawn = torch.from_numpy(words.astype(np.int64)).view(clients, count)
    return drawn.remainder_(highs.to("cpu")).to(device)
