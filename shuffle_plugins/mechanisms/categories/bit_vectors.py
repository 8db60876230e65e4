"""Flags 0 and 1, one a byte, counted without widening them."""

from __future__ import annotations

import torch
from torch import Tensor

from shuffle_plugins.core import Field

_BLOCK = 255


def flags_of(field: Field, *, width: int) -> Tensor:
    """A field's flags, uint8 (clients, width), after a check.

    Raises:
        ValueError: if it does not hold ``width`` flags per report.
    """
    flags = field.values
    if flags.is_floating_point() or flags.dim() != 2 or flags.shape[1] != width:
        raise ValueError(f"a report has {width} flags, got {flags.dtype} of {tuple(flags.shape)}")
    if flags.numel() and int(flags.max()) > 1:
        raise ValueError("a report holds a flag that is neither 0 nor 1: it was altered or forged; drop it")
    return flags.to(torch.uint8)


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
