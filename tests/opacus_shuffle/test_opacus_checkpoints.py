from __future__ import annotations

import io
from typing import Any

import opacus
import pytest
import torch
from opacus_shuffle import PrivacyBudgetExceeded, PrivacyEngine, ShufflePrivacyError


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


def test_saving_and_loading_are_opacus_own() -> None:
    assert PrivacyEngine.save_checkpoint is opacus.PrivacyEngine.save_checkpoint


def test_a_resumed_run_continues_the_history(
    trained: Any, make_private: Any, train: Any, flat: Any, method: str
) -> None:
    engine, module, _, path = trained
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
    round_, steps = engine.accountant._core.history[-1]
    engine.accountant.record(round_, num_steps=3)
    before, weights = engine.get_epsilon(1e-5), flat(module)
    with pytest.raises(ShufflePrivacyError, match="does not hold"):
        engine.load_checkpoint(path=path, module=module)
    assert engine.get_epsilon(1e-5) == before
    assert len(engine.accountant) == steps + 3
    assert torch.equal(flat(module), weights)


def test_the_file_loads_without_unpickling_code(trained: Any) -> None:
    engine, _, _, path = trained
    state = torch.load(path, weights_only=True)["privacy_accountant_state_dict"]
    assert state["mechanism"] == engine.accountant.mechanism()
    assert state["history"] == engine.accountant.history


def test_a_stream_works_like_a_file(trained: Any, make_private: Any, method: str) -> None:
    engine, module, _, _ = trained
    stream = io.BytesIO(b"")
    engine.save_checkpoint(path=stream, module=module)
    stream.seek(0)
    resumed = PrivacyEngine(accountant=f"subsampled_shuffle_{method}")
    _, second, _, _ = make_private(engine=resumed)
    resumed.load_checkpoint(path=stream, module=second)
    assert len(resumed.accountant) == 5


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


def refuses(engine: PrivacyEngine, path: Any, module: Any, flat: Any, match: str) -> None:
    weights, history = flat(module), engine.accountant.history
    with pytest.raises(ValueError, match=match):
        engine.load_checkpoint(path=path, module=module)
    assert torch.equal(flat(module), weights)
    assert engine.accountant.history == history


def test_a_history_of_the_other_method_is_refused_before_anything_loads(
    trained: Any, make_private: Any, train: Any, flat: Any, method: str
) -> None:
    path = trained[3]
    other = {"rdp": "pld", "pld": "rdp"}[method]
    engine, module, optimizer, loader = make_private(
        engine=PrivacyEngine(accountant=f"subsampled_shuffle_{other}")
    )
    train(module, optimizer, loader)
    refuses(engine, path, module, flat, f"subsampled_shuffle_{method}")


def test_a_checkpoint_of_plain_opacus_is_refused(
    make_private: Any, make_model: Any, flat: Any, tmp_path: Any
) -> None:
    path = tmp_path / "opacus.pt"
    opacus.PrivacyEngine(accountant="rdp").save_checkpoint(
        path=path, module=opacus.GradSampleModule(make_model())
    )
    engine, module, _, _ = make_private()
    refuses(engine, path, module, flat, "history of 'rdp'")


@pytest.mark.parametrize("damage", ["history", "entry", "missing", "truncated"])
def test_a_damaged_checkpoint_is_refused_before_anything_loads(
    trained: Any, make_private: Any, flat: Any, method: str, damage: str
) -> None:
    path = trained[3]
    checkpoint = torch.load(path, weights_only=True)
    state = checkpoint["privacy_accountant_state_dict"]
    if damage == "history":
        state["history"] = "lost"
    elif damage == "entry":
        state["history"] = [(state["history"][0][0], -3)]
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


def test_an_unwrapped_model_is_saved_as_itself(
    make_private: Any, make_model: Any, train: Any, flat: Any, tmp_path: Any
) -> None:
    model = make_model()
    engine, hooks, optimizer, loader = make_private(module=model, wrap_model=False)
    train(model, optimizer, loader)
    engine.save_checkpoint(path=tmp_path / "c.pt", module=model)
    hooks.cleanup()
    fresh, resumed = make_model(), PrivacyEngine(accountant="subsampled_shuffle_rdp")
    resumed.load_checkpoint(path=tmp_path / "c.pt", module=fresh)
    assert torch.equal(flat(fresh), flat(model))
    assert len(resumed.accountant) == 5
