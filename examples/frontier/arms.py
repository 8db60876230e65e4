"""Whom one trusts: each arm finds the least noise that keeps a whole run within (ε, δ), replace-one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from data import Task
from training import Noisy, Schedule, through, with_gaussian

from shuffle_plugins.accounting import FINE, LossComposition, ShuffleAccountant, gaussian_losses
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning import plan
from shuffle_plugins.protocols import VectorSum

DELTA = 1e-5
NO_EPSILON = "none"


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What an arm adds to the sums of one task and ε.

    Attributes:
        noisy: given a source of coins, adds up a cohort's gradients.
        schedule: the arm's, for this task.
        epsilon: certified interval of the whole run; the same number twice where it is exact.
        bytes_per_round: what a client in a round sends.
        facts: further numbers to publish.
        once: whether each client is in one round at most.
    """

    noisy: Callable[[torch.Generator], Noisy]
    schedule: Schedule
    epsilon: tuple[float, float] | None
    bytes_per_round: int
    facts: dict[str, float | int | str]
    once: bool = False


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train.

    Attributes:
        title: as the page calls it.
        trusts: whom a client has to trust with its data.
        schedule: chosen on MNIST.
        noise: finds the noise for a task and ε.
    """

    title: str
    trusts: str
    schedule: Schedule
    noise: Callable[[Task, float, Schedule], Noise]


def one_report(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """One randomised report per client and round, by the mechanism that the planner finds best."""
    dim = task.classes * task.features
    best = plan(
        target_epsilon=epsilon,
        delta=DELTA,
        population=task.population,
        dim=dim,
        cohorts=[schedule.cohort],
        num_steps=schedule.rounds,
        radius=schedule.clip,
        norm="l2",
        mechanism=["privunit", "projunit", "l2-block", "sqkr"],
    ).best
    mechanism = registry.get(best.mechanism, local_epsilon=best.local_epsilon, dim=dim, radius=schedule.clip)
    return Noise(
        noisy=lambda coins: through(mechanism),
        schedule=schedule,
        epsilon=(best.epsilon.lower, best.epsilon.upper),
        bytes_per_round=math.ceil(best.bits_per_report / 8),
        facts={"mechanism": best.mechanism, "local_epsilon": best.local_epsilon},
    )


def shared_sum(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """P_vec: the clients' coins are the noise, and nobody sees more than the sum."""
    protocol = VectorSum.calibrated(
        cohort=schedule.cohort,
        epsilon=epsilon,
        delta=DELTA,
        num_steps=schedule.rounds,
        population=task.population,
        dim=task.classes * task.features,
        radius=schedule.clip,
    )
    accountant = ShuffleAccountant()
    accountant.step(protocol.round(population=task.population), num_steps=schedule.rounds)
    spent = accountant.epsilon(DELTA)
    return Noise(
        noisy=lambda coins: through(protocol),
        schedule=schedule,
        epsilon=(spent.lower, spent.upper),
        bytes_per_round=math.ceil(protocol.bits_per_report / 8),
        facts={
            "mechanism": protocol.name,
            "deviation_over_clip": math.sqrt(protocol.noise_variance) / protocol.radius,
        },
    )


def central(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """The least Gaussian noise for replace-one neighbours, k of n in each round."""

    def spent(multiplier: float) -> float:
        losses = gaussian_losses(
            noise_multiplier=multiplier / 2,
            sampling_rate=schedule.cohort / task.population,
            resolution=FINE,
        )
        return LossComposition([losses], [schedule.rounds]).epsilon(DELTA)

    low = high = 1.0
    while spent(high) > epsilon:
        low, high = high, 2 * high
    while high > low * (1 + 1e-3):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    found = spent(high)
    return Noise(
        noisy=lambda coins: with_gaussian(high * schedule.clip, clip=schedule.clip, coins=coins),
        schedule=schedule,
        epsilon=(found, found),
        bytes_per_round=4 * task.classes * task.features,
        facts={"mechanism": "Gaussian of the server", "deviation_over_clip": high},
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
    )


ARMS = {
    "sum": Arm(
        title="sum, no trusted server",
        trusts="that not all who add up shares collude, and that the others add their coins",
        schedule=Schedule(cohort=4096, rounds=200, clip=0.02, pace=40.0),
        noise=shared_sum,
    ),
    "one report": Arm(
        title="one report per client",
        trusts="the shuffler, to take names away",
        schedule=Schedule(cohort=4000, rounds=300, clip=0.02, pace=3.0),
        noise=one_report,
    ),
    "central": Arm(
        title="central Gaussian",
        trusts="the server, with every gradient",
        schedule=Schedule(cohort=4096, rounds=200, clip=0.02, pace=40.0),
        noise=central,
    ),
    "local": Arm(
        title="local, no shuffler",
        trusts="nobody",
        schedule=Schedule(cohort=2000, rounds=30, clip=0.02, pace=2.0),
        noise=local,
    ),
    "none": Arm(
        title="no privacy",
        trusts="the server, with every gradient",
        schedule=Schedule(cohort=4096, rounds=200, clip=0.02, pace=40.0),
        noise=nothing,
    ),
}
