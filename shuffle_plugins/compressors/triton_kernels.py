"""Triton kernels: Walsh-Hadamard transforms and the public vectors of seeds."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import struct
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shuffle_plugins.randomness.triton_chacha import chacha_blocks, interleave, on_device

LARGEST_TILE = 1 << 15
"""Longest row that one program holds."""

_TILE = 1 << 12
_LONGEST_COLUMN = 1 << 7


@triton.jit
def _butterfly(values, half: tl.constexpr):
    blocks: tl.constexpr = values.numel // (2 * half)
    pairs = tl.permute(tl.reshape(values, (blocks, 2, half)), (0, 2, 1))
    a, b = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), values.shape)


@triton.jit
def _butterflies(values, LENGTH: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr):
    """Transform a flat tile of blocks (LENGTH, INNER) along LENGTH = 2**STAGES, largest distance first."""
    for stage in tl.static_range(STAGES):
        values = _butterfly(values, (LENGTH >> (stage + 1)) * INNER)
    return values


@triton.jit
def _load_tile(x, signs, row, column, rows, columns, stride, SIGNED: tl.constexpr, DTYPE: tl.constexpr):
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
    values = _load_tile(x, signs, row, column, rows, columns, stride, SIGNED, DTYPE)
    values = _butterflies(values, SIZE, 1, STAGES) * tl.full(values.shape, SCALE, DTYPE)
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
    values = _load_tile(x, signs, row, column, rows, columns, stride, SIGNED, DTYPE)
    values = _butterflies(values, LENGTH, WIDTH, STAGES)
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
        blocks = _high_butterflies(x, size=size, signs=signs)
        _transform_whole(blocks, out.view(blocks.shape), signs=None, scale=scale)
    return out


def _high_butterflies(x: Tensor, *, size: int, signs: Tensor | None) -> Tensor:
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
                DTYPE=_compute_type(dtype), **_launch_options(_TILE)
            )
            # fmt: on
    return out


def _transform_whole(x: Tensor, out: Tensor, *, signs: Tensor | None, scale: float) -> None:
    rows, size = out.shape
    if rows == 0:
        return
    together = max(1, _TILE // size)  # rows that keep a program's threads busy
    with on_device(x.device):
        # fmt: off
        _rows_kernel[(triton.cdiv(rows, together),)](
            x, x if signs is None else signs, out, *x.shape, x.stride(0), SIZE=size,
            STAGES=size.bit_length() - 1, ROWS=together, SCALE=scale, SIGNED=signs is not None,
            DTYPE=_compute_type(x.dtype), **_launch_options(together * size)
        )
        # fmt: on


def _compute_type(dtype: torch.dtype) -> Any:
    """Triton's name of the dtype in which a transform is computed."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def _launch_options(values: int) -> dict[str, Any]:
    """Warps for a tile of so many values; and no fused multiply-add, which would change the bits."""
    warps = min(max(values >> 10, 1), 32)
    return {"num_warps": warps, "enable_fp_fusion": False}


_BLOCKS = 64  # of the cipher that one program makes at a time, of 16 coordinates each
_SEEDS = 256  # that one program adds up


@triton.jit
def _cells_of(seeds, seed, d0, d1, d2, d3, cells, block):
    """What one seed's coordinates in these blocks are, in units, int32 (blocks, 16)."""
    k0 = tl.load(seeds + seed * 4)
    k1 = tl.load(seeds + seed * 4 + 1)
    k2 = tl.load(seeds + seed * 4 + 2)
    k3 = tl.load(seeds + seed * 4 + 3)
    zero = k0 ^ k0
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = chacha_blocks(
        k0, k1, k2, k3, d0, d1, d2, d3, zero, zero, block
    )
    words = interleave(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15).to(tl.int64)
    high = words >> 16  # which cells are the outer ones, and where those are divided: seeds.expand
    fine = ((words >> 8) & 0xFFFF) + tl.where(high < 0x8000, 0x10000, 0x20000)
    return tl.load(cells + tl.where((high < 0x100) | (high >= 0xFF00), fine, high))


@triton.jit(do_not_specialize=["count", "dim", "d0", "d1", "d2", "d3"])
def _sum_kernel(seeds, cells, out, count, dim, d0, d1, d2, d3, BLOCKS: tl.constexpr, SEEDS: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    first = tl.program_id(1) * SEEDS
    total = tl.zeros((BLOCKS, 16), tl.int64)
    for seed in range(first, tl.minimum(first + SEEDS, count)):
        total += _cells_of(seeds, seed, d0, d1, d2, d3, cells, block)
    place = block[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.atomic_add(out + place, total, mask=place < dim)


@triton.jit(do_not_specialize=["dim", "d0", "d1", "d2", "d3"])
def _expand_kernel(seeds, cells, out, dim, d0, d1, d2, d3, BLOCKS: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    seed = tl.program_id(1).to(tl.int64)
    place = block[:, None] * 16 + tl.arange(0, 16)[None, :]
    values = _cells_of(seeds, seed, d0, d1, d2, d3, cells, block)
    tl.store(out + seed * dim + place, values, mask=place < dim)


def sum_triton(seeds: Tensor, *, cells: Tensor, dim: int, domain: bytes) -> Tensor:
    """The sum of the vectors of seeds (seeds, 4) int64 under keys that end in ``domain``, (dim,) int64.

    ``cells`` are int32 in units, in which the sum is, too.
    """
    out = torch.zeros(dim, dtype=torch.int64, device=seeds.device)
    if len(seeds):
        with on_device(seeds.device):
            grid = (triton.cdiv(dim, 16 * _BLOCKS), triton.cdiv(len(seeds), _SEEDS))
            words = (_words(seeds), cells, out, len(seeds), dim, *struct.unpack("<4i", domain))
            _sum_kernel[grid](*words, BLOCKS=_BLOCKS, SEEDS=_SEEDS)
    return out


def expand_triton(seeds: Tensor, *, cells: Tensor, dim: int, domain: bytes) -> Tensor:
    """The vectors that :func:`sum_triton` adds up, (seeds, dim) int32 in units."""
    out = torch.empty((len(seeds), dim), dtype=torch.int32, device=seeds.device)
    if len(seeds):
        with on_device(seeds.device):
            grid = (triton.cdiv(dim, 16 * _BLOCKS), len(seeds))
            _expand_kernel[grid](
                _words(seeds), cells, out, dim, *struct.unpack("<4i", domain), BLOCKS=_BLOCKS
            )
    return out


def _words(seeds: Tensor) -> Tensor:
    return ((seeds + (1 << 31)) % (1 << 32) - (1 << 31)).to(torch.int32).contiguous()
