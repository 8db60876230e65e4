"""The comparison of central rounds: its kept answers, and that it goes on where it stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from example_scripts import script


@pytest.fixture
def program() -> Any:
    return script("benchmarks/central_rounds.py")


@pytest.mark.slow
def test_kept_answers_agree_with_each_other_and_with_today(program: Any) -> None:
    rows = json.loads(program.RESULTS.read_text(encoding="utf-8"))["rows"]
    assert [row["setting"] for row in rows] == program.settings()
    for row in rows:
        lower, upper = row["answers"]["ours"]
        for name in program.COLUMNS:
            other = row["answers"][name]
            if isinstance(other, float):
                assert other >= lower, row  # all of them bound from above
        if isinstance(row["answers"]["prv_accountant"], list):
            assert row["answers"]["prv_accountant"][0] <= upper, row
    for row in rows[::13]:
        assert program.ours(row["setting"]) == pytest.approx(row["answers"]["ours"], rel=1e-3)


def test_what_is_there_is_not_asked_again(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, asked = tmp_path / "kept.json", []
    monkeypatch.setattr(sys, "argv", ["central_rounds.py", "--output", str(output)])
    monkeypatch.setattr(program, "settings", lambda: [{"number": 1}, {"number": 2}])

    def stopped(setting: dict[str, int]) -> float:
        asked.append(setting["number"])
        if len(asked) == 2:
            raise KeyboardInterrupt
        return 0.5

    def missing(setting: dict[str, int]) -> float:
        raise ModuleNotFoundError("no such package")

    columns = {"theirs": ("no-such-package", missing), "ours": ("numpy", stopped)}
    monkeypatch.setattr(program, "COLUMNS", columns)
    with pytest.raises(KeyboardInterrupt):
        program.main()
    program.main()
    assert asked == [1, 2, 2]
    assert [row["answers"] for row in json.loads(output.read_text())["rows"]] == [{"ours": 0.5}] * 2
