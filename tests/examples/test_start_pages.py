"""The script that runs the quick starts' code again and again."""

import json
from pathlib import Path

import pytest
from example_scripts import example_script


@pytest.fixture(scope="module")
def start_pages():
    with example_script("start_pages") as module:
        yield module


def test_the_result_file_has_all_that_the_pages_print(start_pages):
    found = json.loads(Path(start_pages.RESULTS).read_text())
    assert {page: {len(run) for run in runs} for page, runs in found.items()} == {
        "opacus": {3},
        "flower": {1},
    }


@pytest.mark.slow
def test_a_page_runs_from_first_to_last(start_pages):
    (accuracy,) = start_pages.run("flower")
    assert 0.8 < accuracy <= 1
