"""What one report of a frequency oracle says of each category: that it supports it, or that it does not."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import FrequencyOracle, registry

MOST_REFUSED = 1 << 12

_TRIED = 64
_MOST_TRIED = 1 << 12
_DIGITS = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """Law of a category's estimate from one report that takes two values.

    Attributes:
        low: the estimate from a report that does not support the category, at most 0.
        high: that from one that does, at least 1.
    """

    low: float
    high: float

    @property
    def width(self) -> float:
        """How much one client can change one count, whatever it sends."""
        return self.high - self.low

    @property
    def own(self) -> float:
        """Probability that a client's report supports its own category: the estimate has mean 1."""
        return (1 - self.low) / self.width

    @property
    def other(self) -> float:
        """Probability that a client's report supports another given category: the estimate has mean 0."""
        return -self.low / self.width

    def variance(self, frequency: float) -> float:
        """Variance of a category's estimate per report, where that share of the clients hold it."""
        own, other = (p * (1 - p) for p in (self.own, self.other))
        return self.width**2 * (frequency * own + (1 - frequency) * other)

    def supporting(self, counts: Tensor, *, reports: int) -> Tensor:
        """How many of the reports support each category, int64, from their estimated counts."""
        exact = (counts.double() - reports * self.low) / self.width
        return exact.round().to(torch.int64).clamp_(0, reports)


@lru_cache(maxsize=64)
def built(name: str, *, local_epsilon: float, categories: int) -> FrequencyOracle:
    """The registered oracle of that name.

    Raises:
        ValueError: if there is none of that name, or it refuses a parameter.
    """
    oracle = registry.get(name, local_epsilon=local_epsilon, dim=categories)
    if not isinstance(oracle, FrequencyOracle):
        raise ValueError(f"{name} takes vectors, not categories")
    if not oracle.shufflable:
        raise ValueError(f"{name} cannot be shuffled: its reports are read by who knows whose they are")
    return oracle


def frequency_oracles() -> tuple[str, ...]:
    """Names of all registered mechanisms that take categories and can be shuffled, sorted."""
    return _taking_categories(registry.available(registry.Kind.CATEGORIES))


@lru_cache(maxsize=8)
def _taking_categories(names: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for name in names:
        with suppress(ValueError):
            built(name, local_epsilon=1.0, categories=2)
            found.append(name)
    return tuple(found)


@lru_cache(maxsize=64)
def support_of(name: str, *, local_epsilon: float, categories: int) -> Support:
    """The two values that a report's estimate of a category takes, read off reports.

    Raises:
        ValueError: if reports take more than two values, or only one: then nothing is known of single
            categories. All built-in oracles take two.
    """
    oracle = built(name, local_epsilon=local_epsilon, categories=categories)
    for tried in range(0, _MOST_TRIED, _TRIED):
        reports = oracle.randomize((torch.arange(tried, tried + _TRIED)) % categories)
        for i in range(_TRIED):
            values = oracle.sum(reports.narrow(i, i + 1))
            low, high = float(values.min()), float(values.max())
            if high - low <= _DIGITS * max(1.0, abs(high)):
                continue  # supports all categories, or none
            between = torch.minimum(values - low, high - values).max()
            if float(between) > _DIGITS * (high - low):
                raise ValueError(f"a report of {name} says more of a category than yes or no")
            return Support(low=low, high=high)
    raise ValueError(f"reports of {name} do not tell categories apart")


def summed(oracle: FrequencyOracle, reports: Reports) -> tuple[Tensor, int]:
    """The sum of the reports that are possible, and how many the oracle refuses.

    Halves that are refused are looked at again, so that a few bad reports cost little.

    Raises:
        ValueError: if the reports are another mechanism's, or more than 4,096 are impossible: then this was
            no round of this protocol.
    """
    oracle.layout.check(reports)
    total = torch.zeros(oracle.dim, dtype=torch.float64, device=reports.fields[0].values.device)
    refused = 0
    waiting = [reports]
    while waiting:
        part = waiting.pop()
        try:
            total += oracle.sum(part)
        except ValueError:
            if len(part) > 1:
                middle = len(part) // 2
                waiting += [part.narrow(middle, len(part)), part.narrow(0, middle)]
                continue
            refused += 1
            if refused > MOST_REFUSED:
                raise ValueError(
                    f"more than {MOST_REFUSED:,} of {len(reports):,} reports are impossible for "
                    f"{oracle.name!r}: this is no round of this protocol; check what clients run"
                ) from None
    return total, refused
