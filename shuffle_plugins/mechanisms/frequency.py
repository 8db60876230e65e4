"""Randomizers of a category: their reports, summed, estimate how many clients hold each."""

from __future__ import annotations

from abc import abstractmethod

from shuffle_plugins.core import Reports, checked_categories
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import Mechanism
from shuffle_plugins.randomness import Randomness, secure


class FrequencyOracle(Mechanism):
    """An unbiased ε0-LDP randomizer of one of K categories, batched over clients.

    A client's datum x in {0, …, K - 1} stands for the unit vector e_x; ``sum`` estimates the counts,
    ``aggregate`` the frequencies. Estimates are unbiased, so single entries may be negative.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: K, the number of categories, at least 2.
    """

    def __init__(self, *, local_epsilon: float, dim: int) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim)
        if dim < 2:
            raise ValueError(f"categories must be at least 2 for {self.name}, got dim={dim}")

    @property
    def domain(self) -> str:
        """Categories 0, …, dim - 1."""
        return "categories"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(local_epsilon={self.local_epsilon!r}, dim={self.dim})"

    def variance(self, x: Tensor) -> Tensor:
        """E‖R(x) - e_x‖² of each client's report, (clients,) float64, for categories x (clients,).

        :attr:`worst_variance`, the same for every category, unless a mechanism says otherwise.
        """
        return torch.full((len(self.check_categories(x)),), self.worst_variance, dtype=torch.float64)

    @abstractmethod
    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        """One report for each category, (clients,) int64 in [0, dim); every oracle implements it."""

    def randomize(self, x: Tensor, *, randomness: Randomness | None = None) -> Reports:
        """Report each client's category once, at a cost of ε0 per client.

        Args:
            x: (clients,) integers in [0, dim); may be empty.
            randomness: source of all random bits; a fresh :class:`SecureRandomness` by default.

        Raises:
            TypeError: if x is not a tensor.
            ValueError: if x is not a vector of integers, or names a category that does not exist.
        """
        return self.randomize_categories(self.check_categories(x), secure(randomness))

    def randomize_sum(self, x: Tensor, *, randomness: Randomness | None = None) -> Tensor:
        """A draw with the law of ``sum(randomize(x))``, (dim,), for a host that simulates all clients.

        Raises:
            TypeError, ValueError: as :meth:`randomize`.
        """
        return self.sum(self.randomize(x, randomness=randomness))

    def check_categories(self, x: Tensor) -> Tensor:
        """Return the categories as int64, (clients,).

        Raises:
            TypeError: if x is not a tensor.
            ValueError: if x is not a vector of integers, or names a category that does not exist.
        """
        return checked_categories(x, categories=self.dim)
