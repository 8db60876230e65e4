"""Privacy blankets of the frequency oracles, mechanisms that report one of K categories. Torch-free.

Every output of these has just two likelihoods over the categories, in the ratio e^ε0, so a blanket report
weighs 1 or e^ε0 for each record. Any two categories have the same law, so one pair of records is the worst at
every ε.

``ideal_…`` are the blankets of the mechanisms as published, in real arithmetic. ``…_blanket`` are those of
the mechanisms as built here, whose probabilities are multiples of 2**-62. Where these follow ε0 the two
agree. Elsewhere a mechanism is one of a smaller ε0, that is a post-processing of the one at ε0 (its report is
further mixed with a uniform one, its bits are further flipped), so the blanket at ε0 holds as a bound.

Sources: Kairouz, Bonawitz, Ramage 2016 (k-RR); Acharya, Sun, Zhang 2019 (Hadamard response); Ye, Barg 2018
and Wang et al. 2016 (subset selection); Erlingsson, Pihur, Korolova 2014 (RAPPOR, one round); Wang, Blocki,
Li, Jha 2017 (optimal unary encoding, local hashing). Masses are derived in ``docs/proofs/accounting.md``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TypedDict

from shuffle_plugins.accounting import Atoms, Blanket, RecordTypes, two_level_atoms
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.categories.mixture_oracle_law import Mixture, follows, odds_below
from shuffle_plugins.randomness import WHOLE

_WIDEST_HASH = 10**9  # beyond, more buckets gain nothing that float64 shows
_NO_EDGE = 1 - 1e-6  # nearer to 1, the spread masses lose their digits


def flip_threshold(local_epsilon: float | Fraction) -> int:
    r"""The smallest p in units of 2**-62 with :math:`(1-p)/p \le e^{ε_0}`."""
    return math.ceil(WHOLE / (odds_below(local_epsilon) + 1))


def subset_size(*, local_epsilon: float, categories: int) -> int:
    """The best number of categories in a report of subset selection, about K/(e^ε0 + 1)."""
    return min(max(round(categories / (math.exp(local_epsilon) + 1)), 1), categories - 1)


def hash_range(local_epsilon: float) -> int:
    """The best number of buckets of local hashing, about e^ε0 + 1, up to a billion."""
    return max(round(min(math.exp(local_epsilon), _WIDEST_HASH)) + 1, 2)


def ideal_k_ary_response(*, local_epsilon: float, categories: int) -> Blanket:
    """K-ary randomized response: the true category with odds e^ε0 over any other. K = 2 is one bit.

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.whole("categories", categories, at_least=2)
    if categories == 2:
        return Blanket.bit(local_epsilon)
    size = math.exp(checks.local_epsilon(local_epsilon)) + categories - 1
    return Blanket(
        local_epsilon=local_epsilon, differing=1 / size, low=(categories - 2) / size, outside=1 / size
    )


def ideal_hadamard_response(*, local_epsilon: float) -> Blanket:
    """Hadamard response: a row of the code half of which is likely for each category, any two sharing half.

    The product of two rows of the code is a row too, unlikely wherever just one of the two is likely: a third
    record of that row, as there is for rows 1 and 2, hides nobody.

    Raises:
        ValueError: if ε0 is out of range.
    """
    share = 1 / (2 * (math.exp(checks.local_epsilon(local_epsilon)) + 1))
    return Blanket(local_epsilon=local_epsilon, differing=share, low=share, high=share, outside=share)


def ideal_subset_selection(*, local_epsilon: float, categories: int, size: int | None = None) -> Blanket:
    """Subset selection: a set of ``size`` categories, likelier by e^ε0 if it has the true one.

    Args:
        local_epsilon: ε0 in nats.
        categories: K ≥ 3.
        size: categories in a report, in [1, K − 1]; the best for estimation, about K/(e^ε0 + 1), by default.

    Raises:
        ValueError: if an argument is out of range.
    """
    e = math.exp(checks.local_epsilon(local_epsilon))
    checks.whole("categories", categories, at_least=3)
    if size is None:
        size = subset_size(local_epsilon=local_epsilon, categories=categories)
    k, s = categories, checks.whole("size", size, at_most=categories - 1)
    density = 1 / (1 + (e - 1) * s / k)
    one = s * (k - s) / (k * (k - 1))
    return Blanket(
        local_epsilon=local_epsilon,
        differing=density * one,
        low=density * (k - s) * (k - s - 1) / (k * (k - 1)),
        high=density * s * (s - 1) / (k * (k - 1)),
        outside=density * one * min((k - s - 1) / (k - 2), 1.0),
        **_any_three(local_epsilon, lambda a, b, c: density * _held(k, s, a + b + c)),
    )


