"""Vectors of [-1, 1] as bit planes, sampled, flipped and decoded; and the mechanisms that send them.

Each level is a sign per sampled coordinate, of a gain that is best for it: ``docs/proofs/mechanisms.md``, 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shuffle_plugins.accounting import Atoms, Blanket, InformationBound
from shuffle_plugins.accounting.pairs.reports import diluted, most_telling, product_atoms
from shuffle_plugins.compressors.frames import Rotation
from shuffle_plugins.compressors.quantization import SignThresholds, plus_thresholds
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import Count, one_of, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.base import MOST_OUTCOMES, Norm
from shuffle_plugins.mechanisms.coefficients import (
    CoefficientRandomizer,
    Coordinates,
    Frame,
    NumberRandomizer,
    aligned_records,
    flat_lean,
)
from shuffle_plugins.mechanisms.sign_patterns import (
    LOUDEST_EXACT,
    Constants,
    CoordinateBlocks,
    cap_blanket,
    split_budget,
    spread_information,
)
from shuffle_plugins.randomness.chacha import PROBABILITY_BITS, WHOLE
from shuffle_plugins.randomness.sources import Randomness

MAX_LEVELS = 32

CERTAIN = ((1.0, 1.0),)
"""A record all of whose numbers are as large as can be."""

NEXT_TO_NOTHING = 2.0**-10
"""Of the largest numbers, small ones of which all signs but the first are alike; far above rounding."""


@dataclass(frozen=True, kw_only=True)
class SampledPlan:
    """How a vector is sampled: m = ``levels`` bit planes, s = ``samples`` coordinates of each."""

    levels: int
    samples: int


def plane_weights(levels: int) -> tuple[float, ...]:
    """W_k of each level: 1/2, 1/4, …, and twice the last power once more; 1 for one level."""
    return (*(2.0**-k for k in range(1, levels)), 2.0 ** -(levels - 1))


def budgets(
    levels: int, *, per_place: float | NDArray[np.float64], constants: Constants = Constants.EXACT
) -> NDArray[np.float64]:
    """Budgets of one sign of each level, (levels, …), adding up to ``per_place`` = ε0/samples, or many."""
    total = np.asarray(per_place, dtype=np.float64)
    weights = np.array(plane_weights(levels)).reshape(-1, *[1] * total.ndim)
    printed: NDArray[np.float64] = total * weights ** (2 / 3) / np.sum(weights ** (2 / 3))
    if constants is Constants.THESIS or levels == 1:
        return printed
    log_squares = 2 * np.log(weights)
    low, high = log_squares.min() + _log_slope(total), _log_slope(total / levels)
    for _ in range(60):  # halvings, to float64's digits
        middle = (low + high) / 2
        too_much = _budget_of_log_slope(middle - log_squares).sum(axis=0) > total
        low, high = np.where(too_much, middle, low), np.where(too_much, high, middle)
    filled = _budget_of_log_slope(high - log_squares)
    exactly: NDArray[np.float64] = filled * (total / filled.sum(axis=0))
    return exactly


def _log_slope(budget: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(cosh(v/2) / sinh³(v/2)), minus the derivative of 1/tanh²(v/2)."""
    half = budget / 2
    decay = -np.expm1(-2 * half)
    slope: NDArray[np.float64] = 2 * math.log(2) - 2 * half + np.log1p(np.exp(-2 * half)) - 3 * np.log(decay)
    return slope


