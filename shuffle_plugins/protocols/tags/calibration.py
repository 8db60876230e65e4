"""Plan and budget of a tagged sum for a target (ε, δ): exact accounting, by bracketing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.mechanisms.signs.bit_planes_law import SampledPlan
from shuffle_plugins.protocols.coins.calibration import least_noise_multiplier
from shuffle_plugins.protocols.errors import OutOfReach
from shuffle_plugins.protocols.tags.base import TaggedSum
from shuffle_plugins.protocols.tags.plans import best_tag_plan, budget_of_noise
from shuffle_plugins.protocols.targets import check_overhead, check_targets, hiding, honest_clients

S = TypeVar("S", bound=TaggedSum)

_ENOUGH = 1e-3  # of ε, that may be left unspent
_STEP = 1.1
_MOST_ATTEMPTS = 60
_MOST_EXCESS = 5.0  # log(ε spent over ε wanted), beyond which it tells nothing


def calibrate(
    *,
    size: int,
    cohort: int,
    epsilon: float,
    delta: float,
    honest_fraction: float,
    num_steps: int,
    population: int | None,
    overhead: float,
    levels: int | None,
    samples: int | None,
    build: Callable[[SampledPlan, float], S],
) -> S:
    """The sum of the largest budget whose certified ε at δ is at most ``epsilon``, to a part in a thousand.

    Raises:
        ValueError: if a target is out of range.
        OutOfReach: if it cannot be reached.
    """
    check_targets(epsilon=epsilon, delta=delta, num_steps=num_steps, cohort=cohort, population=population)
    check_overhead(overhead)
    honest = honest_clients(cohort=cohort, honest_fraction=honest_fraction)
    people = hiding(population or cohort, cohort=cohort, honest_fraction=honest_fraction)
    rate = cohort / people
    noise = least_noise_multiplier(epsilon, delta=delta, sampling_rate=rate, num_steps=num_steps)
    plan = best_tag_plan(
        size=size, cohort=honest, noise_multiplier=noise, overhead=overhead, levels=levels, samples=samples
    )

    def made(noise: float) -> S:
        return build(plan, budget_of_noise(plan, size=size, cohort=honest, noise_multiplier=noise))

    def excess(found: S) -> float:
        accountant = ShuffleAccountant()
        accountant.step(found.round(population=population), num_steps=num_steps)
        return min(math.log(max(accountant.charged_epsilon(delta), 1e-300) / epsilon), _MOST_EXCESS)

    loud: tuple[float, float] | None = None  # log noise, and what it spends too much
    quiet: tuple[float, float] | None = None
    best: S | None = None
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
        raise OutOfReach(
            f"no budget reaches ε={epsilon:g} at δ={delta:g} over {num_steps} steps among {cohort} clients: "
            "ask for a larger ε or δ, fewer steps, or more clients"
        )
    return best
