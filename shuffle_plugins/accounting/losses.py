"""Privacy loss distributions: finitely many outcomes, certified from above or below; and their grids."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from shuffle_plugins.accounting.numerics.sums import Cells, Floats, tally

BoundKind = Literal["upper", "lower"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """How finely a pair is resolved.

    Attributes:
        tolerance: relative error of the loss variance that merging or spreading outcomes may cost; half of it
            is one of ε.
        cells: grid cells per standard deviation of one step's loss when steps are composed; the rounding
            costs 1/(6·cells²) of the variance from above and twice that from below.
    """

    tolerance: float
    cells: int


FINE = Resolution(tolerance=5e-4, cells=32)
COARSE = Resolution(tolerance=6e-3, cells=16)
"""Resolutions of a short history, and of one of many kinds of rounds."""

RATIO_ERROR = 2.0**-50
"""How far a loss can be off that was read off two masses: eight roundings of numbers near one."""

LOSS_ERROR = 2.0**-49
"""The same of losses known to full precision, relative to the largest one."""

MASS_ERROR = 2.0**-40
"""How far masses can be off, relative to each: a binomial's are products of up to some thousand factors."""

STORED_CELLS = {"upper": 2, "lower": 4}
"""Outcomes kept to each grid cell of composition; merging moves losses more than spreading does."""

_MASS_SLACK = 1e-9
_LARGEST_GAIN = 700.0  # loss above which e to its power is no float; there masses give it to full precision


@dataclass(frozen=True, slots=True, eq=False)
class PrivacyLossDistribution:
    """A finite law of the privacy loss: outcome i has loss log(p_i/q_i).

    Attributes:
        loss: losses in nats, increasing, shape (outcomes,).
        missing: bound on the P mass of outcomes left out, which upper bounds charge to δ.
        deviation: standard deviation of the loss under P.
        kind: whether it bounds the pair from above or from below.
        cells: grid cells per standard deviation that composition should use.
        condensed: whether outcomes were put together beyond the pair's own nodes.
        symmetric: whether exchanging P and Q changes nothing.
        loss_error: bound on what rounding took from a loss or added to it, in nats.
        mass_error: bound on the same of a mass, relative to it. Composition charges both for every step
            (``docs/proofs/accounting.md``, section 5, "Rounding").
    """

    loss: Floats
    p: Floats
    q: Floats
    missing: float
    deviation: float
    kind: BoundKind
    cells: int = FINE.cells
    condensed: bool = False
    symmetric: bool = False
    loss_error: float = RATIO_ERROR
    mass_error: float = MASS_ERROR

    def reversed(self) -> PrivacyLossDistribution:
        """That of the pair with P and Q exchanged."""
        if self.symmetric:
            return self
        deviation = deviation_of(-self.loss, self.q)
        return replace(self, loss=-self.loss[::-1], p=self.q[::-1], q=self.p[::-1], deviation=deviation)


def deviation_of(loss: Floats, p: Floats) -> float:
    """Standard deviation of the losses, weighted by P masses that need not add up to one."""
    total = p.sum()
    # Not a dot product: threads that a BLAS wakes for these short vectors cost more than they save.
    mean = (p * loss).sum() / total
    return float(math.sqrt(max((p * (loss - mean) ** 2).sum() / total, 0.0)))


def real_orders(orders: npt.ArrayLike) -> Floats:
    """Rényi orders as a vector."""
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if alpha.ndim != 1 or not (np.all(alpha > 1) and np.all(np.isfinite(alpha))):
        raise ValueError("Rényi orders must be finite numbers above 1")
    return alpha


def growth_of(mass_error: float) -> float:
    """By what factor a composed δ can be off because masses are, beyond the 1 + 1e-9 set aside."""
    return math.exp(min(max(mass_error - _MASS_SLACK, 0.0), _LARGEST_GAIN))


