"""``examples/bandits.py``: committed numbers come out again, real reports work, and a run goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RESULTS = json.loads((EXAMPLES / "results" / "bandits.json").read_text())["results"]


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import bandits

        yield bandits
    finally:
        sys.path.remove(str(EXAMPLES))


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


def test_a_run_goes_on_where_it_stopped(
    example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []

    def tasks(part: str, seeds: int) -> list[dict[str, object]]:
        return [{"line": "central", "x": 1.0, "seed": seed} for seed in range(seeds)]

    def simulated(part: str, task: dict[str, object]) -> dict[str, object]:
        done.append(task["seed"])
        return {"regret": 5.0, "certified": 1.0}

    monkeypatch.setattr(example, "tasks", tasks)
    monkeypatch.setattr(example, "simulated", simulated)
    for seeds in (2, 4):
        arguments = ["bandits.py", "--part", "models", "--seeds", str(seeds)]
        monkeypatch.setattr(sys, "argv", [*arguments, "--results", str(tmp_path / "found.json")])
        example.main()
    assert done == [0, 1, 2, 3]
    assert len(json.loads((tmp_path / "found.json").read_text())["results"]["models"]) == 4
    assert (tmp_path / "found.png").stat().st_size > 1_000
    assert "| central | 1 | 5 | 5–5 | 4 |" in capsys.readouterr().out
