"""K-ary randomized response: the true category, or a uniform one."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.categories.mixture_oracle import Mixture, MixtureOracle, as_built
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.randomness import Randomness


def ideal_k_ary_response(*, local_epsilon: float, categories: int) -> Blanket:
    """K-ary randomized response: the true category with odds e^ε0 over any other. K = 2 is one bit."""
    checks.whole("categories", categories, at_least=2)
    if categories == 2:
        return Blanket.bit(local_epsilon)
    size = math.exp(checks.local_epsilon(local_epsilon)) + categories - 1
    return Blanket(
        local_epsilon=local_epsilon, differing=1 / size, low=(categories - 2) / size, outside=1 / size
    )


class KRandomizedResponse(MixtureOracle):
    r"""K-ary randomized response (Kairouz, Bonawitz, Ramage 2016; thesis Table 7.1).

    The true category has odds e^ε0 over any other one: with probability :math:`γ = (e-1)/(e+K-1)` it is sent,
    else a uniform category of all K. Category c is counted as :math:`([y = c] - (1-γ)/K)/γ`. The best oracle
    where K is below about e^ε0; in ceil(log2 K) bits.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: K, the number of categories, at least 2.

    Raises:
        ValueError: if a parameter is out of range, or γ is below 2**-62.
    """

    name: ClassVar[str] = "k-rr"

    def __init__(self, *, local_epsilon: float, dim: int) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim)
        self._mixture = Mixture.of(local_epsilon, share=Fraction(1, dim))
        self._bits = (dim - 1).bit_length()

    @property
    def layout(self) -> ReportLayout:
        """The number of a category."""
        return ReportLayout(self.name, self.dim, (FieldLayout(self._bits),))

    @property
    def worst_variance(self) -> float:
        """E‖R(x) - e_x‖² = ((K-1)·b(1-b) + a(1-a))/γ², b = (1-γ)/K and a = b + γ, for every category."""
        truth, other = self._mixture.truth, self._mixture.noise / self.dim
        wrong = other * (self.dim - 1)
        return (wrong * (1 - other) + (truth + other) * wrong) / truth**2

    def blanket(self) -> Blanket:
        """That of K-ary response; of two categories a counted bit."""
        ideal = ideal_k_ary_response(local_epsilon=self.local_epsilon, categories=self.dim)
        return as_built(ideal, categories=self.dim, odds=self._mixture.odds)

    @override
    def sum(self, reports: Reports) -> Tensor:
        counts = torch.bincount(self._named(reports), minlength=self.dim).double()
        return (counts - len(reports) * self._mixture.noise / self.dim) / self._mixture.truth

    def outcomes(self) -> Reports | None:
        """Every category, up to 2**16 of them."""
        return self.layout.reports(torch.arange(self.dim)) if self.dim <= MOST_OUTCOMES else None

    @property
    def _log_reports(self) -> float:
        return math.log(self.dim)

    def _likely(self, reports: Reports, category: int) -> Tensor:
        return self._named(reports) == category

    def _named(self, reports: Reports) -> Tensor:
        return self.read_reports(reports, self.dim)[0]

    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        """A category for each client: its own, or one drawn uniformly."""
        truthful = self._truthful(x, randomness)
        uniform = randomness.integers(self.dim, len(x), device=x.device)
        return self.layout.reports(torch.where(truthful, x, uniform))
