"""Whom one trusts: each arm finds the least noise that keeps a whole run within (ε, δ), replace-one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from data import Task
from training import LOOK_RADIUS, Noisy, Schedule, through, with_gaussian

from shuffle_plugins.accounting import (
    FINE,
    LossComposition,
    PrivacyLossDistribution,
    ShuffleAccountant,
    gaussian_losses,
)
from shuffle_plugins.mechanisms import LocalRandomizer, registry
from shuffle_plugins.planning import PlanRow, plan
from shuffle_plugins.protocols import VectorSum

DELTA = 1e-5
NO_EPSILON = "none"
LOOK_SHARE = 0.2  # of ε, if the first look at the data were all; composed it takes 2 to 3 % of the noise
_CLOSE = 0.998  # share of ε that is enough to stop searching
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What an arm adds to the sums of one task and ε.

    Attributes:
        noisy: given a source of coins, adds up a cohort's gradients.
        schedule: the arm's, for this task.
        epsilon: certified interval of the whole run; the same number twice where it is exact.
        bytes_per_round: what a client in a round sends.
        facts: further numbers to publish.
        look: adds up a row of every record, for the features' means and deviations; None where nobody looks.
        look_deviation: of the noise in each number of that sum.
        look_bytes: what a client sends for it.
        once: whether each client is in one round at most.
    """

    noisy: Callable[[torch.Generator], Noisy]
    schedule: Schedule
    epsilon: tuple[float, float] | None
    bytes_per_round: int
    facts: dict[str, float | int | str]
    look: Callable[[torch.Generator], Noisy] | None = None
    look_deviation: float = 0.0
    look_bytes: int = 0
    once: bool = False


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train.

    Attributes:
        title: as the page calls it.
        trusts: whom a client has to trust with its data.
        schedule: chosen on MNIST.
        noise: finds the noise for a task and ε.
        scales: J of the scattering transform.
    """

    title: str
    trusts: str
    schedule: Schedule
    noise: Callable[[Task, float, Schedule], Noise]
    scales: int = 2


def _within(
    epsilon: float, make: Callable[[float], Found], spent: Callable[[Found], tuple[float, float]]
) -> tuple[Found, tuple[float, float]]:
    """What ``make`` gives for the largest target that, with all else that is spent, stays within ε."""
    target = epsilon
    best: tuple[Found, tuple[float, float]] | None = None
    for _ in range(8):
        made = make(target)
        interval = spent(made)
        if interval[1] <= epsilon:
            best = made, interval
            if interval[1] >= _CLOSE * epsilon:
                return best
        target *= 0.9995 * epsilon / interval[1]
    if best is None:
        raise ValueError(f"no noise was found that keeps the whole run within ε = {epsilon:g}")
    return best


def one_report(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """One randomised report per client and round, by PrivUnit, which has the least error of all."""
    dim = task.classes * task.features

    def reporting(target: float, *, dim: int, radius: float, cohort: int, rounds: int) -> PlanRow:
        return plan(
            target_epsilon=target,
            delta=DELTA,
            population=task.population,
            dim=dim,
            cohorts=[cohort],
            num_steps=rounds,
            radius=radius,
            norm="l2",
            mechanism=["privunit"],
        ).best

    def built(planned: PlanRow, *, dim: int, radius: float) -> LocalRandomizer:
        return registry.get(planned.mechanism, local_epsilon=planned.local_epsilon, dim=dim, radius=radius)

    looking = {"dim": 2 * task.features, "radius": LOOK_RADIUS}
    learning = {"dim": dim, "radius": schedule.clip}
    look = reporting(LOOK_SHARE * epsilon, cohort=task.population, rounds=1, **looking)
    first = built(look, **looking)

    def spent(planned: PlanRow) -> tuple[float, float]:
        accountant = ShuffleAccountant()
        accountant.step(first.round(population=task.population, cohort=task.population))
        accountant.step(
            built(planned, **learning).round(population=task.population, cohort=schedule.cohort),
            num_steps=schedule.rounds,
        )
        total = accountant.epsilon(DELTA)
        return total.lower, total.upper

    best, interval = _within(
        epsilon,
        lambda target: reporting(target, cohort=schedule.cohort, rounds=schedule.rounds, **learning),
        spent,
    )
    mechanism = built(best, **learning)
    return Noise(
        noisy=lambda coins: through(mechanism),
        schedule=schedule,
        epsilon=interval,
        bytes_per_round=math.ceil(mechanism.bits_per_report / 8),
        facts={
            "mechanism": best.mechanism,
            "local_epsilon": best.local_epsilon,
            "look_local_epsilon": look.local_epsilon,
        },
        look=lambda coins: through(first),
        look_deviation=math.sqrt(first.worst_variance * task.population / first.dim),
        look_bytes=math.ceil(first.bits_per_report / 8),
    )


def shared_sum(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """P_vec: the clients' coins are the noise, and nobody sees more than the sum."""

    def summed(target: float, *, dim: int, radius: float, cohort: int, rounds: int) -> VectorSum:
        return VectorSum.calibrated(
            cohort=cohort,
            epsilon=target,
            delta=DELTA,
            num_steps=rounds,
            population=task.population,
            dim=dim,
            radius=radius,
        )

    look = summed(
        LOOK_SHARE * epsilon, dim=2 * task.features, radius=LOOK_RADIUS, cohort=task.population, rounds=1
    )

    def spent(protocol: VectorSum) -> tuple[float, float]:
        accountant = ShuffleAccountant()
        accountant.step(look.round(population=task.population))
        accountant.step(protocol.round(population=task.population), num_steps=schedule.rounds)
        total = accountant.epsilon(DELTA)
        return total.lower, total.upper

    protocol, interval = _within(
        epsilon,
        lambda target: summed(
            target,
            dim=task.classes * task.features,
            radius=schedule.clip,
            cohort=schedule.cohort,
            rounds=schedule.rounds,
        ),
        spent,
    )
    return Noise(
        noisy=lambda coins: through(protocol),
        schedule=schedule,
        epsilon=interval,
        bytes_per_round=math.ceil(protocol.bits_per_report / 8),
        facts={
            "mechanism": protocol.name,
            "deviation_over_clip": math.sqrt(protocol.noise_variance) / protocol.radius,
        },
        look=lambda coins: through(look),
        look_deviation=math.sqrt(look.noise_variance),
        look_bytes=math.ceil(look.bits_per_report / 8),
    )


