r"""Noise in shares: each client's share is a difference of Pólya variables, their sum discrete Laplace.

P[k] ∝ t^|k| is the law of a difference of two geometric variables, and a geometric variable the sum of n
Pólya (negative binomial) ones of shape 1/n (Goryczka, Xiong 2017; Balle, Bell, Gascón, Nissim 2020). A Pólya
variable in turn adds up a Poisson number of logarithmic ones, P[j] = t^j/(j·L) with L = log 1/(1 − t). So a
share is a sum of Poisson(2L/n) many logarithmic jumps with random signs: no jump at all for most clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.randomness import PROBABILITY_BITS, Randomness

MOST_JUMP = 1 << 24
_CUT = PROBABILITY_BITS * math.log(2)  # -log of what is left out of the table of jumps
_LONG_ROUNDOFF = float(np.finfo(np.longdouble).eps)
_ROUNDOFF = 2.0**-50  # relative, of the logarithms and exponentials of float64
_MASK = (1 << PROBABILITY_BITS) - 1
_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PolyaNoise:
    r"""Discrete Laplace noise of P[k] ∝ :math:`e^{-rate·|k|}` that ``holders`` clients hold together.

    Attributes:
        rate: in nats per step, positive.
        holders: how many shares make up the noise, at least 1. More only add to it.

    Raises:
        ValueError: if a field is out of range, or the noise is too wide for its table.
    """

    rate: float
    holders: int

    def __post_init__(self) -> None:
        if not (isinstance(self.rate, float) and 0 < self.rate < math.inf):
            raise ValueError(f"rate must be a positive number, got {self.rate!r}")
        if type(self.holders) is not int or self.holders < 1:
            raise ValueError(f"holders must be a whole number, at least 1, got {self.holders!r}")
        if _CUT / self.rate > MOST_JUMP:
            raise ValueError(
                f"noise that falls by {self.rate:.3g} a step is too wide to draw: use fewer levels, or a "
                "larger ε"
            )

    @property
    def share_variance(self) -> float:
        """Variance of one share, in steps squared: 2t/(1 − t)² over the holders."""
        return math.exp(-self.rate) * 2 / math.expm1(-self.rate) ** 2 / self.holders

    @property
    def jumps_per_share(self) -> float:
        """Expected number of logarithmic jumps in one client's share of the noise."""
        return 2 * _logarithms(self.rate) / self.holders

    @property
    def distance(self) -> float:
        """Bound on the total variation of the sum of ``holders`` drawn shares from discrete Laplace noise.

        Thresholds are out of 2**62: half a unit and a rounding error per outcome of a table, and what the
        tables leave out, for every client and every jump.
        """
        unit = 2.0**-PROBABILITY_BITS
        jumps = self.jumps_per_share
        counts, lengths = _tables(self.rate, self.holders)
        one_jump = len(lengths) * (unit + 2 * _LONG_ROUNDOFF) + 2 * _ROUNDOFF + unit
        one_count = (len(counts) + 2) * unit + 4 * _ROUNDOFF * jumps
        return min(1.0, self.holders * (one_count + jumps * one_jump))

    def shares(self, count: int, *, randomness: Randomness) -> Tensor:
        """Draw the shares of so many clients, int64 (count,), on the CPU."""
        counts, lengths = _tables(self.rate, self.holders)
        drawn = torch.zeros(count, dtype=torch.int64)
        for start in range(0, count, _AT_ONCE):
            part = drawn[start : start + _AT_ONCE]
            # The number of jumps is that of thresholds above the word; they fall.
            words = randomness.words(len(part)).bitwise_and_(_MASK)
            jumps = len(counts) - torch.searchsorted(counts, words, right=True)
            holders = torch.repeat_interleave(torch.arange(len(part)), jumps)
            words = randomness.words(len(holders))
            length = torch.searchsorted(lengths, words & _MASK, right=True) + 1
            part.index_add_(0, holders, torch.where(words < 0, -length, length))
        return drawn

    def reach(self, *, cohort: int, log_probability: float) -> int:
        """Steps that the sum of all clients' shares stays within, but for a probability of e^log_probability.

        Chernoff's bound, with E e^{θk} = ((1 − t)²/((1 − t·e^θ)(1 − t·e^-θ)))^(clients/holders).
        """
        return _reach(self.rate, cohort / self.holders, log_probability)


@lru_cache(maxsize=256)
def _reach(rate: float, shape: float, log_probability: float) -> int:
    theta = rate * (1 - np.geomspace(1e-6, 0.9, 400))
    moment = -2 * _logarithms(rate) - np.log(-np.expm1(theta - rate)) - np.log(-np.expm1(-theta - rate))
    bounds = (math.log(2) - log_probability + shape * moment) / theta
    return math.ceil(float(bounds.min()) * (1 + 1e-9))


@lru_cache(maxsize=16)
def _tables(rate: float, holders: int) -> tuple[Tensor, Tensor]:
    """Thresholds out of 2**62, increasing: of P[at least i jumps], reversed, and of P[jump ≤ j]."""
    scale = np.longdouble(2.0**PROBABILITY_BITS)
    mean = 2 * _logarithms(rate) / holders
    most = 2
    while _log_poisson_tail(mean, most) > -_CUT:
        most += 1
    i = np.arange(1, most + 1)
    log_factorial = np.cumsum(np.log(i.astype(np.longdouble)))
    mass = np.exp(i * np.log(np.longdouble(mean)) - np.longdouble(mean) - log_factorial)
    counts = np.floor(np.cumsum(mass[::-1]) * scale).astype(np.int64)

    j = np.arange(1, math.ceil(_CUT / rate) + 1).astype(np.longdouble)
    weight = np.exp(-np.longdouble(rate) * j) / j
    lengths = np.floor(np.cumsum(weight) / weight.sum() * scale).astype(np.int64)
    lengths[-1] = 1 << PROBABILITY_BITS
    return torch.from_numpy(counts), torch.from_numpy(lengths)


def _logarithms(rate: float) -> float:
    """L = log 1/(1 − t)."""
    return -math.log(-math.expm1(-rate)) if rate < 1 else -math.log1p(-math.exp(-rate))


def _log_poisson_tail(mean: float, count: int) -> float:
    """log of Chernoff's bound on P[Poisson(mean) ≥ count]; 0 where it says nothing."""
    return min(0.0, count - mean + count * math.log(mean / count)) if count > mean else 0.0
