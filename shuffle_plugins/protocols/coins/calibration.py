"""Levels and coins of a sum for a target (ε, δ).

Clients round their numbers to a lattice of so many levels, and each adds the heads among so many tosses of a
fair coin to every coordinate. All heads together are nearly Gaussian noise. First the Gaussian noise is found
that the target needs, then levels and coins that imitate it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from shuffle_plugins.accounting import (
    FINE,
    LossComposition,
    PrivacyLossDistribution,
    PrivacyTarget,
    SumRound,
    gaussian_losses,
    narrowed,
    participation_losses,
)
from shuffle_plugins.accounting.pairs.fair_coins import LONG_ROUNDOFF
from shuffle_plugins.accounting.pairs.gaussian_cover import (
    FEWEST_TRIALS,
    MOST_TRIALS,
    covering_deviation,
    gaussian_cover,
)
from shuffle_plugins.core import checks
from shuffle_plugins.protocols.coins.sampling import DISTANCE
from shuffle_plugins.protocols.errors import TargetUnreachable
from shuffle_plugins.protocols.lattices import MOST_LEVELS, Lattice
from shuffle_plugins.protocols.shuffle_protocol import check_overhead, counted_on

_LEAST_NOISE, _MOST_NOISE = (
    0.06,
    1e7,
)  # noise multipliers: with less ε is uselessly large, with more data are drowned
_MUCH = 1.25  # of noise more, where too little has no ε at all
_MOST_ATTEMPTS = 20  # each adds a part in a thousand of noise or more; a few are enough but for tiny δ
_DISTANCE_SHARE = 0.01  # of δ, that may be spent on the distance of coins from the Gaussian
_NOISE_SHARE = 0.998  # of δ, for the noise alone, where the distance is charged to ε (docs/proofs/sums.md)
_PRECISION = 1e-3  # relative, of the noise, and so about of ε
_FINER = 2**0.25  # from one lattice to the next: the levels found are at most a fifth too many
_MOST_EXPONENT = 700.0  # of e^ε in a float


class _Sum(Protocol):
    def round(self, *, population: int | None = None, participation: float | None = None) -> SumRound: ...


_S = TypeVar("_S", bound=_Sum)


def calibrated_coins(
    target: PrivacyTarget,
    *,
    lattice: Callable[[int], Lattice],
    build: Callable[[int, int], _S],
    cohort: int,
    population: int | None,
    honest_fraction: float,
    participation: float | None,
    overhead: float,
) -> _S:
    """A sum within the target, of about as few levels and coins as there can be: a search, not a proof.

    Args:
        target: what all rounds together may cost.
        lattice: built from its number of levels.
        build: the sum, from its levels and coins.
        cohort, honest_fraction: as the sum's fields.
        population: of whom the cohort is drawn; None if the cohort is everybody.
        participation: probability with which each client adds its data; None if all do.
        overhead: share of variance that may be spent on rounding and on the cover.

    Raises:
        ValueError: if an argument is out of range.
        TargetUnreachable: if no sum is within the target.
    """
    epsilon, delta, num_steps = target.epsilon, target.delta, target.num_steps
    honest, people = counted_on(cohort, population, honest_fraction)
    check_overhead(overhead)
    participation = checks.participation(participation)
    coarse = lattice(1)
    dim = coarse.size
    room = _room(target, dim=dim)
    distance = _DISTANCE_SHARE * delta / ((1 + math.exp(min(epsilon, 600.0))) * num_steps * dim)
    noise = least_noise_multiplier(
        replace(target, delta=room),
        sampling_rate=cohort / people,
        participation=participation,
        norm=coarse.norm_bound / coarse.sensitivity,
    )
    for _ in range(_MOST_ATTEMPTS):
        # At first the noise that a Gaussian alone needs, then more, until coins keep within the target, too.
        levels, coins = fewest_coins(
            noise, lattice=lattice, cohort=cohort, honest=honest, overhead=overhead, distance=distance
        )
        found = build(levels, coins)
        cost = target.cost(found.round(population=population, participation=participation))
        if cost <= epsilon:
            return found
        # Infinite is an ε for which likelihoods so far out are needed that nothing is known of them.
        noise *= 1 + max(_PRECISION, (cost / epsilon - 1) / 2) if math.isfinite(cost) else _MUCH
    raise TargetUnreachable(
        f"no coins keep within ε={epsilon:g} at δ={delta:g} over {num_steps} steps in dimension {dim}: they "
        "cannot be certified to be as close to Gaussian noise as that takes. Ask for a larger δ, another ε, "
        f"fewer steps, or an overhead smaller than {overhead:g}, which takes more coins"
    )


def _room(target: PrivacyTarget, *, dim: int) -> float:
    """The part of δ that is left for Gaussian noise.

    How far coins are from a Gaussian, in total variation, can be certified down to a limit only, and is
    charged 1 + e^ε times to δ, for each step and coordinate. If that is more than a hundredth of δ, the
    accountant bounds the ratio of their likelihoods instead and charges it to ε.
    """
    epsilon, delta, num_steps = target.epsilon, target.delta, target.num_steps
    charge = (1 + math.exp(min(epsilon, _MOST_EXPONENT))) * num_steps * dim * (DISTANCE + LONG_ROUNDOFF)
    return delta - charge if charge <= _DISTANCE_SHARE * delta else _NOISE_SHARE * delta


def least_noise_multiplier(
    target: PrivacyTarget, *, sampling_rate: float, participation: float | None = None, norm: float = 1.0
) -> float:
    """Least noise multiplier, to a part in 2,000, at which Gaussian noise keeps within the target.

    Args:
        target: what all rounds together may cost.
        sampling_rate: share of the clients that answer in a round.
        participation: probability with which each of those adds its data; None if all do.
        norm: largest norm of a datum, over the replace-one sensitivity.

    Raises:
        TargetUnreachable: if no noise does.
    """

    def too_little(noise: float) -> bool:
        try:
            law = _losses(noise, sampling_rate=sampling_rate, participation=participation, norm=norm)
            return LossComposition([law], [target.num_steps]).epsilon(target.delta) > target.epsilon
        except ArithmeticError:  # hardly any noise, or more steps than are composed
            return True

    high = _LEAST_NOISE
    while too_little(high):
        high *= 2
        if high > _MOST_NOISE:
            raise TargetUnreachable(
                f"no noise reaches ε={target.epsilon:g} at δ={target.delta:.2g} over {target.num_steps} steps"
                ": ask for a larger ε or δ, or fewer steps"
            )
    _, least = narrowed(too_little, high / 2, high, precision=_PRECISION / 2)
    return least


def _losses(
    noise: float, *, sampling_rate: float, participation: float | None, norm: float
) -> PrivacyLossDistribution:
    if participation is None:
        return gaussian_losses(noise_multiplier=noise, sampling_rate=sampling_rate, resolution=FINE)
    return participation_losses(
        noise_multiplier=noise,
        norm=norm,
        participation=participation,
        sampling_rate=sampling_rate,
        resolution=FINE,
    )


def fewest_coins(
    noise: float,
    *,
    lattice: Callable[[int], Lattice],
    cohort: int,
    honest: int,
    overhead: float,
    distance: float,
) -> tuple[int, int]:
    """Levels and coins of the coarsest lattice that adds at most the overhead to the variance of the noise.

    Coins of it are within ``distance`` of their Gaussian in each coordinate, or as close as can be certified.
    If there is no such lattice, those of the finest one whose coins can be accounted for.

    Args:
        noise: deviation of the covering Gaussian over the sensitivity.
        lattice: built from its number of levels.
        cohort, honest: clients in the sum, and those counted on to toss their coins.
        overhead: share of variance that rounding and cover may take.
        distance: total variation.

    Raises:
        TargetUnreachable: if a single level takes more coins than can be accounted for.
    """
    exact = 1.0
    found: tuple[int, int] | None = None
    nearest, best = math.inf, (0, 0)  # the smallest distance so far, and the fewest coins that reach it
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
            # Two lattices may ask for equally many coins. If more coins came no closer, the distance has
            # reached the limit of what can be certified.
            if apart >= nearest and coins > best[1]:
                return best
            if apart < nearest:
                nearest, best = apart, (levels, coins)
    if found is None:
        raise TargetUnreachable(
            f"a noise multiplier of {noise:.3g} needs more coins than can be accounted for"
        )
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
