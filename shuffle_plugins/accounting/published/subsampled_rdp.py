"""Girgis, Data, Diggavi 2021, "Rényi Differential Privacy of the Subsampled Shuffle Model" (NeurIPS 2021).

k of n clients are drawn without replacement, each report is ε0-LDP, the k reports are shuffled; neighbours
differ in one client's record (replace-one). Orders are whole numbers from 2 on, as in the theorems.
Everything is computed in logarithms, so neither large orders nor a large ε0 overflow.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from shuffle_plugins.accounting.numerics.binomial import log_probability, log_sum
from shuffle_plugins.accounting.numerics.orders import Vector, whole_orders
from shuffle_plugins.core import checks

_THEOREMS = "the subsampled-shuffle theorems"
_ROUNDING = 1e-9  # relative; gammaln and log_sum stay below it up to order 1e5 and cohort 1e9
_LARGEST_LOCAL_EPSILON = 300.0  # e^2ε0 still fits a double
_WINDOW_SDS = 14.0  # a binomial count further from its mean weighs less than 1e-40


def log_ternary_chi(*, orders: ArrayLike, local_epsilon: float, cohort: int) -> Vector:
    r"""log ζ(α)^α of a shuffle of k reports: Theorem 4, upper bound.

    With k̄ = ⌊(k − 1)/(2e^ε0)⌋ + 1, every ternary \|χ\|^α divergence of mutually adjacent datasets is at most

        4(e^ε0 − 1)²/(k̄e^ε0) + tail                                 at α = 2,
        α·Γ(α/2)·(2(e^2ε0 − 1)²/(k̄e^2ε0))^{α/2} + tail               at α > 2,
        tail = (e^ε0 − e^−ε0)^α · e^{−(k−1)/(8e^ε0)}.

    At α = 2 and a large cohort this is about 8e^ε0 times the value of binary randomized response.

    Args:
        orders: real α ≥ 2, shape (m,).
        cohort: k ≥ 1. The paper states k ≥ 2; at k = 1 the tail alone is a bound.

    Returns:
        Natural logarithms, shape (m,).
    """
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not (np.all(alpha >= 2) and np.all(np.isfinite(alpha))):
        raise ValueError("orders must be finite numbers from 2 on")
    _check(local_epsilon=local_epsilon, population=cohort, cohort=cohort)
    e = math.exp(local_epsilon)
    log_clones = math.log(math.floor((cohort - 1) / (2 * e)) + 1)
    log_spread = _log_e_minus_inverse(local_epsilon)
    log_second = math.log(4) + 2 * math.log(2 * math.sinh(local_epsilon / 2)) - log_clones
    log_higher = np.log(alpha) + gammaln(alpha / 2) + alpha / 2 * (math.log(2) + 2 * log_spread - log_clones)
    tail = alpha * log_spread - (cohort - 1) / (8 * e)
    return np.logaddexp(np.where(alpha == 2, log_second, log_higher), tail)


def subsample_ternary_chi(*, orders: ArrayLike, log_chi: ArrayLike, sampling_rate: float) -> Vector:
    r"""Rényi divergence of a subsampled mechanism from its ternary divergences: Lemma 2, upper bound.

        ε(λ) = log(1 + Σ_{α=2..λ} C(λ, α)·γ^α·ζ(α)^α) / (λ − 1)

    Args:
        orders: whole λ ≥ 2, shape (m,).
        log_chi: log ζ(α)^α at α = 2, 3, …, at least up to the largest order.
        sampling_rate: γ in (0, 1].

    Returns:
        Divergences in nats, shape (m,), rounded up.

    Raises:
        ValueError: if ``log_chi`` is too short.
    """
    whole = whole_orders(orders, theorems=_THEOREMS)
    log_terms = np.asarray(log_chi, dtype=np.float64)
    if log_terms.ndim != 1 or log_terms.size < int(whole.max()) - 1:
        raise ValueError("log_chi must hold every order from 2 to the largest one asked for")
    checks.number("sampling_rate", sampling_rate, above=0, at_most=1)
    alpha = np.arange(2, int(whole.max()) + 1, dtype=np.float64)
    log_terms = log_terms[: alpha.size] + alpha * math.log(sampling_rate) - gammaln(alpha + 1)
    log_factorial = gammaln(np.arange(int(whole.max()) + 1) + 1.0)
    log_sums = [
        log_factorial[order] + log_sum(log_terms[: order - 1] - log_factorial[order - 2 :: -1])
        for order in whole
    ]
    return np.logaddexp(0.0, log_sums) / (whole - 1) * (1 + _ROUNDING)


def subsampled_rdp_bound(*, orders: ArrayLike, local_epsilon: float, population: int, cohort: int) -> Vector:
    """Rényi divergence of one round at most: Theorem 1 (Theorem 4 put into Lemma 2).

    Holds for every ε0-LDP randomizer with discrete outputs and every n, k, ε0. It is stated, and returned,
    without the trivial cap at ε0. At the settings of the paper's figures the composed ε comes out 4 to 8
    times above the exact blanket pair's.

    Args:
        orders: whole λ ≥ 2, shape (m,).
        population: n, the number of clients.
        cohort: k, 1 ≤ k ≤ n.

    Returns:
        Divergences in nats for replace-one neighbours, shape (m,), rounded up.

    Raises:
        ValueError: if an order is not a whole number from 2 on, or another argument is out of range.
    """
    whole = whole_orders(orders, theorems=_THEOREMS)
    _check(local_epsilon=local_epsilon, population=population, cohort=cohort)
    every = np.arange(2, int(whole.max()) + 1)
    log_chi = log_ternary_chi(orders=every, local_epsilon=local_epsilon, cohort=cohort)
    return subsample_ternary_chi(orders=whole, log_chi=log_chi, sampling_rate=cohort / population)


def subsampled_rdp_lower_bound(
    *, orders: ArrayLike, local_epsilon: float, population: int, cohort: int
) -> Vector:
    r"""Rényi divergence of one round at least, in the worst case over randomizers: Theorem 2.

    The exact divergence of binary randomized response when every other client holds 0: with
    h ~ Bin(k, 1/(e^ε0 + 1)),

        ε(λ) = log E[(1 + γ·(e^2ε0 − 1)/(k·e^ε0)·(h − k/(e^ε0 + 1)))^λ] / (λ − 1),

    which the paper writes as a sum of binomial moments. A lower bound on a Rényi curve is **not** a lower
    bound on ε at any δ: converting it with ``epsilon_from_rdp`` gives a number that bounds nothing.

    Arguments and errors are those of :func:`subsampled_rdp_bound`. The divergences are rounded down.
    """
    whole = whole_orders(orders, theorems=_THEOREMS)
    _check(local_epsilon=local_epsilon, population=population, cohort=cohort)
    success = 1.0 / (math.exp(local_epsilon) + 1.0)
    step = 2 * math.sinh(local_epsilon) / population
    log_sums = []
    for order in whole:
        hits = _relevant_hits(trials=cohort, success=success, step=step, order=int(order))
        centred = step * (hits - cohort * success)
        log_sums.append(
            log_sum(
                log_probability(successes=hits, trials=cohort, success=success)
                + _log_power_remainder(centred, order=int(order))
            )
        )
    return np.logaddexp(0.0, log_sums) / (whole - 1) * (1 - _ROUNDING)


def _log_power_remainder(x: Vector, *, order: int) -> Vector:
    """log((1 + x)^λ − 1 − λx) for x > −1, without cancellation or overflow; −∞ at x = 0."""
    exponent = order * np.log1p(x)
    with np.errstate(divide="ignore"):
        small = np.log(np.maximum(np.expm1(np.minimum(exponent, 50.0)) - order * x, 0.0))
        large = exponent + np.log1p(-(1 + order * x) * np.exp(-np.maximum(exponent, 50.0)))
        tiny = np.clip(x, -1e-5 / order, 1e-5 / order)
        series = math.log(order * (order - 1) / 2) + 2 * np.log(np.abs(tiny)) + (order - 2) * tiny / 3
    return np.where(order * np.abs(x) < 1e-5, series, np.where(exponent > 50, large, small))


def _relevant_hits(*, trials: int, success: float, step: float, order: int) -> Vector:
    """Counts that carry E[(1 + x)^λ]: around the mean and around the mode under the weight (1 + x)^λ."""
    mean = trials * success
    low, high = mean, float(trials)
    for _ in range(200):  # the slope of log pmf + λ·log(1 + x) falls from positive at the mean
        middle = 0.5 * (low + high)
        slope = math.log((trials - middle + 0.5) / (middle + 0.5) * success / (1 - success))
        if slope + order * step / (1 + step * (middle - mean)) > 0:
            low = middle
        else:
            high = middle
    reach = _WINDOW_SDS * math.sqrt(trials) / 2 + _WINDOW_SDS
    windows = [
        np.arange(max(0, math.floor(centre - reach)), min(trials, math.ceil(centre + reach)) + 1)
        for centre in (mean, low)
    ]
    return np.unique(np.concatenate(windows)).astype(np.float64)


def _log_e_minus_inverse(local_epsilon: float) -> float:
    """log(e^ε0 − e^−ε0)."""
    return local_epsilon + math.log(-math.expm1(-2 * local_epsilon))


def _check(*, local_epsilon: float, population: int, cohort: int) -> None:
    checks.number("local_epsilon", local_epsilon, above=0, at_most=_LARGEST_LOCAL_EPSILON)
    checks.whole("population", population)
    checks.whole("cohort", cohort, at_most=population)
