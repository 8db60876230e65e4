"""Categories as integer vectors: all of a client's steps in one coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.core import Rows, checked_categories, checks
from shuffle_plugins.protocols.lattices import MOST_LEVELS, Lattice
from shuffle_plugins.protocols.shuffle_protocol import check_categories
from shuffle_plugins.randomness import Randomness


@dataclass(frozen=True, kw_only=True, slots=True)
class OneHot(Lattice):
    """A category c of K as ``levels`` steps in coordinate c and none elsewhere: nothing is rounded.

    Attributes:
        categories: K, at least 2.
        levels: g, steps that stand for one client, in [1, 2**24].

    Raises:
        ValueError: if a field is out of range.
    """

    categories: int
    levels: int

    def __post_init__(self) -> None:
        check_categories(self.categories)
        checks.whole("levels", self.levels, at_most=MOST_LEVELS)

    @property
    def size(self) -> int:
        """K, a count for each category."""
        return self.categories

    @property
    def step(self) -> float:
        """One step in clients: 1 / levels."""
        return 1 / self.levels

    @property
    def sensitivity(self) -> float:
        """√2·levels: replacing a client moves two counts by ``levels`` each. Rounded up."""
        return math.nextafter(math.sqrt(2) * self.levels, math.inf)

    @property
    def norm_bound(self) -> float:
        """``levels``: all of a client's steps are in one coordinate."""
        return float(self.levels)

    @property
    def attained(self) -> int:
        """One category's count moves by this much; the other one that moves is left out of the bound."""
        return self.levels

    @property
    def diameter(self) -> float:
        """√2·levels, as :attr:`sensitivity`: nothing is rounded."""
        return math.sqrt(2) * self.levels

    @property
    def rounding_variance(self) -> float:
        """0: categories are not rounded."""
        return 0.0

    def checked(self, x: Tensor | Rows) -> Tensor:
        """The categories as int64 (clients,).

        Raises:
            TypeError: if x is not a tensor.
            ValueError: if x is not a vector of integers, or names a category that does not exist.
        """
        return checked_categories(x, categories=self.categories)

    def encode(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """Each client's category, (clients,), as int64 (clients, categories); no random bits are used."""
        held = self.checked(x)
        encoded = torch.zeros(len(held), self.categories, dtype=torch.int64, device=held.device)
        return encoded.scatter_(1, held.unsqueeze(1), self.levels)

    def encoded_sum(self, x: Tensor | Rows, *, randomness: Randomness) -> Tensor:
        """The sum of :meth:`encode` over clients, int64 (categories,) on the CPU, without the vectors."""
        return torch.bincount(self.checked(x), minlength=self.categories).cpu() * self.levels
