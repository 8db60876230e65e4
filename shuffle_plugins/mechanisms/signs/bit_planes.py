r"""The code shared by sampled mechanisms: vectors of [-1, 1] as bit planes, sampled, flipped, and decoded.

A number x in [-1, 1] is :math:`x = \sum_{k<m} 2^{-k} σ_k + 2^{-(m-1)} w` with signs σ_k and a rest w in
[-1, 1]. Each of the m levels is sent by itself: one coordinate out of each of s blocks, as a sign of gain
:math:`g_k`. With :math:`W_k = 2^{-k}`, :math:`W_m = 2^{-(m-1)}` and :math:`A = \sum` (block length)², the
worst variance over [-1, 1]^d is

.. math:: A \sum_{k \le m} W_k^2 / g_k^2 - d \sum_{k<m} W_k^2,

attained where the rest is 0. With budgets v_k per sign, :math:`g_k = \tanh(v_k/2)`, it is least where
:math:`W_k^2 \cosh(v_k/2) / \sinh^3(v_k/2)` is the same for all levels. For small ε0 these are the budgets
proportional to :math:`W_k^{2/3}` of Girgis's thesis (Section 3.5); for one number and a large ε0 they are
several times better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shuffle_plugins.accounting import Atoms, Blanket, InformationBound, diluted, most_telling, product_atoms
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.mechanisms.signs.coordinate_blocks import CoordinateBlocks
from shuffle_plugins.mechanisms.signs.randomized_response import (
    LOUDEST_EXACT,
    Constants,
    SignThresholds,
    plus_thresholds,
    sign_blanket,
    sign_log_likelihood,
    split_budget,
)
from shuffle_plugins.mechanisms.signs.sign_patterns import spread_information
from shuffle_plugins.mechanisms.signs.unit_numbers import NumberRandomizer
from shuffle_plugins.randomness import Randomness

MAX_LEVELS = 32
_PATIENCE = 2  # levels without gain after which no more are tried
_MOST_SIGNS = 16  # of a report, whose products are listed
CERTAIN = ((1.0, 1.0),)
"""A record all of whose numbers are as large as can be."""

NEXT_TO_NOTHING = 2.0**-10
"""Of the largest numbers, small ones of which all signs but the first are alike; far above rounding."""

_ROUNDING = 1e-12
_SINGLE = 1e-6  # more than the rounding of numbers in single precision
_HALVINGS = 60  # of the bracket, to float64's digits
_NEWTON_STEPS = 8  # to float64's digits


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPlan:
    """How a vector is sampled.

    Attributes:
        levels: m, bit planes.
        samples: s, coordinates sent of each plane.
    """

    levels: int
    samples: int


def plane_weights(levels: int) -> tuple[float, ...]:
    """W_k of each level: 1/2, 1/4, …, and twice the last power once more; 1 for one level."""
    return (*(2.0**-k for k in range(1, levels)), 2.0 ** -(levels - 1))


def budgets(
    levels: int, *, per_place: float | NDArray[np.float64], constants: Constants = Constants.EXACT
) -> NDArray[np.float64]:
    """Budgets of one sign of each level, (levels,) or (levels, plans), which add up to ``per_place``.

    Args:
        levels: m.
        per_place: ε0 / samples, one value or one for each of several plans.
        constants: the thesis's are proportional to W^(2/3).
    """
    total = np.asarray(per_place, dtype=np.float64)
    weights = np.array(plane_weights(levels)).reshape(-1, *[1] * total.ndim)
    printed: NDArray[np.float64] = total * weights ** (2 / 3) / np.sum(weights ** (2 / 3))
    if constants is Constants.THESIS or levels == 1:
        return printed
    log_squares = 2 * np.log(weights)
    low, high = log_squares.min() + _log_slope(total), _log_slope(total / levels)
    for _ in range(_HALVINGS):
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
    """Inverse of :func:`_log_slope`. With t = 1/tanh(v/2) = 1 + u the slope is u(u + 1)(u + 2).

    Newton's method from above: the polynomial is increasing and convex.
    """
    u = np.exp(np.minimum(log_slope - math.log(2), log_slope / 3))
    slope = np.exp(log_slope)
    for _ in range(_NEWTON_STEPS):
        u = u - (u * (u + 1) * (u + 2) - slope) / (3 * u * u + 6 * u + 2)
    budget: NDArray[np.float64] = np.log1p(2 / u)
    return budget


def best_plan(
    *,
    local_epsilon: float,
    dim: int,
    levels: int | None = None,
    samples: int | None = None,
    constants: Constants = Constants.EXACT,
) -> SampledPlan:
    """The plan of least worst variance; what is given is kept. Ties go to fewer bits."""
    checks.local_epsilon(local_epsilon)
    checks.dim(dim)
    if levels is not None:
        checks.whole("levels", levels, at_most=MAX_LEVELS)
    if samples is not None:
        checks.whole("samples", samples, at_most=dim)
    return _best_plan(local_epsilon, dim, levels, samples, Constants(constants))


@lru_cache(maxsize=1024)
def _best_plan(
    local_epsilon: float, dim: int, levels: int | None, samples: int | None, constants: Constants
) -> SampledPlan:
    counts = (
        np.arange(1, min(dim, math.ceil(local_epsilon) + 1) + 1) if samples is None else np.array([samples])
    )
    best, plan, since = math.inf, SampledPlan(levels=1, samples=1), 0
    for m in range(1, MAX_LEVELS + 1) if levels is None else (levels,):
        worst = _worst_variances(local_epsilon, dim, m, counts, constants)
        at = int(worst.argmin())
        since += 1
        if worst[at] < best * (1 - 1e-9):
            best, plan, since = float(worst[at]), SampledPlan(levels=m, samples=int(counts[at])), 0
        if since == _PATIENCE:
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
    r"""Largest variance of one coordinate of one plane in units of W², less length·(1/g² - 1).

    It is :math:`b - w^2` for the value w in a block of length b, and :math:`2b(w + 1) - (w + 1)^2` with the
    thesis's constants, which count what is not sampled as the low end.
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
        local_epsilon: ε0 in nats.
        plan: how the vector is sampled.
        constants: looser ones flip the sign more often, which is bounded by the exact ones.
        records: of some records how large their numbers are, in (0, 1], and which share of them is so large;
            the others are 0. Their opposites are records too.
        square: the mean square of the numbers of a record, at most.
    """
    one = plan.levels * plan.samples == 1
    sign = sign_blanket(local_epsilon) if one else None
    if sign is not None and records == CERTAIN and constants is Constants.EXACT:
        return sign
    instances = opposite_rows(local_epsilon, plan, constants, records=records)
    if sign is not None:
        bound = InformationBound.of_blanket(
            local_epsilon=local_epsilon,
            information=spread_information(local_epsilon=local_epsilon, signs=1, mean_square=square),
            mass=sign.mass,
        )
        return replace(
            sign, exact=False, instances=instances, information_bound=bound if square < 1 else None
        )
    several = replace(Blanket.generic(local_epsilon, exact=False), instances=instances).shared()
    return replace(several, information_bound=signs_information(local_epsilon, plan, constants))


def signs_information(
    local_epsilon: float, plan: SampledPlan, constants: Constants
) -> InformationBound | None:
    """How much several signs, each flipped by itself, tell together: section 3d of the proofs.

    Args:
        local_epsilon: ε0 of a report.
        plan: how rows are sampled.
        constants: whose constants.
    """
    if local_epsilon > LOUDEST_EXACT:
        return None
    shares = budgets(plan.levels, per_place=local_epsilon / plan.samples, constants=constants)
    spent = plan.samples * [float(share) for share in shares]
    # of a sign flipped with probability p, q = 1 − p: q²/p + p²/q = e^v − 1 + e^−v
    product = math.fsum(math.log1p(4 * math.sinh(v / 2) ** 2) for v in spent)
    return InformationBound.of_blanket(
        local_epsilon=local_epsilon,
        information=math.expm1(product) * (1 + _ROUNDING),
        mass=math.exp(math.fsum(math.log(2) - math.log1p(math.exp(v)) for v in spent)) / (1 + _ROUNDING),
    )


def opposite_rows(
    local_epsilon: float,
    plan: SampledPlan,
    constants: Constants,
    *,
    records: tuple[tuple[float, float], ...] = CERTAIN,
) -> tuple[Atoms, ...]:
    """The instance of rows x and x' = −x, one of the records, that tells most, if it can be listed.

    A sign is read as whether it is that of x. Everybody else holds x', or x in some of the numbers, or fair
    signs, whichever tells most.

    Args:
        local_epsilon: ε0 of a report.
        plan: how rows are sampled.
        constants: whose constants.
        records: sizes of numbers, in (0, 1], and the share of them that are so large. Several signs have
            records all of whose numbers are one size.
    """
    if plan.levels * plan.samples > _MOST_SIGNS or local_epsilon > LOUDEST_EXACT:
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
    sizes = [abs(plane_mean(value, level=k, levels=levels)) for k in range(levels)]
    if value < 1:  # numbers in single precision, of which the last level magnifies the rounding
        sizes[-1] = max(sizes[-1] - _SINGLE * 2.0**levels, 0.0)
    return tuple(sizes)


def plane_mean(value: float, *, level: int, levels: int) -> float:
    """What one level sends of a number in [−1, 1]: a sign, or in the last level the rest."""
    depth = min(level + 1, levels - 1)
    scaled = (value + 1) * 2.0 ** (depth - 1)
    whole = min(math.floor(scaled), (1 << depth) - 1)
    return 2 * (scaled - whole if level == levels - 1 else whole % 2) - 1.0


def plane_value(x: Tensor, *, level: int, levels: int) -> Tensor:
    """What one level sends of each value of [-1, 1]: a sign ±1, or in the last the rest; float64.

    With the weights of :func:`plane_weights`, x is the weighted sum over levels 0, …, levels - 1. The value 1
    has all signs +1.
    """
    depth = min(level + 1, levels - 1)
    scaled = (x.double().clamp(-1, 1) + 1) * 2.0 ** (depth - 1)
    whole = scaled.floor().clamp_(max=2.0**depth - 1)
    return (scaled - whole if level == levels - 1 else whole.remainder_(2)) * 2 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BitPlanes:
    """m levels of s sampled coordinates each, every one a flipped sign.

    Attributes:
        dim: length of a vector.
        plan: numbers of levels and samples.
        thresholds: sign thresholds of each level.
        constants: whose constants.
        blocks: the blocks that coordinates are drawn from.
        weights: weight of each level.

    Raises:
        ValueError: if there is not one pair of thresholds for each level, or an argument is out of range.
    """

    dim: int
    plan: SampledPlan
    thresholds: tuple[SignThresholds, ...]
    constants: Constants = Constants.EXACT
    blocks: CoordinateBlocks = field(init=False)
    weights: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.thresholds) != self.plan.levels:
            raise ValueError(f"{self.plan.levels} levels need as many thresholds, got {len(self.thresholds)}")
        object.__setattr__(self, "blocks", CoordinateBlocks(dim=self.dim, count=self.plan.samples))
        object.__setattr__(self, "weights", plane_weights(self.plan.levels))

    @classmethod
    def within(
        cls, local_epsilon: float, *, dim: int, plan: SampledPlan, constants: Constants = Constants.EXACT
    ) -> Self:
        """Signs whose costs add up to at most ε0, shared out so that the worst variance is least.

        Raises:
            ValueError: if a sign's budget is below 1e-9, or an argument out of range.
        """
        levels, samples = plan.levels, plan.samples
        shares = budgets(levels, per_place=local_epsilon / samples, constants=constants)
        thresholds = split_budget(local_epsilon, shares=shares.tolist(), repeats=samples, constants=constants)
        return cls(dim=dim, plan=plan, thresholds=thresholds, constants=constants)

    @property
    def messages(self) -> int:
        """How many signs one report carries."""
        return self.plan.levels * self.plan.samples

    @property
    def bits(self) -> int:
        """Bits per report: levels · samples · (ceil(log2 ceil(dim/samples)) + 1)."""
        return self.messages * (self.blocks.index_bits + 1)

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
        return places + self.blocks.starts().to(places.device)

    def flip(self, values: Tensor, *, randomness: Randomness) -> Tensor:
        """Bits (clients, levels, samples) for values in [-1, 1] of the sampled coordinates."""
        plus = torch.empty(values.shape, dtype=torch.int64, device=values.device)
        for level, thresholds in enumerate(self.thresholds):
            plus[:, level] = plus_thresholds(self._sent(values, level), thresholds=thresholds)
        return randomness.bernoulli(plus)

    def _sent(self, values: Tensor, level: int) -> Tensor:
        """What a level's signs (clients, samples) are about, for values (clients, levels, samples)."""
        return plane_value(values[:, level], level=level, levels=self.plan.levels)

    def _planes(self, x: Tensor) -> Iterator[tuple[float, float, Tensor]]:
        """Weight, noise and plane of each level, for all coordinates."""
        for level, (weight, noise) in enumerate(zip(self.weights, self.noises, strict=True)):
            yield weight, noise, plane_value(x, level=level, levels=self.plan.levels)

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
        """Coordinates and signs ±1 in reports of this layout, each (reports, levels, samples) int64.

        Raises:
            ValueError: if reports name a place that does not exist.
        """
        shape = (len(reports), self.plan.levels, self.plan.samples)
        parts = [field.values.to(torch.int64).reshape(shape) for field in reports.fields]
        bits = parts[-1]
        places = parts[0] if len(parts) == 2 else torch.zeros_like(bits)
        if bool(((places < 0) | (places >= self.blocks.lengths().to(places.device))).any()):
            raise ValueError("a report names a coordinate outside its block")
        if bits.numel() and not (int(bits.min()) >= 0 and int(bits.max()) <= 1):
            raise ValueError("a sign takes one bit")
        return self.columns(places), bits * 2 - 1

    def sum(self, reports: Reports) -> Tensor:
        """Unbiased estimate of the sum of vectors in [-1, 1], (dim,) float64.

        Whole numbers are counted first, so neither order nor chunks change more than the last rounding.

        Raises:
            ValueError: as :meth:`parse`.
        """
        columns, signs = self.parse(reports)
        total = self.estimate(self.count(columns, signs))
        if self.constants is Constants.THESIS:
            hits = self.count(columns, torch.ones_like(signs)).double()
            weights = torch.tensor(self.weights, dtype=torch.float64, device=hits.device)
            missed = (hits * weights.unsqueeze(1)).sum(dim=0)
            total += missed * self.blocks.lengths_by_coordinate().to(total.device) - len(reports)
        return total

    def estimate(self, counts: Tensor) -> Tensor:
        """What signs added up, (levels, dim), say of the sum, (dim,) float64: unbiased, from the centre."""
        scale = torch.tensor(
            [w / t.gain for w, t in zip(self.weights, self.thresholds, strict=True)], dtype=torch.float64
        )
        total = (counts.double() * scale.to(counts.device).unsqueeze(1)).sum(dim=0)
        return total * self.blocks.lengths_by_coordinate().to(total.device)

    def count(self, columns: Tensor, values: Tensor) -> Tensor:
        """Values (clients, levels, samples) added up at their columns, int64 (levels, dim)."""
        levels = torch.arange(self.plan.levels, device=columns.device).view(1, -1, 1) * self.dim
        counts = torch.zeros(self.plan.levels * self.dim, dtype=torch.int64, device=columns.device)
        return counts.index_add_(0, (columns + levels).flatten(), values.flatten()).view(-1, self.dim)

    def moments(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each level, mean and second moment of every coordinate of its estimate, (clients, dim) float64.

        Within a block the coordinates of one estimate are never both non-zero; blocks and levels are
        independent. The thesis's constant, -1 in every coordinate, is left out.

        Args:
            x: (clients, dim) in [-1, 1].
        """
        lengths = self.blocks.lengths_by_coordinate().to(x.device)
        for weight, noise, plane in self._planes(x):
            if self.constants is Constants.EXACT:
                yield weight * plane, (weight**2 * (noise + 1) * lengths).expand_as(plane)
            else:
                above = plane + 1
                yield weight * above, weight**2 * lengths * (noise + 2 * above)

    def variance(self, x: Tensor) -> Tensor:
        """E‖estimate - x‖² of each row of [-1, 1]^dim, (clients,) float64."""
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        lengths = self.blocks.lengths_by_coordinate().to(x.device).double()
        for weight, noise, plane in self._planes(x):
            if self.constants is Constants.EXACT:
                each = (lengths - plane.square()).sum(dim=1)
            else:
                above = plane + 1
                each = (2 * above * lengths - above.square()).sum(dim=1)
            total += weight**2 * (each + noise * self.blocks.square_lengths)
        return total

    def outcomes(self) -> tuple[Tensor, Tensor] | None:
        """Places and bits (reports, levels, samples) of every report, if they are at most 2**16."""
        choices = (self.blocks.lengths() * 2).tolist() * self.plan.levels
        count = math.prod(choices)
        if count > MOST_OUTCOMES:
            return None
        rest = torch.arange(count)
        digits = []
        for choice in choices:
            digits.append(rest % choice)
            rest = rest // choice
        drawn = torch.stack(digits, dim=1).view(count, self.plan.levels, self.plan.samples)
        return drawn // 2, drawn % 2

    def log_likelihood(self, reports: Reports, values: Tensor) -> Tensor:
        """Log-probability of each report for one vector in [-1, 1], (reports,) float64."""
        columns, signs = self.parse(reports)
        at = values[columns]
        total = torch.full((len(reports),), -self._log_places(), dtype=torch.float64, device=at.device)
        for level, thresholds in enumerate(self.thresholds):
            sent = self._sent(at, level)
            total += sign_log_likelihood(signs[:, level], sent, thresholds=thresholds).sum(dim=1)
        return total

    def _log_places(self) -> float:
        return self.plan.levels * float(self.blocks.lengths().double().log().sum())


class BitPlaneRandomizer(NumberRandomizer):
    """A randomizer that sends bit planes of sampled numbers of [-1, 1] that stand for a row.

    A subclass sets ``_planes`` when it is built.
    """

    _planes: BitPlanes

    @property
    def plan(self) -> SampledPlan:
        """How many bit planes there are, and how many coordinates are sent of each."""
        return self._planes.plan

    @property
    def constants(self) -> Constants:
        """Whether probabilities are exact, or those printed in the thesis."""
        return self._planes.constants

    @property
    def layout(self) -> ReportLayout:
        """The sampled places in their blocks, where blocks have more than one, and their signs."""
        return ReportLayout(self.name, self.dim, self._planes.layout)

    @override
    def sum(self, reports: Reports) -> Tensor:
        self.check_reports(reports)
        return self._in_units(self._planes.sum(reports)).to(torch.float32)

    def outcomes(self) -> Reports | None:
        """Every combination of places and signs, where they are at most 2**16."""
        every = self._planes.outcomes()
        return None if every is None else self.layout.reports(*self._planes.sent(*every))

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held x (dim,); thresholds as they are rounded."""
        self.check_reports(reports)
        return self._planes.log_likelihood(reports, self._numbers_of(x))

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """Sampled bits of the numbers that stand for each row."""
        places = self._planes.draw(x.num_rows, randomness=randomness, device=x.device)
        numbers = self._sampled_numbers(x, norms, self._planes.columns(places))
        bits = self._planes.flip(numbers, randomness=randomness)
        return self.layout.reports(*self._planes.sent(places, bits))
