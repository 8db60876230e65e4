"""The eight ways to train that are compared, called arms, and the noise that each of them needs.

They differ in whom a client has to trust: nobody, a shuffler, those who add up a sum, or the server. For a
data set and a target ε an arm finds about the least noise with which a whole run is (ε, δ)-differentially
private for replace-one neighbours: two data sets of the same size that differ in one record. Every client
holds one record. ε is against an observer of the model who does not know who is drawn; of the arms "against
the server too" also against the server, which draws them. Two arms need no search: ``nothing``, without
noise, and ``local``, whose ε0 is the target (ε0 is the ε of one report against one who sees whose it is).

A run is a *first look* and then many rounds of training. The first look is one noisy sum over all records,
for the means and deviations of the features (:func:`training.standardized`); its cost is part of ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
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
from shuffle_plugins.protocols import VectorSum, WindowedSum, prefix_noise, window_coefficients

DELTA = 1e-5
NO_EPSILON = "none"
# Share of the target ε that the first look alone would cost. It makes the rounds' noise a little larger.
LOOK_SHARE = 0.2
AGAINST_THE_SERVER = ("server", "windows")  # arms within ε also against who knows who takes part
FILTERS = 128  # of the patch features of an image
_CLOSE = 0.998  # the search stops when the run's ε is within the target and at least this share of it
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How one arm trains on one task (data set) at one ε: the noise that was found, and what it costs.

    Attributes:
        noisy: from a random generator makes the function that adds up the clipped gradients of the clients of
            a round (the cohort), with noise. The generator is used for Gaussian noise only; the package's
            mechanisms draw their own randomness.
        schedule: cohort size, number of rounds and learning rate for this task.
        epsilon: lower and upper bound on ε of the whole run at δ = 1e-5; the same number twice if only an
            upper bound is computed; None without privacy.
        bytes_per_round: bytes that a client sends in a round of training in which it takes part.
        facts: further numbers and names for the results file.
        look: the same as ``noisy``, for the first look; None if there is none.
        look_deviation: standard deviation of the noise in each number of the first look's sum.
        look_bytes: bytes that a client sends for the first look.
        in_turn: True if clients take part in turn, and nobody a second time before all others have.
    """

    noisy: Callable[[torch.Generator], Noisy]
    schedule: Schedule
    epsilon: tuple[float, float] | None
    bytes_per_round: int
    facts: dict[str, float | int | str]
    look: Callable[[torch.Generator], Noisy] | None = None
    look_deviation: float = 0.0
    look_bytes: int = 0
    in_turn: bool = False


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train.

    Attributes:
        title: its name on the results page.
        trusts: whom a client has to trust, and for what; text for the results page.
        schedule: how it trains, chosen on MNIST and used for every task; the noise sets the learning rate.
        noise: one of the functions below: from a task, ε and the schedule finds the noise.
        scales: J of the scattering transform, fixed features of an image: how many scales it has.
        filters: with how many random patches the patches of an image are compared, its other features; 0 for
            none.
    """

    title: str
    trusts: str
    schedule: Schedule
    noise: Callable[[Task, float, Schedule], Noise]
    scales: int = 2
    filters: int = FILTERS


def _within(
    epsilon: float, make: Callable[[float], Found], spent: Callable[[Found], tuple[float, float]]
) -> tuple[Found, tuple[float, float]]:
    """Search for the setting of the rounds with which the whole run costs nearly ε, and not more.

    The first look stays as it is; only the rounds' noise is changed.

    Args:
        epsilon: ε of the whole run.
        make: builds a setting whose rounds alone cost at most a given ε.
        spent: lower and upper bound on ε of the whole run, the first look included, with a setting.

    Returns:
        Of the settings found within ε the one with the largest upper bound, and its two bounds.

    Raises:
        ValueError: if none of eight attempts is within ε.
    """
    target = epsilon
    best: tuple[Found, tuple[float, float]] | None = None
    for _ in range(8):
        made = make(target)
        interval = spent(made)
        if interval[1] <= epsilon:
            if best is None or interval[1] > best[1][1]:
                best = made, interval
            if interval[1] >= _CLOSE * epsilon:
                return best
        target *= 0.9995 * epsilon / interval[1]
    if best is None:
        raise ValueError(f"no noise was found that keeps the whole run within ε = {epsilon:g}")
    return best


def one_report(
    task: Task, epsilon: float, schedule: Schedule, *, mechanism: str = "blanket-mixed-gaussian"
) -> Noise:
    """Each client of a round sends one randomised report, which a shuffler passes on without its name.

    The mechanism is blanket-mixed Gaussian noise, which has the least error of the package's mechanisms at an
    ε after shuffling, or the same as a seed of 128 bits, whose sums are drawn by their law: clients' searches
    for seeds are not played. The adversary sees the model after each round, but not the reports' senders.

    Raises:
        ValueError: if no setting within ε is found.
    """
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
            mechanism=[mechanism],
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
    reports = built(best, **learning)
    return Noise(
        noisy=lambda coins: through(reports),
        schedule=schedule.suited(_of_reports(reports, cohort=schedule.cohort)),
        epsilon=interval,
        bytes_per_round=math.ceil(reports.bits_per_report / 8),
        facts={
            "mechanism": best.mechanism,
            "local_epsilon": best.local_epsilon,
            "look_local_epsilon": look.local_epsilon,
        },
        look=lambda coins: through(first),
        look_deviation=math.sqrt(first.worst_variance * task.population / first.dim),
        look_bytes=math.ceil(first.bits_per_report / 8),
    )


def _of_reports(mechanism: LocalRandomizer, *, cohort: int) -> float:
    """Standard deviation of the noise in each number of a cohort's mean, over the clipping norm."""
    return math.sqrt(mechanism.worst_variance / mechanism.dim / cohort) / mechanism.radius


