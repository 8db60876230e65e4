"""The program of docs/guides/flower.md, "Without tuning", as it is printed, and what the page says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from example_scripts import blobs, example_script

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "guides" / "flower.md").read_text().split("## Without tuning")[1].split("\n## ")[0]


@pytest.fixture(scope="module")
def example():
    with example_script("flower_untuned") as module:
        yield module


@pytest.mark.slow
@pytest.mark.parametrize("randomizer", ["privunit", "vector-sum"])
def test_the_printed_program_trains_within_the_target(example, randomizer, monkeypatch):
    rows, labels = blobs(250, 10)
    tests, kinds = blobs(1, 500)
    monkeypatch.setattr(example, "features_of", lambda folder: ((rows, labels), (tests[0], kinds[0])))
    # fewer rounds, to save time: the recipe finds the noise for as many as it is asked for
    short = example.printed().replace("mechanism=RANDOMIZER", "mechanism=RANDOMIZER, num_steps=12")
    monkeypatch.setattr(example, "printed", lambda: short)
    found = example.run(Path(), randomizer=randomizer, epsilon=3.0, factor=1.0)
    assert 0.97 * 3.0 < found["epsilon_observer"] <= 3.0
    assert (found["clients"], found["cohort"], found["rounds"], found["parameters"]) == (250, 25, 12, 100)
    assert found["clipping_norm"] == 0.1
    assert found["accuracy"] > (0.8 if randomizer == "vector-sum" else 0.15)


def test_the_table_is_what_was_measured(example):
    told = json.loads(example.RESULTS.read_text())
    titles = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
    printed = [each for each in told if each["factor"] == 1.0]
    assert len(printed) >= 2
    for each in printed:
        assert each["epsilon_observer"] <= each["target_epsilon"]
        alike = [other for other in told if all(other[key] == each[key] for key in ("data", "randomizer"))]
        best = max(other["accuracy"] for other in alike)
        tuned = f"{100 * best:.1f} %" if len(alike) > 1 else "—"
        row = f"| {titles[each['data']]} | `{each['randomizer']}` | {each['signal_to_noise_ratio']:.2g} | "
        assert f"{row}**{100 * each['accuracy']:.1f} %** | {tuned} |" in SECTION
    assert len(re.findall(r"\*\*[\d.]+ %\*\*", SECTION)) == len(printed)
