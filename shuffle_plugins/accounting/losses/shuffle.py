"""From a count pair to a finite privacy loss law, certified from above or from below.

The millions of outcomes of a large cohort are replaced, from above, by spreading counts linearly over the
nodes of a coarser grid, and from below, by merging counts between nodes into their mean. Fair signs are
ordered by how many there are. The error is of second order in the node distance, whatever the cohort. Proof:
``docs/proofs/accounting.md``, section 5, "Counts to nodes".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from shuffle_plugins.accounting.losses.distribution import (
    COARSE,
    FINE,
    LOSS_ERROR,
    MASS_ERROR,
    RATIO_ERROR,
    STORED_CELLS,
    BoundKind,
    PrivacyLossDistribution,
    Resolution,
    condense,
    deviation_of,
    finite_losses,
)
from shuffle_plugins.accounting.losses.slots import slot_losses_from_below
from shuffle_plugins.accounting.numerics.binomial import (
    LOG_TAIL,
    MOST_LISTED,
    TAIL,
    bernstein_reach,
    binomial_groups,
    binomial_window,
    fair_groups,
    window_ends,
)
from shuffle_plugins.accounting.numerics.grid import Cells, Floats
from shuffle_plugins.accounting.numerics.profiles import loss_of
from shuffle_plugins.accounting.pairs.bits import BitPair, bit_losses
from shuffle_plugins.accounting.pairs.counts import CountPair, Pair, PairMixture
from shuffle_plugins.accounting.pairs.mixes import MixPair
from shuffle_plugins.accounting.pairs.others import OthersPair, others_losses
from shuffle_plugins.accounting.pairs.slots import slot_losses

Outcomes = tuple[Floats, Floats, Floats, float]
"""Losses, P and Q masses, and a bound on the P mass of outcomes left out."""

_TAILS_CUT = 3 * TAIL  # a pair has up to three counts, and each of their windows leaves out one tail
_MANY_ACTIVE = 300.0  # expected slots, from which a profile is found faster than three counts are listed
_NEVER_CUT = 40  # windows hold every count of so few slots
_LOST_MASS = 1e-9  # more than rounding can take off all masses together: then outcomes are missing
_SHARED_PASSIVE_CELLS = 5_000_000  # of a table of passive counts, beyond which its rows share one law
_FINER = 3  # cells of a component's or a block's outcomes to one of the whole law's
_COMPONENTS = 48  # one of so many of equal mass is resolved finely
_MOST_AT_ONCE, _BLOCK = 1 << 20, 1 << 17  # outcomes of counts that are listed in one array, and of a block


def pair_losses(
    mixture: PairMixture, *, kind: BoundKind, resolution: Resolution = FINE
) -> PrivacyLossDistribution:
    """The privacy loss law of a pair.

    Args:
        mixture: the pair whose losses are computed.
        kind: bound it from above or from below.
        resolution: how finely losses are resolved on their grid.
    """
    parts = _parts(mixture, kind=kind, resolution=resolution)
    loss = np.concatenate([part[0] for part in parts])
    p = np.concatenate([mass * part[1] for mass, part in zip(mixture.masses, parts, strict=True)])
    q = np.concatenate([mass * part[2] for mass, part in zip(mixture.masses, parts, strict=True)])
    left_out = math.fsum(mass * part[3] for mass, part in zip(mixture.masses, parts, strict=True))
    ratio_bound = max(pair.largest_ratio for pair in mixture.pairs)
    cut = _TAILS_CUT if max(pair.slots for pair in mixture.pairs) > _NEVER_CUT else 0.0
    missing = ratio_bound * (cut + mixture.dropped) + left_out
    keep = (p > 0) & (q > 0)
    certain = float(p[~keep].sum()) if kind == "upper" else 0.0
    loss, p, q = loss[keep], p[keep], q[keep]
    if kind == "upper" and not p.sum() + certain + missing > 1 - _LOST_MASS:
        raise ArithmeticError(f"the outcomes of {mixture} do not make up a probability law")
    if len(p) == 0:
        raise ArithmeticError(f"no outcome of {mixture} is within floating-point range")
    return finite_losses(
        loss,
        p,
        q,
        missing=missing + certain,
        kind=kind,
        resolution=resolution,
        symmetric=mixture.symmetric,
        loss_error=max(map(_loss_error, mixture.pairs)) * float(np.abs(loss).max()),
        mass_error=max(MASS_ERROR, *map(_mass_error, mixture.pairs)),
    )


def _loss_error(pair: Pair) -> float:
    """Relative, of a pair's losses: a weight's distance from one has lost the digits that both begin with."""
    if not (isinstance(pair, CountPair) and pair.one_sided):
        return LOSS_ERROR
    apart = abs(pair.passive_weight - 1.0)
    return LOSS_ERROR + (RATIO_ERROR / apart if apart else 0.0)


def _mass_error(pair: Pair) -> float:
    """Of a binomial law's masses: each is computed from the one before, with up to eight roundings.

    Where they are integrated they hang on a probability that is rounded itself.
    """
    if not isinstance(pair, CountPair):
        return 0.0
    variance = pair.slots * pair.active * (1 - pair.active)
    return 2.0**-50 * float(bernstein_reach(variance))


def _parts(mixture: PairMixture, *, kind: BoundKind, resolution: Resolution) -> list[Outcomes]:
    """Each component's outcomes.

    The outcomes of one of several components are put together as soon as they are listed, more finely than
    those of all: a pass over millions of them costs far more than listing them. A component of little mass is
    resolved no more finely than it matters to all.
    """
    pairs = mixture.pairs
    cells = _FINER * STORED_CELLS[kind] * resolution.cells
    if len(pairs) == 1:
        return [outcomes_of(pairs[0], kind=kind, tolerance=resolution.tolerance, cells=cells)]
    tolerance = max(resolution.tolerance, FINE.tolerance)  # the choice of components is coarser than that
    most = max(len(pairs), _COMPONENTS)
    parts: dict[int, Outcomes] = {}
    # The likeliest come first: what is next to nothing beside them need not be resolved.
    for i in sorted(range(len(pairs)), key=lambda i: -mixture.masses[i]):
        mass, pair = mixture.masses[i], pairs[i]
        allowed = tolerance / max(most * mass, tolerance / max(tolerance, COARSE.tolerance))
        if isinstance(pair, MixPair):  # each takes a tenth of a second at this tolerance
            allowed = max(allowed, COARSE.tolerance)
        beside = None
        if isinstance(pair, OthersPair):
            beside = partial(_profile_of, [(mixture.masses[j], *part[:3]) for j, part in parts.items()])
        loss, p, q, left_out = outcomes_of(
            pair, kind=kind, tolerance=max(tolerance, allowed), cells=cells, mass=mass, beside=beside
        )
        keep = (p > 0) & (q > 0)
        certain = float(p[~keep].sum()) if kind == "upper" else 0.0
        loss, p, q = loss[keep], p[keep], q[keep]
        if len(p):
            loss, p, q = condense(loss, p, q, cell=deviation_of(loss, p) / cells, kind=kind)
        parts[i] = loss, p, q, left_out + certain
    return [parts[i] for i in range(len(pairs))]


def _profile_of(parts: list[tuple[float, Floats, Floats, Floats]], losses: Floats) -> Floats:
    """About Σ mass·(P − E·Q)₊ over some components (mass, losses, P masses, Q masses) at E = e^loss."""
    total = np.zeros(len(losses))
    for mass, loss, p, q in parts:
        above = np.searchsorted(loss, losses, side="right")
        above_p = np.append(np.cumsum(p[::-1])[::-1], 0.0)
        above_q = np.append(np.cumsum(q[::-1])[::-1], 0.0)
        total += mass * np.maximum(above_p[above] - np.exp(losses) * above_q[above], 0.0)
    return total


def outcomes_of(
    pair: Pair,
    *,
    kind: BoundKind,
    tolerance: float,
    cells: float | None = None,
    mass: float = 1.0,
    beside: Callable[[Floats], Floats] | None = None,
) -> Outcomes:
    """Losses and masses of a pair's outcomes, and a bound on the P mass left out beside tails of counts.

    ``cells`` is as of :func:`_outcomes`, ``mass`` the probability of the pair as a component, ``beside`` what
    the other components are known to add to the profile.
    """
    if isinstance(pair, CountPair):
        if kind == "upper" and _has_three_counts(pair) and pair.slots * pair.active >= _MANY_ACTIVE:
            return slot_losses(pair.as_slots(), tolerance=tolerance)
        return (*_outcomes(pair, kind=kind, tolerance=tolerance, cells=cells), 0.0)
    if isinstance(pair, BitPair):
        if kind == "lower":
            raise ValueError("envelopes are bounded from above only")
        return bit_losses(pair)
    if isinstance(pair, OthersPair):
        if kind == "lower":
            raise ValueError("mixes of others are bounded from above only")
        return others_losses(pair, tolerance=tolerance, mass=mass, beside=beside)
    if kind == "lower":
        return (*slot_losses_from_below(pair), 0.0)
    return slot_losses(pair, tolerance=tolerance)


def pair_outcomes(pair: Pair, *, kind: BoundKind, tolerance: float) -> tuple[Floats, Floats, float]:
    """P and Q masses of a pair's outcomes, and a bound on the P mass left out beside tails of counts."""
    return outcomes_of(pair, kind=kind, tolerance=tolerance)[1:]


