"""Gaussian vectors that lean towards the client's own direction in steps, and the law of a sum of many.

The plain law of :mod:`~shuffle_plugins.mechanisms.privunit` is N(0, I) here, and its sets are half-spaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations, pairwise, product
from typing import ClassVar

import numpy as np
from scipy import special
from typing_extensions import override

from shuffle_plugins.accounting import Atoms, Blanket, Floats, InformationBound
from shuffle_plugins.accounting.pairs.reports import most_telling, read_coarsely
from shuffle_plugins.core import Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.privunit import (
    ANGLES,
    CHUNK,
    LOUDEST_TOLD,
    OVERLAP_ERROR,
    DirectionRandomizer,
    StepDensity,
    most_information,
    plain_share,
)
from shuffle_plugins.randomness.chacha import WHOLE
from shuffle_plugins.randomness.sources import Randomness

STEPS = 8
"""J of the blanket-mixed mechanism. 32 would tell half a per cent less at the same variance."""

_LARGEST_THRESHOLD = 36.0  # normal tails beyond vanish in float64
_GRID = 1.5 * 2.0**28  # floats of 64 bits next to it are 2^-24 apart
_EXTREME = 1e15  # norms beyond are handled in float64: squares may overflow or vanish
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def half_spaces(*thresholds: float, local_epsilon: float, dim: int) -> StepDensity:
    """The law of half-spaces of these rising thresholds, in [0, 36]."""
    for threshold in thresholds:
        checks.number("threshold", threshold, at_least=0, at_most=_LARGEST_THRESHOLD)
    if not thresholds or any(first >= second for first, second in pairwise(thresholds)):
        raise ValueError(f"thresholds must rise, got {thresholds!r}")
    return StepDensity.of(
        local_epsilon=local_epsilon,
        dim=dim,
        thresholds=thresholds,
        tails=special.ndtr(-np.array(thresholds)).tolist(),
        leans=[_hazard(threshold) for threshold in thresholds],
        square=dim,
        excess=1,
    )


def _hazard(threshold: float) -> float:
    """Mean of a standard normal value that is at least ``threshold``."""
    log_density = -threshold * threshold / 2 - math.log(2 * math.pi) / 2
    return math.exp(log_density - float(special.log_ndtr(-threshold)))


class HalfSpaceReports(DirectionRandomizer):
    """What PrivUnitG and the blanket-mixed Gaussian mechanism share: all but the choice of half-spaces.

    A report's V is rounded to multiples of 2^-24 before it becomes float32: what floats next to zero have of
    finer digits would depend on the client's direction.
    """

    @override
    def blanket(self) -> Blanket:
        return half_space_blanket(type(self)._law, local_epsilon=self.local_epsilon, dim=self.dim)

    @property
    @override
    def _plain_square(self) -> float:
        return self.dim

    @override
    def _quantile(self, log_tails: Floats) -> Floats:
        return np.asarray(-special.ndtri_exp(log_tails))

    @override
    def _turned(self, normals: Tensor, directions: Tensor, along: Tensor) -> Tensor:
        shift: Tensor = along - torch.linalg.vecdot(normals, directions).unsqueeze(1)
        return _on_grid(normals.addcmul_(directions, shift))

    @override
    def _lengths_fit(self, lengths: Tensor) -> Tensor:
        longest: float = self.dim**0.5 + 64.0  # exceeded with probability below 1e-100
        return lengths <= longest

    @override
    def sum_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Tensor:
        if x.device.type != "cpu":  # there a vector for each report is as fast
            return super().sum_rows(x, norms, randomness)
        return self.sum_without_reports(x, norms, randomness)

    def sum_without_reports(self, x: Rows, norms: Tensor, randomness: Randomness) -> Tensor:
        """A draw with the law of ``sum(randomize(x))``, without one dense vector per client.

        ``docs/proofs/mechanisms.md``, section 4. Products with float32 rows are float32.
        """
        along, _ = self._draw(norms, randomness)
        total = torch.zeros(self.dim, dtype=torch.float64, device=x.device)
        weights = torch.zeros(x.num_rows, dtype=x.compute_dtype, device=x.device)
        for start in range(0, x.num_rows, CHUNK):
            stop = min(start + CHUNK, x.num_rows)
            part, lengths = x.narrow(start, stop), norms[start:stop].double()
            careful = bool(((lengths > 0) & ~((lengths > 1 / _EXTREME) & (lengths < _EXTREME))).any())
            if careful:  # norms of tiny rows may be off by a factor: measure what the division has left
                part = part.directions(lengths)
                lengths = part.l2_norm().double()
            normals, on_rows = _chunk(part, lengths, along=along[start:stop], randomness=randomness)
            total += normals
            if careful:
                total += part.weighted_sum(on_rows)
            else:
                weights[start:stop] = on_rows
        total += x.weighted_sum(weights)
        return _on_grid(total).mul_(self.scale).to(torch.float32)


def _on_grid(values: Tensor) -> Tensor:
    """Round float64 values in place, to multiples of 2^-24 or, above 2^27, of a larger power of two."""
    return values.add_(_GRID).sub_(_GRID)


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


@lru_cache(maxsize=256)
def optimal_privunit_g(*, local_epsilon: float, dim: int) -> StepDensity:
    """The PrivUnitG of least variance, (d + t·m)/m² - 1 with t the threshold."""
    from scipy import optimize  # slow to import, and needed by no other mechanism

    checks.local_epsilon(local_epsilon)
    checks.dim(dim)
    shrink, gap = math.exp(-local_epsilon), -math.expm1(-local_epsilon)

    def log_loss(threshold: float) -> float:
        tail = float(special.ndtr(-threshold))
        mean = gap * tail / (shrink + gap * tail) * _hazard(threshold)
        return math.log(dim + threshold * mean) - 2 * math.log(mean)

    largest = min(2 + 2 * math.sqrt(local_epsilon), _LARGEST_THRESHOLD)
    found = optimize.minimize_scalar(
        log_loss, bounds=(0.0, largest), method="bounded", options={"xatol": 1e-9}
    )
    return half_spaces(float(found.x), local_epsilon=local_epsilon, dim=dim)


class PrivUnitG(HalfSpaceReports):
    """PrivUnitG on an l2 ball, with the threshold of least variance and ε0 spent exactly.

    A report is a normal vector, e^ε0 times likelier in a half-space about the client's own direction. The
    error is PrivUnit's up to a share of order 1/dim; what it has over PrivUnit is the simple law of a sum.

    Source: Asi, Feldman, Talwar 2022, "Optimal algorithms for mean estimation under local differential
    privacy", §3.
    """

    name: ClassVar[str] = "privunit-g"
    _law = staticmethod(optimal_privunit_g)


@lru_cache(maxsize=256)
def mixed_half_spaces(*, local_epsilon: float, dim: int) -> StepDensity:
    """The blanket-mixed mechanism of an ε0, with evenly spread thresholds."""
    checks.dim(dim)
    # The numbers are near the best of a search over both ends at ε0 = 0.1 … 6, as functions of one threshold.
    # Of so many dimensions, so that ours do not depend on the model.
    (one_step,) = optimal_privunit_g(local_epsilon=local_epsilon, dim=10**6).thresholds
    low = max(0.0, min(1.6 * one_step - 1.1, one_step - 0.2))
    high = max(2.25, low + min(2 / one_step, 1.6)) if one_step < 3 else low + 2 / one_step
    thresholds = low + (high - low) * (np.arange(STEPS) + 0.5) / STEPS
    return half_spaces(*thresholds.tolist(), local_epsilon=local_epsilon, dim=dim)


@lru_cache(maxsize=256)
def half_space_blanket(law: Callable[..., StepDensity], *, local_epsilon: float, dim: int) -> Blanket:
    """Blanket on the ball: weights (1 + i(e − 1)/J, 1), and mirrored, of mass c(q_i − q_{i+1}) each.

    A record and its opposite are the worst pair: r_0 rises and r_1 falls with the inner product, so
    :math:`r_0 - E r_1` is in convex order the largest of all with the same laws.
    """
    found = law(local_epsilon=local_epsilon, dim=dim)
    tails, steps = np.array(found.tails), len(found.tails)
    plain = plain_share(float(tails.mean()), local_epsilon=local_epsilon)
    if local_epsilon > 100:  # squares of weights would be no floats
        return Blanket.generic(local_epsilon, exact=False)
    inner = plain * (tails[:-1] - tails[1:])
    last = float(plain * tails[-1])
    weights = 1 + math.expm1(local_epsilon) / steps * np.arange(1, steps)
    if dim > 1:
        tried = np.linspace(math.pi / 2, math.pi, 37).tolist()  # angles between two records
        even: Floats = (np.arange(180, dtype=np.float64) + 0.5) * (2 * math.pi / 180)
        rough = [_three_records(found, apart, even, np.full(180, 1 / 180)) for apart in tried]
        best = tried[rough.index(most_telling(rough))]
        instance = _three_records(found, best, *_directions(found.thresholds, best))
    else:
        instance = _two_records(found)
    quiet = dim > 1 and local_epsilon <= LOUDEST_TOLD
    return Blanket(
        local_epsilon=local_epsilon,
        differing=last,
        low=plain * (1 - 2 * float(tails[0])),
        edges=tuple(zip(weights.tolist(), inner.tolist(), strict=True)),
        outside=last * (1 - float(tails[0])) if dim > 1 else 0.0,
        instances=(instance,),
        information_bound=_information(found, plain) if quiet else None,
    ).shared()


def _levels(found: StepDensity) -> tuple[float, float]:
    """c and (e − 1)/J as they are drawn: c is rounded up, so that a report tells a little less."""
    plain = found.plain_probability
    return plain, (WHOLE - found.plain_threshold) / found.plain_threshold / math.fsum(found.tails)


def _two_records(found: StepDensity) -> Atoms:
    """x and −x, everybody else at −x."""
    plain, step = _levels(found)
    tails, level = np.array(found.tails), step * np.arange(1, len(found.tails) + 1)
    cells = plain * (tails - np.append(tails[1:], 0.0))
    u = np.concatenate([level, -level / (1 + level), [0.0]])
    mass = np.concatenate([cells, cells * (1 + level), [plain * (1 - 2 * tails[0])]])
    return read_coarsely(u, np.zeros_like(u), mass)


def _directions(thresholds: tuple[float, ...], apart: float) -> tuple[Floats, Floats]:
    """Directions in the plane of three records, and weights, of integrals: Gauss' rule between kinks, where
    two half-spaces begin at the same length; in ever smaller steps to where one with a low threshold ends.
    """
    s, places = np.array(thresholds), (apart / 2, -apart / 2, math.pi)
    found = [np.arange(0.0, 2 * math.pi, 0.01), np.array([2 * math.pi])]
    near = np.geomspace(min(s[0] / 8, 0.01), 0.01, 32)
    for place, side in product(places, (-1, 1)):
        found += [(place + side * (math.pi / 2 + near)) % (2 * math.pi)]
        found += [(place + side * (math.pi / 2 - near)) % (2 * math.pi)]
    for first, second in combinations(places, 2):
        up = np.subtract.outer(s * math.cos(second), s * math.cos(first))
        across = np.subtract.outer(s * math.sin(second), s * math.sin(first))
        kink = np.arctan2(-up, across).ravel()
        found += [kink % (2 * math.pi), (kink + math.pi) % (2 * math.pi)]
    ends = np.unique(np.concatenate(found))
    half = np.diff(ends)[:, None] / 2
    return (ends[:-1, None] + half * (1 + _NODES)).ravel(), (half * _WEIGHTS).ravel() / (2 * math.pi)


def _three_records(found: StepDensity, apart: float, turn: Floats, weight: Floats) -> Atoms:
    """Two records of that angle, and everybody else at a third, which faces away from both."""
    # In their plane a report's direction is uniform, and half its squared length is exponential. Given the
    # direction each half-space begins at a length; between these lengths the three likelihoods are constant.
    plain, step = _levels(found)
    directions = len(turn)
    places = np.array([apart / 2, -apart / 2, math.pi])
    cosine = np.cos(turn[:, None] - places)[:, :, None]
    thresholds = np.array(found.thresholds)
    with np.errstate(divide="ignore", over="ignore"):
        starts = np.where(cosine > 0, thresholds / np.maximum(cosine, 1e-150), np.inf)
    # Which likelihoods a report has is one number of three digits, to which each half-space adds its own.
    base = len(thresholds) + 1
    digits = np.repeat([base**2, base, 1], base - 1)
    starts = starts.reshape(directions, -1)
    order = np.argsort(starts, axis=1)
    with np.errstate(over="ignore"):
        beyond = np.exp(-(np.take_along_axis(starts, order, axis=1) ** 2) / 2)
    mass = -np.diff(beyond, axis=1, prepend=1.0, append=0.0) * weight[:, None]
    number = np.zeros(mass.shape, dtype=np.int64)
    np.cumsum(digits[order], axis=1, out=number[:, 1:])
    total = np.bincount(number.ravel(), weights=mass.ravel(), minlength=base**3)
    x, other, z = np.unravel_index(np.flatnonzero(total), (base, base, base))
    likelihood = 1 + step * z
    u, v = step * (x - z) / likelihood, step * (other - z) / likelihood
    atoms = read_coarsely(u, v, plain * likelihood * total[total != 0])
    # Several have nearly the same u, and roundoff would decide their order; each has a u − v of its own.
    return tuple(sorted(atoms, key=lambda atom: atom[0] - atom[1]))


def _information(found: StepDensity, plain: float) -> InformationBound:
    gain = math.expm1(found.local_epsilon)
    return InformationBound.of_blanket(
        local_epsilon=found.local_epsilon,
        information=plain * gain**2 * most_information_of(found),
        mass=plain,
    )


def most_information_of(found: StepDensity) -> float:
    """How much a report tells, at most (section 3d of the proofs of accounting), over c·(e − 1)².

    F is the share of half-spaces that a report is in and 1/(1 + (e − 1)F) = 1 − ψ.
    """
    steps, gain = len(found.tails), math.expm1(found.local_epsilon)
    overlaps = _overlaps(np.array(found.thresholds))
    margin = OVERLAP_ERROR * np.minimum.outer(np.array(found.tails), np.array(found.tails))
    low, high = np.maximum(overlaps - margin, 0.0), overlaps + margin
    count = np.arange(steps + 1)
    once, squared = np.full(steps, 1 / steps), np.diff((count / steps) ** 2)
    hidden = np.diff(-1 / (1 + gain * count / steps))
    return most_information(
        square=float(squared @ np.array(found.tails)),
        told=low @ hidden @ squared,
        both=low @ once @ once,
        saved=float(hidden.sum()),
        thrice=high @ hidden @ once,
    )


def _overlaps(thresholds: Floats) -> Floats:
    """P[⟨V, u⟩ ≥ s_i and ⟨V, w⟩ ≥ s_j] at each of the angles between u and w: shape (angles, J, J)."""
    s, t = thresholds[:, None], thresholds[None, :]
    cosine, sine = np.cos(ANGLES[1:-1, None, None]), np.sin(ANGLES[1:-1, None, None])
    tails = special.ndtr(-thresholds)
    halves = (tails[:, None] + tails[None, :]) / 2
    inner = halves - special.owens_t(s, (t / s - cosine) / sine) - special.owens_t(t, (s / t - cosine) / sine)
    return np.concatenate([np.minimum.outer(tails, tails)[None], inner, np.zeros_like(halves)[None]])


class BlanketMixedGaussian(HalfSpaceReports):
    """One vector report per client on an l2 ball, of the least error for a given ε after shuffling.

    With a probability that does not depend on the row it is N(0, I), the blanket under which reports of
    others hide; otherwise N(0, I) conditioned on one of eight half-spaces that face the client's direction.
    At a given ε0 its variance is larger than PrivUnit's, and what it tells after shuffling is less: choose ε0
    by the ε that you want after shuffling.

    Source: after Takagi, Liew 2026, arXiv 2604.28032; what is theirs and what is not is in
    ``docs/proofs/mechanisms.md``, section 4.
    """

    name: ClassVar[str] = "blanket-mixed-gaussian"
    _law = staticmethod(mixed_half_spaces)