def _budget_of_log_slope(log_slope: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inverse of :func:`_log_slope`. With t = 1/tanh(v/2) = 1 + u the slope is u(u + 1)(u + 2), convex."""
    u = np.exp(np.minimum(log_slope - math.log(2), log_slope / 3))
    slope = np.exp(log_slope)
    for _ in range(8):  # to float64's digits
        u = u - (u * (u + 1) * (u + 2) - slope) / (3 * u * u + 6 * u + 2)
    budget: NDArray[np.float64] = np.log1p(2 / u)
    return budget


@lru_cache(maxsize=1024)
def best_plan(
    *,
    local_epsilon: float,
    dim: int,
    levels: int | None = None,
    samples: int | None = None,
    constants: Constants = Constants.EXACT,
) -> SampledPlan:
    """The plan of least worst variance; what is given is kept. Ties go to fewer bits."""
    counts = np.arange(1, min(dim, math.ceil(local_epsilon) + 1) + 1)
    if samples is not None:
        counts = np.array([checks.whole("samples", samples, at_most=dim)])
    best, plan, since = math.inf, SampledPlan(levels=1, samples=1), 0
    for m in range(1, MAX_LEVELS + 1) if levels is None else (levels,):
        worst = _worst_variances(local_epsilon, dim, m, counts, constants)
        at = int(worst.argmin())
        since += 1
        if worst[at] < best * (1 - 1e-9):
            best, plan, since = float(worst[at]), SampledPlan(levels=m, samples=int(counts[at])), 0
        if since == 2:  # levels without gain
            break
    return plan


def _worst_variances(
    local_epsilon: float, dim: int, levels: int, counts: NDArray[np.int64], constants: Constants
) -> NDArray[np.float64]:
    short, longer = dim // counts, dim % counts
    lengths = ((longer, short + 1), (counts - longer, short))
    spent = budgets(levels, per_place=local_epsilon / counts, constants=constants)
    total = np.zeros(len(counts))
    for k, weight in enumerate(plane_weights(levels)):
        half = spent[k] / 2
        noise = 1 / np.sinh(half) ** 2 if constants is Constants.EXACT else 1 / half**2
        for blocks, length in lengths:
            excess = worst_excess(length, last=k == levels - 1, constants=constants)
            total += weight**2 * blocks * length * (length * noise + excess)
    return total


def worst_excess(length: NDArray[np.int64], *, last: bool, constants: Constants) -> NDArray[np.float64]:
    """Largest variance of one coordinate of one plane in units of W², less length·(1/g² - 1).

    b - w² for the value w in a block of length b; with the thesis's constants, which count what is not
    sampled as the low end, 2b(w + 1) - (w + 1)².
    """
    b = length.astype(np.float64)
    if constants is Constants.EXACT:
        return b if last else b - 1
    above = np.minimum(b, 2.0) if last else np.full_like(b, 2.0)
    return 2 * b * above - above**2


def sampled_blanket(
    *,
    local_epsilon: float,
    plan: SampledPlan,
    constants: Constants,
    records: tuple[tuple[float, float], ...] = CERTAIN,
    square: float = 1.0,
) -> Blanket:
    """Of one sign about a public place, or of several; those are bounded by what they tell together, too.

    Args:
        records: of some records, and their opposites, how large numbers are, in (0, 1], and which share of
            them is so large; the others are 0.
        square: the mean square of the numbers of a record, at most.
    """
    if plan.levels * plan.samples == 1:
        sign = cap_blanket(local_epsilon=local_epsilon, signs=1, exact=True)
        if records == CERTAIN and constants is Constants.EXACT:
            return sign
        instances = opposite_rows(local_epsilon, plan, constants, records=records)
        bound = InformationBound.of_blanket(
            local_epsilon=local_epsilon,
            information=spread_information(local_epsilon=local_epsilon, signs=1, mean_square=square),
            mass=sign.mass,
        )
        return replace(
            sign, exact=False, instances=instances, information_bound=bound if square < 1 else None
        )
    instances = opposite_rows(local_epsilon, plan, constants, records=records)
    several = replace(Blanket.generic(local_epsilon, exact=False), instances=instances).shared()
    return replace(several, information_bound=_signs_information(local_epsilon, plan, constants))


def _signs_information(
    local_epsilon: float, plan: SampledPlan, constants: Constants
) -> InformationBound | None:
    """How much several signs, each flipped by itself, tell together: section 3d of the proofs."""
    if local_epsilon > LOUDEST_EXACT:
        return None
    shares = budgets(plan.levels, per_place=local_epsilon / plan.samples, constants=constants)
    spent = plan.samples * [float(share) for share in shares]
    # of a sign flipped with probability p, q = 1 − p: q²/p + p²/q = e^v − 1 + e^−v
    product = math.fsum(math.log1p(4 * math.sinh(v / 2) ** 2) for v in spent)
    return InformationBound.of_blanket(
        local_epsilon=local_epsilon,
        information=math.expm1(product) * (1 + 1e-12),  # of rounding
        mass=math.exp(math.fsum(math.log(2) - math.log1p(math.exp(v)) for v in spent)) / (1 + 1e-12),
    )


def opposite_rows(
    local_epsilon: float,
    plan: SampledPlan,
    constants: Constants,
    *,
    records: tuple[tuple[float, float], ...] = CERTAIN,
) -> tuple[Atoms, ...]:
    """The instance of rows x and x' = −x, one of the records, that tells most, if it can be listed.

    Everybody else holds x', or x in some of the numbers, or fair signs, whichever tells most. Several signs
    have records all of whose numbers are one size.
    """
    if plan.levels * plan.samples > 16 or local_epsilon > LOUDEST_EXACT:
        return ()
    shares = budgets(plan.levels, per_place=local_epsilon / plan.samples, constants=constants)
    thresholds = split_budget(
        local_epsilon, shares=shares.tolist(), repeats=plan.samples, constants=constants
    )
    count = plan.levels * plan.samples
    held = [[-1] * (count - i) + [other] * i for other in (1, 0) for i in range(count + 1)]
    if count == 1:
        rows = records
    else:
        # Numbers next to nothing have certain signs in all levels: they are on the edge of both halves.
        small = [size * NEXT_TO_NOTHING for size, _ in records if plan.levels > 1]
        rows = tuple((size, 1.0) for size in (*(size for size, share in records if share == 1), *small))
    candidates = []
    for size, share in rows:
        leans = plane_leans(size, levels=plan.levels)
        likely = [(1 + t.gain * lean) / 2 for t, lean in zip(thresholds, leans, strict=True)] * plan.samples
        candidates += [diluted(product_atoms(likely=likely, held=each), share) for each in held]
    return (most_telling(candidates),)


def plane_leans(value: float, *, levels: int) -> tuple[float, ...]:
    """How large, at least, what each level sends of the numbers ±value is; of opposite signs."""
    sizes = [abs(_plane(value, level=k, levels=levels)) for k in range(levels)]
    if value < 1:  # numbers in single precision, of which the last level magnifies the rounding
        sizes[-1] = max(sizes[-1] - 1e-6 * 2.0**levels, 0.0)
    return tuple(sizes)


def _plane(x: Any, *, level: int, levels: int) -> Any:
    """What one level sends of values of [-1, 1], floats or tensors: a sign ±1, or in the last the rest."""
    depth = min(level + 1, levels - 1)
    scaled = (x + 1) * 2.0 ** (depth - 1)
    whole = scaled // 1 - (scaled >= 2.0**depth) * 1  # the value 1 has all signs +1
    return (scaled - whole if level == levels - 1 else whole % 2) * 2 - 1.0


def plane_value(x: Tensor, *, level: int, levels: int) -> Tensor:
    """What one level sends of each value of [-1, 1], float64; weighted by :func:`plane_weights` they add up
    to x.
    """
    sent: Tensor = _plane(x.double().clamp(-1, 1), level=level, levels=levels)
    return sent


@dataclass(frozen=True, kw_only=True)
class BitPlanes:
    """m levels of s sampled coordinates each of vectors (dim,), every one a flipped sign."""

    dim: int
    plan: SampledPlan
    thresholds: tuple[SignThresholds, ...]
    constants: Constants = Constants.EXACT

    @cached_property
    def blocks(self) -> CoordinateBlocks:
        """The coordinates, in as many blocks as are sampled."""
        return CoordinateBlocks(dim=self.dim, count=self.plan.samples)

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """W_k of each level."""
        return plane_weights(self.plan.levels)

    @classmethod
    def within(
        cls, local_epsilon: float, *, dim: int, plan: SampledPlan, constants: Constants = Constants.EXACT
    ) -> Self:
        """Signs whose costs add up to at most ε0, shared out so that the worst variance is least."""
        levels, samples = plan.levels, plan.samples
        shares = budgets(levels, per_place=local_epsilon / samples, constants=constants)
        thresholds = split_budget(local_epsilon, shares=shares.tolist(), repeats=samples, constants=constants)
        return cls(dim=dim, plan=plan, thresholds=thresholds, constants=constants)

    @property
    def messages(self) -> int:
        """How many signs one report carries."""
        return self.plan.levels * self.plan.samples

    @property
    def noises(self) -> tuple[float, ...]:
        """1/gain² - 1 of each level, free of cancellation."""
        return tuple(4 * t.low * t.high / (t.high - t.low) ** 2 for t in self.thresholds)

    @property
    def worst_variance(self) -> float:
        """Largest variance over [-1, 1]^dim, attained."""
        short, longer = divmod(self.dim, self.plan.samples)
        lengths = np.repeat([short + 1, short], [longer, self.plan.samples - longer])
        total = 0.0
        for level, (weight, noise) in enumerate(zip(self.weights, self.noises, strict=True)):
            last = level == self.plan.levels - 1
            excess = worst_excess(lengths, last=last, constants=self.constants)
            total += weight**2 * float(np.sum(lengths * (lengths * noise + excess)))
        return total

    @property
    def worst_second_moment(self) -> float:
        """Largest sum over coordinates of second moments of :meth:`moments`."""
        extra = 1.0 if self.constants is Constants.EXACT else 4.0
        squares = zip(self.weights, self.noises, strict=True)
        return self.blocks.square_lengths * sum(weight**2 * (noise + extra) for weight, noise in squares)

    def draw(self, clients: int, *, randomness: Randomness, device: torch.device) -> Tensor:
        """Places within blocks, (clients, levels, samples) int64, independent of all data."""
        return self.blocks.draw(clients, repeats=self.plan.levels, randomness=randomness, device=device)

    def columns(self, places: Tensor) -> Tensor:
        """Coordinates that places (..., samples) stand for."""
        return places + self.blocks.starts.to(places.device)

    def flip(self, values: Tensor, *, randomness: Randomness) -> Tensor:
        """Bits (clients, levels, samples) for values in [-1, 1] of the sampled coordinates."""
        return randomness.bernoulli(self.plus(values))

    def plus(self, values: Tensor) -> Tensor:
        """Probability of each of these bits, int64 in units of 2**-62."""
        plus = torch.empty(values.shape, dtype=torch.int64, device=values.device)
        for level, thresholds in enumerate(self.thresholds):
            sent = plane_value(values[:, level], level=level, levels=self.plan.levels)
            plus[:, level] = plus_thresholds(sent, thresholds=thresholds)
        return plus

    @property
    def layout(self) -> tuple[FieldLayout, ...]:
        """The form of a report: places, unless blocks have one coordinate, and signs."""
        signs = FieldLayout(1, self.messages)
        bits = self.blocks.index_bits
        return (FieldLayout(bits, self.messages), signs) if bits else (signs,)

    def sent(self, places: Tensor, bits: Tensor) -> tuple[Tensor, ...]:
        """The fields of reports of places and bits: bits alone where every block has one coordinate."""
        return (places, bits) if self.blocks.index_bits else (bits,)

    def parse(self, reports: Reports) -> tuple[Tensor, Tensor]:
        """Coordinates and signs ±1 of reports, each (reports, levels, samples) int64, or refused."""
        shape = (len(reports), self.plan.levels, self.plan.samples)
        parts = [field.values.to(torch.int64).reshape(shape) for field in reports.fields]
        bits = parts[-1]
        places = parts[0] if len(parts) == 2 else torch.zeros_like(bits)
        if bool(((places < 0) | (places >= self.blocks.lengths.to(places.device))).any()):
            raise ValueError("a report names a coordinate outside its block")
        if bits.numel() and not (int(bits.min()) >= 0 and int(bits.max()) <= 1):
            raise ValueError("a sign takes one bit")
        return self.columns(places), bits * 2 - 1

    def sum(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the sum of vectors in [-1, 1], (dim,) float64."""
        columns, signs = self.parse(reports)
        total = self.estimate(self.count(columns, signs))
        if self.constants is Constants.THESIS:
            hits = self.count(columns, torch.ones_like(signs)).double()
            weights = torch.tensor(self.weights, dtype=torch.float64, device=hits.device)
            missed = (hits * weights.unsqueeze(1)).sum(dim=0)
            total += missed * self.blocks.lengths_by_coordinate.to(total.device) - len(reports)
        return total

    def estimate(self, counts: Tensor) -> Tensor:
        """What signs added up, (levels, dim), say of the sum, (dim,) float64: unbiased, from the centre."""
        scale = torch.tensor(
            [w / t.gain for w, t in zip(self.weights, self.thresholds, strict=True)], dtype=torch.float64
        )
        total = (counts.double() * scale.to(counts.device).unsqueeze(1)).sum(dim=0)
        return total * self.blocks.lengths_by_coordinate.to(total.device)

    def count(self, columns: Tensor, values: Tensor) -> Tensor:
        """Values (clients, levels, samples) added up at their columns, (levels, dim)."""
        levels = torch.arange(self.plan.levels, device=columns.device).view(1, -1, 1) * self.dim
        counts = torch.zeros(self.plan.levels * self.dim, dtype=torch.int64, device=columns.device)
        return counts.index_add_(0, (columns + levels).flatten(), values.flatten()).view(-1, self.dim)

    def moments(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each level, mean and second moment of every coordinate of its estimate, (clients, dim) float64.

        The thesis's constant, -1 in every coordinate, is left out.
        """
        lengths = self.blocks.lengths_by_coordinate.to(x.device).double()
        for level, (weight, noise) in enumerate(zip(self.weights, self.noises, strict=True)):
            plane = plane_value(x, level=level, levels=self.plan.levels)
            if self.constants is Constants.EXACT:
                yield weight * plane, (weight**2 * (noise + 1) * lengths).expand_as(plane)
            else:
                above = plane + 1
                yield weight * above, weight**2 * lengths * (noise + 2 * above)


@dataclass(frozen=True, kw_only=True, eq=False)
class BitPlaneRandomizer(NumberRandomizer):
    """A randomizer that sends bit planes of sampled numbers of [-1, 1] that stand for a row.

    Attributes:
        levels: m, in [1, 32]; by default, with ``samples``, of least worst variance.
        samples: s, numbers sent per level, at most all there are.
        constants: ``"exact"``, or ``"thesis"`` for the printed ones.
    """

    levels: Annotated[int, whole_number(at_most=MAX_LEVELS)] | None = None
    samples: Count | None = None
    constants: Annotated[Constants, one_of(Constants)] = Constants.EXACT

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in vars(self._planes.plan).items():
            object.__setattr__(self, name, value)

    @cached_property
    def _planes(self) -> BitPlanes:
        size, constants = self._frame.size, self.constants
        plan = best_plan(
            local_epsilon=self.local_epsilon,
            dim=size,
            levels=self.levels,
            samples=self.samples,
            constants=constants,
        )
        return BitPlanes.within(self.local_epsilon, dim=size, plan=plan, constants=constants)

    @property
    def plan(self) -> SampledPlan:
        """How many levels a number has, and how many samples of each a client sends."""
        return self._planes.plan

    @property
    @override
    def layout(self) -> ReportLayout:
        return ReportLayout(self.name, self.dim, self._planes.layout)

    @override
    def sum(self, reports: Reports) -> Tensor:
        self.layout.check(reports)
        return self._in_units(self._planes.sum(reports))

    @override
    def outcomes(self) -> Reports | None:
        planes, plan = self._planes, self.plan
        every = planes.blocks.outcomes(1 << planes.messages, repeats=plan.levels, most=MOST_OUTCOMES)
        if every is None:
            return None
        bits = every[1].unsqueeze(1) >> torch.arange(planes.messages) & 1
        shape = (len(bits), plan.levels, plan.samples)
        return self.layout.reports(*planes.sent(every[0].view(shape), bits.view(shape)))

    @override
    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        self.layout.check(reports)
        columns, signs = self._planes.parse(reports)
        at = self._numbers_of(x)[columns]
        places = self.plan.levels * float(self._planes.blocks.lengths.double().log().sum())
        total = torch.full((len(reports),), -places, dtype=torch.float64, device=at.device)
        for level, plus in enumerate(self._planes.plus(at).unbind(dim=1)):
            drawn = torch.where(signs[:, level] > 0, plus, WHOLE - plus).double()
            total += drawn.log_().sub_(PROBABILITY_BITS * math.log(2)).sum(dim=1)
        return total

    @override
    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        places = self._planes.draw(x.num_rows, randomness=randomness, device=x.device)
        numbers = self._sampled_numbers(x, norms, self._planes.columns(places))
        bits = self._planes.flip(numbers, randomness=randomness)
        return self.layout.reports(*self._planes.sent(places, bits))


class LInfBitPlanes(BitPlaneRandomizer):
    r"""R^ℓ∞_{v,m,s} of Girgis's thesis (Algorithms 3.5.1 and 3.5.2) with exact ε0.

    A coordinate :math:`x/r = \sum_{k<m} 2^{-k} σ_k + 2^{-(m-1)} w` has m - 1 signs and a rest w in [-1, 1].
    For each level a client draws one coordinate from each of s blocks and sends its place there and a sign of
    mean
    :math:`g_k σ_k`, or :math:`g_m w` in the last; :math:`g_k = \tanh(v_k/2)` with
    :math:`s \sum_k v_k \le ε_0`. With b_i the length of coordinate i's block,

    .. math:: E\|R(x) - x\|^2 = r^2 \sum_{k<m} 4^{-k} \sum_i (b_i/g_k^2 - 1)
              + r^2 4^{-(m-1)} \sum_i (b_i/g_m^2 - w_i^2).

    The thesis's own constants (``constants="thesis"``) have up to four times the variance. Clipping is
    coordinate by coordinate.
    """

    name: ClassVar[str] = "linf-bit-planes"
    norm: ClassVar[Norm] = Norm.LINF

    @cached_property
    def _frame(self) -> Coordinates:
        return Coordinates(self.dim)

    @property
    def worst_variance(self) -> float:
        """Largest E‖R(x) - x‖² over the ball, attained; where the last level is 0, as at x = 0 for m = 1."""
        return self.radius**2 * self._planes.worst_variance

    @override
    def variance(self, x: Tensor | Rows) -> Tensor:
        rows = self.check_rows(x)
        parts = [torch.zeros(0, dtype=torch.float64, device=rows.device)]
        for part in self._chunks(rows):
            moments = self._planes.moments(part / self.radius)
            spreads = [(second - mean.square()).sum(dim=1) for mean, second in moments]
            parts.append(torch.stack(spreads).sum(dim=0))
        return torch.cat(parts) * self.radius**2

    def blanket(self) -> Blanket:
        """That of one sign; several are bounded by the generic blanket."""
        return sampled_blanket(local_epsilon=self.local_epsilon, plan=self.plan, constants=self.constants)


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledBits(LInfBitPlanes):
    r"""R^Bin_{v,s} of Girgis's thesis (Algorithms 3.3.1 and 3.3.2) with exact ε0, on [-r, r]^d.

    ``linf-bit-planes`` with one level, the last: s messages, of mean :math:`\tanh(ε_0/2s) \, x_j/r` each, and
    :math:`E\|R(x) - x\|^2 = r^2 \coth^2(ε_0/2s) \sum_i b_i - \|x\|^2`. The thesis's bits b of {0, 1}^d are
    the corners r(2b - 1): their means are (mean/r + 1)/2. By default s is the best, about ε0/2.18 for large
    d; Thm 3.3.1 takes ceil(ε0).
    """

    name: ClassVar[str] = "sampled-bits"
    levels: int = field(init=False, repr=False, default=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class L2BitPlanes(CoefficientRandomizer, BitPlaneRandomizer):
    r"""R^ℓ2_{v,m,s} of Girgis's thesis (Algorithms 3.6.1 and 3.6.2) with exact ε0.

    D coefficients of a row, of the randomised rotation :math:`H\,\mathrm{diag}(±1)\,x/\sqrt D` or of a Kashin
    frame, go through ``linf-bit-planes`` on [-r_inf, r_inf]^D, r_inf = level·r/√D; only sampled ones are
    computed. One beyond r_inf is clipped, and only then is the estimate biased: by :meth:`clipping_bias`,
    whose square :meth:`variance` includes. Of a Kashin frame none is: unbiased, of far less variance, at
    several transforms a row. With ``constants="thesis"`` the level is 10·√(log(Dn/β)).
    """

    name: ClassVar[str] = "l2-bit-planes"
    frame: Annotated[Frame, one_of(Frame)] = Frame.ROTATION

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choose_level(thesis=self.constants is Constants.THESIS)

    def blanket(self) -> Blanket:
        """A bound: no vector is extreme in all its coefficients. Some have many that are all of one size."""
        records: tuple[tuple[float, float], ...] = ((flat_lean(self._level), 1.0),)
        if isinstance(self._frame, Rotation):
            records = aligned_records(level=self._level, dim=self.dim)
        return sampled_blanket(
            local_epsilon=self.local_epsilon,
            plan=self.plan,
            constants=self.constants,
            records=records,
            square=self._mean_square,
        )

    @property
    def _worst_spread_variance(self) -> float:
        if self._frame.isometric:
            return self.coefficient_radius**2 * self._planes.worst_variance
        return self.coefficient_radius**2 * self._frame.column_square * self._planes.worst_second_moment

    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        lengths = self._planes.blocks.lengths.tolist()
        total = coefficients.new_zeros(len(coefficients))
        for means, second_moments in self._planes.moments(coefficients / self.coefficient_radius):
            total += second_moments.sum(dim=1) * self._frame.column_square
            total -= self._blockwise_squares(means, lengths)
        return total * self.coefficient_radius**2
