"""Feldman, McMillan, Talwar 2021, "Hiding Among the Clones" (arXiv 2012.12803).

Closed forms for one shuffle (Theorems 3.1, 3.8, 4.1, Corollary 4.2), the numerical bound from the pair of
Theorem 3.2 (Appendix F), its Rényi divergence (Section 6.1), the lower bound of Appendix G, and all of it
over T sampled rounds. Replace-one neighbours; randomizers may be chosen adaptively along the permutation.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike

from shuffle_plugins.accounting.numerics.binomial import TAIL, binomial_window
from shuffle_plugins.accounting.numerics.search import zero_between
from shuffle_plugins.accounting.published.arguments import Vector, check_level, check_reports
from shuffle_plugins.accounting.published.clone_pair import ClonePair
from shuffle_plugins.accounting.published.rounds import check_rounds, compose_points, compose_renyi

_ROUNDING = 1e-9
_ULPS = 8 * np.finfo(np.float64).eps


def closed_form(*, local_epsilon: float, num_reports: int, delta: float) -> float:
    r"""ε of one shuffle of n reports, each from an ε0-LDP randomizer (Theorem 3.1, replace-one).

        ε = log(1 + (e^ε0 − 1)/(e^ε0 + 1) · (8·√(e^ε0·log(4/δ))/√n + 8·e^ε0/n))

    Holds for randomizers chosen adaptively along the permutation. At n = 10⁴…10⁶ and ε0 = 0.5…4 it lies
    about 4 to 6 times above the exact blanket pair.

    Args:
        local_epsilon: ε0 > 0 in nats.
        num_reports: n ≥ 1, reports shuffled together.
        delta: in (0, 1].

    Raises:
        ValueError: if an argument is out of range, or ε0 > log(n/(16·log(2/δ))), where the theorem is silent.
    """
    _check_shuffle(local_epsilon=local_epsilon, num_reports=num_reports)
    if not 0 < delta <= 1:
        raise ValueError(f"delta must be in (0, 1], got {delta!r}")
    reach = math.log(num_reports / (16 * math.log(2 / delta)))
    if local_epsilon > reach:
        raise ValueError(
            f"Theorem 3.1 needs local_epsilon <= {reach:.3g} for {num_reports} reports at delta={delta:.3g}, "
            f"got {local_epsilon:.3g}"
        )
    e = math.exp(local_epsilon)  # ε0 is below log n here
    spread = 8 * math.sqrt(e * math.log(4 / delta) / num_reports) + 8 * e / num_reports
    return math.log1p(math.tanh(local_epsilon / 2) * spread)


def local_delta_cost(*, local_epsilon: float, local_delta: float, num_reports: int, epsilon: float) -> float:
    r"""What (ε0, δ0) instead of ε0 adds to δ of one shuffle: Theorem 3.8.

        (e^ε + 1)·(1 + e^−ε0/2)·n·δ0

    Every report is replaced by one of a pure ε0-LDP randomizer within a distance (1 + e^−ε0/2)·δ0. The cost
    is paid in every round and grows with n; a Gaussian mechanism's own blanket is far cheaper.

    Args:
        local_epsilon: ε0 > 0 in nats.
        local_delta: δ0 in [0, 1].
        num_reports: n ≥ 1.
        epsilon: ε ≥ 0 after shuffling, in nats.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check_shuffle(local_epsilon=local_epsilon, num_reports=num_reports)
    if not 0 <= local_delta <= 1:
        raise ValueError(f"local_delta must be in [0, 1], got {local_delta!r}")
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon!r}")
    if local_delta == 0:
        return 0.0
    log_cost = float(np.logaddexp(epsilon, 0.0)) + math.log1p(math.exp(-local_epsilon) / 2)
    log_cost += math.log(num_reports) + math.log(local_delta)
    return math.exp(min(log_cost, 700.0)) * (1 + _ROUNDING)


def approximate_ldp(
    *, local_epsilon: float, local_delta: float, num_reports: int, delta: float
) -> tuple[float, float]:
    """(ε, δ) of one shuffle of reports that are each (ε0, δ0)-LDP: Theorem 3.8.

    ε is that of :func:`closed_form` at ``delta``; δ is ``delta`` and :func:`local_delta_cost`.

    Args:
        local_epsilon: ε0 > 0 in nats.
        local_delta: δ0 in [0, 1].
        num_reports: n ≥ 1.
        delta: what shuffling itself may cost, in (0, 1].

    Returns:
        ε in nats and the total δ, for replace-one neighbours.

    Raises:
        ValueError: if an argument is out of range, outside the regime of :func:`closed_form`, or if the total
            δ reaches 1, where it promises nothing.
    """
    epsilon = closed_form(local_epsilon=local_epsilon, num_reports=num_reports, delta=delta)
    cost = local_delta_cost(
        local_epsilon=local_epsilon, local_delta=local_delta, num_reports=num_reports, epsilon=epsilon
    )
    if delta + cost >= 1:
        raise ValueError(
            f"Theorem 3.8 promises nothing: local_delta={local_delta:.3g} costs {cost:.3g} of δ over "
            f"{num_reports} reports; it must be well below 1/num_reports"
        )
    return epsilon, delta + cost


