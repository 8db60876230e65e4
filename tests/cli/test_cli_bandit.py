"""``shuffle-plugins bandit``: what a private bandit will do and cost, before it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine

from shuffle_plugins.bandits import LinearBandit, ShuffledModel

ASKED = ("--horizon", "20,000", "-e", "0.5", "-d", "1e-6", "--mechanism", "binary-rr")


@pytest.fixture
def run(run: CommandLine) -> CommandLine:
    return replace(run, command=("bandit",))


def test_the_table_is_the_bandits_own_plan(run: CommandLine, tmp_path: Path) -> None:
    actions = np.array([[0.6, 0.0], [0.1, -0.7], [-0.3, 0.2]])
    np.save(tmp_path / "actions.npy", actions)
    np.savetxt(tmp_path / "actions.csv", actions, delimiter=",")
    found, same = (run.json("--actions", tmp_path / f"actions.{kind}", *ASKED) for kind in ("npy", "csv"))
    assert found == same
    model = ShuffledModel(epsilon=0.5, delta=1e-6, mechanism="binary-rr")
    plan = LinearBandit(actions=actions, horizon=20_000, privacy=model).plan()
    for row, batch in zip(found["batches"], plan, strict=True):
        assert row["clients"] == batch.size
        assert row["local_epsilon"] == batch.noise.local_epsilon
        assert row["epsilon"] == batch.noise.epsilon.upper <= 0.5
        assert row["width"] == pytest.approx(batch.width)
    assert found["best_action_clients"] == 20_000 - sum(batch.size for batch in plan)
    assert found["delta"] == 1e-6


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
    run: CommandLine, table: np.ndarray, tmp_path: Path
) -> None:
    """A structured array ended in a traceback, and of complex numbers the real parts were taken."""
    np.save(tmp_path / "actions.npy", table)
    said = run.refused("--actions", tmp_path / "actions.npy", *ASKED)
    assert "actions.npy is no table of real numbers" in said
