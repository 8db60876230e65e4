"""Random signs of given expectation, one by one or as a pattern, and which numbers they speak of.

A pattern of s signs is sent as one that agrees with it in at least t places (the *cap*) e^ε0 times as likely
as any other: ``docs/proofs/mechanisms.md``, section 1.
"""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shuffle_plugins.accounting import Atoms, Blanket
from shuffle_plugins.accounting.pairs.reports import most_telling, two_level_atoms
from shuffle_plugins.compressors.quantization import (
    ROUNDED_DOWN,
    SignThresholds,
    flip_threshold,
    plus_thresholds,
)
from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness.chacha import WHOLE
from shuffle_plugins.randomness.sources import Randomness

LOUDEST_EXACT = 42
"""ε0 from which a probability is a few units of 2**-62 and cannot follow."""

MAX_SIGNS = 20


class Constants(StrEnum):
    """Whose constants a sampled mechanism uses.

    ``EXACT``: each sign spends its share v of ε0 to the last bit, E[sign] = tanh(v/2) times the value.
    ``THESIS``: as printed in Girgis's thesis (Lemma 2.4.1, Algorithms 3.3.1 and 3.5.1), E[sign] = v/√(v² + 4)
    times the value, and what is not sampled counts as the low end of the range.
    """

    EXACT = "exact"
    THESIS = "thesis"


def split_budget(
    local_epsilon: float, *, shares: Sequence[float], repeats: int = 1, constants: Constants = Constants.EXACT
) -> tuple[SignThresholds, ...]:
    """Thresholds for ``repeats`` signs of each share, which together cost at most ε0."""
    total = sum(map(Fraction, shares)) * repeats
    budgets = [Fraction(checks.local_epsilon(local_epsilon)) * Fraction(share) / total for share in shares]
    if float(min(budgets)) < checks.MIN_LOCAL_EPSILON * (1 - 1e-9):
        raise ValueError(
            f"local_epsilon={local_epsilon:g} over {repeats * len(shares)} signs leaves one less than "
            f"{checks.MIN_LOCAL_EPSILON:g}: send fewer levels or samples"
        )
    lows = [flip_threshold(budget) for budget in budgets]
    if constants is Constants.THESIS:
        lows = [max(low, _printed_low(budget)) for low, budget in zip(lows, budgets, strict=True)]
    return tuple(map(SignThresholds, lows))


def _printed_low(budget: Fraction) -> int:
    with decimal.localcontext(ROUNDED_DOWN):
        square = (Decimal(budget.numerator) / Decimal(budget.denominator)) ** 2
        gain = (square / (square + 4)).sqrt()
        return int((WHOLE * (1 - gain) / 2).to_integral_value(decimal.ROUND_CEILING))


@dataclass(frozen=True, kw_only=True)
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


