"""Which clients send a gradient in which step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.core import checks
from shuffle_plugins.randomness import PROBABILITY_BITS, Randomness

_IN_WORDS = {
    Sampling.SINGLE_PASS: "disjoint batches",
    Sampling.FULL: "everybody",
    Sampling.WITHOUT_REPLACEMENT: "k of n",
    Sampling.POISSON: "self-sampled",
    Sampling.EPOCH: "random permutation",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Participation:
    """How one group of clients takes part in so many steps.

    Attributes:
        sampling: which clients a step has. ``SINGLE_PASS``: each client is in one step, and all steps are of
            equal size (sequentially interactive). ``FULL``: every client in every step (fully interactive).
            ``WITHOUT_REPLACEMENT``: k of n drawn anew for every step. ``POISSON``: every client tosses a coin
            for every step, in secret. ``EPOCH``: each client is in one step, in a secret uniform order, and
            all clients of a step make one report together.
        population: n, the number of clients in the group.
        cohort: clients in a step; under ``POISSON`` the expected number.
        num_steps: T.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    sampling: Sampling
    population: int
    cohort: int
    num_steps: int

    def __post_init__(self) -> None:
        if self.sampling not in _IN_WORDS:
            raise ValueError(f"sampling must be one of {[s.value for s in _IN_WORDS]}, got {self.sampling!r}")
        for name in ("population", "cohort", "num_steps"):
            checks.whole(name, getattr(self, name))
        if self.cohort > self.population:
            raise ValueError(f"a step of {self.cohort} clients, out of {self.population}: ask for fewer")
        if self.sampling is Sampling.FULL and self.cohort != self.population:
            raise ValueError("everybody takes part: cohort must be equal to population")
        if self.once and self.cohort * self.num_steps > self.population:
            raise ValueError(
                f"{self.num_steps} steps of {self.cohort} need more than {self.population} clients, each once"
            )

    def __str__(self) -> str:
        return _IN_WORDS[self.sampling]

    @property
    def once(self) -> bool:
        """Whether a client takes part in one step at most."""
        return self.sampling in (Sampling.SINGLE_PASS, Sampling.EPOCH)

    @property
    def releases(self) -> int:
        """How often an accountant records the oracle's round: a whole pass counts as one."""
        return 1 if self.once else self.num_steps

    def drawn(self, step: int, *, order: Tensor, randomness: Randomness) -> Tensor:
        """Positions of the clients of a step, int64.

        Args:
            step: from 1.
            order: a uniform permutation of the group's clients, drawn once.
            randomness: where cohorts are drawn from.
        """
        if self.once:
            return order[(step - 1) * self.cohort : step * self.cohort]
        if self.sampling is Sampling.FULL:
            return order
        if self.sampling is Sampling.WITHOUT_REPLACEMENT:
            return randomness.permutation(self.population)[: self.cohort]
        threshold = self.cohort * (1 << PROBABILITY_BITS) // self.population
        coins = randomness.bernoulli(torch.full((self.population,), threshold, dtype=torch.int64))
        return coins.nonzero().flatten()
