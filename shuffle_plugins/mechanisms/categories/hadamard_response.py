"""Hadamard response: a column of a Hadamard matrix, more often one that is positive in the category's row."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.compressors import hadamard_scatter, hadamard_signs, padded_dim
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.categories.mixture_oracle import Mixture, MixtureOracle, as_built
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.randomness import Randomness


def ideal_hadamard_response(*, local_epsilon: float) -> Blanket:
    """Hadamard response: a row of the code half of which is likely for each category, any two sharing half.

    The product of two rows of the code is a row too, unlikely wherever just one of the two is likely: a third
    record of that row, as there is for rows 1 and 2, hides nobody.
    """
    share = 1 / (2 * (math.exp(checks.local_epsilon(local_epsilon)) + 1))
    return Blanket(local_epsilon=local_epsilon, differing=share, low=share, high=share, outside=share)


class HadamardResponse(MixtureOracle):
    r"""Hadamard response of one block (Acharya, Sun, Zhang 2019, section 4): best for small ε0, in few bits.

    Category x stands for row x + 1 of the Hadamard matrix of size S, the smallest power of two above K; row
    0, all ones, is not used. A report is a column y. The half of them where :math:`H_{x+1,y} = 1` has odds
    e^ε0 over the rest, :math:`E[H_{c+1,y}] = γ\,[c = x]` with :math:`γ = (e-1)/(e+1)`, and c is counted as
    :math:`H_{c+1,y}/γ`: all counts together are one transform of the histogram of reports.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: K, the number of categories, at least 2.
    """

    name: ClassVar[str] = "hadamard-response"

    def __init__(self, *, local_epsilon: float, dim: int) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim)
        self._mixture = Mixture.of(local_epsilon, share=Fraction(1, 2))
        self._size = padded_dim(dim + 1)
        self._bits = (self._size - 1).bit_length()

    @property
    def layout(self) -> ReportLayout:
        """The number of a column of the Hadamard matrix."""
        return ReportLayout(self.name, self.dim, (FieldLayout(self._bits),))

    @property
    def worst_variance(self) -> float:
        """E‖R(x) - e_x‖² = K/γ² - 1, for every category."""
        return self.dim / self._mixture.truth**2 - 1

    def blanket(self) -> Blanket:
        """That of Hadamard response: any two categories share half of their likely columns."""
        ideal = ideal_hadamard_response(local_epsilon=self.local_epsilon)
        return as_built(ideal, categories=self.dim, odds=self._mixture.odds)

    @override
    def sum(self, reports: Reports) -> Tensor:
        columns = self._columns(reports)
        ones = torch.ones(len(columns), dtype=torch.float64, device=columns.device)
        return hadamard_scatter(columns, ones, dim=self.dim + 1)[1:] / self._mixture.truth

    def outcomes(self) -> Reports | None:
        """Every column, up to 2**16 of them."""
        return self.layout.reports(torch.arange(self._size)) if self._size <= MOST_OUTCOMES else None

    @property
    def _log_reports(self) -> float:
        return self._bits * math.log(2)

    def _likely(self, reports: Reports, category: int) -> Tensor:
        columns = self._columns(reports)
        return hadamard_signs(torch.tensor(category + 1, device=columns.device), columns) > 0

    def _columns(self, reports: Reports) -> Tensor:
        return self.read_reports(reports, self._size)[0]

    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        """The number of a column of the Hadamard matrix for each category."""
        rows = x + 1
        columns = randomness.integers(self._size, len(x), device=x.device)
        wrong = self._truthful(x, randomness) & (hadamard_signs(rows, columns) < 0)
        # Flipping a column's bit at the row's lowest one changes the sign: it maps one half onto the other.
        return self.layout.reports(torch.where(wrong, columns ^ (rows & -rows), columns))
