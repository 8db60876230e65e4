r"""Gaussian vectors that lean towards the client's own direction, and the law of a sum of many.

With :math:`\langle V, u \rangle` the inner product of a report V with the client's direction u, and
thresholds :math:`s_1 < \dots < s_J`, V is N(0, I) with probability c, whatever u is. Else one of the
half-spaces :math:`\{v : \langle v, u \rangle \ge s_j\}` is drawn, with probabilities proportional to their
standard normal masses :math:`q_j`, and V is N(0, I) conditioned on it. So the density of V with respect to
N(0, I) is a staircase in the inner product: it is c below all thresholds, and at each of them it rises by
:math:`c(e^{ε_0}-1)/J`. With :math:`c = 1/(1 + (e^{ε_0}-1)\bar q)`, :math:`\bar q` the mean of the q's, its
integral is one. It ends at :math:`c\,e^{ε_0}`, so ε0 is spent in full.

The mean of V is m·u with :math:`m = (1-c)\sum φ(s_j) / \sum q_j`, φ the normal density, and
:math:`E‖V‖^2 = d + (1-c)\sum s_j φ(s_j) / \sum q_j`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np
from scipy import special
from typing_extensions import override

from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks, rows_at_once
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import LocalRandomizer, Norm
from shuffle_plugins.mechanisms.privunit.privunit_sum import CHUNK
from shuffle_plugins.mechanisms.privunit.sphere import plain_share_drawn
from shuffle_plugins.randomness import WHOLE, Randomness

LARGEST_THRESHOLD = 36.0
"""Normal tails beyond vanish in float64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfSpaceParameters:
    """The numbers of one such mechanism.

    Attributes:
        local_epsilon: ε0 in nats.
        dim: d, dimension of the space.
        thresholds: s_1 < … < s_J, least inner products with the direction of a report in each half-space.
        tails: q_j, standard normal masses of the half-spaces, at most 1/2.
        plain_threshold: probability of a report that is N(0, I), times 2**62, rounded up; so ε0 is never
            exceeded.
        drawn: of reports that are not plain, the probability of one of the first j half-spaces, times 2**62.
        mean: m, length of E[V]; reports are divided by it.
        mean_square: E‖V‖².
    """

    local_epsilon: float
    dim: int
    thresholds: tuple[float, ...]
    tails: tuple[float, ...]
    plain_threshold: int
    drawn: tuple[int, ...]
    mean: float
    mean_square: float

    @property
    def plain_probability(self) -> float:
        """c, mass of the blanket."""
        return self.plain_threshold / WHOLE

    @property
    def shares(self) -> tuple[float, ...]:
        """Of reports that are not plain, the probability of each half-space."""
        return tuple((last - first) / WHOLE for first, last in pairwise((0, *self.drawn)))

    @classmethod
    def at(cls, *thresholds: float, local_epsilon: float, dim: int) -> HalfSpaceParameters:
        """A mechanism of these thresholds, ε0 spent in full.

        Raises:
            ValueError: if a parameter is out of range, or the thresholds do not rise.
        """
        checks.local_epsilon(local_epsilon)
        checks.dim(dim)
        if not all(0 <= threshold <= LARGEST_THRESHOLD for threshold in thresholds):
            listed = ", ".join(map(repr, thresholds))
            raise ValueError(f"a threshold must be in [0, {LARGEST_THRESHOLD:g}], got {listed}")
        if not thresholds or any(first >= second for first, second in pairwise(thresholds)):
            raise ValueError(f"thresholds must rise, got {thresholds!r}")
        tails = special.ndtr(-np.array(thresholds))
        plain_threshold = plain_share_drawn(float(tails.mean()), local_epsilon=local_epsilon)
        informative = (WHOLE - plain_threshold) / WHOLE
        if informative <= 0:
            raise ValueError(
                f"at local_epsilon={local_epsilon} and thresholds of {thresholds!r} a report says nothing: "
                "raise local_epsilon, or lower the thresholds"
            )
        drawn = [round(share * WHOLE) for share in np.cumsum(tails / tails.sum())[:-1].tolist()]
        found = cls(
            local_epsilon=local_epsilon,
            dim=dim,
            thresholds=tuple(thresholds),
            tails=tuple(tails.tolist()),
            plain_threshold=plain_threshold,
            drawn=(*drawn, WHOLE),
            mean=0.0,
            mean_square=0.0,
        )
        hazards = [share * hazard(s) for share, s in zip(found.shares, thresholds, strict=True)]
        excess = math.fsum(s * each for s, each in zip(thresholds, hazards, strict=True))
        return replace(found, mean=informative * math.fsum(hazards), mean_square=dim + informative * excess)


