"""What a refused argument is answered by, fields that declare their ranges, and numbers as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np
import pytest

from shuffle_plugins.core import checks, rounded
from shuffle_plugins.core.checks import Count, LocalEpsilon, Ranged, in_range, one_of


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (1000.0, "got 1000.0: pass the int 1000"),
        (np.int64(7), "got np.int64(7): pass the int 7"),
        (1000.5, "got 1000.5"),
        (0.0, "got 0.0"),
        (math.inf, "got inf"),
        (math.nan, "got nan"),
        (True, "got True"),
        (10**400, f"got {10**400}"),
        ("7", "got '7'"),
    ],
)
def test_a_whole_number_of_another_type_is_answered_by_the_int_to_pass(value: object, answer: str) -> None:
    with pytest.raises(ValueError, match="must be a whole number") as refused:
        checks.whole("rounds", value, at_most=10**6)
    assert str(refused.value).endswith(answer)


@pytest.mark.parametrize(
    ("value", "up", "shown"),
    [
        (0.420801, True, "0.4209"),
        (0.420899, False, "0.4208"),
        (0.5, True, "0.5"),
        (99.991, True, "100"),
        (123_456.0, True, "123,500"),
        (1800.0, True, "1,800"),
        (1234.56, False, "1,234"),
        (999.96, True, "1,000"),
        (9_999_999.0, False, "9,999,000"),
        (2e10, True, "2e+10"),
        (5.1481e-05, True, "5.149e-05"),
        (0.0, False, "0"),
        (float("inf"), True, "inf"),
    ],
)
def test_rounding_goes_one_way(value: float, up: bool, shown: str) -> None:
    assert rounded(value, up=up) == shown


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Parent(Ranged):
    cohort: Count
    local_epsilon: LocalEpsilon = 1
    flip: Annotated[float, in_range(above=0, below=0.5)] | None = None


@dataclass(frozen=True, kw_only=True)
class Child(Parent):
    colour: Annotated[Colour, one_of(Colour)] = Colour.RED


def test_what_the_checks_return_is_kept() -> None:
    found = Child(cohort=3, colour="red")  # type: ignore[arg-type]
    assert isinstance(found.local_epsilon, float)
    assert found.colour is Colour.RED
    assert found.flip is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("cohort", 0), ("cohort", None), ("local_epsilon", 0), ("flip", 0.5), ("colour", "x")],
)
def test_a_value_out_of_range_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Child(**{"cohort": 1, field: value})  # type: ignore[arg-type]
