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
