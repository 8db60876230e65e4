"""Checks on the numbers that every mechanism takes."""

from __future__ import annotations

import math

MAX_LOCAL_EPSILON = 500.0


def check_local_epsilon(local_epsilon: float) -> float:
    """Return ε0 as a float.

    Raises:
        ValueError: unless it is a number in (0, 500]; beyond, doubles lose the odds.
    """
    if isinstance(local_epsilon, bool) or not isinstance(local_epsilon, (int, float)):
        raise ValueError(f"local_epsilon must be a number, got {local_epsilon!r}")
    if not 0 < local_epsilon <= MAX_LOCAL_EPSILON:
        raise ValueError(f"local_epsilon must be in (0, {MAX_LOCAL_EPSILON:g}], got {local_epsilon!r}")
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
