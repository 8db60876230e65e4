r"""Kashin representations: redundant coefficients of a vector, all of them about equally small.

A coefficient of an orthonormal transform can be as large as the vector's whole norm. In a tight frame of
N > d vectors a vector has many representations, and some have every coefficient within
:math:`K‖x‖_2/\sqrt N` for a constant K (Kashin 1977; Lyubarskii and Vershynin 2010, "Uncertainty principles
and vector quantization").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.compressors.hadamard import checked_indices, cpu_kernels, hadamard_transform
from shuffle_plugins.compressors.kashin_law import LEVEL_MARGIN as _MARGIN
from shuffle_plugins.compressors.kashin_law import kashin_level, kashin_size
from shuffle_plugins.compressors.public_bits import public_random_bytes, public_signs
from shuffle_plugins.compressors.rotation import TightFrame
from shuffle_plugins.core import Rows, checks, rows_at_once
from shuffle_plugins.core.lazy_torch import Tensor, torch

_CHUNK = 1 << 20  # coefficients handled at a time on a CPU
_AIM, _SHARE, _QUICK_STEPS = 0.85, 1.75, 8


@dataclass(frozen=True, kw_only=True)
class KashinFrame(TightFrame):
    """A tight frame U = P D H / √N: N columns of length d, public, with fast products.

    H is the N x N Hadamard matrix, N the smallest power of two that is at least 2d; D is a diagonal of random
    signs; P keeps d random rows, so U Uᵀ = I. Rows must be random: the first N/2 of H have every column
    twice.

    **Search.** :meth:`represent` looks for c with U c = x in the box ‖c‖∞ ≤ level·‖x‖₂/√N. It starts at Uᵀx
    and takes up to eight times 1.75 times the step to the projection, onto {c : U c = x}, of the nearest
    point of a box 0.85 times as large: gradient descent on half the squared distance from that box, whose
    slope has Lipschitz constant 1. A row that is still outside goes on by Douglas-Rachford splitting, which
    converges wherever there is a point strictly inside. Each iterate represents x exactly; the first one in
    the box is taken. A row not there after ``max_iterations`` is scaled into the box: it represents s·x with
    s < 1.

    **Length.** Coefficients are 1.00 to 1.05 times as long as their vector, more of vectors of few numbers,
    and up to 1.6 times of vectors close to a column of U. Those longer than ``stretch`` times their vector
    are shortened to it, and represent a shorter vector; dense vectors are not, at a :func:`kashin_stretch`.

    **Level.** No frame does better than 1, and √d is enough for every row. A row along a column of U needs
    about √(π/2)/√(1 - d/N); the default is a quarter above, and at most √d: 2.22 where N = 2d, 1.81 where N =
    4d. Rows chosen before the seed reach it. No such level holds for all rows at once: 2**k entries of equal
    size, in positions that make up an affine subspace of the indices, need √(2**k).

    Args:
        dim: d, length of a vector.
        seed: any whole number, public: clients and analyzer use the same.
        level: K, above 1; by default (0) as above. Lower means less noise in a mechanism and more iterations.
        max_iterations: when to give up on a row.
        stretch: ‖c‖₂/‖x‖₂, at most; at least 1. No limit by default.
    """

    dim: int
    seed: int
    level: float = 0.0
    max_iterations: int = 200
    stretch: float = math.inf
    size: int = field(init=False, repr=False, compare=False)
    """N, the number of coefficients."""

    def __post_init__(self) -> None:
        size = kashin_size(checks.dim(self.dim))
        if self.level == 0.0:
            object.__setattr__(self, "level", kashin_level(self.dim))
        checks.number("level", self.level, above=1)
        checks.whole("max_iterations", self.max_iterations)
        if not self.stretch >= 1:
            raise ValueError(
                f"coefficients are at least as long as their vector, got stretch={self.stretch!r}"
            )
        checks.whole("public seed", self.seed, at_least=-math.inf)
        object.__setattr__(self, "size", size)

    @cached_property
    def _rows_kept(self) -> NDArray[np.int64]:
        count = 8 * self.size
        drawn = np.frombuffer(public_random_bytes("kashin rows", seed=self.seed, count=count), dtype="<u8")
        return np.sort(np.argsort(drawn, kind="stable")[: self.dim])

    @cached_property
    def positions(self) -> Tensor:
        """The rows that P keeps, (dim,) int64, increasing."""
        return torch.from_numpy(self._rows_kept)

    @cached_property
    def signs(self) -> Tensor:
        """The signs of those rows, (dim,) int8."""
        return public_signs("kashin signs", seed=self.seed, count=self.dim)

    def represent(self, x: Tensor | Rows) -> Tensor:
        """Coefficients of each row, (clients, size), none above level·‖row‖₂/√size in absolute value.

        Returns float64 for float64 rows, else float32. Rows are worked on a few at a time.
        """
        rows = self._rows(x)
        found = torch.empty((rows.num_rows, self.size), dtype=rows.compute_dtype, device=rows.device)
        for start, stop in self._chunks(rows):
            units, norms = self._represent(rows.narrow(start, stop))
            torch.mul(units, norms.unsqueeze(1), out=found[start:stop])
        return found

    def coefficients(self, x: Tensor | Rows, indices: Tensor) -> Tensor:
        """Entries of ``represent(x)`` at each client's own indices, (clients, count)."""
        rows = self._rows(x)
        checked_indices(indices, rows, size=self.size)
        found = torch.empty(indices.shape, dtype=rows.compute_dtype, device=rows.device)
        for start, stop in self._chunks(rows):
            units, norms = self._represent(rows.narrow(start, stop))
            entries = units.gather(1, indices[start:stop].to(rows.device))
            torch.mul(entries, norms.unsqueeze(1), out=found[start:stop])
        return found

    def reconstruct(self, coefficients: Tensor) -> Tensor:
        """U c, (..., dim), for floating c (..., size)."""
        if coefficients.dim() == 0 or coefficients.shape[-1] != self.size:
            raise ValueError(f"this frame has {self.size} coefficients, got {tuple(coefficients.shape)}")
        spread = hadamard_transform(coefficients, normalized=True)
        device = spread.device
        return spread.index_select(-1, self.positions.to(device)) * self.signs.to(device)

    def _kept_rows(self) -> NDArray[np.int64]:
        return self._rows_kept

    def _rows(self, x: Tensor | Rows) -> Rows:
        rows = Rows.of(x)
        if rows.dim != self.dim:
            raise ValueError(f"this frame takes vectors of length {self.dim}, got {rows.dim}")
        return rows

    def _chunks(self, rows: Rows) -> list[tuple[int, int]]:
        step = rows_at_once(self.size, device=rows.device, entries=_CHUNK)
        return [(start, min(start + step, rows.num_rows)) for start in range(0, rows.num_rows, step)]

    def _represent(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Representations of rows over their norms, and the norms."""
        norms = rows.l2_norm()
        if not bool(norms.isfinite().all()):
            raise ValueError("a row has NaN or infinite entries: it has no representation")
        dense = rows.dense().to(norms.dtype)
        lengths = torch.where(norms > 0, norms, 1.0)
        limit = self.level * self.size**-0.5
        inner, enough = limit * _AIM, limit * (1 - _MARGIN / 2)
        steps = min(_QUICK_STEPS, self.max_iterations)
        found = torch.empty((rows.num_rows, self.size), dtype=norms.dtype, device=rows.device)
        kernels = cpu_kernels()
        if kernels is not None and kernels.handles(found, self.size):
            missed = kernels.box_rows(
                dense if dense.stride(1) == 1 else dense.contiguous(),
                found,
                norms=lengths,
                positions=self.positions,
                signs=self.signs,
                share=_SHARE,
                inner=inner,
                enough=enough,
                steps=steps,
            )
        else:
            missed = self._quickly(dense, lengths, found, inner=inner, enough=enough, steps=steps)
        late = missed.nonzero().squeeze(1)
        if late.numel():
            found[late] = self._into_box(*self._wanted(dense[late], lengths[late]), limit)
        if self.stretch < self.level:
            longer = found.norm(dim=1) / self.stretch
            if bool((longer > 1).any()):
                found /= longer.clamp(min=1.0).unsqueeze(1)
        return found, norms

    def _wanted(self, dense: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """What the transform of a representation must be at the kept rows, and 1 where it is free."""
        wanted = torch.zeros((len(dense), self.size), dtype=dense.dtype, device=dense.device)
        fixed = self.positions.to(dense.device)
        units = dense / lengths.unsqueeze(1)
        wanted.index_copy_(1, fixed, units.mul_(self.signs.to(dense.device)))
        free = torch.ones(self.size, dtype=dense.dtype, device=dense.device)
        free[fixed] = 0
        return wanted, free

    def _quickly(
        self, dense: Tensor, lengths: Tensor, found: Tensor, *, inner: float, enough: float, steps: int
    ) -> Tensor:
        """Fill ``found`` by relaxed projections; which rows are still outside, (rows,) bool."""
        wanted, free = self._wanted(dense, lengths)
        hadamard_transform(wanted, normalized=True, out=found)
        for _ in range(steps):
            outside = _largest(found) > enough
            if not bool(outside.any()):
                break
            part = found[outside]
            rest = hadamard_transform(part.clamp(-inner, inner).sub_(part), normalized=True).mul_(free)
            found[outside] = part.add_(hadamard_transform(rest, normalized=True).mul_(_SHARE))
        return _largest(found) > enough

    def _into_box(self, wanted: Tensor, free: Tensor, limit: float) -> Tensor:
        """Coefficients within the limit whose transform is ``wanted`` wherever it is not ``free``."""
        inner, enough = limit * (1 - _MARGIN), limit * (1 - _MARGIN / 2)
        exact = hadamard_transform(wanted, normalized=True)
        state = exact.clone()
        found = torch.empty_like(exact)
        active = torch.arange(wanted.shape[0], device=wanted.device)
        boxed = torch.empty_like(exact)
        for _ in range(self.max_iterations):
            outside = _largest(exact) > enough
            if not bool(outside.all()):
                found[active[~outside]] = exact[~outside]
                active, state, wanted, exact = (part[outside] for part in (active, state, wanted, exact))
                boxed = torch.empty_like(exact)
            if active.numel() == 0:
                return found
            torch.clamp(state, -inner, inner, out=boxed)
            torch.sub(boxed, state, out=exact).add_(boxed)
            spread = hadamard_transform(exact, normalized=True, out=exact)
            torch.addcmul(wanted, spread, free, out=spread)
            exact = hadamard_transform(spread, normalized=True, out=spread)
            state.add_(exact).sub_(boxed)
        found[active] = exact * (limit / _largest(exact).clamp(min=limit)).unsqueeze(1)
        return found


def _largest(rows: Tensor) -> Tensor:
    return torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_())
