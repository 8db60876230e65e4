"""Patterns of signs, as whole numbers: rounding to them, sending them through the optimal cap, their law."""

from __future__ import annotations

from functools import lru_cache

from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.signs.randomized_response import plus_thresholds
from shuffle_plugins.mechanisms.signs.randomized_response_law import SignThresholds
from shuffle_plugins.mechanisms.signs.sign_patterns_law import CapParameters
from shuffle_plugins.randomness import WHOLE, Randomness

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
