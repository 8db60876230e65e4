"""Walsh-Hadamard transforms in Triton: a row in registers, or in two passes where it does not fit."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shuffle_plugins.randomness.triton_chacha import on_device

LARGEST_TILE = 1 << 15
"""Longest row that one program holds."""

_TILE = 1 << 12
_LONGEST_COLUMN = 1 << 7
_VALUES_PER_WARP = 1 << 10
_MOST_WARPS = 32


@triton.jit
def _butterfly(values, half: tl.constexpr):
    blocks: tl.constexpr = values.numel // (2 * half)
    pairs = tl.permute(tl.reshape(values, (blocks, 2, half)), (0, 2, 1))
    a, b = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), values.shape)


@triton.jit
def butterflies(values, LENGTH: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr):
    """Transform a flat tile of blocks (LENGTH, INNER) along LENGTH = 2**STAGES, largest distance first."""
    for stage in tl.static_range(STAGES):
        values = _butterfly(values, (LENGTH >> (stage + 1)) * INNER)
    return values


@triton.jit
def load_tile(x, signs, row, column, rows, columns, stride, SIGNED: tl.constexpr, DTYPE: tl.constexpr):
    """Entries (row, column), zero outside (rows, columns), times the signs of their columns, as DTYPE."""
    inside = (row < rows) & (column < columns)
    values = tl.load(x + row * stride + column, mask=inside, other=0.0).to(DTYPE)
    if SIGNED:
        values = values * tl.load(signs + column, mask=column < columns, other=0).to(DTYPE)
    return values


# fmt: off
@triton.jit
def _rows_kernel(
    x, signs, out, rows, columns, stride, SIZE: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr,
    SCALE: tl.constexpr, SIGNED: tl.constexpr, DTYPE: tl.constexpr
):
    flat = tl.arange(0, ROWS * SIZE)
    row = tl.program_id(0).to(tl.int64) * ROWS + flat // SIZE
    column = flat % SIZE
    values = load_tile(x, signs, row, column, rows, columns, stride, SIGNED, DTYPE)
    values = butterflies(values, SIZE, 1, STAGES) * tl.full(values.shape, SCALE, DTYPE)
    tl.store(out + row * SIZE + column, values.to(out.dtype.element_ty), mask=row < rows)
# fmt: on


# fmt: off
@triton.jit
def _columns_kernel(
    x, signs, out, rows, columns, stride, LENGTH: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr,
    WIDTH: tl.constexpr, SIGNED: tl.constexpr, DTYPE: tl.constexpr
):
    flat = tl.arange(0, LENGTH * WIDTH)
    row = tl.program_id(0).to(tl.int64) + tl.zeros(flat.shape, tl.int64)
    column = (flat // WIDTH) * INNER + tl.program_id(1) * WIDTH + flat % WIDTH
    values = load_tile(x, signs, row, column, rows, columns, stride, SIGNED, DTYPE)
    values = butterflies(values, LENGTH, WIDTH, STAGES)
    tl.store(out + row * (LENGTH * INNER) + column, values.to(out.dtype.element_ty))
# fmt: on


def transform_rows_triton(
    x: Tensor, *, size: int, signs: Tensor | None = None, scale: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """``scale`` · H · (signs · row) of each zero-padded row of x (rows, columns), (rows, size).

    ``size`` is a power of two and ``signs`` (columns,) +1 and -1. ``out`` may be x itself.
    """
    if out is None:
        out = torch.empty((x.shape[0], size), dtype=x.dtype, device=x.device)
    x = x if x.stride(1) == 1 else x.contiguous()
    if size <= LARGEST_TILE:
        _transform_whole(x, out, signs=signs, scale=scale)
    else:
        blocks = high_butterflies(x, size=size, signs=signs)
        _transform_whole(blocks, out.view(blocks.shape), signs=None, scale=scale)
    return out


def high_butterflies(x: Tensor, *, size: int, signs: Tensor | None) -> Tensor:
    """All butterflies of long rows but those within blocks that fit into a program: (… , block) rows are
    left.
    """
    while size > LARGEST_TILE:
        x = _transform_columns(x, size=size, signs=signs)
        size, signs = _inner_size(size), None
        x = x.view(-1, size)
    return x


def _inner_size(size: int) -> int:
    return max(_TILE, size // _LONGEST_COLUMN)


def _transform_columns(x: Tensor, *, size: int, signs: Tensor | None) -> Tensor:
    inner = _inner_size(size)
    length = size // inner
    width = _TILE // length
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = torch.empty((x.shape[0], size), dtype=dtype, device=x.device)
    if out.numel():
        with on_device(x.device):
            # fmt: off
            _columns_kernel[(x.shape[0], inner // width)](
                x, x if signs is None else signs, out, *x.shape, x.stride(0), LENGTH=length, INNER=inner,
                STAGES=length.bit_length() - 1, WIDTH=width, SIGNED=signs is not None,
                DTYPE=compute_type(dtype), **launch_options(_TILE)
            )
            # fmt: on
    return out


def _transform_whole(x: Tensor, out: Tensor, *, signs: Tensor | None, scale: float) -> None:
    rows, size = out.shape
    if rows == 0:
        return
    together = rows_per_program(size)
    with on_device(x.device):
        # fmt: off
        _rows_kernel[(triton.cdiv(rows, together),)](
            x, x if signs is None else signs, out, *x.shape, x.stride(0), SIZE=size,
            STAGES=size.bit_length() - 1, ROWS=together, SCALE=scale, SIGNED=signs is not None,
            DTYPE=compute_type(x.dtype), **launch_options(together * size)
        )
        # fmt: on


def rows_per_program(size: int) -> int:
    """Rows that one program takes: enough to keep its threads busy."""
    return max(1, _TILE // size)


def compute_type(dtype: torch.dtype) -> Any:
    """Triton's name of the dtype in which a transform is computed."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def launch_options(values: int) -> dict[str, Any]:
    """Warps for a tile of so many values; and no fused multiply-add, which would change the bits."""
    warps = min(max(values // _VALUES_PER_WARP, 1), _MOST_WARPS)
    return {"num_warps": warps, "enable_fp_fusion": False}
