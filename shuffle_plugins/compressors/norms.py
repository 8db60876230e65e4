"""l1 norms of rows at the speed of memory: torch's own take twice as long."""

from __future__ import annotations

from shuffle_plugins.compressors.hadamard import cpu_kernels
from shuffle_plugins.core import Rows
from shuffle_plugins.core.lazy_torch import Tensor, torch


def l1_norms(rows: Rows) -> Tensor:
    """Sum of absolute entries of each row, (clients,); NaN and inf pass through. As :meth:`Rows.l1_norm`."""
    kernels = cpu_kernels()
    if kernels is None or rows.device.type != "cpu" or rows.dtype != rows.compute_dtype:
        return rows.l1_norm()
    norms = torch.zeros(rows.num_rows, dtype=rows.dtype)
    for block in rows.blocks:
        kernels.add_absolute_sums(block.numpy(), norms.numpy())
    return norms
