"""Flags 0 and 1, one a byte, counted without widening them."""

from __future__ import annotations

from shuffle_plugins.core.lazy_torch import Tensor, torch

_BLOCK = 255  # ones that a byte can count


def column_counts(flags: Tensor) -> Tensor:
    """How many ones each column of (rows, columns) has, int64 (columns,)."""
    counts = torch.zeros(flags.shape[1], dtype=torch.int64, device=flags.device)
    for start in range(0, len(flags), _BLOCK):
        counts += flags[start : start + _BLOCK].sum(dim=0, dtype=torch.uint8)
    return counts


def row_counts(flags: Tensor) -> Tensor:
    """How many ones each row of (rows, columns) has, int64 (rows,)."""
    counts = torch.zeros(len(flags), dtype=torch.int64, device=flags.device)
    for start in range(0, flags.shape[1], _BLOCK):
        counts += flags[:, start : start + _BLOCK].sum(dim=1, dtype=torch.uint8)
    return counts