def finite_losses(
    loss: Floats | None,
    p: Floats,
    q: Floats,
    *,
    missing: float,
    kind: BoundKind,
    resolution: Resolution,
    symmetric: bool,
    loss_error: float | None = None,
    mass_error: float = MASS_ERROR,
) -> PrivacyLossDistribution:
    """The privacy loss distribution of a finite pair, in as few outcomes as ``resolution`` tells apart.

    Args:
        loss: log(p/q) where it is known better than from the masses, in any order; None computes it.
        p, q: masses; outcomes without mass under P or Q are left out, and are part of ``missing``.
        missing, kind, symmetric, mass_error: as in :class:`PrivacyLossDistribution`.
        loss_error: as there; None is that of losses known to full precision, or else of those computed here.

    Raises:
        ArithmeticError: if no outcome is within floating-point range.
    """
    keep = (p > 0) & (q > 0)
    p, q = p[keep], q[keep]
    if not len(p):
        raise ArithmeticError("no outcome has masses and a loss within floating-point range")
    exact = loss is not None
    loss = log_mass_ratio(p, q) if loss is None else loss[keep]
    if loss_error is None:
        loss_error = LOSS_ERROR * float(np.abs(loss).max()) if exact else RATIO_ERROR
    deviation = deviation_of(loss, p)
    outcomes = len(loss)
    loss, p, q = condense(loss, p, q, cell=deviation / (STORED_CELLS[kind] * resolution.cells), kind=kind)
    return PrivacyLossDistribution(
        loss=loss,
        p=p,
        q=q,
        missing=missing,
        deviation=deviation,
        kind=kind,
        cells=resolution.cells,
        condensed=len(loss) < outcomes,
        symmetric=symmetric,
        loss_error=loss_error,
        mass_error=mass_error,
    )


def profile_losses(
    losses: Floats, deltas: Floats, *, resolution: Resolution, sampling_rate: float = 1.0
) -> PrivacyLossDistribution:
    """From above, the privacy loss distribution of a symmetric pair whose profile is bounded at points.

    Between the points the bound is their lower convex hull. With δ the profile of what the cohort's round
    releases, that of a sample of fixed size is γ·δ(log(1 + (E − 1)/γ)) at E = e^ε ≥ 1, replace-one: Balle,
    Barthe, Gaboardi 2018, Theorem 11. For E < 1 it follows by symmetry (Zhu, Dong, Wang 2022).

    Args:
        losses: ε ≥ 0, increasing, shape (points,).
        deltas: bounds on δ there, rounded up, for a client who takes part, shape (points,).
        sampling_rate: γ in (0, 1], the probability of taking part.
    """
    side = hull_outcomes(np.log1p(sampling_rate * np.expm1(losses)), sampling_rate * deltas)
    return finite_losses(
        *joined(side, side, total=1.0),
        missing=side.beyond,
        kind="upper",
        resolution=resolution,
        symmetric=True,
    )


def tighter(first: PrivacyLossDistribution, second: PrivacyLossDistribution) -> PrivacyLossDistribution:
    """From above, the smaller of two profiles of one pair, point by point, with what each left out."""
    both = (first, second)
    missing = min(each.missing for each in both)
    if not all(each.symmetric and each.kind == "upper" for each in both):
        raise ValueError("only symmetric distributions that bound from above compare point by point")
    losses = np.unique(np.concatenate([[0.0], *(each.loss[each.loss > 0] for each in both)]))
    sticks = []
    for each in both:
        own, values = _sticks_of(each)
        found = np.interp(np.expm1(losses), np.expm1(own), values, right=0.0)
        sticks.append(found + (each.missing - missing))
    side = hull_outcomes(losses, np.minimum(*sticks))
    loss, p, q = joined(side, side, total=1.0)
    keep = (p > 0) & (q > 0)
    loss, p, q = loss[keep], p[keep], q[keep]
    return PrivacyLossDistribution(
        loss=loss,
        p=p,
        q=q,
        missing=missing + side.beyond,
        deviation=deviation_of(loss, p),
        kind="upper",
        cells=max(first.cells, second.cells),
        symmetric=True,
        loss_error=max(each.loss_error for each in both),
        mass_error=max(each.mass_error for each in both),
    )


