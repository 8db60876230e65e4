"""Caps of the unit sphere in any dimension: measure, first moment, and the law of one coordinate A.

Forms are chosen for full relative accuracy up to d = 1e7, where A is of size 1/√d.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from shuffle_plugins.accounting import Atoms, Blanket, InformationBound, most_telling, two_level_atoms
from shuffle_plugins.randomness.chacha import WHOLE

LOUDEST_TOLD = 30.0
"""ε0 beyond which no round is large enough for what a report tells to bound it."""

OVERLAP_ERROR = 1e-6
"""Of the measure of two caps, relative to that of one; far above the error of the integrals."""

_CELLS = 360  # of an angle
ANGLES = np.linspace(0, math.pi, _CELLS + 1)
"""Ends of the cells in which angles between directions are tried."""

_FIRST, _SECOND = np.triu_indices(_CELLS)  # of two angles, whose order does not matter
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)  # caps of a million dimensions to nine digits


def plain_share(measure: float, *, local_epsilon: float) -> float:
    """c = 1/(1 + (e^ε0 - 1)·measure): of reports that are e^ε0 times likelier on a set, the plain ones."""
    shrink = math.exp(-local_epsilon)
    return shrink / (shrink - math.expm1(-local_epsilon) * measure)


def plain_share_drawn(measure: float, *, local_epsilon: float) -> int:
    """:func:`plain_share` as it is drawn, times 2**62: rounded up, so that ε0 is never exceeded.

    The smaller of c and 1 - c is rounded by a share of itself, so that hardly any ε0 is lost at either end.
    """
    shrink, gain = math.exp(-local_epsilon), -math.expm1(-local_epsilon) * measure
    plain = math.ceil(shrink / (shrink + gain) * (1 + 1e-12) * WHOLE)
    informative = math.floor(gain / (shrink + gain) * (1 - 1e-12) * WHOLE)
    return min(plain, WHOLE - informative)


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
    # log Γ(x + 1/2) - log Γ(x), without the cancellation of two large logarithms
    log_ratio = -math.log(float(special.poch(dim / 2 + 0.5, -0.5)))
    log_constant = -float(special.gammaln(0.5)) - log_ratio
    return 0.5 * math.exp(log_constant + 0.5 * (dim - 1) * math.log1p(-threshold * threshold))


def caps_at_angle(threshold: float, *, angle: ArrayLike, dim: int) -> NDArray[np.float64]:
    r"""P[⟨V, u⟩ >= threshold and ⟨V, w⟩ >= threshold] for unit vectors at each angle; dim at least 2.

    :math:`\frac1π \int_{angle/2}^{\arccos t} (1 - t^2/\cos^2 a)^{(d-2)/2} da`, without the root at its upper
    end.
    """
    last = math.acos(threshold)
    root = np.sqrt(np.maximum(last - np.asarray(angle) / 2, 0.0))
    width = root[..., None] * (_NODES + 1) / 2
    cosine = np.cos(last - width**2)
    inside = np.maximum((cosine - threshold) * (cosine + threshold) / cosine**2, 0.0)
    power = inside ** ((dim - 2) / 2) if dim > 2 else np.ones_like(inside)
    return np.asarray((power * 2 * width) @ _WEIGHTS * root / 2 / math.pi)


def half_spaces_at_angle(threshold: float, *, angle: ArrayLike) -> NDArray[np.float64]:
    """As :func:`caps_at_angle`, for half-spaces of a standard normal V, of exponential squared length."""
    half = np.asarray(angle) / 2
    widest = np.maximum(math.pi / 2 - half, 0.0)
    a = half[..., None] + widest[..., None] * (_NODES + 1) / 2
    with np.errstate(under="ignore"):
        density = np.exp(-(threshold**2) / (2 * np.maximum(np.cos(a), 1e-150) ** 2))
    return np.asarray(density @ _WEIGHTS * widest / 2 / math.pi)


def caps_blanket(
    *, local_epsilon: float, measure: float, overlap: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> Blanket:
    """Blanket on the ball of reports by e^ε0 likelier within a cap, or half-space, about the record.

    (e, 1) and (1, e) have mass c·s each, (1, 1) has c(1 - 2s) (``docs/proofs/mechanisms.md``, section 4). A
    third record at a right angle leaves most of either cap at the blanket's density. The instance is of x, x'
    and everybody else's z, at the same angle to both in their plane, on the other side.

    Args:
        measure: s, of a cap, at most 1/2.
        overlap: measures of two caps whose centres are at each angle; they fall with the angle.
    """
    plain = plain_share(measure, local_epsilon=local_epsilon)

    def instance(together: float, other: float) -> Atoms:
        together = min(together, measure)
        other = min(other, measure / 2, measure - together)
        alone = plain * (measure - together - other)
        shares: dict[tuple[int, ...], float] = {
            (1, 0, 0): alone,
            (0, 1, 0): alone,
            (1, 1, 0): plain * together,
            (1, 0, 1): plain * other,
            (0, 1, 1): plain * other,
            (0, 0, 1): plain * (measure - 2 * other),
        }
        return two_level_atoms(local_epsilon=local_epsilon, shares=shares)

    tried = np.linspace(math.pi / 2, math.pi, 37)  # angles between x and x'
    instances = map(instance, overlap(tried).tolist(), overlap(math.pi - tried / 2).tolist())
    error = OVERLAP_ERROR * measure
    information = None
    if local_epsilon <= LOUDEST_TOLD:
        low = np.maximum(overlap(ANGLES) - error, 0.0)
        high = np.minimum(overlap(ANGLES) + error, measure)
        saved = -math.expm1(-local_epsilon)  # 1 − 1/e
        most = most_information(square=measure, told=saved * low, both=low, saved=saved, thrice=saved * high)
        information = InformationBound.of_blanket(
            local_epsilon=local_epsilon, information=plain * math.expm1(local_epsilon) ** 2 * most, mass=plain
        )
    return Blanket(
        local_epsilon=local_epsilon,
        differing=plain * measure,
        low=plain * (1 - 2 * measure),
        outside=plain * max(measure - float(overlap(np.array(math.pi / 2))) - error, 0.0),
        instances=(most_telling(instances),),
        information_bound=information,
    ).shared()


def most_information(
    *,
    square: float,
    told: NDArray[np.float64],
    both: NDArray[np.float64],
    saved: float,
    thrice: NDArray[np.float64],
) -> float:
    """An upper bound on E[(F - F')²(1 - ψ)] over all directions of records x, x' and everybody else's z.

    F, F' and ψ rise with the inner products of a plain report with x, x' and z, in [0, 1]. The mean of a
    product of two then falls with the angle between their directions (section 3d of the proofs of
    accounting).

    Args:
        square: E[F²].
        told: lower bounds on E[F²ψ] at :data:`ANGLES`.
        both: lower bounds on E[F F'].
        saved: the largest ψ.
        thrice: upper bounds on E[Fψ].
    """
    # Of the angle between x and x', at most a + b and 2π − a − b, the largest in the cell.
    apart = np.minimum(np.minimum(_FIRST + _SECOND + 2, 2 * _CELLS - _FIRST - _SECOND), _CELLS)
    together = both[apart]
    all_three = np.minimum(saved * together, np.minimum(thrice[_FIRST], thrice[_SECOND]))
    alone = 2 * square - (told[_FIRST + 1] + told[_SECOND + 1])
    return float((alone - 2 * (together - all_three)).max())


def cap_coordinate(tail: NDArray[np.float64], *, dim: int) -> NDArray[np.float64]:
    """The value a with P[A >= a] = tail, for tails in (0, 1/2]."""
    if dim == 1:
        return np.ones_like(tail)
    squared: NDArray[np.float64] = special.betainccinv(0.5, (dim - 1) / 2, 2 * tail)
    root: NDArray[np.float64] = np.sqrt(squared.clip(0.0, 1.0))
    return root
