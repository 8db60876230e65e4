r"""Rényi divergences of a mechanism run on a random sample of the records.

Wang, Balle, Kasiviswanathan 2019, "Subsampled Rényi Differential Privacy and Analytical Moments Accountant":
k of n records without replacement, replace-one neighbours. Zhu, Wang 2019, "Poisson Subsampled Rényi
Differential Privacy": every record with probability γ, **add/remove** neighbours.

Both know nothing of the mechanism but its Rényi curve.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from shuffle_plugins.accounting.numerics.binomial import log_sum
from shuffle_plugins.accounting.numerics.orders import Vector, whole_orders
from shuffle_plugins.accounting.published.subsampled_rdp import subsample_ternary_chi
from shuffle_plugins.core import checks

_THEOREMS = "subsampled Rényi theorems"
_ROUNDING = 1e-9  # relative; gammaln and log_sum stay below it up to order 1e5
_NO_OVERFLOW = 30.0  # log of a sum that is small enough to be added without logarithms, which keep its digits


def without_replacement(
    *, orders: ArrayLike, rdp: ArrayLike, sampling_rate: float, pure_epsilon: float = math.inf
) -> Vector:
    r"""Rényi divergence under k-of-n sampling: Theorem 9 of Wang, Balle, Kasiviswanathan, upper bound.

        ε'(λ) = log(1 + C(λ, 2)·γ²·min(4(e^ε(2) − 1), e^ε(2)·min(2, (e^ε(∞) − 1)²))
                      + Σ_{j=3..λ} C(λ, j)·γ^j·e^((j−1)ε(j))·min(2, (e^ε(∞) − 1)^j)) / (λ − 1)

    For replace-one neighbours, which is what this package reports. On the exact curve of a shuffle (binary
    blanket pair, k = 1000 of n = 10⁶, T = 10⁵, δ = 10⁻⁸) the composed ε is 3 times that of the subsampled
    pair at ε0 = 2 and 6 times at ε0 = 1.

    Args:
        orders: whole λ ≥ 2, shape (m,).
        rdp: ε(j) of the mechanism on its sample at j = 2, 3, …, at least up to the largest order.
        sampling_rate: γ = k/n in (0, 1].
        pure_epsilon: ε(∞) > 0 of the mechanism; infinite if it is not pure.

    Returns:
        Divergences in nats, shape (m,), rounded up.

    Raises:
        ValueError: if ``rdp`` is too short.
    """
    curve = _curve(rdp)
    if not pure_epsilon > 0:
        raise ValueError(f"pure_epsilon must be positive, got {pure_epsilon!r}")
    j = np.arange(2, curve.size + 2, dtype=np.float64)
    log_spread = _log_expm1(pure_epsilon)
    log_chi = (j - 1) * curve + np.minimum(math.log(2), j * log_spread)
    second = float(curve[0])
    log_chi[0] = min(math.log(4) + _log_expm1(second), float(log_chi[0]))
    return subsample_ternary_chi(orders=orders, log_chi=log_chi, sampling_rate=sampling_rate)


def poisson(*, orders: ArrayLike, rdp: ArrayLike, sampling_rate: float) -> Vector:
    r"""Rényi divergence under Poisson sampling: Theorem 5 of Zhu and Wang, for **add/remove** neighbours.

        ε'(λ) = log((1−γ)^(λ−1)·(1 + (λ−1)γ) + C(λ, 2)·γ²(1−γ)^(λ−2)·e^ε(2)
                    + 3·Σ_{l=3..λ} C(λ, l)·(1−γ)^(λ−l)·γ^l·e^((l−1)ε(l))) / (λ − 1)

    Stated for datasets of which one has a record more, with ε(·) the mechanism's curve for that relation.
    **Not a bound for replace-one neighbours**, the relation of this package: there both datasets sample a
    record in place of the other's, and the paper does not treat it. The thesis applies it to a shuffle's
    replace-one curve; kept to draw that figure. Where every γ²-term dominates it is then about a quarter of
    :func:`without_replacement`, and it does fall below exact replace-one divergences.

    Args:
        orders: whole λ ≥ 2, shape (m,).
        rdp: ε(j) of the mechanism on its sample at j = 2, 3, …, at least up to the largest order.
        sampling_rate: γ in (0, 1].

    Returns:
        Divergences in nats, shape (m,), rounded up.

    Raises:
        ValueError: if ``rdp`` is too short.
    """
    curve = _curve(rdp)
    whole = whole_orders(orders, theorems=_THEOREMS)
    if curve.size < int(whole.max()) - 1:
        raise ValueError("rdp must hold every order from 2 to the largest one asked for")
    checks.number("sampling_rate", sampling_rate, above=0, at_most=1)
    if sampling_rate == 1:
        return curve[whole - 2] * (1 + _ROUNDING)
    log_in, log_out = math.log(sampling_rate), math.log1p(-sampling_rate)
    values = []
    for order in whole:
        absent = (order - 1) * log_out + math.log1p((order - 1) * sampling_rate)
        sizes = np.arange(2, order + 1, dtype=np.float64)
        log_terms = (
            gammaln(order + 1)
            - gammaln(sizes + 1)
            - gammaln(order - sizes + 1)
            + sizes * log_in
            + (order - sizes) * log_out
            + (sizes - 1) * curve[: order - 1]
        )
        log_terms[1:] += math.log(3)
        log_present = log_sum(log_terms)
        if log_present < _NO_OVERFLOW:
            values.append(math.log1p(max(math.expm1(absent) + math.exp(log_present), 0.0)))
        else:
            values.append(float(np.logaddexp(absent, log_present)))
    return np.array(values) / (whole - 1) * (1 + _ROUNDING)


def _log_expm1(x: float) -> float:
    """log(e^x − 1) for x ≥ 0."""
    if x == 0:
        return -math.inf
    return x + math.log(-math.expm1(-x))


def _curve(rdp: ArrayLike) -> Vector:
    curve = np.atleast_1d(np.asarray(rdp, dtype=np.float64))
    if curve.ndim != 1 or curve.size == 0 or not np.all(curve >= 0):
        raise ValueError("rdp must be a vector of divergences, none of them negative")
    return curve
