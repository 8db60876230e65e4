r"""The sum of many PrivUnit reports, drawn from its exact law without one dense vector per client.

A chunk of b clients with unit directions u_i contributes :math:`\sum_i α_i u_i + \sum_i c_i h_i/‖h_i‖` with
:math:`h_i = g_i - \langle g_i, u_i \rangle u_i`, :math:`g_i \sim N(0, I_d)` independent and
:math:`c_i^2 = 1 - α_i^2`; a report that is uniform on the sphere has α_i = 0 and h_i = g_i. Let the columns
of Q be an orthonormal basis of the span of the u_i, of rank r, and :math:`t_i = \langle g_i, u_i \rangle`.

1. :math:`g_i = Q s_i + g_i^\perp` with :math:`s_i \sim N(0, I_r)` independent of :math:`g_i^\perp`, and t_i
   is a function of s_i.
2. The Gram matrix of the :math:`g_i^\perp` is Wishart with d - r degrees of freedom. By Bartlett's theorem it
   is :math:`LL^T`, L lower triangular with independent entries: χ with d - r, d - r - 1, … degrees of freedom
   on the diagonal, N(0, 1) below. It needs d - r ≥ b.
3. Hence :math:`‖h_i‖^2 = ‖s_i‖^2 - t_i^2 + ‖L_i‖^2`, and all the weights :math:`a_i = c_i/‖h_i‖` are known.
4. Given L, the vectors :math:`g_i^\perp` are L times a uniformly random orthonormal frame of the complement,
   so :math:`\sum_i a_i g_i^\perp = ‖L^T a‖\,θ` with θ uniform on the unit sphere of the complement: one
   normal vector of length d, projected off the span and scaled.
5. The remaining part lies in the span: :math:`\sum_i (α_i - a_i t_i) u_i + Q \sum_i a_i s_i`.

Q is never formed: with the eigendecomposition :math:`K = E Λ E^T` of the Gram matrix of the directions,
:math:`Q = U^T E Λ^{-1/2}` over the positive eigenvalues, so everything in the span is a combination of the
rows. A chunk costs its Gram matrix, one normal vector, and two products of the rows with a vector. Repeated
and dependent rows only lower r.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from shuffle_plugins.mechanisms.privunit_reports import Draws, dense_reports
from shuffle_plugins.mechanisms.rows import Rows
from shuffle_plugins.randomness import Randomness

CPU_CHUNK = 32
"""Clients per chunk on a CPU, where the Gram matrix and the normal vectors cost about the same."""

ACCELERATOR_CHUNK = 256
"""Clients per chunk elsewhere, where products of matrices are cheap."""

_EXTREME = 1e15
_ILL_CONDITIONED = 1e-3
_RANK_TOLERANCE = 1e-11

Float64Array = NDArray[np.float64]


def sum_of_reports(
    x: Rows, norms: Tensor, *, draws: Draws, randomness: Randomness, chunk: int | None = None
) -> Tensor:
    """Sum of the unit vectors V of all clients, (dim,), in the rows' compute dtype.

    Args:
        x: (clients, dim), finite. norms: l2 norms of the rows, (clients,); a row of norm zero must be
        ``uniform``. draws: inner product and kind of each report. randomness: source of everything else.
        chunk: clients handled together; by default what suits the device. The law does not depend on it.
        Where
            dim < 2·chunk the reports are drawn one by one.

    Raises:
        ValueError: if ``chunk`` is not positive.
    """
    if chunk is None:
        chunk = CPU_CHUNK if x.device.type == "cpu" else ACCELERATOR_CHUNK
    if chunk < 1:
        raise ValueError(f"chunk must be positive, got {chunk}")
    if x.dim < 2 * chunk:
        return dense_reports(x, norms, draws=draws, randomness=randomness).sum(dim=0).to(x.compute_dtype)
    total = torch.zeros(x.dim, dtype=x.compute_dtype, device=x.device)
    for start in range(0, x.num_rows, chunk):
        stop = min(start + chunk, x.num_rows)
        _add_chunk(
            total,
            x.narrow(start, stop),
            norms[start:stop],
            draws=draws.narrow(start, stop),
            randomness=randomness,
        )
    return total


def _add_chunk(total: Tensor, x: Rows, norms: Tensor, *, draws: Draws, randomness: Randomness) -> None:
    lengths = norms.cpu().double().numpy()
    present = lengths > 0
    if bool((lengths[present] > _EXTREME).any() or (lengths[present] < 1 / _EXTREME).any()):
        scale = torch.where(norms > 0, norms, torch.ones_like(norms)).double().unsqueeze(1)
        x = Rows([(block.double() / scale).to(x.compute_dtype) for block in x.blocks])
        lengths = present.astype(np.float64)
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=present)
    to_basis, from_basis = _span(x, inverse)
    count, rank = from_basis.shape

    in_span = randomness.normal((count, rank), dtype=torch.float64).numpy()
    leaning = ~draws.uniform.numpy()
    along = np.where(leaning, draws.along.numpy(), 0.0)
    across = np.where(leaning, np.einsum("ir,ir->i", in_span, from_basis), 0.0)
    bartlett = _bartlett(count, freedom=x.dim - rank, randomness=randomness)
    squared = np.sum(in_span**2, axis=1) - across**2 + np.sum(bartlett**2, axis=1)
    weights = np.sqrt(np.maximum(1 - along**2, 0.0) / squared)

    normals = randomness.normal(x.dim, dtype=x.compute_dtype, device=x.device)
    normals_in_span = to_basis.T @ (inverse * x.dot(normals).cpu().double().numpy())
    off_span = float(torch.dot(normals, normals)) - float(normals_in_span @ normals_in_span)
    outside = float(np.linalg.norm(bartlett.T @ weights)) / off_span**0.5

    coefficients = along - weights * across + to_basis @ (in_span.T @ weights - outside * normals_in_span)
    total.add_(normals, alpha=outside)
    x.add_weighted_sum(torch.from_numpy(coefficients * inverse).to(x.device), out=total)


def _span(x: Rows, inverse: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Basis Q of the span of the directions: (M, T) with Q = Uᵀ M and T = U Q, both (clients, rank)."""
    values, vectors = _spectrum(x.gram(), inverse)
    floor = values[values > _RANK_TOLERANCE].min(initial=1.0)
    if floor < _ILL_CONDITIONED or bool((values < _ILL_CONDITIONED).sum() > (inverse == 0).sum()):
        values, vectors = _spectrum(x.gram(dtype=torch.float64), inverse)
    kept = values > _RANK_TOLERANCE
    roots = np.sqrt(values[kept])
    return vectors[:, kept] / roots, vectors[:, kept] * roots


def _spectrum(gram: Tensor, inverse: Float64Array) -> tuple[Float64Array, Float64Array]:
    cosines = gram.cpu().double().numpy() * inverse[:, None] * inverse
    np.fill_diagonal(cosines, inverse > 0)
    values, vectors = np.linalg.eigh(cosines)
    return values, vectors


def _bartlett(count: int, *, freedom: int, randomness: Randomness) -> Float64Array:
    """Lower triangular L with L Lᵀ ~ Wishart(freedom, I): needs freedom >= count."""
    below = np.tril(randomness.normal((count, count), dtype=torch.float64).numpy(), -1)
    shape = (freedom - np.arange(count)) / 2
    squared = 2 * special.gammaincinv(shape, randomness.uniform(count).numpy())
    np.fill_diagonal(below, np.sqrt(squared))
    return below