def shared_sum(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """Each sum is made by ``VectorSum`` (P_vec of Cheu et al. 2022), so nobody sees more than a noisy sum.

    Each client adds random coins to its gradient; the coins of all clients together are the sum's noise.

    Raises:
        ValueError: if no setting within ε is found.
    """

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
        schedule=schedule.suited(math.sqrt(protocol.noise_variance) / protocol.radius / schedule.cohort),
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


def against_the_server(task: Task, epsilon: float, schedule: Schedule, *, windows: bool) -> Noise:
    """As :func:`shared_sum`, within ε against the server, too, which knows who takes part in which round.

    Clients take part in turn, so that nobody is in more rounds than need be, and each round that a client is
    in costs the whole: no draw hides it. With ``windows`` only sums over several rounds are ever seen, and
    the noise is correlated over rounds (``WindowedSum``); otherwise every sum has noise of its own.

    Raises:
        ValueError: if no setting within ε is found.
    """
    apart = task.population // schedule.cohort
    participations = math.ceil(schedule.rounds / apart)
    rates = [1 - step / schedule.rounds for step in range(schedule.rounds)]
    run = {"rounds": schedule.rounds, "momentum": schedule.momentum, "learning_rates": rates}
    coefficients = window_coefficients(band=apart, **run) if windows else (1,)
    look = VectorSum.calibrated(
        cohort=task.population,
        epsilon=LOOK_SHARE * epsilon,
        delta=DELTA,
        dim=2 * task.features,
        radius=LOOK_RADIUS,
    )

    def summed(target: float) -> VectorSum | WindowedSum:
        asked = {
            "cohort": schedule.cohort,
            "epsilon": target,
            "delta": DELTA,
            "num_steps": participations,
            "dim": task.classes * task.features,
            "radius": schedule.clip,
        }
        if windows:
            return WindowedSum.calibrated(**asked, coefficients=coefficients)
        return VectorSum.calibrated(**asked)

    def spent(protocol: VectorSum | WindowedSum) -> tuple[float, float]:
        accountant = ShuffleAccountant()
        accountant.step(look.round())
        accountant.step(protocol.round(), num_steps=participations)
        total = accountant.epsilon(DELTA)
        return total.lower, total.upper

    protocol, interval = _within(epsilon, summed, spent)
    # Of independent noise in each sum that would leave as much in the weights.
    deviation = coefficients[0] * math.sqrt(protocol.noise_variance) * prefix_noise(coefficients, **run)
    return Noise(
        noisy=lambda coins: through(protocol),
        schedule=schedule.suited(deviation / protocol.radius / schedule.cohort),
        epsilon=interval,
        bytes_per_round=math.ceil(protocol.bits_per_report / 8),
        facts={
            "mechanism": protocol.name,
            "deviation_over_clip": deviation / protocol.radius,
            "participations": participations,
            "band": len(coefficients),
        },
        look=lambda coins: through(look),
        look_deviation=math.sqrt(look.noise_variance),
        look_bytes=math.ceil(look.bits_per_report / 8),
        in_turn=True,
    )


def central(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """A trusted server adds to each sum the least Gaussian noise that keeps the run within ε, up to 0.1 %.

    Each round draws k of the n clients without replacement. ``multiplier`` is the noise's standard deviation
    over the clipping norm C. The accounting divides it by 2·C instead, which is how far a sum moves at most
    if one record is replaced. Both numbers of ``Noise.epsilon`` are the same upper bound.
    """

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
        schedule=schedule.suited(multiplier / schedule.cohort),
        epsilon=(found, found),
        bytes_per_round=4 * task.classes * task.features,
        facts={"mechanism": "Gaussian of the server", "deviation_over_clip": multiplier},
        look=lambda coins: with_gaussian(look * LOOK_RADIUS, clip=LOOK_RADIUS, coins=coins),
        look_deviation=look * LOOK_RADIUS,
        look_bytes=8 * task.features,
    )


def local(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """No shuffler: each client reports once, with ε0 = ε, and the server sees whose report it is.

    The clients are divided into ``schedule.rounds`` cohorts of equal size, so the given cohort size is not
    used. There is no first look.
    """
    dim = task.classes * task.features
    mechanism = registry.get("privunit", local_epsilon=epsilon, dim=dim, radius=schedule.clip)
    cohort = task.population // schedule.rounds
    return Noise(
        noisy=lambda coins: through(mechanism),
        schedule=replace(schedule, cohort=cohort).suited(_of_reports(mechanism, cohort=cohort)),
        epsilon=(epsilon, epsilon),
        bytes_per_round=math.ceil(mechanism.bits_per_report / 8),
        facts={"mechanism": "privunit", "local_epsilon": epsilon},
        in_turn=True,
    )


def nothing(task: Task, epsilon: float, schedule: Schedule) -> Noise:
    """No privacy: the exact sum of the clipped gradients, and an exact first look. ε is ignored."""
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
        trusts="that not all servers who add up shares collude, and that all other clients add their coins",
        schedule=Schedule(cohort=4096, rounds=200, clip=0.005),
        noise=shared_sum,
    ),
    "one report": Arm(
        title="one report per client and round",
        trusts="the shuffler, to take names away",
        schedule=Schedule(cohort=12_000, rounds=400, clip=0.005),
        noise=one_report,
        scales=3,
        filters=0,
    ),
    "seed": Arm(
        title="the same, as a seed of 128 bits",
        trusts="the shuffler, to take names away",
        schedule=Schedule(cohort=12_000, rounds=400, clip=0.005),
        noise=partial(one_report, mechanism="blanket-mixed-gaussian-seed"),
        scales=3,
        filters=0,
    ),
    "server": Arm(
        title="sum, against the server too",
        trusts="the same as for sums, but nobody with who takes part in which round",
        schedule=Schedule(cohort=4000, rounds=195, clip=0.005),
        noise=partial(against_the_server, windows=False),
        scales=3,
        filters=0,
    ),
    "windows": Arm(
        title="windows of sums, against the server too",
        trusts="the same as for sums, but nobody with who takes part in which round",
        schedule=Schedule(cohort=4000, rounds=195, clip=0.005),
        noise=partial(against_the_server, windows=True),
        scales=3,
        filters=0,
    ),
    "central": Arm(
        title="central Gaussian",
        trusts="the server, with every gradient",
        schedule=Schedule(cohort=4096, rounds=200, clip=0.005),
        noise=central,
    ),
    "local": Arm(
        title="local, no shuffler",
        trusts="nobody",
        schedule=Schedule(cohort=2000, rounds=30, clip=0.02),
        noise=local,
        scales=3,
        filters=0,
    ),
    "none": Arm(
        title="no privacy",
        trusts="the server, with every gradient",
        schedule=Schedule(cohort=4096, rounds=200, clip=0.005, pace=640.0),
        noise=nothing,
    ),
}
