"""Checks of arguments, ranges of fields that are declared where the field stands, and numbers as text.

Every check names the argument, says what it must be, and returns the value: ``self._dim = checks.dim(dim)``.
It raises ValueError, and nothing else, for a wrong type or range; ``bool`` is never taken for a number.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from enum import StrEnum
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

_Choice = TypeVar("_Choice", bound=StrEnum)

MIN_LOCAL_EPSILON, MAX_LOCAL_EPSILON = 1e-9, 500.0
"""Range of ε0, in nats, in which every mechanism and every bound of this package works.

Below it, rounding probabilities to 62 bits changes what a report says by more than a part in 10**8: a sign's
gain, tanh(ε0/2), is off by up to 2**-59. Above it, a float cannot hold e^ε0 with room to compute.
"""

MAX_DIM = 1 << 53  # whole numbers up to here are exact in float64


def whole(name: str, value: object, *, at_least: float = 1, at_most: float = math.inf) -> int:
    """Return a whole number in a range; ``at_least=-math.inf`` allows any."""
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
        allowed = f", at least {at_least}" if at_most == math.inf else f" in [{at_least}, {at_most:,g}]"
        if isinstance(at_most, int):
            allowed = f" in [{at_least}, {_power(at_most)}]"
        elif at_least == -math.inf:
            allowed = ""
        hint = "" if isinstance(value, int) else _as_int(value, at_least=at_least, at_most=at_most)
        raise ValueError(f"{name} must be a whole number{allowed}, got {value!r}{hint}")
    return value


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return a finite number as a float, within an open or a closed end on either side."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        found = float(value) if is_number else math.nan  # type: ignore[arg-type]
    except OverflowError:
        found = math.inf
    good = (
        math.isfinite(found)
        and (above is None or found > above)
        and (at_least is None or found >= at_least)
        and (below is None or found < below)
        and (at_most is None or found <= at_most)
    )
    if not good:
        left = f"[{at_least:g}" if at_least is not None else "(-inf" if above is None else f"({above:g}"
        right = f"{at_most:g}]" if at_most is not None else "inf)" if below is None else f"{below:g})"
        what = "" if is_number else "a number "
        raise ValueError(f"{name} must be {what}in {left}, {right}, got {value!r}")
    return found


def choice(kind: type[_Choice], name: str, value: object) -> _Choice:
    """Return a member of an enumeration, given itself or its value."""
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        choices = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"{name} must be one of {choices}, got {value!r}") from None


def delta(value: object, *, name: str = "delta") -> float:
    """Return δ, a number in (0, 1)."""
    return number(name, value, above=0, below=1)


def target_epsilon(value: object, *, name: str = "target_epsilon") -> float:
    """Return the ε that a calibration or a budget must not exceed, positive and finite, in nats."""
    return number(name, value, above=0)


def num_steps(value: object, *, name: str = "num_steps") -> int:
    """Return a number of rounds in [1, 10**12], whose sums keep twelve digits in float64's sixteen."""
    return whole(name, value, at_most=10**12)


def confidence(value: object) -> float:
    """Return a confidence level, a number in (0, 1), such as 0.95."""
    return number("confidence", value, above=0, below=1)


def fraction(name: str, value: object) -> float:
    """Return a share or a probability, a number in [0, 1]."""
    return number(name, value, at_least=0, at_most=1)


def participation(value: object) -> float | None:
    """Return a probability of taking part, in (0, 1); None for 1, or if it is None: all take part."""
    if value is None:
        return None
    share = number("participation", value, above=0, at_most=1)
    return None if share == 1 else share


def local_epsilon(value: object, *, name: str = "local_epsilon") -> float:
    """Return ε0, a number of nats in [1e-9, 500]."""
    return number(name, value, at_least=MIN_LOCAL_EPSILON, at_most=MAX_LOCAL_EPSILON)