def hazard(threshold: float) -> float:
    """Mean of a standard normal value that is at least ``threshold``."""
    log_density = -threshold * threshold / 2 - math.log(2 * math.pi) / 2
    return math.exp(log_density - float(special.log_ndtr(-threshold)))


_CHUNK_VALUES = 1 << 19  # values handled at a time, which fit a cache
_LONGEST_BEYOND = 64.0  # a report exceeds √d by more with probability below 1e-100
_GRID = 1.5 * 2.0**28  # floats of 64 bits next to it are 2^-24 apart
_EXTREME = 1e15  # norms above this, or below 1/this, are handled in float64: squares may overflow or vanish


class HalfSpaceReports(LocalRandomizer):
    r"""What PrivUnitG and the blanket-mixed Gaussian mechanism share: all but the choice of half-spaces.

    A half-space is the set of vectors whose inner product with a direction is at least a threshold.

    A row x becomes a direction: x/‖x‖ with probability (1 + ‖x‖/radius)/2, else the opposite, whose mean is
    x/radius. The direction becomes a vector V (see :mod:`.half_spaces`), which stands for V·radius/m. The
    direction is drawn within the client, so every density is an average of those of directions, and ε0 holds
    for the whole ball; x = 0 reports N(0, I), which is within ε0 of all of them. E‖R(x) - x‖² =
    (radius/m)²·E‖V‖² - ‖x‖².

    The law of a sum of reports is normal around a combination of the rows, so :meth:`randomize_sum` needs
    neither one vector per client nor inverse χ² laws, in any dimension.

    Choices among finitely many outcomes are made with integer thresholds. The density of V is that of ideal
    real arithmetic: ε0 and the blanket are proved for it. Half-spaces are up to 36σ away, and the reports of
    every client must reach them, so the normal values and the inner products with the direction are drawn
    without an end before that (:meth:`.Randomness.normal`, :meth:`.Randomness.exponential`). A report's V is
    computed in float64, rounded to multiples of 2^-24 and then to float32, 32·dim bits: what floats next to
    zero have of finer digits would depend on the client's direction. All kinds of report come out of the same
    operations, so that rounding does not tell which kind it was. No proof covers what float64 is off by, a
    relative 1e-15 or so per coordinate; in :meth:`randomize_sum` products with float32 rows are float32, and
    off by a relative 1e-7 or so.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: length of a client's vector.
        radius: radius of the l2 ball.
    """

    norm: ClassVar[Norm] = Norm.L2

    def __init__(self, *, local_epsilon: float, dim: int, radius: float = 1.0) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        self._parameters = self._half_spaces()

    @abstractmethod
    def _half_spaces(self) -> HalfSpaceParameters:
        """The half-spaces of this ε0 and dimension."""

    @property
    def parameters(self) -> HalfSpaceParameters:
        """The half-spaces' thresholds, the probability of a plain report, and the mean's length."""
        return self._parameters

    @property
    def layout(self) -> ReportLayout:
        """A vector of floats of 32 bits."""
        return ReportLayout(self.name, self.dim, (FieldLayout(32, self.dim, floating=True),))

    @property
    def scale(self) -> float:
        """radius/m: what a report is multiplied by."""
        return self.radius / self._parameters.mean

    @property
    def worst_variance(self) -> float:
        """(radius/m)²·E‖V‖², of rows next to 0; 0 itself has (radius/m)²·d."""
        return self.scale**2 * self._parameters.mean_square

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² of each row, (clients,) float64."""
        lengths = self.check_rows(x).l2_norm().double()
        spread = torch.full_like(lengths, self._parameters.mean_square).masked_fill_(lengths == 0, self.dim)
        return spread.mul_(self.scale**2).sub_(lengths.square())

    @override
    def sum(self, reports: Reports) -> Tensor:
        self.check_reports(reports)
        vectors = reports.fields[0].values.reshape(len(reports), self.dim)
        lengths = torch.linalg.vector_norm(vectors, dim=1)
        if not bool((lengths <= self.dim**0.5 + _LONGEST_BEYOND).all()):
            raise ValueError(
                "a report is longer than any of this mechanism: it was altered or forged; drop it"
            )
        total = torch.zeros(self.dim, dtype=torch.float64, device=vectors.device)
        step = rows_at_once(self.dim, device=vectors.device, entries=_CHUNK_VALUES)
        for start in range(0, len(vectors), step):
            total += vectors[start : start + step].sum(dim=0, dtype=torch.float64)
        return total.mul_(self.scale).to(torch.float32)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-density of each report with respect to N(0, I), (reports,) float64."""
        vectors = reports.fields[0].values.double()
        row = x.detach().double()
        length = float(torch.linalg.vector_norm(row))
        if length == 0:
            return torch.zeros(len(reports), dtype=torch.float64, device=vectors.device)
        p = self._parameters
        along = vectors @ (row / length)
        lean = min(length / self.radius, 1.0)
        thresholds = torch.tensor(p.thresholds, dtype=torch.float64, device=along.device)
        steps = [share / tail for share, tail in zip(p.shares, p.tails, strict=True)]
        heights = torch.tensor([0.0, *accumulate(steps)], dtype=torch.float64, device=along.device)
        inside = heights[torch.searchsorted(thresholds, along, right=True)].mul_((1 + lean) / 2)
        inside.add_(heights[torch.searchsorted(thresholds, -along, right=True)], alpha=(1 - lean) / 2)
        density: Tensor = inside.mul_(1 - p.plain_probability).add_(p.plain_probability)
        return density.log_()

    def sum_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Tensor:
        r"""A draw with the law of ``sum(randomize(x))``, (dim,), without one dense vector per client.

        A chunk of b clients with unit directions U (b, d) and inner products α contributes
        :math:`U^T α + \sum_i (I - u_i u_i^T) g_i`. The second term is N(0, bI - UᵀU), drawn as
        :math:`\sqrt b\,(z - U^T M U z)`, z one normal vector, :math:`K = U U^T` and
        :math:`M = (b(I + \sqrt{I - K/b}))^{-1}`. A chunk costs its Gram matrix, one normal vector and a
        product of the rows with it; the rows are weighted and added up once, for all chunks
        together. Values are float32 numbers, also where the dtype is wider. A GPU draws the reports
        themselves, which is faster there.
        """
        if x.device.type != "cpu":
            return super().sum_rows(x, norms, randomness)
        draws = self._draw(norms, randomness)
        total = torch.zeros(self.dim, dtype=torch.float64, device=x.device)
        weights = torch.zeros(x.num_rows, dtype=x.compute_dtype, device=x.device)
        for start in range(0, x.num_rows, CHUNK):
            stop = min(start + CHUNK, x.num_rows)
            part, lengths = x.narrow(start, stop), norms[start:stop].double()
            careful = bool(((lengths > 0) & ~((lengths > 1 / _EXTREME) & (lengths < _EXTREME))).any())
            if careful:  # norms of tiny rows may be off by a factor: measure what the division has left
                part = part.directions(lengths)
                lengths = part.l2_norm().double()
            normals, on_rows = _chunk(part, lengths, along=draws.along[start:stop], randomness=randomness)
            total += normals
            if careful:
                total += part.weighted_sum(on_rows)
            else:
                weights[start:stop] = on_rows
        total += x.weighted_sum(weights)
        return _on_grid(total).mul_(self.scale).to(torch.float32)

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """A vector of float32 values for each row."""
        draws = self._draw(norms, randomness)
        vectors = torch.empty(x.num_rows, self.dim, dtype=torch.float32, device=x.device)
        step = rows_at_once(self.dim, device=x.device, entries=_CHUNK_VALUES)
        for start in range(0, x.num_rows, step):
            stop = min(start + step, x.num_rows)
            plain = draws.plain[start:stop].unsqueeze(1)
            directions = x.narrow(start, stop).directions(norms[start:stop]).dense()
            directions.masked_fill_(plain, self.dim**-0.5)
            directions.div_(torch.linalg.vector_norm(directions, dim=1, keepdim=True))
            normals = randomness.normal((stop - start, self.dim), dtype=torch.float64, device=x.device)
            shift = draws.along[start:stop].unsqueeze(1) - torch.linalg.vecdot(normals, directions).unsqueeze(
                1
            )
            vectors[start:stop] = _on_grid(normals.addcmul_(directions, shift))
        return self.layout.reports(vectors)

    def _draw(self, norms: Tensor, randomness: Randomness) -> _Draws:
        """Kinds and inner products; a zero row is plain, whatever was drawn."""
        count, p = norms.shape[0], self._parameters
        lengths = norms.double().cpu()
        plain = randomness.bernoulli(torch.full((count,), p.plain_threshold)) | (lengths == 0)
        filled = torch.where(plain, 0.0, (lengths / self.radius).clamp(max=1.0))
        thresholds = ((1 + filled) * (WHOLE / 2)).to(torch.int64).clamp_(max=WHOLE)
        sign = randomness.bernoulli(thresholds).double().mul_(2).sub_(1)
        tails = torch.tensor(p.tails, dtype=torch.float64).log_()
        if len(p.tails) > 1:
            bounds = torch.tensor(p.drawn[:-1])
            tails = tails[torch.searchsorted(bounds, randomness.integers(WHOLE, count), right=True)]
        log_tails = torch.where(plain, math.log(0.5), tails).sub_(randomness.exponential(count))
        along = torch.from_numpy(-special.ndtri_exp(log_tails.numpy())).mul_(sign)
        return _Draws(along=along.to(norms.device), plain=plain.to(norms.device))


