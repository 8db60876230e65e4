"""A slice of the fuzzer's settings, and answers made up to be wrong, which it must notice."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from example_scripts import ROOT, importable


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Any]:
    with importable(ROOT / "benchmarks"):
        yield importlib.import_module("accounting_fuzz")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_setting_contradicts_itself(fuzzer: Any, seed: int) -> None:
    found = fuzzer.fuzz(seed=seed, settings=3, most=9.0, longest=6.0)
    assert found["settings"] == 3
    assert not found["findings"]
