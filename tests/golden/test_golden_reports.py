"""What reports, sums, hosts, files and messages were before is what they are now."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import reports_answers
import reports_topics
import torch
import write_reports
from thinning import every_nth_fast

ANSWERS = {topic: reports_answers.read(topic) for topic in reports_topics.TOPICS}
CASES = every_nth_fast(
    ((topic, name) for topic, asked in reports_topics.TOPICS.items() for name in asked), nth=6
)


HALF_SPACES = ("privunit-g", "blanket-mixed-gaussian")
"""Sums of their reports move by up to 2e-6 with the type of processor, which adds up in another order."""


@pytest.mark.parametrize(("topic", "name"), CASES)
def test_the_answer_has_not_moved(topic: str, name: str) -> None:
    found = reports_topics.ask(reports_topics.TOPICS[topic][name])
    relative = dict(reports_answers.RELATIVE)
    if name.startswith(HALF_SPACES):
        relative["float32"] = 1e-5
    reports_answers.compare(found, ANSWERS[topic][name], relative=relative)


@pytest.mark.parametrize("topic", reports_topics.TOPICS)
def test_every_answer_is_asked_for(topic: str) -> None:
    assert set(ANSWERS[topic]) == set(reports_topics.TOPICS[topic])


def test_what_has_moved_is_noticed() -> None:
    def sums(*values: float) -> dict[str, Any]:
        return reports_answers.vector(torch.tensor(values, dtype=torch.float64))

    expected = sums(1.0, -3.0, float("-inf"))
    answer = {"bytes": 3, "sha256": "ab", "error": 2.0, "list": [1, "x", None], "sum": expected}
    reports_answers.compare(answer, answer)
    for changed in (
        {"bytes": 4},
        {"sha256": "ac"},
        {"error": 2.0 + 1e-5},
        {"list": [1, "y", None]},
        {"list": [1, "x"]},
        {
            "sum": reports_answers.vector(
                torch.tensor([1.0, -3.0 - 1e-10, float("-inf")], dtype=torch.float64)
            )
        },
        {"sum": sums(1.0, -3.0, 0.0)},
        {"sum": sums(1.0, -3.0, float("nan"))},
        {"sum": sums(1.0, -3.0)},
        {"other": 1},
    ):
        with pytest.raises(AssertionError):
            reports_answers.compare(answer | changed, answer)


def test_answers_are_not_written_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["write_reports.py"])
    monkeypatch.setattr(reports_answers, "write", None)
    assert write_reports.main() == 1
    assert "--overwrite" in capsys.readouterr().err
