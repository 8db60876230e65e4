"""``examples/bandits.py``: committed numbers come out again, real reports work, and a run goes on."""

from __future__ import annotations

import json

import pytest
from example_scripts import EXAMPLES, example_script

RESULTS = json.loads((EXAMPLES / "results" / "bandits.json").read_text())["results"]


@pytest.fixture(scope="module")
def example():
    with example_script("bandits") as module:
        yield module


@pytest.mark.parametrize(
    ("part", "line", "x"),
    [("models", "central", 0.5), ("models", "local, one bit", 1.0), ("horizon", "local", 15)],
)
def test_committed_runs_come_out_again(example, part: str, line: str, x: float) -> None:
    task = {"line": line, "x": x, "seed": 3}
    (committed,) = [run for run in RESULTS[part] if run.items() >= task.items()]
    assert example.simulated(part, task)["regret"] == pytest.approx(committed["regret"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("line", ["central", "local, one bit", "not private"])
def test_clients_with_real_labels_are_recommended_to(example, line: str) -> None:
    found = example.recommended({"line": line, "x": 1.0, "seed": 0}, horizon=3_000)
    assert found["best"] > 0.8
    assert found["worst"] <= found["right"] <= found["best"] + 0.05
    assert found["certified"] == (None if line == "not private" else 1.0)
