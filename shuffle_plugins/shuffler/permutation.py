"""Orders that nobody can foresee."""

from __future__ import annotations

from collections.abc import Sequence
from random import SystemRandom
from typing import TypeVar

T = TypeVar("T")


def shuffled(items: Sequence[T]) -> list[T]:
    """The items in a uniformly random order, drawn from the operating system's entropy."""
    return SystemRandom().sample(items, k=len(items))
