"""Blankets of the frequency oracles as they are built here: rounded probabilities, and two categories too.

Where 62 bits can follow ε0 they are those of
:mod:`~shuffle_plugins.mechanisms.categories.frequency_oracles_law`. Elsewhere a mechanism is one of a smaller
ε0, that is a post-processing of the one at ε0 (its report is further mixed with a uniform one, its bits are
further flipped), so the blanket at ε0 holds as a bound. Nothing here imports torch.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from shuffle_plugins.accounting.pairs.blanket import Blanket
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.categories import frequency_oracles_law as laws
from shuffle_plugins.mechanisms.categories.mixtures import WHOLE, Mixture, follows, odds_below

_WIDEST_HASH = 10**9
_NO_EDGE = 1 - 1e-6


def flip_threshold(local_epsilon: float | Fraction) -> int:
    r"""The smallest p in units of 2**-62 with :math:`(1-p)/p \le e^{ε_0}`."""
    return math.ceil(WHOLE / (odds_below(local_epsilon) + 1))


def subset_size(*, local_epsilon: float, categories: int) -> int:
    """The best number of categories in a report of subset selection, about K/(e^ε0 + 1)."""
    return min(max(round(categories / (math.exp(local_epsilon) + 1)), 1), categories - 1)


def hash_range(local_epsilon: float) -> int:
    """The best number of buckets of local hashing, about e^ε0 + 1, up to a billion."""
    return max(round(min(math.exp(local_epsilon), _WIDEST_HASH)) + 1, 2)


def k_rr_blanket(*, local_epsilon: float, categories: int) -> Blanket:
    """K-ary randomized response.

    Raises:
        ValueError: if an argument is out of range.
    """
    mixture = Mixture.of(local_epsilon, share=Fraction(1, _check(categories)))
    return _rounded(laws.k_ary_response(local_epsilon=local_epsilon, categories=categories), mixture.odds)


def hadamard_blanket(*, local_epsilon: float, categories: int) -> Blanket:
    """Hadamard response, and its one-bit variant whose group is part of the report.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(categories)
    mixture = Mixture.of(local_epsilon, share=Fraction(1, 2))
    return _rounded(laws.hadamard_response(local_epsilon=local_epsilon), mixture.odds)


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
    if spread > _NO_EDGE:
        return Blanket.generic(local_epsilon, exact=False)
    return Blanket(
        local_epsilon=local_epsilon,
        differing=one,
        low=one + zero * (2 - spread),
        high=one + zero * spread,
        edges=((1 + excess, zero),),
        exact=False,
    )


def subset_blanket(*, local_epsilon: float, categories: int, size: int | None = None) -> Blanket:
    """Subset selection. Of two categories it is randomized response.

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.local_epsilon(local_epsilon)
    size = size or subset_size(local_epsilon=local_epsilon, categories=_check(categories))
    mixture = Mixture.of(local_epsilon, share=Fraction(size, categories))
    if categories == 2:
        return _rounded(Blanket.generic(local_epsilon), mixture.odds)
    law = laws.subset_selection(local_epsilon=local_epsilon, categories=categories, size=size)
    return _rounded(law, mixture.odds)


def rappor_blanket(*, local_epsilon: float, categories: int) -> Blanket:
    """Symmetric unary encoding.

    Raises:
        ValueError: if an argument is out of range.
    """
    checks.local_epsilon(local_epsilon)
    flipped = flip_threshold(Fraction(local_epsilon) / 2)
    law = laws.rappor(local_epsilon=local_epsilon, categories=max(_check(categories), 3))
    return _rounded(_of_two(law, categories), Fraction(WHOLE - flipped, flipped) ** 2)


def oue_blanket(*, local_epsilon: float, categories: int) -> Blanket:
    """Optimal unary encoding.

    Raises:
        ValueError: if an argument is out of range.
    """
    flipped = flip_threshold(checks.local_epsilon(local_epsilon))
    law = laws.optimal_unary_encoding(local_epsilon=local_epsilon, categories=max(_check(categories), 3))
    return _rounded(_of_two(law, categories), Fraction(WHOLE - flipped, flipped))


def local_hashing_blanket(*, local_epsilon: float, categories: int, buckets: int | None = None) -> Blanket:
    """Local hashing, by a family whose values at any three categories are uniform and independent.

    Raises:
        ValueError: if an argument is out of range.
    """
    buckets = buckets or hash_range(checks.local_epsilon(local_epsilon))
    mixture = Mixture.of(local_epsilon, share=Fraction(1, buckets))
    law = laws.local_hashing(local_epsilon=local_epsilon, buckets=buckets)
    return _rounded(_of_two(law, _check(categories)), mixture.odds)


def _of_two(law: Blanket, categories: int) -> Blanket:
    """The law of more categories for two of them, of which it is a post-processing: no third record."""
    return law if categories > 2 else replace(law, outside=0.0)


def _rounded(law: Blanket, odds: Fraction) -> Blanket:
    return law if follows(odds, law.local_epsilon) else replace(law, exact=False, outside=0.0)


def _check(categories: int) -> int:
    if checks.dim(categories) < 2:
        raise ValueError(f"categories are at least two, got dim={categories}")
    return categories