@lru_cache(maxsize=4096)
def cap_parameters(*, local_epsilon: float, signs: int) -> CapParameters:
    """The cap of largest gain for patterns of that many signs, in [1, 20]."""
    checks.whole("signs", signs, at_most=MAX_SIGNS)
    low = SignThresholds.of(local_epsilon).low
    above_one = Fraction(WHOLE - 2 * low, low)  # at most e^ε0 - 1, and as good as equal
    caps = (_cap(signs, agreements, above_one) for agreements in range(signs // 2 + 1, signs + 1))
    return max(caps, key=lambda cap: cap.gain)


def _cap(signs: int, agreements: int, above_one: Fraction) -> CapParameters:
    inside = {a: math.comb(signs, a) for a in range(agreements, signs + 1)}
    patterns = sum(inside.values())
    share = above_one * patterns / (above_one * patterns + (1 << signs))
    threshold = math.floor(share * WHOLE)
    drawn = Fraction(threshold, WHOLE * patterns)
    pair_sum = sum(count * ((2 * a - signs) ** 2 - signs) for a, count in inside.items())
    return CapParameters(
        signs=signs,
        agreements=agreements,
        patterns=patterns,
        cap_threshold=threshold,
        gain=float(drawn * math.comb(signs - 1, agreements - 1)),
        pair_moment=float(drawn * Fraction(pair_sum, signs * (signs - 1))) if signs > 1 else 0.0,
    )


def _outside_cap(local_epsilon: float, cap: CapParameters) -> float:
    """c, the probability of a pattern outside of the cap."""
    return 1 / (2.0**cap.signs + math.expm1(local_epsilon) * cap.patterns)


def cap_blanket(
    *, local_epsilon: float, signs: int, exact: bool, instances: tuple[Atoms, ...] = ()
) -> Blanket:
    """Blanket of one pattern, about any public or random place; up to ε0 = 42 with ``instances`` from below.

    ``exact``: whether some record has every pattern for certain, and another its opposite.
    """
    cap = cap_parameters(local_epsilon=local_epsilon, signs=signs)
    quiet = local_epsilon < LOUDEST_EXACT
    known = instances if quiet else ()
    if signs == 1:
        return replace(Blanket.sign(local_epsilon, exact=exact and quiet), instances=known)
    least = _outside_cap(local_epsilon, cap)
    differing = least * cap.patterns
    third = exact and quiet and cap.agreements == signs
    return Blanket(
        local_epsilon=local_epsilon,
        differing=differing,
        low=least * (2**signs - 2 * cap.patterns),
        exact=exact and quiet,
        outside=differing if third else 0.0,
        instances=known,
    )


@lru_cache(maxsize=256)
def spread_information(*, local_epsilon: float, signs: int, mean_square: float) -> float:
    """The most that a pattern tells if its signs' means have this mean square (section 3d of the proofs)."""
    if signs == 1:
        return mean_square * 4 * math.sinh(local_epsilon / 2) ** 2
    cap = cap_parameters(local_epsilon=local_epsilon, signs=signs)
    least = _outside_cap(local_epsilon, cap)
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
    return bound * (1 + 1e-7)  # sums of up to a million terms of both signs


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
    least = _outside_cap(local_epsilon, cap)

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

    if signs <= 8:
        chosen = [c for c in itertools.product(range(signs + 1), repeat=3) if sum(c) <= signs]
    else:
        third = round(signs / 3)
        chosen = [(0, signs // 2, 0), (0, third, third), (signs // 4, signs // 4, signs // 4), (0, 0, 0)]
    return most_telling(itertools.starmap(instance, chosen))


@lru_cache(maxsize=256)
def leaning_patterns(*, local_epsilon: float, signs: int, lean: float) -> Atoms:
    """The instance of opposite records all of whose signs have means of ±``lean`` before they are sent."""
    cap = cap_parameters(local_epsilon=local_epsilon, signs=signs)
    likely = (1 + lean) / 2
    agreed = np.arange(signs + 1)
    inside = np.array(
        [
            np.convolve(_binomial(a, likely), _binomial(signs - a, 1 - likely))[cap.agreements :].sum()
            for a in range(signs + 1)
        ]
    )
    ways = special.binom(signs, agreed)
    one = _outside_cap(local_epsilon, cap) * ways * (1 + math.expm1(local_epsilon) * inside)
    two, fair = one[::-1], ways / 2.0**signs
    return most_telling(
        tuple(zip((one / z - 1).tolist(), (two / z - 1).tolist(), z.tolist(), strict=True))
        for z in (two, fair)
    )


def _binomial(trials: int, probability: float) -> NDArray[np.float64]:
    """Masses of 0, …, trials; scipy.stats takes long to import."""
    counts = np.arange(trials + 1)
    chance = probability**counts * (1 - probability) ** (trials - counts)
    return np.asarray(special.binom(trials, counts) * chance)


_FAIR = SignThresholds(low=0)


def send_patterns(values: Tensor, *, cap: CapParameters, randomness: Randomness) -> Tensor:
    """Patterns, (clients,) int64, for values (clients, signs) in [-1, 1]; bit i set is a plus."""
    if cap.signs == 1:  # rounding and flipping are one draw
        thresholds = SignThresholds(low=(WHOLE - cap.cap_threshold) // 2)
        return randomness.bernoulli(plus_thresholds(values[:, 0], thresholds=thresholds)).to(torch.int64)
    clients, device = len(values), values.device
    plus = randomness.bernoulli(plus_thresholds(values, thresholds=_FAIR))
    patterns = (plus.to(torch.int64) << torch.arange(cap.signs, device=device)).sum(dim=1)
    near = randomness.bernoulli(torch.full((clients,), cap.cap_threshold, dtype=torch.int64, device=device))
    anything = randomness.integers(1 << cap.signs, clients, device=device)
    flips = _flips(cap.signs, cap.agreements).to(device)
    chosen = flips[randomness.integers(cap.patterns, clients, device=device)]
    return torch.where(near, patterns ^ chosen, anything)


@lru_cache(maxsize=8)
def _flips(signs: int, agreements: int) -> Tensor:
    """Patterns with at most signs - agreements bits set."""
    every = torch.arange(1 << signs)
    return every[(pattern_signs(every, signs=signs) > 0).sum(dim=1) <= signs - agreements]


def pattern_signs(patterns: Tensor, *, signs: int) -> Tensor:
    """Signs ±1 of patterns, (clients, signs) int64."""
    return ((patterns.unsqueeze(1) >> torch.arange(signs, device=patterns.device)) & 1) * 2 - 1


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
    return near * (cap.cap_threshold / WHOLE / cap.patterns) + uniform


@dataclass(frozen=True, kw_only=True)
class CoordinateBlocks:
    """``dim`` coordinates in ``count`` consecutive blocks as equal as can be, of each of which one is drawn.

    Longer blocks come first, and nothing is padded.
    """

    dim: int
    count: int

    def __post_init__(self) -> None:
        checks.whole("samples", self.count, at_most=checks.dim(self.dim))

    @property
    def longest(self) -> int:
        """Length of the first block, ceil(dim/count)."""
        return -(-self.dim // self.count)

    @property
    def index_bits(self) -> int:
        """Of a place within a block."""
        return (self.longest - 1).bit_length()

    @property
    def square_lengths(self) -> int:
        """Sum of the squared lengths: dim²/count where count divides dim."""
        short, longer = divmod(self.dim, self.count)
        return longer * (short + 1) ** 2 + (self.count - longer) * short**2

    @cached_property
    def lengths(self) -> Tensor:
        """Length of each block, (count,) int64; not to be written to."""
        short, longer = divmod(self.dim, self.count)
        return short + (torch.arange(self.count) < longer).to(torch.int64)

    @property
    def starts(self) -> Tensor:
        """First coordinate of each block, (count,) int64."""
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def lengths_by_coordinate(self) -> Tensor:
        """Length of the block that each coordinate is in, (dim,) int64; not to be written to."""
        return self.lengths.repeat_interleave(self.lengths)

    def draw(self, clients: int, *, repeats: int, randomness: Randomness, device: torch.device) -> Tensor:
        """Uniform places within each block, ``repeats`` times over, (clients, repeats, count) int64."""
        short, longer = divmod(self.dim, self.count)
        parts = [
            randomness.integers(length, (clients, repeats, blocks), device=device)
            if length > 1
            else torch.zeros((clients, repeats, blocks), dtype=torch.int64, device=device)
            for length, blocks in ((short + 1, longer), (short, self.count - longer))
            if blocks
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def outcomes(self, choices: int, *, repeats: int, most: int) -> tuple[Tensor, Tensor] | None:
        """All places (reports, repeats·count) with all numbers below ``choices``; None if over ``most``."""
        lengths = self.lengths.tolist() * repeats
        count = math.prod(lengths) * choices
        if count > most:
            return None
        rest = torch.arange(count)
        beside, rest = rest % choices, rest // choices
        places = []
        for length in lengths:
            places.append(rest % length)
            rest = rest // length
        return torch.stack(places, dim=1), beside
