r"""How many coordinates and bit planes to send, and how loudly, for one shuffled message per tag.

A bit of ε0 = v among n others' tells as much as a Gaussian of :math:`μ^2 = (e^v - 1)^2/(e^v n) = 4u/n`,
:math:`u = \sinh^2(v/2)`, and costs :math:`1/u` of variance; with several places it is accounted by its
blanket, :math:`2(e^v - 1)^2/((e^v + 1) n)`. Levels of weights W_k add up to a variance of
:math:`\sum W_k^2/u_k`, least for a given :math:`\sum u_k` where :math:`u_k \propto W_k`. As the weights add
up to one, it is then :math:`1/\sum u_k` whatever the number of levels: more bits of a number cost nothing.
Girgis's thesis shares out v in proportion to :math:`W_k^{2/3}`, which is best where ε0 is what counts and up
to a tenth worse here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from shuffle_plugins.mechanisms.bit_planes import (
    MAX_LEVELS,
    SampledPlan,
    plane_weights,
    worst_excess,
)
from shuffle_plugins.mechanisms.sign_patterns import Constants

_QUIETEST, _LOUDEST = 1e-8, 400.0  # ε0 of one message, where searches end
_MOST_PLANES = 16


def level_epsilons(plan: SampledPlan, *, budget: float) -> tuple[float, ...]:
    """ε0 of one message of each level, such that all of a client's messages add up to ``budget``.

    Raises:
        ValueError: if a message would get less than 1e-8 or more than 400.
    """
    wanted = budget / plan.samples

    def excess(log_strength: float) -> float:
        return sum(_epsilons(plan.levels, math.exp(log_strength))) - wanted

    return _epsilons(plan.levels, math.exp(_solve(excess, levels=plan.levels, what=f"budget={budget:g}")))


def budget_of_noise(plan: SampledPlan, *, size: int, cohort: int, noise_multiplier: float) -> float:
    """Total ε0 of a client's messages that, to leading order, protect as a Gaussian of that multiplier.

    Args:
        plan: levels and samples.
        size: coordinates of a vector.
        clients: n, whose messages hide each other.
        noise_multiplier: the Gaussian's deviation over the replace-one sensitivity.

    Raises:
        ValueError: if a message would get less than 1e-8 or more than 400.
    """
    return plan.samples * sum(_epsilons(plan.levels, _strength(plan, size, cohort, noise_multiplier)))


@lru_cache(maxsize=256)
def best_tag_plan(
    *,
    size: int,
    cohort: int,
    noise_multiplier: float,
    overhead: float,
    levels: int | None = None,
    samples: int | None = None,
) -> SampledPlan:
    """The plan of fewest bits whose worst variance is within ``overhead`` of the best plan's.

    Args:
        size, clients, noise_multiplier: as in :func:`budget_of_noise`.
        overhead: share of variance that fewer bits may cost.
        levels, samples: kept if given.

    Raises:
        ValueError: if an argument is out of range, or no plan spends that much or little.
    """
    if samples is not None and (type(samples) is not int or not 1 <= samples <= size):
        raise ValueError(f"samples must be a whole number in [1, {size}], got {samples!r}")
    if levels is not None and (type(levels) is not int or not 1 <= levels <= MAX_LEVELS):
        raise ValueError(f"levels must be a whole number in [1, {MAX_LEVELS}], got {levels!r}")
    if not 0 <= overhead < math.inf:
        raise ValueError(f"overhead must be a number, at least 0, got {overhead!r}")
    halved = sorted({-(-size // (1 << j)) for j in range(size.bit_length())})
    found: list[tuple[float, int, SampledPlan]] = []
    problem: ValueError | None = None
    for s in halved if samples is None else [samples]:
        for m in range(1, _MOST_PLANES + 1) if levels is None else [levels]:
            plan = SampledPlan(levels=m, samples=s)
            try:
                variance = _variance(
                    plan, size=size, strength=_strength(plan, size, cohort, noise_multiplier)
                )
            except ValueError as error:
                problem = error
                continue
            index_bits = (-(-size // s) - 1).bit_length()
            found.append((variance, m * s * (index_bits + 1), plan))
    if not found:
        raise ValueError(f"no plan of messages is as loud as that: {problem}")
    limit = min(variance for variance, _, _ in found) * (1 + overhead) * (1 + 1e-9)
    good = [entry for entry in found if entry[0] <= limit]
    return min(good, key=lambda entry: (entry[1], entry[0]))[2]


def tag_counts(plan: SampledPlan, *, size: int) -> tuple[int, int]:
    """Blocks of one level that have a single place, and those that have more."""
    short, longer = divmod(size, plan.samples)
    return (plan.samples - longer, longer) if short == 1 else (0, plan.samples)


def _epsilons(levels: int, strength: float) -> tuple[float, ...]:
    """v_k with sinh²(v_k/2) = strength²·W_k."""
    return tuple(2 * math.asinh(strength * math.sqrt(weight)) for weight in plane_weights(levels))


@lru_cache(maxsize=4096)
def _strength(plan: SampledPlan, size: int, cohort: int, noise_multiplier: float) -> float:
    single, several = tag_counts(plan, size=size)
    wanted = cohort / noise_multiplier**2

    def excess(log_strength: float) -> float:
        told = 0.0
        for epsilon in _epsilons(plan.levels, math.exp(log_strength)):
            bit = 4 * math.sinh(epsilon / 2) ** 2
            told += bit * (single + several * 2 / (1 + math.exp(-epsilon)))
        return told - wanted

    return math.exp(_solve(excess, levels=plan.levels, what=f"noise_multiplier={noise_multiplier:g}"))


def _solve(excess: Callable[[float], float], *, levels: int, what: str) -> float:
    """Logarithm of the strength at which an increasing function is 0."""
    low = math.log(math.sinh(_QUIETEST / 2)) - math.log(min(plane_weights(levels))) / 2
    high = math.log(math.sinh(_LOUDEST / 2))
    if excess(low) > 0 or excess(high) < 0:
        raise ValueError(
            f"{what} leaves no message of the {levels} levels between {_QUIETEST:g} and {_LOUDEST:g}: "
            "send more or fewer messages"
        )
    return float(brentq(excess, low, high, xtol=1e-13, rtol=1e-14))


def _variance(plan: SampledPlan, *, size: int, strength: float) -> float:
    """Worst E‖estimate − x‖² of one client's vector in [-1, 1]^size."""
    short, longer = divmod(size, plan.samples)
    total = 0.0
    for k, weight in enumerate(plane_weights(plan.levels)):
        noise = 1 / (strength**2 * weight)
        for blocks, length in ((longer, short + 1), (plan.samples - longer, short)):
            last = k == plan.levels - 1
            excess = float(worst_excess(np.array([length]), last=last, constants=Constants.EXACT)[0])
            total += weight**2 * blocks * length * (length * noise + excess)
    return total
