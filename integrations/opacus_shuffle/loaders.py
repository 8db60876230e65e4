"""Read n and k off a data loader, and rebuild it around one of our samplers."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from opacus.data_loader import DPDataLoader, wrap_collate_with_empty
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from opacus_shuffle.errors import ShufflePrivacyError
from opacus_shuffle.samplers import CohortSampler, PoissonSampler


def population_and_cohort(data_loader: DataLoader[Any]) -> tuple[int, int]:
    """n and k of a loader, exactly: the size of its data set and its batch size.

    Raises:
        ShufflePrivacyError: if the loader draws its batches in a way that our sampler would silently undo.
    """
    if not isinstance(data_loader, DataLoader):
        raise ShufflePrivacyError(f"data_loader must be a torch DataLoader, got {type(data_loader).__name__}")
    dataset = data_loader.dataset
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise ShufflePrivacyError(
            "an iterable data set cannot be sampled: its size and order are not ours to know. Use a "
            "map-style data set with a length"
        )
    if len(dataset) < 1:
        raise ShufflePrivacyError("the data set is empty")
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
            "engine's own sampler only. Build the loader with batch_size and shuffle=True and nothing else; "
            "under several processes the engine splits each batch itself"
        )
    if data_loader.batch_size > len(dataset):
        raise ShufflePrivacyError(
            f"batch_size {data_loader.batch_size} is larger than the data set ({len(dataset)} records)"
        )
    return len(dataset), data_loader.batch_size


def _rounded_cohort(sample_rate: float, *, population: int) -> int:
    """The whole number of records nearest to what a Poisson loader of Opacus's draws on average."""
    cohort = round(sample_rate * population)
    if not 1 <= cohort <= population:
        raise ShufflePrivacyError(
            f"the DPDataLoader's sample_rate {sample_rate!r} of {population} records is a batch of {cohort}: "
            "it must be at least one record and at most all of them"
        )
    return cohort


def with_sampler(
    data_loader: DataLoader[Any], sampler: CohortSampler, *, batch_first: bool = True
) -> DataLoader[Any]:
    """A loader like ``data_loader`` that draws its batches from ``sampler``.

    Under Poisson sampling a batch may be empty; it then has the structure of a batch of the first record.
    """
    collate_fn = data_loader.collate_fn
    if isinstance(sampler, PoissonSampler):
        collate_fn = wrap_collate_with_empty(collate_fn=collate_fn, batch_first=batch_first)
        collate_fn([data_loader.dataset[0]])
    return DataLoader(
        data_loader.dataset,
        batch_sampler=sampler,
        num_workers=data_loader.num_workers,
        collate_fn=collate_fn,
        pin_memory=data_loader.pin_memory,
        timeout=data_loader.timeout,
        worker_init_fn=data_loader.worker_init_fn,
        multiprocessing_context=data_loader.multiprocessing_context,
        generator=data_loader.generator,
        prefetch_factor=data_loader.prefetch_factor,
        persistent_workers=data_loader.persistent_workers,
        pin_memory_device=data_loader.pin_memory_device,
    )
