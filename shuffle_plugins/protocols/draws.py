"""Whole numbers drawn exactly: heads among many coins, binomial and Poisson numbers, Laplace noise."""

from __future__ import annotations

import decimal
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Annotated, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shuffle_plugins.accounting.pairs.noise import DRAWN_REACH
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Count, Positive, Ranged, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.randomness.chacha import PROBABILITY_BITS, WHOLE
from shuffle_plugins.randomness.sources import Randomness, secure

DISTANCE = 2.0**-500
"""Bound on the total variation between what up to 2**40 clients draw for a coordinate and binomials, and on
the logarithm of the ratio of two masses: no number of heads is drawn beyond ``DRAWN_REACH`` deviations."""

MOST_COINS = 1 << 44

COINS_AT_ONCE = 1 << 32
"""Coins of one table, some 10 MB long; more are drawn in parts."""

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

    @property
    @abstractmethod
    def mode(self) -> int:
        """The most likely number, or one next to it."""

    def factor(self) -> decimal.Decimal:
        """The factor, to the precision of the decimal context."""
        return decimal.Decimal(1)

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
        table, found = _tail_table(self), np.empty(size, dtype=np.int64)
        for start in range(0, size, 1 << 16):
            words = randomness.words(min(1 << 16, size - start)).bitwise_and_(WHOLE - 1).numpy()
            found[start : start + len(words)], unclear = table.look_up(words)
            for i in np.flatnonzero(unclear):
                found[start + i] = _decided(self, int(words[i]), randomness=randomness)
        return torch.from_numpy(found)


