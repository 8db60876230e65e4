"""Bits packed, unpacked and counted in Triton."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from shuffle_plugins.randomness.triton_chacha import on_device

_WORDS = 128
_COUNTED_WORDS = 64
_COUNTED_ROWS = 512


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
    """:func:`~shuffle_plugins.compressors.kernels.bits.pack_signs` in Triton."""
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
    """:func:`~shuffle_plugins.compressors.kernels.bits.unpack_signs` in Triton."""
    rows, width = packed.shape
    bits = torch.empty((rows, columns), dtype=torch.uint8, device=packed.device)
    if bits.numel():
        with on_device(packed.device):
            _unpack_kernel[(triton.cdiv(packed.numel(), _WORDS),)](
                packed.contiguous(), bits, packed.numel(), columns, width, WORDS=_WORDS
            )
    return bits


def decode_signs_triton(packed: Tensor, *, columns: int) -> Tensor:
    """:func:`~shuffle_plugins.compressors.kernels.bits.decode_signs` in Triton."""
    rows, width = packed.shape
    counts = torch.zeros(width * 32, dtype=torch.int64, device=packed.device)
    if packed.numel():
        grid = (triton.cdiv(width, _COUNTED_WORDS), triton.cdiv(rows, _COUNTED_ROWS))
        with on_device(packed.device):
            _count_kernel[grid](
                packed.contiguous(), counts, rows, width, ROWS=_COUNTED_ROWS, WORDS=_COUNTED_WORDS
            )
    return counts[:columns]
