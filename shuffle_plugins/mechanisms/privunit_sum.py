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

from shuffle_plugins.mechanisms.privunit_reports import Draws
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


def chunk_size(x: Rows) -> int | None:
    """Clients per chunk that suit the device; None where d < 2·chunk: draw reports one by one there."""
    size = CPU_CHUNK if x.device.type == "cpu" else ACCELERATOR_CHUNK
    return size if x.dim >= 2 * size else None


class ChunkedSum:
    """The sum of a batch's PrivUnit reports in two passes: Gram matrices first, the sum when norms are known.

    Args:
        x: (clients, dim).
        chunk: clients handled together; the law of the sum does not depend on it.

    Raises:
        ValueError: unless 1 <= chunk <= dim / 2, which Bartlett's theorem needs.
    """

    def __init__(self, x: Rows, *, chunk: int) -> None:
        if not 1 <= chunk <= x.dim // 2:
            raise ValueError(f"chunk must be in [1, {x.dim // 2}] at dimension {x.dim}, got {chunk}")
        self._x = x
        self._bounds = [(start, min(start + chunk, x.num_rows)) for start in range(0, x.num_rows, chunk)]
        self._grams = [x.narrow(start, stop).gram() for start, stop in self._bounds]

    def norms(self) -> Tensor:
        """L2 norms of the rows, (clients,): the Gram matrices' diagonals, measured again where extreme."""
        x = self._x
        diagonals = [gram.diagonal() for gram in self._grams]
        if not diagonals:
            return torch.zeros(0, dtype=x.compute_dtype, device=x.device)
        norms = torch.cat(diagonals).sqrt()
        if bool(_extreme(norms).any()):
            return x.l2_norm()
        return norms

    def sample(self, norms: Tensor, *, draws: Draws, randomness: Randomness) -> Tensor:
        """Draw the sum of the unit vectors V of all clients, (dim,), in the rows' compute dtype.

        Args:
            norms: finite l2 norms of the rows, (clients,); a row of norm zero must be ``uniform``.
            draws: inner product and kind of each report.
            randomness: source of everything else.
        """
        x = self._x
        total = torch.zeros(x.dim, dtype=x.compute_dtype, device=x.device)
        weights = torch.zeros(x.num_rows, dtype=x.compute_dtype, device=x.device)
        for (start, stop), gram in zip(self._bounds, self._grams, strict=True):
            part, lengths = x.narrow(start, stop), norms[start:stop]
            rescaled = bool(_extreme(lengths).any())
            if rescaled:
                part, lengths = _normalised(part, lengths)
                gram = part.gram()
            inverse = torch.where(lengths > 0, lengths.double().reciprocal(), 0.0).cpu().numpy()
            coefficients = _add_chunk(
                total, part, gram, inverse, draws=draws.narrow(start, stop), randomness=randomness
            )
            row_weights = torch.from_numpy(coefficients * inverse).to(weights)
            if rescaled:
                part.add_weighted_sum(row_weights, out=total)
            else:
                weights[start:stop] = row_weights
        x.add_weighted_sum(weights, out=total)
        return total


def _extreme(norms: Tensor) -> Tensor:
    """Rows whose norm is so far from one that squares may overflow or vanish, zero and NaN included."""
    return ~((norms > 1 / _EXTREME) & (norms < _EXTREME))


def _normalised(x: Rows, norms: Tensor) -> tuple[Rows, Tensor]:
    """Rows over their norms, and the norms of the result: one, or zero."""
    scale = torch.where(norms > 0, norms, torch.ones_like(norms)).double().unsqueeze(1)
    blocks = [(block.double() / scale).to(x.compute_dtype) for block in x.blocks]
    return Rows(blocks), (norms > 0).to(x.compute_dtype)


def _add_chunk(
    total: Tensor, x: Rows, gram: Tensor, inverse: Float64Array, *, draws: Draws, randomness: Randomness
) -> Float64Array:
    """Add the part off the span to ``total``; return the coefficients of the directions."""
    to_basis, from_basis = _span(x, gram, inverse)
    count, rank = from_basis.shape

    in_span = randomness.normal((count, rank), dtype=torch.float64).numpy()
    leaning = ~draws.uniform.numpy()
    along = np.where(leaning, draws.along.numpy(), 0.0)
    across = np.where(leaning, np.einsum("ir,ir->i", in_span, from_basis), 0.0)
    bartlett = _bartlett(count, freedom=x.dim - rank, randomness=randomness)
    squared = np.sum(in_span**2, axis=1) - across**2 + np.sum(bartlett**2, axis=1)
    weights = np.sqrt(np.maximum(1 - along**2, 0.0) / squared)

    normals = randomness.normal(x.dim, dtype=x.compute_dtype, device=x.device)
    normals_in_span = to_basis.T @ (inverse * x.dot(normals).double().cpu().numpy())
    off_span = float(torch.dot(normals, normals)) - float(normals_in_span @ normals_in_span)
    outside = float(np.linalg.norm(bartlett.T @ weights)) / off_span**0.5
    total.add_(normals, alpha=outside)

    coefficients: Float64Array = along - weights * across
    coefficients += to_basis @ (in_span.T @ weights - outside * normals_in_span)
    return coefficients


def _span(x: Rows, gram: Tensor, inverse: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Basis Q of the span of the directions: (M, T) with Q = Uᵀ M and T = U Q, both (clients, rank).

    Small eigenvalues of a float32 Gram matrix are mostly rounding: such a matrix is taken again in float64.
    """
    values, vectors = _spectrum(gram, inverse)
    missing = int((inverse == 0).sum())
    if gram.dtype != torch.float64 and int((values < _ILL_CONDITIONED).sum()) > missing:
        values, vectors = _spectrum(x.gram(dtype=torch.float64), inverse)
    kept = values > _RANK_TOLERANCE
    roots = np.sqrt(values[kept])
    return vectors[:, kept] / roots, vectors[:, kept] * roots


def _spectrum(gram: Tensor, inverse: Float64Array) -> tuple[Float64Array, Float64Array]:
    cosines = gram.cpu().double().numpy() * inverse[:, None] * inverse
    np.fill_diagonal(cosines, inverse > 0)
    values, vectors = torch.linalg.eigh(torch.from_numpy(cosines))
    return values.numpy(), vectors.numpy()


def _bartlett(count: int, *, freedom: int, randomness: Randomness) -> Float64Array:
    """Lower triangular L with L Lᵀ ~ Wishart(freedom, I): needs freedom >= count."""
    lower: Float64Array = np.tril(randomness.normal((count, count), dtype=torch.float64).numpy(), -1)
    shape = (freedom - np.arange(count)) / 2
    squared = 2 * special.gammaincinv(shape, randomness.uniform(count).numpy())
    np.fill_diagonal(lower, np.sqrt(squared))
    return lower
