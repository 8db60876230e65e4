"""From a count pair to a finite privacy loss law, certified from above or from below.

An outcome of a pair is a point (dP/df, dQ/df) with a mass. Spreading an outcome over others at equal mean can
only raise every hockey-stick divergence E_f[(dP/df − e^ε·dQ/df)₊], because it is convex in the point; merging
outcomes into their mean can only lower it. So the millions of outcomes of a large cohort are replaced

- from above, by spreading counts linearly over the nodes of a coarser grid,
- from below, by merging counts between nodes into their mean,

with an error that is second order in the node distance, whatever the cohort. Signs are treated through convex
order: a sum of more fair signs is a mean-preserving spread of a sum of fewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from shuffle_plugins.accounting.pairs import CountPair, PairMixture

Kind = Literal["upper", "lower"]
Floats = npt.NDArray[np.float64]

_TAIL = 1e-30
_LOG_TAIL = math.log(2 / _TAIL)
_TAILS_CUT = 3 * _TAIL
_EXACT_SLOTS = 48


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """How finely a pair is resolved: what its numerical interval costs in time.

    Attributes:
        tolerance: relative error of the loss variance that merging or spreading counts may cost. An error of
            x here is one of about x/2 in ε.
        cells: grid cells per standard deviation of one step's loss when steps are composed; the rounding
            costs 1/(6·cells²) of the variance from above and twice that from below.
    """

    tolerance: float
    cells: int


FINE = Resolution(tolerance=5e-4, cells=32)
COARSE = Resolution(tolerance=6e-3, cells=16)
_STORED_CELLS = {"upper": 2, "lower": 4}


@dataclass(frozen=True, slots=True)
class LossLaw:
    """A finite privacy loss law: outcome i has loss log(p_i/q_i).

    Attributes:
        loss: losses in nats, increasing, shape (outcomes,).
        p: masses under P.
        q: masses under Q.
        missing: bound on the P mass of outcomes left out. An upper bound charges it to δ; for a lower bound
            leaving them out is already safe.
        deviation: standard deviation of the loss under P.
        kind: whether the law bounds the pair from above or from below.
        cells: grid cells per standard deviation that composition should use.
        symmetric: whether exchanging P and Q changes nothing.
    """

    loss: Floats
    p: Floats
    q: Floats
    missing: float
    deviation: float
    kind: Kind
    cells: int = FINE.cells
    symmetric: bool = False

    def reversed(self) -> LossLaw:
        """The law of the pair with P and Q exchanged."""
        if self.symmetric:
            return self
        return LossLaw(
            loss=-self.loss[::-1],
            p=self.q[::-1],
            q=self.p[::-1],
            missing=self.missing,
            deviation=_deviation(-self.loss, self.q),
            kind=self.kind,
            cells=self.cells,
        )


def _deviation(loss: Floats, p: Floats) -> float:
    total = p.sum()
    # Not a dot product: threads that a BLAS wakes for these short vectors cost more than they save.
    mean = (p * loss).sum() / total
    return float(math.sqrt(max((p * (loss - mean) ** 2).sum() / total, 0.0)))


def loss_law(mixture: PairMixture, *, kind: Kind, resolution: Resolution = FINE) -> LossLaw:
    """The privacy loss law of a pair.

    Args:
        mixture: the pair.
        kind: bound it from above or from below.
        resolution: how finely.
    """
    parts = [_outcomes(pair, kind=kind, tolerance=resolution.tolerance) for pair in mixture.pairs]
    p = np.concatenate([mass * part[0] for mass, part in zip(mixture.masses, parts, strict=True)])
    q = np.concatenate([mass * part[1] for mass, part in zip(mixture.masses, parts, strict=True)])
    ratio_bound = max(pair.largest_ratio for pair in mixture.pairs)
    missing = ratio_bound * (_TAILS_CUT + mixture.dropped)
    keep = (p > 0) & (q > 0)
    certain = float(p[~keep].sum()) if kind == "upper" else 0.0
    p, q = p[keep], q[keep]
    loss = np.log1p((p - q) / q)
    deviation = _deviation(loss, p)
    loss, p, q = _condense(loss, p, q, cell=deviation / (_STORED_CELLS[kind] * resolution.cells), kind=kind)
    return LossLaw(
        loss=loss,
        p=p,
        q=q,
        missing=missing + certain,
        deviation=deviation,
        kind=kind,
        cells=resolution.cells,
        symmetric=mixture.symmetric,
    )


def _condense(
    loss: Floats, p: Floats, q: Floats, *, cell: float, kind: Kind
) -> tuple[Floats, Floats, Floats]:
    """Fewer outcomes: at most one per ``cell`` of loss, spread to the cells' edges or merged within them."""
    if cell <= 0 or len(loss) <= 2 or (loss.max() - loss.min()) / cell > len(loss):
        order = np.argsort(loss, kind="stable")
        return loss[order], p[order], q[order]
    if kind == "upper":
        first, edge_q = spread_to_grid(loss, q, cell=cell)
        edges = (first + np.arange(len(edge_q))) * cell
        keep = edge_q > 0
        return edges[keep], (edge_q * np.exp(edges))[keep], edge_q[keep]
    index = np.floor(loss / cell).astype(np.int64)
    index -= index.min()
    merged_p, merged_q = np.bincount(index, weights=p), np.bincount(index, weights=q)
    keep = merged_q > 0
    merged_p, merged_q = merged_p[keep], merged_q[keep]
    return np.log1p((merged_p - merged_q) / merged_q), merged_p, merged_q


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
    upper = np.bincount(cells + 1, weights=share * q, minlength=size)
    return first, upper + np.bincount(cells, weights=(1.0 - share) * q, minlength=size)