def specific_randomizer(*, distance: float, shared: float, num_reports: int, delta: float) -> float:
    r"""ε of one shuffle of a randomizer with a known decomposition: Theorem 4.1.

    If R(x1) = a·Q1 + (1 − a)·Q2, R(x1') = a·Q1' + (1 − a)·Q2 and every other R(x) = p·(Q1 + Q1' + Q2) + rest,
    then for p ≥ 8·log(2/δ)/n

        ε = log(1 + a·(4·√(2·log(4/δ)/(p·n)) + 4/(p·n))).

    The part Q2 that the two records share must be in everybody's report too. (Merging it with the others'
    rests instead is the "variation ratio" shortcut, which is not valid.) The smallest a is the distance in
    total variation of R(x1) and R(x1').

    Args:
        distance: a in (0, 1].
        shared: p in (0, 1/3].
        num_reports: n ≥ 1.
        delta: in (0, 1].

    Returns:
        ε in nats for replace-one neighbours.

    Raises:
        ValueError: if an argument is out of range, or n·p < 8·log(2/δ), where the theorem is silent.
    """
    if not 0 < distance <= 1:
        raise ValueError(f"distance must be in (0, 1], got {distance!r}")
    if not 0 < shared <= 1 / 3:
        raise ValueError(f"shared must be in (0, 1/3], got {shared!r}")
    check_reports(num_reports)
    if not 0 < delta <= 1:
        raise ValueError(f"delta must be in (0, 1], got {delta!r}")
    clones = shared * num_reports
    if clones < 8 * math.log(2 / delta):
        raise ValueError(
            f"Theorem 4.1 needs shared·num_reports >= {8 * math.log(2 / delta):.4g} at delta={delta:.3g}, "
            f"got {clones:.4g}"
        )
    return math.log1p(distance * (4 * math.sqrt(2 * math.log(4 / delta) / clones) + 4 / clones))


def k_ary_response(*, local_epsilon: float, categories: int, num_reports: int, delta: float) -> float:
    r"""ε of one shuffle of K-ary randomized response: Corollary 4.2.

    Theorem 4.1 at a = (e^ε0 − 1)/(e^ε0 + K − 1), p = K/((K + 1)(e^ε0 + K − 1)):

        ε = log(1 + (e^ε0 − 1)·(4·√(2(K+1)·log(4/δ)/((e^ε0 + K − 1)·K·n)) + 4(K+1)/(K·n))).

    2.5 to 5.3 times the exact blanket's ε at K = 10, ε0 = 0.5…4, n = 10⁴…10⁶; falls with K, as that does.

    Args:
        local_epsilon: ε0 > 0 in nats.
        categories: K ≥ 2.
        num_reports: n ≥ 1.
        delta: in (0, 1].

    Returns:
        ε in nats for replace-one neighbours.

    Raises:
        ValueError: if an argument is out of range or outside the regime of Theorem 4.1.
    """
    _check_shuffle(local_epsilon=local_epsilon, num_reports=num_reports)
    if categories < 2:
        raise ValueError(f"categories must be at least 2, got {categories!r}")
    # e^ε0 − 1 over e^ε0 + K − 1, and so on, in powers of e^−ε0: nothing overflows
    scale = 1 + (categories - 1) * math.exp(-local_epsilon)
    return specific_randomizer(
        distance=-math.expm1(-local_epsilon) / scale,
        shared=categories / (categories + 1) * math.exp(-local_epsilon) / scale,
        num_reports=num_reports,
        delta=delta,
    )


@lru_cache(maxsize=256)
def clone_pair(*, local_epsilon: float, num_reports: int) -> ClonePair:
    """The pair of Theorem 3.2: every other report is a clone with probability e^−ε0.

    It dominates one shuffle of any ε0-LDP randomizers, chosen adaptively along the permutation or not.

    Args:
        local_epsilon: ε0 in (0, 300], nats.
        num_reports: n in [1, 1e15].

    Raises:
        ValueError: if an argument is out of range.
    """
    return ClonePair(
        local_epsilon=local_epsilon,
        num_reports=num_reports,
        clone_probability=math.exp(-local_epsilon),
    )


