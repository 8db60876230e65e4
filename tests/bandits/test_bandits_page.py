"""The measurements of bandits are those of the committed runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "benchmarks.md").read_text()
RESULTS = json.loads((ROOT / "examples" / "results" / "bandits.json").read_text())["results"]


def regret(part: str, line: str, x: float | None) -> float:
    return float(np.mean([run["regret"] for run in RESULTS[part] if (run["line"], run["x"]) == (line, x)]))


def test_the_measured_regrets_are_in_the_order_of_trust() -> None:
    for epsilon in (0.3, 0.5, 1.0):
        central, shuffled, local = (
            regret("models", line, epsilon) for line in ("central", "shuffled", "local")
        )
        assert central < shuffled < local / 2
    for run in RESULTS["models"]:
        assert run["certified"] is None or run["certified"] <= run["x"]


def test_the_tables_of_the_page_are_those_of_the_runs() -> None:
    for line in (
        "central",
        "shuffled",
        "shuffled, one bit",
        "shuffled, closed form",
        "local",
        "local, one bit",
    ):
        cells = [f"{regret('models', line, epsilon):,.0f}" for epsilon in (0.1, 0.3, 0.5, 1.0, 3.0)]
        assert f"| {line} | {' | '.join(cells)} |" in PAGE
    assert f"Without privacy {regret('models', 'not private', None):,.0f}." in PAGE
    for line in ("central, core set", "central, all actions"):
        cells = [f"{regret('core-set', line, epsilon):,.0f}" for epsilon in (0.01, 0.05, 0.3, 1.0)]
        cells.append(f"{regret('core-set', line.replace('central', 'not private'), None):,.0f}")
        assert f"| {line.removeprefix('central, ')} | {' | '.join(cells)} |" in PAGE
