"""``shuffle-plugins bandit``: what a private bandit will do and cost, before it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shuffle_plugins import cli
from shuffle_plugins.bandits import LinearBandit, ShuffledModel

ASKED = ("bandit", "--actions", "20", "--horizon", "1e5", "--epsilon", "0.5", "--delta", "1e-6")


def test_the_table_is_the_bandits_own_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actions = np.array([[0.6, 0.0], [0.1, -0.7], [-0.3, 0.2]])
    np.save(tmp_path / "actions.npy", actions)
    np.savetxt(tmp_path / "actions.csv", actions, delimiter=",")
    rest = ("--horizon", "20,000", "-e", "0.5", "-d", "1e-6", "--mechanism", "binary-rr", "--json")
    found = []
    for name in ("actions.npy", "actions.csv"):
        assert cli.main(["bandit", "--actions", str(tmp_path / name), *rest]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    model = ShuffledModel(epsilon=0.5, delta=1e-6, mechanism="binary-rr")
    plan = LinearBandit(actions=actions, horizon=20_000, privacy=model).plan()
    for row, batch in zip(found[0]["batches"], plan, strict=True):
        assert row["clients"] == batch.size
        assert row["local_epsilon"] == batch.noise.local_epsilon
        assert row["epsilon"] == batch.noise.epsilon.upper <= 0.5
        assert row["width"] == pytest.approx(batch.width)
    assert found[0]["best_action_clients"] == 20_000 - sum(batch.size for batch in plan)
    assert found[0]["delta"] == 1e-6


@pytest.mark.parametrize(
    "table",
    [
        np.zeros(3, dtype=[("a", float), ("b", float)]),
        np.full((3, 2), 0.5j),
        np.array([["a", "b"]]),
        np.zeros((0, 2)),
    ],
    ids=["records", "complex", "text", "empty"],
)
def test_a_file_of_anything_but_real_numbers_is_refused(
    table: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A structured array ended in a traceback, and of complex numbers the real parts were taken."""
    np.save(tmp_path / "actions.npy", table)
    assert cli.main(["bandit", "--actions", str(tmp_path / "actions.npy"), *ASKED[3:]]) == 2
    error = capsys.readouterr().err
    assert "actions.npy is no table of real numbers" in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_it_answers_without_torch() -> None:
    code = (
        f"import sys; from shuffle_plugins import cli; cli.main({[*ASKED, '--mechanism', 'binary-rr']!r}); "
    )
    code += "print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "False"
