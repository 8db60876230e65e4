r"""The optimal randomizer of a sign pattern: likelier by e^ε0 where it agrees enough. Torch-free numbers.

A pattern σ of s signs is sent as a pattern y with probability :math:`c\,e^{ε_0}` if y agrees with σ in at
least t places, else c, where :math:`c = 1/(2^s + (e^{ε_0} - 1) N_t)` and
:math:`N_t = \sum_{a \ge t} \binom{s}{a}`. By symmetry E[y] = g·σ with
:math:`g = c\,(e^{ε_0} - 1) \binom{s-1}{t-1}`. For s = t = 1 this is binary randomized response, for t = s
K-ary response over all patterns, and for large s PrivUnit's cap.

**Best t.** Of all ε0-LDP randomizers of patterns with E[y] = gσ, y in {±1}^s, those with the largest g put
the weight e^ε0 on the y of largest agreement; t > s/2 always, as half agreements add to N_t and not to g.

**Blanket.** The report's law is at least c everywhere. A pattern and its opposite have disjoint caps, and no
pair shares less, so (e^ε0, 1) has mass c·N_t, (1, e^ε0) as much, and (1, 1) the rest. For other pairs mass
moves from the first two to (e^ε0, e^ε0) and (1, 1), which lowers every hockey-stick divergence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.signs.randomized_response_law import SignThresholds
from shuffle_plugins.randomness import WHOLE

MAX_SIGNS = 20
_LOUDEST_EXACT = 42  # from here on a probability is a few units of 2**-62 and cannot follow ε0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapParameters:
    """One cap.

    Attributes:
        signs: s, length of a pattern.
        agreements: t, least agreements of a pattern in the cap.
        patterns: N_t, patterns in the cap.
        cap_threshold: probability of a pattern drawn from the cap, times 2**62, rounded down so that ε0 is
            never exceeded; otherwise it is drawn from all 2**s.
        gain: g, by which patterns are divided.
        pair_moment: E[y_1 y_2] for a pattern y about all-plus signs; 0 for a single sign.
    """

    signs: int
    agreements: int
    patterns: int
    cap_threshold: int
    gain: float
    pair_moment: float

    @property
    def cap_probability(self) -> float:
        """Probability of a draw from the cap."""
        return self.cap_threshold / WHOLE


def cap_parameters(*, local_epsilon: float, signs: int) -> CapParameters:
    """The cap of largest gain for patterns of that many signs.

    Raises:
        ValueError: if ε0 is out of range, or signs not a whole number in [1, 20].
    """
    checks.local_epsilon(local_epsilon)
    checks.whole("signs", signs, at_most=MAX_SIGNS)
    return _best_cap(local_epsilon, signs)


@lru_cache(maxsize=4096)
def _best_cap(local_epsilon: float, signs: int) -> CapParameters:
    above_one = excess_odds(local_epsilon)
    caps = (_cap(signs, agreements, above_one) for agreements in range(signs // 2 + 1, signs + 1))
    return max(caps, key=lambda cap: cap.gain)


def excess_odds(local_epsilon: float) -> Fraction:
    """A fraction that is at most e^ε0 - 1 and as good as equal: realised by binary randomized response."""
    low = SignThresholds.of(local_epsilon).low
    return Fraction(WHOLE - 2 * low, low)


def _cap(signs: int, agreements: int, above_one: Fraction) -> CapParameters:
    patterns = sum(math.comb(signs, a) for a in range(agreements, signs + 1))
    share = above_one * patterns / (above_one * patterns + (1 << signs))
    threshold = math.floor(share * WHOLE)
    gain = Fraction(threshold, WHOLE) * Fraction(math.comb(signs - 1, agreements - 1), patterns)
    pairs = signs * (signs - 1)
    pair_sum = sum(math.comb(signs, a) * ((2 * a - signs) ** 2 - signs) for a in range(agreements, signs + 1))
    return CapParameters(
        signs=signs,
        agreements=agreements,
        patterns=patterns,
        cap_threshold=threshold,
        gain=float(gain),
        pair_moment=float(Fraction(threshold, WHOLE) * Fraction(pair_sum, pairs * patterns))
        if pairs
        else 0.0,
    )


def cap_blanket(*, local_epsilon: float, signs: int, exact: bool) -> Blanket:
    """Blanket of one pattern, about any public or random place.

    Args:
        local_epsilon: ε0 in nats.
        signs: s.
        exact: whether some record has every pattern for certain, and another its opposite. From ε0 = 42 on
            thresholds cannot follow ε0, and the blanket is only a bound.

    Raises:
        ValueError: if an argument is out of range.
    """
    cap = cap_parameters(local_epsilon=local_epsilon, signs=signs)
    if signs == 1:
        return Blanket.sign(local_epsilon, exact=exact and local_epsilon < _LOUDEST_EXACT)
    least = 1 / (2.0**signs + math.expm1(local_epsilon) * cap.patterns)
    differing = least * cap.patterns
    exact = exact and local_epsilon < _LOUDEST_EXACT
    third = exact and cap.agreements == signs
    return Blanket(
        local_epsilon=local_epsilon,
        differing=differing,
        low=least * (2**signs - 2 * cap.patterns),
        exact=exact,
        outside=differing if third else 0.0,
    )
