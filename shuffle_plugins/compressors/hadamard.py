r"""Walsh-Hadamard transforms of batches, and single coefficients without the whole transform.

H is the 2**k x 2**k matrix with entries :math:`H_{ij} = (-1)^{\mathrm{popcount}(i \wedge j)}` (Sylvester's
order), so :math:`H H = 2^k I`.

**Order of summation.** Every path (torch, compiled, GPU) applies the butterflies (a, b) -> (a + b, a - b)
from the largest distance to the smallest: first pairs 2**(k-1) apart, last neighbours. Each butterfly rounds
on its own, products with signs are exact and nothing is fused, so all paths return the same bits. A single
coefficient is the same tree of sums, and equals the transform's entry bit for bit. 16-bit input is
transformed in float32 and rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shuffle_plugins.mechanisms.parameters import check_dim
from shuffle_plugins.mechanisms.rows import Rows

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def padded_dim(dim: int) -> int:
    """The smallest power of two that is at least ``dim``.

    Raises:
        ValueError: unless ``dim`` is a whole number in [1, 2**53].
    """
    return 1 << (check_dim(dim) - 1).bit_length()


def hadamard_signs(rows: Tensor, columns: Tensor) -> Tensor:
    """Entries of H: (-1)**popcount(rows & columns), int8, broadcast over two integer tensors of indices."""
    parity = rows & columns
    for shift in (32, 16, 8, 4, 2, 1):
        if shift < 8 * parity.element_size():
            parity = parity ^ (parity >> shift)
    return (1 - 2 * (parity & 1)).to(torch.int8)


def hadamard_transform(x: Tensor, *, normalized: bool = False) -> Tensor:
    """H applied along the last axis: a new tensor of the same shape and dtype.

    Args:
        x: (..., size) of 16, 32 or 64 bit floating point, size a power of two.
        normalized: divide by sqrt(size), which makes the transform orthonormal and its own inverse.

    Raises:
        ValueError: if the last axis is not a power of two, or the dtype is another.
    """
    _check_floating(x)
    size = x.shape[-1] if x.dim() else 0
    if size < 1 or size & (size - 1):
        raise ValueError(f"the last axis must be a power of two, got shape {tuple(x.shape)}")
    work = x.reshape(-1, size).to(_compute_dtype(x.dtype), copy=True)
    half = size // 2
    while half:
        pairs = work.view(-1, 2, half)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        half //= 2
    if normalized:
        work *= size**-0.5
    return work.reshape(x.shape).to(x.dtype)


def hadamard_coefficients(x: Tensor | Rows, indices: Tensor, *, signs: Tensor | None = None) -> Tensor:
    """Unnormalised coefficients <H_j, signs * x_i> of zero-padded rows, each client at indices of its own.

    Args:
        x: (clients, dim).
        indices: int64 (clients, count), in [0, padded_dim(dim)).
        signs: +1 and -1, (dim,), multiplied into every row first; none by default.

    Returns:
        (clients, count) in float64 for float64 input, else float32. Each is the entry that
        :func:`hadamard_transform` of the padded row has there, bit for bit.

    Raises:
        ValueError: if shapes disagree or an index is out of range.
    """
    rows = Rows.of(x)
    size = padded_dim(rows.dim)
    if indices.dim() != 2 or indices.shape[0] != rows.num_rows or indices.is_floating_point():
        raise ValueError(f"indices must be integers (clients, count), got {tuple(indices.shape)}")
    if indices.numel() and not (int(indices.min()) >= 0 and int(indices.max()) < size):
        raise ValueError(f"an index lies outside [0, {size})")
    if signs is not None and signs.shape != (rows.dim,):
        raise ValueError(f"signs must be ({rows.dim},), got {tuple(signs.shape)}")
    out = torch.empty(indices.shape, dtype=rows.compute_dtype, device=rows.device)
    chunk = max(1, (1 << 16) // size)
    for start in range(0, rows.num_rows, chunk):
        part = rows.narrow(start, start + chunk).dense().to(rows.compute_dtype)
        if signs is not None:
            part = part * signs.to(part.device)
        padded = torch.nn.functional.pad(part, (0, size - rows.dim))
        out[start : start + chunk] = hadamard_transform(padded).gather(1, indices[start : start + chunk])
    return out


def hadamard_scatter(indices: Tensor, values: Tensor, *, dim: int) -> Tensor:
    """Sum over m of values[m] * H[:, indices[m]], cut to ``dim``: one transform of a histogram.

    Args:
        indices: integers of any shape, in [0, padded_dim(dim)).
        values: numbers of the same shape.
        dim: length of the sum.

    Returns:
        (dim,) float64 for float64 values, else float32.

    Raises:
        ValueError: if shapes differ or an index is out of range.
    """
    size = padded_dim(dim)
    if indices.shape != values.shape or indices.is_floating_point():
        raise ValueError("indices must be integers of the shape of values")
    if indices.numel() and not (int(indices.min()) >= 0 and int(indices.max()) < size):
        raise ValueError(f"an index lies outside [0, {size})")
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    histogram = torch.zeros(size, dtype=dtype, device=values.device)
    histogram.index_add_(0, indices.reshape(-1).to(torch.int64), values.reshape(-1).to(dtype))
    return hadamard_transform(histogram)[:dim]


def _check_floating(x: Tensor) -> None:
    if x.dtype not in _FLOATS:
        raise ValueError(f"a transform takes floating point of 16, 32 or 64 bits, got {x.dtype}")


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
