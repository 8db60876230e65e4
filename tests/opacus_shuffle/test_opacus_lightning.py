"""Lightning trains on the private loader, whoever builds loaders, and its checkpoints hold the history."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from changed_scripts import MOST, STAND_INS, changed, changed_lines, lines_of_pages
from opacus_shuffle import PrivacyEngine, ShufflePrivacyError, SubsampledShufflePLDAccountant
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shuffle_plugins as sp

pytestmark = pytest.mark.slow  # loading Lightning takes some seconds

RENEWED = (
    (
        "from pytorch_lightning.utilities.cli import LightningCLI",
        "from pytorch_lightning.cli import LightningCLI",
    ),
    (
        "self.test_accuracy = torchmetrics.Accuracy()",
        'self.test_accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10)',
    ),
    (
        "self.trainer._data_connector._train_dataloader_source.dataloader()",
        "self.trainer.fit_loop.setup_data() or self.trainer.train_dataloader",
    ),
    ("max_epochs=10,", "max_epochs=2,"),
)
"""What today's Lightning needs of Opacus's script, with any engine, and fewer epochs."""

OURS = (
    (
        "from opacus import PrivacyEngine",
        "from opacus_shuffle import PrivacyEngine\nfrom opacus_shuffle.lightning import LightningCallback",
    ),
    ("noise_multiplier=self.noise_multiplier,", 'randomizer="privunit",\nlocal_epsilon=4.0,'),
    ("max_epochs=2,", "max_epochs=2,\ncallbacks=[LightningCallback(model.privacy_engine)],"),
)


def test_opacus_own_example_trains_with_five_changed_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opacus wraps its data module in one that builds another loader each time it is asked."""
    source = Path(str(distribution("opacus").locate_file("examples/mnist_lightning.py")))
    if not source.exists():
        pytest.skip("this version of Opacus has no such script in its package")
    before = changed(source.read_text(), RENEWED)
    after = changed(before, OURS)
    assert changed_lines(before, after) == MOST
    (tmp_path / "script.py").write_text(after)
    importlib.import_module("pytorch_lightning")  # before the stand-in for torchvision, for which it looks
    modules = {**sys.modules}
    monkeypatch.syspath_prepend(STAND_INS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_VANILLA", "true")
    monkeypatch.setattr(sys, "argv", ["script.py"])
    try:
        runpy.run_path("script.py", run_name="__main__")
    finally:
        for name in sys.modules.keys() - modules.keys():
            del sys.modules[name]
    (saved,) = tmp_path.glob("lightning_logs/version_0/checkpoints/*.ckpt")
    accountant, expected = SubsampledShufflePLDAccountant(), SubsampledShufflePLDAccountant()
    accountant.load_state_dict(torch.load(saved)["optimizer_states"][0]["privacy_accountants"][0])
    one = sp.get("privunit", local_epsilon=4.0, dim=26_010)
    expected.record(one.round(population=1500, cohort=62, sampling="poisson"), num_steps=2 * 24)
    assert accountant.history == expected.history


def test_the_lines_are_those_of_the_page() -> None:
    said = lines_of_pages("docs/guides/lightning.md")
    assert "from opacus_shuffle.lightning import LightningCallback" in said
    assert any("callbacks=[LightningCallback(" in line for line in said)


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Lightning by either of its names, whose classes are not the same ones."""
    monkeypatch.chdir(tmp_path)
    return importlib.import_module(request.param)


@pytest.fixture
def start(
    host: ModuleType, dataset: TensorDataset, make_model: Callable[[], nn.Module]
) -> Callable[..., Any]:
    """A module that is made private in ``configure_optimizers``, its data module, and its trainer."""

    class Module(host.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.net, self.privacy_engine, self.options = make_model(), PrivacyEngine(), options

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            self.trainer.fit_loop.setup_data()
            engine = self.privacy_engine
            if hasattr(self, "dp"):
                self.dp["model"].remove_hooks()
            makes = engine.make_private_with_epsilon if "epochs" in self.options else engine.make_private
            model, optimizer, _ = makes(
                module=self,
                optimizer=optimizer,
                data_loader=self.trainer.train_dataloader,
                randomizer="linf-coordinate",
                max_grad_norm=1.0,
                **({} if "epochs" in self.options else {"local_epsilon": 2.0}) | self.options,
            )
            self.dp = {"model": model}
            return optimizer

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            return nn.functional.cross_entropy(self(x), y)

    class Data(host.LightningDataModule):  # type: ignore[name-defined,misc]
        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(dataset, batch_size=8, shuffle=True)

    def starts(
        *, callback: bool = True, max_epochs: int = 3, trainer: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        module = Module(**options)
        from opacus_shuffle.lightning import LightningCallback

        made = host.Trainer(
            max_epochs=max_epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[LightningCallback(module.privacy_engine)] if callback else [],
            **{"enable_checkpointing": False} | (trainer or {}),
        )
        return SimpleNamespace(module=module, data=Data(), trainer=made, engine=module.privacy_engine)

    return starts


@pytest.mark.parametrize(
    "trainer",
    [{}, {"reload_dataloaders_every_n_epochs": 1}, {"limit_train_batches": 2}, {"overfit_batches": 2}],
)
def test_whatever_loader_lightning_builds_the_private_one_is_used(
    start: Any, trainer: dict[str, Any]
) -> None:
    run = start(trainer=trainer)
    run.trainer.fit(run.module, run.data)
    steps = 5 if trainer.keys() <= {"reload_dataloaders_every_n_epochs"} else 2
    assert len(run.engine.accountant) == run.trainer.global_step == 3 * steps
    assert run.trainer.train_dataloader is run.engine.data_loader
    run.trainer.fit_loop.max_epochs = 4
    run.trainer.fit(run.module, run.data)  # Lightning asks for a loader and an optimizer anew
    assert len(run.engine.accountant) == 4 * steps


@pytest.mark.parametrize(
    ("others", "refusal"),
    [
        (False, r"pass callbacks=\[LightningCallback\(engine\)\]"),
        (True, "does not train on the loader that make_private returned"),
    ],
)
def test_nothing_is_trained_on_another_loader(
    start: Any, host: ModuleType, others: bool, refusal: str, refused: Any
) -> None:
    """Without our callback; and with one after it that puts a loader of its own in."""

    class Other(host.Callback):  # type: ignore[name-defined,misc]
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.fit_loop._data_source.instance = run.data.train_dataloader()

    run = start(callback=others)
    run.trainer.callbacks += [Other()] * others
    with refused(run.engine.accountant, run.module, refusal):
        run.trainer.fit(run.module, run.data)


@pytest.mark.parametrize(
    ("trainer", "refusal"),
    [
        ({"world_size": 2}, "several processes"),
        ({"scaler": object()}, "bf16-mixed"),
        ({"accumulate_grad_batches": 2}, "leave it out"),
    ],
)
def test_what_is_not_accounted_for_is_refused_as_fit_begins(
    make_private: Any, trainer: dict[str, Any], refusal: str
) -> None:
    from opacus_shuffle.lightning import LightningCallback

    fine = {"world_size": 1, "scaler": None, "accumulate_grad_batches": 1}
    engine, module, *_ = make_private()
    with pytest.raises(ShufflePrivacyError, match=refusal):
        LightningCallback(engine).on_fit_start(SimpleNamespace(**fine | trainer), module)
    with pytest.raises(ShufflePrivacyError, match="configure_optimizers"):
        LightningCallback(PrivacyEngine()).on_fit_start(SimpleNamespace(**fine), module)


def test_a_checkpoint_goes_on_with_the_history(start: Any) -> None:
    """In a new engine, solved for the whole run's target: the noise is the same before and after."""
    target = {"target_epsilon": 1.0, "target_delta": 1e-3, "epochs": 3}
    run = start(max_epochs=2, **target)
    run.trainer.fit(run.module, run.data)
    run.trainer.save_checkpoint("run.ckpt")
    again = start(**target)
    again.trainer.fit(again.module, again.data, ckpt_path="run.ckpt")
    assert len(again.engine.accountant.history) == 1
    assert len(again.engine.accountant) == 3 * 5
    assert 0.95 < again.engine.get_epsilon(1e-3) <= 1.0
    assert "taken over from a checkpoint" in str(again.engine.statement())


def test_a_checkpoint_without_a_history_is_told(start: Any) -> None:
    """As of a run that was not private: its steps were on data that this run's ε does not cover."""
    run = start(max_epochs=2)
    run.trainer.fit(run.module, run.data)
    run.trainer.save_checkpoint("run.ckpt")
    checkpoint = torch.load("run.ckpt", weights_only=False)
    del checkpoint["optimizer_states"][0]["privacy_accountants"]
    torch.save(checkpoint, "plain.ckpt")
    again = start(max_epochs=3)
    with pytest.warns(UserWarning, match="10 steps that were taken before"):
        again.trainer.fit(again.module, again.data, ckpt_path="plain.ckpt")
    assert len(again.engine.accountant) == 5
    assert "10 steps that were taken before" in str(again.engine.statement())
