r"""Bit planes: weights, budgets, worst variance, and the best numbers of levels and samples. Torch-free.

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
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.accounting import Atoms, Blanket, InformationBound, diluted, most_telling, product_atoms
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.signs.randomized_response_law import (
    Constants,
    sign_blanket,
    split_budget,
)
from shuffle_plugins.mechanisms.signs.sign_patterns_law import spread_information

MAX_LEVELS = 32
_PATIENCE = 2  # levels without gain after which no more are tried
_MOST_SIGNS = 16  # of a report, whose products are listed
_LOUDEST = 42.0  # ε0 from which thresholds cannot follow
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
    """The plan of least worst variance; what is given is kept. Ties go to fewer bits.

    Raises:
        ValueError: if an argument is out of range.
    """
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
    if local_epsilon > _LOUDEST:
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
    if plan.levels * plan.samples > _MOST_SIGNS or local_epsilon > _LOUDEST:
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
