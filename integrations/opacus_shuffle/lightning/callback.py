"""Training by Lightning's ``Trainer`` on the private loader."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from typing_extensions import override

from opacus_shuffle.accountants import ShufflePrivacyError, warn_caller
from opacus_shuffle.engine import PrivacyEngine


class LightningCallback(Callback):  # type: ignore[misc]
    """Has a Lightning ``Trainer`` train on the loader of an engine's last ``make_private``.

    Whatever loader the script or its data module builds for training, the private one takes its place, also
    where Lightning asks for loaders anew. For ``Trainer(callbacks=[...])`` or ``configure_callbacks``, of
    ``lightning`` and of ``pytorch_lightning``.

    Raises:
        ShufflePrivacyError: as ``fit`` begins, if Lightning would train on another loader, in several
            processes, with ``accumulate_grad_batches``, or with a gradient scaler.

    A run that goes on from steps without a history of private rounds is warned of, and its statement says so.
    """

    def __init__(self, engine: PrivacyEngine) -> None:
        self._engine = engine

    @override
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        loader = self._engine.data_loader
        for wrong, refusal in (
            (
                loader is None,
                "the engine has made nothing private yet: call make_private in configure_optimizers, or "
                "before Trainer.fit",
            ),
            (
                trainer.world_size > 1,
                "in several processes each would draw and account for itself: use Trainer(devices=1), or "
                "DistributedDataParallel in a loop of your own",
            ),
            (
                trainer.accumulate_grad_batches != 1,
                "a batch is a round, and accumulate_grad_batches adds several: leave it out, and raise the "
                "loader's batch_size",
            ),
            (
                trainer.scaler is not None,
                "a gradient scaler skips steps by what is in a batch, and no ε covers that: use another "
                "precision than '16-mixed', such as 'bf16-mixed'",
            ),
        ):
            if wrong:
                raise ShufflePrivacyError(refusal)
        # Lightning has no public way to replace a loader while it fits. It asks its source again if it has
        # combined no loaders yet, which it has by now where configure_optimizers called setup_data().
        trainer.fit_loop._data_source.instance, trainer.fit_loop._combined_loader = loader, None

    @override
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.train_dataloader is not self._engine.data_loader:
            raise ShufflePrivacyError(
                "Lightning does not train on the loader that make_private returned, and only its batches are "
                "accounted for: leave out what replaces the Trainer's loaders"
            )
        if trainer.global_step and not len(self._engine.accountant):
            uncounted = (
                f"ε does not cover {trainer.global_step} steps that were taken before, of which there is no "
                "history of private rounds: it holds only if they were taken on public data"
            )
            self._engine._doubt(uncounted)
            warn_caller(uncounted)