def _outcomes(pair: CountPair, *, kind: Kind, tolerance: float) -> tuple[Floats, Floats]:
    """P and Q masses of all outcomes kept; shape (outcomes,) each."""
    nodes = _active_nodes(pair, kind=kind, tolerance=tolerance)
    passive = _passive_nodes(pair, nodes, kind=kind, tolerance=tolerance)
    population = float(pair.population)
    common = pair.passive_effect * passive.value  # (buckets, passive nodes)
    if pair.one_sided:
        density = 1.0 + (pair.gain * nodes.value[:, None] + common) / population
        mass = nodes.mass[:, None] * passive.mass
        return (mass * density).ravel(), mass.ravel()
    signs = _sign_nodes(nodes.trials, kind=kind, tolerance=tolerance)
    half = pair.gain / 2.0
    # axes: bucket entry, passive node, sign node
    shared = population + half * nodes.value[:, None, None] + common[:, :, None]
    swing = half * signs.value[:, None, :]
    mass = (nodes.mass[:, None, None] * passive.mass[:, :, None] / population) * signs.mass[:, None, :]
    p, q = (mass * (shared + swing)).ravel(), (mass * (shared - swing)).ravel()
    possible = mass.ravel() > 0
    if np.any((q < -1e-12 * p) & possible):
        raise ArithmeticError(f"a node of {pair} left the range of a density; please report this round")
    q = np.maximum(q, 0.0)
    centre = np.broadcast_to(signs.value[:, None, :] == 0, mass.shape).ravel()
    mirror = ~centre
    return np.concatenate([p, q[mirror]]), np.concatenate([q, p[mirror]])


