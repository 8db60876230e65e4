r"""Caps of the unit sphere in any dimension: measure, first moment, and the law of one coordinate.

For V uniform on the sphere of :math:`\mathbb{R}^d` and a fixed unit vector u,
:math:`A = \langle V, u \rangle` is symmetric and :math:`A^2 \sim Beta(\frac12, \frac{d-1}{2})`. Forms are
chosen for full relative accuracy up to d = 1e7, where A is of size 1/√d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shuffle_plugins.accounting import Atoms, InformationBound, most_telling, two_level_atoms

_STRIDE, _FEW_DIMENSIONS = 16, 40
LOUDEST_TOLD = 30.0
"""ε0 beyond which no round is large enough for what a report tells to bound it."""

_CELLS = 360  # of an angle
_OVERLAP_ERROR = 1e-6  # relative to a cap's measure; far above that of the integrals
_ANGLES = 37  # between two directions that are tried
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)  # caps of a million dimensions to nine digits


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


def caps_at_angle(threshold: float, *, angle: float, dim: int) -> float:
    r"""P[⟨V, u⟩ >= threshold and ⟨V, w⟩ >= threshold] for unit vectors at that angle; dim at least 2.

    In their plane V has a uniform direction and a squared length of law Beta(1, (d−2)/2), so the measure is
    :math:`\frac1π \int_{angle/2}^{\arccos t} (1 - t^2/\cos^2 a)^{(d-2)/2} da`. A square root at the upper
    end is taken out by substitution.

    Args:
        threshold: t, in [0, 1].
        angle: in [0, π].
        dim: d.
    """
    last = math.acos(threshold)
    if last <= angle / 2:
        return 0.0
    root = math.sqrt(last - angle / 2)
    width = root * (_NODES + 1) / 2
    cosine = np.cos(last - width**2)
    inside = np.maximum((cosine - threshold) * (cosine + threshold) / cosine**2, 0.0)
    power = inside ** ((dim - 2) / 2) if dim > 2 else np.ones_like(inside)
    return float(_WEIGHTS @ (power * 2 * width)) * root / 2 / math.pi


def half_spaces_at_angle(threshold: float, *, angle: float) -> float:
    """The same of a standard normal V of any dimension: its squared length in a plane is exponential."""
    widest = math.pi / 2 - angle / 2
    if widest <= 0:
        return 0.0
    a = angle / 2 + widest * (_NODES + 1) / 2
    with np.errstate(under="ignore"):
        density = np.exp(-(threshold**2) / (2 * np.maximum(np.cos(a), 1e-150) ** 2))
    return float(_WEIGHTS @ density) * widest / 2 / math.pi


@dataclass(frozen=True, kw_only=True, slots=True)
class Caps:
    """A mechanism that reports a direction, by e^ε0 likelier within a cap about the record's own.

    Attributes:
        local_epsilon: ε0.
        density: c, of a report outside of its cap, over the uniform law.
        measure: of a cap, at most 1/2.
        overlap: measure of two caps whose centres are at that angle; it falls with the angle.
    """

    local_epsilon: float
    density: float
    measure: float
    overlap: Callable[[float], float]


def three_caps(caps: Caps) -> Atoms:
    """The instance of directions x, x' and everybody else's z, opposite to the two, that tells most.

    z is at the same angle to x and to x', in their plane, on the other side. Then no report of a positive
    threshold is in all three caps, and x and x' are at least as far from z as from each other's middle.
    """
    density, measure, overlap = caps.density, caps.measure, caps.overlap

    def instance(angle: float) -> Atoms:
        together = min(overlap(angle), measure)
        other = min(overlap(math.pi - angle / 2), measure / 2, measure - together)
        alone = density * (measure - together - other)
        shares: dict[tuple[int, ...], float] = {
            (1, 0, 0): alone,
            (0, 1, 0): alone,
            (1, 1, 0): density * together,
            (1, 0, 1): density * other,
            (0, 1, 1): density * other,
            (0, 0, 1): density * (measure - 2 * other),
        }
        return two_level_atoms(local_epsilon=caps.local_epsilon, shares=shares)

    return most_telling(instance(angle) for angle in np.linspace(math.pi / 2, math.pi, _ANGLES).tolist())


def caps_information(caps: Caps) -> InformationBound:
    """How much a report tells, at most (section 3d of the proofs of accounting)."""
    measure = caps.measure
    overlaps = np.array([caps.overlap(angle) for angle in np.linspace(0, math.pi, _CELLS + 1).tolist()])
    low = np.maximum(overlaps - _OVERLAP_ERROR * measure, 0.0)
    high = np.minimum(overlaps + _OVERLAP_ERROR * measure, measure)
    saved = -math.expm1(-caps.local_epsilon)  # 1 − 1/e
    first, second = np.arange(_CELLS)[:, None], np.arange(_CELLS)[None]
    # Of the angle between x and x', at most a + b and 2π − a − b, the largest in the cell.
    apart = np.minimum(np.minimum(first + second + 2, 2 * _CELLS - first - second), _CELLS)
    together = low[apart]
    thrice = np.minimum(together, np.minimum(high[first], high[second]))
    alone = 2 * measure - saved * (low[first + 1] + low[second + 1])
    most = float((alone - 2 * (together - saved * thrice)).max())
    return InformationBound.of_blanket(
        local_epsilon=caps.local_epsilon,
        information=caps.density * math.expm1(caps.local_epsilon) ** 2 * most,
        mass=caps.density,
    )


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
