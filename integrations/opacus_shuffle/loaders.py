"""Loaders that announce each batch to the optimizer, and how they are made from an ordinary loader."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.data_loader import DPDataLoader, wrap_collate_with_empty
from opacus.optimizers import DPOptimizer
from opacus.utils import batch_memory_manager
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from opacus_shuffle.deliveries import Delivery
from opacus_shuffle.errors import ShufflePrivacyError
from opacus_shuffle.samplers import CohortSampler, PhysicalBatches, PoissonSampler


class CohortLoader(DataLoader[Any]):
    """A ``DataLoader`` that announces every batch to the optimizer at the moment it is delivered.

    With worker processes the :class:`CohortSampler` draws batches before training needs them. The optimizer
    therefore accepts one step per batch, and only after its delivery. ``BatchMemoryManager`` can split this
    loader's batches.

    Args:
        dataset: map-style data set with as many records as the sampler's population.
        batch_sampler: draws the batches: a CohortSampler, or PhysicalBatches of one.
            Attach the optimizer to the CohortSampler first (``sampler.attach(optimizer)``).
        options: further arguments of ``DataLoader``, such as ``num_workers``.

    Raises:
        ShufflePrivacyError: if ``batch_sampler`` is of another type, if its population is not the data set's
            size, if the data set is iterable-style or repeats records, or if ``in_order=False``.
    """

    def __init__(
        self, dataset: Dataset[Any], *, batch_sampler: CohortSampler | PhysicalBatches, **options: Any
    ) -> None:
        if not isinstance(batch_sampler, (CohortSampler, PhysicalBatches)):
            raise ShufflePrivacyError(
                "batch_sampler must be a FixedSizeSampler, a PoissonSampler or an EpochSampler, got "
                f"{batch_sampler!r}"
            )
        self._cohorts = batch_sampler.cohorts if isinstance(batch_sampler, PhysicalBatches) else batch_sampler
        _refuse_iterable(dataset)
        if self._cohorts is batch_sampler:
            _refuse_repeated_records(dataset, population=self._cohorts.population)
        if isinstance(dataset, Sized) and len(dataset) != self._cohorts.population:
            raise ShufflePrivacyError(
                f"the data set has {len(dataset)} records, the sampler draws from "
                f"{self._cohorts.population}: give the sampler population=len(dataset)"
            )
        super().__init__(dataset, batch_sampler=batch_sampler, **options)
        if not getattr(self, "in_order", True):
            raise ShufflePrivacyError(
                "in_order=False hands batches out in another order than they are announced in: leave it out"
            )

    @property
    def sample_rate(self) -> float:
        """k / n, as ``DPDataLoader`` has it."""
        return self._cohorts.sample_rate

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with self._cohorts.delivering():
            batches = super().__iter__()
        return self._deliver(batches, self._cohorts.drawn)

    def _deliver(self, batches: Iterator[Any], drawn: deque[Delivery]) -> Iterator[Any]:
        """Hand out batches in the order in which they were drawn; an error while loading a batch ends the
        iteration."""
        while True:
            self._cohorts.check_current(drawn)
            try:
                batch = next(batches)
            except StopIteration:
                if self._cohorts.listener is not None:
                    self._cohorts.listener.end_iteration()
                return
            if not drawn:
                raise ShufflePrivacyError(
                    "this version of torch delivers batches that were not drawn: please report it"
                )
            delivery = drawn.popleft()
            if self._cohorts.listener is not None:
                self._cohorts.listener.expect_batch(delivery, batch)
            yield batch


def _refuse_iterable(dataset: object) -> None:
    if isinstance(dataset, IterableDataset):
        raise ShufflePrivacyError(
            "an IterableDataset chooses the records by itself, and ε is for batches that the engine draws: "
            "make a map-style data set of it, with a length and with records by number, such as list(dataset)"
        )


def _refuse_repeated_records(dataset: object, *, population: int) -> None:
    """Refuse a data set some of whose rows are the same record, as far as its torch wrappers show it.

    Raises:
        ShufflePrivacyError: since ε is for a data set in which a person has one row.
    """
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
            "Give each record one row; to weigh classes, weigh them in the loss, as "
            "cross_entropy(..., weight=...) does"
        )


def _options(data_loader: DataLoader[Any]) -> dict[str, Any]:
    """Arguments to build another loader like this one; data set and sampler are not among them."""
    return {
        name: getattr(data_loader, name)
        for name in (
            "num_workers",
            "collate_fn",
            "pin_memory",
            "timeout",
            "worker_init_fn",
            "multiprocessing_context",
            "generator",
            "prefetch_factor",
            "persistent_workers",
            "pin_memory_device",
        )
    }


_opacus_wrap_data_loader = batch_memory_manager.wrap_data_loader


def wrap_data_loader(
    *, data_loader: DataLoader[Any], max_batch_size: int, optimizer: DPOptimizer
) -> DataLoader[Any]:
    """The loader that ``BatchMemoryManager`` iterates over: a :class:`CohortLoader` of physical batches if an
    optimizer is attached to the loader's sampler, otherwise what Opacus's own function returns.

    Raises:
        ShufflePrivacyError: if the loader announces its batches to another optimizer.
    """
    sampler = getattr(data_loader, "batch_sampler", None)
    cohorts = sampler.cohorts if isinstance(sampler, PhysicalBatches) else sampler
    if not isinstance(cohorts, CohortSampler) or cohorts.listener is None:
        return _opacus_wrap_data_loader(  # type: ignore[no-any-return]
            data_loader=data_loader, max_batch_size=max_batch_size, optimizer=optimizer
        )
    if cohorts.listener not in (optimizer, getattr(optimizer, "optimizer", None)):
        raise ShufflePrivacyError(
            "BatchMemoryManager needs the loader and the optimizer that belong together: those that one call "
            "of make_private returned"
        )
    if isinstance(sampler, PhysicalBatches):
        max_batch_size = min(max_batch_size, sampler.max_batch_size)
    return CohortLoader(
        data_loader.dataset,
        batch_sampler=PhysicalBatches(cohorts=cohorts, max_batch_size=max_batch_size),
        **_options(data_loader),
    )


def announce_physical_batches() -> None:
    """Make Opacus's ``BatchMemoryManager`` split our loaders by :func:`wrap_data_loader`.

    This monkey-patches ``opacus.utils.batch_memory_manager.wrap_data_loader``. Other loaders still go to
    Opacus's function. Should a later Opacus not call that name, it would build a plain DataLoader, which a
    sampler with an optimizer attached refuses. Calling this twice does no harm.
    """
    batch_memory_manager.wrap_data_loader = wrap_data_loader


def population_and_cohort(data_loader: DataLoader[Any]) -> tuple[int, int]:
    """The size of a loader's data set (n) and its batch size (k); of a ``DPDataLoader`` the expected batch
    size.

    Raises:
        ShufflePrivacyError: if it is no DataLoader; if its data set is empty, iterable-style or without a
            length; if it has no batch size, or one larger than the data set; or if its own sampler would
            be replaced.
    """
    if not isinstance(data_loader, DataLoader):
        raise ShufflePrivacyError(f"data_loader must be a torch DataLoader, got {type(data_loader).__name__}")
    dataset = data_loader.dataset
    _refuse_iterable(dataset)
    if not isinstance(dataset, Sized):
        raise ShufflePrivacyError("the data set has no length, and ε depends on it: give it a __len__")
    if len(dataset) < 1:
        raise ShufflePrivacyError("the data set is empty")
    _refuse_repeated_records(dataset, population=len(dataset))
    if isinstance(data_loader.batch_sampler, CohortSampler):
        return data_loader.batch_sampler.population, data_loader.batch_sampler.cohort
    if isinstance(data_loader, DPDataLoader):
        return len(dataset), _rounded_cohort(data_loader.sample_rate, population=len(dataset))
    if data_loader.batch_size is None:
        raise ShufflePrivacyError(
            "the loader has no batch_size (it was built with a batch_sampler, or without batching): build it "
            "with batch_size=k and leave the sampling to the engine"
        )
    sampler = data_loader.sampler
    plain_random = (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset)
    )
    if type(sampler) is not SequentialSampler and not plain_random:
        raise ShufflePrivacyError(
            f"the loader's {type(sampler).__name__} would be replaced, because the accounting holds for the "
            "engine's own sampler only. Build the loader with batch_size=k and no sampler, shuffled or not; "
            "under several processes the engine splits each batch itself. Weigh classes in the loss, as "
            "cross_entropy(..., weight=...) does"
        )
    if data_loader.batch_size > len(dataset):
        raise ShufflePrivacyError(
            f"batch_size {data_loader.batch_size} is larger than the data set ({len(dataset)} records)"
        )
    return len(dataset), data_loader.batch_size


def _rounded_cohort(sample_rate: float, *, population: int) -> int:
    """The expected batch size of a ``DPDataLoader``, rounded to a whole number."""
    cohort = round(sample_rate * population)
    if not 1 <= cohort <= population:
        raise ShufflePrivacyError(
            f"the DPDataLoader's sample_rate {sample_rate!r} of {population} records is a batch of {cohort}: "
            "it must be at least one record and at most all of them"
        )
    return cohort


def with_sampler(
    data_loader: DataLoader[Any], sampler: CohortSampler, *, batch_first: bool = True
) -> CohortLoader:
    """A loader like ``data_loader`` that draws its batches from ``sampler``.

    Under Poisson sampling a batch may be empty; it then has the tensors of a batch of the first record, with
    no rows.
    """
    collate_fn = data_loader.collate_fn
    if isinstance(sampler, PoissonSampler):
        collate_fn = wrap_collate_with_empty(collate_fn=collate_fn, batch_first=batch_first)
        collate_fn([data_loader.dataset[0]])
    return CohortLoader(
        data_loader.dataset, batch_sampler=sampler, **{**_options(data_loader), "collate_fn": collate_fn}
    )
