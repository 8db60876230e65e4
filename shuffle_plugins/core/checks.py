"""Checks on a mechanism's dimension and radius; that of ε0 is the accounting's own."""

from __future__ import annotations

import math

_LEAST_RADIUS, _LARGEST_RADIUS = 1e-30, 1e30


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
        ValueError: unless it is in [1e-30, 1e30], where float32 holds it, its reports and their sums.
    """
    if isinstance(radius, bool) or not isinstance(radius, (int, float)):
        raise ValueError(f"radius must be a number, got {radius!r}")
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius must be positive and finite, got {radius!r}")
    if not _LEAST_RADIUS <= radius <= _LARGEST_RADIUS:
        raise ValueError(
            f"radius must be in [{_LEAST_RADIUS:g}, {_LARGEST_RADIUS:g}], got {radius!r}: scale the data"
        )
    return float(radius)
