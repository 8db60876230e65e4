"""Triton kernels: Walsh-Hadamard transforms, randomised signs drawn and packed, public vectors of seeds."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import math
import struct
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from shuffle_plugins.compressors.hadamard import padded_dim
from shuffle_plugins.compressors.kernels.signs import MARGIN, WORD_BITS, coin_gain, packed_width
from shuffle_plugins.compressors.quantization import SignThresholds
from shuffle_plugins.compressors.seeds import DOMAIN, UNIT
from shuffle_plugins.core import Rows
from shuffle_plugins.randomness.chacha import Keystream
from shuffle_plugins.randomness.triton_chacha import KEY_ARGUMENTS, chacha_blocks, interleave, on_device

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
    warps = min(max(values >> 10, 1), 32)
    return {"num_warps": warps, "enable_fp_fusion": False}


_WORDS = 128
_COUNTED_WORDS = 64
_COUNTED_ROWS = 512
_ROUND = tl.constexpr(2.0**52)
_SCRATCH_VALUES = 1 << 23
_GATHERED = 4096


@triton.jit
def _threshold(value, low):
    """The integer threshold of a sign, as ``sign_thresholds`` of the torch path computes it."""
    low = low.to(tl.int64)
    half_span = ((1 << 61) - low).to(tl.float64)
    product = (1.0 - tl.abs(value.to(tl.float64))) * half_span
    rounded = tl.where(product < _ROUND, (product + _ROUND) - _ROUND, product)
    from_nearer_end = rounded.to(tl.int64)
    return tl.where(value < 0, low + from_nearer_end, (1 << 62) - low - from_nearer_end)


@triton.jit
def _coin(pairs, place):
    """Coin ``place`` of a block of which ``pairs`` are the sixteen words, as int32."""
    word = tl.sum(tl.where(tl.arange(0, 16)[None, :] == place // 2, pairs, 0))
    return ((word >> (16 * (place % 2))) << 16) >> 16


@triton.jit
def _draw(
    values, first_block, gain, low, k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, s0, s1, MARGIN: tl.constexpr
):
    """A packed word for each 32 of a flat tile of values in [-1, 1]; they share a block of coins."""
    blocks: tl.constexpr = values.numel // 32
    block = tl.arange(0, blocks)
    place = tl.arange(0, 32)[None, :]
    stream = chacha_blocks(k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, first_block + block)
    pairs = interleave(*stream).to(tl.int32, bitcast=True)
    coins = tl.reshape(tl.join((pairs << 16) >> 16, pairs >> 16), (blocks, 32))
    excess = tl.reshape(values, (blocks, 32)) * gain - coins.to(tl.float32)
    plus = tl.sum((excess >= 0.5).to(tl.int32) << place, axis=1)
    near = tl.sum((tl.abs(excess - 0.5) < 0.5 + MARGIN).to(tl.int32) << place, axis=1)
    left = tl.sum(((near[:, None] >> place) & 1).to(tl.int32))
    flat = tl.arange(0, values.numel)
    while left > 0:
        chosen_block = tl.min(tl.where(near != 0, block, blocks), axis=0)
        here = block == chosen_block
        word = tl.sum(tl.where(here, near, 0), axis=0)
        chosen = tl.min(tl.where(((word >> tl.arange(0, 32)) & 1) != 0, tl.arange(0, 32), 32), axis=0)
        value = tl.sum(tl.where(flat == chosen_block * 32 + chosen, values, 0.0), axis=0)
        only = first_block + chosen_block + tl.zeros((1,), tl.int64)
        again = chacha_blocks(k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, only)
        coin = _coin(interleave(*again).to(tl.int32, bitcast=True), chosen)
        refinement = chacha_blocks(k0, k1, k2, k3, k4, k5, k6, k7, s0, s1, only * 32 + chosen)
        lower = ((refinement[1].to(tl.int64) << 32) | refinement[0].to(tl.int64)) & ((1 << 46) - 1)
        drawn = tl.sum(((coin + 32768).to(tl.int64) << 46) | lower, axis=0)
        sign = (drawn < _threshold(value, low)).to(tl.int32)
        cleared = plus & ~(tl.full(plus.shape, 1, tl.int32) << chosen)
        plus = tl.where(here, cleared | (sign << chosen), plus)
        near = tl.where(here, near & ~(tl.full(near.shape, 1, tl.int32) << chosen), near)
        left -= 1
    return plus


# fmt: off
@triton.jit(do_not_specialize=["first_row", "low", *KEY_ARGUMENTS, "s0", "s1"])
def _encode_kernel(
    x, signs, packed, rows, columns, stride, first_row, factor, gain, low, k0, k1, k2, k3, k4, k5, k6, k7,
    n0, n1, s0, s1, SIZE: tl.constexpr, STAGES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    SIGNED: tl.constexpr, MARGIN: tl.constexpr
):
    flat = tl.arange(0, ROWS * WIDTH)
    start = tl.program_id(0).to(tl.int64) * ROWS
    row = start + flat // WIDTH
    column = flat % WIDTH
    values = load_tile(x, signs, row, column, rows, columns, stride, SIGNED, tl.float32)
    values = butterflies(values, SIZE, 1, STAGES) * factor
    values = tl.where(values == values, values, 0.0)
    values = tl.minimum(tl.maximum(values, -1.0), 1.0)
    first_block = (first_row + start) * (WIDTH // 32)
    words = _draw(values, first_block, gain, low, k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, s0, s1, MARGIN)
    if SIZE < 32:
        words = words & ((1 << SIZE) - 1)
    index = tl.arange(0, ROWS * WIDTH // 32)
    tl.store(packed + start * (WIDTH // 32) + index, words, mask=start + index // (WIDTH // 32) < rows)
# fmt: on


# fmt: off
@triton.jit(do_not_specialize=["low", *KEY_ARGUMENTS, "s0", "s1"])
def _gather_kernel(
    x, indices, out, draws, count, stride, factor, gain, low, k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, s0, s1,
    DRAWS: tl.constexpr, MARGIN: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * DRAWS
    draw = start + tl.arange(0, DRAWS)
    inside = draw < draws
    column = tl.load(indices + draw, mask=inside, other=0)
    values = tl.load(x + (draw // count) * stride + column, mask=inside, other=0.0).to(tl.float32) * factor
    values = tl.where(values == values, values, 0.0)
    values = tl.minimum(tl.maximum(values, -1.0), 1.0)
    first_block = start // 32
    words = _draw(values, first_block, gain, low, k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, s0, s1, MARGIN)
    bits = (words[:, None] >> tl.arange(0, 32)[None, :]) & 1
    tl.store(out + draw, tl.reshape(bits, (DRAWS,)).to(tl.uint8), mask=inside)
# fmt: on


def encode_signs_triton(
    rows: Rows, *, signs: Tensor | None, scale: float, rule: SignThresholds, draw: Keystream
) -> Tensor:
    """One kernel where a row fits into a program and the batch is one block of columns; else in chunks."""
    size = padded_dim(rows.dim)
    factor = 1 / (math.sqrt(size) * scale)
    signs = None if signs is None else signs.to(rows.device)
    packed = torch.empty((rows.num_rows, packed_width(size)), dtype=torch.int32, device=rows.device)
    fits = size <= LARGEST_TILE
    chunk = max(1, rows.num_rows if fits and len(rows.blocks) == 1 else _SCRATCH_VALUES // size)
    for start in range(0, rows.num_rows, chunk):
        part = rows.narrow(start, start + chunk).dense()
        blocks = part if fits else high_butterflies(part, size=size, signs=signs)
        together = blocks.shape[0] // part.shape[0]
        _encode(
            blocks,
            packed[start : start + chunk].view(blocks.shape[0], -1),
            signs=signs if fits else None,
            size=size // together,
            first_row=start * together,
            factor=factor,
            rule=rule,
            draw=draw,
        )
    return packed


def gather_signs_triton(
    x: Tensor, indices: Tensor, *, scale: float, rule: SignThresholds, draw: Keystream
) -> Tensor:
    """:func:`~shuffle_plugins.compressors.kernels.signs.gather_signs` in Triton."""
    out = torch.empty(indices.shape, dtype=torch.uint8, device=x.device)
    if out.numel():
        x = x if x.stride(1) == 1 else x.contiguous()
        with on_device(x.device):
            # fmt: off
            _gather_kernel[(triton.cdiv(out.numel(), _GATHERED),)](
                x, indices.contiguous(), out, out.numel(), indices.shape[1], x.stride(0), 1 / scale,
                coin_gain(rule), rule.low, *draw.state, *draw.following.state[8:], DRAWS=_GATHERED,
                MARGIN=MARGIN, **launch_options(_GATHERED)
            )
            # fmt: on
    return out


def _encode(
    x: Tensor,
    packed: Tensor,
    *,
    signs: Tensor | None,
    size: int,
    first_row: int,
    factor: float,
    rule: SignThresholds,
    draw: Keystream,
) -> None:
    if x.shape[0] == 0:
        return
    x = x if x.stride(1) == 1 else x.contiguous()
    width = WORD_BITS * packed_width(size)
    together = rows_per_program(width)
    with on_device(x.device):
        # fmt: off
        _encode_kernel[(triton.cdiv(x.shape[0], together),)](
            x, x if signs is None else signs, packed, *x.shape, x.stride(0), first_row, factor,
            coin_gain(rule), rule.low, *draw.state, *draw.following.state[8:], SIZE=size,
            STAGES=size.bit_length() - 1, WIDTH=width, ROWS=together, SIGNED=signs is not None, MARGIN=MARGIN,
            **launch_options(together * width)
        )
        # fmt: on


@triton.jit
def _pack_kernel(bits, packed, words, columns, width, WORDS: tl.constexpr):
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    place = tl.arange(0, 32)[None, :]
    column = (word % width)[:, None] * 32 + place
    inside = (word < words)[:, None] & (column < columns)
    loaded = tl.load(bits + (word // width)[:, None] * columns + column, mask=inside, other=0)
    tl.store(packed + word, tl.sum((loaded.to(tl.int32) & 1) << place, axis=1), mask=word < words)


@triton.jit
def _unpack_kernel(packed, bits, words, columns, width, WORDS: tl.constexpr):
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    place = tl.arange(0, 32)[None, :]
    column = (word % width)[:, None] * 32 + place
    inside = (word < words)[:, None] & (column < columns)
    unpacked = (tl.load(packed + word, mask=word < words, other=0)[:, None] >> place) & 1
    tl.store(bits + (word // width)[:, None] * columns + column, unpacked.to(tl.uint8), mask=inside)


@triton.jit
def _count_kernel(packed, counts, rows, width, ROWS: tl.constexpr, WORDS: tl.constexpr):
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    place = tl.arange(0, 32)[None, :]
    start = tl.program_id(1) * ROWS
    pointers = packed + start.to(tl.int64) * width + word
    total = tl.zeros((WORDS, 32), tl.int32)
    for _ in range(tl.minimum(ROWS, rows - start)):
        words = tl.load(pointers, mask=word < width, other=0)
        total += (words[:, None] >> place) & 1
        pointers += width
    tl.atomic_add(counts + word[:, None] * 32 + place, total.to(tl.int64), mask=(word < width)[:, None])


def pack_signs_triton(bits: Tensor) -> Tensor:
    """:func:`~shuffle_plugins.compressors.kernels.signs.pack_signs` in Triton."""
    rows, columns = bits.shape
    width = -(-columns // 32)
    packed = torch.empty((rows, width), dtype=torch.int32, device=bits.device)
    if packed.numel():
        with on_device(bits.device):
            _pack_kernel[(triton.cdiv(packed.numel(), _WORDS),)](
                bits.contiguous().view(torch.uint8), packed, packed.numel(), columns, width, WORDS=_WORDS
            )
    return packed


def unpack_signs_triton(packed: Tensor, *, columns: int) -> Tensor:
    """:func:`~shuffle_plugins.compressors.kernels.signs.unpack_signs` in Triton."""
    rows, width = packed.shape
    bits = torch.empty((rows, columns), dtype=torch.uint8, device=packed.device)
    if bits.numel():
        with on_device(packed.device):
            _unpack_kernel[(triton.cdiv(packed.numel(), _WORDS),)](
                packed.contiguous(), bits, packed.numel(), columns, width, WORDS=_WORDS
            )
    return bits


def decode_signs_triton(packed: Tensor, *, columns: int) -> Tensor:
    """:func:`~shuffle_plugins.compressors.kernels.signs.decode_signs` in Triton."""
    rows, width = packed.shape
    counts = torch.zeros(width * 32, dtype=torch.int64, device=packed.device)
    if packed.numel():
        grid = (triton.cdiv(width, _COUNTED_WORDS), triton.cdiv(rows, _COUNTED_ROWS))
        with on_device(packed.device):
            _count_kernel[grid](
                packed.contiguous(), counts, rows, width, ROWS=_COUNTED_ROWS, WORDS=_COUNTED_WORDS
            )
    return counts[:columns]


_DOMAIN_WORDS = struct.unpack("<4i", DOMAIN)
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


def sum_triton(seeds: Tensor, *, cells: Tensor, dim: int) -> Tensor:
    """The sum of the vectors of seeds (seeds, 4) int64, (dim,) float64; ``cells`` int32 in units."""
    out = torch.zeros(dim, dtype=torch.int64, device=seeds.device)
    if len(seeds):
        with on_device(seeds.device):
            grid = (triton.cdiv(dim, 16 * _BLOCKS), triton.cdiv(len(seeds), _SEEDS))
            _sum_kernel[grid](
                _words(seeds), cells, out, len(seeds), dim, *_DOMAIN_WORDS, BLOCKS=_BLOCKS, SEEDS=_SEEDS
            )
    return out.double().mul_(UNIT)


def expand_triton(seeds: Tensor, *, cells: Tensor, dim: int) -> Tensor:
    """The vectors of seeds (seeds, 4) int64, (seeds, dim) float64; ``cells`` int32 in units."""
    out = torch.empty((len(seeds), dim), dtype=torch.int32, device=seeds.device)
    if len(seeds):
        with on_device(seeds.device):
            grid = (triton.cdiv(dim, 16 * _BLOCKS), len(seeds))
            _expand_kernel[grid](_words(seeds), cells, out, dim, *_DOMAIN_WORDS, BLOCKS=_BLOCKS)
    return out.double().mul_(UNIT)


def _words(seeds: Tensor) -> Tensor:
    return ((seeds + (1 << 31)) % (1 << 32) - (1 << 31)).to(torch.int32).contiguous()
