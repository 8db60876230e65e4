"""Levels and coins of a sum for a target (ε, δ).

Clients round their numbers to a lattice of so many levels, and each adds the heads among so many tosses of a
fair coin to every coordinate. All heads together are nearly Gaussian noise. First the Gaussian noise is found
that the target needs, then levels and coins that imitate it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

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
from shuffle_plugins.accounting.pairs.noise import (
    FEWEST_COMPARED,
    FEWEST_TRIALS,
    LONG_ROUNDOFF,
    MOST_TRIALS,
    covering_deviation,
    gaussian_cover,
    log_ratio,
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
_TAIL_SHARE = 1e-3  # of δ, that the accountant spends on tails where the distance is charged to ε
_PRECISION = 1e-3  # relative, of the noise, and so about of ε
_KNOWN = 1 << 20  # coins whose closeness to a Gaussian says how close others are
_CLOSEST = 1 << 32  # coins; more are cut into parts, and come no closer
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
    room, trials = _room(target, dim=coarse.size)
    noise = least_noise_multiplier(
        replace(target, delta=room),
        sampling_rate=cohort / people,
        participation=participation,
        norm=coarse.norm_bound / coarse.sensitivity,
    )
    for _ in range(_MOST_ATTEMPTS):
        # At first the noise that a Gaussian alone needs, then more, until coins keep within the target, too.
        levels, coins = fewest_coins(
            noise, lattice=lattice, cohort=cohort, honest=honest, overhead=overhead, trials=trials
        )
        found = build(levels, coins)
        cost = target.cost(found.round(population=population, participation=participation))
        if cost <= epsilon:
            return found
        # Infinite is an ε for which likelihoods so far out are needed that nothing is known of them.
        noise *= 1 + max(_PRECISION, (cost / epsilon - 1) / 2) if math.isfinite(cost) else _MUCH
    raise TargetUnreachable(
        f"no coins keep within ε={epsilon:g} at δ={delta:g} over {num_steps} steps in dimension "
        f"{coarse.size}: they cannot be certified to be as close to Gaussian noise as that takes. Ask for a "
        "larger δ, another ε, or fewer steps"
    )


def _room(target: PrivacyTarget, *, dim: int) -> tuple[float, int]:
    """The part of δ that is left for Gaussian noise, and coins that are close enough to it.

    How far coins are from a Gaussian, in total variation, can be certified down to a limit only, and is
    charged 1 + e^ε times to δ, for each step and coordinate. If that is more than a hundredth of δ, the
    accountant bounds the ratio of their likelihoods instead and charges it to ε.
    """
    epsilon, delta = target.epsilon, target.delta
    log_factor, coordinates = float(np.logaddexp(0.0, epsilon)), target.num_steps * dim
    factor = math.exp(min(log_factor, _MOST_EXPONENT)) * coordinates
    charge = factor * (DISTANCE + LONG_ROUNDOFF)
    if charge <= _DISTANCE_SHARE * delta:
        return delta - charge, close_trials(_DISTANCE_SHARE * delta / factor)
    log_tail = math.log(_TAIL_SHARE * delta / 2) - log_factor - math.log(coordinates)
    ratio = 2 * coordinates * log_ratio(_KNOWN, log_tail=log_tail)
    return _NOISE_SHARE * delta, max(_scaled(ratio / (_PRECISION * epsilon)), FEWEST_COMPARED)


def close_trials(distance: float) -> int:
    """About the fewest coins in a total variation of at most ``distance`` from the Gaussian that covers them.

    Or those that can be certified to be the closest.
    """
    return _scaled(gaussian_cover(_KNOWN).distance / distance)


def _scaled(factor: float) -> int:
    """Coins so many times closer to their Gaussian than ``_KNOWN``: both measures fall with their square."""
    return math.ceil(min(_KNOWN * math.sqrt(factor), _CLOSEST))


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
    trials: int,
    steady: bool = False,
) -> tuple[int, int]:
    """Levels and about the fewest coins that have at most the overhead more variance than the noise.

    Args:
        noise: deviation of the covering Gaussian over the sensitivity.
        lattice: built from its number of levels.
        cohort, honest: clients in the sum, and those counted on to toss their coins.
        overhead: share of variance that rounding and cover may take.
        trials: honest coins that there must be at least, so that they are close to their Gaussian.
        steady: whether more noise never gets fewer coins, nor a covering Gaussian that deviates by less over
            the sensitivity. So ε falls as noise grows. Lattices of few levels then take more coins.

    Raises:
        TargetUnreachable: if it takes more coins than can be accounted for.
    """

    def enough(coins: int) -> bool:
        deviation = covering_deviation(honest * coins)

        def fine(levels: int) -> bool:
            # With one level more there is the next smaller noise that these coins give. So if those are
            # within the overhead, all noises are that lie between the two.
            given = deviation / lattice(levels + steady).sensitivity
            return spent(levels, coins) <= (1 + overhead) * (given * lattice(levels).diameter) ** 2

        coarsest = lattice(1 + bisect_left(range(1, MOST_LEVELS), True, key=fine))
        return deviation >= noise * coarsest.sensitivity

    def spent(levels: int, coins: int) -> float:
        # The coins of dishonest clients are not counted on, so their share is no overhead of the lattice.
        return honest * coins / 4 + cohort * lattice(levels).rounding_variance

    fewest, most = -(-max(trials, FEWEST_TRIALS) // honest), MOST_TRIALS // honest
    coins = fewest + bisect_left(range(fewest, most), True, key=enough)
    while coins <= most:
        deviation = covering_deviation(honest * coins)
        # As many levels as these coins can hide.
        levels = bisect_left(
            range(1, MOST_LEVELS + 1), True, key=lambda g: deviation < noise * lattice(g).sensitivity
        )
        if levels == MOST_LEVELS or (
            levels and spent(levels, coins) <= (1 + overhead) * (noise * lattice(levels).diameter) ** 2
        ):
            return levels, coins
        coins += 1 + coins // 256
    raise TargetUnreachable(
        f"a noise multiplier of {noise:.3g} needs more coins than can be accounted for, within an overhead "
        f"of {overhead:g}: ask for less noise or a larger overhead"
    )
