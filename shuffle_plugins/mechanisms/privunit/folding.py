r"""A public random projection in one pass over the data: mix, then fold with a pattern of signs.

A row of length d is multiplied by public signs, and every block of up to 1024 columns by an orthonormal
Hadamard matrix, which spreads single large entries; then it is multiplied by public signs again, cut into B
pieces of length k, and the pieces are added up with the signs of a row of a Hadamard matrix, the *pattern* b:

.. math:: y_g = \sum_{c < B} H_{bc}\,w_{ck+g}, \qquad w = D_2 H_{1024} D_1 x.

Let W_b be that map. Rows of a Hadamard matrix are orthogonal, so over a uniform pattern
:math:`E[W_b^T W_b] = I`, exactly and whatever the public signs. Over these :math:`E‖y‖^2 = ‖x‖^2` and
:math:`Var(‖y‖^2) = 2\sum_g \sum_{c \ne c'} E[w_{ck+g}^2 w_{c'k+g}^2]`, about 2‖x‖⁴/k for a row without
structure, as for the subsampled Hadamard transform; but a row costs one pass and short transforms, all
patterns share the public signs, and the sum of any number of reports is brought back by one transform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from shuffle_plugins.compressors import hadamard_signs, hadamard_transform, padded_dim, public_signs
from shuffle_plugins.core import Rows, checks, rows_at_once
from shuffle_plugins.core.lazy_torch import Tensor, torch

_EXTREME = 1e15  # rows so much longer than the ball are handled in float64
_MIXED = 1024  # columns mixed by one transform, short enough for a cache


def mixed_block(dim: int) -> int:
    """How many columns of a row are mixed together before they are folded."""
    return min(1 << (dim - 1).bit_length(), _MIXED)


@dataclass(frozen=True, kw_only=True, eq=False)
class Folding:
    """The maps W_b of one public seed.

    Args:
        dim: d, length of a row.
        size: k, length of a folded row; at ``dim`` nothing is folded and W is D_2.
        seed: any whole number, public.
    """

    dim: int
    size: int
    seed: int
    block: int = field(init=False)
    """Columns mixed together."""
    padded: int = field(init=False)
    """Length of a mixed row, a multiple of ``block``."""
    folds: int = field(init=False)
    """B, pieces of a row."""
    patterns: int = field(init=False)
    """How many patterns there are: the next power of two."""

    def __post_init__(self) -> None:
        block = 1 if self.size == self.dim else mixed_block(self.dim)
        padded = -(-self.dim // block) * block
        folds = -(-padded // self.size)
        checks.whole("public seed", self.seed, at_least=-math.inf)
        values = {"block": block, "padded": padded, "folds": folds, "patterns": padded_dim(folds)}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def before(self) -> Tensor:
        """D_1, (dim,) int8."""
        return public_signs("fold before", seed=self.seed, count=self.dim)

    @cached_property
    def after(self) -> Tensor:
        """D_2, (folds·size,) int8."""
        return public_signs("fold after", seed=self.seed, count=self.folds * self.size)

    def project(self, x: Rows, patterns: Tensor, *, factors: Tensor) -> Tensor:
        """factors[i]·W_b x_i for each client's pattern b, (clients, size).

        Args:
            x: (clients, dim).
            patterns: int64 (clients,), in [0, patterns).
            factors: (clients,); factors[i]·x_i must be in the range of the dtype.
        """
        device = x.device
        wide = -(-self.folds * self.size // self.block) * self.block
        signs = hadamard_signs(patterns.unsqueeze(1), torch.arange(self.folds, device=device))
        folded = torch.empty(x.num_rows, self.size, dtype=x.compute_dtype, device=device)
        careful = x.num_rows > 0 and float(factors.min()) < 1 / _EXTREME
        dtype = torch.float64 if careful else x.compute_dtype
        before, after = self.before.to(device, dtype), self.after.to(device, dtype)
        step = rows_at_once(wide, device=device)
        work = torch.zeros(min(step, x.num_rows), wide, dtype=dtype, device=device)
        for start in range(0, x.num_rows, step):
            stop = min(start + step, x.num_rows)
            rows = work[: stop - start]
            rows[:, self.dim :] = 0
            torch.mul(x.narrow(start, stop).dense(), before, out=rows[:, : self.dim])
            if self.block > 1:
                blocks = rows.view(-1, self.block)
                hadamard_transform(blocks, out=blocks)
            pieces = rows[:, : len(after)].mul_(after).view(-1, self.folds, self.size)
            weights = signs[start:stop].to(dtype) * (factors[start:stop] * self.block**-0.5).unsqueeze(1)
            folded[start:stop] = torch.bmm(weights.to(dtype).unsqueeze(1), pieces).squeeze(1)
        return folded

    def unfold(self, sums: Tensor) -> Tensor:
        """The sum over patterns of W_bᵀ sums[b], (dim,), for sums (patterns, size)."""
        pieces = hadamard_transform(sums.T.contiguous()).T[: self.folds]
        return self._unmixed(pieces.reshape(1, -1)).squeeze(0)

    def unfold_each(self, folded: Tensor, patterns: Tensor) -> Tensor:
        """W_bᵀ y_i for each client's pattern b, (clients, dim), for folded rows (clients, size)."""
        signs = hadamard_signs(patterns.unsqueeze(1), torch.arange(self.folds, device=folded.device))
        pieces = signs.to(folded.dtype).unsqueeze(2) * folded.unsqueeze(1)
        return self._unmixed(pieces.flatten(1))

    def _unmixed(self, pieces: Tensor) -> Tensor:
        mixed = pieces.mul(self.after.to(pieces.device))[:, : self.padded]
        if self.block > 1:
            blocks = mixed.reshape(-1, self.block)
            mixed = hadamard_transform(blocks, normalized=True).view(len(mixed), -1)
        return mixed[:, : self.dim] * self.before.to(pieces.device)
