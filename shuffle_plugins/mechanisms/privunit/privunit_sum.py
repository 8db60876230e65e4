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

**Precision.** The normal vector of step 4 stays in float64, and so does the sum, which the caller rounds to
float32 once before anybody sees it: a coordinate that no row uses is a multiple of the normal vector, and
rounding hides the grid of its values. Products of rows with a vector are taken in the rows' compute dtype and
carry its rounding, a relative 1e-7 of what lies in the span for float32 rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shuffle_plugins.core import Rows
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.privunit.privunit_reports import Draws
from shuffle_plugins.randomness import Randomness

CHUNK = 64
"""Clients per chunk. Larger chunks need fewer normal vectors, but more arithmetic for their Gram matrices."""

_LEAST_DIM = 64  # below, one vector per report is as fast

_EXTREME = 1e15  # norms beyond are measured again in float64: squares may overflow
_ILL_CONDITIONED = 1e-3  # eigenvalues below may be mostly float32 rounding
_RANK_TOLERANCE = 1e-11  # eigenvalues below count as zero

Float64Array = NDArray[np.float64]


def chunk_size(x: Rows) -> int | None:
    """Clients per chunk; None where reports are drawn one by one: in few dimensions, and on a GPU, on which a
    normal value for each entry takes less time than the small matrices of the chunks."""
    if x.device.type != "cpu" or x.dim < _LEAST_DIM:
        return None
    return min(CHUNK, x.dim // 2)


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
        """Draw the sum of the unit vectors V of all clients, (dim,) float64: round it before its release.

        Args:
            norms: finite l2 norms of the rows, (clients,); a row of norm zero must be ``uniform``.
            draws: inner product and kind of each report.
            randomness: source of everything else.
        """
        x = self._x
        total = torch.zeros(x.dim, dtype=torch.float64, device=x.device)
        weights = torch.zeros(x.num_rows, dtype=x.compute_dtype, device=x.device)
        for (start, stop), gram in zip(self._bounds, self._grams, strict=True):
            part, lengths = x.narrow(start, stop), norms[start:stop]
            span = None if bool(_extreme(lengths).any()) else _Span.of(gram, lengths)
            careful = span is None or span.ill_conditioned
            if careful:
                part = part.directions(lengths)
                gram = part.gram()
                span = _Span.of(gram, gram.diagonal().sqrt())
            assert span is not None
            off_span, on_rows = _chunk(part, span, draws=draws.narrow(start, stop), randomness=randomness)
            total += off_span
            if careful:
                total += part.weighted_sum(on_rows)
            else:
                weights[start:stop] = on_rows
        return total.add_(x.weighted_sum(weights))


def _extreme(norms: Tensor) -> Tensor:
    """Rows whose norm is so far from one that squares may overflow or vanish, zero and NaN included."""
    return ~((norms > 1 / _EXTREME) & (norms < _EXTREME))


@dataclass(frozen=True, slots=True)
class _Span:
    """Orthonormal basis Q of the span of a chunk's directions, in coordinates; float64 on the CPU.

    Attributes:
        inverse: 1/norm of each row, zero for zero rows, (clients,): directions are rows times it.
        to_basis: M with Q = Uᵀ M, (clients, rank).
        from_basis: U Q, (clients, rank).
        ill_conditioned: whether a small eigenvalue of the cosines may be mostly float32 rounding.
    """

    inverse: Float64Array
    to_basis: Float64Array
    from_basis: Float64Array
    ill_conditioned: bool

    @classmethod
    def of(cls, gram: Tensor, norms: Tensor) -> _Span:
        lengths = norms.double().cpu().numpy()
        present = lengths > 0
        inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=present)
        cosines = gram.double().cpu().numpy() * inverse[:, None] * inverse
        np.fill_diagonal(cosines, present)
        spectrum = torch.linalg.eigh(torch.from_numpy(cosines))
        values, vectors = spectrum.eigenvalues.numpy(), spectrum.eigenvectors.numpy()
        kept = values > _RANK_TOLERANCE
        roots = np.sqrt(values[kept])
        small = int((values < _ILL_CONDITIONED).sum()) > int((~present).sum())
        return cls(
            inverse=inverse,
            to_basis=vectors[:, kept] / roots,
            from_basis=vectors[:, kept] * roots,
            ill_conditioned=small and gram.dtype != torch.float64,
        )


def _chunk(x: Rows, span: _Span, *, draws: Draws, randomness: Randomness) -> tuple[Tensor, Tensor]:
    """Steps 1 to 5: the multiple of a normal vector, (dim,), and the weights of the rows, (clients,)."""
    count, rank = span.from_basis.shape
    in_span, below = randomness.normal((2, count, count), dtype=torch.float64).numpy()
    in_span = in_span[:, :rank]
    leaning = ~draws.uniform.numpy()
    along = np.where(leaning, draws.along.numpy(), 0.0)
    across = np.where(leaning, np.einsum("ir,ir->i", in_span, span.from_basis), 0.0)
    bartlett = _bartlett(below, freedom=x.dim - rank, randomness=randomness)
    squared = np.sum(in_span**2, axis=1) - across**2 + np.sum(bartlett**2, axis=1)
    shares = np.sqrt(np.maximum(1 - along**2, 0.0) / squared)

    normals = randomness.normal(x.dim, dtype=torch.float64, device=x.device)
    on_rows = x.dot(normals.to(x.compute_dtype)).double().cpu().numpy()
    normals_in_span = span.to_basis.T @ (span.inverse * on_rows)
    off_span = float(torch.dot(normals, normals)) - float(normals_in_span @ normals_in_span)
    outside = float(np.linalg.norm(bartlett.T @ shares)) / off_span**0.5

    coefficients = along - shares * across
    coefficients += span.to_basis @ (in_span.T @ shares - outside * normals_in_span)
    return normals.mul_(outside), torch.from_numpy(coefficients * span.inverse).to(x.device)


def _bartlett(normals: Float64Array, *, freedom: int, randomness: Randomness) -> Float64Array:
    """Lower triangular L with L Lᵀ ~ Wishart(freedom, I), from normals (clients, clients) and χ² quantiles.

    Needs freedom >= clients.
    """
    lower: Float64Array = np.tril(normals, -1)
    count = len(normals)
    squared = 2 * special.gammaincinv((freedom - np.arange(count)) / 2, randomness.uniform(count).numpy())
    np.fill_diagonal(lower, np.sqrt(squared))
    return lower
