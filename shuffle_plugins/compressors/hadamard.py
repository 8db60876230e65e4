r"""Walsh-Hadamard transforms of batches, and single coefficients without the whole transform.

H is the 2**k x 2**k matrix with entries :math:`H_{ij} = (-1)^{\mathrm{popcount}(i \wedge j)}` (Sylvester's
order), so :math:`H H = 2^k I`. Every path (torch, compiled, GPU, single coefficients) applies the butterflies
(a, b) -> (a + b, a - b) from the largest distance to the smallest; each rounds on its own, so all return the
same bits. 16-bit input is transformed in float32 and rounded once.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from types import ModuleType

from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import Rows, spans
from shuffle_plugins.randomness.chacha import runs_kernels

_CHUNK_ENTRIES = 1 << 17  # worked on together on a CPU


def padded_dim(dim: int) -> int:
    """The smallest power of two that is at least ``dim``."""
    return 1 << (checks.dim(dim) - 1).bit_length()


def hadamard_signs(rows: Tensor, columns: Tensor) -> Tensor:
    """Entries of H: (-1)**popcount(rows & columns), int8, broadcast over two integer tensors of indices."""
    parity = rows & columns
    for shift in (32, 16, 8, 4, 2, 1):
        if shift < 8 * parity.element_size():
            parity = parity ^ (parity >> shift)
    return (1 - 2 * (parity & 1)).to(torch.int8)


def hadamard_transform(x: Tensor, *, normalized: bool = False, out: Tensor | None = None) -> Tensor:
    """H applied along the last axis: same shape and dtype. Gradients are not followed through.

    Args:
        x: (..., size) of 16, 32 or 64 bit floating point, size a power of two.
        normalized: divide by sqrt(size), which makes the transform orthonormal and its own inverse.
        out: a contiguous tensor of the shape, dtype and device of x to write to, or x itself.
    """
    size = x.shape[-1] if x.dim() else 0
    if size < 1 or size & (size - 1):
        raise ValueError(f"the last axis must be a power of two, got shape {tuple(x.shape)}")
    _check_floating(x)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    elif out.shape != x.shape or out.dtype != x.dtype or out.device != x.device or not out.is_contiguous():
        raise ValueError(f"out must be a contiguous {x.dtype} tensor {tuple(x.shape)} on {x.device}")
    _transform_rows(x.detach().reshape(-1, size), None, normalized, out=out.detach().view(-1, size))
    return out


def padded_transform(x: Tensor, *, signs: Tensor | None = None, normalized: bool = False) -> Tensor:
    """H applied to zero-padded vectors (..., dim), times signs, in one pass: (..., padded_dim(dim)).

    ``signs`` are +1 and -1, (dim,) int8, and ``normalized`` makes it an isometry.
    """
    _check_floating(x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"a transform takes vectors (..., dim), got shape {tuple(x.shape)}")
    dim = x.shape[-1]
    _check_signs(signs, dim)
    size = padded_dim(dim)
    out = torch.empty((math.prod(x.shape[:-1]), size), dtype=x.dtype, device=x.device)
    _transform_rows(x.detach().reshape(-1, dim), signs, normalized, out=out)
    return out.view(*x.shape[:-1], size)


def hadamard_coefficients(x: Tensor | Rows, indices: Tensor, *, signs: Tensor | None = None) -> Tensor:
    """Unnormalised coefficients <H_j, signs * x_i> of zero-padded rows, each client at indices of its own.

    ``indices`` are int64 (clients, count), in [0, padded_dim(dim)). Returns (clients, count) in float64 for
    float64 input, else float32: the entries of :func:`hadamard_transform` of the padded rows, bit for bit.
    """
    rows = Rows.of(x)
    size = padded_dim(rows.dim)
    checked_indices(indices, rows, size=size)
    _check_signs(signs, rows.dim)
    indices = indices.to(rows.device).contiguous()
    signs = None if signs is None else signs.to(rows.device).contiguous()
    out = torch.empty(indices.shape, dtype=rows.compute_dtype, device=rows.device)
    if indices.numel() == 0:
        return out
    kernels = cpu_kernels()
    if kernels is not None and kernels.handles(out, size) and rows.dtype == out.dtype:
        blocks = [block if block.stride(1) == 1 else block.contiguous() for block in rows.blocks]
        kernels.coefficient_rows(blocks, out, indices=indices, signs=signs)
        return out
    for start, stop in spans(rows.num_rows, width=size, device=rows.device, entries=_CHUNK_ENTRIES):
        part = rows.narrow(start, stop).dense()
        work = torch.empty((part.shape[0], size), dtype=out.dtype, device=out.device)
        _transform_rows(part.to(out.dtype), signs, normalized=False, out=work)
        out[start:stop] = work.gather(1, indices[start:stop])
    return out


def hadamard_scatter(indices: Tensor, values: Tensor, *, dim: int) -> Tensor:
    """Sum over m of values[m] * H[:, indices[m]], cut to ``dim``; float64 for such values, else float32."""
    size = padded_dim(dim)
    if indices.shape != values.shape or indices.is_floating_point():
        raise ValueError("indices must be integers of the shape of values")
    _check_indices(indices, size)
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    histogram = torch.zeros(size, dtype=dtype, device=values.device)
    histogram.index_add_(0, indices.reshape(-1).to(torch.int64), values.reshape(-1).to(dtype))
    return hadamard_transform(histogram)[:dim]


def l1_norms(rows: Rows) -> Tensor:
    """Sum of absolute entries of each row, (clients,); NaN and inf pass through. As :meth:`Rows.l1_norm`."""
    kernels = cpu_kernels()
    if kernels is None or rows.device.type != "cpu" or rows.dtype != rows.compute_dtype:
        return rows.l1_norm()
    norms = torch.zeros(rows.num_rows, dtype=rows.dtype)
    for block in rows.blocks:
        kernels.add_absolute_sums(block.numpy(), norms.numpy())
    return norms


def _check_floating(x: Tensor) -> None:
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ValueError(f"a transform takes floating point of 16, 32 or 64 bits, got {x.dtype}")


def _check_indices(indices: Tensor, size: int) -> None:
    if indices.numel() and not (int(indices.min()) >= 0 and int(indices.max()) < size):
        raise ValueError(f"an index lies outside [0, {size})")


def checked_indices(indices: Tensor, rows: Rows, *, size: int) -> None:
    """Refuse indices unless they are int64 (clients, count), in [0, size)."""
    if indices.dtype != torch.int64 or indices.dim() != 2 or indices.shape[0] != rows.num_rows:
        raise ValueError(
            f"indices must be int64 (clients, count), got {indices.dtype} {tuple(indices.shape)}"
        )
    _check_indices(indices, size)


def _check_signs(signs: Tensor | None, dim: int) -> None:
    if signs is not None and (signs.shape != (dim,) or signs.dtype != torch.int8):
        raise ValueError(f"signs must be int8 ({dim},), got {signs.dtype} {tuple(signs.shape)}")


def _transform_rows(x: Tensor, signs: Tensor | None, normalized: bool, *, out: Tensor) -> None:
    """Fill out (rows, size) with the transforms of x (rows, dim), which may be ``out`` itself."""
    size = out.shape[1]
    scale = size**-0.5 if normalized else 1.0
    if signs is not None:
        signs = signs.to(out.device).contiguous()
    kernels = cpu_kernels()
    if kernels is not None and kernels.handles(out, size):
        rows = x if x.stride(1) == 1 else x.contiguous()
        kernels.transform_rows(rows, out, x.shape[1], rows.stride(0), size, signs, scale)
        return
    triton = _triton_kernels() if runs_kernels(out.device) else None
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    for start, stop in spans(len(x), width=size, device=out.device, entries=_CHUNK_ENTRIES):
        part = x[start:stop]
        if triton is not None:
            triton.transform_rows_triton(part, size=size, signs=signs, scale=scale, out=out[start:stop])
            continue
        work = torch.zeros((part.shape[0], size), dtype=wide, device=out.device)
        work[:, : part.shape[1]] = part if signs is None else part.to(wide) * signs
        if kernels is not None and kernels.handles(work, size):
            kernels.transform_rows(work, work, size, size, size, None, scale)
        else:
            butterflies_(work)
            if normalized:
                work *= scale
        out[start:stop] = work


def butterflies_(work: Tensor) -> None:
    """The unnormalised transform of contiguous rows (rows, size) in place, by torch alone, on any device."""
    size = work.shape[1]
    near = min(size, 16)  # shorter distances are torch's weakness: it works on columns there
    half = size // 2
    while half >= near:
        _butterfly(work.view(-1, 2, half))
        half //= 2
    columns = work.view(-1, near).t().contiguous()
    while half:
        _butterfly(columns.view(-1, 2, half * columns.shape[1]))
        half //= 2
    work.view(-1, near).copy_(columns.t())


def _butterfly(pairs: Tensor) -> None:
    low, high = pairs[:, 0], pairs[:, 1]
    difference = low - high
    low += high
    high.copy_(difference)


@cache
def cpu_kernels() -> ModuleType | None:
    """The compiled kernels, or None where numba does not run; torch then does the same, slower."""
    try:
        return import_module("shuffle_plugins.compressors.cpu_kernels")
    except ImportError:
        return None


@cache
def _triton_kernels() -> ModuleType:
    return import_module("shuffle_plugins.compressors.kernels.triton_kernels")
