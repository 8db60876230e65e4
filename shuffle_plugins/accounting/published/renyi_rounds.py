"""From a Rényi curve to ε of T rounds of k-of-n sampling and shuffling: amplified, added up, converted.

The other way in which the literature composes, (ε, δ) points by strong composition, is
:func:`~shuffle_plugins.accounting.composition.points.compose_points`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from shuffle_plugins.accounting.composition.points import check_rounds
from shuffle_plugins.accounting.composition.renyi import epsilon_from_rdp
from shuffle_plugins.accounting.numerics.orders import Vector
from shuffle_plugins.accounting.published import rdp_subsampling
from shuffle_plugins.accounting.terms import Sampling

_EVERY_ORDER_TO = 24  # small orders, where a curve bends most, are evaluated one by one
_ORDER_RATIO = 1.06  # of neighbouring orders above; chords between them cost less than a part in 10³
_FIRST_ORDERS = 2048  # where the search for real orders begins to look; it grows from there
_LARGEST_ORDER = 2**15  # where it ends: memory and time grow with the largest whole order
_REAL_ORDER_POINTS = 80
_WHOLE_ORDER_POINTS = 96
_REFINED_POINTS = 48  # around the best order of a scan, to take what lies between its points
_SMALLEST_EXCESS = 1e-2  # of a real order over one
_FIRST_SAMPLED_ORDERS = 64  # as above, for curves of a sampled round, whose best orders are mostly small
_LARGEST_SAMPLED_ORDER = 2**17
_SAMPLED_POINTS, _SAMPLED_REFINED_POINTS = 48, 96


def compose_renyi(
    *,
    curve: Callable[[Vector], Vector],
    local_epsilon: float,
    population: int,
    cohort: int,
    num_steps: int,
    delta: float,
    sampling: Sampling = Sampling.WITHOUT_REPLACEMENT,
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
        local_epsilon, population, cohort, num_steps, delta: the question, as of :func:`check_rounds`.
        sampling: which theorem amplifies, k of n without replacement or Poisson's; Poisson's is not for
            replace-one neighbours.

    Returns:
        ε in nats, never above T·ε0.
    """
    check_rounds(
        local_epsilon=local_epsilon, population=population, cohort=cohort, num_steps=num_steps, delta=delta
    )
    sampling_rate = cohort / population

    def convert(orders: Vector, rdp: Vector) -> tuple[float, float]:
        return epsilon_from_rdp(orders=orders, rdp=num_steps * np.minimum(rdp, local_epsilon), delta=delta)

    if sampling_rate < 1:
        every = _at_every_order(curve, _LARGEST_ORDER, local_epsilon)
        orders, rdp = _scan(curve, _LARGEST_ORDER, local_epsilon, sampling_rate, sampling)
        value, order = convert(orders, rdp)
        refined = np.unique(_around(orders, order).round())
        rdp = _amplified(refined, every, local_epsilon, sampling_rate, sampling)
    else:
        largest = _FIRST_ORDERS
        while True:
            orders = 1.0 + np.geomspace(_SMALLEST_EXCESS, largest - 1, _REAL_ORDER_POINTS)
            value, order = convert(orders, curve(orders))
            if 2 * order <= largest or largest >= _LARGEST_ORDER:
                break
            largest *= 4
        refined = _around(orders, order)
        refined = np.concatenate([refined, np.unique(np.maximum(refined.round(), 2.0))])
        rdp = curve(refined)
    return min(value, convert(refined, rdp)[0], num_steps * local_epsilon)


def compose_sampled_renyi(
    *,
    curve: Callable[[Vector], Vector],
    local_epsilon: float,
    population: int,
    cohort: int,
    num_steps: int,
    delta: float,
) -> float:
    """ε of T rounds from the Rényi curve of a round of sampling and shuffling: their sum, converted.

    The orders reach twice past the best one found, and every whole order around it is tried.

    Args:
        curve: upper bounds on the divergence of one sampled and shuffled round at whole orders from 2 on.
        local_epsilon, population, cohort, num_steps, delta: the question, as of :func:`check_rounds`.

    Returns:
        ε in nats, never above T·ε0.
    """
    check_rounds(
        local_epsilon=local_epsilon, population=population, cohort=cohort, num_steps=num_steps, delta=delta
    )

    def best(orders: Vector) -> tuple[float, float]:
        return epsilon_from_rdp(orders=orders, rdp=num_steps * curve(orders), delta=delta)

    largest = _FIRST_SAMPLED_ORDERS
    while True:
        orders = np.unique(np.geomspace(2, largest, _SAMPLED_POINTS).round())
        value, order = best(orders)
        if 2 * order <= largest or largest >= _LARGEST_SAMPLED_ORDER:
            break
        largest *= 2
    refined = np.unique(_around(orders, order, points=_SAMPLED_REFINED_POINTS).round())
    return min(value, best(refined)[0], num_steps * local_epsilon)


def _around(orders: Vector, order: float, *, points: int = _REFINED_POINTS) -> Vector:
    """Orders between the neighbours of the best one found."""
    place = int(np.argmin(np.abs(orders - order)))
    return np.linspace(orders[max(place - 1, 0)], orders[min(place + 1, orders.size - 1)], points)


def _amplified(
    orders: Vector, every: Vector, local_epsilon: float, sampling_rate: float, sampling: Sampling
) -> Vector:
    """The sampling theorem on the curve at 2, 3, …, or the curve itself where that is smaller."""
    if sampling is Sampling.POISSON:
        amplified = rdp_subsampling.poisson(orders=orders, rdp=every, sampling_rate=sampling_rate)
    else:
        amplified = rdp_subsampling.without_replacement(
            orders=orders, rdp=every, sampling_rate=sampling_rate, pure_epsilon=local_epsilon
        )
    return np.minimum(amplified, every[orders.astype(np.int64) - 2])


@lru_cache(maxsize=32)
def _scan(
    curve: Callable[[Vector], Vector],
    largest: int,
    local_epsilon: float,
    sampling_rate: float,
    sampling: Sampling,
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