def discounted(losses: PrivacyLossDistribution, distance: float) -> PrivacyLossDistribution:
    """From below, of any pair whose P and Q are both within this total variation of those of ``losses``.

    Its profile is at least δ(E) − (1 + E)·distance. That is the profile of the same pair with the outcomes of
    largest loss merged into one, of so much less P mass and more Q mass, and those of least loss likewise.
    """
    if not distance:
        return losses
    loss, p, q = losses.loss, losses.p, losses.q
    top = _merged_tail(loss, p, q, distance)
    bottom = _merged_tail(-loss[::-1], q[::-1], p[::-1], distance)
    if top is None or bottom is None or top[0] < len(loss) - bottom[0]:
        loss, p, q = np.zeros(1), np.ones(1), np.ones(1)
    else:
        inner = slice(len(loss) - bottom[0], top[0])
        p = np.concatenate([[bottom[2]], p[inner], [top[1]]])
        q = np.concatenate([[bottom[1]], q[inner], [top[2]]])
        loss = log_mass_ratio(p, q)
    return replace(losses, loss=loss, p=p, q=q, deviation=deviation_of(loss, p), symmetric=False)


def _merged_tail(loss: Floats, p: Floats, q: Floats, distance: float) -> tuple[int, float, float] | None:
    """The first of the largest losses that are merged, and their P and Q mass, moved by a distance."""
    above_p = np.cumsum(p[::-1])[::-1] - distance
    above_q = np.cumsum(q[::-1])[::-1] + distance
    with np.errstate(over="ignore"):
        enough = above_p[1:] >= np.exp(loss[:-1]) * above_q[1:]
    found = np.nonzero(enough)[0]
    return (
        (int(found[-1]) + 1, float(above_p[found[-1] + 1]), float(above_q[found[-1] + 1]))
        if len(found)
        else None
    )


def condense(
    loss: Floats, p: Floats, q: Floats, *, cell: float, kind: BoundKind
) -> tuple[Floats, Floats, Floats]:
    """Fewer outcomes: at most one per ``cell`` of loss, spread to the cells' edges or merged within them."""
    if cell <= 0 or len(loss) <= 2 or (loss.max() - loss.min()) / cell > len(loss):
        order = np.argsort(loss, kind="stable")
        return loss[order], p[order], q[order]
    if kind == "upper":
        first, edge_q = spread_to_grid(loss, q, cell=cell)
        edges = cell * np.arange(first, first + len(edge_q), dtype=np.float64)
        keep = edge_q > 0
        return edges[keep], (edge_q * np.exp(edges))[keep], edge_q[keep]
    index = np.floor(loss / cell).astype(np.int64)
    index -= index.min()
    size = int(index.max()) + 1
    merged_p, merged_q = tally(index, p, size), tally(index, q, size)
    gain = tally(index, q * np.expm1(np.minimum(loss, _LARGEST_GAIN)), size)
    keep = merged_q > 0
    merged_p, merged_q = merged_p[keep], merged_q[keep]
    return loss_of(merged_p, merged_q, gain[keep]), merged_p, merged_q


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
    kept = _lower_hull(np.expm1(losses).tolist(), bounds.tolist())
    slope = np.append(np.diff(bounds[kept]) / np.diff(np.expm1(losses[kept])), 0.0)
    q = np.maximum(np.diff(slope), 0.0)
    loss = losses[kept][1:]
    return PositiveLosses(loss=loss, p=q * np.exp(loss), q=q, beyond=float(bounds[kept][-1]))