def numerical(*, local_epsilon: float, num_reports: int, delta: float) -> tuple[float, float]:
    """ε of one shuffle from the pair of Theorem 3.2, evaluated from below and from above (Appendix F).

    The upper value is a bound for every ε0-LDP randomizer. The lower value bounds the pair's ε, not any
    mechanism's: the two together are the error of the numerics, a relative 3e-5 at most. The pair's ε lies
    12 to 46 % above the binary blanket pair's, which covers adaptive choices too (Claim 6 of
    ``docs/proofs/accounting.md``).

    Args:
        local_epsilon: ε0 in (0, 300], nats.
        num_reports: n in [1, 1e15].
        delta: in (0, 1].

    Returns:
        (lower, upper) in nats for replace-one neighbours, at most ε0.

    Raises:
        ValueError: if an argument is out of range.
    """
    return clone_pair(local_epsilon=local_epsilon, num_reports=num_reports).epsilon(delta)


def rdp(*, orders: ArrayLike, local_epsilon: float, num_reports: int) -> Vector:
    """Rényi divergence of one shuffle at real orders, from the pair of Theorem 3.2 (Section 6.1).

    Args:
        orders: real α > 1, shape (m,).
        local_epsilon: ε0 in (0, 300], nats.
        num_reports: n in [1, 1e15].

    Returns:
        Divergences in nats for replace-one neighbours, at most ε0, rounded up; shape (m,).

    Raises:
        ValueError: if an argument is out of range.
    """
    return clone_pair(local_epsilon=local_epsilon, num_reports=num_reports).rdp(orders)


def binary_response_lower(*, local_epsilon: float, num_reports: int, delta: float) -> float:
    """ε that one shuffle of binary randomized response really costs, everybody else holding 0 (Appendix G).

    The larger of the two directions. A lower bound on any bound for all ε0-LDP randomizers; 3-ary response
    gives a larger one from ε0 = log 2 on.

    Args:
        local_epsilon: ε0 in (0, 300], nats.
        num_reports: n in [1, 1e15].
        delta: in (0, 1).

    Returns:
        ε in nats for replace-one neighbours, rounded down.

    Raises:
        ValueError: if an argument is out of range.
    """
    pair = clone_pair(local_epsilon=local_epsilon, num_reports=num_reports)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta!r}")
    success = math.exp(-local_epsilon) / (1 + math.exp(-local_epsilon))
    first, mass = binomial_window(pair.num_reports, success)
    ones = first + np.arange(mass.size)
    # the ratio of the two datasets' laws, and the same less one
    zeros = pair.num_reports - ones
    ratio = (ones * math.exp(local_epsilon) + zeros * math.exp(-local_epsilon)) / pair.num_reports
    excess = 2 * math.sinh(local_epsilon) * (ones - pair.num_reports * success) / pair.num_reports

    def more(epsilon: float, *, reverse: bool) -> float:
        price = math.expm1(epsilon) * (ratio if reverse else 1.0)
        gain = (-excess if reverse else excess) - price - _ULPS * (np.abs(excess) + price)
        value = float((mass * np.maximum(gain, 0.0)).sum())
        return value * (1 - _ROUNDING) - TAIL * math.exp(epsilon) - delta

    found = 0.0
    for reverse in (False, True):
        spent = partial(more, reverse=reverse)
        if spent(0.0) <= 0:
            continue
        root = zero_between(spent, 0.0, local_epsilon, xtol=1e-300, rtol=1e-12)
        step = 1e-11
        while spent(root * (1 - step)) < 0 and step < 1:
            step *= 8
        found = max(found, root * (1 - min(step, 1.0)))
    return found


def epsilon(*, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float) -> float:
    """Theorem 3.1 on the cohort, amplified by k-of-n sampling, composed over T rounds by strong composition.

    This is the comparison curve that the subsampled-shuffle paper draws. Half of δ pays for composition, the
    other half is shared by the rounds. Its looseness grows with T: it carries one (ε, δ) point per round.

    Args:
        local_epsilon: ε0 > 0 in nats.
        population: n.
        cohort: k ≤ n, reports shuffled together; k = n is full participation.
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
    """As :func:`epsilon`, from the numerical bound on one shuffle instead of the closed form.

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
        shuffled=lambda shuffle_delta: clone_pair(
            local_epsilon=local_epsilon, num_reports=cohort
        ).upper_epsilon(shuffle_delta),
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        num_steps=num_steps,
        delta=delta,
    )


def rdp_epsilon(*, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float) -> float:
    """ε of T rounds: the pair's Rényi curve, sampling by Wang–Balle–Kasiviswanathan, sum, conversion.

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
        curve=clone_pair(local_epsilon=local_epsilon, num_reports=cohort).rdp,
        local_epsilon=local_epsilon,
        population=population,
        cohort=cohort,
        num_steps=num_steps,
        delta=delta,
    )


def _check_shuffle(*, local_epsilon: float, num_reports: int) -> None:
    check_level(local_epsilon)
    check_reports(num_reports)