def _held(categories: int, size: int, wanted: int) -> float:
    """Probability that a random subset has the wanted ones of three categories, and not the others."""
    chance = 1.0
    for i in range(3):  # the wanted ones first
        left = categories - i
        taken = size - min(i, wanted)
        chance *= taken / left if i < wanted else (left - taken) / left
    return max(chance, 0.0)


class _Crowds(TypedDict):
    """What the other clients' reports make of a round, from below and from above."""

    instances: tuple[Atoms, ...]
    others: RecordTypes


def _any_three(local_epsilon: float, share: Callable[[int, int, int], float]) -> _Crowds:
    """Any three categories are alike; ``share`` of the blanket is likely for each of them, or not.

    Two of them are x and x'. In an instance everybody else holds the third.
    """
    shares = {kinds: share(*kinds) for kinds in itertools.product((0, 1), repeat=3)}
    return {
        "instances": (two_level_atoms(local_epsilon=local_epsilon, shares=shares),),
        "others": RecordTypes.two_level(local_epsilon=local_epsilon, shares=shares),
    }


def ideal_rappor(*, local_epsilon: float, categories: int) -> Blanket:
    """Symmetric unary encoding: K bits, each flipped with odds e^(−ε0/2).

    Raises:
        ValueError: if an argument is out of range.
    """
    flipped = 1 / (math.exp(checks.local_epsilon(local_epsilon) / 2) + 1)
    return _unary(local_epsilon, categories, likely=flipped, missed=flipped)


def ideal_optimal_unary_encoding(*, local_epsilon: float, categories: int) -> Blanket:
    """Optimal unary encoding: the true bit is a fair coin, every other one is set with odds e^−ε0.

    Raises:
        ValueError: if an argument is out of range.
    """
    likely = 1 / (math.exp(checks.local_epsilon(local_epsilon)) + 1)
    return _unary(local_epsilon, categories, likely=likely, missed=0.5)


def ideal_local_hashing(*, local_epsilon: float, buckets: int | None = None) -> Blanket:
    """Local hashing: a public random hash of the category, as K-ary response over its buckets.

    Args:
        local_epsilon: ε0 in nats.
        buckets: g ≥ 2; the best for estimation, about e^ε0 + 1, by default. Hash values of any three
            categories are uniform and independent.

    Raises:
        ValueError: if an argument is out of range.
    """
    e = math.exp(checks.local_epsilon(local_epsilon))
    g = hash_range(local_epsilon) if buckets is None else checks.whole("buckets", buckets, at_least=2)
    size = e + g - 1
    apart = 1 - 1 / g
    return Blanket(
        local_epsilon=local_epsilon,
        differing=apart / size,
        low=apart * (g - 2) / size + (g - 1) / (g * size),
        high=1 / (g * size),
        outside=apart * apart / size,
        **_any_three(
            local_epsilon, lambda a, b, c: g / size * math.prod(1 / g if hit else apart for hit in (a, b, c))
        ),
    )


def _unary(local_epsilon: float, categories: int, *, likely: float, missed: float) -> Blanket:
    """K bits: the true one is unset with probability ``missed``, another one set with probability ``likely``.

    A category with its bit unset makes a report e^ε0 times less likely than one with its bit set, so the
    blanket is the report's probability as if nobody's bit were the true one, times missed/(1 − likely); only
    a report of all ones has none that is unlikely.
    """
    checks.whole("categories", categories, at_least=3)
    unset = 1 - likely
    scale = missed / unset
    all_ones = scale * likely**categories
    return Blanket(
        local_epsilon=local_epsilon,
        differing=scale * likely * unset,
        low=scale * unset * unset + all_ones * math.exp(local_epsilon),
        high=scale * likely * likely - all_ones,
        outside=scale * likely * unset * unset,
        **_any_three(
            local_epsilon, lambda a, b, c: scale * math.prod(likely if bit else unset for bit in (a, b, c))
        ),
    )


def k_rr_blanket(*, local_epsilon: float, categories: int) -> Blanket:
    """K-ary randomized response.

    Raises:
        ValueError: if an argument is out of range.
    """
    mixture = Mixture.of(local_epsilon, share=Fraction(1, checks.categories(categories)))
    return _rounded(ideal_k_ary_response(local_epsilon=local_epsilon, categories=categories), mixture.odds)


def one_bit_hadamard_blanket(*, local_epsilon: float, categories: int) -> Blanket:
    """One-bit Hadamard response with all the randomness that helps; its group is part of the report.

    It has the masses of Hadamard response, but either answer of a group is likely for any third record. Of a
    group that is drawn at random, and either answer, any three categories make any of the 8 combinations
    equally likely, also if one of the three rows is the product of the others.

    Raises:
        ValueError: if an argument is out of range.
    """
    law = hadamard_blanket(local_epsilon=local_epsilon, categories=categories)
    eighths = dict.fromkeys(itertools.product((0, 1), repeat=3), law.mass / 8)
    return replace(
        law, outside=0.0, others=RecordTypes.two_level(local_epsilon=local_epsilon, shares=eighths)
    )


