"""The Flower app that trains adapters: what is sent, what is trained, and what plain PEFT then loads."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict

pytest.importorskip("peft")

from peft import PeftModel
from recorded_grid import RecordedGrid, app_modules, contents

FOLDER = Path(__file__).parents[2] / "examples" / "flower-lora"
CLIENTS = 6


@pytest.fixture(scope="module")
def apps() -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    with app_modules(FOLDER, "flower_lora") as found:
        yield found


def served(apps: Any, **options: Any) -> RecordedGrid:
    """A run of the tiny model, and all of its messages."""
    config = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"model": "tiny", "population": CLIENTS, "cohort": 4, "num-server-rounds": 2} | options
    nodes = CLIENTS + config["simulated-aggregators"]
    grid = RecordedGrid(apps[0].app, num_nodes=nodes, run_config=config)
    apps[1].app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))
    return grid


@pytest.fixture(autouse=True)
def fresh(apps: Any) -> None:
    apps[2].adapted.cache_clear()


def test_adapters_alone_are_sent_and_trained_and_the_saved_adapter_loads_in_plain_peft(
    apps: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = apps[2]
    start = task.adapters(task.adapted("tiny"))
    frozen = {n: p.clone() for n, p in task.adapted("tiny").named_parameters() if not p.requires_grad}
    grid = served(apps, **{"adapter-folder": str(tmp_path / "adapter")})

    asked = [m.content["arrays"] for m in grid.sent if "arrays" in m.content]
    assert len(asked) == 2 * 4
    assert all(set(arrays) == set(start) for arrays in asked)
    assert all("lora_" in name or "classifier" in name for name in start)
    everything = b"".join(contents(m.content) for m in [*grid.sent, *grid.replies])
    for name, value in frozen.items():  # in no message, whatever its name there
        if "original_module" not in name and value.flatten()[:4].std() > 0:  # the first head was sent
            assert value.numpy().tobytes() not in everything, name
    assert all(not reply.content.array_records for reply in grid.replies)

    model = task.adapted("tiny")
    end = task.adapters(model)
    assert all(not torch.equal(end[name], start[name]) for name in start)
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)

    base = task.base_model("tiny")
    read = task.tokens(["the film is superb", "its music is a mess"], "tiny")
    with torch.no_grad():
        before = base.eval()(**read).logits
        plain = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()(**read).logits
        ours = model.eval()(**read).logits
    torch.testing.assert_close(plain, ours)
    assert not torch.allclose(plain, before, atol=1e-3)

    told = re.findall(
        r"round 2: .* certified ε at δ = 0.001: (\S+) against an observer", capsys.readouterr().out
    )
    assert len(told) == 1
    assert 7.0 < float(told[0]) <= 8.0


def test_a_client_trains_every_adapter_and_nothing_else(apps: Any) -> None:
    task = apps[2]
    model = task.adapted("tiny")
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    examples = task.client_examples("", partition=0, each=8)
    losses = []
    for steps in (0, 5):
        task.train(model, examples, named="tiny", steps=steps, learning_rate=0.02)
        logits = model.eval()(**task.tokens(examples[0], "tiny")).logits
        losses.append(float(torch.nn.functional.cross_entropy(logits, examples[1]).detach()))
    assert losses[1] < losses[0]
    for name, p in model.named_parameters():
        assert torch.equal(p, start[name]) != p.requires_grad, name
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == sum(
        value.numel() for value in task.adapters(model).values()
    )


@pytest.mark.slow
def test_aggregators_add_up_in_the_servers_place(apps: Any, capsys: pytest.CaptureFixture[str]) -> None:
    served(apps, **{"simulated-aggregators": 2, "num-server-rounds": 1})
    assert "round 1: accuracy" in capsys.readouterr().out
