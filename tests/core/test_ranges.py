"""Fields that declare their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import pytest

from shuffle_plugins.core.ranges import Count, LocalEpsilon, Ranged, in_range, one_of


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