def central(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """The least Gaussian noise for replace-one neighbours, k of n in each round."""

    def losses(multiplier: float, cohort: int) -> PrivacyLossDistribution:
        return gaussian_losses(
            noise_multiplier=multiplier / 2,
            sampling_rate=cohort / task.population,
            resolution=FINE,
        )

    def least(within: float, spent: Callable[[float], float]) -> float:
        low = high = 1.0
        while spent(high) > within:
            low, high = high, 2 * high
        while high > low * (1 + 1e-3):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if spent(middle) <= within else (middle, high)
        return high

    def alone(multiplier: float) -> float:
        return LossComposition([losses(multiplier, task.population)], [1]).epsilon(DELTA)

    look = least(LOOK_SHARE * epsilon, alone)
    looked = losses(look, task.population)

    def whole(multiplier: float) -> float:
        return LossComposition([looked, losses(multiplier, schedule.cohort)], [1, schedule.rounds]).epsilon(
            DELTA
        )

    multiplier = least(epsilon, whole)
    found = whole(multiplier)
    deviation = multiplier * schedule.clip
    return Noise(
        noisy=lambda coins: with_gaussian(deviation, clip=schedule.clip, coins=coins),
        schedule=schedule,
        epsilon=(found, found),
        bytes_per_round=4 * task.classes * task.features,
        facts={"mechanism": "Gaussian of the server", "deviation_over_clip": multiplier},
        look=lambda coins: with_gaussian(look * LOOK_RADIUS, clip=LOOK_RADIUS, coins=coins),
        look_deviation=look * LOOK_RADIUS,
        look_bytes=8 * task.features,
    )


def local(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """Without a shuffler: every client reports once, at ε0 = ε, and nothing hides it."""
    dim = task.classes * task.features
    mechanism = registry.get("privunit", local_epsilon=epsilon, dim=dim, radius=schedule.clip)
    return Noise(
        noisy=lambda coins: through(mechanism),
        schedule=replace(schedule, cohort=task.population // schedule.rounds),
        epsilon=(epsilon, epsilon),
        bytes_per_round=math.ceil(mechanism.bits_per_report / 8),
        facts={"mechanism": "privunit", "local_epsilon": epsilon},
        once=True,
    )


def nothing(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """No noise: the exact mean of the clipped gradients."""
    return Noise(
        noisy=lambda coins: with_gaussian(0.0, clip=schedule.clip, coins=coins),
        schedule=schedule,
        epsilon=None,
        bytes_per_round=4 * task.classes * task.features,
        facts={},
        look=lambda coins: with_gaussian(0.0, clip=LOOK_RADIUS, coins=coins),
        look_bytes=8 * task.features,
    )


ARMS = {
    "sum": Arm(
        title="sum, no trusted server",
        trusts="that not all who add up shares collude, and that the others add their coins",
        schedule=Schedule(cohort=4096, rounds=200, clip=0.005, pace=40.0),
        noise=shared_sum,
    ),
    "one report": Arm(
        title="one report per client",
        trusts="the shuffler, to take names away",
        schedule=Schedule(cohort=4000, rounds=600, clip=0.005, pace=2.0),
        noise=one_report,
        scales=3,
    ),
    "central": Arm(
        title="central Gaussian",
        trusts="the server, with every gradient",
        schedule=Schedule(cohort=4096, rounds=200, clip=0.005, pace=40.0),
        noise=central,
    ),
    "local": Arm(
        title="local, no shuffler",
        trusts="nobody",
        schedule=Schedule(cohort=2000, rounds=30, clip=0.02, pace=2.0),
        noise=local,
        scales=3,
    ),
    "none": Arm(
        title="no privacy",
        trusts="the server, with every gradient",
        schedule=Schedule(cohort=4096, rounds=200, clip=0.005, pace=40.0),
        noise=nothing,
    ),
}
