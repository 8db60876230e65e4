"""Which clients send a gradient in which step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from shuffle_plugins.randomness import PROBABILITY_BITS, Randomness


class Scheme(StrEnum):
    """How clients take part.

    ``BATCHES``: each client in one step, all steps of equal size (sequentially interactive).
    ``EVERYBODY``: every client in every step (fully interactive).
    ``COHORTS``: k of n drawn anew for every step.
    ``SELF_SAMPLED``: every client tosses a coin for every step, in secret.
    ``PERMUTATION``: one client a step, in a secret uniform order, each once.
    """

    BATCHES = "disjoint batches"
    EVERYBODY = "everybody"
    COHORTS = "k of n"
    SELF_SAMPLED = "self-sampled"
    PERMUTATION = "random permutation"


@dataclass(frozen=True, kw_only=True, slots=True)
class Participation:
    """Clients and steps of one group of clients.

    Attributes:
        scheme: how clients take part.
        clients: n of this group.
        cohort: clients in a step; the expected number if they sample themselves.
        num_steps: T.

    Raises:
        ValueError: if the numbers do not fit the scheme.
    """

    scheme: Scheme
    clients: int
    cohort: int
    num_steps: int

    def __post_init__(self) -> None:
        for name in ("clients", "cohort", "num_steps"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")
        if self.cohort > self.clients:
            raise ValueError(f"a step of {self.cohort} clients, out of {self.clients}: ask for fewer")
        if self.scheme is Scheme.EVERYBODY and self.cohort != self.clients:
            raise ValueError("everybody takes part: cohort must be clients")
        if self.once and self.cohort * self.num_steps > self.clients:
            raise ValueError(
                f"{self.num_steps} steps of {self.cohort} need more than {self.clients} clients, each once"
            )

    @property
    def once(self) -> bool:
        """Whether a client takes part in one step at most."""
        return self.scheme in (Scheme.BATCHES, Scheme.PERMUTATION)

    @property
    def releases(self) -> int:
        """How often the round that an accountant knows is recorded: a pass counts as one."""
        return 1 if self.once else self.num_steps

    @property
    def sampling_rate(self) -> float:
        """Probability that a client takes part in a step that samples."""
        return self.cohort / self.clients

    def drawn(self, step: int, *, order: Tensor, randomness: Randomness) -> Tensor:
        """Positions of the clients of a step.

        Args:
            step: from 1.
            order: a uniform permutation of the group's clients, drawn once.
            randomness: where cohorts are drawn from.
        """
        if self.once:
            return order[(step - 1) * self.cohort : step * self.cohort]
        if self.scheme is Scheme.EVERYBODY:
            return order
        if self.scheme is Scheme.COHORTS:
            return randomness.permutation(self.clients)[: self.cohort]
        threshold = self.cohort * (1 << PROBABILITY_BITS) // self.clients
        coins = randomness.bernoulli(torch.full((self.clients,), threshold, dtype=torch.int64))
        return coins.nonzero().flatten()
