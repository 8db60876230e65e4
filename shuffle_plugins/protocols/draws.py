"""Whole numbers drawn from tables: heads among many coins, binomial, Poisson, and shares of Laplace noise."""

from __future__ import annotations

import decimal
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shuffle_plugins.accounting.pairs.noise import DRAWN_REACH
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Count, Positive, Ranged
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness.chacha import PROBABILITY_BITS, WHOLE
from shuffle_plugins.randomness.sources import Randomness, secure

DISTANCE = 2.0**-52
"""Bound on the total variation between numbers of heads, drawn by up to 2**40 clients, and binomials."""
MOST_COINS = 1 << 44

RATIO = 2.0**-64
"""Bound on |log(P/P')| of a number of heads drawn with probability P that has P' under fair coins, within
``DRAWN_REACH`` standard deviations, for each ``COINS_AT_ONCE`` coins or part of them.
None is drawn further out.
"""

COINS_AT_ONCE = 1 << 32
"""Coins of one table, some 10 MB long; more are drawn in parts."""

_GUARD_BITS = 720


def heads(coins: int, size: int, *, randomness: Randomness | None = None) -> Tensor:
    """Draw ``size`` numbers of heads among ``coins`` fair coins, at most 2**44, int64, on the CPU.

    From a table, within 2**-100 of the binomial in total variation, for each 2**32 coins
    (``docs/proofs/sums.md``).
    """
    checks.whole("coins", coins, at_least=0, at_most=MOST_COINS)
    checks.whole("size", size, at_least=0)
    source = secure(randomness)
    many, rest = divmod(coins, COINS_AT_ONCE)
    drawn = np.zeros(size, dtype=np.int64)
    for each in [rest] * (rest > 0) + [COINS_AT_ONCE] * many:
        table = alias_table(each)
        found = table.draw(size, source)
        for place in np.flatnonzero(found == table.further):
            found[place] = _further(each, source) - table.first
        drawn += found + table.first
    return torch.from_numpy(drawn)


def drawn_range(coins: int) -> tuple[int, int]:
    """The least and the largest number of heads that :func:`heads` ever draws among so many coins.

    Each part of at most 2**32 coins stays within ``DRAWN_REACH`` deviations of its middle.
    """
    many, rest = divmod(coins, COINS_AT_ONCE)
    highest = many * _largest_drawn(COINS_AT_ONCE) + _largest_drawn(rest)
    return coins - highest, highest


