"""From a bound on one shuffle to T rounds of k-of-n sampling and shuffling.

The two ways in which the literature does it: one (ε, δ) point per round, amplified by sampling and composed
strongly; or a Rényi curve per round, amplified by sampling and added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np

from shuffle_plugins.accounting.composition.conversion import epsilon_from_rdp
from shuffle_plugins.accounting.published import rdp_subsampling
from shuffle_plugins.accounting.published.arguments import Vector, check_level
from shuffle_plugins.accounting.published.composition import strong_composition
from shuffle_plugins.accounting.published.subsampling import amplify_by_sampling

_EVERY_ORDER_TO = 24
_ORDER_RATIO = 1.06
_FIRST_ORDERS = 2048
_LARGEST_ORDER = 2**15
_REAL_ORDER_POINTS = 80
_WHOLE_ORDER_POINTS = 96
_REFINED_POINTS = 48
_SMALLEST_EXCESS = 1e-2  # of a real order over one


def check_rounds(*, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float) -> None:
    """Refuse a question about rounds that makes no sense.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_level(local_epsilon)
    if not 1 <= cohort <= population:
        raise ValueError(f"cohort must be in [1, population], got {cohort!r} of {population!r}")
    if num_steps < 1:
        raise ValueError(f"num_steps must be positive, got {num_steps!r}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta!r}")


def compose_points(
    *,
    shuffled: Callable[[float], float],
    local_epsilon: float,
    population: int,
    cohort: int,
    num_steps: int,
    delta: float,
) -> float:
    """ε of T rounds from one (ε, δ) point of the shuffle, k-of-n amplification and strong composition.

    Half of δ pays for strong composition and the rounds share the other half; where adding the rounds' ε up
    is better, they share all of it; and where shuffling earns nothing, composition gets all of it, at ε0. The
    looseness grows with T: one point of each round's privacy profile is all that is used.

    Args:
        shuffled: ε of one shuffle of k reports as a function of its δ in (0, 1].
        local_epsilon: ε0 > 0 in nats.
        population: n.
        cohort: k ≤ n, reports shuffled together; k = n is full participation.
        num_steps: T ≥ 1.
        delta: total δ in (0, 1).

    Returns:
        ε in nats for replace-one neighbours, never above T·ε0.

    Raises:
        ValueError: if an argument is out of range, or by ``shuffled``.
    """
    check_rounds(
        local_epsilon=local_epsilon, population=population, cohort=cohort, num_steps=num_steps, delta=delta
    )
    sampling_rate = cohort / population

    def sampled(round_delta: float) -> float:
        shuffle_delta = min(1.0, round_delta / sampling_rate)
        point, _ = amplify_by_sampling(
            epsilon=min(shuffled(shuffle_delta), local_epsilon),
            delta=shuffle_delta,
            sampling_rate=sampling_rate,
        )
        return point

    unshuffled, _ = amplify_by_sampling(epsilon=local_epsilon, delta=0.0, sampling_rate=sampling_rate)
    found = [
        num_steps * local_epsilon,
        strong_composition(epsilon=unshuffled, num_steps=num_steps, delta_slack=delta),
    ]
    if num_steps > 1:
        half = sampled(delta / (2 * num_steps))
        found.append(strong_composition(epsilon=half, num_steps=num_steps, delta_slack=delta / 2))
    found.append(num_steps * sampled(delta / num_steps))
    return min(found)


