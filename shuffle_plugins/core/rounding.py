"""Numbers shortened for reading, so that a shortened bound is still a bound."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

_LARGEST_IN_FULL = 10**9  # above it, and below 1e-4, the text has an exponent


def rounded(value: float, *, up: bool, digits: int = 4) -> str:
    """A number as text, to so many significant digits, rounded ``up``, as of an upper bound, or down."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    exact = Decimal(value)
    place = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    near = exact.quantize(place, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    if not Decimal("1e-4") <= abs(near) < _LARGEST_IN_FULL:
        return f"{float(near):.{digits}g}"
    text = f"{near:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
