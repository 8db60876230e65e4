"""A slice of the fuzzer's settings, and answers made up to be wrong, which it must notice."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound

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


def test_a_wrong_answer_is_noticed(fuzzer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    history = [(ShuffleRound(local_epsilon=1.0, population=10_000, cohort=100), 10)]
    other = fuzzer.dearer(random.Random(1), history, 1e-6, "k of n")
    assert not list(fuzzer.check(history, 1e-6, other))
    certified = ShuffleAccountant._upper_epsilon

    def halved(self: ShuffleAccountant, delta: float) -> tuple[float, str]:
        epsilon, name = certified(self, delta)
        return epsilon / 2 if self.num_steps == 10 and delta == 1e-6 else epsilon, name

    monkeypatch.setattr(ShuffleAccountant, "_upper_epsilon", halved)
    monkeypatch.setattr(ShuffleAccountant, "_lower_epsilon", lambda *_: (0.0, "none"))
    kinds = {kind for kind, _ in fuzzer.check(history, 1e-6, other)}
    assert "wrong" in kinds
