"""Curves of one shuffle with everybody in it: Rényi divergences, exact binary response, closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import logsumexp

from paper_figures.data import Curve, Role
from shuffle_plugins.accounting import (
    FINE,
    Sampling,
    ShuffleRound,
    binary_pair,
    pair_losses,
    renyi_divergence,
)
from shuffle_plugins.accounting.published import divergences

Vector = NDArray[np.float64]


def certified_renyi(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> tuple[Vector, Vector]:
    """Rényi divergence in the worst case over ε0-LDP randomizers: (attained, certified), shape of ``orders``.

    Certified by the binary blanket pair or, where that is smaller, Theorem 5.3.1: at very large orders, where
    few clones decide, the pair's divergence is bounded rather than computed. Attained by ternary or binary
    randomized response; ternary response is summed over the bulk of its outcomes only.

    Args:
        orders: whole α ≥ 2.
        local_epsilon: ε0 in nats.
        cohort: n.
    """
    upper = np.minimum(
        binary_pair(local_epsilon=local_epsilon, cohort=cohort).rdp(orders),
        divergences.first_shuffle_rdp(orders=orders, local_epsilon=local_epsilon, cohort=cohort),
    )
    shuffle_round = ShuffleRound(
        local_epsilon=local_epsilon,
        population=cohort,
        cohort=cohort,
        sampling=Sampling.FULL,
        channel_fixed=True,
    )
    lower = divergences.subsampled_rdp_lower_bound(orders=orders, local_epsilon=local_epsilon, cohort=cohort)
    for mixture in shuffle_round.instances().values():
        law = pair_losses(mixture, kind="lower", resolution=FINE)
        for side in (law, law.reversed()):
            lower = np.maximum(lower, renyi_divergence(side, np.atleast_1d(orders)))
    return np.minimum(lower, upper), upper


def binary_response_delta(*, epsilon: float, local_epsilon: float, cohort: int) -> float:
    """δ of one shuffle of binary randomized response, everybody else holding 0, summed term by term.

    The larger of the two directions.
    """
    ones = np.arange(cohort + 1, dtype=np.float64)
    success = 1 / (math.exp(local_epsilon) + 1)
    log_mass = stats.binom.logpmf(ones, cohort, success)
    odds = (ones * math.exp(local_epsilon) + (cohort - ones) * math.exp(-local_epsilon)) / cohort
    both = (odds - math.exp(epsilon), 1 - math.exp(epsilon) * odds)
    return max(_log_weighted(log_mass, gain) for gain in both)


def vector_curve(
    name: str, role: Role, source: str, orders: Vector, rdp: Callable[[Vector], Vector]
) -> Curve:
    """A Rényi curve, evaluated order by order; None where it says nothing."""
    values: list[float | None] = []
    for order in orders:
        try:
            values.append(float(rdp(np.array([order]))[0]))
        except ValueError:
            values.append(None)
    return Curve(name=name, role=role, source=source, values=tuple(values))


def _log_weighted(log_mass: Vector, gain: Vector) -> float:
    kept = gain > 0
    if not kept.any():
        return 0.0
    return float(math.exp(logsumexp(log_mass[kept] + np.log(gain[kept]))))
