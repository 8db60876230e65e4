"""Hugging Face's ``Trainer``, which draws, clips, randomises and accounts as :class:`PrivacyEngine` does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.data_loader import SeedableRandomSampler
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.hooks import RemovableHandle
from transformers import Trainer, TrainerCallback

from opacus_shuffle.accountants import ShufflePrivacyError
from opacus_shuffle.engine import PrivacyEngine
from opacus_shuffle.loaders import (
    options_of,
    refuse_iterable,
    refuse_other_sampler,
    rounds_in,
    wrap_data_loader,
)
from opacus_shuffle.sums import DEFAULT_RANDOMIZER
from shuffle_plugins.core import checks

_IGNORED = -100  # the label of a token that no loss counts, as in Transformers


@dataclass(frozen=True, kw_only=True)
class PrivacyArguments(checks.Ranged):
    """What a private run is to keep to; ``HfArgumentParser`` reads it from a command line too.

    The rest is in ``TrainingArguments``: a round has ``per_device_train_batch_size`` times
    ``gradient_accumulation_steps`` records, and ``max_grad_norm`` clips each record's gradient.

    Args:
        target_epsilon, target_delta: of the whole run, replace-one. ``make_private_with_epsilon`` finds the
            noise, and a step that would exceed them is refused.
        randomizer: a registered name, such as ``"vector-sum"``, or ``"privunit"`` for one report per record.
        sampling: ``"without-replacement"``, or for local randomizers ``"epoch"``.
        clipping: ``"flat"`` or ``"adaptive"``.
    """

    target_epsilon: checks.TargetEpsilon
    target_delta: checks.Delta
    randomizer: str = DEFAULT_RANDOMIZER
    sampling: str = "without-replacement"
    clipping: str = "flat"


class _Books(TrainerCallback):  # type: ignore[misc]
    """Checks before every step, also where a class has a ``training_step`` and a loader of its own."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self.trainer = trainer

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.trainer._check_books()