def _largest_drawn(coins: int) -> int:
    return min(coins, (coins + 1) // 2 + math.ceil(DRAWN_REACH * math.sqrt(coins) / 2))


class AliasTable(NamedTuple):
    """Outcomes in 2**bits columns of equal mass, at most two in each (Walker 1977).

    Column i holds outcome ``first + i`` with probability (high[i] + low[i]/2**64) / 2**(64 - bits), and
    outcome ``first + other[i]`` with the rest. ``further`` is the last entry, which may stand for every
    outcome that is not listed.
    """

    first: int
    bits: int
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    other: NDArray[np.int64]
    further: int

    @classmethod
    def of(cls, first: int, masses: Sequence[int]) -> Self:
        """The table of these masses over their sum, to 2**-128 each; the largest takes what is left."""
        whole = sum(masses)
        law = [(mass << 128) // whole for mass in masses]
        law[law.index(max(law))] += (1 << 128) - sum(law)
        bits = (len(law) - 1).bit_length()
        law += [0] * ((1 << bits) - len(law))
        last = len(masses) - 1
        thresholds, other = _fill_columns(law, 1 << (128 - bits))
        high = np.array([threshold >> 64 for threshold in thresholds], dtype=np.uint64)
        low = np.array([threshold & ((1 << 64) - 1) for threshold in thresholds], dtype=np.uint64)
        return cls(first, bits, high, low, np.array(other, dtype=np.int64), last)

    def draw(self, size: int, randomness: Randomness) -> NDArray[np.int64]:
        """Outcomes less ``first``: a word chooses a column and one of its two, a second decides a tie."""
        drawn = np.empty(size, dtype=np.int64)
        for start in range(0, size, 1 << 16):
            words = randomness.words(min(1 << 16, size - start)).numpy().view(np.uint64)
            column = (words & np.uint64((1 << self.bits) - 1)).view(np.int64)
            fraction, threshold = words >> np.uint64(self.bits), self.high.take(column)
            own = fraction < threshold
            ties = np.flatnonzero(fraction == threshold)
            own[ties] = randomness.words(ties.size).numpy().view(np.uint64) < self.low[column[ties]]
            drawn[start : start + len(words)] = np.where(own, column, self.other.take(column))
        return drawn


@lru_cache(maxsize=8)
def alias_table(coins: int) -> AliasTable:
    """The table of numbers of heads; its last entry is for all that are further out."""
    upper, listed = _upper_masses(coins)
    half = upper[:listed]
    law = (half[::-1] if coins % 2 else half[:0:-1]) + half
    whole = 2 * sum(upper) - (0 if coins % 2 else upper[0])
    return AliasTable.of((coins + 1) // 2 + listed - len(law), [*law, whole - sum(law)])


def _upper_masses(coins: int) -> tuple[list[int], int]:
    """Masses from the middle up to ``DRAWN_REACH`` deviations, not normed, and how many a table lists.

    By the ratios of neighbours in whole numbers: a mass 28 deviations out is 2**-566 of the middle's, so it
    has 150 bits, and is right to 2**-130 of itself after a million divisions.
    """
    middle, deviation = (coins + 1) // 2, math.sqrt(coins) / 2
    upper = [1 << _GUARD_BITS]
    for count in range(middle, _largest_drawn(coins)):
        upper.append(upper[-1] * (coins - count) // (count + 1))
    # What lies further out than seven standard deviations is one entry of a table.
    return upper, min(math.ceil(7.0 * deviation), len(upper))


def _further(coins: int, randomness: Randomness) -> int:
    """A number of heads of those that a table does not list, one draw in 10**11."""
    upper, listed = _upper_masses(coins)
    words = [int(word) for word in randomness.words(13).numpy().view(np.uint64)]
    uniform = sum(word << (64 * i) for i, word in enumerate(words[:-1]))
    rest = uniform * sum(upper[listed:]) >> (64 * 12)
    place = listed
    while rest >= upper[place]:
        rest -= upper[place]
        place += 1
    count = (coins + 1) // 2 + place
    return count if words[-1] & 1 else coins - count


def _fill_columns(law: list[int], full: int) -> tuple[list[int], list[int]]:
    """Vose's construction in whole numbers: of masses that add up to ``full`` times their number, thresholds
    and the other outcomes of the columns."""
    threshold, other = [full] * len(law), list(range(len(law)))
    light = [i for i, mass in enumerate(law) if mass < full]
    heavy = [i for i, mass in enumerate(law) if mass >= full]
    while light:
        i, j = light.pop(), heavy[-1]
        threshold[i], other[i] = law[i], j
        law[j] -= full - law[i]
        if law[j] < full:
            light.append(heavy.pop())
    return threshold, other


DRAWN_DISTANCE = 2.0**-92
"""Bound on the total variation between one number drawn and its binomial law, up to 2**31 events.

A table leaves out less than 2**-110, has fewer than 2**20 entries and is read with 128 bits, so it is off by
less than 2**-100. A number is the sum of fewer than 2**8 draws.
"""


def drawn_binomials(events: Tensor, *, threshold: int, randomness: Randomness) -> Tensor:
    """Draw Bin(events, threshold/2**62) for each entry of ``events``, in [0, 2**31]; int64, on the CPU."""
    left = events.to(torch.int64).cpu().flatten().clone()
    if left.numel() and int(left.max()) > 1 << 31:
        raise ValueError(f"more than {1 << 31:,} clients cannot be simulated at once: simulate groups")
    found = torch.zeros_like(left)
    for power in range(24, -1, -1):  # the largest table is of 2**24 events, and drawn from as often as needed
        while len(chosen := (left >> power).nonzero().squeeze(1)):
            table = binomial_table(power, threshold)
            found[chosen] += torch.from_numpy(table.draw(len(chosen), randomness) + table.first)
            left[chosen] -= 1 << power
    return found.reshape(events.shape)


@lru_cache(maxsize=512)
def binomial_table(power: int, threshold: int) -> AliasTable:
    """The table of Bin(2**power, threshold/2**62); masses beside 2**-140 of the largest are left out."""
    trials, other, largest = 1 << power, WHOLE - threshold, 1 << 256
    mode = min(trials, (trials + 1) * threshold // WHOLE)
    above, below, mass = [], [], largest
    for k in range(mode, trials + 1):
        above.append(mass)
        mass = mass * ((trials - k) * threshold) // ((k + 1) * other)
        if mass < largest >> 140:
            break
    mass = largest
    for k in range(mode, 0, -1):
        mass = mass * (k * other) // ((trials - k + 1) * threshold)
        if mass < largest >> 140:
            break
        below.append(mass)
    return AliasTable.of(mode - len(below), below[::-1] + above)


# -- exact laws on 0, 1, 2, … -------------------------------------------------------------------------------

_MOST_LISTED = 1 << 23  # entries of a table of tails
_SPARE_BITS = 128  # with which tails are computed beyond the digits that a table holds
_OFF = 1 << 64  # what they are off by at most, in the last of these bits (``docs/proofs/sums.md``)


@dataclass(frozen=True, kw_only=True)
class CountLaw(Ranged, ABC):
    """A law on 0, 1, 2, … with p(k + 1) = p(k)·factor·(k·slope + start)/((k + 1)·scale), drawn exactly.

    A uniform U is compared with the tails P[X ≥ j], of which a table holds 62 binary digits. Where these
    leave the answer open, as many further digits of both are computed as it takes.
    """

    @property
    @abstractmethod
    def line(self) -> tuple[int, int, int]:
        """``slope``, ``start`` and ``scale``, whole numbers."""

    @abstractmethod
    def ends(self) -> tuple[decimal.Decimal, decimal.Decimal]:
        """p(0) and the factor, to the precision of the decimal context."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Binary places of p(0) before its first digit, at least: −log2 p(0), rounded up."""

    @property
    @abstractmethod
    def most(self) -> float:
        """About how many entries a table has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.most < _MOST_LISTED:
            raise ValueError(
                f"noise as wide as that of {self!r} cannot be drawn: use fewer levels, or a larger ε"
            )

    def draw(self, size: int, *, randomness: Randomness) -> Tensor:
        """``size`` independent numbers, int64, on the CPU."""
        low, high = _tail_table(self)
        words = randomness.words(size).bitwise_and_((1 << PROBABILITY_BITS) - 1)
        found = len(low) - torch.searchsorted(low, words, right=True)
        unclear = (len(high) - torch.searchsorted(high, words, right=True) != found) | (words == 0)
        for i in unclear.nonzero().squeeze(1).tolist():
            found[i] = _decided(self, int(words[i]), randomness=randomness)
        return found


@dataclass(frozen=True, kw_only=True)
class PolyaLaw(CountLaw):
    """Negative binomial of real shape: p(k) ∝ (shape)_k/k!·e^(−rate·k). Of shape 1 it is geometric.

    Independent ones of one rate add up to one of the sum of their shapes, which are ratios of whole numbers.
    """

    rate: Positive
    shape: Fraction

    @property
    @override
    def line(self) -> tuple[int, int, int]:
        return self.shape.denominator, self.shape.numerator, self.shape.denominator

    @override
    def ends(self) -> tuple[decimal.Decimal, decimal.Decimal]:
        factor = (-decimal.Decimal(self.rate)).exp()
        power = decimal.Decimal(self.shape.numerator) / self.shape.denominator
        return ((1 - factor).ln() * power).exp(), factor

    @property
    @override
    def bits(self) -> int:
        return math.ceil(float(self.shape) * log_of_one_less(self.rate) / math.log(2)) + 1

    @property
    @override
    def most(self) -> float:
        width = PROBABILITY_BITS * math.log(2) + float(self.shape) * (1 + log_of_one_less(self.rate))
        return 2 * width / self.rate if self.shape <= 1 << 16 else math.inf


@dataclass(frozen=True, kw_only=True)
class PoissonLaw(CountLaw):
    """The law of a Poisson number of this mean: p(k) = e^−mean·mean^k/k!."""

    mean: Positive

    @property
    @override
    def line(self) -> tuple[int, int, int]:
        return 0, 1, 1

    @override
    def ends(self) -> tuple[decimal.Decimal, decimal.Decimal]:
        return (-decimal.Decimal(self.mean)).exp(), decimal.Decimal(self.mean)

    @property
    @override
    def bits(self) -> int:
        return math.ceil(self.mean / math.log(2)) + 1

    @property
    @override
    def most(self) -> float:
        return self.mean + 100 * (1 + math.sqrt(self.mean)) if self.mean < 1 << 14 else math.inf


def _tails(law: CountLaw, digits: int) -> tuple[list[int], list[int]]:
    """Whole numbers at most, and at least, 2**digits times P[X ≥ j], for all j ≥ 1 where that reaches 1.

    Both increase, so the first entries are those of the largest j.
    """
    spare = _SPARE_BITS + law.bits
    places = digits + spare
    slope, start, scale = law.line
    with decimal.localcontext(decimal.Context(prec=math.ceil(0.302 * places) + 40)):
        first, factor = (int(value * (1 << places)) for value in law.ends())
    mass, tail, k = first, (1 << places) - first, 0
    low, high, unit, off = [], [], 1 << spare, _OFF << law.bits
    while tail + off >= unit:
        low.append(max(tail - off, 0) >> spare)
        high.append(((tail + off) >> spare) + 1)
        mass = mass * factor * (k * slope + start) // (((k + 1) * scale) << places)
        tail, k = tail - mass, k + 1
    return low[::-1], high[::-1]


@lru_cache(maxsize=32)
def _tail_table(law: CountLaw) -> tuple[Tensor, Tensor]:
    low, high = _tails(law, PROBABILITY_BITS)
    return torch.tensor(low, dtype=torch.int64), torch.tensor(high, dtype=torch.int64)


def _decided(law: CountLaw, word: int, *, randomness: Randomness) -> int:
    """The number that belongs to a uniform whose first 62 binary digits are ``word``."""
    digits = PROBABILITY_BITS
    while True:
        word = (word << 64) | (int(randomness.words(1)[0]) & ((1 << 64) - 1))
        digits += 64
        low, high = _tails(law, digits)
        found = len(low) - bisect_right(low, word)
        if word and len(high) - bisect_right(high, word) == found:
            return found


def drawn_poisson(size: int, *, mean: float, randomness: Randomness) -> Tensor:
    """Independent Poisson numbers of any mean, int64 (size,), exact; large ones are added up of parts."""
    parts = math.ceil(mean / (1 << 12))
    drawn = torch.zeros(size, dtype=torch.int64)
    for _ in range(parts):
        drawn += PoissonLaw(mean=mean / parts).draw(size, randomness=randomness)
    return drawn


@dataclass(frozen=True, kw_only=True)
class PolyaNoise(Ranged):
    r"""Discrete Laplace noise of P[k] ∝ :math:`e^{-rate·|k|}` that ``holders`` clients hold together.

    A share is the difference of two Pólya numbers of shape 1/holders. More shares only add to the noise.
    ``rate`` is in nats per step.
    """

    rate: Positive
    holders: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._law(1)

    @property
    def share_variance(self) -> float:
        """Variance of one share, in steps squared: 2t/(1 − t)² over the holders."""
        return math.exp(-self.rate) * 2 / math.expm1(-self.rate) ** 2 / self.holders

    def draw(self, size: int, *, clients: int = 1, randomness: Randomness) -> Tensor:
        """``size`` sums of the shares of so many clients, int64, on the CPU; exact."""
        if not clients:
            return torch.zeros(size, dtype=torch.int64)
        law = self._law(clients)
        return law.draw(size, randomness=randomness).sub_(law.draw(size, randomness=randomness))

    def reach(self, *, clients: int, bits: float) -> int:
        """Steps within which the sum of so many clients' shares stays but for a probability of 2**−bits."""
        return _reach(self.rate, clients / self.holders, bits)

    def _law(self, clients: int) -> PolyaLaw:
        return PolyaLaw(rate=self.rate, shape=Fraction(clients, self.holders))


@lru_cache(maxsize=256)
def _reach(rate: float, shape: float, bits: float) -> int:
    """Chernoff's bound, with E e^{θk} = ((1 − t)²/((1 − t·e^θ)(1 − t·e^-θ)))^shape."""
    theta = rate * (1 - np.geomspace(1e-6, 0.9, 400))
    moment = -2 * log_of_one_less(rate) - np.log(-np.expm1(theta - rate)) - np.log(-np.expm1(-theta - rate))
    bounds = ((bits + 1) * math.log(2) + shape * moment) / theta
    return math.ceil(float(bounds.min()) * (1 + 1e-9))


def log_of_one_less(rate: float) -> float:
    """L = log 1/(1 − e^−rate)."""
    return -math.log(-math.expm1(-rate)) if rate < 1 else -math.log1p(-math.exp(-rate))