@dataclass(frozen=True, kw_only=True)
class BinomialLaw(CountLaw):
    """How many of so many trials succeed, each with probability ``threshold``/2**62."""

    trials: Annotated[int, whole_number(at_least=0)]
    threshold: Annotated[int, whole_number(at_most=WHOLE - 1)]

    @property
    @override
    def line(self) -> tuple[int, int, int]:
        odds = Fraction(self.threshold, WHOLE - self.threshold)
        return -odds.numerator, self.trials * odds.numerator, odds.denominator

    @property
    @override
    def mode(self) -> int:
        return min(self.trials, (self.trials + 1) * self.threshold // WHOLE)

    @property
    @override
    def most(self) -> float:
        return min(self.trials, 20 * math.sqrt(self.trials))


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

    @property
    @override
    def mode(self) -> int:
        return math.ceil(max(0.0, float(self.shape - 1) / math.expm1(self.rate) - 1))

    @override
    def factor(self) -> decimal.Decimal:
        return (-decimal.Decimal(self.rate)).exp()

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

    @property
    @override
    def mode(self) -> int:
        return int(self.mean)

    @override
    def factor(self) -> decimal.Decimal:
        return decimal.Decimal(self.mean)

    @property
    @override
    def most(self) -> float:
        return self.mean + 100 * (1 + math.sqrt(self.mean)) if self.mean < 1 << 14 else math.inf


def _tails(law: CountLaw, digits: int) -> tuple[int, list[int], list[int]]:
    """A number, and whole numbers at most, and at least, 2**digits times P[X ≥ j], for all j after it.

    Both increase, so the first entries are those of the largest j. Left out are tails below 2**−digits, or as
    near to 1.
    """
    places = digits + _SPARE_BITS
    slope, start, scale = law.line
    with decimal.localcontext(decimal.Context(prec=math.ceil(0.302 * places) + 40)):
        exact = law.factor()
        shift = 0 if exact == 1 else places - 4 * min(exact.adjusted(), 0)  # all digits of a small one, too
        factor = int(exact * (1 << shift))
    above, k = [1 << places], law.mode  # masses from that of the mode on, not normed
    while above[-1]:
        above.append(above[-1] * factor * (k * slope + start) // (((k + 1) * scale) << shift))
        k += 1
    below, j = [1 << places], law.mode
    while below[-1] and j:
        below.append(((below[-1] * j * scale) << shift) // (factor * ((j - 1) * slope + start)))
        j -= 1
    whole = sum(above) + sum(below[1:])
    unit, tail = whole >> digits, 0
    low, high = [], []
    for mass in chain(reversed(above), below[1:]):
        tail, k = tail + mass, k - 1
        if whole - tail + _OFF < unit:
            break
        if tail + _OFF >= unit:
            low.append((max(tail - _OFF, 0) << digits) // (whole + _OFF))
            high.append(((tail + _OFF) << digits) // (whole - _OFF) + 1)
    return k + 1, low, high


class _Table(NamedTuple):
    """Tails to 62 digits, after 0 and before 2**62, and where words of the same upper bits begin in them."""

    first: int
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    starts: NDArray[np.int32]
    shift: int

    @classmethod
    def of(cls, law: CountLaw) -> Self:
        first, *tails = _tails(law, PROBABILITY_BITS)
        low, high = (np.array([0, *each, WHOLE], dtype=np.int64) for each in tails)
        shift = PROBABILITY_BITS - min(len(low).bit_length() + 1, 22)
        ends = np.arange((WHOLE >> shift) + 1, dtype=np.int64) << shift
        return cls(first, low, high, (np.searchsorted(low, ends, side="right") - 1).astype(np.int32), shift)

    def look_up(self, words: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The numbers that belong to words, and where further digits decide."""
        bucket = words >> self.shift
        place = self.starts.take(bucket).astype(np.int64)
        crowded = np.flatnonzero(self.starts.take(bucket + 1) > place + 1)
        place += self.low.take(place + 1) <= words
        place[crowded] = np.searchsorted(self.low, words[crowded], side="right") - 1
        unclear = (self.high.take(place) > words) | (words == 0) | (words == WHOLE - 1)
        return self.first + len(self.low) - 2 - place, unclear


@lru_cache(maxsize=64)
def _tail_table(law: CountLaw) -> _Table:
    return _Table.of(law)


def _decided(law: CountLaw, word: int, *, randomness: Randomness) -> int:
    """The number that belongs to a uniform whose first 62 binary digits are ``word``."""
    digits = PROBABILITY_BITS
    while True:
        word = (word << 64) | (int(randomness.words(1)[0]) & ((1 << 64) - 1))
        digits += 64
        first, low, high = _tails(law, digits)
        below = bisect_right(low, word)
        if 0 < word < (1 << digits) - 1 and bisect_right(high, word) == below:
            return first + len(low) - below


def heads(coins: int, size: int, *, randomness: Randomness | None = None) -> Tensor:
    """Draw ``size`` numbers of heads among ``coins`` fair coins, at most 2**44, int64, on the CPU.

    For each 2**32 coins exactly the binomial within :func:`drawn_range`, which is left once in 2**564 times.
    """
    checks.whole("coins", coins, at_least=0, at_most=MOST_COINS)
    checks.whole("size", size, at_least=0)
    source = secure(randomness)
    many, rest = divmod(coins, COINS_AT_ONCE)
    drawn = torch.zeros(size, dtype=torch.int64)
    for each in [rest] * (rest > 0) + [COINS_AT_ONCE] * many:
        law, (low, high) = BinomialLaw(trials=each, threshold=WHOLE // 2), drawn_range(each)
        found = law.draw(size, randomness=source)
        while bool((out := (found < low) | (found > high)).any()):
            found[out] = law.draw(int(out.sum()), randomness=source)
        drawn += found
    return drawn


def drawn_range(coins: int) -> tuple[int, int]:
    """The fewest and the most heads that :func:`heads` ever draws among so many coins.

    Each part of at most 2**32 coins stays within ``DRAWN_REACH`` deviations of its middle.
    """
    many, rest = divmod(coins, COINS_AT_ONCE)
    highest = many * _largest_drawn(COINS_AT_ONCE) + _largest_drawn(rest)
    return coins - highest, highest


def _largest_drawn(coins: int) -> int:
    return min(coins, (coins + 1) // 2 + math.ceil(DRAWN_REACH * math.sqrt(coins) / 2))


def drawn_binomials(events: Tensor, *, threshold: int, randomness: Randomness) -> Tensor:
    """Draw Bin(events, threshold/2**62) for each of ``events``, in [0, 2**31], int64, on the CPU; exact."""
    left = events.to(torch.int64).cpu().flatten().clone()
    if left.numel() and not 0 <= int(left.min()) <= int(left.max()) <= 1 << 31:
        raise ValueError(f"0 to {1 << 31:,} clients can be simulated at once: simulate groups")
    found = torch.zeros_like(left)
    for power in range(24, -1, -1):  # the largest table is of 2**24 events, and drawn from as often as needed
        while len(chosen := (left >> power).nonzero().squeeze(1)):
            law = BinomialLaw(trials=1 << power, threshold=threshold)
            found[chosen] += law.draw(len(chosen), randomness=randomness)
            left[chosen] -= 1 << power
    return found.reshape(events.shape)


def drawn_poisson(size: int, *, mean: float, randomness: Randomness) -> Tensor:
    """Independent Poisson numbers of any mean, int64 (size,), exact; large ones are added up of parts."""
    parts = math.ceil(checks.number("mean", mean, at_least=0) / (1 << 12))
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
        if not checks.whole("clients", clients, at_least=0):
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
