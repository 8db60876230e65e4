"""ProjUnit: PrivUnit after a public random projection (``docs/proofs/mechanisms.md``, section 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar

import numpy as np
from scipy import special
from typing_extensions import override

from shuffle_plugins.accounting import Atoms, Blanket
from shuffle_plugins.accounting.pairs.reports import most_telling, read_coarsely
from shuffle_plugins.compressors.frames import public_signs
from shuffle_plugins.compressors.hadamard import hadamard_signs, hadamard_transform, padded_dim
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import Ranged, in_range, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.reports import Field
from shuffle_plugins.core.rows import rows_at_once, spans
from shuffle_plugins.mechanisms.base import LocalRandomizer, Norm
from shuffle_plugins.mechanisms.privunit import PrivUnit, caps_at_angle, optimal_privunit
from shuffle_plugins.randomness.sources import Randomness


@dataclass(frozen=True, kw_only=True, eq=False)
class Folding(Ranged):
    """The maps W_b of one public seed, of rows (dim,) to (size,); at ``dim`` nothing is folded and W is D_2.

    Columns are mixed in blocks to a row of ``padded`` numbers, which is cut into B = ``folds`` pieces.
    """

    dim: int
    size: int
    seed: Annotated[int, whole_number(at_least=-math.inf)]

    @property
    def block(self) -> int:
        """How many columns of a row are mixed together before they are folded."""
        return 1 if self.size == self.dim else min(padded_dim(self.dim), 1024)

    @property
    def padded(self) -> int:
        """Length of a mixed row, a multiple of ``block``."""
        return -(-self.dim // self.block) * self.block

    @property
    def folds(self) -> int:
        """B, pieces of a row."""
        return -(-self.padded // self.size)

    @property
    def patterns(self) -> int:
        """How many patterns there are: the next power of two."""
        return padded_dim(self.folds)

    @cached_property
    def before(self) -> Tensor:
        """D_1, the public signs that coordinates are multiplied by first, shape (dim,), int8."""
        return public_signs("fold before", seed=self.seed, count=self.dim)

    @cached_property
    def after(self) -> Tensor:
        """D_2, (folds·size,) int8."""
        return public_signs("fold after", seed=self.seed, count=self.folds * self.size)

    def project(self, x: Rows, patterns: Tensor, *, factors: Tensor) -> Tensor:
        """factors[i]·W_b x_i, in the range of the dtype, for each client's pattern b, (clients, size)."""
        device = x.device
        wide = -(-self.folds * self.size // self.block) * self.block
        signs = hadamard_signs(patterns.unsqueeze(1), torch.arange(self.folds, device=device))
        folded = torch.empty(x.num_rows, self.size, dtype=x.compute_dtype, device=device)
        careful = x.num_rows > 0 and float(factors.min()) < 1e-15  # far outside the ball
        dtype = torch.float64 if careful else x.compute_dtype
        before, after = self.before.to(device, dtype), self.after.to(device, dtype)
        work = torch.zeros(
            min(rows_at_once(wide, device=device), x.num_rows), wide, dtype=dtype, device=device
        )
        for start, stop in spans(x.num_rows, width=wide, device=device):
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


@lru_cache(maxsize=256)
def along_square(*, local_epsilon: float, dim: int) -> float:
    r"""E⟨V, u⟩² of PrivUnit's report V around a direction u, slightly more than 1/dim.

    On the cap :math:`E[A^2; A \ge t] = P[Beta(3/2, (d-1)/2) \ge t^2]/(2d)`.
    """
    law = optimal_privunit(local_epsilon=local_epsilon, dim=dim)
    if dim == 1:
        return 1.0
    c, (t,), (measure,) = law.plain_probability, law.thresholds, law.tails
    in_cap = float(special.betaincc(1.5, (dim - 1) / 2, t * t)) / (2 * dim)
    return c / dim + (1 - c) * in_cap / measure


@lru_cache(maxsize=256)
def _folded_instance(local_epsilon: float, size: int, lean: float) -> Atoms:
    """The instance of rows that are one coordinate of the folded row, by undoing the mixing of one block.

    PrivUnit reports about their direction with probability (1 + lean)/2, else about the opposite one. Two
    rows are opposite; everybody else's is x', or at a right angle.
    """
    law = optimal_privunit(local_epsilon=local_epsilon, dim=size)
    (threshold,), (measure,), density = law.thresholds, law.tails, law.plain_probability
    shared = float(caps_at_angle(threshold, angle=math.pi / 2, dim=size))
    weight = {s: 1 + math.expm1(local_epsilon) * (1 + s * lean) / 2 if s else 1.0 for s in (1, 0, -1)}
    candidates = []
    for parts in (
        {(s, -s): measure for s in (1, -1)},
        {
            **{(s, t): shared for s in (1, -1) for t in (1, -1)},
            **{(s, 0): measure - 2 * shared for s in (1, -1)},
            **{(0, t): measure - 2 * shared for t in (1, -1)},
        },
    ):
        atoms = [
            (weight[s] / weight[t], weight[-s] / weight[t], density * area * weight[t])
            for (s, t), area in parts.items()
        ]
        first, second, mass = (np.array(column) for column in zip(*atoms, strict=True))
        candidates.append(read_coarsely(first - 1, second - 1, mass))
    return most_telling(candidates)


@dataclass(frozen=True, kw_only=True, eq=False)
class ProjUnit(LocalRandomizer):
    r"""PrivUnit of :math:`y = W_b x \in \mathbb{R}^k`, b drawn by the client and part of the report.

    The projections W_b have public signs, and a uniform pattern b of few bits. A report (b, V), V PrivUnit's
    unit vector for y in the ball of radius :math:`ρ = radius\,(1 + slack/\sqrt{2k})`, stands for
    :math:`W_b^T V ρ/m`, and costs ε0 exactly. Unbiased as long as ‖W_b x‖ ≤ ρ; a longer y is shortened. At
    the default slack a row on the boundary loses 4e-4/√(2k) of itself, averaged over seeds
    (:meth:`expectation`). The error is about ρ²/radius² times PrivUnit's, 7 % more at k = 4096, in
    32·k + ceil(log2 B) bits, B = d/k rounded up (``docs/proofs/mechanisms.md``, section 5).

    Source: Asi, Feldman, Nelson, Nguyen, Talwar 2023, "Fast optimal locally private mean estimation via
    random projections".

    Attributes:
        projected_dim: k, in [2, dim]; 4096 or dim by default, whichever is less. At dim this is PrivUnit.
        slack: how much longer than the radius y may be, in standard deviations.
        seed: of the public signs; clients and analyzer use the same.
    """

    name: ClassVar[str] = "projunit"
    norm: ClassVar[Norm] = Norm.L2
    projected_dim: int | None = None
    slack: Annotated[float, in_range(at_least=0, at_most=100)] = 3.0
    seed: Annotated[int, whole_number(at_least=-math.inf)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        size = min(self.dim, 4096) if self.projected_dim is None else self.projected_dim
        checks.whole("projected_dim", size, at_least=min(self.dim, 2), at_most=self.dim)
        object.__setattr__(self, "projected_dim", size)

    @cached_property
    def _folding(self) -> Folding:
        return Folding(dim=self.dim, size=self.projected_dim or 1, seed=self.seed)

    @property
    def _inflation(self) -> float:
        """How much larger than the ball of rows that of folded rows is; 1 without folding."""
        size = self._folding.size
        return 1.0 if size == self.dim else 1 + self.slack / math.sqrt(2 * size)

    @cached_property
    def _inner(self) -> PrivUnit:
        return PrivUnit(
            local_epsilon=self.local_epsilon, dim=self._folding.size, radius=self.radius * self._inflation
        )

    @property
    @override
    def layout(self) -> ReportLayout:
        pattern = FieldLayout((self._folding.patterns - 1).bit_length())
        return ReportLayout(
            self.name, self.dim, (pattern, FieldLayout(32, self._folding.size, floating=True))
        )

    @cached_property
    @override
    def worst_variance(self) -> float:
        size = self._folding.size
        excess = along_square(local_epsilon=self.local_epsilon, dim=size)
        leaning = (size * excess - 1) / (size - 1) if size > 1 else 0.0
        spread = (1 - leaning) * self.dim / size + leaning * self._folding.folds
        return self._inner.scale**2 * spread

    def variance(self, x: Tensor | Rows) -> Tensor:
        """A bound on E‖R(x) - x‖² of each row, (clients,) float64; see the class for when it is the value."""
        return self.worst_variance - self.check_rows(x).l2_norm().double().square()

    def expectation(self, x: Tensor | Rows) -> Tensor:
        """E[R(x)] of each row, (clients, dim) float64: x, but for what is lost where ‖W_b x‖ > ρ."""
        rows = self.check_rows(x)
        wide = Rows([block.double() for block in rows.blocks])
        folding = self._folding
        means = torch.zeros(rows.num_rows, self.dim, dtype=torch.float64, device=rows.device)
        wide, norms = self.admitted(wide, self.row_norms(wide), clip=True)
        factors = self.clip_factors(norms)
        for pattern in range(folding.patterns):
            chosen = torch.full((rows.num_rows,), pattern, device=rows.device)
            folded = self._inner.clip(folding.project(wide, chosen, factors=factors))
            means += folding.unfold_each(folded, chosen)
        return means / folding.patterns

    def blanket(self) -> Blanket:
        """PrivUnit's in ``projected_dim`` dimensions: exact without folding, a bound with it."""
        size, own = self._folding.size, self._inner.blanket()
        if size == self.dim:
            return own
        lean, known = (1 - 1e-6) / self._inflation, size > 1 and self._folding.block <= self.dim
        instances = (_folded_instance(self.local_epsilon, size, lean),) if known else ()
        return replace(own, exact=False, outside=0.0, instances=instances)

    @override
    def sum(self, reports: Reports) -> Tensor:
        patterns, inner = self._split(reports)
        vectors = self._inner.check_vectors(inner)
        sums = torch.zeros(self._folding.patterns, self._folding.size, device=vectors.device)
        sums.index_add_(0, patterns, vectors)
        return self._folding.unfold(sums).mul_(self._inner.scale)

    @override
    def outcomes(self) -> Reports | None:
        listed = self._inner.outcomes() if self.dim == 1 else None
        if listed is None:
            return None
        patterns = torch.zeros(len(listed), dtype=torch.int64)
        return self.layout.reports(patterns, listed.fields[0].values)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-density of V with respect to the uniform law, given the pattern, (reports,) float64."""
        patterns, inner = self._split(reports)
        row = Rows(x.detach().double().reshape(1, -1))
        factors = self.clip_factors(self.row_norms(row))
        found = torch.empty(len(reports), dtype=torch.float64)
        for pattern in torch.unique(patterns):
            here = (patterns == pattern).nonzero().squeeze(1)
            y = self._folding.project(row, pattern.reshape(1), factors=factors).squeeze(0)
            vectors = Field(inner.fields[0].values[here], 32)
            part = Reports(mechanism=inner.mechanism, dim=inner.dim, fields=(vectors,))
            found[here] = self._inner.log_likelihood(part, y)
        return found

    @override
    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        patterns = randomness.integers(self._folding.patterns, x.num_rows, device=x.device)
        folded = self._folding.project(x, patterns, factors=self.clip_factors(norms))
        inner = self._inner.randomize(folded, randomness=randomness, clip=True)
        return self.layout.reports(patterns, inner.fields[0].values)

    def _split(self, reports: Reports) -> tuple[Tensor, Reports]:
        """Patterns, checked, and the reports of PrivUnit."""
        self.layout.check(reports)
        patterns, vectors = (field.values for field in reports.fields)
        if patterns.numel() and not (
            int(patterns.min()) >= 0 and int(patterns.max()) < self._folding.patterns
        ):
            raise ValueError(f"a report names a pattern outside [0, {self._folding.patterns})")
        return patterns.to(torch.int64), self._inner.layout.reports(vectors)
