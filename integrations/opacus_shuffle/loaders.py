"""How batches are drawn, by the law that the accountant charges for, and announced when delivered."""

from __future__ import annotations

import inspect
import itertools
import math
import zlib
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.data_loader import DPDataLoader, wrap_collate_with_empty
from opacus.optimizers import DPOptimizer
from opacus.utils import batch_memory_manager
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)
from typing_extensions import override

from opacus_shuffle.accountants import ShufflePrivacyError, checked
from shuffle_plugins.accounting import Sampling
from shuffle_plugins.core import checks
from shuffle_plugins.randomness import Randomness, SeededRandomness, secure

# The mean of a weighted cross_entropy is over the weights of the whole batch, which mixes records.
_WEIGHED = "cross_entropy(output, y, weight=w, reduction='none').mean()"
_LAW = ("population", "cohort", "rank", "world_size")  # attributes that the accounting relies on
_iterations = itertools.count()


def seed_from(randomness: Randomness) -> int:
    """310 random bits: the seed of a ``SeededRandomness`` that is as good as the source they came from."""
    words = randomness.integers(1 << 62, (5,), device="cpu").tolist()
    return sum(int(word) << (62 * i) for i, word in enumerate(words))


def rounds_in(num_steps: int, *, population: int, cohort: float, sampling: Sampling) -> int:
    """How many rounds an accountant counts in so many steps: each is one, but an epoch is one as a whole."""
    if sampling is not Sampling.EPOCH:
        return num_steps
    return math.ceil(num_steps / (population // int(cohort)))


def uniform_subset(*, population: int, size: int, randomness: Randomness) -> Tensor:
    """A uniformly random subset of ``range(population)``, (size,) int64 in increasing order."""
    if 2 * size > population:
        return randomness.permutation(population)[:size].sort().values
    distinct = np.empty(0, dtype=np.int64)  # the first so many distinct values are a uniform subset
    while len(distinct) < size:
        missing = size - len(distinct)
        fresh = randomness.integers(population, (missing + missing // 4 + 8,), device="cpu").numpy()
        stream = np.concatenate([distinct, fresh])
        first_seen = np.sort(np.unique(stream, return_index=True)[1])
        distinct = stream[first_seen[:size]]
    return torch.from_numpy(np.sort(distinct))


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A batch that a loader hands out: the records of one draw of the sampler (a round), or a part."""

    rows: int  # records in this process; zero in an empty Poisson batch
    part: int = 0  # its place among the round's physical batches
    parts: int = 1
    iteration: int = field(default_factory=_iterations.__next__)  # over the sampler: an epoch is paid once
    checksum: int = 0  # of the numbers of the records drawn, which processes compare
    level: float | None = None  # ε0 of all its records, where they have one each

    @property
    def last(self) -> bool:
        """Whether this is the round's last physical batch."""
        return self.part == self.parts - 1


class CohortSampler(BatchSampler):
    """Draws each step's cohort independently of every other step.

    For :class:`~opacus_shuffle.CohortLoader`; with no optimizer attached any ``DataLoader`` takes it.
    A second iteration ends the first with an error: batches of two could meet in one round.

    Args:
        cohort: k, the number (Poisson: the expected number) of records in a step, over all processes.
        randomness: where draws come from; the same stream in each of ``world_size`` processes.
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
        checked(checks.whole, "population", population)
        checked(checks.whole, "world_size", world_size)
        checked(checks.whole, "rank", rank, at_least=0, at_most=world_size - 1)
        checked(checks.whole, "cohort", cohort, at_least=world_size, at_most=population)
        whole_pass = population // cohort
        steps = whole_pass if num_steps is None else num_steps
        most = whole_pass if self.sampling is Sampling.EPOCH else math.inf
        checked(checks.whole, "num_steps", steps, at_most=most)
        super().__init__(SequentialSampler(range(population)), len(range(rank, cohort, world_size)), False)
        self.population = population
        self.cohort = cohort
        self.num_steps = steps
        self.rank = rank
        self.world_size = world_size
        self.listener: DPOptimizer | None = None  # one of ours
        self.levels: NDArray[np.float64] | None = None  # ε0 of every record, if its optimizer has them
        self.drawn: deque[Delivery] = deque()  # by the live iteration, and not delivered yet
        self._source = self._randomness = secure(randomness)
        self._delivering = False
        self._most: int | None = None

    @override
    def __setattr__(self, name: str, value: object) -> None:
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

    def attach(self, listener: DPOptimizer) -> None:
        """Notify an optimizer of every batch that is delivered, so that it takes no other."""
        listener.attach_sampler(self)
        self.listener = listener
        listener.begin_iteration()

    def start(self) -> None:
        """Prepare an iteration, before its first draw."""

    @abstractmethod
    def draw(self) -> Tensor:
        """One step's cohort over all processes: distinct indices, int64, in increasing order."""

    @contextmanager
    def delivering(self, *, most: int | None) -> Iterator[None]:
        """While it lasts an iteration may begin, whose batches, of at most so many records, are announced."""
        self._delivering, self._most = True, most
        try:
            yield
        finally:
            self._delivering, self._most = False, None

    @override
    def __iter__(self) -> Iterator[list[int]]:
        """Begin an iteration: the record numbers of one batch after the other, drawn when asked for."""
        if self.listener is not None:
            if not self._delivering:
                raise ShufflePrivacyError(
                    "this sampler's optimizer must be told of every batch when it is delivered, and a plain "
                    "DataLoader does not tell. Train on the loader that make_private returned, not on one "
                    "rebuilt from it; without the engine, use opacus_shuffle.CohortLoader(dataset, "
                    "batch_sampler=sampler) in place of DataLoader"
                )
            self.listener.begin_iteration()
        self.drawn = deque()
        return self._draw_batches(self.drawn, self._most, announced=self._delivering)

    def _draw_batches(
        self, drawn: deque[Delivery], most: int | None, *, announced: bool
    ) -> Iterator[list[int]]:
        if isinstance(self._source, SeededRandomness):
            # A stream for each iteration: how far ahead a broken off one has drawn does not matter later.
            self._randomness = SeededRandomness(seed_from(self._source))
        self.check_current(drawn)
        self.start()
        iteration = next(_iterations)
        for _ in range(self.num_steps):
            self.check_current(drawn)
            cohort = self.draw()
            batch = cohort[self.rank :: self.world_size].numpy()
            parts = list(self._parts(batch, most))
            checksum = zlib.crc32(cohort.numpy().tobytes())
            whole = Delivery(rows=len(batch), parts=len(parts), iteration=iteration, checksum=checksum)
            for part, indices in enumerate(parts):
                self.check_current(drawn)
                if announced:
                    level = (
                        self.levels[indices[0]].item() if self.levels is not None and len(indices) else None
                    )
                    drawn.append(replace(whole, part=part, rows=len(indices), level=level))
                yield indices.tolist()

    def _parts(self, batch: NDArray[np.int64], most: int | None) -> Iterator[NDArray[np.int64]]:
        """The physical batches of a round, each of one level, so that any order of its rows is right."""
        alike = [batch]
        if self.levels is not None and len(batch):
            own = self.levels[batch]
            alike = [batch[own == level] for level in np.unique(own)]
        for each in alike:
            yield from np.array_split(each, max(1, math.ceil(len(each) / most)) if most else 1)

    def check_current(self, drawn: deque[Delivery]) -> None:
        """Refuse to go on with the iteration that draws into ``drawn`` after another one began."""
        if drawn is not self.drawn:
            raise ShufflePrivacyError(
                "a second iteration over this loader began before the first one ended: train from one "
                "iterator at a time, and evaluate on a loader of its own"
            )

    @override
    def __len__(self) -> int:
        return self.num_steps


class FixedSizeSampler(CohortSampler):
    """Exactly k of n without replacement, uniformly, independently in every step."""

    sampling = Sampling.WITHOUT_REPLACEMENT

    @override
    def draw(self) -> Tensor:
        return uniform_subset(population=self.population, size=self.cohort, randomness=self._randomness)


class PoissonSampler(CohortSampler):
    """Each of n records independently with probability exactly k / n; a cohort may be empty."""

    sampling = Sampling.POISSON

    @override
    def draw(self) -> Tensor:
        joined = self._randomness.integers(self.population, (self.population,), device="cpu") < self.cohort
        return joined.nonzero().flatten()


class EpochSampler(CohortSampler):
    """Cuts a fresh secret order of all n records into batches of k, as ``shuffle=True, drop_last=True`` does.

    One iteration is one epoch, and one round, recorded before its first release.
    """

    sampling = Sampling.EPOCH
    _order: Iterator[Tensor] = iter(())

    @override
    def start(self) -> None:
        whole = self.num_steps * self.cohort
        order = self._randomness.permutation(self.population)[:whole]
        self._order = iter(torch.split(order, self.cohort))

    @override
    def draw(self) -> Tensor:
        return next(self._order).sort().values


SAMPLERS: dict[Sampling, type[CohortSampler]] = {
    sampler.sampling: sampler for sampler in (FixedSizeSampler, PoissonSampler, EpochSampler)
}


def checked_sampling(sampling: object) -> Sampling:
    """A law of batches for which there is a sampler."""
    if sampling not in list(SAMPLERS):
        raise ShufflePrivacyError(f"sampling must be one of {[s.value for s in SAMPLERS]}, got {sampling!r}")
    return Sampling(str(sampling))


class CohortLoader(DataLoader[Any]):
    """A ``DataLoader`` that announces every batch to the optimizer at the moment it is delivered.

    Attach the optimizer to the sampler first (``sampler.attach(optimizer)``). Rounds of more records than
    ``max_batch_size`` in this process are split. Further options are those of ``DataLoader``.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch_sampler: CohortSampler,
        max_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(batch_sampler, CohortSampler):
            raise ShufflePrivacyError(
                "batch_sampler must be a FixedSizeSampler, a PoissonSampler or an EpochSampler, got "
                f"{batch_sampler!r}"
            )
        refuse_iterable(dataset)
        if max_batch_size is None:  # and not of a loader whose data set was looked at before
            _refuse_repeated_records(dataset, population=batch_sampler.population)
        else:
            max_batch_size = checked(checks.whole, "max_physical_batch_size", max_batch_size)
        if isinstance(dataset, Sized) and len(dataset) != batch_sampler.population:
            raise ShufflePrivacyError(
                f"the data set has {len(dataset)} records, the sampler draws from "
                f"{batch_sampler.population}: give the sampler population=len(dataset)"
            )
        self._cohorts, self.max_batch_size = batch_sampler, max_batch_size
        super().__init__(dataset, batch_sampler=batch_sampler, **options)
        if not getattr(self, "in_order", True):
            raise ShufflePrivacyError(
                "in_order=False hands batches out in another order than they are announced in: leave it out"
            )

    @property
    def sample_rate(self) -> float:
        """k / n, as ``DPDataLoader`` has it."""
        return self._cohorts.sample_rate

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Has ``accelerator.prepare`` leave this loader alone: one that it builds would announce no batch."""
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise ShufflePrivacyError(
                "several processes of Accelerate would each draw and account for batches of their own: leave "
                "the private model, optimizer and loader out of accelerator.prepare, and wrap the model in "
                "Opacus's DifferentiallyPrivateDistributedDataParallel before make_private"
            )
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, _: bool) -> None:
        """Accelerate writes what it has read."""

    @override
    def __len__(self) -> int:
        """Physical batches in an iteration; under Poisson sampling, of rounds of the expected size."""
        cohorts = self._cohorts
        shares = np.ones(1)
        if cohorts.levels is not None:
            shares = np.unique(cohorts.levels, return_counts=True)[1] / cohorts.population
        most = self.max_batch_size or math.inf
        return cohorts.num_steps * sum(
            max(1, math.ceil(share * cohorts.batch_size / most)) for share in shares
        )

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with self._cohorts.delivering(most=self.max_batch_size):
            batches = super().__iter__()
        return self._deliver(batches, self._cohorts.drawn)

    def _deliver(self, batches: Iterator[Any], drawn: deque[Delivery]) -> Iterator[Any]:
        while True:
            self._cohorts.check_current(drawn)
            listener = self._cohorts.listener
            try:
                batch = next(batches)
            except StopIteration:
                if listener is not None:
                    listener.record_passed_over()
                return
            if not drawn:
                raise ShufflePrivacyError(
                    "this version of torch delivers batches that were not drawn: please report it"
                )
            delivery = drawn.popleft()
            if listener is not None:
                listener.expect_batch(delivery, batch)
            yield batch


def refuse_iterable(dataset: object) -> None:
    """Refuse a data set from which records cannot be drawn by number."""
    if isinstance(dataset, IterableDataset):
        raise ShufflePrivacyError(
            "an IterableDataset chooses the records by itself, and ε is for batches that the engine draws: "
            "make a map-style data set of it, with a length and with records by number, such as list(dataset)"
        )


def refuse_other_sampler(
    sampler: Any, *, records: int, random: tuple[type[RandomSampler], ...] = (RandomSampler,)
) -> None:
    """Refuse a sampler that does more than put all records in order, or in a random one."""
    if type(sampler) is SequentialSampler:
        return
    if type(sampler) not in random or sampler.replacement or sampler.num_samples != records:
        raise ShufflePrivacyError(
            f"the loader's {type(sampler).__name__} would be replaced, because the accounting holds for the "
            "engine's own sampler only. Build the loader with batch_size=k and no sampler, shuffled or not; "
            "under several processes the engine splits each batch itself. Weigh classes in the loss, record "
            f"by record, as {_WEIGHED} does"
        )


def _refuse_repeated_records(dataset: object, *, population: int) -> None:
    """Refuse a data set some of whose rows are the same record, as far as its torch wrappers show it."""
    if not isinstance(dataset, (Subset, ConcatDataset)):
        return
    places: dict[int, list[NDArray[np.int64]]] = {}

    def find(part: Any, rows: NDArray[np.int64]) -> None:
        if isinstance(part, Subset):
            find(part.dataset, torch.as_tensor(part.indices).numpy()[rows])
        elif isinstance(part, ConcatDataset):
            ends = np.asarray(part.cumulative_sizes)
            rows = np.where(rows < 0, rows + len(part), rows)
            chosen = np.searchsorted(ends, rows, side="right")
            for number, (child, end) in enumerate(zip(part.datasets, ends, strict=True)):
                find(child, rows[chosen == number] - (end - len(child)))  # type: ignore[arg-type]
        else:
            if isinstance(part, Sized):
                rows = np.where(rows < 0, rows + len(part), rows)
            places.setdefault(id(part), []).append(rows)

    find(dataset, np.arange(population))
    different = sum(len(np.unique(np.concatenate(rows))) for rows in places.values())
    if different < population:
        raise ShufflePrivacyError(
            f"{population - different:,} of {population:,} rows of the data set repeat a record: every copy "
            "is drawn and reported by itself, so ε would hold for a row and not for the person behind it. "
            "Give each record one row; to weigh classes, weigh them in the loss, record by record, as "
            f"{_WEIGHED} does"
        )


_opacus_wrap_data_loader = batch_memory_manager.wrap_data_loader


def wrap_data_loader(
    *, data_loader: DataLoader[Any], max_batch_size: int, optimizer: DPOptimizer
) -> DataLoader[Any]:
    """What ``BatchMemoryManager`` iterates over, in place of Opacus's function of the same name."""
    sampler = data_loader.batch_sampler
    if not isinstance(sampler, CohortSampler) or sampler.listener is None:
        return _opacus_wrap_data_loader(  # type: ignore[no-any-return]
            data_loader=data_loader, max_batch_size=max_batch_size, optimizer=optimizer
        )
    if sampler.listener not in (optimizer, getattr(optimizer, "optimizer", None)):
        raise ShufflePrivacyError(
            "BatchMemoryManager needs the loader and the optimizer that belong together: those that one call "
            "of make_private returned"
        )
    checked(checks.whole, "max_physical_batch_size", max_batch_size)
    before = getattr(data_loader, "max_batch_size", None) or max_batch_size
    return CohortLoader(
        data_loader.dataset,
        batch_sampler=sampler,
        max_batch_size=min(max_batch_size, before),
        **options_of(data_loader),
    )


def population_and_cohort(data_loader: DataLoader[Any]) -> tuple[int, int]:
    """n and k of a loader: the size of its data set, and its (of a ``DPDataLoader``: expected) batch size."""
    dataset: Any = data_loader.dataset
    refuse_iterable(dataset)
    population = len(dataset)
    _refuse_repeated_records(dataset, population=population)
    if isinstance(data_loader.batch_sampler, CohortSampler):
        return data_loader.batch_sampler.population, data_loader.batch_sampler.cohort
    if isinstance(data_loader, DPDataLoader):
        cohort = round(data_loader.sample_rate * population)
    elif data_loader.batch_size is None:
        raise ShufflePrivacyError(
            "the loader has no batch_size (it was built with a batch_sampler, or without batching): build it "
            "with batch_size=k and leave the sampling to the engine"
        )
    else:
        refuse_other_sampler(data_loader.sampler, records=population)
        cohort = data_loader.batch_size
    if cohort > population:
        raise ShufflePrivacyError(f"a batch of {cohort:,} cannot be drawn from a data set of {population:,}")
    return population, checked(checks.whole, "batch_size", cohort)


def with_sampler(
    data_loader: DataLoader[Any], sampler: CohortSampler, *, batch_first: bool = True
) -> CohortLoader:
    """A loader like ``data_loader`` that draws from ``sampler``; an empty batch has tensors with no rows."""
    options = options_of(data_loader)
    if isinstance(sampler, PoissonSampler):
        collate_fn = wrap_collate_with_empty(collate_fn=data_loader.collate_fn, batch_first=batch_first)
        collate_fn([data_loader.dataset[0]])
        options["collate_fn"] = collate_fn
    return CohortLoader(data_loader.dataset, batch_sampler=sampler, **options)


def options_of(data_loader: DataLoader[Any]) -> dict[str, Any]:
    """All that it was made with, but for the records and how they are drawn."""
    drawn = {"self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}
    names = inspect.signature(DataLoader.__init__).parameters.keys() - drawn
    return {name: getattr(data_loader, name) for name in names}
