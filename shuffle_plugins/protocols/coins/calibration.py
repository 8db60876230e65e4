"""Levels and coins of a vector sum for a target (ε, δ): noise first, then a lattice that carries it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from shuffle_plugins.accounting import ShuffleAccountant, gaussian_losses
from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.losses.distribution import FINE
from shuffle_plugins.accounting.pairs.fair_coins import LONG_ROUNDOFF
from shuffle_plugins.accounting.pairs.gaussian_cover import (
    FEWEST_TRIALS,
    MOST_TRIALS,
    covering_deviation,
    gaussian_cover,
)
from shuffle_plugins.accounting.rounds.coins import SumRound
from shuffle_plugins.protocols.coins.sampling import DISTANCE
from shuffle_plugins.protocols.errors import OutOfReach
from shuffle_plugins.protocols.lattices import MOST_LEVELS, Lattice
from shuffle_plugins.protocols.targets import check_overhead, check_targets, hiding, honest_clients

_LEAST_NOISE, _MOST_NOISE = 0.06, 1e7
_MOST_ATTEMPTS = 20
_DISTANCE_SHARE = 0.01  # of δ, that may be spent on the distance of coins from the Gaussian
_PRECISION = 1e-3
_FINER = 2**0.25


class _Sum(Protocol):
    @property
    def noise_variance(self) -> float: ...

    def round(self, *, population: int | None = None) -> SumRound: ...


S = TypeVar("S", bound=_Sum)


def calibrate(
    *,
    lattice: Callable[[int], Lattice],
    cohort: int,
    epsilon: float,
    delta: float,
    honest_fraction: float,
    num_steps: int,
    population: int | None,
    overhead: float,
    build: Callable[[int, int], S],
) -> S:
    """The sum built from the fewest levels and coins whose certified ε at δ is at most ``epsilon``.

    Raises:
        ValueError: if a target is out of range.
        OutOfReach: if it cannot be reached.
    """
    check_targets(epsilon=epsilon, delta=delta, num_steps=num_steps, cohort=cohort, population=population)
    check_overhead(overhead)
    honest = honest_clients(cohort=cohort, honest_fraction=honest_fraction)

    dim = lattice(1).size
    room = _room(epsilon, delta=delta, num_steps=num_steps, dim=dim)
    distance = _DISTANCE_SHARE * delta / ((1 + math.exp(min(epsilon, 600.0))) * num_steps * dim)

    def made(noise: float) -> S:
        levels, coins = coarsest(
            noise, lattice=lattice, cohort=cohort, honest=honest, overhead=overhead, distance=distance
        )
        return build(levels, coins)

    def spent(found: S) -> float:
        accountant = ShuffleAccountant()
        accountant.step(found.round(population=population), num_steps=num_steps)
        return accountant.charged_epsilon(delta)

    people = hiding(population or cohort, cohort=cohort, honest_fraction=honest_fraction)
    rate = cohort / people
    noise = least_noise_multiplier(epsilon, delta=room, sampling_rate=rate, num_steps=num_steps)
    for _ in range(_MOST_ATTEMPTS):
        # What the Gaussian alone needs, and a little more for the distance of the coins from it.
        found = made(noise)
        if spent(found) <= epsilon:
            return found
        apart = found.round(population=population).replacement_distance
        if (1 + math.exp(min(epsilon, 700.0))) * num_steps * apart >= delta:
            break  # and more noise takes more coins
        noise *= 1 + _PRECISION
    raise OutOfReach(
        f"no noise reaches ε={epsilon:g} at δ={delta:g} over {num_steps} steps in dimension {dim} within an "
        f"overhead of {overhead:g}: ask for a larger δ, another ε, fewer steps, or a smaller overhead"
    )


def _room(epsilon: float, *, delta: float, num_steps: int, dim: int) -> float:
    """What δ has left for noise: coins are told apart from fair ones to a limit, charged 1 + e^ε times.

    Raises:
        ValueError: if it is nothing.
    """
    apart = num_steps * dim * (DISTANCE + LONG_ROUNDOFF)
    left = delta - (1 + math.exp(min(epsilon, 700.0))) * apart
    if left > 0:
        return left
    most = math.log(delta / apart - 1) if delta > 2 * apart else 0.0
    remedy = f"at most ε={math.floor(most * 10) / 10:g}, " if most >= 0.1 else ""
    raise OutOfReach(
        f"δ={delta:g} over {num_steps} steps in dimension {dim} leaves no room for coins at ε={epsilon:g}, "
        f"which are drawn to within 2**-52 and charged 1 + e^ε times: ask for {remedy}a larger δ, or fewer "
        "steps"
    )


def least_noise_multiplier(epsilon: float, *, delta: float, sampling_rate: float, num_steps: int) -> float:
    """Least noise multiplier, to a part in 2,000, at which Gaussian noise gives ε at δ."""

    def fits(noise: float) -> bool:
        try:
            law = gaussian_losses(noise_multiplier=noise, sampling_rate=sampling_rate, resolution=FINE)
        except ArithmeticError:  # hardly any noise
            return False
        return LossComposition([law], [num_steps]).epsilon(delta) <= epsilon

    high = _LEAST_NOISE
    while not fits(high):
        high *= 2
        if high > _MOST_NOISE:
            raise OutOfReach(f"no noise reaches ε={epsilon:g} at δ={delta:g} over {num_steps} steps")
    low = high / 2
    while high > low * (1 + _PRECISION / 2):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def coarsest(
    noise: float,
    *,
    lattice: Callable[[int], Lattice],
    cohort: int,
    honest: int,
    overhead: float,
    distance: float,
) -> tuple[int, int]:
    """Levels and coins of the coarsest lattice on which noise costs at most the overhead in variance.

    Its coins are as close to their Gaussian as ``distance`` in each coordinate, or as close as can be told.

    Args:
        noise: deviation of the covering Gaussian over the sensitivity.
        lattice: built from its number of levels.
        clients, honest: in the sum, and those counted on to toss their coins.
        overhead: share of variance that rounding and cover may take.
        distance: total variation.

    Raises:
        ValueError: if that takes more coins than can be accounted for.
    """
    exact = 1.0
    found: tuple[int, int] | None = None
    nearest, best = math.inf, (0, 0)
    while exact <= MOST_LEVELS:
        levels = math.ceil(exact)
        found_lattice = lattice(levels)
        trials = _trials(noise * found_lattice.sensitivity)
        exact *= _FINER
        if trials is None:
            break
        coins = -(-trials // honest)
        found = levels, coins
        # The coins of dishonest clients are not counted on, so their share is no overhead of the lattice.
        variance = honest * coins / 4 + cohort * found_lattice.rounding_variance
        if variance <= (1 + overhead) * (noise * found_lattice.diameter) ** 2:
            apart = gaussian_cover(honest * coins).distance
            if apart <= distance:
                return levels, coins
            if apart >= nearest:  # more coins than whose distance can be told
                return best
            nearest, best = apart, (levels, coins)
    if found is None:
        raise OutOfReach(f"a noise multiplier of {noise:.3g} needs more coins than can be accounted for")
    return found


def _trials(deviation: float) -> int | None:
    """Fewest coins whose covering Gaussian has at least this deviation; None if they are too many."""
    trials = max(FEWEST_TRIALS, math.ceil(4 * (deviation**2 + 0.8 * deviation)))
    while trials <= MOST_TRIALS:
        short = deviation**2 - covering_deviation(trials) ** 2
        if short <= 0:
            return trials
        trials += max(1, math.ceil(4 * short))
    return None