def tested_outcomes(apart: Floats, accepted: Floats) -> PositiveLosses:
    """Outcomes whose profile is that of the best of some tests: what is left of Q where each refuses.

    Args:
        apart: by how much P is accepted more often than Q, shape (tests,).
        accepted: how often Q is, shape (tests,); in any order.
    """
    told = np.isfinite(apart) & np.isfinite(accepted)  # others left floating-point range
    x, y = np.append(0.0, accepted[told]), np.append(0.0, np.maximum(apart[told], 0.0))
    order = np.lexsort((-y, x))
    x, y = x[order], y[order]
    last = int(np.argmax(y))
    kept = _lower_hull(x[: last + 1].tolist(), (-y[: last + 1]).tolist())
    q = np.diff(x[kept])
    gain = np.diff(y[kept])
    told = (q > 0) & (gain > 0)
    loss = np.log1p(gain[told] / q[told])
    return PositiveLosses(loss=loss[::-1], p=(q * (1 + gain / q))[told][::-1], q=q[told][::-1], beyond=0.0)


def _lower_hull(x: list[float], y: list[float]) -> npt.NDArray[np.int64]:
    """Which points the lower convex hull of a curve goes through; x does not fall."""
    hull = [0]
    for i in range(1, len(x)):
        while len(hull) > 1 and (y[i] - y[hull[-1]]) * (x[hull[-1]] - x[hull[-2]]) <= (
            y[hull[-1]] - y[hull[-2]]
        ) * (x[i] - x[hull[-1]]):
            hull.pop()
        hull.append(i)
    return np.array(hull)


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


def joined(right: PositiveLosses, left: PositiveLosses, *, total: float) -> tuple[Floats, Floats, Floats]:
    """Losses, P and Q masses of the pair with the profile ``right``, and ``left`` with P and Q exchanged.

    The smaller bound on the total variation holds for both. Where they then have more mass than the total
    there is, the bound at E = 1 is lowered onto the chord between them (``docs/proofs/noise.md``, "Profile to
    pair"); what is left of it has no loss.
    """
    difference = _total_variation(right) - _total_variation(left)
    right, left = _lowered(right, difference), _lowered(left, -difference)

    def excess(amount: float) -> float:
        p, q = _lowered(right, amount).p, _lowered(left, amount).q
        return math.fsum(p) + math.fsum(q) + right.beyond - total

    # The excess falls linearly between the amounts that leave nothing of one outcome more.
    amounts = [0.0, *np.sort(np.concatenate([_held(right), _held(left)])).tolist()]
    last = bisect_left(amounts, True, key=lambda amount: excess(amount) <= 0)
    amount = 0.0
    if 0 < last < len(amounts):
        low, high = amounts[last - 1], amounts[last]
        above, below = excess(low), excess(high)
        amount = low + (high - low) * above / (above - below)
    rest = np.array([max(-excess(amount), 0.0)])
    right, left = _lowered(right, amount), _lowered(left, amount)
    return (
        np.concatenate([-left.loss[::-1], [0.0], right.loss]),
        np.concatenate([left.q[::-1], rest, right.p]),
        np.concatenate([left.p[::-1], rest, right.q]),
    )


def _total_variation(outcomes: PositiveLosses) -> float:
    return math.fsum(outcomes.q * np.expm1(outcomes.loss)) + outcomes.beyond


def _lowered(outcomes: PositiveLosses, amount: float) -> PositiveLosses:
    """With ``amount`` less at E = 1, and right of it no more than convexity asks for."""
    if amount <= 0:
        return outcomes
    q = np.clip((_held(outcomes) - amount) / np.expm1(outcomes.loss), 0.0, outcomes.q)
    return replace(outcomes, p=q * np.exp(outcomes.loss), q=q)


def _held(outcomes: PositiveLosses) -> Floats:
    """How much of the profile at E = 1 the outcomes up to each one make up."""
    return np.cumsum(outcomes.q * np.expm1(outcomes.loss))


def profile_points(last: float, *, step: float, uniform: float) -> Floats:
    """Losses from 0 to ``last``, ``step`` apart, and wider apart in proportion beyond ``uniform``."""
    even = np.arange(0.0, min(uniform, last), step)
    if uniform >= last:
        return np.append(even[even < last - 1e-6 * step], last)
    # 0.01: beyond evenly placed points, their distance relative to the loss
    growth = max(0.01, step / uniform)
    count = max(2, math.ceil(math.log(last / even[-1]) / growth) + 1)
    return np.concatenate([even, np.geomspace(even[-1], last, count)[1:]])


