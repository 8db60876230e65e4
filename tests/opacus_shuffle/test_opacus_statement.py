"""The engine's privacy statement: its numbers are the engine's, and it names whom Opacus trusts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opacus_shuffle import PrivacyEngine, ShufflePrivacyError
from torch import nn

from shuffle_plugins import cli
from shuffle_plugins.accounting import Cover, DataAccess, Unit

Privately = Callable[..., tuple[PrivacyEngine, nn.Module, Any, Any]]


def test_a_run_is_stated_with_its_trust_its_clipping_and_its_budget(
    make_private: Privately, train: Callable[..., int]
) -> None:
    engine, *objects = make_private(target_epsilon=9.0, target_delta=1e-5, randomness=None)
    nothing = engine.statement()
    assert "nothing recorded" in str(nothing)
    assert nothing.guarantees[0].delta == 1e-5  # the plan's
    assert train(*objects) == 5
    found = engine.statement(delta=1e-6)
    (only,) = found.guarantees  # reports never leave the process: nobody sees them with names
    assert (only.adversary, only.epsilon) == ("model-observer", engine.get_epsilon_interval(1e-6))
    assert (found.unit, found.num_rounds) == (Unit.RECORD, 5)
    assert "sees every record and is trusted with all of them" in found.trust[0]
    assert found.clipping == (
        "every sample's gradient over all 53 trained parameters is clipped, as a whole to the linf ball of "
        "radius 1"
    )
    assert (found.target.epsilon, found.target.delta, found.target.exceeded) == (9.0, 1e-5, False)
    assert found.target.spent == engine.get_epsilon(1e-5)
    assert found.warnings == ()
    assert "client" not in str(found)
    assert "taken for one record: rows that repeat one are seen only where" in found.trust[-1]
    assert {"torch", "opacus"} <= dict(found.versions).keys()
    with pytest.raises(ValueError, match="delta"):
        engine.statement(delta=2.0)


def test_an_engine_without_a_run_knows_neither_delta_nor_clipping() -> None:
    engine = PrivacyEngine()
    with pytest.raises(ShufflePrivacyError, match="nothing is planned yet"):
        engine.statement()
    assert engine.statement(delta=1e-5).clipping.startswith("unknown")


def test_seeds_void_it_and_clipping_is_described_as_it_is(make_private: Privately) -> None:
    engine, *_ = make_private(clipping="per_layer", max_grad_norm=[1.0, 2.0, 0.5, 0.5])
    found = engine.statement()
    assert "SeededRandomness was used" in found.warnings[0]
    assert "each parameter's part by itself" in found.clipping
    make_private(engine=engine, clipping="adaptive", randomness=None)
    found = engine.statement()
    assert "SeededRandomness was used" in found.warnings[0]  # of an earlier run, whose rounds are in ε
    assert "which moves with a private number" in found.clipping
    told = DataAccess(
        what="accuracy on the training set", cover=Cover.NOT_COVERED, detail="printed every epoch"
    )
    accesses = engine.statement(accesses=[told]).accesses
    assert told in accesses
    assert all(each.cover is not Cover.UNKNOWN for each in accesses)


@pytest.mark.slow
def test_a_checkpoint_is_stated_by_the_command_line(
    make_private: Privately, train: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, module, optimizer, loader = make_private(target_epsilon=9.0, target_delta=1e-5)
    train(module, optimizer, loader)
    path = tmp_path / "checkpoint.pt"
    engine.save_checkpoint(path=path, module=module, optimizer=optimizer)
    assert cli.main(["statement", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unit"]["name"] == "record"
    assert found["guarantees"][0]["upper"] == engine.get_epsilon(1e-5)
    assert found["budget"]["epsilon"] == 9.0
    resumed, module, optimizer, _ = make_private()
    resumed.load_checkpoint(path=path, module=module, optimizer=optimizer)
    assert any("taken over from a checkpoint" in warning for warning in resumed.statement().warnings)
    path.write_bytes(path.read_bytes()[:200])
    assert cli.main(["statement", str(path)]) == 2
    assert "cannot be read by torch.load" in capsys.readouterr().err
