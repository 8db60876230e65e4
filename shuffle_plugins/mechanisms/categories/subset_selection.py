"""Subset selection: a set of about K/(e^ε0 + 1) categories, more often one with the true category."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.categories.bit_vectors import column_counts, row_counts
from shuffle_plugins.mechanisms.categories.mixture_oracle import Mixture, MixtureOracle, any_three, as_built
from shuffle_plugins.mechanisms.categories.subsets import (
    elements_through,
    flags_through,
    rank,
    rank_bits,
    unrank,
)
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.randomness import Randomness


def subset_size(*, local_epsilon: float, categories: int) -> int:
    """The best number of categories in a report of subset selection, about K/(e^ε0 + 1)."""
    return min(max(round(categories / (math.exp(local_epsilon) + 1)), 1), categories - 1)


def ideal_subset_selection(*, local_epsilon: float, categories: int, size: int | None = None) -> Blanket:
    """Subset selection: a set of ``size`` categories, likelier by e^ε0 if it has the true one.

    Args:
        local_epsilon: ε0 in nats.
        categories: K ≥ 3.
        size: categories in a report, in [1, K − 1]; the best for estimation, about K/(e^ε0 + 1), by default.
    """
    e = math.exp(checks.local_epsilon(local_epsilon))
    checks.whole("categories", categories, at_least=3)
    if size is None:
        size = subset_size(local_epsilon=local_epsilon, categories=categories)
    k, s = categories, checks.whole("size", size, at_most=categories - 1)
    density = 1 / (1 + (e - 1) * s / k)
    one = s * (k - s) / (k * (k - 1))
    return Blanket(
        local_epsilon=local_epsilon,
        differing=density * one,
        low=density * (k - s) * (k - s - 1) / (k * (k - 1)),
        high=density * s * (s - 1) / (k * (k - 1)),
        outside=density * one * min((k - s - 1) / (k - 2), 1.0),
        **any_three(local_epsilon, lambda a, b, c: density * _held(k, s, a + b + c)),
    )


def _held(categories: int, size: int, wanted: int) -> float:
    """Probability that a random subset has the wanted ones of three categories, and not the others."""
    chance = 1.0
    for i in range(3):  # the wanted ones first
        left = categories - i
        taken = size - min(i, wanted)
        chance *= taken / left if i < wanted else (left - taken) / left
    return max(chance, 0.0)


class SubsetSelection(MixtureOracle):
    r"""Subset selection (Wang et al. 2016; Ye, Barg 2018): the least error of the oracles here, in more bits.

    A report is a set of s categories; those with the true one have odds e^ε0 over the rest. With probability
    :math:`γ = (e-1)s/(K + (e-1)s)` it is uniform among those with x, else uniform among all: that is a
    uniform set through a fixed element, shifted cyclically to x, or to a uniform category. It takes s - 1
    random integers beside. Category c is counted as :math:`([c \in y] - b)/(a - b)` with :math:`a = γ +
    (1-γ)s/K`, :math:`b = γ(s-1)/(K-1) + (1-γ)s/K`.

    On the wire a set is its rank, ceil(log2 C(K, s)) bits, while that is at most 62; else its s elements or K
    flags, whichever is shorter.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: K, the number of categories, at least 2.
        size: s, categories in a report, in [1, K/2]; the best one, about K/(e^ε0 + 1), by default. Larger
            sets take more bits and say less.
    """

    name: ClassVar[str] = "subset-selection"

    def __init__(self, *, local_epsilon: float, dim: int, size: int | None = None) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim)
        if size is None:
            size = subset_size(local_epsilon=local_epsilon, categories=dim)
        self._size = size = checks.whole("size", size, at_most=dim // 2)
        self._mixture = Mixture.of(local_epsilon, share=Fraction(size, dim))
        self._rank_bits = rank_bits(dim, size)
        self._index_bits = (dim - 1).bit_length()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, size={self._size})"

    @property
    def size(self) -> int:
        """s, categories in a report."""
        return self._size

    @property
    def _flagged(self) -> bool:
        return self._rank_bits is None and self._size * self._index_bits > self.dim

    @property
    def layout(self) -> ReportLayout:
        """The set's rank, at most 62 bits; else its elements or a flag per category, which is shorter."""
        if self._rank_bits is not None:
            field = FieldLayout(self._rank_bits)
        else:
            field = FieldLayout(1, self.dim) if self._flagged else FieldLayout(self._index_bits, self._size)
        return ReportLayout(self.name, self.dim, (field,))

    @property
    def _contained(self) -> tuple[float, float, float]:
        """Probability that a report has the true category, that it has another one, and their difference."""
        truth, by_chance = self._mixture.truth, self._mixture.noise * self._size / self.dim
        other = truth * (self._size - 1) / (self.dim - 1) + by_chance
        return truth + by_chance, other, truth * (self.dim - self._size) / (self.dim - 1)

    @property
    def worst_variance(self) -> float:
        """E‖R(x) - e_x‖² = (a(1-a) + (K-1)·b(1-b))/(a - b)², for every category."""
        own, other, gain = self._contained
        missed = self._mixture.noise * (self.dim - self._size) / self.dim
        return (own * missed + (self.dim - 1) * other * (1 - other)) / gain**2

    def blanket(self) -> Blanket:
        """That of subset selection with this size; of two categories it is randomized response."""
        if self.dim == 2:
            ideal = Blanket.generic(self.local_epsilon)
        else:
            ideal = ideal_subset_selection(
                local_epsilon=self.local_epsilon, categories=self.dim, size=self._size
            )
        return as_built(ideal, categories=self.dim, odds=self._mixture.odds)

    @override
    def sum(self, reports: Reports) -> Tensor:
        if self._flagged:
            counts = column_counts(self._flags(reports))
        else:
            counts = torch.bincount(self._elements(reports).reshape(-1), minlength=self.dim)
        _, other, gain = self._contained
        return (counts.double() - len(reports) * other) / gain

    def outcomes(self) -> Reports | None:
        """Every set of ``size`` categories, where there are at most 2**16."""
        if self._rank_bits is None or math.comb(self.dim, self._size) > MOST_OUTCOMES:
            return None
        return self.layout.reports(torch.arange(math.comb(self.dim, self._size)))

    @property
    def _log_reports(self) -> float:
        k, s = self.dim, self._size
        if self._rank_bits is not None:
            return math.log(math.comb(k, s))
        return math.lgamma(k + 1) - math.lgamma(s + 1) - math.lgamma(k - s + 1)

    def _likely(self, reports: Reports, category: int) -> Tensor:
        if self._flagged:
            return self._flags(reports)[:, category] > 0
        return (self._elements(reports) == category).any(dim=1)

    def _elements(self, reports: Reports) -> Tensor:
        if self._rank_bits is not None:
            (ranks,) = self.read_reports(reports, math.comb(self.dim, self._size))
            return unrank(ranks, things=self.dim, size=self._size)
        (elements,) = self.read_reports(reports, self.dim)
        if bool((elements[:, 1:] <= elements[:, :-1]).any()):
            raise ValueError("a report is no ascending list of categories: it was altered or forged; drop it")
        return elements

    def _flags(self, reports: Reports) -> Tensor:
        self.check_reports(reports, 2)
        flags = reports.fields[0].values
        if bool((row_counts(flags) != self._size).any()):
            raise ValueError(
                f"a report is no set of {self._size} categories: it was altered or forged; drop it"
            )
        return flags

    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        """A set of categories for each client, likelier where it holds its own."""
        anywhere = randomness.integers(self.dim, len(x), device=x.device)
        anchors = torch.where(self._truthful(x, randomness), x, anywhere)
        if self._flagged:
            flags = flags_through(anchors, things=self.dim, size=self._size, randomness=randomness)
            return self.layout.reports(flags)
        elements = elements_through(anchors, things=self.dim, size=self._size, randomness=randomness)
        if self._rank_bits is not None:
            return self.layout.reports(rank(elements, things=self.dim))
        return self.layout.reports(elements)
