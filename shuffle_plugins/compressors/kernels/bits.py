"""Bits of 32 columns in a word: packed, unpacked, and counted without unpacking."""

from __future__ import annotations

import torch
from torch import Tensor

from shuffle_plugins.randomness import runs_kernels

WORD_BITS = 32

_CHUNK_VALUES = 1 << 20  # bits handled at a time
_CHUNK_WORDS = 1 << 16  # words handled at a time
_LOW_BITS = 0x0101010101010101  # the lowest bit of each of eight bytes
_GATHER = 0x0102040810204080  # moves the lowest bits of eight bytes into the top byte


def packed_width(columns: int) -> int:
    """Words in a row of so many bits."""
    return -(-columns // WORD_BITS)


def pack_signs(bits: Tensor) -> Tensor:
    """Bits of each row in int32 words, (rows, ceil(columns / 32)); column j is bit j % 32 of word j // 32.

    Args:
        bits: (rows, columns) bool, or uint8 of which the lowest bit counts.

    Raises:
        ValueError: if the bits are not that.
    """
    if bits.dim() != 2 or bits.dtype not in (torch.bool, torch.uint8):
        raise ValueError(f"bits are (rows, columns), bool or uint8, got {bits.dtype} {tuple(bits.shape)}")
    if runs_kernels(bits.device):
        from shuffle_plugins.compressors.kernels.triton_bits import pack_signs_triton

        return pack_signs_triton(bits)
    return pack_signs_torch(bits)


def unpack_signs(packed: Tensor, *, columns: int) -> Tensor:
    """The bits that :func:`pack_signs` packed, (rows, columns) uint8.

    Raises:
        ValueError: if ``packed`` is not (rows, ceil(columns / 32)) int32.
    """
    check_packed(packed, columns=columns)
    if runs_kernels(packed.device):
        from shuffle_plugins.compressors.kernels.triton_bits import unpack_signs_triton

        return unpack_signs_triton(packed, columns=columns)
    return unpack_signs_torch(packed, columns=columns)


def decode_signs(packed: Tensor, *, columns: int) -> Tensor:
    """How many rows have each bit set, (columns,) int64; 2 · count - rows is the sum of the signs.

    Raises:
        ValueError: if ``packed`` is not (rows, ceil(columns / 32)) int32.
    """
    check_packed(packed, columns=columns)
    if runs_kernels(packed.device):
        from shuffle_plugins.compressors.kernels.triton_bits import decode_signs_triton

        return decode_signs_triton(packed, columns=columns)
    return decode_signs_torch(packed, columns=columns)


def pack_signs_torch(bits: Tensor) -> Tensor:
    """:func:`pack_signs` in torch: a multiplication gathers eight bytes of one bit into one byte."""
    rows, columns = bits.shape
    width = packed_width(columns)
    packed = torch.empty((rows, width), dtype=torch.int32, device=bits.device)
    chunk = max(1, _CHUNK_VALUES // max(1, columns))
    for start in range(0, rows, chunk):
        part = bits[start : start + chunk].view(torch.uint8)
        padded = torch.nn.functional.pad(part, (0, width * WORD_BITS - columns))
        eights = padded.view(torch.int64) & _LOW_BITS
        packed[start : start + chunk] = (eights.mul_(_GATHER) >> 56).to(torch.uint8).view(torch.int32)
    return packed


def unpack_signs_torch(packed: Tensor, *, columns: int) -> Tensor:
    """:func:`unpack_signs` in torch."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = (packed.contiguous().view(torch.uint8).unsqueeze(2) >> places).bitwise_and_(1)
    return bits.flatten(1)[:, :columns].contiguous()


def decode_signs_torch(packed: Tensor, *, columns: int) -> Tensor:
    """:func:`decode_signs` in torch: full adders on whole words, so a row costs five operations a word."""
    counts = torch.zeros(packed.shape[1] * WORD_BITS, dtype=torch.int64, device=packed.device)
    chunk = max(1 << 10, _CHUNK_WORDS // max(1, packed.shape[1]))
    for start in range(0, packed.shape[0], chunk):
        level, weight = packed[start : start + chunk], 0
        while level.shape[0]:
            level, carried = _add_up(level)
            counts += unpack_signs_torch(level, columns=counts.numel()).sum(dim=0) << weight
            level, weight = carried, weight + 1
    return counts[:columns]


def check_packed(packed: Tensor, *, columns: int) -> None:
    """Raise ValueError unless ``packed`` is (rows, ceil(columns / 32)) int32."""
    if packed.dim() != 2 or packed.dtype != torch.int32 or packed.shape[1] != packed_width(columns):
        raise ValueError(
            f"bits of {columns} columns come packed as int32 (rows, {packed_width(columns)}), got "
            f"{packed.dtype} {tuple(packed.shape)}"
        )


def _add_up(level: Tensor) -> tuple[Tensor, Tensor]:
    """At most two rows, and rows of twice their weight, with the column sums of ``level``."""
    carried = [level[:0]]
    while (third := level.shape[0] // 3) > 0:
        a, b, c = level[: 3 * third].view(3, third, -1)
        odd = a ^ b
        carried.append((a & b) | (odd & c))
        level = torch.cat([odd.bitwise_xor_(c), level[3 * third :]])
    return level, torch.cat(carried)
