"""Privacy profiles δ(E) for E ≥ 1, and the finite symmetric pairs that have them.

A profile is convex in E. So values that bound it at points bound it by their lower convex hull, and a hull is
the profile of a finite pair: where it bends by q, the pair has an outcome of Q mass q. Of two valid bounds
the smaller one may be taken point by point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shuffle_plugins.accounting.numerics.grid import Floats


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
    with np.errstate(divide="ignore", invalid="ignore"):  # outcomes that one side has not have no loss
        found = log_mass_ratio(p, q)
    found[near] = np.log1p(gain[near] / q[near])
    return found
