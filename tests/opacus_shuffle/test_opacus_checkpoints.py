from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus_shuffle import PrivacyBudgetExceeded, PrivacyEngine, ShufflePrivacyError
from torch import nn
from torch.utils.data import DataLoader


@pytest.fixture(params=["rdp", "pld"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def trained(make_private: Any, train: Any, method: str, tmp_path: Any) -> Any:
    engine, module, optimizer, loader = make_private(
        engine=PrivacyEngine(accountant=f"subsampled_shuffle_{method}"), max_grad_norm=0.5
    )
    train(module, optimizer, loader)
    path = tmp_path / "checkpoint.pt"
    engine.save_checkpoint(path=path, module=module, optimizer=optimizer, checkpoint_dict={"epoch": 1})
    return engine, module, optimizer, path


@pytest.mark.parametrize("stream", [False, True])
def test_a_resumed_run_continues_the_history(
    trained: Any, make_private: Any, train: Any, flat: Any, method: str, stream: bool
) -> None:
    engine, module, _, path = trained
    path = io.BytesIO(path.read_bytes()) if stream else path
    resumed = PrivacyEngine(accountant=f"subsampled_shuffle_{method}")
    _, second, optimizer, loader = make_private(engine=resumed, max_grad_norm=0.5)
    checkpoint = resumed.load_checkpoint(path=path, module=second, optimizer=optimizer)
    assert checkpoint["epoch"] == 1
    assert torch.equal(flat(second), flat(module))
    assert resumed.get_epsilon_interval(1e-5) == engine.get_epsilon_interval(1e-5)
    train(second, optimizer, loader)
    assert len(resumed.accountant) == 10
    assert len(resumed.accountant.history) == 1
    assert len(engine.accountant) == 5


def test_loading_cannot_forget_rounds_that_were_released(trained: Any, flat: Any) -> None:
    engine, module, _, path = trained
    engine.load_checkpoint(path=path, module=module)  # nothing recorded since: the same history
    round_, steps = engine.accountant.core.history[-1]
    engine.accountant.record(round_, num_steps=3)
    before, weights = engine.get_epsilon(1e-5), flat(module)
    with pytest.raises(ShufflePrivacyError, match="does not hold"):
        engine.load_checkpoint(path=path, module=module)
    assert engine.get_epsilon(1e-5) == before
    assert len(engine.accountant) == steps + 3
    assert torch.equal(flat(module), weights)


def test_the_loaded_history_counts_against_the_budget(
    trained: Any, make_private: Any, step: Any, method: str
) -> None:
    engine, _, _, path = trained
    resumed = PrivacyEngine(accountant=f"subsampled_shuffle_{method}")
    _, module, optimizer, loader = make_private(
        engine=resumed, target_epsilon=engine.get_epsilon(1e-5), target_delta=1e-5
    )
    step(module, optimizer, next(iter(loader)))
    resumed.load_checkpoint(path=path, module=module, optimizer=optimizer)
    with pytest.raises(PrivacyBudgetExceeded):
        step(module, optimizer, next(iter(loader)))


@pytest.mark.parametrize("damage", ["history", "entry", "missing", "truncated", "other method"])
def test_a_damaged_checkpoint_is_refused_before_anything_loads(
    trained: Any, make_private: Any, flat: Any, method: str, damage: str
) -> None:
    path = trained[3]
    checkpoint = torch.load(path, weights_only=True)
    state = checkpoint["privacy_accountant_state_dict"]
    if damage == "history":
        state["core"] = "lost"
    elif damage == "entry":
        state["core"]["history"] = [(state["core"]["history"][0][0], -3)]
    elif damage == "other method":
        state["mechanism"] = f"subsampled_shuffle_{ {'rdp': 'pld', 'pld': 'rdp'}[method] }"
    elif damage == "missing":
        del checkpoint["privacy_accountant_state_dict"]
    torch.save(checkpoint, path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    engine, module, _, _ = make_private(engine=PrivacyEngine(accountant=f"subsampled_shuffle_{method}"))
    weights = flat(module)
    expected = RuntimeError if damage == "truncated" else ShufflePrivacyError
    with pytest.raises(expected):
        engine.load_checkpoint(path=path, module=module)
    assert torch.equal(flat(module), weights)
    assert len(engine.accountant) == 0


# ---- a run that goes on otherwise than it began -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"local_epsilon": 3.0},
            "with local_epsilon=2 .*linf-coordinate with local_epsilon=3",
        ),
        ({"batch_size": 4}, r"k=8, .*k=4,"),
        (
            {"randomizer": "vector-sum", "local_epsilon": None, "noise_multiplier": 5.0},
            "the next are a sum with coins",
        ),
    ],
)
def test_other_rounds_than_the_checkpoints_are_told(
    trained: Any, make_private: Any, method: str, options: dict[str, Any], told: str
) -> None:
    resumed = PrivacyEngine(accountant=f"subsampled_shuffle_{method}")
    _, module, optimizer, _ = make_private(engine=resumed, max_grad_norm=0.5, **options)
    with pytest.warns(UserWarning, match=f"does not go on.*{told}"):
        resumed.load_checkpoint(path=trained[3], module=module, optimizer=optimizer)
    assert len(resumed.accountant) == 5