@dataclass(frozen=True, slots=True)
class _ActiveNodes:
    """Nodes of the active count m: value, mass, and the number of signs whose law goes with it."""

    value: Floats
    mass: Floats
    trials: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of a second count, one row per active node: shapes (active nodes, nodes)."""

    value: Floats
    mass: Floats


def _active_nodes(pair: CountPair, *, kind: Kind, tolerance: float) -> _ActiveNodes:
    first, mass = binomial_window(pair.slots, pair.active)
    counts = first + np.arange(len(mass), dtype=np.float64)
    mean = pair.slots * pair.active
    deviation = math.sqrt(mean * (1 - pair.active))
    if pair.one_sided:
        step = int(deviation * math.sqrt(6 * tolerance))
    else:
        step = int(min(tolerance * mean, pair.population * math.sqrt(tolerance) / (1 + pair.gain)))
        step -= step % 2
    if step < 2:
        return _ActiveNodes(value=counts, mass=mass, trials=counts.astype(np.int64))
    start = first - first % 2
    bucket = (counts - start) // step
    size = int(bucket[-1]) + 1
    bottom = start + step * np.arange(size, dtype=np.float64)
    total = np.bincount(bucket.astype(np.int64), weights=mass, minlength=size)
    offset = np.bincount(
        bucket.astype(np.int64), weights=mass * (counts - start - bucket * step), minlength=size
    )
    if kind == "lower":
        keep = total > 0
        value = (bottom + offset / np.where(keep, total, 1.0))[keep]
        return _ActiveNodes(value=value, mass=total[keep], trials=bottom[keep].astype(np.int64))
    share = offset / step
    value = np.concatenate([bottom, bottom + step])
    weight = np.concatenate([total - share, share])
    # All counts of a bucket get the signs of its top, so a bucket's two nodes have one sign law.
    trials = np.tile(np.minimum(bottom + step, pair.slots + pair.slots % 2), 2).astype(np.int64)
    keep = weight > 0
    return _ActiveNodes(value=value[keep], mass=weight[keep], trials=trials[keep])


def _passive_nodes(pair: CountPair, nodes: _ActiveNodes, *, kind: Kind, tolerance: float) -> _Nodes:
    """Nodes of the passive count z = (slots − m)·passive + ζ, with ζ independent of m within a bucket."""
    inactive = pair.slots - nodes.value
    mean = inactive * pair.passive
    if pair.passive >= 1.0 or pair.passive <= 0.0:
        return _Nodes(value=mean[:, None], mass=np.ones((len(mean), 1)))
    if pair.slots <= _EXACT_SLOTS:
        counts = np.arange(pair.slots + 1, dtype=np.float64)
        laws = stats.binom.pmf(counts[None, :], inactive[:, None], pair.passive)
        return _Nodes(value=np.broadcast_to(counts, laws.shape), mass=laws)
    # The largest or smallest number of inactive slots bounds every bucket's ζ in convex order.
    trials = math.ceil(inactive.max()) if kind == "upper" else max(math.floor(inactive.min()), 0)
    step = max(1, int(math.sqrt(tolerance) * _passive_scale(pair) / abs(pair.passive_effect)))
    if kind == "lower" and step > 2 * math.sqrt(trials * pair.passive * (1 - pair.passive)):
        return _Nodes(value=mean[:, None], mass=np.ones((len(mean), 1)))
    first, mass = binomial_window(trials, pair.passive)
    counts = first + np.arange(len(mass), dtype=np.float64)
    value, mass = _coarsen(counts, mass, step=step, kind=kind)
    centred = value - trials * pair.passive
    return _Nodes(value=mean[:, None] + centred[None, :], mass=np.broadcast_to(mass, (len(mean), len(mass))))


def _passive_scale(pair: CountPair) -> float:
    """What a fluctuation of c·z is measured against.

    In a symmetric pair both densities share it, so it matters next to n; in a one-sided pair it is part of
    the loss and matters next to the active count's own fluctuation.
    """
    if pair.one_sided:
        return pair.gain * math.sqrt(pair.slots * pair.active * (1 - pair.active))
    return float(pair.population)


def _coarsen(value: Floats, mass: Floats, *, step: int, kind: Kind) -> tuple[Floats, Floats]:
    """Consecutive whole counts on nodes ``step`` apart, spread or merged."""
    if step <= 1:
        return value, mass
    padded = np.concatenate([mass, np.zeros(-len(mass) % step)]).reshape(-1, step)
    offset = np.arange(step)
    total, moment = padded.sum(axis=1), (padded * offset).sum(axis=1)
    bottom = value[0] + step * np.arange(len(padded))
    if kind == "lower":
        keep = total > 0
        return (bottom[keep] + moment[keep] / total[keep]), total[keep]
    nodes = np.append(bottom, bottom[-1] + step)
    weight = np.append(total - moment / step, 0.0)
    weight[1:] += moment / step
    return nodes, weight


def _sign_nodes(trials: npt.NDArray[np.int64], *, kind: Kind, tolerance: float) -> _Nodes:
    """Non-negative half of the law of a sum of ``trials`` fair signs, one row per entry of ``trials``.

    The law is symmetric: a node d > 0 stands for −d too, each with the mass given.
    """
    unique, inverse = np.unique(trials, return_inverse=True)
    largest = int(unique[-1])
    half_width = min(largest // 2 + 1, math.ceil(math.sqrt(2 * _LOG_TAIL * max(largest, 1)) / 2) + 1)
    step = max(1, int(math.sqrt(tolerance * int(unique[0]))))
    odd = (unique % 2).astype(np.float64)
    if step > 1 and np.any(odd):
        step = 1
    width = half_width + 1 + (-half_width) % step
    # a = floor(t/2) + i heads, i = 0 …: sum of signs 2i − (t odd → −1, that is 2i + 1 shifted below).
    i = np.arange(1, width, dtype=np.float64)
    half = np.floor(unique / 2.0)[:, None]
    upper_half = unique[:, None] - half  # ceil(t/2)
    ratio = np.clip((half - i + 1.0) / (upper_half + i), 0.0, None)
    mass = np.concatenate([np.ones((len(unique), 1)), np.cumprod(ratio, axis=1)], axis=1)
    value = 2.0 * np.arange(width)[None, :] + odd[:, None]
    doubled = np.where(value > 0, 2.0, 1.0)
    mass /= (mass * doubled).sum(axis=1, keepdims=True)
    if step > 1:
        value, mass = _coarsen_signs(value, mass, step=step, kind=kind)
    return _Nodes(value=value[inverse], mass=mass[inverse])


def _coarsen_signs(value: Floats, mass: Floats, *, step: int, kind: Kind) -> tuple[Floats, Floats]:
    """Group even sign sums 0, 2, 4, … on nodes 2·step apart, keeping the law symmetric."""
    rows = len(mass)
    centre, rest = mass[:, :1], mass[:, 1:]
    groups = rest.reshape(rows, -1, step)
    count = groups.shape[1]
    offset = np.arange(1, step + 1) / step
    bottom = 2.0 * step * np.arange(count)
    total, moment = groups.sum(axis=2), (groups * offset).sum(axis=2)
    if kind == "lower":
        mean = bottom + 2.0 * step * moment / np.where(total > 0, total, 1.0)
        return (
            np.concatenate([np.zeros((rows, 1)), mean], axis=1),
            np.concatenate([centre, total], axis=1),
        )
    nodes = np.concatenate([bottom, [bottom[-1] + 2.0 * step]])
    weight = np.zeros((rows, count + 1))
    weight[:, 1:] += moment
    weight[:, :-1] += total - moment
    # What both halves spread to zero meets there.
    weight[:, 0] = 2 * (total[:, 0] - moment[:, 0]) + centre[:, 0]
    return np.broadcast_to(nodes, (rows, count + 1)), weight


@lru_cache(maxsize=512)
def binomial_window(trials: int, probability: float) -> tuple[int, Floats]:
    """The binomial masses that matter: all but at most 1e-30 of the law, as (first count, masses).

    Bernstein's inequality gives the window; masses come from ratios of neighbours, starting at the mode, so
    they are accurate to a few thousand units in the last place at any ``trials``.
    """
    if trials == 0 or probability <= 0.0:
        return 0, np.ones(1)
    if probability >= 1.0:
        return trials, np.ones(1)
    mean = trials * probability
    variance = mean * (1 - probability)
    reach = _LOG_TAIL / 3 + math.sqrt((_LOG_TAIL / 3) ** 2 + 2 * _LOG_TAIL * variance)
    low, high = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    mode = min(max(int((trials + 1) * probability), low), high)
    odds = probability / (1 - probability)
    above = np.arange(mode + 1, high + 1, dtype=np.float64)
    below = np.arange(mode, low, -1, dtype=np.float64)
    rising = np.cumprod((trials - above + 1) / above * odds)
    falling = np.cumprod(below / ((trials - below + 1) * odds))
    mass = np.concatenate([falling[::-1], [1.0], rising])
    mass /= mass.sum()
    mass.setflags(write=False)
    return low, mass
