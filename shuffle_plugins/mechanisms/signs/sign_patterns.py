r"""Patterns of signs, as whole numbers: rounding to them, sending them through the optimal cap, their law.

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

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shuffle_plugins.accounting import Atoms, Blanket, most_telling, two_level_atoms
from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.signs.randomized_response import (
    LOUDEST_EXACT,
    SignThresholds,
    plus_thresholds,
)
from shuffle_plugins.randomness import WHOLE, Randomness

MAX_SIGNS = 20
_FEW_SIGNS = 8  # of which all three patterns are tried
_ROUNDING = 1e-7  # relative, of sums of up to a million terms of both signs


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


def cap_blanket(
    *, local_epsilon: float, signs: int, exact: bool, instances: tuple[Atoms, ...] = ()
) -> Blanket:
    """Blanket of one pattern, about any public or random place.

    Args:
        local_epsilon: ε0 in nats.
        signs: s.
        exact: whether some record has every pattern for certain, and another its opposite. From ε0 = 42 on
            thresholds cannot follow ε0, and the blanket is only a bound.
        instances: datasets whose laws are known, up to that ε0.
    """
    cap = cap_parameters(local_epsilon=local_epsilon, signs=signs)
    if signs == 1:
        known = instances if local_epsilon < LOUDEST_EXACT else ()
        sign = Blanket.sign(local_epsilon, exact=exact and local_epsilon < LOUDEST_EXACT)
        return replace(sign, instances=known)
    least = 1 / (2.0**signs + math.expm1(local_epsilon) * cap.patterns)
    differing = least * cap.patterns
    quiet = local_epsilon < LOUDEST_EXACT
    exact = exact and quiet
    third = exact and cap.agreements == signs
    return Blanket(
        local_epsilon=local_epsilon,
        differing=differing,
        low=least * (2**signs - 2 * cap.patterns),
        exact=exact,
        outside=differing if third else 0.0,
        instances=instances if quiet else (),
    )


@lru_cache(maxsize=256)
def spread_information(*, local_epsilon: float, signs: int, mean_square: float) -> float:
    r"""The most that a pattern tells if its signs are not certain: :attr:`.InformationBound.information`.

    Before they are sent the signs of a record have means in [−1, 1], whose squares are ``mean_square`` on
    average over the signs of all places. ``docs/proofs/accounting.md``, section 3d.

    Args:
        local_epsilon: ε0 of a report.
        signs: s.
        mean_square: at most, in (0, 1].
    """
    checks.number("mean_square", mean_square, above=0, at_most=1)
    if signs == 1:
        return mean_square * 4 * math.sinh(local_epsilon / 2) ** 2
    cap = cap_parameters(local_epsilon=local_epsilon, signs=signs)
    least = 1 / (2.0**signs + math.expm1(local_epsilon) * cap.patterns)
    squares = [
        (least * math.expm1(local_epsilon) * _character(signs, cap.agreements, size)) ** 2
        for size in range(signs + 1)
    ]
    certain = math.fsum(math.comb(signs, size) * squares[size] for size in range(1, signs + 1))
    opposed = max(
        -math.fsum(squares[size] * _elementary(count, minus, size) for size in range(1, count + 1)) / count
        for count in range(1, signs + 1)
        for minus in range(count + 1)
    )
    bound = 2 * mean_square * (certain + signs * max(opposed, 0.0)) / (least * 2.0**signs)
    return bound * (1 + _ROUNDING)


def _character(signs: int, agreements: int, size: int) -> int:
    """Σ over the cap about all plus of the product of some ``size`` signs."""
    return sum(
        (-1) ** minus
        * math.comb(size, minus)
        * sum(math.comb(signs - size, a) for a in range(max(agreements - size + minus, 0), signs - size + 1))
        for minus in range(size + 1)
    )


def _elementary(count: int, minus: int, size: int) -> int:
    """Σ over all ``size`` of ``count`` signs, ``minus`` of them minus, of their product."""
    return sum((-1) ** i * math.comb(minus, i) * math.comb(count - minus, size - i) for i in range(size + 1))


@lru_cache(maxsize=256)
def three_patterns(*, local_epsilon: float, signs: int) -> Atoms:
    """The instance of records x, x' and everybody else's z of the three patterns that tell most."""
    cap = cap_parameters(local_epsilon=local_epsilon, signs=signs)
    least = 1 / (2.0**signs + math.expm1(local_epsilon) * cap.patterns)

    def instance(same: int, against: int, other: int) -> Atoms:
        """x' has ``same`` + ``other`` of x's signs; z has ``same`` + ``against`` of them."""
        sizes = (same, against, other, signs - same - against - other)
        agreed = np.meshgrid(*(np.arange(size + 1) for size in sizes), indexing="ij")
        ways = np.ones(agreed[0].shape)
        for count, size in zip(agreed, sizes, strict=True):
            ways = ways * special.binom(size, count)
        flipped = [size - count for count, size in zip(agreed, sizes, strict=True)]
        inside = [
            sum(a if own else b for own, a, b in zip(has, agreed, flipped, strict=True)) >= cap.agreements
            for has in ((1, 1, 1, 1), (1, 0, 1, 0), (1, 1, 0, 0))
        ]
        shares = {
            kinds: least
            * float(ways[np.all([a == bool(b) for a, b in zip(inside, kinds, strict=True)], axis=0)].sum())
            for kinds in itertools.product((0, 1), repeat=3)
        }
        return two_level_atoms(local_epsilon=local_epsilon, shares=shares)

    places = range(signs + 1)
    if signs <= _FEW_SIGNS:
        chosen = [c for c in itertools.product(places, repeat=3) if sum(c) <= signs]
    else:
        third = round(signs / 3)
        chosen = [(0, signs // 2, 0), (0, third, third), (signs // 4, signs // 4, signs // 4), (0, 0, 0)]
    return most_telling(itertools.starmap(instance, chosen))


@lru_cache(maxsize=256)
def leaning_patterns(*, local_epsilon: float, signs: int, lean: float) -> Atoms:
    """The instance of opposite records all of whose signs have means of ±``lean`` before they are sent.

    Everybody else holds x', or has fair signs, whichever tells more. A report is read as the number of places
    in which it agrees with the signs of x.
    """
    cap = cap_parameters(local_epsilon=local_epsilon, signs=signs)
    likely = (1 + lean) / 2
    agreed = np.arange(signs + 1)
    inside = np.array(
        [
            np.convolve(_binomial(a, likely), _binomial(signs - a, 1 - likely))[cap.agreements :].sum()
            for a in range(signs + 1)
        ]
    )
    least = 1 / (2.0**signs + math.expm1(local_epsilon) * cap.patterns)
    ways = special.binom(signs, agreed)
    one = least * ways * (1 + math.expm1(local_epsilon) * inside)
    two, fair = one[::-1], ways / 2.0**signs
    return most_telling(
        tuple(zip((one / z - 1).tolist(), (two / z - 1).tolist(), z.tolist(), strict=True))
        for z in (two, fair)
    )


def _binomial(trials: int, probability: float) -> NDArray[np.float64]:
    """Masses of 0, …, trials."""
    counts = np.arange(trials + 1)
    law: NDArray[np.float64] = special.binom(trials, counts) * (
        probability**counts * (1 - probability) ** (trials - counts)
    )
    return law


_FAIR = SignThresholds(low=0)


def round_to_patterns(values: Tensor, *, randomness: Randomness) -> Tensor:
    """A pattern for each row of values in [-1, 1], independent signs of these means, (clients,) int64.

    Bit i is set where sign i is plus. What rounding leaves outside [-1, 1] is clamped.
    """
    plus = randomness.bernoulli(plus_thresholds(values, thresholds=_FAIR))
    return (plus.to(torch.int64) << _shifts(values.shape[1], values.device)).sum(dim=1)


def pattern_signs(patterns: Tensor, *, signs: int) -> Tensor:
    """Signs ±1 of patterns, (clients, signs) int64."""
    return ((patterns.unsqueeze(1) >> _shifts(signs, patterns.device)) & 1) * 2 - 1


def send_patterns(patterns: Tensor, *, cap: CapParameters, randomness: Randomness) -> Tensor:
    """Each pattern as the cap's randomizer sends it: uniform in its cap, or uniform among all."""
    clients, device = len(patterns), patterns.device
    threshold = torch.full((clients,), cap.cap_threshold, dtype=torch.int64, device=device)
    near = randomness.bernoulli(threshold)
    anything = randomness.integers(1 << cap.signs, clients, device=device)
    flips = _flips(cap.signs, cap.agreements).to(device)
    chosen = flips[randomness.integers(cap.patterns, clients, device=device)]
    return torch.where(near, patterns ^ chosen, anything)


