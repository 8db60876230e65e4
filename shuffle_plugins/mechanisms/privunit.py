"""Randomizers that send a direction: the density of a report rises in steps towards the client's own.

The law, the best cap, its blanket and the sum without reports: ``docs/proofs/mechanisms.md``, section 4.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from typing_extensions import override

from shuffle_plugins.accounting import Atoms, Blanket, Floats, InformationBound
from shuffle_plugins.accounting.numerics.search import zero_between
from shuffle_plugins.accounting.pairs.reports import most_telling, two_level_atoms
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import Rows, spans
from shuffle_plugins.mechanisms.base import LocalRandomizer, Norm
from shuffle_plugins.mechanisms.sign_patterns import LOUDEST_EXACT
from shuffle_plugins.randomness.chacha import WHOLE
from shuffle_plugins.randomness.sources import Randomness

CHUNK = 64
"""Clients per chunk of a sum. Larger ones need fewer normal vectors, but larger Gram matrices."""

_CHUNK_VALUES = 1 << 19  # values handled at a time, which fit a cache
_EXTREME = 1e15  # norms beyond are handled in float64: squares may overflow or vanish

LOUDEST_TOLD = 30.0
"""ε0 beyond which no round is large enough for what a report tells to bound it."""

OVERLAP_ERROR = 1e-6
"""Of the measure of two caps, relative to that of one; far above the error of the integrals."""

_CELLS = 360  # of an angle
ANGLES = np.linspace(0, math.pi, _CELLS + 1)
"""Ends of the cells in which angles between directions are tried."""

_FIRST, _SECOND = np.triu_indices(_CELLS)  # of two angles, whose order does not matter
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)  # caps of a million dimensions to nine digits


@dataclass(frozen=True, kw_only=True)
class StepDensity:
    """The law of one report: its density over a public plain law rises in steps along the client's direction.

    Attributes:
        thresholds: s_1 < … < s_J, least inner products with the direction of a report in each set.
        tails: q_j, plain measures of the sets, at most 1/2.
        plain_threshold: probability of a plain report, times 2**62, rounded up; so ε0 is never exceeded.
        drawn: of reports that are not plain, the probability of one of the first j sets, times 2**62.
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
        """Of reports that are not plain, the probability of each set."""
        return tuple((last - first) / WHOLE for first, last in pairwise((0, *self.drawn)))

    @classmethod
    def of(
        cls,
        *,
        local_epsilon: float,
        dim: int,
        thresholds: Sequence[float],
        tails: Sequence[float],
        leans: Sequence[float],
        square: float,
        excess: float,
    ) -> StepDensity:
        """The law of sets of these measures, ε0 spent in full.

        Args:
            leans: mean inner product of a report in each set.
            square: E‖V‖² of a plain report.
            excess: 1 if in a set E‖V‖² is more by its threshold times its lean, 0 if it is the same.
        """
        mean_tail = math.fsum(tails) / len(tails)
        plain = plain_share_drawn(mean_tail, local_epsilon=local_epsilon)
        informative = (WHOLE - plain) / WHOLE
        if informative <= 0:
            raise ValueError(
                f"at local_epsilon={local_epsilon} and thresholds of {tuple(thresholds)!r} a report says "
                "nothing: raise local_epsilon, or lower the thresholds"
            )
        drawn = [round(each / math.fsum(tails) * WHOLE) for each in accumulate(tails)][:-1]
        drawn.append(WHOLE)
        shares = [(last - first) / WHOLE for first, last in pairwise((0, *drawn))]
        hazards = [share * lean for share, lean in zip(shares, leans, strict=True)]
        more = math.fsum(s * each for s, each in zip(thresholds, hazards, strict=True))
        return cls(
            local_epsilon=local_epsilon,
            dim=checks.dim(dim),
            thresholds=tuple(thresholds),
            tails=tuple(tails),
            plain_threshold=plain,
            drawn=tuple(drawn),
            mean=informative * math.fsum(hazards),
            mean_square=square + excess * informative * more,
        )


