"""Ranges of fields, declared once where the field stands: ``cohort: Count``, ``p: Annotated[float, check]``.

A dataclass that inherits :class:`Ranged` checks every such field when it is made, and keeps what the check
returns: a float for an int, a member for its name. ``X | None`` lets None pass.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from shuffle_plugins.core import checks

FieldCheck = Callable[[str, object], Any]
"""Called with a field's name and value; returns the value to keep, or raises a ValueError that names it."""


def in_range(
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> FieldCheck:
    """A finite number in a range, as of :func:`checks.number`."""
    return partial(checks.number, above=above, at_least=at_least, below=below, at_most=at_most)


def whole_number(*, at_least: float = 1, at_most: float = float("inf")) -> FieldCheck:
    """A whole number in a range, as of :func:`checks.whole`."""
    return partial(checks.whole, at_least=at_least, at_most=at_most)


def byte_string(*lengths: int, error: type[ValueError] = ValueError) -> FieldCheck:
    """Bytes of one of these lengths; ``error`` is raised of others."""

    def check(name: str, value: object) -> bytes:
        if type(value) is not bytes or len(value) not in lengths:
            raise error(f"{name} is {' or '.join(map(str, lengths))} bytes")
        return value

    return check


def one_of(kind: type[StrEnum]) -> FieldCheck:
    """A member of an enumeration, given itself or its value."""
    return partial(checks.choice, kind)


def _flag(name: str, value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return value


def _named(check: Callable[..., Any]) -> FieldCheck:
    return lambda name, value: check(value, name=name)


LocalEpsilon = Annotated[float, _named(checks.local_epsilon)]
Delta = Annotated[float, _named(checks.delta)]
TargetEpsilon = Annotated[float, _named(checks.target_epsilon)]
Steps = Annotated[int, _named(checks.num_steps)]
Fraction = Annotated[float, checks.fraction]
Positive = Annotated[float, in_range(above=0)]
NotNegative = Annotated[float, in_range(at_least=0)]
Count = Annotated[int, whole_number()]
Dim = Annotated[int, whole_number(at_most=checks.MAX_DIM)]
Chance = Annotated[float, lambda _, value: checks.participation(value)]
Flag = Annotated[bool, _flag]
Radius = Annotated[float, lambda _, value: checks.radius(value)]


class Ranged:
    """Base of dataclasses whose fields declare their ranges; a subclass's ``__post_init__`` calls super's."""

    def __post_init__(self) -> None:
        for name, check, optional in _checks(type(self)):  # type: ignore[arg-type]  # types are hashable
            value = getattr(self, name)
            if value is not None or not optional:
                object.__setattr__(self, name, check(name, value))


@cache
def _checks(kind: type) -> tuple[tuple[str, FieldCheck, bool], ...]:
    found = []
    declaring = next(base for base in kind.__mro__ if "__dataclass_fields__" in vars(base))
    for name, hint in get_type_hints(declaring, include_extras=True).items():
        for part in (hint, *get_args(hint)):
            if get_origin(part) is Annotated:
                found += [(name, check, NoneType in get_args(hint)) for check in part.__metadata__]
    return tuple(found)
