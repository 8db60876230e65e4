"""Randomised signs of rotated rows and of gathered coordinates, and bits of 32 columns in a word.

Signs are drawn lazily: 16 bits for every draw, the other 46 only where those do not decide.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from shuffle_plugins.compressors.hadamard import checked_indices, padded_dim, padded_transform
from shuffle_plugins.compressors.quantization import SignThresholds, plus_thresholds
from shuffle_plugins.core import Rows, checks
from shuffle_plugins.randomness.chacha import COIN_BITS, PROBABILITY_BITS, Keystream, runs_kernels

WORD_BITS = 32

MARGIN = 2.0**-5
"""Float32 errs by less than this in the expected coin; within it, integers decide."""

_LOWER_BITS = PROBABILITY_BITS - COIN_BITS
CHUNK_VALUES = 1 << 17
"""Values that the torch path holds at a time, unless one row has more."""


def _triton() -> Any:
    return import_module("shuffle_plugins.compressors.kernels.triton_kernels")


# -- bits in words ----------------------------------------------------------------------------------------


def packed_width(columns: int) -> int:
    """Words in a row of so many bits."""
    return -(-columns // WORD_BITS)


def pack_signs(bits: Tensor) -> Tensor:
    """Bits of each row, bool or uint8, in int32 words, (rows, ceil(columns / 32)); column j is bit j % 32."""
    if bits.dim() != 2 or bits.dtype not in (torch.bool, torch.uint8):
        raise ValueError(f"bits are (rows, columns), bool or uint8, got {bits.dtype} {tuple(bits.shape)}")
    if runs_kernels(bits.device):
        return _triton().pack_signs_triton(bits)
    rows, columns = bits.shape
    width = packed_width(columns)
    packed = torch.empty((rows, width), dtype=torch.int32, device=bits.device)
    chunk = max(1, (1 << 20) // max(1, columns))  # bits handled at a time
    for start in range(0, rows, chunk):
        part = bits[start : start + chunk].view(torch.uint8)
        padded = pad(part, (0, width * WORD_BITS - columns))
        eights = padded.view(torch.int64) & 0x0101010101010101  # the lowest bit of each of eight bytes
        gathered = eights.mul_(0x0102040810204080) >> 56  # the lowest bits of eight bytes in the top byte
        packed[start : start + chunk] = gathered.to(torch.uint8).view(torch.int32)
    return packed


def unpack_signs(packed: Tensor, *, columns: int) -> Tensor:
    """The bits that :func:`pack_signs` packed, (rows, columns) uint8."""
    check_packed(packed, columns=columns)
    if runs_kernels(packed.device):
        return _triton().unpack_signs_triton(packed, columns=columns)
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = (packed.contiguous().view(torch.uint8).unsqueeze(2) >> places).bitwise_and_(1)
    return bits.flatten(1)[:, :columns].contiguous()


def decode_signs(packed: Tensor, *, columns: int) -> Tensor:
    """How many rows have each bit set, (columns,) int64; 2 · count - rows is the sum of the signs."""
    check_packed(packed, columns=columns)
    if runs_kernels(packed.device):
        return _triton().decode_signs_triton(packed, columns=columns)
    counts = torch.zeros(columns, dtype=torch.int64, device=packed.device)
    chunk = max(1, (1 << 20) // max(1, columns))  # bits handled at a time
    for start in range(0, packed.shape[0], chunk):
        counts += unpack_signs(packed[start : start + chunk], columns=columns).sum(dim=0)
    return counts


def check_packed(packed: Tensor, *, columns: int) -> None:
    """Refuse what is not (rows, ceil(columns / 32)) int32."""
    if packed.dim() != 2 or packed.dtype != torch.int32 or packed.shape[1] != packed_width(columns):
        raise ValueError(
            f"bits of {columns} columns come packed as int32 (rows, {packed_width(columns)}), got "
            f"{packed.dtype} {tuple(packed.shape)}"
        )


# -- draws ------------------------------------------------------------------------------------------------


def coin_gain(thresholds: SignThresholds) -> float:
    """Expected threshold of the value 1 less that of 0, in units of a coin."""
    return thresholds.gain * 2.0 ** (COIN_BITS - 1)


def lazy_signs(values: Tensor, thresholds: SignThresholds, *, draw: Keystream, first: int = 0) -> Tensor:
    """As :func:`.random_signs` of a flat float32 tensor, as bool: draw ``first + i`` for value i.

    Its upper 16 bits are coin i plus 2**15, its lower 46 those of refinement i; ``first`` is a multiple of 4.
    """
    coins = draw.coins(first, values.numel(), device=values.device)
    excess = (values * coin_gain(thresholds)).sub_(coins).sub_(0.5)
    plus = excess >= 0
    undecided = _indices(excess.abs_() < 0.5 + MARGIN)
    if undecided.numel():
        upper = coins[undecided].to(torch.int64).add_(1 << (COIN_BITS - 1)) << _LOWER_BITS
        lower = draw.refinements(undecided + first) & ((1 << _LOWER_BITS) - 1)
        plus[undecided] = upper + lower < plus_thresholds(values[undecided], thresholds=thresholds)
    return plus


def _indices(flags: Tensor) -> Tensor:
    """Where a vector of flags is set; numpy looks eight flags at a time, torch at each."""
    if flags.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(flags.numpy()))
    return flags.nonzero().squeeze(1)


# -- signs ------------------------------------------------------------------------------------------------


def encode_signs(
    x: Tensor | Rows, *, signs: Tensor | None, scale: float, low_threshold: int, draw: Keystream
) -> Tensor:
    r"""A randomised-response sign for every coordinate of each rotated row, packed 32 to a word.

    Row i is zero-padded to ``size``, the next power of two, and rotated: :math:`y = H\,D\,x_i / \sqrt{size}`,
    D the diagonal of ``signs``. Its coordinate j becomes :math:`v = \mathrm{clamp}(y_j / scale, -1, 1)`, in
    float32 (NaN counts as 0), and a plus sign with probability :math:`\tfrac12 + (\tfrac12 - low/2^{62})\,v`.
    All coordinates are sent: ε0 of a row is ``size`` times that of a sign.

    Args:
        signs: (dim,) int8, +1 and -1; None for +1 everywhere.
        scale: what becomes ±1; positive.
        low_threshold: ``low``, in [1, 2**61].
        draw: from :meth:`~shuffle_plugins.randomness.Randomness.keystream`, for this call alone: coordinate j
            of row i takes draw 32 · ceil(size/32) · i + j.
    """
    rows, scale = Rows.of(x), checks.number("scale", scale, above=0)
    rule = SignThresholds(checks.whole("low_threshold", low_threshold, at_most=1 << (PROBABILITY_BITS - 1)))
    if signs is not None and (signs.shape != (rows.dim,) or signs.dtype != torch.int8):
        raise ValueError(f"signs must be int8 ({rows.dim},), got {signs.dtype} {tuple(signs.shape)}")
    if runs_kernels(rows.device):
        return _triton().encode_signs_triton(rows, signs=signs, scale=scale, rule=rule, draw=draw)
    return encode_signs_torch(rows, signs=signs, scale=scale, rule=rule, draw=draw)


def gather_signs(
    x: Tensor | Rows, indices: Tensor, *, scale: float, low_threshold: int, draw: Keystream
) -> Tensor:
    """A randomised-response sign of chosen coordinates of each row, by the rule of :func:`encode_signs`.

    ``indices`` are int64 (clients, count), in [0, dim); coordinate k of row i takes draw count · i + k.
    Returns uint8 (clients, count), 1 for plus.
    """
    rows, scale = Rows.of(x), checks.number("scale", scale, above=0)
    rule = SignThresholds(checks.whole("low_threshold", low_threshold, at_most=1 << (PROBABILITY_BITS - 1)))
    checked_indices(indices, rows, size=rows.dim)
    if runs_kernels(rows.device) and len(rows.blocks) == 1:
        return _triton().gather_signs_triton(rows.blocks[0], indices, scale=scale, rule=rule, draw=draw)
    clients, count = indices.shape
    signs = torch.empty((clients, count), dtype=torch.uint8, device=rows.device)
    chunk = WORD_BITS * max(1, CHUNK_VALUES // (WORD_BITS * max(1, count)))
    for start in range(0, clients, chunk):
        chosen = indices[start : start + chunk]
        values = rows.narrow(start, start + chunk).gather(chosen).to(torch.float32)
        bits = lazy_signs(_unit_values(values, 1 / scale).view(-1), rule, draw=draw, first=start * count)
        signs[start : start + chunk] = bits.view(chosen.shape)
    return signs


def encode_signs_torch(
    rows: Rows, *, signs: Tensor | None, scale: float, rule: SignThresholds, draw: Keystream
) -> Tensor:
    """A chunk of rows at a time."""
    size = padded_dim(rows.dim)
    width = WORD_BITS * packed_width(size)
    packed = torch.empty((rows.num_rows, width // WORD_BITS), dtype=torch.int32, device=rows.device)
    chunk = max(1, CHUNK_VALUES // width)
    for start in range(0, rows.num_rows, chunk):
        part = rows.narrow(start, start + chunk).dense().to(torch.float32)
        rotated = padded_transform(part, signs=signs)
        values = pad(_unit_values(rotated, 1 / (math.sqrt(size) * scale)), (0, width - size))
        bits = lazy_signs(values.view(-1), rule, draw=draw, first=start * width).view(values.shape)
        bits[:, size:] = False
        packed[start : start + chunk] = pack_signs(bits)
    return packed


def _unit_values(values: Tensor, factor: float) -> Tensor:
    return values.mul_(factor).nan_to_num_(nan=0.0).clamp_(-1, 1)
