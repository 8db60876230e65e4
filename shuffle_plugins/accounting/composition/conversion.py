r"""From a Rényi curve to (ε, δ).

For an order α > 1 with Rényi divergence at most ρ, both of these hold (Canonne, Kamath, Steinke 2020,
Proposition 12; Balle, Barthe, Gaboardi, Hsu, Sato 2020, Theorem 21):

    ε = ρ + log(1 − 1/α) − (log δ + log α)/(α − 1)
    δ = exp((α − 1)(ρ − ε)) · (1 − 1/α)^α / (α − 1)

Any order gives a valid answer, so the best of those on offer is taken. The curve must be an *upper* bound on
the divergence: the same formula applied to a lower bound says nothing about ε.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ULPS = 16 * np.finfo(np.float64).eps


def epsilon_from_rdp(*, orders: ArrayLike, rdp: ArrayLike, delta: float) -> tuple[float, float]:
    """Smallest ε that a Rényi curve certifies at δ.

    Args:
        orders: Rényi orders α > 1, real, shape (m,).
        rdp: upper bounds on the divergence at those orders in nats, shape (m,); may be infinite.
        delta: in (0, 1).

    Returns:
        ε ≥ 0 in nats, rounded up by a few ulps, and the order that gave it. If every entry of ``rdp`` is
        infinite, ε is infinite too.

    Raises:
        ValueError: if the shapes differ, an order is not above 1, a divergence is negative or not a number,
            or δ is out of range.
    """
    alpha, rho = _curve(orders, rdp)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta!r}")
    gain = np.log1p(-1.0 / alpha)
    price = -(math.log(delta) + np.log(alpha)) / (alpha - 1.0)
    epsilon = rho + gain + price + _ULPS * (rho - gain + np.abs(price))
    best = int(np.argmin(epsilon))
    return max(0.0, float(epsilon[best])), float(alpha[best])


def delta_from_rdp(*, orders: ArrayLike, rdp: ArrayLike, epsilon: float) -> tuple[float, float]:
    """Smallest δ that a Rényi curve certifies at ε.

    Args:
        orders: Rényi orders α > 1, real, shape (m,).
        rdp: upper bounds on the divergence at those orders in nats, shape (m,); may be infinite.
        epsilon: finite and not negative, in nats.

    Returns:
        δ in [0, 1], rounded up by a few ulps, and the order that gave it.

    Raises:
        ValueError: if the shapes differ, an order is not above 1, a divergence is negative or not a number,
            or ε is out of range.
    """
    alpha, rho = _curve(orders, rdp)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon!r}")
    exponent = (alpha - 1.0) * (rho - epsilon)
    gain = alpha * np.log1p(-1.0 / alpha)
    price = np.log(alpha - 1.0)
    slack = _ULPS * ((alpha - 1.0) * (rho + epsilon) - gain + np.abs(price) + 1.0)
    log_delta = exponent + gain - price + slack
    best = int(np.argmin(log_delta))
    return math.exp(min(0.0, float(log_delta[best]))), float(alpha[best])


def _curve(orders: ArrayLike, rdp: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    rho = np.atleast_1d(np.asarray(rdp, dtype=np.float64))
    if alpha.ndim != 1 or alpha.size == 0 or alpha.shape != rho.shape:
        raise ValueError(f"orders and rdp must be vectors of one length, got {alpha.shape} and {rho.shape}")
    if not (np.all(alpha > 1) and np.all(np.isfinite(alpha))):
        raise ValueError("every order must be a finite number above 1")
    if not np.all(rho >= 0):
        raise ValueError("every divergence must be a number and not negative")
    return alpha, rho
