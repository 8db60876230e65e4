r"""Upper bounds on :math:`E[(x + X_1 + … + X_N)_+]` for independent bounded X of unknown laws.

Every X has mean zero, a variance of at most v, and lies in [−a, b]; no more is known. Sums of many are
close to normal, so the variance is nearly all that matters. What the rest can add is bounded here: an
exponential tilt with one more normal variable for each X, which makes all of their moments at the tilt the
same, and a comparison of the tilted sum with a normal one by characteristic functions. Proof:
``docs/proofs/accounting.md``, section 3d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from shuffle_plugins.accounting.numerics.grid import Floats

_LARGEST_EXPONENT = 300.0
_SERIES, _SERIES_TERMS = 0.5, 20  # arguments up to which a power series has no cancellation, and its length
_HALVINGS = 40  # of the bracket of the contour; any contour gives a valid bound
_CONTOURS = (0.03, 0.1, 0.2, 0.35, 0.6, 0.8, 1.0)  # shares of the saddle point's: fewer feel skewness less
_SMOOTHED = (0.7, 1.5, 3.0, 7.0)  # −log of what the added normal leaves where nothing else is known to decay
_NEAR, _NEAR_CELLS, _FAR_CELLS = 10.0, 96, 16  # deviations of the integrand that are looked at finely
_ROUNDING = 1e-7  # relative, of means; far above rounding


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundedTerms:
    """Some independent variables, of which this is known for each; arrays of shape (rows,).

    Attributes:
        count: N.
        variance: v, at most.
        above: b, the largest value, at most.
        below: a, the smallest value is at least −a.
    """

    count: float
    variance: Floats
    above: Floats
    below: Floats


@dataclass(frozen=True, slots=True)
class _Tilted:
    """Ranges, for one term and its normal variable, under the tilt; shape (rows,)."""

    log_moment: Floats
    least_mean: Floats
    largest_mean: Floats
    least_variance: Floats
    largest_variance: Floats
    own_variance: Floats  # without the normal variable, at most
    third: Floats  # absolute central moment, at most


def positive_part_bound(shift: Floats, *, each: BoundedTerms, own: BoundedTerms) -> Floats:
    """Bounds on E[(x + ΣX)₊], shape (rows,).

    Args:
        shift: x, shape (rows,).
        each: the many terms.
        own: further terms, in the same sum.
    """
    saddle = _saddle_points(shift, each, own)
    found = np.full(len(shift), np.inf)
    for part in _CONTOURS:
        found = np.minimum(found, _along(saddle * part, shift, each, own))
    return np.asarray(found * (1 + _ROUNDING), dtype=np.float64)


def log_chernoff(shift: Floats, *, each: BoundedTerms, own: BoundedTerms) -> Floats:
    """Logarithms of a rougher bound on the same that is small wherever sums end: (y)₊ ≤ e^(c·y − 1)/c."""
    c = _saddle_points(shift, each, own)
    height = each.count * _tilted(c, each).log_moment + own.count * _tilted(c, own).log_moment
    return np.asarray(c * shift + height - 1 - np.log(c), dtype=np.float64)


def _saddle_points(shift: Floats, each: BoundedTerms, own: BoundedTerms) -> Floats:
    """About the c at which e^(cx)/c² times the largest moments is least."""
    deviation = np.sqrt(each.count * each.variance + own.count * own.variance)
    low, high = 1e-3 / deviation, 60 / deviation
    for _ in range(_HALVINGS):
        c = np.sqrt(low * high)
        slope = shift - 2 / c
        for terms in (each, own):
            u = np.minimum(c * terms.above, _LARGEST_EXPONENT)
            moment = 1 + terms.variance * c * c * _second(u)
            slope = slope + terms.count * terms.variance / terms.above * np.expm1(u) / moment
        low, high = np.where(slope < 0, c, low), np.where(slope < 0, high, c)
    return np.asarray(low, dtype=np.float64)


def _tilted(c: Floats, terms: BoundedTerms) -> _Tilted:
    """Of one term, under e^(cX): Bennett's moment, and what its third powers may change."""
    v, u = terms.variance, np.minimum(c * terms.above, _LARGEST_EXPONENT)
    excess = v * c * c * _second(u)
    log_moment = np.log1p(excess)
    # 2f/(1 + f) − 2·log(1 + f), which falls with f, where f is small without cancellation
    lowered = np.where(excess < 1e-3, -(excess**2), 2 * excess / (1 + excess) - 2 * log_moment)
    down = c * terms.below
    highest = c * c * v * _third(u)
    mean = (highest + 2 * excess) / c
    double = 2 * log_moment
    own_variance = v * np.exp(u)
    return _Tilted(
        log_moment=log_moment,
        least_mean=(double - c * c * v * down / 6 + lowered) / c,
        largest_mean=(double + highest) / c,
        least_variance=np.maximum((double - c * c * v * down * (2 / 3) + lowered) / c**2 - mean**2, 0.0),
        largest_variance=double / c**2 + v * (np.exp(u) - 2 * _second(u)),
        own_variance=own_variance,
        third=(np.maximum(terms.above, terms.below) + mean) * own_variance,
    )


def _second(u: Floats) -> Floats:
    """(e^u − 1 − u)/u², increasing."""
    return _by_series(u, lambda k: 1.0, lambda t: (np.expm1(t) - t) / t**2)