class DirectionRandomizer(LocalRandomizer):
    """What randomizers of an l2 ball that send a direction share: all but the sets and the plain law.

    A row x becomes a direction: x/‖x‖ with probability (1 + ‖x‖/radius)/2, else the opposite, whose mean is
    x/radius. The direction becomes a vector V, which stands for V·radius/m; x = 0 sends a plain V.
    E‖R(x) - x‖² = (radius/m)²·E‖V‖² - ‖x‖².

    Choices among finitely many outcomes are made with integer thresholds. The density of V is that of ideal
    real arithmetic; it is computed in float64 and rounded to float32 once, which no proof covers. A plain V
    comes out of the very same operations, so that rounding does not tell which kind it was.
    """

    norm: ClassVar[Norm] = Norm.L2

    _law: ClassVar[Callable[..., StepDensity]]

    @cached_property
    def parameters(self) -> StepDensity:
        """The law of a report."""
        return type(self)._law(local_epsilon=self.local_epsilon, dim=self.dim)

    @property
    @abstractmethod
    def _plain_square(self) -> float:
        """E‖V‖² of a plain report."""

    @abstractmethod
    def _quantile(self, log_tails: Floats) -> Floats:
        """The inner product that a plain report exceeds with a probability of at most 1/2."""

    @abstractmethod
    def _turned(self, normals: Tensor, directions: Tensor, along: Tensor) -> Tensor:
        """Vectors with the inner products ``along`` (clients, 1), of normal ones, float64; in place."""

    @abstractmethod
    def _lengths_fit(self, lengths: Tensor) -> Tensor:
        """Which lengths a report may have."""

    @property
    @override
    def layout(self) -> ReportLayout:
        return ReportLayout(self.name, self.dim, (FieldLayout(32, self.dim, floating=True),))

    @property
    def scale(self) -> float:
        """radius/m: what a report is multiplied by."""
        return self.radius / self.parameters.mean

    @property
    def worst_variance(self) -> float:
        """(radius/m)²·E‖V‖², of rows next to 0; for 0 itself V is plain."""
        return self.scale**2 * self.parameters.mean_square

    @override
    def variance(self, x: Tensor | Rows) -> Tensor:
        lengths = self.check_rows(x).l2_norm().double()
        spread = torch.full_like(lengths, self.parameters.mean_square)
        spread.masked_fill_(lengths == 0, self._plain_square)
        return spread.mul_(self.scale**2).sub_(lengths.square())

    @override
    def sum(self, reports: Reports) -> Tensor:
        vectors = self.check_vectors(reports)
        total = torch.zeros(self.dim, dtype=torch.float64, device=vectors.device)
        for start, stop in spans(len(vectors), width=self.dim, device=vectors.device, entries=_CHUNK_VALUES):
            total += vectors[start:stop].sum(dim=0, dtype=torch.float64)
        return total.mul_(self.scale).to(torch.float32)

    def check_vectors(self, reports: Reports) -> Tensor:
        """The vectors of reports, (reports, dim), refused if one has a length that is never sent."""
        self.layout.check(reports)
        vectors = reports.fields[0].values.reshape(len(reports), self.dim)
        if not bool(self._lengths_fit(torch.linalg.vector_norm(vectors, dim=1)).all()):
            raise ValueError("a report has a length that is never sent: it was altered or forged; drop it")
        return vectors

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-density of each report over the plain law, (reports,) float64; at dim 1 see the mechanism."""
        vectors = reports.fields[0].values.double()
        row = x.detach().double()
        length = float(torch.linalg.vector_norm(row))
        if length == 0:
            return torch.zeros(len(reports), dtype=torch.float64, device=vectors.device)
        p = self.parameters
        lean = min(length / self.radius, 1.0)
        thresholds = torch.tensor(p.thresholds, dtype=torch.float64, device=vectors.device)
        steps = [share / tail for share, tail in zip(p.shares, p.tails, strict=True)]
        heights = torch.tensor([0.0, *accumulate(steps)], dtype=torch.float64, device=vectors.device)
        near, far = self._inner_products(vectors, row / length)
        inside = heights[torch.searchsorted(thresholds, near, right=True)].mul_((1 + lean) / 2)
        inside.add_(heights[torch.searchsorted(thresholds, far, right=True)], alpha=(1 - lean) / 2)
        density: Tensor = inside.mul_(1 - p.plain_probability).add_(p.plain_probability)
        return density.log_()

    def _inner_products(self, vectors: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """With the direction and its opposite."""
        along = vectors @ direction
        return along, -along

    @override
    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        along, plain = self._draw(norms, randomness)
        scale = torch.where(norms > 0, norms, 1.0).double().unsqueeze(1)
        vectors = torch.empty(x.num_rows, self.dim, dtype=torch.float32, device=x.device)
        for start, stop in spans(x.num_rows, width=self.dim, device=x.device, entries=_CHUNK_VALUES):
            directions = x.narrow(start, stop).dense().to(torch.float64, copy=True)
            directions.div_(scale[start:stop]).masked_fill_(plain[start:stop].unsqueeze(1), self.dim**-0.5)
            directions.div_(torch.linalg.vector_norm(directions, dim=1, keepdim=True))
            normals = randomness.normal((stop - start, self.dim), dtype=torch.float64, device=x.device)
            vectors[start:stop] = self._turned(normals, directions, along[start:stop].unsqueeze(1))
        return self.layout.reports(vectors)

    def _signs(self, filled: Tensor, randomness: Randomness) -> Tensor:
        """Which way each direction is turned, ±1 float64, of mean ``filled``: a row over the radius."""
        thresholds = ((1 + filled) * (WHOLE / 2)).to(torch.int64).clamp_(max=WHOLE)
        return randomness.bernoulli(thresholds).double().mul_(2).sub_(1)

    def _draw(self, norms: Tensor, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """⟨V, u⟩ of each report, float64, and which are plain; a zero row is, whatever was drawn."""
        count, p = norms.shape[0], self.parameters
        lengths = norms.double().cpu()
        plain = randomness.bernoulli(torch.full((count,), p.plain_threshold)) | (lengths == 0)
        filled = torch.where(plain, 0.0, (lengths / self.radius).clamp(max=1.0))
        sign = self._signs(filled, randomness)
        tails = torch.tensor(p.tails, dtype=torch.float64).log_()
        if len(p.tails) > 1:
            bounds = torch.tensor(p.drawn[:-1])
            tails = tails[torch.searchsorted(bounds, randomness.integers(WHOLE, count), right=True)]
        log_tails = torch.where(plain, math.log(0.5), tails).sub_(randomness.exponential(count))
        along = torch.from_numpy(self._quantile(log_tails.numpy())).mul_(sign)
        return along.to(norms.device), plain.to(norms.device)


def plain_share(measure: float, *, local_epsilon: float) -> float:
    """c = 1/(1 + (e^ε0 - 1)·measure): of reports that are e^ε0 times likelier on a set, the plain ones."""
    shrink = math.exp(-local_epsilon)
    return shrink / (shrink - math.expm1(-local_epsilon) * measure)


def plain_share_drawn(measure: float, *, local_epsilon: float) -> int:
    """:func:`plain_share` times 2**62, rounded up, so that ε0 is never exceeded.

    The smaller of c and 1 - c is rounded by a share of itself, so that hardly any ε0 is lost.
    """
    shrink, gain = math.exp(-local_epsilon), -math.expm1(-local_epsilon) * measure
    plain = math.ceil(shrink / (shrink + gain) * (1 + 1e-12) * WHOLE)
    informative = math.floor(gain / (shrink + gain) * (1 - 1e-12) * WHOLE)
    return min(plain, WHOLE - informative)


def cap_measure(threshold: float, *, dim: int) -> float:
    """P[A >= threshold] for a threshold in [0, 1]; at dim 1 the cap is one of two points."""
    if dim == 1:
        return 0.5
    if threshold < 0.7:
        return 0.5 * float(special.betaincc(0.5, (dim - 1) / 2, threshold * threshold))
    complement = (1 - threshold) * (1 + threshold)
    return 0.5 * float(special.betainc((dim - 1) / 2, 0.5, complement))


def cap_moment(threshold: float, *, dim: int) -> float:
    r"""E[A; A >= threshold] = :math:`\frac{Γ(d/2)}{2\sqrt{π}\,Γ((d+1)/2)} (1 - t^2)^{(d-1)/2}`."""
    if dim == 1:
        return 0.5
    # log Γ(x + 1/2) - log Γ(x), without the cancellation of two large logarithms
    log_ratio = -math.log(float(special.poch(dim / 2 + 0.5, -0.5)))
    log_constant = -float(special.gammaln(0.5)) - log_ratio
    return 0.5 * math.exp(log_constant + 0.5 * (dim - 1) * math.log1p(-threshold * threshold))


def caps_at_angle(threshold: float, *, angle: ArrayLike, dim: int) -> Floats:
    r"""P[⟨V, u⟩ >= threshold and ⟨V, w⟩ >= threshold] for unit vectors at each angle; dim at least 2.

    :math:`\frac1π \int_{angle/2}^{\arccos t} (1 - t^2/\cos^2 a)^{(d-2)/2} da`.
    """
    last = math.acos(threshold)
    root = np.sqrt(np.maximum(last - np.asarray(angle) / 2, 0.0))
    width = root[..., None] * (_NODES + 1) / 2
    cosine = np.cos(last - width**2)
    inside = np.maximum((cosine - threshold) * (cosine + threshold) / cosine**2, 0.0)
    power = inside ** ((dim - 2) / 2) if dim > 2 else np.ones_like(inside)
    return np.asarray((power * 2 * width) @ _WEIGHTS * root / 2 / math.pi)


def most_information(*, square: float, told: Floats, both: Floats, saved: float, thrice: Floats) -> float:
    """An upper bound on E[(F - F')²(1 - ψ)] over all directions of records x, x' and everybody else's z.

    F, F' and ψ rise with the inner products of a plain report with x, x' and z, in [0, 1] (section 3d of the
    proofs of accounting). At :data:`ANGLES` ``square`` is E[F²], ``told`` and ``both`` are at most E[F²ψ] and
    E[F F'], ``saved`` is the largest ψ, and ``thrice`` at least E[Fψ].
    """
    # Of the angle between x and x', at most a + b and 2π − a − b, the largest in the cell.
    apart = np.minimum(np.minimum(_FIRST + _SECOND + 2, 2 * _CELLS - _FIRST - _SECOND), _CELLS)
    together = both[apart]
    all_three = np.minimum(saved * together, np.minimum(thrice[_FIRST], thrice[_SECOND]))
    alone = 2 * square - (told[_FIRST + 1] + told[_SECOND + 1])
    return float((alone - 2 * (together - all_three)).max())


def cap_coordinate(tail: Floats, *, dim: int) -> Floats:
    """The value a with P[A >= a] = tail, for tails in (0, 1/2]."""
    if dim == 1:
        return np.ones_like(tail)
    squared: Floats = special.betainccinv(0.5, (dim - 1) / 2, 2 * tail)
    root: Floats = np.sqrt(squared.clip(0.0, 1.0))
    return root


@lru_cache(maxsize=256)
def optimal_privunit(*, local_epsilon: float, dim: int) -> StepDensity:
    """The PrivUnit of least variance."""
    checks.local_epsilon(local_epsilon)
    if checks.dim(dim) == 1:
        return privunit_at(0.0, local_epsilon=local_epsilon, dim=dim)
    inverse_odds = math.exp(-local_epsilon) / -math.expm1(-local_epsilon)

    def slope(threshold: float) -> float:
        share = inverse_odds + cap_measure(threshold, dim=dim)
        return threshold * share - (cap_moment(threshold, dim=dim) if threshold < 1 else 0.0)

    threshold = zero_between(slope, 0.0, 1.0, xtol=1e-300, rtol=1e-13)
    return privunit_at(min(threshold, 1 - 1e-16), local_epsilon=local_epsilon, dim=dim)


def privunit_at(threshold: float, *, local_epsilon: float, dim: int) -> StepDensity:
    """PrivUnit with the cap of a threshold in [0, 1)."""
    checks.number("threshold", threshold, at_least=0, below=1)
    measure = cap_measure(threshold, dim=checks.dim(dim))
    if measure < 1e-300:
        raise ValueError(f"the cap at {threshold} has no measure in dimension {dim}")
    return StepDensity.of(
        local_epsilon=local_epsilon,
        dim=dim,
        thresholds=(threshold,),
        tails=(measure,),
        leans=(cap_moment(threshold, dim=dim) / measure,),
        square=1.0,
        excess=0,
    )


@lru_cache(maxsize=256)
def privunit_blanket(*, local_epsilon: float, dim: int) -> Blanket:
    """Blanket on the ball: reports are by e^ε0 likelier within a cap about the record, of measure s ≤ 1/2.

    (e, 1) and (1, e) have mass c·s each, (1, 1) has c(1 - 2s) (``docs/proofs/mechanisms.md``, section 4). In
    the instance everybody else's z is at the same angle to x and x' in their plane, on the other side. In one
    dimension a report is a sign, and counted as one.
    """
    law = optimal_privunit(local_epsilon=local_epsilon, dim=dim)
    if dim == 1:
        return Blanket.bit(local_epsilon, exact=local_epsilon < LOUDEST_EXACT)
    (threshold,), (measure,) = law.thresholds, law.tails
    overlap = partial(caps_at_angle, threshold, dim=dim)
    plain = plain_share(measure, local_epsilon=local_epsilon)

    def instance(together: float, other: float) -> Atoms:
        together = min(together, measure)
        other = min(other, measure / 2, measure - together)
        alone = plain * (measure - together - other)
        shares: dict[tuple[int, ...], float] = {
            (1, 0, 0): alone,
            (0, 1, 0): alone,
            (1, 1, 0): plain * together,
            (1, 0, 1): plain * other,
            (0, 1, 1): plain * other,
            (0, 0, 1): plain * (measure - 2 * other),
        }
        return two_level_atoms(local_epsilon=local_epsilon, shares=shares)

    tried = np.linspace(math.pi / 2, math.pi, 37)  # angles between x and x'
    instances = map(instance, overlap(angle=tried).tolist(), overlap(angle=math.pi - tried / 2).tolist())
    error = OVERLAP_ERROR * measure
    information = None
    if local_epsilon <= LOUDEST_TOLD:
        low = np.maximum(overlap(angle=ANGLES) - error, 0.0)
        high = np.minimum(overlap(angle=ANGLES) + error, measure)
        saved = -math.expm1(-local_epsilon)  # 1 − 1/e
        most = most_information(square=measure, told=saved * low, both=low, saved=saved, thrice=saved * high)
        information = InformationBound.of_blanket(
            local_epsilon=local_epsilon, information=plain * math.expm1(local_epsilon) ** 2 * most, mass=plain
        )
    return Blanket(
        local_epsilon=local_epsilon,
        differing=plain * measure,
        low=plain * (1 - 2 * measure),
        outside=plain * max(measure - float(overlap(angle=math.pi / 2)) - error, 0.0),
        instances=(most_telling(instances),),
        information_bound=information,
    ).shared()


class PrivUnit(DirectionRandomizer):
    """PrivUnit on an l2 ball: a random unit vector, with the cap of least variance and ε0 spent exactly.

    Source: Bhowmick, Duchi, Freudiger, Kapoor, Rogers 2018, "Protection against reconstruction"; Asi,
    Feldman, Talwar 2022, "Optimal algorithms for mean estimation under local differential privacy".
    """

    name: ClassVar[str] = "privunit"
    _law = staticmethod(optimal_privunit)
    _plain_square = 1.0

    @override
    def blanket(self) -> Blanket:
        return privunit_blanket(local_epsilon=self.local_epsilon, dim=self.dim)

    @override
    def _quantile(self, log_tails: Floats) -> Floats:
        return cap_coordinate(np.exp(log_tails), dim=self.dim)

    @override
    def _turned(self, normals: Tensor, directions: Tensor, along: Tensor) -> Tensor:
        r""":math:`αu + \sqrt{1-α^2}\,h/‖h‖`, h the normals without their part along u; nothing at dim 1."""
        normals.addcmul_(directions, torch.linalg.vecdot(normals, directions).unsqueeze(1), value=-1)
        lengths = torch.linalg.vector_norm(normals, dim=1, keepdim=True)
        across = (1 - along.square()).clamp_(min=0).sqrt_()
        normals.mul_(across / torch.where(lengths > 0, lengths, 1.0))
        return normals.addcmul_(directions, along)

    @override
    def _lengths_fit(self, lengths: Tensor) -> Tensor:
        return (lengths - 1).abs() <= 1e-3

    @override
    def outcomes(self) -> Reports | None:
        return self.layout.reports(torch.tensor([[-1.0], [1.0]])) if self.dim == 1 else None

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Over the uniform law, or log-probability at dim 1; float32 next to the cap is inside."""
        return super().log_likelihood(reports, x).sub_(math.log(2) if self.dim == 1 else 0.0)

    @override
    def _inner_products(self, vectors: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        along = vectors @ direction
        across = torch.linalg.vector_norm(vectors - along.unsqueeze(1) * direction, dim=1)
        angle = torch.atan2(across, along)
        turned = 5e-7  # radians by which rounding to float32 may turn a report
        return (angle - turned).clamp_(min=0).cos_(), (math.pi - angle - turned).clamp_(min=0).cos_()

    @override
    def sum_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Tensor:
        if x.device.type != "cpu" or self.dim < CHUNK:  # there a vector for each report is as fast
            return super().sum_rows(x, norms, randomness)
        along, plain = self._draw(norms, randomness)
        chunk = min(CHUNK, self.dim // 2)
        total = sum_of_units(x, norms, along=along, plain=plain, chunk=chunk, randomness=randomness)
        return total.mul_(self.scale).to(torch.float32)


def sum_of_units(
    x: Rows, norms: Tensor, *, along: Tensor, plain: Tensor, chunk: int, randomness: Randomness
) -> Tensor:
    """The sum of PrivUnit's reports, drawn from its exact law without one dense vector per client, float64.

    Steps and proof: ``docs/proofs/mechanisms.md``, section 4.
    """
    total = torch.zeros(x.dim, dtype=torch.float64, device=x.device)
    weights = torch.zeros(x.num_rows, dtype=x.compute_dtype, device=x.device)
    for start in range(0, x.num_rows, chunk):
        stop = min(start + chunk, x.num_rows)
        part, lengths = x.narrow(start, stop), norms[start:stop]
        careful = bool((~((lengths > 1 / _EXTREME) & (lengths < _EXTREME))).any())
        span = None if careful else _Span.of(part.gram(), lengths)
        if span is None or span.ill_conditioned:
            careful, part = True, part.directions(lengths)
            gram = part.gram()
            span = _Span.of(gram, gram.diagonal().sqrt())
        off_span, on_rows = _chunk_of_units(
            part, span, along=along[start:stop], plain=plain[start:stop], randomness=randomness
        )
        total += off_span
        if careful:
            total += part.weighted_sum(on_rows)
        else:
            weights[start:stop] = on_rows
    return total.add_(x.weighted_sum(weights))


@dataclass(frozen=True)
class _Span:
    """Orthonormal basis Q = Uᵀ·to_basis of the span of a chunk's directions U, from_basis = U Q.

    ``inverse`` is 1/norm of each row, or 0; ill-conditioned is one with an eigenvalue that may be rounding.
    """

    inverse: Floats
    to_basis: Floats
    from_basis: Floats
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
        kept = values > 1e-11  # others count as zero
        roots = np.sqrt(values[kept])
        small = int((values < 1e-3).sum()) > int((~present).sum())
        return cls(
            inverse=inverse,
            to_basis=vectors[:, kept] / roots,
            from_basis=vectors[:, kept] * roots,
            ill_conditioned=small and gram.dtype != torch.float64,
        )


def _chunk_of_units(
    x: Rows, span: _Span, *, along: Tensor, plain: Tensor, randomness: Randomness
) -> tuple[Tensor, Tensor]:
    """Steps 1 to 5: the multiple of a normal vector, (dim,), and the weights of the rows, (clients,)."""
    count, rank = span.from_basis.shape
    in_span, below = randomness.normal((2, count, count), dtype=torch.float64).numpy()
    in_span = in_span[:, :rank]
    leaning = ~plain.numpy()
    cosines = np.where(leaning, along.numpy(), 0.0)
    across = np.where(leaning, np.einsum("ir,ir->i", in_span, span.from_basis), 0.0)
    bartlett: Floats = np.tril(below, -1)
    freedom = x.dim - rank - np.arange(count)
    squares = 2 * special.gammaincinv(freedom / 2, randomness.uniform(count).numpy())
    np.fill_diagonal(bartlett, np.sqrt(squares))
    squared = np.sum(in_span**2, axis=1) - across**2 + np.sum(bartlett**2, axis=1)
    shares = np.sqrt(np.maximum(1 - cosines**2, 0.0) / squared)

    normals = randomness.normal(x.dim, dtype=torch.float64, device=x.device)
    on_rows = x.dot(normals.to(x.compute_dtype)).double().cpu().numpy()
    normals_in_span = span.to_basis.T @ (span.inverse * on_rows)
    off_span = float(torch.dot(normals, normals)) - float(normals_in_span @ normals_in_span)
    outside = float(np.linalg.norm(bartlett.T @ shares)) / off_span**0.5

    coefficients = cosines - shares * across
    coefficients += span.to_basis @ (in_span.T @ shares - outside * normals_in_span)
    return normals.mul_(outside), torch.from_numpy(coefficients * span.inverse).to(x.device)
