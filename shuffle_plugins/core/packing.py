"""Whole numbers of any width to bytes and back, most significant bit first, with no bit wasted in between.

Eight values of b bits, or fewer where b is even, fill whole bytes. So packing is a fixed pattern of at most
b + 8 shifts, each over one value of every group. Only where records of several fields are put together does
a bit take a byte of its own for a while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch

MAX_BITS = 62
"""Most bits of one value."""

_CHUNK = 1 << 18  # groups handled at a time, which fit a cache


def compact_dtype(bits: int) -> torch.dtype:
    """The smallest of uint8, int32 and int64 that holds every value of that many bits."""
    if bits <= 8:
        return torch.uint8
    return torch.int32 if bits <= 31 else torch.int64


def pack_bits(values: Tensor, bits: int) -> Tensor:
    """Integers of any shape in [0, 2**bits), one after the other, uint8; zeros fill the last byte."""
    checks.whole("bits", bits, at_least=0, at_most=MAX_BITS)
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"only integers are packed, got {values.dtype}")
    if values.numel() and not (int(values.min()) >= 0 and int(values.max()) < 1 << bits):
        raise ValueError(f"a value does not fit in {bits} bits")
    return pack_rows(values.reshape(1, -1), bits)[0]


def pack_rows(values: Tensor, bits: int) -> Tensor:
    """Each row of (rows, width) packed to whole bytes of its own, uint8 (rows, bytes). Checks nothing."""
    rows, width = values.shape
    if bits == 1 and values.is_cpu:
        return torch.from_numpy(np.packbits(values.to(torch.uint8).numpy(), axis=1))
    packed = torch.zeros((rows, (width * bits + 7) // 8), dtype=torch.uint8, device=values.device)
    if packed.numel() == 0:
        return packed
    values = values.to(compact_dtype(bits))
    each, length = _group(bits)
    whole = width // each
    if whole:
        groups = values[:, : each * whole].view(rows, whole, each)
        into = packed[:, : whole * length].view(rows, whole, length)
        for source, target in _chunks(groups, into):
            _pack_group(source, target, bits)
    if width % each:
        _pack_group(values[:, each * whole :], packed[:, whole * length :], bits)
    return packed


def unpack_rows(packed: Tensor, bits: int, width: int) -> Tensor:
    """What :func:`pack_rows` packed, (rows, width). Bits behind a row's last value are ignored."""
    if bits == 1 and packed.is_cpu:
        return torch.from_numpy(np.unpackbits(packed.numpy(), axis=1, count=width))
    rows = packed.shape[0]
    values = torch.zeros((rows, width), dtype=compact_dtype(bits), device=packed.device)
    if values.numel() == 0 or bits == 0:
        return values
    each, length = _group(bits)
    whole = width // each
    if whole:
        groups = packed[:, : whole * length].view(rows, whole, length)
        into = values[:, : each * whole].view(rows, whole, each)
        for source, target in _chunks(groups, into):
            _unpack_group(source, target, bits)
    if width % each:
        _unpack_group(packed[:, whole * length :], values[:, each * whole :], bits)
    return values


def pack_records(fields: Sequence[tuple[Tensor, int]]) -> Tensor:
    """Records one after the other, their fields in order, uint8; zeros fill the last byte. Checks nothing.

    Fields are integers (records, width), with the bits of one value.
    """
    if len(fields) == 1:
        values, bits = fields[0]
        return pack_rows(values.reshape(1, -1), bits)[0]
    return torch.from_numpy(np.packbits(_bits_of(fields)))


def pack_each(fields: Sequence[tuple[Tensor, int]]) -> Tensor:
    """Each record packed as :func:`pack_records` does by itself, uint8 (records, bytes). Checks nothing."""
    if len(fields) == 1:
        return pack_rows(*fields[0])
    return torch.from_numpy(np.packbits(_bits_of(fields), axis=1))


def unpack_records(data: Tensor, layout: Sequence[tuple[int, int]], records: int) -> list[Tensor]:
    """The fields that :func:`pack_records` packed, of this layout: bits of one value and width of each."""
    if len(layout) == 1:
        bits, width = layout[0]
        return [unpack_rows(data.reshape(1, -1), bits, records * width).reshape(records, width)]
    length = sum(bits * width for bits, width in layout)
    joined = np.unpackbits(data.cpu().numpy(), count=records * length)
    return _fields_of(joined.reshape(records, length), layout)


def unpack_each(rows: Tensor, layout: Sequence[tuple[int, int]]) -> list[Tensor]:
    """The fields that :func:`pack_each` packed."""
    if len(layout) == 1:
        return [unpack_rows(rows, *layout[0])]
    return _fields_of(np.unpackbits(rows.cpu().numpy(), axis=1), layout)


def _bits_of(fields: Sequence[tuple[Tensor, int]]) -> NDArray[np.uint8]:
    """Each record's bits, its fields in order, each bit in a byte of its own: (records, bits)."""
    packed = [(pack_rows(values, bits), values.shape[1] * bits) for values, bits in fields]
    parts = [np.unpackbits(rows.cpu().numpy(), axis=1, count=count) for rows, count in packed]
    return np.concatenate(parts, axis=1)


def _fields_of(joined: NDArray[np.uint8], layout: Sequence[tuple[int, int]]) -> list[Tensor]:
    """The fields whose bits :func:`_bits_of` put beside each other."""
    fields = []
    start = 0
    for bits, width in layout:
        stop = start + bits * width
        rows = torch.from_numpy(np.packbits(joined[:, start:stop], axis=1))
        fields.append(unpack_rows(rows, bits, width))
        start = stop
    return fields


def _chunks(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """The same rows or groups of each (rows, groups, k), a few at a time."""
    rows, groups = tensors[0].shape[:2]
    step = max(1, _CHUNK // groups)
    part = min(groups, _CHUNK)
    return [
        tuple(tensor[i : i + step, j : j + part] for tensor in tensors)
        for i in range(0, rows, step)
        for j in range(0, groups, part)
    ]


def _group(bits: int) -> tuple[int, int]:
    """The fewest values that fill whole bytes, and how many bytes those are."""
    common = math.gcd(bits, 8)
    return 8 // common, bits // common


def _overlaps(bits: int, count: int) -> list[tuple[int, int, int]]:
    """(byte, value, right shift of the value) wherever a byte holds a part of one of ``count`` values."""
    return [
        (byte, value, (value + 1) * bits - 8 * (byte + 1))
        for byte in range((count * bits + 7) // 8)
        for value in range(8 * byte // bits, min(count - 1, (8 * byte + 7) // bits) + 1)
    ]


def _pack_group(values: Tensor, packed: Tensor, bits: int) -> None:
    for byte, value, shift in _overlaps(bits, values.shape[-1]):
        source = values[..., value]
        moved = source >> shift if shift >= 0 else (source & 0xFF) << -shift
        packed[..., byte] |= (moved & 0xFF).to(torch.uint8)


def _unpack_group(packed: Tensor, values: Tensor, bits: int) -> None:
    for byte, value, shift in _overlaps(bits, values.shape[-1]):
        before = max(0, value * bits - 8 * byte)
        part = (packed[..., byte] & (0xFF >> before)).to(values.dtype)
        values[..., value] |= part << shift if shift >= 0 else part >> -shift
