"""Parametrisation of which only some values belong to the fast tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_fast(
    names: str | tuple[str, ...], values: Iterable[Any], *, fast: int = 1, ids: Any = None
) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize`` whose values beyond the first ``fast`` are marked ``slow``.

    On a test with several axes a case is fast if its value on every axis is.
    """
    several = not isinstance(names, str) or "," in names
    marked = [
        value if place < fast else pytest.param(*(value if several else (value,)), marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]
    return pytest.mark.parametrize(names, marked, ids=ids)


def every_nth_fast(cases: Iterable[tuple[str, ...]], *, nth: int) -> list[Any]:
    """Many cases of one kind: every ``nth`` is fast, if not 0, the others are ``slow``; ids are the words."""
    return [
        pytest.param(*case, id="-".join(case), marks=[] if nth and place % nth == 0 else pytest.mark.slow)
        for place, case in enumerate(cases)
    ]
