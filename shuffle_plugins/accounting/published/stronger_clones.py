r"""Feldman, McMillan, Talwar 2022, "Stronger Privacy Amplification by Shuffling" (arXiv 2208.04591).

**Erratum.** The paper's own errata withdraws Theorems 3.1, 3.2, 5.2 and Corollary 4.3 for general (adaptive)
randomizers: the proof of Lemma 3.5 is wrong, and the bounds are claimed for a restricted class only.

**What carries them here.** Claim 2 of ``docs/proofs/accounting.md`` proves that the pair of the paper's
numerical bound, clones with probability 2/(e^ε0 + 1), dominates one shuffle of *any* ε0-LDP randomizer that
is the same for all clients of the round: the setting of this package. The closed form holds there because it
lies above that pair, which the tests check on a grid of settings. Claim 6 proves the same for randomizers
that follow from earlier reports of the round, by an argument of its own: the paper's lemma stays wrong.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from shuffle_plugins.accounting.published.arguments import Vector, check_level, check_reports, real_orders
from shuffle_plugins.accounting.published.clone_pair import ClonePair
from shuffle_plugins.accounting.published.rounds import check_rounds, compose_points, compose_renyi


def closed_form(*, local_epsilon: float, num_reports: int, delta: float) -> float:
    r"""ε of one shuffle of n reports, each from the same ε0-LDP randomizer (Theorem 3.2, replace-one).

        ε = log(1 + (e^ε0 − 1)·(4·√(2·log(4/δ)/((e^ε0 + 1)·n)) + 4/n))

    At n = 10⁴…10⁶ and ε0 = 0.5…4 it lies 2.3 to 4.7 times above the pair it bounds.

    Args:
        local_epsilon: ε0 > 0 in nats.
        num_reports: n ≥ 1, reports shuffled together.
        delta: in (0, 1].

    Returns:
        ε in nats for replace-one neighbours.

    Raises:
        ValueError: if an argument is out of range, or ε0 > log(n/(8·log(2/δ)) − 1), where the theorem is
            silent.
    """
    check_level(local_epsilon)
    check_reports(num_reports)
    if not 0 < delta <= 1:
        raise ValueError(f"delta must be in (0, 1], got {delta!r}")
    room = num_reports / (8 * math.log(2 / delta)) - 1
    reach = math.log(room) if room > 0 else -math.inf
    if local_epsilon > reach:
        raise ValueError(
            f"Theorem 3.2 needs local_epsilon <= {reach:.3g} for {num_reports} reports at delta={delta:.3g}, "
            f"got {local_epsilon:.3g}"
        )
    e = math.exp(local_epsilon)  # ε0 is below log n here
    spread = 4 * math.sqrt(2 * math.log(4 / delta) / ((e + 1) * num_reports)) + 4 / num_reports
    return math.log1p(math.expm1(local_epsilon) * spread)


def renyi_closed_form(*, orders: ArrayLike, local_epsilon: float, num_reports: int) -> Vector:
    r"""Rényi divergence of one shuffle at most: Corollary 4.3, ε(α) = 48·α·(e^ε0 − 1)²/(e^ε0·n).

    At small divergences it is 48(1 + e^−ε0) times the pair's own.

    Args:
        orders: real α > 1, below n/(16·ε0·e^ε0), shape (m,).
        local_epsilon: ε0 > 0 in nats.
        num_reports: n ≥ 1.

    Returns:
        Divergences in nats for replace-one neighbours, shape (m,).

    Raises:
        ValueError: if an argument is out of range, or an order outside the corollary's regime.
    """
    pair = binary_pair(local_epsilon=local_epsilon, num_reports=num_reports)
    alpha = real_orders(orders)
    edge = pair.num_reports * math.exp(-local_epsilon) / (16 * local_epsilon)
    if np.any(alpha >= edge):
        raise ValueError(f"Corollary 4.3 needs orders below {edge:.4g}, got {alpha.max():.4g}")
    return 48 * alpha * (2 * math.sinh(local_epsilon / 2)) ** 2 / pair.num_reports


@lru_cache(maxsize=256)
def binary_pair(*, local_epsilon: float, num_reports: int) -> ClonePair:
    """The paper's pair: every other report is a clone with probability 2/(e^ε0 + 1).

    It is the blanket pair of binary randomized response, the generic pair of this package at full
    participation.

    Args:
        local_epsilon: ε0 in (0, 300], nats.
        num_reports: n in [1, 1e15].

    Raises:
        ValueError: if an argument is out of range.
    """
    return ClonePair(
        local_epsilon=local_epsilon,
        num_reports=num_reports,
        clone_probability=2 * math.exp(-local_epsilon) / (1 + math.exp(-local_epsilon)),
    )


def numerical(*, local_epsilon: float, num_reports: int, delta: float) -> tuple[float, float]:
    """ε of one shuffle from the binary pair, evaluated from below and from above.

    The upper value is a bound for every ε0-LDP randomizer shared by the round's clients; 1 to 19 % above the
    best mechanism known (3-ary response). The lower value bounds the pair's ε, not any mechanism's.

    Args:
        local_epsilon: ε0 in (0, 300], nats.
        num_reports: n in [1, 1e15].
        delta: in (0, 1].

    Returns:
        (lower, upper) in nats for replace-one neighbours, at most ε0.

    Raises:
        ValueError: if an argument is out of range.
    """
    return binary_pair(local_epsilon=local_epsilon, num_reports=num_reports).epsilon(delta)


def rdp(*, orders: ArrayLike, local_epsilon: float, num_reports: int) -> Vector:
    """Rényi divergence of one shuffle at real orders, from the binary pair.

    Args:
        orders: real α > 1, shape (m,).
        local_epsilon: ε0 in (0, 300], nats.
        num_reports: n in [1, 1e15].

    Returns:
        Divergences in nats for replace-one neighbours, at most ε0, rounded up; shape (m,).

    Raises:
        ValueError: if an argument is out of range.
    """
    return binary_pair(local_epsilon=local_epsilon, num_reports=num_reports).rdp(orders)


def epsilon(*, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float) -> float:
    """Theorem 3.2 on the cohort, amplified by k-of-n sampling, composed over T rounds by strong composition.

    Args:
        local_epsilon: ε0 > 0 in nats.
        population: n.
        cohort: k ≤ n.
        num_steps: T ≥ 1.
        delta: total δ in (0, 1).

    Returns:
        ε in nats for replace-one neighbours, never above T·ε0.

    Raises:
        ValueError: if an argument is out of range, or outside the regime of :func:`closed_form`.
    """
    return compose_points(
        shuffled=lambda shuffle_delta: closed_form(
            local_epsilon=local_epsilon, num_reports=cohort, delta=shuffle_delta
        ),
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        num_steps=num_steps,
        delta=delta,
    )


def numerical_epsilon(
    *, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float
) -> float:
    """As :func:`epsilon`, from the binary pair's own ε instead of the closed form.

    Args:
        local_epsilon: ε0 in (0, 300], nats.
        population: n.
        cohort: k ≤ n.
        num_steps: T ≥ 1.
        delta: total δ in (0, 1).

    Returns:
        ε in nats for replace-one neighbours, never above T·ε0.

    Raises:
        ValueError: if an argument is out of range.
    """
    return compose_points(
        shuffled=lambda shuffle_delta: binary_pair(
            local_epsilon=local_epsilon, num_reports=cohort
        ).upper_epsilon(shuffle_delta),
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        num_steps=num_steps,
        delta=delta,
    )


def rdp_epsilon(*, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float) -> float:
    """ε of T rounds: the binary pair's Rényi curve, sampling by Wang–Balle–Kasiviswanathan, sum, conversion.

    Args:
        local_epsilon: ε0 in (0, 300], nats.
        population: n.
        cohort: k ≤ n.
        num_steps: T ≥ 1.
        delta: in (0, 1).

    Returns:
        ε in nats for replace-one neighbours, never above T·ε0.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_rounds(
        local_epsilon=local_epsilon, population=population, cohort=cohort, num_steps=num_steps, delta=delta
    )
    return compose_renyi(
        curve=binary_pair(local_epsilon=local_epsilon, num_reports=cohort).rdp,
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        num_steps=num_steps,
        delta=delta,
    )
