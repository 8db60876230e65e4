"""Public vectors of seeds in Triton: expanded and added up on chip, so that no vector is ever stored."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from shuffle_plugins.compressors.seeds import DOMAIN, UNIT
from shuffle_plugins.randomness.triton_chacha import chacha_blocks, interleave, on_device

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
