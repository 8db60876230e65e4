"""No number of the accounting moves unseen: ends of intervals may become tighter, and little else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from accounting_questions import SUBJECTS
from answers import DATA, answer, differences
from thinning import every_nth_fast

_QUICK = ("accountant", "command_line")
"""Subjects with fast tests; a plan or a calibration takes seconds, and packages have tests of their own."""

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
    assert not list(differences(found, recorded[subject][name]))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_recorded_answer_is_asked_for(subject: str, recorded: dict[str, dict[str, Any]]) -> None:
    assert set(recorded[subject]) == set(SUBJECTS[subject])


def test_a_number_that_moved_is_seen() -> None:
    old = {"upper": 1.0, "lower": 1.0, "bounds": [["pair", 2.0], ["none", float("inf")]], "steps": 3}
    free = {**old, "upper": 0.5, "lower": 1.5, "bounds": [["pair", 2.0 + 1e-9], ["none", float("inf")]]}
    moved = {"upper": 1.001, "lower": 0.999, "bounds": [["pair", 2.1], ["none", 1e300]], "steps": 3.0}
    assert not list(differences(free, old))
    assert len(list(differences(moved, old))) == 5
