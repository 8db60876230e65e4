"""Public tight frames that spread a vector over coefficients of which none is large, and public random bits.

In a tight frame of N > d vectors a vector has many representations, some of which have every coefficient
within K‖x‖₂/√N (Kashin 1977; Lyubarskii and Vershynin 2010, "Uncertainty principles and vector
quantization").
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shuffle_plugins.compressors.hadamard import (
    checked_indices,
    cpu_kernels,
    hadamard_coefficients,
    hadamard_transform,
    padded_dim,
    padded_transform,
)
from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import Rows, spans

_MARGIN = 1e-3  # share of a Kashin frame's level that covers rounding
_SHARE = 1.75  # of a step to the nearest point, that a projection takes


def public_random_bytes(purpose: str, *, seed: int, count: int) -> bytes:
    """SHAKE-256 of the purpose and the seed: the same on every machine, and it hides nothing."""
    checks.whole("public seed", seed, at_least=-math.inf)
    return hashlib.shake_256(f"shuffle_plugins public {purpose} {seed}".encode()).digest(count)


def public_signs(purpose: str, *, seed: int, count: int) -> Tensor:
    """Fair public signs +1 and -1, (count,) int8: bit i, most significant first, of the bytes."""
    data = np.frombuffer(public_random_bytes(purpose, seed=seed, count=(count + 7) // 8), dtype=np.uint8)
    return torch.from_numpy(1 - 2 * np.unpackbits(data, count=count).view(np.int8))


class TightFrame(ABC):
    """``size`` columns of a Hadamard matrix, cut to ``dim`` of its rows; ``size`` is a power of two."""

    dim: int

    @property
    @abstractmethod
    def size(self) -> int:
        """How many there are."""

    @property
    def column_square(self) -> float:
        """dim/size, the squared norm of what one unit coefficient is reconstructed to; the same for all."""
        return self.dim / self.size

    @property
    def isometric(self) -> bool:
        """Whether :meth:`reconstruct` keeps all norms."""
        return self.dim == self.size

    def overlaps(self) -> NDArray[np.float64]:
        """Inner products of what two unit coefficients reconstruct to, (size,) float64, by i XOR j."""
        # Columns of H/√size over the kept rows p, and H_pi·H_pj = H_p(i XOR j).
        found = np.zeros(self.size)
        found[self._kept_rows()] = 1.0
        width = 1
        while width < self.size:  # the fast Walsh-Hadamard transform
            halves = found.reshape(-1, 2, width)
            found = np.stack([halves[:, 0] + halves[:, 1], halves[:, 0] - halves[:, 1]], axis=1).ravel()
            width *= 2
        return found / self.size

    @abstractmethod
    def _kept_rows(self) -> NDArray[np.int64]:
        """Rows of the Hadamard matrix that stand for the entries of a vector, (dim,) int64."""

    @abstractmethod
    def represent(self, x: Tensor) -> Tensor:
        """Coefficients (clients, size) of vectors (clients, dim)."""

    @abstractmethod
    def reconstruct(self, coefficients: Tensor) -> Tensor:
        """Vectors (..., dim) of coefficients (..., size): undoes :meth:`represent`."""

    @abstractmethod
    def coefficients(self, x: Tensor | Rows, indices: Tensor) -> Tensor:
        """Entries of ``represent(x)`` at each client's own indices, (clients, count)."""


@dataclass(frozen=True, kw_only=True)
class Rotation(TightFrame):
    r"""The isometry :math:`x \mapsto H D x / \sqrt{size}` of zero-padded rows, D a diagonal of public signs.

    Over the signs, an entry is sub-Gaussian with variance proxy ‖x‖₂²/size, for x chosen before the seed
    (Hoeffding's inequality). Thesis of Girgis, Section 3.6: U = H D / √d.
    """

    dim: int
    seed: int

    def __post_init__(self) -> None:
        checks.whole("public seed", self.seed, at_least=-math.inf)

    @cached_property
    @override
    def size(self) -> int:
        return padded_dim(self.dim)

    @cached_property
    def signs(self) -> Tensor:
        """The diagonal D, +1 and -1, (dim,) int8 on the CPU."""
        return public_signs("rotation", seed=self.seed, count=self.dim)

    @override
    def represent(self, x: Tensor) -> Tensor:
        return padded_transform(x, signs=self.signs, normalized=True)

    @override
    def reconstruct(self, coefficients: Tensor) -> Tensor:
        back = hadamard_transform(coefficients, normalized=True)[..., : self.dim]
        return back * self.signs.to(back.device)

    @override
    def coefficients(self, x: Tensor | Rows, indices: Tensor) -> Tensor:
        return hadamard_coefficients(x, indices, signs=self.signs).mul_(self.size**-0.5)

    def _kept_rows(self) -> NDArray[np.int64]:
        return np.arange(self.dim)


