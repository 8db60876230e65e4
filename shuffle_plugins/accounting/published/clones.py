"""Feldman, McMillan, Talwar 2021, "Hiding Among the Clones" (arXiv 2012.12803).

Of one shuffle: closed forms (Theorems 3.1, 3.8, 4.1, Corollary 4.2, Proposition 5.3), the pair of Theorem
3.2 with its ε (Appendix F) and Rényi divergence (Section 6.1), the lower bound of Appendix G. Replace-one
neighbours; randomizers may be chosen adaptively along the permutation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from shuffle_plugins.accounting.numerics.binomial import TAIL, binomial_window
from shuffle_plugins.accounting.numerics.search import zero_between
from shuffle_plugins.accounting.pairs.clones import ClonePair
from shuffle_plugins.accounting.pairs.noise import gaussian_profile
from shuffle_plugins.core import checks

_ROUNDING = 1e-9
_LARGEST_STEP = 300.0  # ε0 of a step, up to which e^ε0 fits a double
_ULPS = 8 * np.finfo(np.float64).eps


def clone_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    r"""ε of one shuffle of n reports, each from an ε0-LDP randomizer (Theorem 3.1, replace-one).

        ε = log(1 + (e^ε0 − 1)/(e^ε0 + 1) · (8·√(e^ε0·log(4/δ))/√n + 8·e^ε0/n))

    Holds for randomizers chosen adaptively along the permutation. At n = 10⁴…10⁶ and ε0 = 0.5…4 it lies
    about 4 to 6 times above the exact blanket pair.

    Raises:
        ValueError: if ε0 > log(n/(16·log(2/δ))), where the theorem is silent.
    """
    checks.number("local_epsilon", local_epsilon, above=0)
    checks.whole("cohort", cohort)
    checks.number("delta", delta, above=0, at_most=1)
    reach = math.log(cohort / (16 * math.log(2 / delta)))
    if local_epsilon > reach:
        raise ValueError(
            f"Theorem 3.1 needs local_epsilon <= {reach:.3g} for {cohort} reports at delta={delta:.3g}, "
            f"got {local_epsilon:.3g}"
        )
    e = math.exp(local_epsilon)  # ε0 is below log n here
    spread = 8 * math.sqrt(e * math.log(4 / delta) / cohort) + 8 * e / cohort
    return math.log1p(math.tanh(local_epsilon / 2) * spread)


def local_delta_cost(*, local_epsilon: float, local_delta: float, cohort: int, epsilon: float) -> float:
    r"""What (ε0, δ0) instead of ε0 adds to δ of one shuffle: Theorem 3.8.

        (e^ε + 1)·(1 + e^−ε0/2)·n·δ0

    Every report is replaced by one of a pure ε0-LDP randomizer within a distance (1 + e^−ε0/2)·δ0. The cost
    is paid in every round and grows with n; a Gaussian mechanism's own blanket is far cheaper.
    """
    checks.number("local_epsilon", local_epsilon, above=0)
    checks.whole("cohort", cohort)
    checks.fraction("local_delta", local_delta)
    checks.number("epsilon", epsilon, at_least=0)
    if local_delta == 0:
        return 0.0
    log_cost = float(np.logaddexp(epsilon, 0.0)) + math.log1p(math.exp(-local_epsilon) / 2)
    log_cost += math.log(cohort) + math.log(local_delta)
    return math.exp(min(log_cost, 700.0)) * (1 + _ROUNDING)


def approximate_ldp(
    *, local_epsilon: float, local_delta: float, cohort: int, delta: float
) -> tuple[float, float]:
    """(ε, δ) of one shuffle of reports that are each (ε0, δ0)-LDP: Theorem 3.8.

    ε is that of :func:`clone_bound` at ``delta``; δ is ``delta`` and :func:`local_delta_cost`.

    Returns:
        ε in nats and the total δ, for replace-one neighbours.

    Raises:
        ValueError: outside the regime of :func:`clone_bound`, or if the total
            δ reaches 1, where it promises nothing.
    """
    epsilon = clone_bound(local_epsilon=local_epsilon, cohort=cohort, delta=delta)
    cost = local_delta_cost(
        local_epsilon=local_epsilon, local_delta=local_delta, cohort=cohort, epsilon=epsilon
    )
    if delta + cost >= 1:
        raise ValueError(
            f"Theorem 3.8 promises nothing: local_delta={local_delta:.3g} costs {cost:.3g} of δ over "
            f"{cohort} reports; it must be well below 1/cohort"
        )
    return epsilon, delta + cost


def specific_randomizer(*, distance: float, shared: float, cohort: int, delta: float) -> float:
    r"""ε of one shuffle of a randomizer with a known decomposition: Theorem 4.1.

    If R(x1) = a·Q1 + (1 − a)·Q2, R(x1') = a·Q1' + (1 − a)·Q2 and every other R(x) = p·(Q1 + Q1' + Q2) + rest,
    then for p ≥ 8·log(2/δ)/n

        ε = log(1 + a·(4·√(2·log(4/δ)/(p·n)) + 4/(p·n))).

    The part Q2 that the two records share must be in everybody's report too. (Merging it with the others'
    rests instead is the "variation ratio" shortcut, which is not valid.) The smallest a is the distance in
    total variation of R(x1) and R(x1').

    Raises:
        ValueError: if n·p < 8·log(2/δ), where the theorem is silent.
    """
    checks.number("distance", distance, above=0, at_most=1)
    checks.number("shared", shared, above=0, at_most=1 / 3)
    checks.whole("cohort", cohort)
    checks.number("delta", delta, above=0, at_most=1)
    clones = shared * cohort
    if clones < 8 * math.log(2 / delta):
        raise ValueError(
            f"Theorem 4.1 needs shared·cohort >= {8 * math.log(2 / delta):.4g} at delta={delta:.3g}, "
            f"got {clones:.4g}"
        )
    return math.log1p(distance * (4 * math.sqrt(2 * math.log(4 / delta) / clones) + 4 / clones))


def k_ary_response_bound(*, local_epsilon: float, categories: int, cohort: int, delta: float) -> float:
    r"""ε of one shuffle of K-ary randomized response: Corollary 4.2.

    Theorem 4.1 at a = (e^ε0 − 1)/(e^ε0 + K − 1), p = K/((K + 1)(e^ε0 + K − 1)):

        ε = log(1 + (e^ε0 − 1)·(4·√(2(K+1)·log(4/δ)/((e^ε0 + K − 1)·K·n)) + 4(K+1)/(K·n))).

    2.5 to 5.3 times the exact blanket's ε at K = 10, ε0 = 0.5…4, n = 10⁴…10⁶; falls with K, as that does.
    """
    checks.number("local_epsilon", local_epsilon, above=0)
    checks.whole("cohort", cohort)
    checks.whole("categories", categories, at_least=2)
    # e^ε0 − 1 over e^ε0 + K − 1, and so on, in powers of e^−ε0: nothing overflows
    scale = 1 + (categories - 1) * math.exp(-local_epsilon)
    return specific_randomizer(
        distance=-math.expm1(-local_epsilon) / scale,
        shared=categories / (categories + 1) * math.exp(-local_epsilon) / scale,
        cohort=cohort,
        delta=delta,
    )


def noisy_sgd_pass(*, noise_multiplier: float, records: int, delta: float) -> float:
    r"""ε of one pass of noisy SGD over n records in secret random order, one record a step: Proposition 5.3.

    Each step adds Gaussian noise to a clipped gradient, and is (ε0, δ0)-DP for the exact δ0(ε0) of that
    noise. A pass is a shuffle of n such adaptive reports, so Theorem 3.8 applies: ε is that of
    :func:`clone_bound` at δ/2, for the least ε0 whose δ0 costs at most the other half. The proposition bounds
    δ0 by the classical formula of the Gaussian mechanism instead; its display is lost in the text at hand.

    δ0 must be far below δ/n. With all constants in, this is 1 to 5 times
    :func:`noisy_sgd_with_replacement` at n = 10⁶ and noise multipliers of 2 to 10; it is the smaller one
    where the noise is small (0.78 times at n = 10⁷ and 1.6), as the paper says of large ε0.

    Args:
        noise_multiplier: standard deviation of the noise over the radius to which gradients are clipped.

    Returns:
        ε in nats for replace-one neighbours.

    Raises:
        ValueError: outside the regime of :func:`clone_bound`.
    """
    checks.whole("records", records)
    checks.delta(delta)

    def epsilon(local_epsilon: float) -> float:
        return clone_bound(local_epsilon=local_epsilon, cohort=records, delta=delta / 2)

    def excess(local_epsilon: float) -> float:
        local_delta = _gaussian_delta(local_epsilon, noise_multiplier)
        cost = local_delta_cost(
            local_epsilon=local_epsilon,
            local_delta=local_delta,
            cohort=records,
            epsilon=epsilon(local_epsilon),
        )
        return cost - delta / 2

    checks.number("noise_multiplier", noise_multiplier, above=0)
    largest = math.log(records / (16 * math.log(4 / delta))) * (1 - _ROUNDING)
    if largest <= 0 or excess(largest) > 0:
        raise ValueError(
            f"Proposition 5.3 needs more noise or more than {records} records: no ε0 up to "
            f"{max(largest, 0):.3g}, where Theorem 3.1 ends, has a small enough δ0 at "
            f"noise_multiplier={noise_multiplier:.3g}"
        )
    return epsilon(_least(excess, largest))


def noisy_sgd_with_replacement(*, noise_multiplier: float, records: int, delta: float) -> float:
    r"""ε of n steps of noisy SGD, each on one record drawn with replacement (Bassily, Smith, Thakurta 2014).

    What the clones paper compares Proposition 5.3 with, its (13): amplification by sampling at 1/n, then the
    simple strong composition. With (ε0, δ0) of a step as in :func:`noisy_sgd_pass` and δ0 = δ/2,

        ε1 = log(1 + (e^ε0 − 1)/n),   ε = √(2n·log(2/δ))·ε1 + n·ε1·(e^ε1 − 1).

    At one and the same ε0 it grows as e^ε0, and that of a shuffle as e^(ε0/2). The paper's display is lost in
    the text at hand.

    Args:
        noise_multiplier: standard deviation of the noise over the radius to which gradients are clipped.

    Returns:
        ε in nats for replace-one neighbours.

    Raises:
        ValueError: if no ε0 ≤ 300 has a small enough δ0.
    """
    checks.whole("records", records)
    checks.delta(delta)
    checks.number("noise_multiplier", noise_multiplier, above=0)

    def excess(local_epsilon: float) -> float:
        return _gaussian_delta(local_epsilon, noise_multiplier) - delta / 2

    if excess(_LARGEST_STEP) > 0:
        raise ValueError(
            f"this needs more noise: noise_multiplier={noise_multiplier:.3g} leaves ε0 above 300"
        )
    step = math.log1p(math.expm1(_least(excess, _LARGEST_STEP)) / records)
    return math.sqrt(2 * records * math.log(2 / delta)) * step + records * step * math.expm1(step)


def _gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    """δ(ε) of Gaussian noise for replace-one neighbours, whose gradients differ by twice the radius."""
    losses = np.array([epsilon])
    return min(1.0, float(gaussian_profile(losses, mu=2 / noise_multiplier)[0]) * (1 + _ROUNDING))


def _least(excess: Callable[[float], float], largest: float) -> float:
    """The least ε0 found at which a falling function is not positive; it is not at ``largest``."""
    low, high = 0.0, largest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
    return high


@lru_cache(maxsize=256)
def clone_pair(*, local_epsilon: float, cohort: int) -> ClonePair:
    """The pair of Theorem 3.2: every other report is a clone with probability e^−ε0.

    It dominates one shuffle of any ε0-LDP randomizers, chosen adaptively along the permutation or not. Its
    ε (Appendix F) and its Rényi divergence (Section 6.1), both rounded up, are therefore bounds for all of
    them. The pair's ε lies 12 to 46 % above the binary blanket pair's, which covers adaptive choices too
    (Claim 6 of ``docs/proofs/accounting.md``).
    """
    return ClonePair(
        local_epsilon=local_epsilon,
        cohort=cohort,
        clone_probability=math.exp(-local_epsilon),
    )


def binary_response_lower(*, local_epsilon: float, cohort: int, delta: float) -> float:
    """ε that one shuffle of binary randomized response really costs, everybody else holding 0 (Appendix G).

    The larger of the two directions. A lower bound on any bound for all ε0-LDP randomizers; 3-ary response
    gives a larger one from ε0 = log 2 on.

    Returns:
        ε in nats for replace-one neighbours, rounded down.
    """
    pair = clone_pair(local_epsilon=local_epsilon, cohort=cohort)
    checks.delta(delta)
    success = math.exp(-local_epsilon) / (1 + math.exp(-local_epsilon))
    first, mass = binomial_window(pair.cohort, success)
    ones = first + np.arange(mass.size)
    # the ratio of the two datasets' laws, and the same less one
    zeros = pair.cohort - ones
    ratio = (ones * math.exp(local_epsilon) + zeros * math.exp(-local_epsilon)) / pair.cohort
    excess = 2 * math.sinh(local_epsilon) * (ones - pair.cohort * success) / pair.cohort

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
