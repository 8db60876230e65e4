r"""Caps of the unit sphere in any dimension: measure, first moment, and the law of one coordinate.

For V uniform on the sphere of :math:`\mathbb{R}^d` and a fixed unit vector u,
:math:`A = \langle V, u \rangle` is symmetric and :math:`A^2 \sim Beta(\frac12, \frac{d-1}{2})`. Forms are
chosen for full relative accuracy up to d = 1e7, where A is of size 1/√d.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

_STRIDE, _FEW_DIMENSIONS = 16, 40


def cap_measure(threshold: float, *, dim: int) -> float:
    """P[A >= threshold] for a threshold in [0, 1]; at dim 1 the cap is one of two points."""
    if dim == 1:
        return 0.5
    if threshold < 0.7:
        return 0.5 * float(special.betaincc(0.5, (dim - 1) / 2, threshold * threshold))
    complement = (1 - threshold) * (1 + threshold)
    return 0.5 * float(special.betainc((dim - 1) / 2, 0.5, complement))


def cap_moment(threshold: float, *, dim: int) -> float:
    r"""E[A; A >= threshold] = :math:`\frac{Γ(d/2)}{2\sqrt{π}\,Γ((d+1)/2)} (1 - t^2)^{(d-1)/2}`."""
    if dim == 1:
        return 0.5
    log_constant = -float(special.gammaln(0.5)) - _log_gamma_ratio(dim / 2)
    return 0.5 * math.exp(log_constant + 0.5 * (dim - 1) * math.log1p(-threshold * threshold))


def caps_overlap(threshold: float, *, dim: int) -> float:
    """P[A >= threshold and B >= threshold] for two orthogonal directions, rounded up; dim at least 2.

    Given A = a, B is √(1 − a²) times a coordinate of a sphere of one dimension less.
    """
    steps = 4096
    tails = cap_measure(threshold, dim=dim) * np.arange(1, steps + 1) / steps
    along = np.minimum(cap_coordinate(tails, dim=dim), 1.0)
    across = np.sqrt((1 - along) * (1 + along))
    # The conditional probability falls as a grows: its value at the lower end of a stretch is the largest.
    reached = (across > 0) & ((threshold <= across) if dim > 2 else (threshold < across))
    share = np.zeros(steps)
    share[reached] = _measures_above(threshold / across[reached], dim=dim - 1)
    return float(np.mean(share)) * cap_measure(threshold, dim=dim) * (1 + 1e-9)


def _measures_above(thresholds: NDArray[np.float64], *, dim: int) -> NDArray[np.float64]:
    """:func:`cap_measure` of decreasing thresholds, rounded up by a relative 1e-5 or less.

    From three dimensions on the density of A is log-concave, and so is the measure of a cap as a function of
    its threshold (Prékopa): its logarithm lies below every tangent. It is known exactly at a few thresholds;
    between two of them the lower one of their tangents takes its place. In few dimensions, where it falls
    steeply near 1, every one is computed.
    """
    if dim < _FEW_DIMENSIONS or len(thresholds) <= 2 * _STRIDE:
        return _cap_measures(thresholds, dim=dim)
    nodes = np.append(thresholds[:-1:_STRIDE], thresholds[-1])
    measures = _cap_measures(nodes, dim=dim)
    if not measures[0] > 1e-300:
        return _cap_measures(thresholds, dim=dim)
    log_constant = _log_gamma_ratio((dim - 1) / 2) - 0.5 * math.log(math.pi)
    log_density = log_constant + 0.5 * (dim - 3) * np.log1p(-nodes * nodes)
    logs, slopes = np.log(measures), -np.exp(log_density - np.log(measures))
    before = np.minimum(np.arange(len(thresholds)) // _STRIDE, len(nodes) - 2)
    tangents = (
        logs[before + side] + slopes[before + side] * (thresholds - nodes[before + side]) for side in (0, 1)
    )
    found: NDArray[np.float64] = np.exp(np.minimum(*tangents))
    return found


def _cap_measures(thresholds: NDArray[np.float64], *, dim: int) -> NDArray[np.float64]:
    """:func:`cap_measure` of each threshold."""
    if dim == 1:
        return np.full(thresholds.shape, 0.5)
    complements = (1 - thresholds) * (1 + thresholds)
    low = thresholds < 0.7
    found = np.empty(thresholds.shape)
    found[low] = 0.5 * special.betaincc(0.5, (dim - 1) / 2, thresholds[low] ** 2)
    found[~low] = 0.5 * special.betainc((dim - 1) / 2, 0.5, complements[~low])
    return found


def cap_coordinate(tail: NDArray[np.float64], *, dim: int) -> NDArray[np.float64]:
    """The value a with P[A >= a] = tail, for tails in (0, 1/2]."""
    if dim == 1:
        return np.ones_like(tail)
    squared: NDArray[np.float64] = special.betainccinv(0.5, (dim - 1) / 2, 2 * tail)
    root: NDArray[np.float64] = np.sqrt(squared.clip(0.0, 1.0))
    return root


def _log_gamma_ratio(x: float) -> float:
    """log Γ(x + 1/2) - log Γ(x), without the cancellation of two large logarithms."""
    return -math.log(float(special.poch(x + 0.5, -0.5)))
