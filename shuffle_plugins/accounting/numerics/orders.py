"""Vectors of Rényi orders, checked."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


def real_orders(orders: ArrayLike) -> Vector:
    """Rényi orders as a vector."""
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if alpha.ndim != 1 or not (np.all(alpha > 1) and np.all(np.isfinite(alpha))):
        raise ValueError("Rényi orders must be finite numbers above 1")
    return alpha


def whole_orders(orders: ArrayLike, *, theorems: str) -> NDArray[np.int64]:
    """Rényi orders as a vector of whole numbers.

    Args:
        orders: from 2 on.
        theorems: which ones ask for it, for the message.
    """
    values = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if values.ndim != 1 or values.size == 0:
        raise ValueError("orders must be a vector with at least one order")
    if not (np.all(values >= 2) and np.all(np.isfinite(values)) and np.all(values == np.floor(values))):
        raise ValueError(f"{theorems} hold at whole orders from 2 on")
    return values.astype(np.int64)