def pattern_likelihood(sent: Tensor, values: Tensor, *, cap: CapParameters) -> Tensor:
    """Probability of each pattern sent, (clients,) float64, for values (clients, signs) in [-1, 1]."""
    plus = plus_thresholds(values, thresholds=_FAIR)
    agree = torch.where(pattern_signs(sent, signs=cap.signs) > 0, plus, WHOLE - plus).double() / WHOLE
    counts = torch.zeros(len(sent), cap.signs + 1, dtype=torch.float64, device=sent.device)
    counts[:, 0] = 1
    for probability in agree.unbind(dim=1):
        one_more = counts[:, :-1] * probability.unsqueeze(1)
        counts *= 1 - probability.unsqueeze(1)
        counts[:, 1:] += one_more
    near: Tensor = counts[:, cap.agreements :].sum(dim=1)
    uniform = (WHOLE - cap.cap_threshold) / WHOLE / (1 << cap.signs)
    return near * (cap.cap_probability / cap.patterns) + uniform


@lru_cache(maxsize=8)
def _flips(signs: int, agreements: int) -> Tensor:
    """Patterns with at most signs - agreements bits set."""
    every = torch.arange(1 << signs)
    set_bits = ((every.unsqueeze(1) >> _shifts(signs, every.device)) & 1).sum(dim=1)
    return every[set_bits <= signs - agreements]


def _shifts(signs: int, device: torch.device) -> Tensor:
    return torch.arange(signs, device=device)
