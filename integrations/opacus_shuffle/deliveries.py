"""What a loader says about a batch when it hands it out, and how used batches are recognised."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from opacus_shuffle.samplers import CohortSampler

_rounds = itertools.count()
_iterations = itertools.count()
_FEW = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A batch that is being handed to the training loop: a whole round, or a physical batch of one.

    Attributes:
        rows: number of records in the batch, in this process; zero for an empty Poisson batch.
        round: which draw of the sampler it belongs to; by default one of its own.
        part: its place among the round's physical batches, from 0.
        parts: how many physical batches the round has; 1 unless ``BatchMemoryManager`` splits it.
        iteration: which iteration over the sampler it belongs to; by default one of its own.
        cohort: checksum of the round's record numbers over all processes, by which several processes tell
            whether they are at the same draw.
    """

    rows: int
    round: int = field(default_factory=lambda: next(_rounds))
    part: int = 0
    parts: int = 1
    iteration: int = field(default_factory=lambda: next(_iterations))
    cohort: int = 0

    @property
    def last(self) -> bool:
        """Whether the round is complete with this batch."""
        return self.part == self.parts - 1


class DeliveryListener(Protocol):
    """Whoever turns delivered batches into rounds: a shuffle optimizer."""

    def attach_sampler(self, sampler: CohortSampler) -> None:
        """From now on only batches of this sampler are taken.

        Raises:
            ShufflePrivacyError: if the sampler draws other rounds than the listener accounts for.
        """

    def begin_iteration(self) -> None:
        """An iteration begins; whatever an earlier one left unfinished is void."""

    def expect_batch(self, delivery: Delivery, batch: object = None) -> None:
        """A batch is handed out; an earlier one that was not stepped on is void."""


class DeliveredTensors:
    """Tells tensors of the last delivered batch from those of earlier ones, and keeps none of them alive.

    Tensors are known by the memory they share, so slices and views are recognised; copies, such as those on
    another device, are not.
    """

    def __init__(self) -> None:
        self._current: set[StorageWeakRef] = set()
        self._earlier: set[StorageWeakRef] = set()
        self._prune_at = _FEW

    def deliver(self, batch: object) -> None:
        """Take note of a batch that is handed out: a tensor, or a mapping, list or tuple of batches."""
        self._earlier |= self._current
        self._current = set(_storages(batch))
        if len(self._earlier) > self._prune_at:
            self._earlier = {ref for ref in self._earlier if not ref.expired()}  # type: ignore[no-untyped-call]
            self._prune_at = max(_FEW, 2 * len(self._earlier))

    def any_stale(self, inputs: object) -> bool:
        """Whether a tensor among ``inputs`` belongs to an earlier batch and not to the last one."""
        return any(ref in self._earlier and ref not in self._current for ref in _storages(inputs))


class StaleInputs:
    """A forward pre-hook that notices training on the tensors of an earlier batch.

    A copy of it, as in a copied or unpickled model, notices nothing: that model is another one.

    Attributes:
        seen: whether it has noticed any since the last delivery.
    """

    def __init__(self) -> None:
        self.seen = False
        self._delivered: DeliveredTensors | None = DeliveredTensors()

    def deliver(self, batch: object) -> None:
        """Take note of a batch that is handed out."""
        self.seen = False
        if self._delivered is not None:
            self._delivered.deliver(batch)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Look at the inputs of a training pass; evaluation may see any batch again."""
        if self._delivered is None or self.seen or not (module.training and torch.is_grad_enabled()):
            return
        self.seen = self._delivered.any_stale((args, kwargs))

    def __reduce__(self) -> tuple[object, ...]:
        return _blind, ()


def _blind() -> StaleInputs:
    hook = StaleInputs()
    hook._delivered = None
    return hook


def _storages(batch: object) -> Iterator[StorageWeakRef]:
    """The memory behind every tensor of a batch; sparse tensors and torch's wrappers have none."""
    if isinstance(batch, Tensor):
        try:
            yield StorageWeakRef(batch.untyped_storage())  # type: ignore[no-untyped-call]
        except (NotImplementedError, RuntimeError):
            return
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _storages(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _storages(value)