class PrivateTrainer(Trainer):  # type: ignore[misc]
    """A ``Trainer`` that trains privately; ``class Mine(PrivateTrainer, MyTrainer)`` makes another one so.

    ``trainer.engine`` has ε and the privacy statement; the log and the metrics of ``train()`` have ε too.
    The loss is a mean over records. A ``compute_loss`` of your own must be one too: whatever mixes records,
    as a mean over all tokens of a batch does, voids ε.

    Raises:
        ShufflePrivacyError: for settings whose ε would be wrong or unknown, before anything is trained.
    """

    def __init__(self, *arguments: Any, privacy: PrivacyArguments | None = None, **trainers_own: Any) -> None:
        """As of ``Trainer``, and what the run is to keep to, which must be given."""
        if privacy is None:
            raise ShufflePrivacyError("pass privacy=PrivacyArguments(target_epsilon=..., target_delta=...)")
        self.privacy = privacy
        self.engine = PrivacyEngine()
        self._private: Any = None
        self._ended = False  # Opacus's hooks are gone
        self._batches: DataLoader[Any] | None = None
        self._kind: str | None = None
        self._handles: list[RemovableHandle] = []
        super().__init__(*arguments, **trainers_own)
        _check_arguments(self.args, privacy)
        self.add_callback(_Books(self))

    def train(self, *arguments: Any, **trainers_own: Any) -> Any:
        """As of ``Trainer``, once: to resume a run, make a new trainer and a new model."""
        if self._ended:
            raise ShufflePrivacyError(
                "this trainer has trained already, or failed to, and its model is private no more: to resume "
                "a run, or for another one, make a new trainer and a new model"
            )
        _check_arguments(self.args, self.privacy)
        self.args.ignore_data_skip = True  # a resumed run draws anew: batches are not drawn and thrown away
        try:
            return super().train(*arguments, **trainers_own)
        finally:  # so that the model can be copied and saved as a whole
            for handle in self._handles:
                handle.remove()
            if self._private is not None:
                self._opacus.cleanup()
                self._ended = True

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Refuse: every trial would cost ε by itself."""
        raise ShufflePrivacyError("every trial of a search costs ε by itself: search on public data")

    # ---- batches and optimizer --------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Make the model private, and return the loader whose batches are accounted for."""
        if self._batches is not None:
            return self._batches
        own = super().get_train_dataloader()
        refuse_iterable(own.dataset)
        sampler = getattr(own.batch_sampler, "sampler", own.sampler)
        refuse_other_sampler(sampler, records=len(own.dataset), random=(RandomSampler, SeedableRandomSampler))
        physical, parts = self.args.train_batch_size, self.args.gradient_accumulation_steps
        plain = DataLoader(own.dataset, batch_size=physical * parts, shuffle=True, **options_of(own))
        steps = self.args.max_steps
        if steps <= 0:
            steps = math.ceil(self.args.num_train_epochs * (len(own.dataset) // (physical * parts)))
        self.model.train()  # Opacus looks at layers as they are in training
        for part in self.model.modules():
            if isinstance(part, nn.Embedding) and part.weight.requires_grad:
                self._handles.append(part.register_forward_pre_hook(self._look_up_for_each_record))
        self._opacus, self._private, loader = self.engine.make_private_with_epsilon(
            module=self.model,
            optimizer=self.create_optimizer(),
            data_loader=plain,
            target_epsilon=self.privacy.target_epsilon,
            target_delta=self.privacy.target_delta,
            num_steps=steps,
            max_grad_norm=self.args.max_grad_norm,
            randomizer=self.privacy.randomizer,
            sampling=self.privacy.sampling,  # type: ignore[arg-type]
            clipping=self.privacy.clipping,
            wrap_model=False,
        )
        self.optimizer = self._private
        self._batches = wrap_data_loader(data_loader=loader, max_batch_size=physical, optimizer=self._private)
        return self._batches

    def _look_up_for_each_record(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Look positions up for each record: models do so once for all, which hides whose gradient it is."""
        if layer.training and torch.is_grad_enabled() and inputs[0].dim() == 2 and len(inputs[0]) == 1:
            return (inputs[0].expand(self._private.delivered.rows, -1), *inputs[1:])
        return None

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[PhysicalBatches, None]:
        """The physical batches of a round, each drawn when its turn comes.

        The count of their labels is None: Transformers would divide every record's loss by it.
        """
        return PhysicalBatches(epoch_iterator, num_batches), None

    # ---- a step -----------------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: Mapping[str, Any], *_: object) -> Tensor:
        """Take one physical batch in; its gradients stay with the private optimizer alone."""
        self._check_books()
        self._private.zero_grad()
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss: Tensor = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        for p in model.parameters():
            p.grad = None  # that of all records without noise, which the Trainer would log
        if not self._private.delivered.last:
            self._private.step()  # the Trainer itself steps on a round's last physical batch
        share: Tensor = loss.detach() / self.args.gradient_accumulation_steps
        return share

    def _check_books(self) -> None:
        """Refuse to train with what is not private, or to go on without the rounds that a checkpoint cost."""
        optimizer = self._private
        if optimizer is None or getattr(self.optimizer, "optimizer", self.optimizer) is not optimizer:
            raise ShufflePrivacyError(
                "the optimizer or the loader is not the private one: pass your own optimizer as "
                "optimizers=(optimizer, None), and leave get_train_dataloader as it is"
            )
        rounds = rounds_in(
            self.state.global_step,
            population=optimizer.population,
            cohort=optimizer.cohort,
            sampling=optimizer.round.sampling,
        )
        if len(self.engine.accountant) < rounds:
            raise ShufflePrivacyError(
                f"the checkpoint's model was trained in {rounds} rounds, and it holds the costs of "
                f"{len(self.engine.accountant)}: resume from one that a PrivateTrainer wrote, with "
                "save_only_model=False"
            )

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, **trainers_own: Any
    ) -> Any:
        """In training the mean of the records' losses, each over its own tokens; else as of ``Trainer``."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **trainers_own)
        labels = inputs.get("labels")
        if self.compute_loss_func is None:
            outputs = model(**inputs)
            losses = self._losses(outputs, labels)
        else:
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
            rows = self._private.delivered.rows
            parts = (_of_record(outputs, labels, i, rows=rows) for i in range(rows))
            losses = torch.stack([self.compute_loss_func(*part, num_items_in_batch=None) for part in parts])
        return (losses.mean(), outputs) if return_outputs else losses.mean()

    def _losses(self, outputs: Any, labels: Tensor | None) -> Tensor:
        """The loss of each record, of the kind that the first batch showed the model's own loss to be."""
        own, logits = (outputs.get(n) if isinstance(outputs, Mapping) else None for n in ("loss", "logits"))
        kind, found, smoothing = self._kind, None, self.args.label_smoothing_factor
        if own is not None and logits is not None and labels is not None:
            kind = kind or _kind_of(own, logits, labels)
            found = None if kind is None else _losses_of_items(kind, logits, labels, smoothing)
        if found is None:
            raise ShufflePrivacyError(
                "the model's loss is none that a PrivateTrainer can take apart by records: the mean over "
                "labels of the cross-entropy, the squared error, or the binary cross-entropy. Pass "
                "compute_loss_func, which is called for one record at a time, or override compute_loss by a "
                "mean over records"
            )
        if smoothing and kind not in _CLASSES:
            raise ShufflePrivacyError(
                f"label_smoothing_factor is for labels that are classes, and these are {kind}: leave it out"
            )
        losses, counted = found
        if (losses.sum() / counted.sum()).isfinite():  # else it shows no kind, as without any label
            self._kind = kind
        return losses.sum(1) / counted.sum(1).clamp(min=1)

    def log(self, logs: dict[str, float], *trainers_own: Any) -> None:
        """As of ``Trainer``, with ε so far."""
        logs.pop("grad_norm", None)
        if "loss" in logs or "train_loss" in logs:
            logs["epsilon"] = self.engine.get_epsilon(self.privacy.target_delta)
        super().log(logs, *trainers_own)


@dataclass(frozen=True)
class PhysicalBatches:
    """So many batches of a loader, which are drawn one by one: one step is taken before the next is drawn."""

    batches: Iterator[Any]
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.batches, self.count)


def _check_arguments(args: Any, privacy: PrivacyArguments) -> None:
    """Refuse what would void ε, or would not be done."""
    several = args.world_size > 1 or args.n_gpu > 1 or args.deepspeed or args.fsdp
    reasons = {
        "several processes or devices: use PrivacyEngine in a loop of your own, or one device": several,
        "fp16, whose scaler looks at gradients to decide whether to step: use bf16": args.fp16,
        "torch_compile: Opacus's hooks do not see into compiled layers": args.torch_compile,
        "auto_find_batch_size: a second start costs as much as the first": args.auto_find_batch_size,
        "activation (gradient) checkpointing: Opacus's hooks do not see repeated passes": (
            args.activation_checkpointing
        ),
        "neftune_noise_alpha: its noise follows the length to which other records are padded": (
            args.neftune_noise_alpha is not None
        ),
        f"train_sampling_strategy={args.train_sampling_strategy!r}: ε is that of batches drawn at random": (
            args.train_sampling_strategy != "random"
        ),
        f"max_grad_norm={args.max_grad_norm}: each record's gradient is clipped to it": (
            not (args.max_grad_norm or 0) > 0
        ),
        "sampling='poisson': the Trainer counts on batches of one size": privacy.sampling == "poisson",
    }
    for reason, applies in reasons.items():
        if applies:
            raise ShufflePrivacyError(f"a PrivateTrainer does not train with {reason}")


# ---- losses by record -----------------------------------------------------------------------------------

_CLASSES = ("labels", "next tokens")
_KINDS = (*_CLASSES, "numbers", "several labels")


def _kind_of(own: Tensor, logits: Tensor, labels: Tensor) -> str | None:
    """The kind whose mean over the batch is nearest to the model's own loss, and equal but for rounding."""
    distances = {}
    tolerance = max(1e-3, 4 * torch.finfo(own.dtype).eps)
    for kind in _KINDS:
        if (found := _losses_of_items(kind, logits, labels)) is not None:
            mean = found[0].sum() / found[1].sum()
            if torch.isclose(mean, own.to(mean), rtol=tolerance, equal_nan=True):
                distances[kind] = (mean - own).abs().item()
    return min(distances, key=lambda kind: distances[kind], default=None)


def _losses_of_items(
    kind: str, logits: Tensor, labels: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor] | None:
    """Losses, (records, labels of each), and which of them count; None if the kind does not fit."""
    rows, logits = len(labels), logits.float()  # in bf16 a loss has two digits
    if kind in _CLASSES:
        if kind == "next tokens" and labels.dim() == 2:
            logits, labels = logits[:, :-1], labels[:, 1:]
        elif kind == "next tokens":
            return None
        if labels.is_floating_point() or logits.shape[:-1].numel() != labels.numel():
            return None
        losses = cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            labels.reshape(-1),
            reduction="none",
            ignore_index=_IGNORED,
            label_smoothing=smoothing,
        )
        return losses.reshape(rows, -1), (labels != _IGNORED).reshape(rows, -1)
    if not labels.is_floating_point() or logits.numel() != labels.numel():
        return None
    of_items = mse_loss if kind == "numbers" else binary_cross_entropy_with_logits
    losses = of_items(logits.reshape(rows, -1), labels.reshape(rows, -1).float(), reduction="none")
    return losses, torch.ones_like(losses)


def _of_record(outputs: Any, labels: Any, i: int, *, rows: int) -> tuple[Any, Any]:
    """What a model put out for one record, and its labels; of a mapping what has one row for each record."""
    own = None if labels is None else labels[i : i + 1]
    if isinstance(outputs, Tensor):
        return outputs[i : i + 1], own
    if not isinstance(outputs, Mapping):
        raise ShufflePrivacyError(
            "compute_loss_func is called for one record at a time, and what the model puts out, a "
            f"{type(outputs).__name__}, cannot be taken apart: use a ModelOutput (return_dict=True)"
        )
    tensors = {name: v for name, v in outputs.items() if isinstance(v, Tensor) and v.dim()}
    return type(outputs)(**{name: v[i : i + 1] for name, v in tensors.items() if len(v) == rows}), own
