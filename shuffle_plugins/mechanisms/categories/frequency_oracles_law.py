"""Blankets of the standard frequency oracles: mechanisms that report one of K categories.

Every output of these has just two likelihoods over the categories, in the ratio e^ε0, so a blanket report
weighs 1 or e^ε0 for each record. Any two categories have the same law, so one pair of records is the worst at
every ε.

Sources: Kairouz, Bonawitz, Ramage 2016 (k-RR); Acharya, Sun, Zhang 2019 (Hadamard response); Ye, Barg 2018
and Wang et al. 2016 (subset selection); Erlingsson, Pihur, Korolova 2014 (RAPPOR, one round); Wang, Blocki,
Li, Jha 2017 (optimal unary encoding, local hashing). Masses are derived in ``docs/proofs/accounting.md``.
"""

from __future__ import annotations

import math

from shuffle_plugins.accounting.pairs.blanket import Blanket
from shuffle_plugins.core import checks


def k_ary_response(*, local_epsilon: float, categories: int) -> Blanket:
    """K-ary randomized response: the true category with odds e^ε0 over any other. K = 2 is one bit.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(categories, at_least=2)
    if categories == 2:
        return Blanket.bit(local_epsilon)
    size = math.exp(checks.local_epsilon(local_epsilon)) + categories - 1
    return Blanket(
        local_epsilon=local_epsilon, differing=1 / size, low=(categories - 2) / size, outside=1 / size
    )


def hadamard_response(*, local_epsilon: float) -> Blanket:
    """Hadamard response: a row of the code half of which is likely for each category, any two sharing half.

    Raises:
        ValueError: if ε0 is out of range.
    """
    share = 1 / (2 * (math.exp(checks.local_epsilon(local_epsilon)) + 1))
    return Blanket(local_epsilon=local_epsilon, differing=share, low=share, high=share)


def subset_selection(*, local_epsilon: float, categories: int, size: int | None = None) -> Blanket:
    """Subset selection: a set of ``size`` categories, likelier by e^ε0 if it has the true one.

    Args:
        local_epsilon: ε0 in nats.
        categories: K ≥ 3.
        size: categories in a report, in [1, K − 1]; the best for estimation, about K/(e^ε0 + 1), by default.

    Raises:
        ValueError: if an argument is out of range.
    """
    e = math.exp(checks.local_epsilon(local_epsilon))
    _check(categories, at_least=3)
    if size is None:
        size = min(max(round(categories / (e + 1)), 1), categories - 1)
    if type(size) is not int or not 1 <= size < categories:
        raise ValueError(f"a report's size must be in [1, {categories - 1}], got {size!r}")
    k, s = categories, size
    density = 1 / (1 + (e - 1) * s / k)
    one = s * (k - s) / (k * (k - 1))
    return Blanket(
        local_epsilon=local_epsilon,
        differing=density * one,
        low=density * (k - s) * (k - s - 1) / (k * (k - 1)),
        high=density * s * (s - 1) / (k * (k - 1)),
        outside=density * one * min((k - s - 1) / (k - 2), 1.0),
    )


def rappor(*, local_epsilon: float, categories: int) -> Blanket:
    """Symmetric unary encoding: K bits, each flipped with odds e^(−ε0/2).

    Raises:
        ValueError: if an argument is out of range.
    """
    flipped = 1 / (math.exp(checks.local_epsilon(local_epsilon) / 2) + 1)
    return _unary(local_epsilon, categories, likely=flipped, missed=flipped)


def optimal_unary_encoding(*, local_epsilon: float, categories: int) -> Blanket:
    """Optimal unary encoding: the true bit is a fair coin, every other one is set with odds e^−ε0.

    Raises:
        ValueError: if an argument is out of range.
    """
    likely = 1 / (math.exp(checks.local_epsilon(local_epsilon)) + 1)
    return _unary(local_epsilon, categories, likely=likely, missed=0.5)


def local_hashing(*, local_epsilon: float, buckets: int | None = None) -> Blanket:
    """Local hashing: a public random hash of the category, as K-ary response over its buckets.

    Args:
        local_epsilon: ε0 in nats.
        buckets: g ≥ 2; the best for estimation, about e^ε0 + 1, by default. Hash values of any three
            categories are uniform and independent.

    Raises:
        ValueError: if an argument is out of range.
    """
    e = math.exp(checks.local_epsilon(local_epsilon))
    g = max(round(min(e, 1e9)) + 1, 2) if buckets is None else buckets
    _check(g, at_least=2)
    size = e + g - 1
    apart = 1 - 1 / g
    return Blanket(
        local_epsilon=local_epsilon,
        differing=apart / size,
        low=apart * (g - 2) / size + (g - 1) / (g * size),
        high=1 / (g * size),
        outside=apart * apart / size,
    )


def _unary(local_epsilon: float, categories: int, *, likely: float, missed: float) -> Blanket:
    """K bits: the true one is unset with probability ``missed``, another one set with probability ``likely``.

    A category with its bit unset makes a report e^ε0 times less likely than one with its bit set, so the
    blanket is the report's probability as if nobody's bit were the true one, times missed/(1 − likely); only
    a report of all ones has none that is unlikely.
    """
    _check(categories, at_least=3)
    unset = 1 - likely
    scale = missed / unset
    all_ones = scale * likely**categories
    return Blanket(
        local_epsilon=local_epsilon,
        differing=scale * likely * unset,
        low=scale * unset * unset + all_ones * math.exp(local_epsilon),
        high=scale * likely * likely - all_ones,
        outside=scale * likely * unset * unset,
    )


def _check(categories: int, *, at_least: int) -> None:
    if type(categories) is not int or categories < at_least:
        raise ValueError(f"categories must be a whole number, at least {at_least}, got {categories!r}")
