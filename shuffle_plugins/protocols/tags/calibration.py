"""Plan and budget of a tagged sum for a target (ε, δ): exact accounting, by bracketing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from shuffle_plugins.accounting import PrivacyTarget
from shuffle_plugins.mechanisms.bit_planes import SampledPlan
from shuffle_plugins.protocols.coins.calibration import least_noise_multiplier
from shuffle_plugins.protocols.errors import TargetUnreachable
from shuffle_plugins.protocols.shuffle_protocol import SummingProtocol, check_overhead, counted_on
from shuffle_plugins.protocols.tags.plans import best_tag_plan, budget_of_noise

_ENOUGH = 1e-3  # of ε, that may be left unspent
_STEP = 1.1  # of the noise, until there is a bracket; the first guess is good to some per cent
_MOST_ATTEMPTS = 60
_MOST_EXCESS = 5.0  # log(ε spent over ε wanted), beyond which it tells nothing


_S = TypeVar("_S", bound=SummingProtocol)


def calibrated_budget(
    target: PrivacyTarget,
    *,
    build: Callable[[SampledPlan, float], _S],
    size: int,
    cohort: int,
    population: int | None,
    honest_fraction: float,
    overhead: float,
    levels: int | None,
    samples: int | None,
) -> _S:
    """The sum of the largest budget within the target, to a part in a thousand.

    Args:
        target: what all rounds together may cost.
        build: the sum, from its plan and budget.
        size: coordinates that are sampled.
        cohort, honest_fraction: as the sum's fields.
        population: of whom the cohort is drawn; None if the cohort is everybody.
        overhead: share of variance that fewer bits may cost.
        levels, samples: kept if given.

    Raises:
        ValueError: if an argument is out of range.
        TargetUnreachable: if no budget is within the target.
    """
    honest, people = counted_on(cohort, population, honest_fraction)
    check_overhead(overhead)
    noise = least_noise_multiplier(target, sampling_rate=cohort / people)
    plan = best_tag_plan(
        size=size, cohort=honest, noise_multiplier=noise, overhead=overhead, levels=levels, samples=samples
    )

    def made(noise: float) -> _S:
        budget = budget_of_noise(plan, size=size, cohort=honest, noise_multiplier=noise)
        return build(plan, float(f"{budget:.9g}"))  # parties whose processors round differently agree on it

    def excess(found: _S) -> float:
        cost = target.cost(found.round(population=population))
        return min(math.log(max(cost, 1e-300) / target.epsilon), _MOST_EXCESS)

    loud: tuple[float, float] | None = None  # log noise, and what it spends too much
    quiet: tuple[float, float] | None = None
    best: _S | None = None
    at = math.log(noise)
    for _ in range(_MOST_ATTEMPTS):
        found = made(math.exp(at))
        over = excess(found)
        if over <= 0:
            quiet, best = (at, over), found
            if over >= -_ENOUGH:
                break
        else:
            loud = (at, over)
        if loud is None:
            at -= math.log(_STEP)
        elif quiet is None:
            at += math.log(_STEP)
        elif quiet[0] - loud[0] < _ENOUGH / 4:
            break
        else:
            # A little short of where the chord meets zero, and well inside the bracket.
            share = (loud[1] + _ENOUGH / 3) / (loud[1] - quiet[1])
            at = loud[0] + min(max(share, 0.1), 0.9) * (quiet[0] - loud[0])
    if best is None:
        raise TargetUnreachable(
            f"no budget reaches ε={target.epsilon:g} at δ={target.delta:g} over {target.num_steps} steps "
            f"among {cohort} clients: ask for a larger ε or δ, fewer steps, or more clients"
        )
    return best