def categories(value: object) -> int:
    """Return the number of categories of a frequency oracle, a whole number in [2, 2**53]."""
    return whole("categories", value, at_least=2, at_most=MAX_DIM)


def dim(value: object) -> int:
    """Return a dimension, a whole number in [1, 2**53]."""
    return whole("dim", value, at_most=MAX_DIM)


def radius(value: object) -> float:
    """Return the radius of a norm ball, in [1e-30, 1e30], where float32 holds vectors and their sums."""
    try:
        return number("radius", value, at_least=1e-30, at_most=1e30)
    except ValueError as error:
        raise ValueError(f"{error}: scale the data") from None


def _as_int(value: object, *, at_least: float, at_most: float) -> str:
    """What to pass in place of a number that is whole and allowed, but no Python int."""
    if (isinstance(value, float) and value.is_integer()) or isinstance(value, numbers.Integral):
        meant = int(value)
        return f": pass the int {meant}" if at_least <= meant <= at_most else ""
    return ""


def _power(high: int) -> str:
    """The number, or 2**k where it is a large power of two."""
    return f"2**{high.bit_length() - 1}" if high > 1 << 16 and high & (high - 1) == 0 else f"{high:,}"


# -- ranges of fields ---------------------------------------------------------------------------------------

FieldCheck = Callable[[str, object], Any]
"""Called with a field's name and value; returns the value to keep, or raises a ValueError that names it."""


def in_range(
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> FieldCheck:
    """A finite number in a range, as of :func:`number`."""
    return partial(number, above=above, at_least=at_least, below=below, at_most=at_most)


def whole_number(*, at_least: float = 1, at_most: float = float("inf")) -> FieldCheck:
    """A whole number in a range, as of :func:`whole`."""
    return partial(whole, at_least=at_least, at_most=at_most)


def byte_string(*lengths: int, error: type[ValueError] = ValueError) -> FieldCheck:
    """Bytes of one of these lengths; ``error`` is raised of others."""

    def check(name: str, value: object) -> bytes:
        if type(value) is not bytes or len(value) not in lengths:
            raise error(f"{name} is {' or '.join(map(str, lengths))} bytes")
        return value

    return check


def one_of(kind: type[StrEnum]) -> FieldCheck:
    """A member of an enumeration, given itself or its value."""
    return partial(choice, kind)


def _flag(name: str, value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return value


def _named(check: Callable[..., Any]) -> FieldCheck:
    return lambda name, value: check(value, name=name)


LocalEpsilon = Annotated[float, _named(local_epsilon)]
Delta = Annotated[float, _named(delta)]
TargetEpsilon = Annotated[float, _named(target_epsilon)]
Steps = Annotated[int, _named(num_steps)]
Fraction = Annotated[float, fraction]
Positive = Annotated[float, in_range(above=0)]
NotNegative = Annotated[float, in_range(at_least=0)]
Count = Annotated[int, whole_number()]
Dim = Annotated[int, whole_number(at_most=MAX_DIM)]
Chance = Annotated[float, lambda _, value: participation(value)]
Flag = Annotated[bool, _flag]
Radius = Annotated[float, lambda _, value: radius(value)]


class Ranged:
    """Base of dataclasses whose fields declare their ranges, as in ``cohort: Count``.

    Each is checked when the object is made, and what the check returns is kept: a float for an int, a member
    for its name. ``X | None`` lets None pass. A subclass's ``__post_init__`` calls super's.
    """

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


# -- numbers shortened for reading, so that a shortened bound is still a bound ------------------------------


def rounded(value: float, *, up: bool, digits: int = 4) -> str:
    """A number as text, to so many significant digits, rounded ``up``, as of an upper bound, or down."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    exact = Decimal(value)
    place = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    near = exact.quantize(place, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    if not Decimal("1e-4") <= abs(near) < 10**9:
        return f"{float(near):.{digits}g}"
    text = f"{near:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
