"""Unary encodings: K bits, one for each category, each flipped on its own."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks, rows_at_once
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.categories.bit_vectors import column_counts, row_counts
from shuffle_plugins.mechanisms.categories.mixture_oracle import any_three, as_built, flip_threshold
from shuffle_plugins.mechanisms.frequency import FrequencyOracle
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.randomness import WHOLE, Randomness


def ideal_rappor(*, local_epsilon: float, categories: int) -> Blanket:
    """Symmetric unary encoding: K bits, each flipped with odds e^(−ε0/2)."""
    flipped = 1 / (math.exp(checks.local_epsilon(local_epsilon) / 2) + 1)
    return _unary(local_epsilon, categories, likely=flipped, missed=flipped)


def ideal_optimal_unary_encoding(*, local_epsilon: float, categories: int) -> Blanket:
    """Optimal unary encoding: the true bit is a fair coin, every other one is set with odds e^−ε0."""
    likely = 1 / (math.exp(checks.local_epsilon(local_epsilon)) + 1)
    return _unary(local_epsilon, categories, likely=likely, missed=0.5)


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
        **any_three(
            local_epsilon, lambda a, b, c: scale * math.prod(likely if bit else unset for bit in (a, b, c))
        ),
    )


class UnaryEncoding(FrequencyOracle):
    r"""A bit for each category: the true one is set with probability a, every other one with probability b.

    Category c is counted as :math:`(y_c - b)/(a - b)`. A report takes K bits and K random words: use another
    oracle for many categories.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: K, the number of categories, at least 2.
    """

    # a and b in units of 2**-62
    _own_threshold: int
    _other_threshold: int

    @property
    def layout(self) -> ReportLayout:
        """One bit for each category."""
        return ReportLayout(self.name, self.dim, (FieldLayout(1, self.dim),))

    @property
    def _gain(self) -> float:
        return (self._own_threshold - self._other_threshold) / WHOLE

    @property
    def worst_variance(self) -> float:
        """E‖R(x) - e_x‖² = (a(1-a) + (K-1)·b(1-b))/(a - b)², for every category."""
        own, other = (p / WHOLE * ((WHOLE - p) / WHOLE) for p in (self._own_threshold, self._other_threshold))
        return (own + (self.dim - 1) * other) / self._gain**2

    @override
    def sum(self, reports: Reports) -> Tensor:
        counts = column_counts(self._flags(reports))
        return (counts.double() - len(reports) * (self._other_threshold / WHOLE)) / self._gain

    def outcomes(self) -> Reports | None:
        """Every word of dim bits, up to 16 of them."""
        if self.dim > MOST_OUTCOMES.bit_length() - 1:
            return None
        words = torch.arange(1 << self.dim).unsqueeze(1)
        return self.layout.reports((words >> torch.arange(self.dim) & 1).to(torch.uint8))

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held category x; thresholds as they are rounded."""
        category = int(self.check_categories(x.reshape(1))[0])
        flags = self._flags(reports)
        ones, own = row_counts(flags).double(), flags[:, category].double()
        others = _log_probability(ones - own, self.dim - 1, threshold=self._other_threshold)
        return others + _log_probability(own, 1, threshold=self._own_threshold)

    def _flags(self, reports: Reports) -> Tensor:
        self.check_reports(reports, 2)
        return reports.fields[0].values

    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        """A bit for each category of each client."""
        bits = torch.empty(len(x), self.dim, dtype=torch.uint8, device=x.device)
        rows = rows_at_once(self.dim, device=x.device)
        for start in range(0, len(x), rows):
            part = x[start : start + rows].unsqueeze(1)
            thresholds = torch.full((len(part), self.dim), self._other_threshold, device=x.device)
            thresholds.scatter_(1, part, self._own_threshold)
            bits[start : start + rows] = randomness.bernoulli(thresholds)
        return self.layout.reports(bits)


class Rappor(UnaryEncoding):
    r"""Symmetric unary encoding, basic one-time RAPPOR (Erlingsson, Pihur, Korolova 2014; thesis Table 7.1).

    Every bit is flipped with probability :math:`1/(e^{ε_0/2} + 1)`: a = 1 - b. Two categories differ in two
    bits, so a report's odds are at most the square of a bit's.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: K, the number of categories, at least 2.
    """

    name: ClassVar[str] = "rappor"

    def __init__(self, *, local_epsilon: float, dim: int) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim)
        self._other_threshold = flip_threshold(Fraction(self.local_epsilon) / 2)
        self._own_threshold = WHOLE - self._other_threshold

    def blanket(self) -> Blanket:
        """That of K bits, each as far from fair as its share of ε0 allows."""
        ideal = ideal_rappor(local_epsilon=self.local_epsilon, categories=max(self.dim, 3))
        odds = Fraction(self._own_threshold, self._other_threshold) ** 2
        return as_built(ideal, categories=self.dim, odds=odds)


class OptimalUnaryEncoding(UnaryEncoding):
    r"""Optimal unary encoding (Wang, Blocki, Li, Jha 2017): a = 1/2, b = 1/(e^ε0 + 1).

    Zeros are many and ones tell the most, so the true bit is left to a fair coin and the others are kept
    quiet.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: K, the number of categories, at least 2.
    """

    name: ClassVar[str] = "oue"

    def __init__(self, *, local_epsilon: float, dim: int) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim)
        self._other_threshold = flip_threshold(self.local_epsilon)
        self._own_threshold = WHOLE // 2

    def blanket(self) -> Blanket:
        """That of optimal unary encoding."""
        ideal = ideal_optimal_unary_encoding(local_epsilon=self.local_epsilon, categories=max(self.dim, 3))
        odds = Fraction(WHOLE - self._other_threshold, self._other_threshold)
        return as_built(ideal, categories=self.dim, odds=odds)


def _log_probability(ones: Tensor, bits: int, *, threshold: int) -> Tensor:
    """Log-probability of a word with that many ones, each bit set with probability threshold/2**62."""
    return ones * math.log(threshold / WHOLE) + (bits - ones) * math.log((WHOLE - threshold) / WHOLE)
