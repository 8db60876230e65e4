"""What is noticed of a model that trains: batches used again, and layers through which records meet."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _BatchNorm

_FEW = 64  # references that are kept before expired ones are looked for
_EARLIER = "_of_an_earlier_batch"


class StaleInputs:
    """A forward pre-hook that notices training on the tensors of an earlier batch.

    Tensors are compared by their storage, to which weak references are held. So slices and views are
    recognised; copies, such as those on another device, are not. Copies of this hook, as in a copied or
    unpickled model, check nothing.

    Attributes:
        seen: whether the model was trained on a tensor of an earlier batch since the latest delivery.
        trained: whether it was trained at all since then.
    """

    def __init__(self, *, blind: bool = False) -> None:
        self.seen = self.trained = False
        self._blind = blind
        self._current: set[StorageWeakRef] = set()
        self._earlier: set[StorageWeakRef] = set()
        self._prune_at = _FEW
        # not as a decorator: it loads torch's compiler, as every optimizer does, for up to a second
        self._untraced = torch.compiler.disable(self._check)  # type: ignore[no-untyped-call]

    def deliver(self, batch: object) -> None:
        """Take note of a batch that is handed out: a tensor, or a mapping, list or tuple of batches."""
        self.seen = self.trained = False
        if self._blind:
            return
        self._earlier |= self._current
        self._current = set(_storages(batch))
        if len(self._earlier) > self._prune_at:
            self._earlier = {ref for ref in self._earlier if not ref.expired()}  # type: ignore[no-untyped-call]
            self._prune_at = max(_FEW, 2 * len(self._earlier))

    def any_stale(self, inputs: object) -> bool:
        """Whether a tensor among ``inputs`` belongs to an earlier batch and not to the last one."""
        return any(ref in self._earlier and ref not in self._current for ref in _storages(inputs))

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Check the inputs of a forward pass in training mode with gradients enabled; other passes may use
        any batch."""
        self._untraced(module, args, kwargs)

    def _check(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if module.training and torch.is_grad_enabled():
            self.trained = True
            self.seen = self.seen or self.any_stale((args, kwargs))

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(StaleInputs, blind=True), ()


class MixedRecords:
    """Notices layers through which the records of a batch reach one another, or the saved model."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._norms = [(name, part) for name, part in module.named_modules() if isinstance(part, _BatchNorm)]
        self._buffers: dict[str, Tensor] = {}
        self._frozen: list[tuple[str, Tensor, int]] = []

    def deliver(self) -> None:
        """Take note of buffers and frozen parameters at the moment when a batch is handed out."""
        self._buffers = {
            name: buffer.detach().clone()
            for name, buffer in self.module.named_buffers()
            if not name.endswith("num_batches_tracked")
        }
        self._frozen = [  # by torch's count of writes: copies of a large model would cost too much
            (name, p, p._version)
            for name, p in self.module.named_parameters()
            if not p.requires_grad and not p.is_inference()
        ]

    def found(self) -> str | None:
        """A layer that normalises with the batch, or a buffer that changed since the batch was delivered."""
        for name, part in self._norms:
            if part.training or part.running_mean is None:
                return f"the layer {name!r}, a {type(part).__name__},"
        for name, buffer in self.module.named_buffers():
            before = self._buffers.get(name)
            if before is not None and buffer.shape == before.shape and not _same(buffer, before.to(buffer)):
                return f"the buffer {name!r}, which changed while the model was trained,"
        for name, p, version in self._frozen:
            if p._version != version:
                return f"the frozen parameter {name!r}, which changed while the model was trained,"
        return None


def _same(now: Tensor, before: Tensor) -> bool:
    """Whether two tensors have the same entries; NaN is the same as NaN."""
    return torch.equal(now, before) or bool(((now == before) | (now.isnan() & before.isnan())).all())


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


def forget_forward_passes(module: nn.Module) -> None:
    """Drop what Opacus's hooks keep of forward passes that no backward pass followed.

    A loop that skips a batch because of its loss leaves one behind. Opacus would wait for its backward pass,
    and no later batch would get per-sample gradients.
    """
    waiting = [p for p in module.parameters() if getattr(p, "_forward_counter", 0)]
    if not waiting:
        return
    for part in module.modules():
        kept = getattr(part, "activations", None)
        if isinstance(kept, list):
            kept.clear()
        if hasattr(part, "max_batch_len"):
            del part.max_batch_len
    for p in waiting:
        p._forward_counter = 0  # type: ignore[attr-defined]
        if hasattr(p, "_current_grad_sample"):
            del p._current_grad_sample


def mark_as_earlier(grad_sample: Tensor | list[Tensor] | None) -> None:
    """Mark per-sample gradients as those of a batch before the present one."""
    for gradients in [grad_sample] if isinstance(grad_sample, Tensor) else grad_sample or []:
        setattr(gradients, _EARLIER, True)


def is_earlier(grad_sample: Tensor | list[Tensor] | None) -> bool:
    """Whether per-sample gradients were marked by :func:`mark_as_earlier`."""
    return hasattr(grad_sample[0] if isinstance(grad_sample, list) else grad_sample, _EARLIER)