def _has_three_counts(pair: CountPair) -> bool:
    return 0 < pair.passive < 1 and not pair.one_sided


def _outcomes(
    pair: CountPair, *, kind: BoundKind, tolerance: float, cells: float | None = None
) -> tuple[Floats, Floats, Floats]:
    """Losses, P and Q masses of all outcomes kept; shape (outcomes,) each.

    Millions are put together, ``cells`` to a deviation, block by block as they are listed: passes over all of
    them cost far more than listing them.
    """
    nodes = _active_nodes(pair, kind=kind, tolerance=tolerance)
    passive = _passive_nodes(pair, nodes, kind=kind, tolerance=tolerance)
    signs = None if pair.one_sided else _sign_nodes(nodes.trials, kind=kind, tolerance=tolerance)
    rows, beside = len(nodes.value), passive.value.shape[1] * (1 if signs is None else signs.value.shape[1])

    def listed(some: slice) -> tuple[Floats, Floats, Floats]:
        if signs is None:
            return _one_sided(pair, nodes.part(some), passive.part(some))
        return _right_half(pair, nodes.part(some), passive.part(some), signs.part(some))

    if cells is None or rows * beside <= _MOST_AT_ONCE:
        found = listed(slice(None))
        return found if signs is None else _with_mirror_image(*found)
    few = listed(slice(None, None, max(1, rows * beside // _BLOCK)))
    loss, p, q = few if signs is None else _with_mirror_image(*few)
    keep = (p > 0) & (q > 0)
    cell = deviation_of(loss[keep], p[keep]) / cells
    height = max(1, _BLOCK // beside)
    blocks = [
        _put_together(*listed(slice(i, i + height)), cell=cell, kind=kind) for i in range(0, rows, height)
    ]
    loss, p, q = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return (loss, p, q) if signs is None else _with_mirror_image(loss, p, q)


def _one_sided(pair: CountPair, nodes: _ActiveNodes, passive: _Nodes) -> tuple[Floats, Floats, Floats]:
    z = passive.value
    common = _common(pair, nodes, passive)
    mass = nodes.mass[:, None] * passive.mass / pair.population
    gain = 2 * pair.sign_gain * nodes.value[:, None]
    p, q = (mass * (common + gain)).ravel(), (mass * pair.population).ravel()
    # P has mass one, so counts at their means add nothing, and fluctuations alone keep their digits.
    gain = 2 * pair.sign_gain * (nodes.value[:, None] - pair.slots * pair.active)
    gain = gain + (pair.passive_weight - 1.0) * (z - pair.slots * (1.0 - pair.active) * pair.passive)
    return loss_of(p, q, (mass * gain).ravel()), p, q


def _right_half(
    pair: CountPair, nodes: _ActiveNodes, passive: _Nodes, signs: _Nodes
) -> tuple[Floats, Floats, Floats]:
    """Of a symmetric pair the outcomes with loss 0 and above."""
    common = _common(pair, nodes, passive)
    half = pair.sign_gain
    # axes: active node, passive node, sign node
    m, sign_sum = nodes.value[:, None, None], signs.value[:, None, :]
    if pair.weak_gain:
        common = common + pair.weak_gain * nodes.value[:, None]
    mass = (nodes.mass[:, None, None] * passive.mass[:, :, None] / pair.population) * signs.mass[:, None, :]
    p = (mass * (common[:, :, None] + half * (m + sign_sum))).ravel()
    q = (mass * (common[:, :, None] + half * (m - sign_sum))).ravel()
    if np.any(q < -1e-12 * p):
        raise ArithmeticError(f"a node of {pair} left the range of a density; please report this round")
    q = np.maximum(q, 0.0)
    return loss_of(p, q, (mass * (2 * half * sign_sum)).ravel()), p, q


def _common(pair: CountPair, nodes: _ActiveNodes, passive: _Nodes) -> Floats:
    """n times what P's and Q's densities share, but for active slots; shape (active nodes, passive nodes)."""
    # n − z and m ± D are small whole numbers taken before anything large is added, so nothing cancels.
    z = passive.value
    common = (pair.population - z) + pair.passive_weight * z
    if pair.neutral_gain:
        common = common + pair.neutral_gain * (pair.slots - nodes.value[:, None] - z)
    return common


def _with_mirror_image(loss: Floats, p: Floats, q: Floats) -> tuple[Floats, Floats, Floats]:
    """Both halves of a symmetric pair; outcomes of loss 0 are their own mirror image."""
    mirror = loss > 0
    return (
        np.concatenate([loss, -loss[mirror]]),
        np.concatenate([p, q[mirror]]),
        np.concatenate([q, p[mirror]]),
    )


def _put_together(
    loss: Floats, p: Floats, q: Floats, *, cell: float, kind: BoundKind
) -> tuple[Floats, Floats, Floats]:
    """As :func:`condense`, but for outcomes of loss 0, which keep it, and those that have no loss."""
    none, lost = loss == 0, ~((p > 0) & (q > 0))
    some = ~(none | lost)
    found = condense(loss[some], p[some], q[some], cell=cell, kind=kind) if some.any() else (loss[:0],) * 3
    lost &= ~none
    return (
        np.append(found[0], [0.0, math.inf]),
        np.append(found[1], [p[none].sum(), p[lost].sum()]),
        np.append(found[2], [q[none].sum(), 0.0]),
    )


@dataclass(frozen=True, slots=True)
class _ActiveNodes:
    """Nodes of the active count m, how many signs go with each, and how many slots were inactive."""

    value: Floats
    mass: Floats
    trials: Cells
    most_inactive: Floats
    least_inactive: Floats

    def part(self, some: slice) -> _ActiveNodes:
        """The nodes in a slice of the arrays."""
        return _ActiveNodes(
            self.value[some],
            self.mass[some],
            self.trials[some],
            self.most_inactive[some],
            self.least_inactive[some],
        )


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of a second count, one row per active node: shapes (active nodes, nodes)."""

    value: Floats
    mass: Floats

    def part(self, some: slice) -> _Nodes:
        """Those of some active nodes."""
        return _Nodes(self.value[some], self.mass[some])


def _active_nodes(pair: CountPair, *, kind: BoundKind, tolerance: float) -> _ActiveNodes:
    mean = pair.slots * pair.active
    deviation = math.sqrt(mean * (1 - pair.active))
    if pair.one_sided:
        step = int(deviation * math.sqrt(6 * tolerance))
    else:
        heaviest = pair.largest_ratio + abs(pair.neutral_gain)
        step = int(min(tolerance * mean, pair.population * math.sqrt(tolerance) / heaviest))
        step -= step % 2
    if step < 2:
        first, mass = binomial_window(pair.slots, pair.active)
        counts = first + np.arange(len(mass), dtype=np.float64)
        inactive = pair.slots - counts
        return _ActiveNodes(counts, mass, counts.astype(np.int64), inactive, inactive)
    first, last = window_ends(pair.slots, pair.active)
    start = first - first % 2
    size = (last - start) // step + 1
    bottom = start + step * np.arange(size, dtype=np.float64)
    top = bottom + step
    total, offset = binomial_groups(pair.slots, pair.active, first=start, step=step, groups=size)
    most, least = pair.slots - bottom, np.maximum(pair.slots - top, 0.0)
    if kind == "lower":
        keep = total > 0
        centre = bottom + offset / np.where(keep, total, 1.0)
        return _ActiveNodes(centre[keep], total[keep], bottom[keep].astype(np.int64), most[keep], least[keep])
    share = offset / step
    value, weight = np.concatenate([bottom, top]), np.concatenate([total - share, share])
    # All counts of a bucket get the signs of its top, so a bucket's two nodes have one sign law.
    signs = np.tile(top, 2).astype(np.int64)
    keep = weight > 0
    return _ActiveNodes(
        value[keep], weight[keep], signs[keep], np.tile(most, 2)[keep], np.tile(least, 2)[keep]
    )


def _passive_nodes(pair: CountPair, nodes: _ActiveNodes, *, kind: BoundKind, tolerance: float) -> _Nodes:
    """Nodes of the passive count z = (slots − m)·passive + ζ, with ζ independent of m within a bucket.

    ζ is a centred binomial count over the inactive slots. One over more of them is a mean-preserving spread,
    so a bucket takes its largest number of inactive slots from above and its smallest from below.
    """
    inactive = pair.slots - nodes.value
    mean = inactive * pair.passive
    alone = _Nodes(value=mean[:, None], mass=np.ones((len(mean), 1)))
    if pair.passive >= 1.0 or pair.passive <= 0.0:
        return alone
    trials = nodes.most_inactive if kind == "upper" else nodes.least_inactive
    step = max(1, int(math.sqrt(tolerance) * _passive_scale(pair) / _passive_loss(pair)))
    if kind == "lower" and step > 2 * math.sqrt(trials.max() * pair.passive * (1 - pair.passive)):
        return alone
    if len(trials) * pair.slots > _SHARED_PASSIVE_CELLS:
        shared = trials.max() if kind == "upper" else trials.min()
        centred, mass = _binomial_nodes(np.array([shared]), pair.passive, step=step, kind=kind)
        if mean.max() + centred.max() < pair.slots:
            return _Nodes(
                value=mean[:, None] + centred, mass=np.broadcast_to(mass, (len(mean), mass.shape[1]))
            )
    unique, inverse = np.unique(trials, return_inverse=True)
    centred, mass = _binomial_nodes(unique, pair.passive, step=step, kind=kind)
    return _Nodes(value=mean[:, None] + centred[inverse], mass=mass[inverse])


def _binomial_nodes(
    trials: Floats, probability: float, *, step: int, kind: BoundKind
) -> tuple[Floats, Floats]:
    """Centred binomial counts, one row per number of trials, on nodes ``step`` apart.

    Nodes are laid from the top of the window downwards, so that none exceeds the number of trials.
    """
    mean = trials * probability
    reach = bernstein_reach(mean * (1 - probability))
    top = np.minimum(np.ceil(mean + reach), trials)
    bottom = np.maximum(np.floor(mean - reach), 0)
    width = int((top - bottom).max()) + 1
    step = min(step, width)
    width += -width % step
    if len(trials) == 1 and step > 1 and width > MOST_LISTED:
        # Groups are laid from the top of the window downwards: those of what is not counted, upwards.
        bottom_up = int(trials[0]) - int(top[0])
        total, moment = (
            each[None, :]
            for each in binomial_groups(
                int(trials[0]), 1 - probability, first=bottom_up, step=step, groups=width // step
            )
        )
        return _passive_groups(top - mean, total, moment, step=step, kind=kind)
    i = np.arange(1, width, dtype=np.float64)
    above = np.clip(top[:, None] - i + 1, 0.0, None)
    with np.errstate(divide="ignore"):
        steps = (
            np.log(above) - np.log(trials[:, None] - above + 1) + math.log((1 - probability) / probability)
        )
    exponent = np.concatenate([np.zeros((len(trials), 1)), np.cumsum(steps, axis=1)], axis=1)
    mass = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    groups = mass.reshape(len(trials), -1, step)
    total, moment = groups.sum(axis=2), (groups * np.arange(step)).sum(axis=2)
    return _passive_groups(top - mean, total, moment, step=step, kind=kind)


def _passive_groups(
    centred: Floats, total: Floats, moment: Floats, *, step: int, kind: BoundKind
) -> tuple[Floats, Floats]:
    """Nodes of groups of counts, each from its highest one downwards."""
    start = centred[:, None] - step * np.arange(total.shape[1])
    if step == 1:
        return start, total
    if kind == "lower":
        return start - moment / np.where(total > 0, total, 1.0), total
    nodes = np.concatenate([start, start[:, -1:] - step], axis=1)
    weight = np.zeros(nodes.shape)
    weight[:, :-1] = total - moment / step
    weight[:, 1:] += moment / step
    return nodes, weight


def _passive_loss(pair: CountPair) -> float:
    """How much less a passive slot contributes than a neutral one."""
    return abs(1.0 - pair.passive_weight + pair.neutral_gain)


def _passive_scale(pair: CountPair) -> float:
    """What a fluctuation of c·z is measured against.

    In a symmetric pair both densities share it, so it matters next to n; in a one-sided pair it is part of
    the loss and matters next to the active count's own fluctuation.
    """
    if pair.one_sided:
        return 2 * pair.sign_gain * math.sqrt(pair.slots * pair.active * (1 - pair.active))
    return float(pair.population)


def _sign_nodes(trials: Cells, *, kind: BoundKind, tolerance: float) -> _Nodes:
    """Non-negative half of the law of a sum of ``trials`` fair signs, one row per entry of ``trials``.

    The law is symmetric: a node d > 0 stands for −d too, each with the mass given.
    """
    unique, inverse = np.unique(trials, return_inverse=True)
    largest = int(unique[-1])
    half_width = min(largest // 2 + 1, math.ceil(math.sqrt(2 * LOG_TAIL * max(largest, 1)) / 2) + 1)
    step = max(1, int(math.sqrt(tolerance * int(unique[0]))))
    odd = (unique % 2).astype(np.float64)
    if step > 1 and np.any(odd):
        step = 1
    width = half_width + 1 + (-half_width) % step
    if step > 1 and half_width > MOST_LISTED:
        rows = [fair_groups(int(each), step=step, groups=(width - 1) // step) for each in unique]
        centre = np.array([[row[0]] for row in rows])
        total, moment = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
        value, mass = _sign_groups(centre, total, (moment + total) / step, step=step, kind=kind)
        mass = mass / (mass * np.where(value > 0, 2.0, 1.0)).sum(axis=1, keepdims=True)
        return _Nodes(value=np.broadcast_to(value, mass.shape)[inverse], mass=mass[inverse])
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
        value, mass = _coarsen_signs(mass, step=step, kind=kind)
    return _Nodes(value=value[inverse], mass=mass[inverse])


def _coarsen_signs(mass: Floats, *, step: int, kind: BoundKind) -> tuple[Floats, Floats]:
    """Group even sign sums 0, 2, 4, … on nodes 2·step apart, keeping the law symmetric."""
    centre, rest = mass[:, :1], mass[:, 1:]
    groups = rest.reshape(len(mass), -1, step)
    offset = np.arange(1, step + 1) / step
    return _sign_groups(centre, groups.sum(axis=2), (groups * offset).sum(axis=2), step=step, kind=kind)


def _sign_groups(
    centre: Floats, total: Floats, moment: Floats, *, step: int, kind: BoundKind
) -> tuple[Floats, Floats]:
    """Nodes of groups of sign sums; a group's moment is about the sum before it, over its width."""
    rows, count = total.shape
    bottom = 2.0 * step * np.arange(count)
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
