"""Checks on the numbers that every mechanism takes."""

from __future__ import annotations

import math

MIN_LOCAL_EPSILON = 1e-9
"""Below, what rounding probabilities takes from a report is no longer small beside what it says.

A sign's gain, tanh(ε0/2), is off by less than 2**-59, which is 4e-9 of it here and all of it at 1e-17.
"""

MAX_LOCAL_EPSILON = 500.0
"""Beyond, doubles lose the odds."""


def check_local_epsilon(local_epsilon: float) -> float:
    """Return ε0 as a float.

    Raises:
        ValueError: unless it is a number in [1e-9, 500].
    """
    if isinstance(local_epsilon, bool) or not isinstance(local_epsilon, (int, float)):
        raise ValueError(f"local_epsilon must be a number, got {local_epsilon!r}")
    if not MIN_LOCAL_EPSILON <= local_epsilon <= MAX_LOCAL_EPSILON:
        raise ValueError(
            f"local_epsilon must be in [{MIN_LOCAL_EPSILON:g}, {MAX_LOCAL_EPSILON:g}], got {local_epsilon!r}"
        )
    return float(local_epsilon)


def check_dim(dim: int) -> int:
    """Return the dimension.

    Raises:
        ValueError: unless it is a whole number in [1, 2**53].
    """
    if isinstance(dim, bool) or not isinstance(dim, int) or not 1 <= dim <= 1 << 53:
        raise ValueError(f"dim must be a whole number in [1, 2**53], got {dim!r}")
    return dim


def check_radius(radius: float) -> float:
    """Return the radius as a float.

    Raises:
        ValueError: unless it is positive and finite.
    """
    if isinstance(radius, bool) or not isinstance(radius, (int, float)):
        raise ValueError(f"radius must be a number, got {radius!r}")
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius must be positive and finite, got {radius!r}")
    return float(radius)
