"""Randomised signs of rotated rows, packed, and of gathered coordinates: the torch path and the dispatch."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from shuffle_plugins.compressors.hadamard import padded_dim, padded_transform
from shuffle_plugins.compressors.kernels.bits import WORD_BITS, pack_signs_torch, packed_width
from shuffle_plugins.compressors.kernels.draws import SignRule
from shuffle_plugins.core import Rows, checks
from shuffle_plugins.randomness import Keystream, runs_kernels

CHUNK_VALUES = 1 << 17
"""Values that the torch path holds at a time, unless one row has more."""


def encode_signs(
    x: Tensor | Rows, *, signs: Tensor | None, scale: float, low_threshold: int, draw: Keystream
) -> Tensor:
    r"""A randomised-response sign for every coordinate of each rotated row, packed 32 to a word.

    Row i is zero-padded to ``size``, the next power of two, and rotated:
    :math:`y = H\,D\,x_i / \sqrt{size}`, D the diagonal of ``signs``. Its coordinate j becomes
    :math:`v = \mathrm{clamp}(y_j / scale, -1, 1)` and a plus sign with probability
    :math:`\tfrac12 + (\tfrac12 - low/2^{62})\,v`, an integer multiple of 2**-62 in [low, 2**62 - low]. So the
    sign stands for :math:`\pm scale / (1 - 2\,low/2^{62})`, unbiased where nothing is clamped. All
    coordinates are sent: ε0 of a row is ``size`` times that of a sign.

    The input is read once and bits are written; beyond them the torch path holds about 2**17 values, and so
    does the GPU, but for rows longer than 2**15. Both return the same bits: v is computed in float32,
    butterflies from the largest distance to the smallest, then one multiplication by 1/(√size · scale)
    rounded to float32; a sum that is NaN (it cannot be, of rows in a ball) counts as 0.

    Args:
        x: (clients, dim); 64-bit rows are rounded to float32.
        signs: (dim,) int8, +1 and -1; None for +1 everywhere.
        scale: what becomes ±1; positive.
        low_threshold: ``low``, in [1, 2**61].
        draw: from :meth:`~shuffle_plugins.randomness.Randomness.keystream`, for this call alone: coordinate j
            of row i takes draw 32 · ceil(size/32) · i + j.

    Returns:
        int32 (clients, ceil(size / 32)); unused bits are zero.

    Raises:
        ValueError: if an argument is out of range or shapes disagree.
    """
    rows, rule, scale = Rows.of(x), SignRule(low=low_threshold), checks.number("scale", scale, above=0)
    if signs is not None and (signs.shape != (rows.dim,) or signs.dtype != torch.int8):
        raise ValueError(f"signs must be int8 ({rows.dim},), got {signs.dtype} {tuple(signs.shape)}")
    if runs_kernels(rows.device):
        from shuffle_plugins.compressors.kernels.triton_signs import encode_signs_triton

        return encode_signs_triton(rows, signs=signs, scale=scale, rule=rule, draw=draw)
    return encode_signs_torch(rows, signs=signs, scale=scale, rule=rule, draw=draw)


def gather_signs(
    x: Tensor | Rows, indices: Tensor, *, scale: float, low_threshold: int, draw: Keystream
) -> Tensor:
    """A randomised-response sign of chosen coordinates of each row, by the rule of :func:`encode_signs`.

    Args:
        x: (clients, dim).
        indices: int64 (clients, count), in [0, dim).
        scale: what becomes ±1; positive.
        low_threshold: ``low``, in [1, 2**61].
        draw: for this call alone: coordinate k of row i takes draw count · i + k.

    Returns:
        uint8 (clients, count), 1 for plus.

    Raises:
        ValueError: if an argument is out of range or shapes disagree.
    """
    rows, rule, scale = Rows.of(x), SignRule(low=low_threshold), checks.number("scale", scale, above=0)
    if indices.dim() != 2 or indices.shape[0] != rows.num_rows or indices.dtype != torch.int64:
        raise ValueError(
            f"indices must be int64 (clients, count), got {indices.dtype} {tuple(indices.shape)}"
        )
    if indices.numel() and not (int(indices.min()) >= 0 and int(indices.max()) < rows.dim):
        raise ValueError(f"an index lies outside [0, {rows.dim})")
    if runs_kernels(rows.device) and len(rows.blocks) == 1:
        from shuffle_plugins.compressors.kernels.triton_signs import gather_signs_triton

        return gather_signs_triton(rows.blocks[0], indices, scale=scale, rule=rule, draw=draw)
    return gather_signs_torch(rows, indices, scale=scale, rule=rule, draw=draw)


def encode_signs_torch(
    rows: Rows, *, signs: Tensor | None, scale: float, rule: SignRule, draw: Keystream
) -> Tensor:
    """:func:`encode_signs` in torch, a chunk of rows at a time."""
    size = padded_dim(rows.dim)
    width = WORD_BITS * packed_width(size)
    packed = torch.empty((rows.num_rows, width // WORD_BITS), dtype=torch.int32, device=rows.device)
    chunk = max(1, CHUNK_VALUES // width)
    for start in range(0, rows.num_rows, chunk):
        part = rows.narrow(start, start + chunk).dense().to(torch.float32)
        rotated = padded_transform(part, signs=signs)
        values = pad(_unit_values(rotated, rotation_factor(size, scale)), (0, width - size))
        bits = rule.draw(values.view(-1), draw=draw, first=start * width).view(values.shape)
        bits[:, size:] = False
        packed[start : start + chunk] = pack_signs_torch(bits)
    return packed


def gather_signs_torch(
    rows: Rows, indices: Tensor, *, scale: float, rule: SignRule, draw: Keystream
) -> Tensor:
    """:func:`gather_signs` in torch, a chunk of rows at a time."""
    clients, count = indices.shape
    signs = torch.empty((clients, count), dtype=torch.uint8, device=rows.device)
    chunk = WORD_BITS * max(1, CHUNK_VALUES // (WORD_BITS * max(1, count)))
    for start in range(0, clients, chunk):
        chosen = indices[start : start + chunk]
        values = rows.narrow(start, start + chunk).gather(chosen).to(torch.float32)
        bits = rule.draw(_unit_values(values, 1 / scale).view(-1), draw=draw, first=start * count)
        signs[start : start + chunk] = bits.view(chosen.shape)
    return signs


def rotation_factor(size: int, scale: float) -> float:
    """What the unnormalised transform is multiplied by."""
    return 1 / (math.sqrt(size) * scale)


def _unit_values(values: Tensor, factor: float) -> Tensor:
    return values.mul_(factor).nan_to_num_(nan=0.0).clamp_(-1, 1)
