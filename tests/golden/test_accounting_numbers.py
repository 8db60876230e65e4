"""Not one number of the accounting moves: each question's answer is the one that was recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from accounting_questions import SUBJECTS
from answers import DATA, RELATIVE, answer, differences
from thinning import every_nth_fast

_QUICK = ("accountant", "command_line")
"""Subjects with fast tests; a plan or a calibration takes seconds, and packages have tests of their own."""

_BY_PROCESSOR = (
    ("gaussian cover", 1e-4),
    ("coins, far from fair", 1e-7),
    ("10 of coins", 1e-9),
    ("rounds of a sum", 1e-9),
)
"""Answers that hold the distance of coins from a Gaussian, a small difference of large sums. A processor of
another type adds these up in another order and so moves their last digits: those of 1e-16 by 1e-5 of them."""

_CASES = every_nth_fast(
    [(subject, name) for subject in _QUICK for name in SUBJECTS[subject]], nth=24
) + every_nth_fast(
    [(subject, name) for subject, asked in SUBJECTS.items() if subject not in _QUICK for name in asked], nth=0
)


@pytest.fixture(scope="session")
def recorded() -> dict[str, dict[str, Any]]:
    return {
        subject: json.loads((DATA / f"{subject}.json").read_text(encoding="utf-8")) for subject in SUBJECTS
    }


@pytest.mark.parametrize(("subject", "name"), _CASES)
def test_the_answer_is_the_recorded_one(subject: str, name: str, recorded: dict[str, dict[str, Any]]) -> None:
    found = answer(SUBJECTS[subject][name])
    relative = next((most for words, most in _BY_PROCESSOR if words in name), RELATIVE)
    assert not list(differences(found, recorded[subject][name], relative=relative))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_recorded_answer_is_asked_for(subject: str, recorded: dict[str, dict[str, Any]]) -> None:
    assert set(recorded[subject]) == set(SUBJECTS[subject])


def test_a_number_that_moved_is_seen() -> None:
    old = {"upper": 1.0, "bounds": [["pair", 2.0], ["none", float("inf")]], "steps": 3}
    moved = {"upper": 1.0 + 1e-11, "bounds": [["pair", 2.0], ["none", 1e300]], "steps": 3.0}
    assert not list(differences({**old, "upper": 1.0 + 1e-13}, old))
    assert len(list(differences(moved, old))) == 3