def compose_renyi(
    *,
    curve: Callable[[Vector], Vector],
    local_epsilon: float,
    population: int,
    cohort: int,
    num_steps: int,
    delta: float,
    sampling: Literal["without-replacement", "poisson"] = "without-replacement",
    largest_order: int = _LARGEST_ORDER,
) -> float:
    """ε of T rounds from the shuffle's Rényi curve, its amplification by sampling and their sum.

    Without amplification real orders serve too; a round without sampling is never worse than one with it, so
    the smaller of the two divergences is taken at each order. The sampling theorems blow up with the order
    and then give way to the curve itself, so ε may have several local minima in the order: whole orders are
    scanned all the way. Real ones, where there is one minimum, reach twice past the best one found. Between
    the orders at which the curve is evaluated, (α − 1)·ε(α) is bounded by its chord, because it is convex
    (van Erven, Harremoës 2014).

    Args:
        curve: upper bounds on the divergence of one shuffle of k reports, as a function of whole orders from
            2 on; or of real orders above 1 where k = n. What it gives is remembered for as long as the same
            object is passed.
        local_epsilon: ε0 > 0 in nats.
        population: n.
        cohort: k ≤ n.
        num_steps: T ≥ 1.
        delta: in (0, 1).
        sampling: which theorem amplifies; Poisson's is not for replace-one neighbours.
        largest_order: where to stop looking for better orders.

    Returns:
        ε in nats, never above T·ε0.

    Raises:
        ValueError: if an argument is out of range, or by ``curve``.
    """
    check_rounds(
        local_epsilon=local_epsilon, population=population, cohort=cohort, num_steps=num_steps, delta=delta
    )
    sampling_rate = cohort / population

    def convert(orders: Vector, rdp: Vector) -> tuple[float, float]:
        return epsilon_from_rdp(orders=orders, rdp=num_steps * np.minimum(rdp, local_epsilon), delta=delta)

    if sampling_rate < 1:
        every = _at_every_order(curve, largest_order, local_epsilon)
        orders, rdp = _scan(curve, largest_order, local_epsilon, sampling_rate, sampling)
        value, order = convert(orders, rdp)
        refined = np.unique(_around(orders, order).round())
        rdp = _amplified(refined, every, local_epsilon, sampling_rate, sampling)
    else:
        largest = _FIRST_ORDERS
        while True:
            orders = 1.0 + np.geomspace(_SMALLEST_EXCESS, largest - 1, _REAL_ORDER_POINTS)
            value, order = convert(orders, curve(orders))
            if 2 * order <= largest or largest >= largest_order:
                break
            largest *= 4
        refined = _around(orders, order)
        refined = np.concatenate([refined, np.unique(np.maximum(refined.round(), 2.0))])
        rdp = curve(refined)
    return min(value, convert(refined, rdp)[0], num_steps * local_epsilon)


def _around(orders: Vector, order: float) -> Vector:
    place = int(np.argmin(np.abs(orders - order)))
    return np.linspace(orders[max(place - 1, 0)], orders[min(place + 1, orders.size - 1)], _REFINED_POINTS)


def _amplified(
    orders: Vector, every: Vector, local_epsilon: float, sampling_rate: float, sampling: str
) -> Vector:
    """The sampling theorem on the curve at 2, 3, …, or the curve itself where that is smaller."""
    if sampling == "poisson":
        amplified = rdp_subsampling.poisson(orders=orders, rdp=every, sampling_rate=sampling_rate)
    else:
        amplified = rdp_subsampling.without_replacement(
            orders=orders, rdp=every, sampling_rate=sampling_rate, pure_epsilon=local_epsilon
        )
    return np.minimum(amplified, every[orders.astype(np.int64) - 2])


@lru_cache(maxsize=32)
def _scan(
    curve: Callable[[Vector], Vector], largest: int, local_epsilon: float, sampling_rate: float, sampling: str
) -> tuple[Vector, Vector]:
    """Whole orders up to ``largest``, at nearly equal ratios, and the amplified divergences there."""
    orders = np.unique(np.geomspace(2, largest, _WHOLE_ORDER_POINTS).round())
    every = _at_every_order(curve, largest, local_epsilon)
    rdp = _amplified(orders, every, local_epsilon, sampling_rate, sampling)
    for shared in (orders, rdp):
        shared.setflags(write=False)
    return orders, rdp


@lru_cache(maxsize=32)
def _at_every_order(curve: Callable[[Vector], Vector], largest: int, local_epsilon: float) -> Vector:
    """The curve at 2, 3, …, ``largest``: evaluated at some orders, by chords of (α − 1)·ε(α) between."""
    every = np.arange(2, largest + 1, dtype=np.float64)
    points = every[:_EVERY_ORDER_TO]
    if largest > points[-1]:
        count = math.ceil(math.log(largest / points[-1]) / math.log(_ORDER_RATIO)) + 2
        points = np.unique(np.concatenate([points, np.geomspace(points[-1], largest, count).round()]))
    values = np.minimum(curve(points), local_epsilon)
    chords: Vector = np.interp(every, points, (points - 1) * values) / (every - 1) * (1 + 1e-12)
    chords.setflags(write=False)
    return chords
