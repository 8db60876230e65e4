"""Batch samplers whose law is the one that the accountant charges for."""

from __future__ import annotations

import math
import zlib
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Sampler, SequentialSampler

from opacus_shuffle.deliveries import Delivery, new_iteration
from opacus_shuffle.errors import ShufflePrivacyError, checked
from shuffle_plugins.accounting import Sampling
from shuffle_plugins.core import checks
from shuffle_plugins.randomness import Randomness, SeededRandomness, secure

_LAW = ("population", "cohort", "rank", "world_size")  # attributes that the accounting relies on
_KEY_WORDS, _WORD_BITS = 5, 62  # integers are drawn below 2**62; five of them are 310 bits


def seed_from(randomness: Randomness) -> int:
    """310 random bits: the seed of a ``SeededRandomness`` that is as good as the source they came from."""
    words = randomness.integers(1 << _WORD_BITS, (_KEY_WORDS,), device="cpu").tolist()
    return sum(int(word) << (_WORD_BITS * i) for i, word in enumerate(words))


def rounds_in(num_steps: int, *, population: int, cohort: float, sampling: Sampling) -> int:
    """How many rounds an accountant counts in so many steps: each is one, but an epoch is one as a whole."""
    if sampling is not Sampling.EPOCH:
        return num_steps
    return math.ceil(num_steps / (population // int(cohort)))


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


class DeliveryListener(Protocol):
    """What samplers and loaders call on the optimizer."""

    def attach_sampler(self, sampler: CohortSampler) -> None:
        """Called by ``CohortSampler.attach``: check that the sampler draws the rounds that this listener
        accounts for.

        Raises:
            ShufflePrivacyError: if the sampler draws other rounds than the listener accounts for.
        """

    def begin_iteration(self) -> None:
        """Called when an iteration begins: drop a round that was begun and not released."""

    def end_iteration(self) -> None:
        """Called when all batches of an iteration were handed out and another one is asked for."""

    def expect_batch(self, delivery: Delivery, batch: object = None) -> None:
        """Called when a batch is handed out: the next step is on it, and no longer on an earlier one."""


class CohortSampler(BatchSampler):
    """Draws each step's cohort independently of every other step.

    A ``BatchSampler`` for :class:`~opacus_shuffle.CohortLoader`, which announces every batch to the attached
    optimizer when it is delivered; with no optimizer attached any ``DataLoader`` takes it. One iteration may
    be live at a time: starting a second one ends the first with an error, because batches of two interleaved
    iterations could meet in one round.

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
            checked(checks.whole, name, value)
        if cohort > population:
            raise ShufflePrivacyError(
                f"a cohort of {cohort} cannot be drawn from {population} records: use a smaller batch_size"
            )
        if not 0 <= rank < world_size:
            raise ShufflePrivacyError(f"rank must be in [0, {world_size}), got {rank!r}")
        if cohort < world_size:
            raise ShufflePrivacyError(f"a cohort of {cohort} leaves some of {world_size} processes idle")
        steps = checked(checks.whole, "num_steps", population // cohort if num_steps is None else num_steps)
        if self.sampling is Sampling.EPOCH and steps > population // cohort:
            raise ShufflePrivacyError(
                f"an epoch of {population} records has {population // cohort} batches of {cohort}, not "
                f"{steps}: iterate again for the next epoch"
            )
        super().__init__(SequentialSampler(range(population)), len(range(rank, cohort, world_size)), False)
        self.population = population
        self.cohort = cohort
        self.num_steps = steps
        self.rank = rank
        self.world_size = world_size
        self._listener: DeliveryListener | None = None
        self._source = self._randomness = secure(randomness)
        self._delivering = False
        self._drawn: deque[Delivery] = deque()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, but for those that the accounting relies on.

        Raises:
            ShufflePrivacyError: for the population, the cohort, the rank and the number of processes.
        """
        if name in _LAW and name in self.__dict__:
            raise ShufflePrivacyError(
                f"{name} of a sampler cannot change, since its optimizer accounts for what it was made with: "
                "make a new sampler, or call make_private with another loader"
            )
        super().__setattr__(name, value)

    @property
    def sample_rate(self) -> float:
        """k / n, the rate that the accountant charges for."""
        return self.cohort / self.population

    @property
    def expected_batch_size(self) -> int:
        """k exactly: what a step's sum is divided by, over all processes."""
        return self.cohort

    def attach(self, listener: DeliveryListener) -> None:
        """Notify an optimizer of every batch that is delivered, so that it takes no other.

        From then on batches are drawn for a :class:`~opacus_shuffle.CohortLoader` only: another loader would
        not say when it delivers them.

        Raises:
            ShufflePrivacyError: if the optimizer accounts for another n, k, law or number of processes.
        """
        listener.attach_sampler(self)
        self._listener = listener
        listener.begin_iteration()

    @property
    def listener(self) -> DeliveryListener | None:
        """The optimizer that is notified of delivered batches; None if none is attached."""
        return self._listener

    def start(self) -> None:
        """Prepare an iteration, before its first draw."""

    @abstractmethod
    def draw(self) -> Tensor:
        """One step's cohort over all processes: distinct indices, int64, in increasing order."""

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches()

    def batches(self, *, max_batch_size: int | None = None) -> Iterator[list[int]]:
        """Begin an iteration: the record numbers of one batch after the other, drawn when asked for.

        Args:
            max_batch_size: if given, every round is split into physical batches of at most so many records,
                of nearly equal sizes; an empty round is one empty batch.

        Raises:
            ShufflePrivacyError: if an optimizer is attached, and it is no ``CohortLoader`` that iterates.
        """
        if self._listener is not None:
            if not self._delivering:
                raise ShufflePrivacyError(
                    "this sampler's optimizer must be told of every batch when it is delivered, and a plain "
                    "DataLoader does not tell. Train on the loader that make_private returned, not on one "
                    "rebuilt from it; without the engine, use opacus_shuffle.CohortLoader(dataset, "
                    "batch_sampler=sampler) in place of DataLoader"
                )
            self._listener.begin_iteration()
        drawn: deque[Delivery] = deque()
        self._drawn = drawn
        return self._draw_batches(drawn, max_batch_size, announced=self._delivering)

    def _draw_batches(
        self, drawn: deque[Delivery], max_batch_size: int | None, *, announced: bool
    ) -> Iterator[list[int]]:
        if isinstance(self._source, SeededRandomness):
            # A stream for each iteration: how far ahead a broken off one has drawn does not matter later.
            self._randomness = SeededRandomness(seed_from(self._source))
        self.check_current(drawn)
        self.start()
        iteration = new_iteration()
        for _ in range(self.num_steps):
            self.check_current(drawn)
            cohort = self.draw()
            batch = cohort[self.rank :: self.world_size].numpy()
            parts = max(1, math.ceil(len(batch) / max_batch_size)) if max_batch_size else 1
            whole = Delivery(
                rows=len(batch),
                parts=parts,
                iteration=iteration,
                checksum=zlib.crc32(cohort.numpy().tobytes()),
            )
            for part, indices in enumerate(np.array_split(batch, parts)):
                self.check_current(drawn)
                if announced:
                    drawn.append(replace(whole, part=part, rows=len(indices)))
                yield indices.tolist()

    def check_current(self, drawn: deque[Delivery]) -> None:
        """Refuse to go on with an iteration after another one began.

        Raises:
            ShufflePrivacyError: if ``drawn`` is not the live iteration's.
        """
        if drawn is not self._drawn:
            raise ShufflePrivacyError(
                "a second iteration over this loader began before the first one ended: train from one "
                "iterator at a time, and evaluate on a loader of its own"
            )

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """While it lasts an iteration may begin; for loaders that announce what they deliver."""
        self._delivering = True
        try:
            yield
        finally:
            self._delivering = False

    @property
    def drawn(self) -> deque[Delivery]:
        """What the live iteration has drawn and not delivered yet, first in first out."""
        return self._drawn

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


class EpochSampler(CohortSampler):
    """Cuts a fresh secret order of all n records into batches of k: one iteration is one epoch.

    Like ``DataLoader(shuffle=True, drop_last=True)``: every record is in at most one batch of an epoch, and
    the n mod k records that fill no batch are left out of it. An iteration that is broken off does not go on:
    the next one has an order of its own. The whole epoch is one round, recorded before its first release.

    Raises:
        ShufflePrivacyError: also if ``num_steps`` is more than n // k batches.
    """

    sampling = Sampling.EPOCH
    _order: Iterator[Tensor] = iter(())

    def start(self) -> None:
        """Put all records into a new order, uniformly."""
        whole = self.num_steps * self.cohort
        order = self._randomness.permutation(self.population)[:whole]
        self._order = iter(torch.split(order, self.cohort))

    def draw(self) -> Tensor:
        """The epoch's next batch over all processes: k distinct indices, int64, in increasing order."""
        return next(self._order).sort().values


class PhysicalBatches(Sampler[list[int]]):
    """The batches of a :class:`CohortSampler`, each split into physical batches that fit into memory.

    Args:
        cohorts: draws the rounds.
        max_batch_size: most records in a physical batch, in this process.

    Raises:
        ShufflePrivacyError: if ``max_batch_size`` is not a positive integer.
    """

    def __init__(self, *, cohorts: CohortSampler, max_batch_size: int) -> None:
        self.cohorts = cohorts
        self.max_batch_size = checked(checks.whole, "max_physical_batch_size", max_batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        return self.cohorts.batches(max_batch_size=self.max_batch_size)

    def __len__(self) -> int:
        """Physical batches in an iteration; under Poisson sampling, of rounds of the expected size."""
        return self.cohorts.num_steps * math.ceil(self.cohorts.batch_size / self.max_batch_size)