def hadamard_blanket(*, local_epsilon: float, categories: int) -> Blanket:
    """Hadamard response.

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.categories(categories)
    mixture = Mixture.of(local_epsilon, share=Fraction(1, 2))
    law = ideal_hadamard_response(local_epsilon=local_epsilon)
    return _rounded(_of_two(law, categories), mixture.odds)


def limited_hadamard_blanket(*, local_epsilon: float, yes: int, no: int) -> Blanket:
    """One-bit Hadamard response with answers less random than ε0 allows.

    Two categories disagree in half of the groups, either way in a quarter, and agree on yes and on no in a
    quarter each: all pairs have the same law. Under the blanket, of mass p + 1 - q, the answer 1 has
    probability p and weighs e^ε0 for who means yes; the answer 0 has 1 - q and weighs r = (1 - p)/(1 - q) <
    e^ε0 for who means no. The atoms (r, r) are spread over (1, 1) and (e^ε0, e^ε0) at equal mean: an upper
    bound.

    Args:
        local_epsilon: ε0 in nats.
        yes: q, probability of a 1 where the answer is yes, in units of 2**-62; at most half.
        no: p, where it is no; at least q·e^-ε0.

    Raises:
        ValueError: if ε0 is out of range.
    """
    one, zero = no / WHOLE / 4, (WHOLE - yes) / WHOLE / 4
    excess = (yes - no) / (WHOLE - yes)
    spread = excess / math.expm1(checks.local_epsilon(local_epsilon))
    # Everybody else holds x'. A quarter of the groups say yes to x alone, a quarter to x' alone.
    gain, loss = (yes - no) / no, (no - yes) / yes
    quarters = (
        (gain, 0.0, no / WHOLE / 4),
        (-excess / (1 + excess), 0.0, (WHOLE - no) / WHOLE / 4),
        (loss, 0.0, yes / WHOLE / 4),
        (excess, 0.0, zero),
        (0.0, 0.0, 0.5),
    )
    if spread > _NO_EDGE:
        return replace(Blanket.generic(local_epsilon, exact=False), instances=(quarters,))
    return Blanket(
        local_epsilon=local_epsilon,
        differing=one,
        low=one + zero * (2 - spread),
        high=one + zero * spread,
        edges=((1 + excess, zero),),
        exact=False,
        instances=(quarters,),
    )


def subset_blanket(*, local_epsilon: float, categories: int, size: int | None = None) -> Blanket:
    """Subset selection. Of two categories it is randomized response.

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.local_epsilon(local_epsilon)
    size = size or subset_size(local_epsilon=local_epsilon, categories=checks.categories(categories))
    mixture = Mixture.of(local_epsilon, share=Fraction(size, categories))
    if categories == 2:
        return _rounded(Blanket.generic(local_epsilon), mixture.odds)
    law = ideal_subset_selection(local_epsilon=local_epsilon, categories=categories, size=size)
    return _rounded(law, mixture.odds)


def rappor_blanket(*, local_epsilon: float, categories: int) -> Blanket:
    """Symmetric unary encoding.

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.local_epsilon(local_epsilon)
    flipped = flip_threshold(Fraction(local_epsilon) / 2)
    law = ideal_rappor(local_epsilon=local_epsilon, categories=max(checks.categories(categories), 3))
    return _rounded(_of_two(law, categories), Fraction(WHOLE - flipped, flipped) ** 2)


def oue_blanket(*, local_epsilon: float, categories: int) -> Blanket:
    """Optimal unary encoding.

    Raises:
        ValueError: if an argument is out of range.
    """
    flipped = flip_threshold(checks.local_epsilon(local_epsilon))
    law = ideal_optimal_unary_encoding(
        local_epsilon=local_epsilon, categories=max(checks.categories(categories), 3)
    )
    return _rounded(_of_two(law, categories), Fraction(WHOLE - flipped, flipped))


def local_hashing_blanket(*, local_epsilon: float, categories: int, buckets: int | None = None) -> Blanket:
    """Local hashing, by a family whose values at any three categories are uniform and independent.

    Raises:
        ValueError: if an argument is out of range.
    """
    buckets = buckets or hash_range(checks.local_epsilon(local_epsilon))
    mixture = Mixture.of(local_epsilon, share=Fraction(1, buckets))
    law = ideal_local_hashing(local_epsilon=local_epsilon, buckets=buckets)
    return _rounded(_of_two(law, checks.categories(categories)), mixture.odds)


def _of_two(law: Blanket, categories: int) -> Blanket:
    """The law of more categories for two of them: no third record is there to hide nobody."""
    return law if categories > 2 else replace(law, outside=0.0, instances=())


def _rounded(law: Blanket, odds: Fraction) -> Blanket:
    return law if follows(odds, law.local_epsilon) else replace(law, exact=False, outside=0.0, instances=())
