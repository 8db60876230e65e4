"""Which clients send a gradient in which step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.core import Count, Ranged
from shuffle_plugins.randomness import PROBABILITY_BITS, Randomness

_IN_WORDS = {
    Sampling.SINGLE_PASS: "disjoint batches",
    Sampling.FULL: "everybody",
    Sampling.WITHOUT_REPLACEMENT: "k of n",
    Sampling.POISSON: "self-sampled",
    Sampling.EPOCH: "random permutation",
}


@dataclass(frozen=True, kw_only=True)
class Participation(Ranged):
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
        records_per_client: m, the records that each client has.
        samples_per_client: s, the records that a client draws anew, uniformly and in secret, for every step
            that it is in; only under ``WITHOUT_REPLACEMENT`` and ``POISSON`` may there be several records.
    """

    sampling: Sampling
    population: Count
    cohort: Count
    num_steps: Count
    records_per_client: Count = 1
    samples_per_client: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling not in _IN_WORDS:
            raise ValueError(f"sampling must be one of {[s.value for s in _IN_WORDS]}, got {self.sampling!r}")
        if self.cohort > self.population:
            raise ValueError(f"a step of {self.cohort} clients, out of {self.population}: ask for fewer")
        if self.samples_per_client > self.records_per_client:
            raise ValueError(
                f"samples must be at most records_per_client, got {self.samples_per_client} of "
                f"{self.records_per_client}: a client reports on a record at most once in a step"
            )
        if self.records_per_client > 1 and self.sampling not in (
            Sampling.WITHOUT_REPLACEMENT,
            Sampling.POISSON,
        ):
            raise ValueError(f"clients with several records are drawn anew for every step, not {self}")
        if self.sampling is Sampling.FULL and self.cohort != self.population:
            raise ValueError("everybody takes part: cohort must be equal to population")
        if self.once and self.cohort * self.num_steps > self.population:
            raise ValueError(
                f"{self.num_steps} steps of {self.cohort} need more than {self.population} clients, each once"
            )

    def __str__(self) -> str:
        words = _IN_WORDS[self.sampling]
        if self.records_per_client == 1:
            return words
        return f"{words}, {self.samples_per_client} of {self.records_per_client} records each"

    @property
    def reports(self) -> int:
        """Reports of a step, k·s; under ``POISSON`` the expected number."""
        return self.cohort * self.samples_per_client

    @property
    def once(self) -> bool:
        """Whether a client takes part in one step at most."""
        return self.sampling in (Sampling.SINGLE_PASS, Sampling.EPOCH)

    @property
    def releases(self) -> int:
        """How often an accountant records the oracle's round: a whole pass counts as one."""
        return 1 if self.once else self.num_steps

    def drawn(self, step: int, *, order: Tensor, randomness: Randomness) -> Tensor:
        """Positions of the records of a step, from 1, int64; client i has those from i·m to (i + 1)·m − 1.

        ``order`` is a uniform permutation of the group's clients, drawn once.
        """
        clients = self._clients(step, order=order, randomness=randomness)
        records, samples = self.records_per_client, self.samples_per_client
        if records == 1:
            return clients
        if samples == 1:
            chosen = randomness.integers(records, (len(clients), 1))
        else:  # the places of the smallest of m random words
            chosen = randomness.words(len(clients) * records).reshape(-1, records).argsort(dim=1)[:, :samples]
        return (clients.unsqueeze(1) * records + chosen).flatten()

    def _clients(self, step: int, *, order: Tensor, randomness: Randomness) -> Tensor:
        if self.once:
            return order[(step - 1) * self.cohort : step * self.cohort]
        if self.sampling is Sampling.FULL:
            return order
        if self.sampling is Sampling.WITHOUT_REPLACEMENT:
            return randomness.permutation(self.population)[: self.cohort]
        threshold = self.cohort * (1 << PROBABILITY_BITS) // self.population
        coins = randomness.bernoulli(torch.full((self.population,), threshold, dtype=torch.int64))
        return coins.nonzero().flatten()
