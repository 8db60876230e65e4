"""Batch samplers whose law is the one that the accountant charges for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, SequentialSampler

from opacus_shuffle.errors import ShufflePrivacyError
from shuffle_plugins.accounting import Sampling
from shuffle_plugins.randomness import Randomness, secure


class RoundListener(Protocol):
    """Whoever turns drawn cohorts into rounds: a shuffle optimizer."""

    def begin_iteration(self) -> None:
        """An iteration begins; whatever an earlier one left unfinished is void."""

    def expect_round(self) -> None:
        """A cohort was drawn and its batch is on the way."""


def uniform_subset(*, population: int, size: int, randomness: Randomness) -> Tensor:
    """A uniformly random subset of ``range(population)``.

    The first ``size`` distinct values of a stream of uniform integers are such a subset; subsets larger than
    half the population are drawn as complements, so the expected cost is O(size) random integers.

    Args:
        population: n, at least 1.
        size: number of elements, 0 to n.
        randomness: source of exact uniform integers.

    Returns:
        (size,) int64 tensor in increasing order. The order carries no randomness: a round's result is a sum.
    """
    if 2 * size > population:
        kept = torch.ones(population, dtype=torch.bool)
        kept[uniform_subset(population=population, size=population - size, randomness=randomness)] = False
        return kept.nonzero().flatten()
    distinct = np.empty(0, dtype=np.int64)
    while len(distinct) < size:
        missing = size - len(distinct)
        fresh = randomness.integers(population, (missing + missing // 4 + 8,), device="cpu").numpy()
        stream = np.concatenate([distinct, fresh])
        first_seen = np.sort(np.unique(stream, return_index=True)[1])
        distinct = stream[first_seen[:size]]
    return torch.from_numpy(np.sort(distinct))


class CohortSampler(BatchSampler):
    """Draws each step's cohort independently of every other step.

    A ``BatchSampler``, so ``DataLoader(batch_sampler=...)`` and Opacus's ``BatchMemoryManager`` take it. One
    iteration may be live at a time: starting a second one ends the first with an error, because batches of
    two interleaved iterations could meet in one round.

    Args:
        population: n, the number of records; public and fixed.
        cohort: k, the number (Poisson: the expected number) of records in a step, over all processes.
        num_steps: steps per iteration; by default n // k, one epoch's worth of draws.
        randomness: where draws come from; a fresh cryptographic generator by default. With several processes
            every one of them must use the same stream.
        rank: this process; it yields its part of the common cohort.
        world_size: number of processes.

    Raises:
        ShufflePrivacyError: if a number is out of range, or k is larger than n.
        TypeError: if ``randomness`` is no ``Randomness``.
    """

    sampling: ClassVar[Sampling]

    def __init__(
        self,
        *,
        population: int,
        cohort: int,
        num_steps: int | None = None,
        randomness: Randomness | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, value in (("population", population), ("cohort", cohort), ("world_size", world_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ShufflePrivacyError(f"{name} must be a positive integer, got {value!r}")
        if cohort > population:
            raise ShufflePrivacyError(
                f"a cohort of {cohort} cannot be drawn from {population} records: use a smaller batch_size"
            )
        if not 0 <= rank < world_size:
            raise ShufflePrivacyError(f"rank must be in [0, {world_size}), got {rank!r}")
        if cohort < world_size:
            raise ShufflePrivacyError(f"a cohort of {cohort} leaves some of {world_size} processes idle")
        steps = population // cohort if num_steps is None else num_steps
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ShufflePrivacyError(f"num_steps must be a positive integer, got {num_steps!r}")
        super().__init__(SequentialSampler(range(population)), len(range(rank, cohort, world_size)), False)
        self.population = population
        self.cohort = cohort
        self.num_steps = steps
        self.rank = rank
        self.world_size = world_size
        self._listener: RoundListener | None = None
        self._randomness = secure(randomness)
        self._iteration = 0

    @property
    def sample_rate(self) -> float:
        """k / n, the rate that the accountant charges for."""
        return self.cohort / self.population

    @property
    def expected_batch_size(self) -> int:
        """k exactly: what a step's sum is divided by, over all processes."""
        return self.cohort

    def attach(self, listener: RoundListener) -> None:
        """Tell an optimizer about every draw, so that it refuses batches from elsewhere and leftovers."""
        self._listener = listener
        listener.begin_iteration()

    @abstractmethod
    def draw(self) -> Tensor:
        """One step's cohort over all processes: distinct indices, int64, in increasing order."""

    def __iter__(self) -> Iterator[list[int]]:
        self._iteration += 1
        iteration = self._iteration
        if self._listener is not None:
            self._listener.begin_iteration()
        for _ in range(self.num_steps):
            if iteration != self._iteration:
                raise ShufflePrivacyError(
                    "a second iteration over this loader began before the first one ended: train from one "
                    "iterator at a time, and evaluate on a loader of its own"
                )
            batch = self.draw()[self.rank :: self.world_size].tolist()
            if self._listener is not None:
                self._listener.expect_round()
            yield batch

    def __len__(self) -> int:
        return self.num_steps


class FixedSizeSampler(CohortSampler):
    """Exactly k of n without replacement, uniformly, independently in every step."""

    sampling = Sampling.WITHOUT_REPLACEMENT

    def draw(self) -> Tensor:
        """One step's cohort over all processes: k distinct indices, int64, in increasing order."""
        return uniform_subset(population=self.population, size=self.cohort, randomness=self._randomness)


class PoissonSampler(CohortSampler):
    """Each of n records independently with probability exactly k / n; a cohort may be empty."""

    sampling = Sampling.POISSON

    def draw(self) -> Tensor:
        """One step's cohort over all processes: distinct indices, int64, in increasing order."""
        joined = self._randomness.integers(self.population, (self.population,), device="cpu") < self.cohort
        return joined.nonzero().flatten()