def _on_grid(values: Tensor) -> Tensor:
    """Round float64 values in place, to multiples of 2^-24 or, above 2^27, of a larger power of two."""
    return values.add_(_GRID).sub_(_GRID)


@dataclass(frozen=True, slots=True)
class _Draws:
    """⟨V, u⟩ of each report, (clients,) float64, and which are N(0, I), whatever u is."""

    along: Tensor
    plain: Tensor


def _chunk(x: Rows, lengths: Tensor, *, along: Tensor, randomness: Randomness) -> tuple[Tensor, Tensor]:
    """√b·z, (dim,) float64, and the weights of the rows, (clients,)."""
    count = x.num_rows
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    cosines = x.gram().double() * inverse.unsqueeze(1) * inverse
    values, vectors = torch.linalg.eigh(cosines)
    gains = (1 - values / count).clamp_(0, 1).sqrt_().add_(1).mul_(count).reciprocal_()
    normals = randomness.normal(x.dim, dtype=torch.float64, device=x.device)
    on_rows = x.dot(normals.to(x.compute_dtype)).double() * inverse
    correction = vectors @ (gains * (vectors.T @ on_rows))
    weights = (along - count**0.5 * correction).mul_(inverse)
    return normals.mul_(count**0.5), weights.to(x.compute_dtype)
