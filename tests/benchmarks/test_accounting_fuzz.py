"""A slice of the fuzzer's settings, and answers made up to be wrong, which it must notice."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def fuzzer() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("accounting_fuzz")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_setting_contradicts_itself(fuzzer: Any, seed: int) -> None:
    found = fuzzer.fuzz(seed=seed, settings=3, most=9.0, longest=6.0)
    assert found["settings"] == 3
    assert not found["findings"]
