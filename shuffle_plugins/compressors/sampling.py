"""Which coordinates a client sends."""

from __future__ import annotations

import torch
from torch import Tensor

from shuffle_plugins.core import checks
from shuffle_plugins.randomness import Randomness


def stratified_indices(
    dim: int, count: int, clients: int, *, randomness: Randomness, device: torch.device | str = "cpu"
) -> Tensor:
    """One uniform index in each of ``count`` equal blocks, (clients, count) int64.

    A block has b = ceil(dim / count) coordinates, block k being [k·b, (k+1)·b); the padded range [0, count·b)
    may pass ``dim``, and what lies beyond counts as zero. So each coordinate of a client is drawn with
    probability exactly 1/b, and b times what was drawn is unbiased for the vector.

    Args:
        dim: length of a vector.
        count: indices per client, in [1, dim].
        clients: number of clients.
        randomness: source of the indices.
        device: where the indices are wanted.

    Raises:
        ValueError: if an argument is out of range.
    """
    block = block_length(dim, count)
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 0:
        raise ValueError(f"the number of clients is a whole number, zero or more, got {clients!r}")
    drawn = randomness.integers(block, (clients, count), device=device)
    return drawn.add_(torch.arange(count, device=device).mul_(block))


def block_length(dim: int, count: int) -> int:
    """Coordinates per block when a vector of length ``dim`` is cut into ``count``: ceil(dim / count).

    Raises:
        ValueError: unless ``count`` is a whole number in [1, dim].
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= checks.dim(dim):
        raise ValueError(f"between 1 and {dim} coordinates can be drawn, got {count!r}")
    return -(-dim // count)
