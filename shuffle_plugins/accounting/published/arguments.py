"""What several theorems ask of their arguments."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


def check_level(local_epsilon: float) -> None:
    """Raise ValueError unless ε0 is a positive finite number."""
    if not (math.isfinite(local_epsilon) and local_epsilon > 0):
        raise ValueError(f"local_epsilon must be a positive finite number, got {local_epsilon!r}")


def check_reports(num_reports: int) -> None:
    """Raise ValueError unless there is a report."""
    if num_reports < 1:
        raise ValueError(f"num_reports must be positive, got {num_reports!r}")


def real_orders(orders: ArrayLike) -> Vector:
    """Rényi orders as a vector.

    Raises:
        ValueError: if an order is not a finite number above 1.
    """
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if alpha.ndim != 1 or not (np.all(alpha > 1) and np.all(np.isfinite(alpha))):
        raise ValueError("Rényi orders must be finite numbers above 1")
    return alpha


def whole_orders(orders: ArrayLike, *, theorems: str) -> NDArray[np.int64]:
    """Rényi orders as a vector of whole numbers.

    Args:
        orders: from 2 on.
        theorems: which ones ask for it, for the message.

    Raises:
        ValueError: if there is no order, or one is not a whole number from 2 on.
    """
    values = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if values.ndim != 1 or values.size == 0:
        raise ValueError("orders must be a vector with at least one order")
    if not (np.all(values >= 2) and np.all(np.isfinite(values)) and np.all(values == np.floor(values))):
        raise ValueError(f"{theorems} hold at whole orders from 2 on")
    return values.astype(np.int64)
