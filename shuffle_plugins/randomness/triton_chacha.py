"""ChaCha20 in Triton: whole blocks of the keystream in parallel."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

KEY_ARGUMENTS = ("k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "n0", "n1")
"""A kernel's arguments for ``Keystream.state``. Never let it specialise on them: it would be a key's own."""

_BLOCKS_PER_PROGRAM = 128
_WORDS_PER_BLOCK = 8


@triton.jit
def _rotate(x, bits: tl.constexpr):
    return (x << bits) | (x >> (32 - bits))


@triton.jit
def _quarter_round(a, b, c, d):
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _spread(word, zeros):
    return zeros + word.to(tl.uint32, bitcast=True)


@triton.jit
def chacha_blocks(k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, block):
    """Sixteen uint32 tensors of the shape of ``block``, a tensor of int64 block numbers."""
    zeros = tl.zeros(block.shape, tl.uint32)
    low = (block & 0xFFFFFFFF).to(tl.uint32)
    high = ((block >> 32) & 0xFFFFFFFF).to(tl.uint32)
    x0 = tl.full(block.shape, 0x61707865, tl.uint32)
    x1 = tl.full(block.shape, 0x3320646E, tl.uint32)
    x2 = tl.full(block.shape, 0x79622D32, tl.uint32)
    x3 = tl.full(block.shape, 0x6B206574, tl.uint32)
    x4 = _spread(k0, zeros)
    x5 = _spread(k1, zeros)
    x6 = _spread(k2, zeros)
    x7 = _spread(k3, zeros)
    x8 = _spread(k4, zeros)
    x9 = _spread(k5, zeros)
    x10 = _spread(k6, zeros)
    x11 = _spread(k7, zeros)
    x12 = low
    x13 = high
    x14 = _spread(n0, zeros)
    x15 = _spread(n1, zeros)
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    x0 = x0 + tl.full(block.shape, 0x61707865, tl.uint32)
    x1 = x1 + tl.full(block.shape, 0x3320646E, tl.uint32)
    x2 = x2 + tl.full(block.shape, 0x79622D32, tl.uint32)
    x3 = x3 + tl.full(block.shape, 0x6B206574, tl.uint32)
    x4 = x4 + _spread(k0, zeros)
    x5 = x5 + _spread(k1, zeros)
    x6 = x6 + _spread(k2, zeros)
    x7 = x7 + _spread(k3, zeros)
    x8 = x8 + _spread(k4, zeros)
    x9 = x9 + _spread(k5, zeros)
    x10 = x10 + _spread(k6, zeros)
    x11 = x11 + _spread(k7, zeros)
    x12 = x12 + low
    x13 = x13 + high
    x14 = x14 + _spread(n0, zeros)
    x15 = x15 + _spread(n1, zeros)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@triton.jit
def interleave(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15):
    """Sixteen tensors (blocks,) as one (blocks, 16), in the order of the arguments."""
    zero = tl.join(tl.join(x0, x8), tl.join(x4, x12))
    one = tl.join(tl.join(x1, x9), tl.join(x5, x13))
    two = tl.join(tl.join(x2, x10), tl.join(x6, x14))
    three = tl.join(tl.join(x3, x11), tl.join(x7, x15))
    return tl.reshape(tl.join(tl.join(zero, two), tl.join(one, three)), (x0.shape[0], 16))


@triton.jit(do_not_specialize=["first", "halves", *KEY_ARGUMENTS])
def _words_kernel(out, first, halves, k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, BLOCKS: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = chacha_blocks(
        k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, first + offset
    )
    words = interleave(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15)
    index = offset[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + index, words.to(tl.int32, bitcast=True), mask=index < halves)


def keystream_words(state: Sequence[int], start: int, count: int, *, device: torch.device) -> Tensor:
    """Words ``start`` to ``start + count`` of the keystream with a state, int64, on ``device``."""
    first = start // _WORDS_PER_BLOCK
    blocks = -(-(start + count) // _WORDS_PER_BLOCK) - first
    words = torch.empty(blocks * _WORDS_PER_BLOCK, dtype=torch.int64, device=device)
    if blocks:
        with on_device(device):
            _words_kernel[(triton.cdiv(blocks, _BLOCKS_PER_PROGRAM),)](
                words.view(torch.int32), first, 2 * words.numel(), *state, BLOCKS=_BLOCKS_PER_PROGRAM
            )
    offset = start - first * _WORDS_PER_BLOCK
    return words[offset : offset + count]


def on_device(device: torch.device) -> torch.cuda.device:
    """Make a CUDA device the current one, to which Triton launches; does nothing for the CPU."""
    return torch.cuda.device(device if device.type == "cuda" else -1)