def kashin_size(dim: int) -> int:
    """N, twice the smallest power of two that is at least ``dim``."""
    return 2 << (dim - 1).bit_length()


def kashin_level(dim: int) -> float:
    """The level of a frame that is given none: 1.25 times the hardest row's, or what every row keeps to."""
    hardest = math.sqrt(math.pi / 2 / (1 - dim / kashin_size(dim)))
    return min(1.25 * hardest, math.sqrt(dim) / (1 - _MARGIN))


def kashin_stretch(dim: int, *, level: float) -> float:
    """How long coefficients may be over their vector: few vectors have longer ones (:class:`~.KashinFrame`).

    At the frame's own level the mean over random vectors is 1.045 where N = 4d and 1.02 where N = 2d, and few
    stray from it by 0.4/√d. Coefficients of a lower level are longer, and not limited.
    """
    if level < kashin_level(dim):
        return math.inf
    return 1.055 - 0.1 * (dim / kashin_size(dim) - 0.25) + 0.6 / math.sqrt(dim)


@dataclass(frozen=True, kw_only=True)
class KashinFrame(TightFrame):
    """A tight frame U = P D H / √N: N columns of length d, public, with fast products.

    H is the N x N Hadamard matrix, N the smallest power of two that is at least 2d; D is a diagonal of random
    signs; P keeps d random rows, so U Uᵀ = I. (The first N/2 rows of H would have every column twice.)

    :meth:`represent` looks for c with U c = x in the box ‖c‖∞ ≤ level·‖x‖₂/√N: by eight relaxed projections
    from Uᵀx, and then by Douglas-Rachford splitting, which converges wherever there is a point strictly
    inside. After ``max_iterations`` a row is scaled into the box, and represents s·x with s < 1. Coefficients
    longer than ``stretch`` times their vector are shortened, too; most are 1.00 to 1.05 times as long.

    A row along a column of U needs a level of about √(π/2)/√(1 - d/N). The default is a quarter above, and at
    most √d, and rows chosen before the seed reach it. No level holds for all rows at once: 2**k entries of
    equal size, in an affine subspace of the indices, need √(2**k).

    Args:
        seed: public: clients and analyzer use the same.
        level: K, above 1; by default (0) as above. Lower means less noise in a mechanism and more iterations.
        stretch: ‖c‖₂/‖x‖₂, at most; at least 1. No limit by default.
    """

    dim: int
    seed: int
    level: float = 0.0
    max_iterations: int = 200
    stretch: float = math.inf

    def __post_init__(self) -> None:
        checks.dim(self.dim)
        if self.level == 0.0:
            object.__setattr__(self, "level", kashin_level(self.dim))
        checks.number("level", self.level, above=1)
        checks.whole("max_iterations", self.max_iterations)
        if not self.stretch >= 1:
            raise ValueError(
                f"coefficients are at least as long as their vector, got stretch={self.stretch!r}"
            )
        checks.whole("public seed", self.seed, at_least=-math.inf)

    @cached_property
    @override
    def size(self) -> int:
        return kashin_size(self.dim)

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
        """Coefficients of each row, (clients, size), none above level·‖row‖₂/√size in absolute value."""
        rows = self._rows(x)
        found = torch.empty((rows.num_rows, self.size), dtype=rows.compute_dtype, device=rows.device)
        for start, stop in self._spans(rows):
            units, norms = self._represent(rows.narrow(start, stop))
            torch.mul(units, norms.unsqueeze(1), out=found[start:stop])
        return found

    @override
    def coefficients(self, x: Tensor | Rows, indices: Tensor) -> Tensor:
        rows = self._rows(x)
        checked_indices(indices, rows, size=self.size)
        found = torch.empty(indices.shape, dtype=rows.compute_dtype, device=rows.device)
        for start, stop in self._spans(rows):
            units, norms = self._represent(rows.narrow(start, stop))
            entries = units.gather(1, indices[start:stop].to(rows.device))
            torch.mul(entries, norms.unsqueeze(1), out=found[start:stop])
        return found

    @override
    def reconstruct(self, coefficients: Tensor) -> Tensor:
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

    def _spans(self, rows: Rows) -> Iterator[tuple[int, int]]:
        return spans(rows.num_rows, width=self.size, device=rows.device, entries=1 << 20)

    def _represent(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Representations of rows over their norms, and the norms."""
        norms = rows.l2_norm()
        if not bool(norms.isfinite().all()):
            raise ValueError("a row has NaN or infinite entries: it has no representation")
        dense = rows.dense().to(norms.dtype)
        lengths = torch.where(norms > 0, norms, 1.0)
        limit = self.level * self.size**-0.5
        inner, enough = limit * 0.85, limit * (1 - _MARGIN / 2)
        steps = min(8, self.max_iterations)
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
