"""Privacy profiles δ(E) for E ≥ 1, and the finite symmetric pairs that have them.

A profile is convex in E. So values that bound it at points bound it by their lower convex hull, and a hull is
the profile of a finite pair: where it bends by q, the pair has an outcome of Q mass q. Of two valid bounds
the smaller one may be taken point by point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.search import zero_between

_ROUNDOFF = 2.0**-50
_GROWTH = 0.01  # beyond evenly placed points, their distance relative to the loss


@dataclass(frozen=True, slots=True)
class PositiveLosses:
    """Outcomes of positive loss, with their masses, and the P mass of those of infinite loss."""

    loss: Floats
    p: Floats
    q: Floats
    beyond: float


def hull_outcomes(losses: Floats, bounds: Floats) -> PositiveLosses:
    """Outcomes whose profile is the lower convex hull of the bounds at E = e^loss.

    Args:
        losses: increasing, the first at 0 or more, shape (points,).
        bounds: values of δ there, shape (points,). Right of the last point the profile is flat.
    """
    x = np.expm1(losses).tolist()
    y = bounds.tolist()
    hull = [0]
    for i in range(1, len(x)):
        while len(hull) > 1 and (y[i] - y[hull[-1]]) * (x[hull[-1]] - x[hull[-2]]) <= (
            y[hull[-1]] - y[hull[-2]]
        ) * (x[i] - x[hull[-1]]):
            hull.pop()
        hull.append(i)
    kept = np.array(hull)
    slope = np.append(np.diff(bounds[kept]) / np.diff(np.expm1(losses[kept])), 0.0)
    q = np.maximum(np.diff(slope), 0.0)
    loss = losses[kept][1:]
    return PositiveLosses(loss=loss, p=q * np.exp(loss), q=q, beyond=float(bounds[kept][-1]))


def hockey_sticks(losses: Floats, q: Floats) -> Floats:
    """Σ (P − E·Q)₊ at the outcomes' own E = e^loss ≥ 1, without cancellation; shape of ``losses``.

    Args:
        losses: of the outcomes, increasing, shape (outcomes,) or a grid shared by all rows.
        q: Q masses, shape (…, outcomes).
    """
    above = np.cumsum(q[..., ::-1], axis=-1)[..., ::-1]
    gaps = np.exp(losses[:-1]) * np.expm1(np.diff(losses))
    rises = (gaps * above[..., 1:])[..., ::-1]
    sticks = np.zeros(q.shape)
    sticks[..., :-1] = np.cumsum(rises, axis=-1)[..., ::-1]
    return sticks


def mirrored(outcomes: PositiveLosses) -> tuple[Floats, Floats]:
    """P and Q masses of the symmetric pair with these outcomes, their mirror images, and the rest at no loss.

    Raises:
        ArithmeticError: if there is more mass than one, so that no pair has this profile.
    """
    centre = 1.0 - outcomes.beyond - float((outcomes.p + outcomes.q).sum())
    if not centre >= -1e-9:
        raise ArithmeticError(f"no pair has the profile of these bounds: {centre:g} is left at no loss")
    middle = np.array([max(centre, 0.0)])
    return (
        np.concatenate([outcomes.q[::-1], middle, outcomes.p]),
        np.concatenate([outcomes.p[::-1], middle, outcomes.q]),
    )


def log_mass_ratio(p: Floats, q: Floats) -> Floats:
    """log(p/q), accurate for nearly equal and for hugely different masses."""
    smaller, larger = np.minimum(p, q), np.maximum(p, q)
    with np.errstate(over="ignore"):
        excess = (larger - smaller) / smaller
    size = np.where(np.isfinite(excess), np.log1p(excess), np.log(larger) - np.log(smaller))
    return np.asarray(np.sign(p - q) * size, dtype=np.float64)


def loss_of(p: Floats, q: Floats, gain: Floats) -> Floats:
    """log(p/q) where ``gain`` is p − q known to full precision, so that a small loss keeps its digits."""
    near = np.abs(gain) <= 0.5 * q
    near &= q > 0
    if near.all():
        return np.asarray(np.log1p(gain / q), dtype=np.float64)
    found = np.empty(len(p))
    found[near] = np.log1p(gain[near] / q[near])
    with np.errstate(divide="ignore", invalid="ignore"):  # outcomes that one side has not have no loss
        found[~near] = log_mass_ratio(p[~near], q[~near])
    return found


def joined(
    right: PositiveLosses, left: PositiveLosses, *, total: float
) -> tuple[PositiveLosses, PositiveLosses, float]:
    """Both sides of a profile, and the mass between them, which has no loss.

    The smaller bound on the total variation holds for both. Where they then have more mass than there is, the
    bound at E = 1 is lowered onto the chord between them (``docs/proofs/noise.md``, "Profile to pair").
    """
    difference = _total_variation(right) - _total_variation(left)
    right, left = _lowered(right, difference), _lowered(left, -difference)

    def missing_middle(amount: float) -> float:
        p, q = _lowered(right, amount).p, _lowered(left, amount).q
        return math.fsum(p) + math.fsum(q) + right.beyond - total

    excess, most = missing_middle(0.0), _total_variation(right)
    if excess <= 0 or missing_middle(most) >= 0:
        return right, left, max(-excess, 0.0)
    amount = zero_between(missing_middle, 0.0, most, xtol=_ROUNDOFF * most, rtol=_ROUNDOFF)
    return _lowered(right, amount), _lowered(left, amount), max(-missing_middle(amount), 0.0)


def _total_variation(outcomes: PositiveLosses) -> float:
    return math.fsum(outcomes.q * np.expm1(outcomes.loss)) + outcomes.beyond


def _lowered(outcomes: PositiveLosses, amount: float) -> PositiveLosses:
    """With ``amount`` less at E = 1, and right of it no more than convexity asks for.

    An outcome at E of Q mass q holds q·(E − 1) of what there is at 1; the first ones give it up.
    """
    if amount <= 0:
        return outcomes
    x = np.expm1(outcomes.loss)
    held = np.cumsum(outcomes.q * x)
    q = np.clip((held - amount) / x, 0.0, outcomes.q)
    return replace(outcomes, p=q * np.exp(outcomes.loss), q=q)


def profile_points(last: float, *, step: float, uniform: float) -> Floats:
    """Losses from 0 to ``last``, ``step`` apart, and wider apart in proportion beyond ``uniform``."""
    even = np.arange(0.0, min(uniform, last), step)
    if uniform >= last:
        return np.append(even[even < last - 1e-6 * step], last)
    growth = max(_GROWTH, step / uniform)
    count = max(2, math.ceil(math.log(last / even[-1]) / growth) + 1)
    return np.concatenate([even, np.geomspace(even[-1], last, count)[1:]])