def test_a_target_that_was_dropped_is_told(make_private: Any, train: Any, tmp_path: Any) -> None:
    target = {"target_epsilon": 9.0, "target_delta": 1e-5}
    engine, module, optimizer, loader = make_private(**target)
    train(module, optimizer, loader)
    engine.save_checkpoint(path=tmp_path / "c.pt", module=module, optimizer=optimizer)
    resumed, module, optimizer, _ = make_private()
    with pytest.warns(UserWarning, match=r"stop at .* \(9\.0, 1e-05\), and no target is set now"):
        resumed.load_checkpoint(path=tmp_path / "c.pt", module=module, optimizer=optimizer)
    same, module, optimizer, _ = make_private(**target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same.load_checkpoint(path=tmp_path / "c.pt", module=module, optimizer=optimizer)


@pytest.mark.slow
def test_the_page_on_resuming_does_what_it_says(dataset: Any, make_model: Any, tmp_path: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "opacus.md").read_text()
    section = page.split("## Resume")[1]
    code = section.split("```python\n")[1].split("```")[0]

    def start() -> dict[str, Any]:
        model = make_model()
        return {
            "PrivacyEngine": PrivacyEngine,
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "loader": DataLoader(dataset, batch_size=8),
            "criterion": nn.CrossEntropyLoss(),
            "path": tmp_path / "run.pt",
            "resume": False,
        }

    def run(names: dict[str, Any], code: str) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="this run does not go on")
            exec(code, names)
        return names

    whole = run(start(), code)
    assert len(whole["engine"].accountant) == 10 * 5
    stopped = run(start(), code.replace("range(done, 10)", "range(done, 4)"))
    assert len(stopped["engine"].accountant) == 4 * 5
    resumed = run({**start(), "resume": True}, code)
    assert len(resumed["engine"].accountant) == 10 * 5
    assert resumed["engine"].accountant.history == whole["engine"].accountant.history
    assert 0.99 * 2.93 < resumed["engine"].get_epsilon(1e-5) <= 2.93


def test_a_history_older_than_what_its_run_has_recorded_since_is_refused(
    make_private: Any, step: Any
) -> None:
    engine, module, optimizer, loader = make_private()
    batches = iter(loader)
    step(module, optimizer, next(batches))
    older = engine.accountant.state_dict()
    step(module, optimizer, next(batches))
    later = PrivacyEngine(accountant="subsampled_shuffle_rdp")
    with pytest.raises(ShufflePrivacyError, match="by the run that was saved"):
        later.accountant.load_state_dict(older)
    later.accountant.load_state_dict(engine.accountant.state_dict())
    assert len(later.accountant) == 2