_ROUNDOFF_OF_PROFILES = 1e-10  # relative, of sums of some ten thousand positive numbers; more than is lost
_MOST_POINTS_OF_PROFILES = 1500  # at which a profile is kept; its chords lie above it


def _sticks_of(law: PrivacyLossDistribution) -> tuple[Floats, Floats]:
    """Losses from 0 up, and δ there of the outcomes listed."""
    positive = law.loss > 0
    losses = np.concatenate([[0.0], law.loss[positive]])
    return losses, hockey_sticks(losses, np.concatenate([[0.0], law.q[positive]]))


def profile_of(law: PrivacyLossDistribution) -> tuple[Floats, Floats]:
    """Losses from 0 up, and δ there from above, of a symmetric distribution."""
    if not law.symmetric or law.kind != "upper":
        raise ArithmeticError("a profile is made of a symmetric distribution that bounds from above")
    losses, deltas = _sticks_of(law)
    return losses, deltas * (1 + _ROUNDOFF_OF_PROFILES) + law.missing


def bundled_profile(
    laws: Sequence[PrivacyLossDistribution],
    rates: Sequence[float],
    masses: Sequence[float],
    *,
    reports: int,
    lost: float,
) -> tuple[Floats, Floats]:
    """Losses, and δ there from above, where a client that is drawn sends several reports, one changed.

    With x = E − 1 and the rate γ at which the client is drawn, δ(1 + x) is at most

        γ·δ₁(1 + x + (1/γ − 1)·x·t) + (1 − γ)·x·t·δ₂(1/t)     for every t in [0, 1],

    where δ₁ is that of one report changed among all, and δ₂(E) ≤ δ₁(E^(1/s))·(E − 1)/(E^(1/s) − 1) that of
    all s reports of a client changed (``docs/proofs/accounting.md``, section 2b). t = 0 is the bound without
    amplification of ε by the draw of clients.

    Args:
        laws: of one report changed among those of so many clients, symmetric, from above; for each number of
            clients that may take part.
        rates: γ for each number.
        masses: the probability of each number.
        reports: s, at least 2.
        lost: probability of the numbers that are left out.
    """
    profiles = [profile_of(law) for law in laws]
    steps = np.expm1(np.concatenate([losses for losses, _ in profiles]))
    low, high = min(rates), max(rates)
    wanted = np.concatenate([[0.0], steps * low, steps * high, steps * np.sqrt(high), steps])
    x = np.unique(wanted[np.isfinite(wanted)])
    if len(x) > _MOST_POINTS_OF_PROFILES:
        x = np.union1d(x[:: -(-len(x) // _MOST_POINTS_OF_PROFILES)], x[-1:])
    deltas = np.zeros(len(x))
    for (losses, values), rate, mass in zip(profiles, rates, masses, strict=True):
        deltas += mass * _hidden_by_client(losses, values, x, rate=rate, reports=reports)
    deltas = deltas * (1 + _ROUNDOFF_OF_PROFILES) + lost
    # 1e-25: of a round's profile, left to outcomes of infinite loss: a shorter range composes faster
    kept = min(int((deltas > 1e-25).sum()) + 1, len(x))
    return np.log1p(x[:kept]), deltas[:kept]


def together_profile(law: PrivacyLossDistribution, *, reports: int) -> tuple[Floats, Floats]:
    """Losses, and δ there from above, if all of a client's reports change: δ₂ of :func:`bundled_profile`.

    Args:
        law: of one report changed among all, symmetric, from above.
        reports: s, at least 1.
    """
    losses, deltas = profile_of(law)
    with np.errstate(invalid="ignore"):
        steps = np.expm1(reports * losses) / np.expm1(losses)
    steps[losses == 0.0] = reports
    kept = np.isfinite(steps)
    return reports * losses[kept], np.minimum(deltas[kept] * steps[kept] * (1 + _ROUNDOFF_OF_PROFILES), 1.0)


def _hidden_by_client(losses: Floats, deltas: Floats, x: Floats, *, rate: float, reports: int) -> Floats:
    """The bound of :func:`bundled_profile` for one number of clients, at E = 1 + x."""
    places = np.expm1(losses)

    def one_changed(excess: Floats) -> Floats:
        return np.interp(excess, places, deltas)

    best = one_changed(x)
    if rate == 1.0:
        return best
    # Losses of one report, s of which make the loss that a client's other reports may have.
    # 96: ways to divide a bound between the changed report and the client's other reports
    share = np.linspace(0.0, _last_telling(losses, deltas), 96)[1:]
    told = one_changed(np.expm1(share)) * np.expm1(reports * share) / np.expm1(share)
    t = np.exp(-reports * share)
    for each, chance in zip(t.tolist(), told.tolist(), strict=True):
        amplified = one_changed(x * (1 + (1 / rate - 1) * each))
        best = np.minimum(best, amplified + (1 / rate - 1) * each * x * min(chance, 1.0))
    return rate * best


def _last_telling(losses: Floats, deltas: Floats) -> float:
    """The loss from which on δ is next to nothing."""
    # 1e-40: chance that the other reports tell so much; no smaller one is looked for
    telling = np.nonzero(deltas > 1e-40)[0]
    return float(losses[min(int(telling[-1]) + 1, len(losses) - 1)]) if len(telling) else float(losses[-1])


# -- outcomes on a grid -----------------------------------------------------------------------------------

_CHAIN_SHARE = 0.6
_ON_GRID = 1e-15  # P mass that roundoff may take off an outcome, …
_OF_A_CELL = 1e-9  # … and as a share of a cell at most


def spread_to_grid(loss: Floats, q: Floats, *, cell: float) -> tuple[int, Floats]:
    """Spread outcomes over the two multiples of ``cell`` around their loss, keeping their P and Q mass.

    Pessimistic: a mean-preserving spread of the likelihood ratio ("connect the dots", Doroshenko, Ghazi,
    Kamath, Kumar, Manurangsi 2022).

    Returns:
        The index of the first grid point, and the Q masses at consecutive grid points. The P mass at grid
        point i is its Q mass times e^(i·cell).
    """
    index = np.floor(loss / cell)
    share = np.clip(np.expm1(loss - index * cell) / math.expm1(cell), 0.0, 1.0)
    cells = index.astype(np.int64)
    first = int(cells.min())
    cells -= first
    size = int(cells.max()) + 2
    upper = tally(cells + 1, share * q, size)
    return first, upper + tally(cells, (1.0 - share) * q, size)


def merge_to_grid(
    loss: Floats, p: Floats, q: Floats, *, cell: float, whole: bool = False
) -> tuple[int, Floats]:
    """Merge outcomes between grid points so that each merged outcome's loss is a grid point.

    A lower bound, with an error of second order in ``cell``: ``docs/proofs/accounting.md``, section 5,
    "Losses to a grid". One merged outcome is left between two grid points. It is rounded down, which costs
    the P mass of the law a little: or, if ``whole``, merged with as much from below as takes it there.
    """
    # An outcome a rounding error below a grid point is on it.
    index = np.floor(loss / cell + 1e-9).astype(np.int64)
    first = int(index.min())
    # How far outcomes are above their cell's lower edge and below its upper one, as P mass. Differences of
    # P and Q masses would not know it of losses below 1e-16.
    lower_edge = index * cell
    up = p * np.maximum(-np.expm1(lower_edge - loss), 0.0)
    down = p * np.maximum(np.expm1(lower_edge + cell - loss), 0.0)
    index -= first
    size = int(index.max()) + 2
    p, q, up, down = (tally(index, each, size) for each in (p, q, up, down))
    edge = np.exp((first + np.arange(size + 1)) * cell)
    occupied = np.nonzero(q)[0]
    rising = _chain(occupied, q, below=down, above=up, edge=edge, cell=cell)
    falling = _chain(
        size - 1 - occupied[::-1],
        p[::-1],
        below=(up / edge[:-1])[::-1],
        above=(down / edge[1:])[::-1],
        edge=1.0 / edge[::-1],
        cell=cell,
    )
    # What neither chain has used of a cell when both stop there; meet where rounding that down is cheapest.
    spare = rising.left + falling.left[::-1] - 1.0
    central = p[occupied] >= 0.25 * p[occupied].max()
    with np.errstate(invalid="ignore"):
        cost = np.where(central & (spare >= 0), up[occupied] * spare, np.inf)
    # Where nothing but roundoff is rounded down anywhere, outcomes are on the grid: merge as few as can be.
    least = float(cost.min())
    meet = int(np.argmax(np.where(cost <= least + min(_ON_GRID, _OF_A_CELL * cell), spare, -np.inf)))
    if np.isfinite(least):
        grid_q = rising.masses_until(meet)
        above = falling.masses_until(len(occupied) - 1 - meet)[::-1]
        grid_q += above / edge  # a mirrored grid point's Q mass is P mass
        left = int(occupied[meet])
        grid_q[left] += spare[meet] * q[left]
        if whole:
            needed = spare[meet] * up[left] / (edge[left] - edge[:left])
            enough = np.nonzero(grid_q[:left] >= needed)[0]
            if len(enough):
                grid_q[enough[-1]] -= needed[enough[-1]]
                grid_q[left] += needed[enough[-1]]
    else:
        last = int(rising.front[-1]) if len(rising.front) else 0
        grid_q = rising.masses_until(last)
        grid_q[occupied[last]] += rising.left[last] * q[occupied[last]]
        grid_q[occupied[last + 1 :]] += q[occupied[last + 1 :]]
    return first, grid_q * edge


@dataclass(frozen=True, slots=True)
class _Chain:
    """Groups made from one tail inward.

    ``left[i]`` is the fraction of occupied cell i that no group has used when the chain stops there, and nan
    if it cannot stop there.
    """

    left: Floats
    target: Cells
    mass: Floats
    front: Cells
    points: int

    def masses_until(self, stop: int) -> Floats:
        """Q masses on the grid of all groups closed with their front at or before occupied cell ``stop``."""
        closed = self.front <= stop
        return tally(self.target[closed], self.mass[closed], self.points)


def _chain(
    occupied: Cells, mass: Floats, *, below: Floats, above: Floats, edge: Floats, cell: float
) -> _Chain:
    """Group inward from the lower tail, as far as the first cells past the median."""
    stop = min(int(np.searchsorted(np.cumsum(mass[occupied]), _CHAIN_SHARE * mass.sum())) + 2, len(occupied))
    cells = occupied[:stop]
    masses_q, deficits, surpluses = (each[cells].tolist() for each in (mass, below, above))
    numbers, edges = cells.tolist(), edge.tolist()
    left = [math.nan] * len(occupied)
    targets: list[int] = []
    masses: list[float] = []
    fronts: list[int] = []
    rest, position, count = 1.0, 0, len(numbers)
    while True:
        left[position] = rest
        point = numbers[position] + 1
        ratio = edges[point]
        deficit = rest * deficits[position]
        grouped = rest * masses_q[position]
        position += 1
        while position < count:
            # 700.0: e to this power is a float
            apart = math.expm1(min((numbers[position] - point) * cell, 700.0))
            surplus = surpluses[position] + ratio * apart * masses_q[position]
            if surplus >= deficit and surplus > 0:
                break
            deficit -= surplus if surplus > 0 else 0.0
            grouped += masses_q[position]
            position += 1
        if position == count:
            break
        share = deficit / surplus
        targets.append(point)
        masses.append(grouped + share * masses_q[position])
        fronts.append(position)
        rest = 1.0 - share
    return _Chain(
        left=np.array(left),
        target=np.array(targets, dtype=np.int64),
        mass=np.array(masses),
        front=np.array(fronts, dtype=np.int64),
        points=len(edge),
    )
