r"""Rényi divergences of a pair at real orders, and the RDP way to compose rounds (Mironov 2017).

For an order α > 1 with divergence at most ρ, both of these hold (Canonne, Kamath, Steinke 2020, Proposition
12; Balle, Barthe, Gaboardi, Hsu, Sato 2020, Theorem 21), and the best of the orders on offer is taken:

    ε = ρ + log(1 − 1/α) − (log δ + log α)/(α − 1)
    δ = exp((α − 1)(ρ − ε)) · (1 − 1/α)^α / (α − 1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from shuffle_plugins.accounting.composition.pld import LossHistory
from shuffle_plugins.accounting.losses import PrivacyLossDistribution, growth_of, real_orders
from shuffle_plugins.accounting.numerics.sums import Floats

_ULPS = 16 * np.finfo(np.float64).eps
_COARSE_ORDERS = 1.0 + np.geomspace(1e-2, 1e6, 65)


def renyi_divergence(law: PrivacyLossDistribution, orders: npt.ArrayLike) -> Floats:
    """D_λ(P‖Q) of a loss law at real orders λ > 1, in nats; shape of ``orders``.

    With an upper law this is an upper bound on the pair's divergence, up to outcomes of total P mass
    ``law.missing``, which a caller must charge to δ.
    """
    order = real_orders(orders)
    exponent = order[:, None] * law.loss + np.log(law.q)
    peak = exponent.max(axis=1, keepdims=True)
    moment = np.log(np.exp(exponent - peak).sum(axis=1)) + peak[:, 0]
    return np.asarray(np.maximum(moment, 0.0) / (order - 1), dtype=np.float64).reshape(np.shape(orders))


class RenyiComposition:
    """Rounds composed by adding Rényi divergences; answers ε(δ) and δ(ε) from above."""

    def __init__(self, laws: Sequence[PrivacyLossDistribution], steps: Sequence[int]) -> None:
        if len(laws) != len(steps) or not laws:
            raise ValueError("compose at least one law, and give every law its number of steps")
        if any(law.kind != "upper" for law in laws):
            raise ValueError("RDP composition bounds from above; it needs upper laws")
        self._laws = tuple(laws)
        self._steps = tuple(steps)
        sums = LossHistory(lambda law: law).follow(list(laws), list(steps))
        self._missing, self._growth = sums.missing, growth_of(sums.mass_error)
        deviation = math.sqrt(sums.variance)
        self._orders = _COARSE_ORDERS
        if 0 < deviation < 64 / _COARSE_ORDERS[-1]:
            most = 64 / deviation  # δ far below 1e-300 asks for no larger one
            more = np.geomspace(
                _COARSE_ORDERS[-1], most, 2 + math.ceil(4 * math.log10(most / _COARSE_ORDERS[-1]))
            )
            self._orders = np.append(_COARSE_ORDERS, more[1:])

    def rdp(self, orders: npt.ArrayLike) -> Floats:
        """Composed Rényi divergence at each order."""
        total = np.zeros(np.shape(np.atleast_1d(orders)))
        for law, step in zip(self._laws, self._steps, strict=True):
            order = np.atleast_1d(np.asarray(orders, dtype=np.float64))
            total += step * (renyi_divergence(law, order) + law.loss_error * order / (order - 1))
        return total

    def epsilon(self, delta: float) -> float:
        """ε at δ, minimised over real orders; rounded up."""
        target = (delta - self._missing) / self._growth
        if target <= 0:
            return math.inf
        return self._refine(partial(epsilon_from_rdp, delta=target)) * (1 + 1e-12)

    def delta(self, epsilon: float) -> float:
        """δ at ε, minimised over real orders; rounded up."""
        found = self._refine(partial(delta_from_rdp, epsilon=epsilon))
        return min(1.0, found * (1 + 1e-12) * self._growth + self._missing)

    def _refine(self, convert: Callable[..., tuple[float, float]]) -> float:
        orders = self._orders
        best = math.inf
        for _ in range(3):
            value, order = convert(orders=orders, rdp=self.rdp(orders))
            best = min(best, value)
            at = int(np.argmin(np.abs(orders - order))) if math.isfinite(order) else 0
            low, high = orders[max(at - 1, 0)], orders[min(at + 1, len(orders) - 1)]
            orders = 1.0 + np.geomspace(low - 1, high - 1, 17)
        return best


def epsilon_from_rdp(*, orders: npt.ArrayLike, rdp: npt.ArrayLike, delta: float) -> tuple[float, float]:
    """Smallest ε ≥ 0 that a Rényi curve certifies at δ, rounded up by a few ulps, and its order.

    Args:
        orders: Rényi orders α > 1, real, shape (m,).
        rdp: upper bounds on the divergence there in nats, shape (m,); may be infinite.
    """
    alpha, rho = _curve(orders, rdp)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta!r}")
    gain = np.log1p(-1.0 / alpha)
    price = -(math.log(delta) + np.log(alpha)) / (alpha - 1.0)
    epsilon = rho + gain + price + _ULPS * (rho - gain + np.abs(price))
    best = int(np.argmin(epsilon))
    return max(0.0, float(epsilon[best])), float(alpha[best])


def delta_from_rdp(*, orders: npt.ArrayLike, rdp: npt.ArrayLike, epsilon: float) -> tuple[float, float]:
    """Smallest δ in [0, 1] that a Rényi curve certifies at a finite ε ≥ 0, rounded up, and its order."""
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


def _curve(orders: npt.ArrayLike, rdp: npt.ArrayLike) -> tuple[Floats, Floats]:
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    rho = np.atleast_1d(np.asarray(rdp, dtype=np.float64))
    if alpha.ndim != 1 or alpha.size == 0 or alpha.shape != rho.shape:
        raise ValueError(f"orders and rdp must be vectors of one length, got {alpha.shape} and {rho.shape}")
    if not (np.all(alpha > 1) and np.all(np.isfinite(alpha))):
        raise ValueError("every order must be a finite number above 1")
    if not np.all(rho >= 0):
        raise ValueError("every divergence must be a number and not negative")
    return alpha, rho
