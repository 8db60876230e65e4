"""The comparison of central rounds: its kept answers, and that it goes on where it stopped."""

from __future__ import annotations

import json
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