def _third(u: Floats) -> Floats:
    """(u·e^u + u − 2·e^u + 2)/u², increasing for u ≥ 0."""
    return _by_series(u, lambda k: k - 2.0, lambda t: (t * np.exp(t) + t - 2 * np.expm1(t)) / t**2)


def _by_series(u: Floats, numerator: Callable[[int], float], formula: Callable[[Floats], Floats]) -> Floats:
    """Σ numerator(k)·u^(k−2)/k! over k ≥ 2 for small u, the formula for others."""
    found = np.zeros(len(u))
    small = np.abs(u) < _SERIES
    part = np.zeros(int(small.sum()))
    for k in range(_SERIES_TERMS, 1, -1):
        part = part * u[small] + numerator(k) / math.factorial(k)
    found[small], found[~small] = part, formula(u[~small])
    return found


def _along(c: Floats, shift: Floats, each: BoundedTerms, own: BoundedTerms) -> Floats:
    """The bound with the contour at c, at the best of a few amounts of smoothing."""
    most, alone = _tilted(c, each), _tilted(c, own)
    sums = [
        each.count * getattr(most, name) + own.count * getattr(alone, name)
        for name in (
            "log_moment",
            "least_mean",
            "largest_mean",
            "least_variance",
            "largest_variance",
            "third",
        )
    ]
    log_moment, low, high, least, largest, third = sums
    fourth = each.count * most.own_variance**2 + own.count * alone.own_variance**2
    found = np.exp(np.minimum(c * shift + log_moment - 1 - np.log(c), 700.0))
    steady = (each.count - 1) * most.least_variance
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        end = np.minimum(np.sqrt(2 / np.maximum(most.own_variance, alone.own_variance)), 2 * steady / third)
        near = np.minimum(end, _NEAR / np.sqrt(least))
        far = (end / near)[:, None] ** (np.arange(1, _FAR_CELLS + 1) / _FAR_CELLS)
        w = near[:, None] * np.concatenate(
            [np.broadcast_to(np.linspace(0, 1, _NEAR_CELLS + 1), (len(c), _NEAR_CELLS + 1)), far], axis=1
        )
        # Gap rises and decay falls up to the end: a cell is below gap at its right times decay at its left.
        gap = third[:, None] * w[:, 1:] ** 3 / 6 + fourth[:, None] * w[:, 1:] ** 4 / 8
        left = w[:, :-1]
        base = gap * np.diff(w, axis=1) / (c[:, None] ** 2 + left**2)
        base = base * np.exp(-steady[:, None] * left**2 / 2 + third[:, None] * left**3 / 6)
        slack = _ROUNDING * (np.abs(shift) + np.abs(low) + np.abs(high))
        for amount in _SMOOTHED:
            extra = 2 * amount / end**2
            inner = (base * np.exp(-extra[:, None] * left**2 / 2)).sum(axis=1)
            outer = math.exp(-amount) * np.minimum(1 / end, end / (2 * amount * (c**2 + end**2)))
            outer = outer + np.exp(-(least + extra) * end**2 / 2) / end
            log_part = _log_largest_part(
                shift + low + c * extra - slack, shift + high + c * extra + slack, largest + extra, c
            )
            log_part += 0.5 * np.log((largest + extra) / (least + extra))
            exponent = c * shift + log_moment + c * c * extra / 2
            value = np.exp(np.minimum(exponent + log_part, 700.0))
            value += np.exp(np.minimum(exponent, 700.0)) * (inner + outer) / math.pi
            found = np.where((steady > 0) & np.isfinite(value), np.minimum(found, value), found)
    return np.asarray(found, dtype=np.float64)


def _log_part(mean: Floats, variance: Floats, c: Floats) -> tuple[Floats, Floats]:
    """log E[Y₊·e^(−cY)] of a normal Y, and its derivative by the mean."""
    root = np.sqrt(variance)
    a = (mean - c * variance) / root
    log_density = -0.5 * a * a - 0.5 * math.log(2 * math.pi)
    negative = np.minimum(a, 0.0)
    mills = math.sqrt(math.pi / 2) * special.erfcx(-negative / math.sqrt(2))
    part = np.where(a < -50, 1 / np.maximum(a * a, 1.0), 1 + negative * mills)
    positive = np.maximum(a, 0.0)
    value = np.exp(-0.5 * positive * positive) / math.sqrt(2 * math.pi) + positive * special.ndtr(positive)
    log_part = np.where(a < 0, log_density + np.log(part), np.log(value))
    ratio = np.where(a < 0, mills / part, special.ndtr(positive) / value)
    return -c * mean + c * c * variance / 2 + np.log(root) + log_part, ratio / root - c


def _log_largest_part(low: Floats, high: Floats, variance: Floats, c: Floats) -> Floats:
    """The largest over means in [low, high]: log-concave, so below both ends' tangents."""
    left, rise = _log_part(low, variance, c)
    right, fall = _log_part(high, variance, c)
    apart = np.where(rise > fall, rise - fall, 1.0)
    crossing = np.clip((right - left + rise * low - fall * high) / apart, low, high)
    between = left + rise * (crossing - low)
    return np.asarray(np.where(rise <= 0, left, np.where(fall >= 0, right, between)), dtype=np.float64)
