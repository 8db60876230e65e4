"""Rounds whose slots have one law, of any weights: finite pairs that dominate them, and that they dominate.

Proofs: ``docs/proofs/noise.md``, sections 1, 2 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from numpy import fft

from shuffle_plugins.accounting.losses.distribution import (
    PositiveLosses,
    hull_outcomes,
    joined,
    loss_of,
    profile_points,
)
from shuffle_plugins.accounting.numerics.binomial import TAIL, binomial_window, window_ends
from shuffle_plugins.accounting.numerics.grid import Cells, Floats, tally, transform_size
from shuffle_plugins.accounting.numerics.mixed_sums import expected_positive_part, log_positive_part_bound
from shuffle_plugins.accounting.numerics.search import zero_between
from shuffle_plugins.accounting.pairs.reports import Atoms

LARGEST_WEIGHT = 1e70
"""What a slot may add, at most."""

_MASS_TOLERANCE = 1e-9
_LARGEST_LOSS = math.log(LARGEST_WEIGHT)
_FEW_OUTCOMES = 50_000  # of all slots together, up to which each is listed
_SCOUTS = 32  # rough values of the profile, by which its points are placed
_OUTLYING = 20.0  # … if they are so many standard deviations of the rest away


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotPair:
    """A pair (P, Q): dP/df = 1 + Σ u_i/n and dQ/df = 1 + Σ v_i/n over independent slots of one law.

    f is the law of the slots' atoms, drawn independently from ``atoms``: P and Q have densities against it.

    Attributes:
        population: n, the divisor.
        slots: number of independent slots, in [1, n].
        atoms: the law of a slot as triples (u, v, mass): u, v ≥ −1, masses sum to one, and u and v have the
            same mean, −``lost``.
        lost: P mass that one slot leaves out, n times over; charged to δ. Zero unless weights were cut.

    Raises:
        ValueError: if the atoms are no such law.
    """

    population: int
    slots: int
    atoms: tuple[tuple[float, float, float], ...]
    lost: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= self.population:
            raise ValueError(f"slots must be in [1, population], got {self.slots} of {self.population}")
        if any(mass < 0 or min(u, v) < -1 - _MASS_TOLERANCE for u, v, mass in self.atoms):
            raise ValueError("an atom needs a mass that is not negative, and u, v of at least -1")
        total = math.fsum(mass for _, _, mass in self.atoms)
        means = [math.fsum(atom[axis] * atom[2] for atom in self.atoms) for axis in (0, 1)]
        if not (abs(total - 1) <= _MASS_TOLERANCE and max(means) <= min(means) + 2 * _MASS_TOLERANCE):
            raise ValueError(f"masses must sum to 1 and u and v have one mean, got {total!r} and {means}")
        if not abs(means[0] + self.lost) <= _MASS_TOLERANCE:
            raise ValueError(f"u must have mean -lost = {-self.lost!r}, got {means[0]!r}")

    @property
    def largest_ratio(self) -> float:
        """A bound on dP/df and on dQ/df."""
        return 1.0 + self.slots * max(max(u, v) for u, v, mass in self.atoms if mass > 0) / self.population

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small; which of two pairs tells more."""
        told = math.fsum(m * (u - v) * (u - v) for u, v, m in self.atoms)
        return self.slots * told / self.population**2

    @property
    def one_sided(self) -> bool:
        """Whether exchanging P and Q changes the pair."""
        law: dict[tuple[float, float], float] = {}
        for u, v, mass in self.atoms:
            law[u, v] = law.get((u, v), 0.0) + mass
        return any(abs(mass - law.get((v, u), 0.0)) > 1e-12 * mass for (u, v), mass in law.items())


def slot_losses(pair: SlotPair, *, tolerance: float) -> tuple[Floats, Floats, Floats, float]:
    """Losses, P and Q masses of a finite pair that dominates ``pair``, and the P or Q mass missing from it.

    Args:
        pair: the pair.
        tolerance: relative excess of the variance of the loss. ε comes out larger by about half of it.
    """
    if few_outcomes(pair):
        return listed_outcomes(pair)
    u, v, mass = (np.array(column) for column in zip(*(a for a in pair.atoms if a[2] > 0), strict=True))
    lost = pair.slots * pair.lost / pair.population
    right = _side(pair, u, v, mass, tolerance=tolerance)
    left = _side(pair, v, u, mass, tolerance=tolerance) if pair.one_sided else right
    return *joined(right, left, total=1.0 - lost), max(right.beyond, left.beyond) + lost


def _commonest(pair: SlotPair) -> tuple[tuple[float, float, float], Atoms, int]:
    """The atom of most mass, the others, and how many of these are drawn at most, but for 1e-30."""
    commonest, *others = sorted((atom for atom in pair.atoms if atom[2] > 0), key=lambda atom: -atom[2])
    # Under P one slot has another law, that of client 1; all others have that of the atoms.
    rest = min(math.fsum(mass for _, _, mass in others), 1.0)
    return commonest, tuple(others), min(window_ends(pair.slots - 1, rest)[1] + 1, pair.slots)


def few_outcomes(pair: SlotPair) -> bool:
    """Whether :func:`listed_outcomes` takes little time."""
    (_, _, mass), others, most = _commonest(pair)
    # 600.0: −log of the probability that all slots hold the commonest atom: a float
    if -pair.slots * math.log(mass) > 600.0:
        return False
    # As many multisets are built as there are of one kind more.
    return math.comb(most + len(others), most) <= _FEW_OUTCOMES


def listed_outcomes(pair: SlotPair, *, common: float = 0.0) -> tuple[Floats, Floats, Floats, float]:
    """The pair itself, as :func:`slot_losses`: an outcome for every multiset of atoms.

    Args:
        pair: of few outcomes.
        common: added to the densities of P and of Q.
    """
    (base_u, base_v, base), others, most = _commonest(pair)
    n, slots, kinds = pair.population, pair.slots, len(others)
    u, v, mass = np.array(others).reshape(-1, 3).T
    last, run = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    weight, sum_u, sum_v, apart = np.array([base**slots]), np.zeros(1), np.zeros(1), np.zeros(1)
    levels = []
    for drawn in range(most + 1):
        if drawn:
            # Atoms are drawn in order; N!/Π counts! grows with each by the slots that are left, over its run.
            parent = np.repeat(np.arange(len(last)), kinds - last)
            first = np.cumsum(kinds - last) - (kinds - last)
            atom = np.arange(len(parent)) - first[parent] + last[parent]
            run = np.where(atom == last[parent], run[parent] + 1, 1)
            weight = weight[parent] * (mass / base)[atom] * ((slots - drawn + 1) / run)
            # Likelihoods, which are not negative, keep the digits that sums of gains would lose.
            sum_u, sum_v, last = sum_u[parent] + (1 + u)[atom], sum_v[parent] + (1 + v)[atom], atom
            apart = apart[parent] + (u - v)[atom]
        left = slots - drawn
        p, q = (
            weight * ((n - slots + left * (1 + gain) + total) / n + common)
            for gain, total in ((base_u, sum_u), (base_v, sum_v))
        )
        levels.append((p, q, weight * (apart + left * (base_u - base_v)) / n))
    p, q, gain = (np.concatenate(columns) for columns in zip(*levels, strict=True))
    return loss_of(p, q, gain), p, q, slots * pair.lost / n + (TAIL if most < slots else 0.0)


def _side(pair: SlotPair, u: Floats, v: Floats, mass: Floats, *, tolerance: float) -> PositiveLosses:
    """The outcomes of positive loss of a pair that dominates, if the atoms add u to P and v to Q."""
    profile = _Profile(pair, u, v, mass)
    last = profile.last_loss()
    if last <= 0:
        return hull_outcomes(np.zeros(1), np.zeros(1))
    scouts = np.union1d(np.linspace(0.0, last, _SCOUTS), np.geomspace(1e-3 * last, last, _SCOUTS))
    # 0.01: of variance by which rough values are smoothed
    scouts_law = hull_outcomes(scouts, profile.bound(scouts, share=0.01))
    deviation = math.sqrt(float(((scouts_law.p + scouts_law.q) * scouts_law.loss**2).sum()))
    if deviation <= 0:
        return scouts_law
    # Spreading over points h apart adds at most h²/6 on average: the other half of the tolerance.
    losses = profile_points(
        # 12.0: standard deviations of the loss that points cover evenly
        last,
        step=deviation * math.sqrt(3 * tolerance),
        uniform=12.0 * deviation,
    )
    return hull_outcomes(losses, profile.bound(losses, share=tolerance / 2))


class _Profile:
    """H_E(P‖Q) at E = e^loss ≥ 1, from above, if the atoms add u to P and v to Q."""

    def __init__(self, pair: SlotPair, u: Floats, v: Floats, mass: Floats) -> None:
        self._population, self._slots = pair.population, pair.slots
        self._u, self._v, self._mass = u, v, mass
        # The largest loss there is: the densities' ratio lies between those of rounds of equal slots.
        above, gain = self._population + self._slots * v, self._slots * (u - v)
        self._pure = math.inf
        if not np.any((above <= 0) & (gain > 0)):
            with np.errstate(invalid="ignore", divide="ignore"):
                self._pure = math.log1p(float(np.where(gain > 0, gain / above, 0.0).max())) * (1 + 1e-12)
        # Atoms so large and so seldom that more than one in a round is negligible.
        size = np.maximum(self._u, self._v)
        order = np.argsort(-size, kind="stable")
        expected = self._slots * np.cumsum(self._mass[order])
        energy = self._slots * (self._mass * (self._u - self._v) ** 2)[order]
        of_the_rest = np.maximum(energy.sum() - np.cumsum(energy), 0.0)
        # 1e-4: expected number of draws that may be treated one at a time
        outlying = (expected <= 1e-4) & (of_the_rest > 0) & (size[order] > _OUTLYING * np.sqrt(of_the_rest))
        rare = np.zeros(len(size), dtype=np.bool_)
        if np.any(outlying):
            rare[order[: int(np.nonzero(outlying)[0][-1]) + 1]] = True
        # `bound` takes rare atoms out of the bulk, whose missing mass is treated as draws of zero, and adds
        # rounds with one of them in `_with_a_jump`. Those of u ≤ v have v > 0, as they are large, so that
        # u − E·v ≤ 0: a draw of zero in their place makes the positive part no smaller.
        self._bulk, self._jumps = ~rare, rare & (u > v)

    def _sum(self, losses: Floats) -> tuple[Floats, Floats]:
        """The values u − E·v, shape (losses, atoms), and n·(1 − E)."""
        growth = np.expm1(losses)
        return (self._u - self._v) - growth[:, None] * self._v, -self._population * growth

    def last_loss(self) -> float:
        """Where the profile has ended: at the largest loss, or with less than 1e-40 left."""
        end = min(self._pure, _LARGEST_LOSS)
        first = 0.01 * math.sqrt(self._slots * float((self._mass * (self._u - self._v) ** 2).sum()))
        first /= self._population
        if first <= 0 or end <= first:
            return end
        losses = np.geomspace(first, end, 256)
        values, shift = self._sum(losses)
        bound = log_positive_part_bound(
            values=values, masses=self._mass, trials=self._slots, shift=shift
        ) - math.log(self._population)
        # math.log(1e-40): of a δ at which a profile may end
        ended = np.nonzero(bound < math.log(1e-40))[0]
        return float(losses[ended[0]]) if len(ended) else end

    def bound(self, losses: Floats, *, share: float) -> Floats:
        """Upper bounds, shape (losses,), from sums smoothed by that share of their variance."""
        values, shift = self._sum(losses)
        total = expected_positive_part(
            values=values[:, self._bulk],
            masses=self._mass[self._bulk],
            trials=self._slots,
            shift=shift,
            share=share,
        )
        if np.any(self._jumps):
            total = total + self._with_a_jump(values, shift)
        result = np.minimum(total / self._population * (1 + 1e-14), 1.0)
        # A profile falls, so a bound holds at every larger loss too.
        return np.minimum.accumulate(np.where(losses >= self._pure, 0.0, result))

    def _with_a_jump(self, values: Floats, shift: Floats) -> Floats:
        """Rounds with a rare atom: the number expected, times a bound on the positive part of each."""
        others = self._slots - 1
        mean = (self._mass * values).sum(axis=1)
        variance = others * (self._mass * values**2).sum(axis=1)[:, None]
        y = (shift + others * mean)[:, None] + values[:, self._jumps]
        part = np.maximum(y, 0.0) + variance / (2 * (np.sqrt(y**2 + variance) + np.abs(y)))
        row, jump = np.nonzero(y < 0)
        if len(row) and others:
            chernoff = log_positive_part_bound(
                values=values[row],
                masses=self._mass,
                trials=others,
                shift=shift[row] + values[:, self._jumps][row, jump],
            )
            part[row, jump] = np.minimum(part[row, jump], np.exp(np.minimum(chernoff, 700.0)))
        return np.asarray(self._slots * (self._mass[self._jumps] * part).sum(axis=1), dtype=np.float64)


_WASTED = 3e-4  # share of the variance of the loss that rounding scores may lose
_HIGHEST_SCORES = np.unique(np.round(np.geomspace(1, 4096, 160))).astype(np.int64)
_LOG_ALIASED = 46.0  # −log of the mass that a transform may fold over
_MOST_LOST, _MOST_GAINED = 1e-6, 1e-9  # of the mass of a law from below; beyond it is not resolved
_REACH = 4.5  # deviations around its mean of which a tilted law tells every digit that matters
_ROUNDOFF = 128 * 2.0**-53  # of a transform, relative to its largest value
_MOST_TILTS = 64
_CLEAR_ROUNDOFF = 2.0**-50


@dataclass(frozen=True, slots=True)
class _Slots:
    """Independent slots of one law. The masses may fall short of one: the rest has no gain and score 0."""

    count: int
    u: Floats
    v: Floats
    mass: Floats

    @classmethod
    def of(cls, atoms: Atoms, count: int) -> _Slots:
        u, v, mass = np.array([atom for atom in atoms if atom[2] > 0]).T
        # What rounding added to the means would be added to the mass of P and Q.
        total = mass.sum()
        return cls(count, u - (mass @ u) / total, v - (mass @ v) / total, mass)


def slot_losses_from_below(pair: SlotPair) -> tuple[Floats, Floats, Floats]:
    """A finite pair that ``pair`` dominates: losses, rounded towards 0, and masses under P and under Q.

    Masses may fall short of one; what is left out leaks nothing. Where few reports tell nearly all, these are
    counted. Otherwise, and where scores are not resolved, as a few likelihoods are so large that the masses
    of their sums do not add up to one, the sum of all scores is read.
    """
    if few_outcomes(pair):
        return listed_outcomes(pair, common=_CLEAR_ROUNDOFF)[:3]
    classes, told = _clearest(pair)
    if classes and (told or max(max(u, v) for u, v, _ in pair.atoms) > LARGEST_WEIGHT):
        return _counted(pair, classes)
    try:
        return _sum_of_scores(pair)
    except ArithmeticError:
        if not classes:
            raise
        return _counted(pair, classes)


def readable_information(pair: SlotPair) -> float:
    """A pair's ``information``, less a guess at what is lost where only one sum of scores is read.

    That sum does not tell how P and Q change together, which matters where few reports speak for anybody.
    """
    if few_outcomes(pair) or _clearest(pair)[1]:
        return pair.information
    common = math.fsum(m * (u + v) * (u + v) for u, v, m in pair.atoms) / 4
    # 30.0: how much it matters, at the deltas that people ask for, that P and Q change together
    return pair.information / (1 + 30.0 * pair.slots * common / pair.population**2)


_Class = tuple[float, float, float]
"""Mass and mean weights of some reports."""


def _counted(pair: SlotPair, classes: tuple[_Class, _Class]) -> tuple[Floats, Floats, Floats]:
    """From below: reports are read as clear for P, clear for Q, or neither, and these are counted."""
    (mass_p, first_p, second_p), (mass_q, first_q, second_q) = classes
    rest = 1 - mass_p - mass_q
    # What is likely about neither record, rounded up: the more so, the less the pair tells.
    unclear_u, unclear_v = (
        max(1 - (mass_p * for_p + mass_q * for_q) / rest, 0.0) + _CLEAR_ROUNDOFF
        for for_p, for_q in ((first_p, first_q), (second_p, second_q))
    )
    start, law = binomial_window(pair.slots, mass_p)
    masses, counts_p, counts_q = [], [], []
    for count, chance in zip(range(start, start + len(law)), law.tolist(), strict=True):
        first, beside = binomial_window(pair.slots - count, min(mass_q / (1 - mass_p), 1.0))
        masses.append(chance * beside)
        counts_p.append(np.full(len(beside), float(count)))
        counts_q.append(first + np.arange(len(beside), dtype=np.float64))
    weight, for_p, for_q = (np.concatenate(column) for column in (masses, counts_p, counts_q))
    others = pair.slots - for_p - for_q
    p, q = (
        weight * (pair.population - others + others * unclear + for_p * of_p + for_q * of_q) / pair.population
        for unclear, of_p, of_q in ((unclear_u, first_p, first_q), (unclear_v, second_p, second_q))
    )
    apart = for_p * (first_p - second_p) + for_q * (first_q - second_q) + others * (unclear_u - unclear_v)
    return loss_of(p, q, weight * apart / pair.population), p, q


def _clear_class(u: Floats, v: Floats, mass: Floats, least: float, *, sign: int) -> _Class:
    """The slots with ±(u − v) of ``least`` or more."""
    inside = sign * (u - v) >= least
    total = math.fsum(mass[inside])
    if total == 0:
        return 0.0, 0.0, 0.0
    return total, math.fsum((mass * u)[inside]) / total, math.fsum((mass * v)[inside]) / total


@lru_cache(maxsize=256)
def _clearest(pair: SlotPair) -> tuple[tuple[_Class, _Class] | None, bool]:
    """Few reports that are clear for P or for Q, by which the counts tell most; and if that is nearly all."""
    u, v, mass = (np.array(column) for column in zip(*(a for a in pair.atoms if a[2] > 0), strict=True))
    found, most = None, 0.0
    for least in np.unique(np.abs(u - v)).tolist():
        if least == 0:
            continue
        for_p, for_q = (_clear_class(u, v, mass, least, sign=sign) for sign in (1, -1))
        clear = for_p[0] + for_q[0]
        # 1500.0: expected clear reports, up to which they are counted
        # 0.25: probability of the reports that are not clear: it is a difference
        if clear > 1 - 0.25 or pair.slots * clear > 1500.0:
            continue
        common = [-(for_p[0] * for_p[i] + for_q[0] * for_q[i]) / (1 - clear) for i in (1, 2)]
        told = math.fsum(
            share * (first - second) * (first - second) for share, first, second in (for_p, for_q)
        )
        told += (1 - clear) * (common[0] - common[1]) ** 2
        if told > most:
            found, most = (for_p, for_q), told
    return found, most >= (1 - _WASTED) * math.fsum(mass * (u - v) * (u - v))


def _sum_of_scores(pair: SlotPair) -> tuple[Floats, Floats, Floats]:
    """From below: reports are read as scores, and only their sum is kept."""
    slots = _Slots.of(pair.atoms, pair.slots)
    while True:
        scores = _scores(slots)
        if scores is not None:
            break
        slots = _in_blocks(slots)
    _, mass, gain_u, gain_v = _Tallied.of(slots, scores).law()
    p, q = (np.maximum(mass + gain / pair.population, 0.0) for gain in (gain_u, gain_v))
    _check_resolved(p, q)
    losses = loss_of(p, q, (gain_u - gain_v) / pair.population)
    excess = max(math.fsum(p), math.fsum(q), 1.0)
    return losses, p / excess, q / excess


def _check_resolved(p: Floats, q: Floats) -> None:
    for total in (float(p.sum()), float(q.sum())):
        if not 1 - _MOST_LOST <= total <= 1 + _MOST_GAINED:
            raise ArithmeticError(f"the law of a sum of scores is not resolved: its masses add up to {total}")


def bundle_losses_from_below(
    *, atoms: Atoms, slots: int, changed: int, participation: float
) -> tuple[Floats, Floats, Floats]:
    """Of a round in which several reports are client 1's, and everybody else's are about one record z.

    P is the law of the sum of scores if client 1's ``changed`` reports are about x, with probability γ
    (``participation``), and about z otherwise; Q the same with x'. Losses are rounded down, so the pair with
    x and x' exchanged has to be asked for by itself.
    """
    law = _Slots.of(atoms, slots)
    scores = _scores(law, or_coarser=True)
    if scores is None:
        raise ArithmeticError(f"the law of a sum of {slots} scores is too long to be listed")
    _, loss, p, q = _Bundle.of(law, scores, several=changed, participation=participation).law()
    _check_resolved(p, q)
    return loss, p, q


def _scores(slots: _Slots, *, or_coarser: bool = False) -> Cells | None:
    """Whole numbers nearly proportional to u − v; None if the transform of their sum would be too long.

    If coarser ones are wanted instead, the finest whose sum's transform is not too long.
    """
    difference = slots.u - slots.v
    top = float(np.abs(difference).max())
    if top == 0:
        return np.zeros(len(difference), dtype=np.int64)
    energy = float(slots.mass @ difference**2)
    found: Cells | None = None
    too_long = False
    for highest in _HIGHEST_SCORES:
        score = np.rint(difference * (highest / top))
        mean = float(slots.mass @ score)
        variance = float(slots.mass @ (score - mean) ** 2)
        variance += max(1.0 - float(slots.mass.sum()), 0.0) * mean**2
        if variance <= 0:
            continue
        deviation = math.sqrt(slots.count * variance)
        # 1 << 19: of a transform; beyond, slots are summed in blocks
        too_long = 2 * (_REACH + math.sqrt(2 * _LOG_ALIASED)) * deviation > (1 << 19)
        if too_long and or_coarser:
            return found
        found = np.asarray(score, dtype=np.int64)
        together = float(slots.mass @ (difference * score))
        if together**2 >= (1 - _WASTED) * variance * energy:
            break
    return None if too_long else found


def _in_blocks(slots: _Slots) -> _Slots:
    """Blocks of slots, each read as one score; a few slots that fill no block are left out."""
    blocks = math.isqrt(slots.count)
    inner = replace(slots, count=slots.count // blocks)
    scores = _scores(inner)
    if scores is None:
        inner = _in_blocks(inner)
        scores = _scores(inner)
        assert scores is not None
    place, *columns = _Tallied.of(inner, scores).law()
    mean = float((columns[0] * place).sum())
    deviation = math.sqrt(float((columns[0] * (place - mean) ** 2).sum()))
    # 8: to a deviation of a block's score
    cell = np.floor((place - mean) * (8 / deviation) + 0.5).astype(np.int64)
    cell -= cell.min()
    size = int(cell.max()) + 1
    mass, u, v = (tally(cell, column, size) for column in columns)
    keep = mass > 0
    mass, u, v = mass[keep], u[keep] / mass[keep], v[keep] / mass[keep]
    mass /= max(float(mass.sum()), 1.0)
    return _Slots(blocks, u - mass @ u, v - mass @ v, mass)


@dataclass(frozen=True, slots=True)
class _Tallied:
    """Scores with their masses, and with their masses times u and v."""

    count: int
    score: Floats
    mass: Floats
    u: Floats
    v: Floats

    @classmethod
    def of(cls, slots: _Slots, scores: Cells, **more: Any) -> Self:
        first, size = int(scores.min()), int(scores.max() - scores.min()) + 1
        mass, u, v = (
            tally(scores - first, column, size)
            for column in (slots.mass, slots.mass * slots.u, slots.mass * slots.v)
        )
        keep = mass > 0
        columns = [np.arange(first, first + size, dtype=np.float64)[keep], mass[keep], u[keep], v[keep]]
        if (rest := 1.0 - math.fsum(slots.mass)) > 0:
            columns = [np.append(each, new) for each, new in zip(columns, (0.0, rest, 0.0, 0.0), strict=True)]
        return cls(slots.count, *columns, **more)

    @property
    def changed(self) -> int:
        """How many of the scores are client 1's."""
        return 1

    @property
    def log_weight(self) -> float:
        """Log of how much likelier a round may be under P or Q than under everybody else's record."""
        return 0.0  # times so little as one report of many

    def cumulant(self, tilt: float) -> float:
        """Log of the moment generating function of the sum T of all scores at the tilt θ: log E e^(θT)."""
        exponent = tilt * self.score
        top = float(exponent.max())
        total = math.fsum(self.mass)
        if max(top, -float(exponent.min())) < 1:
            # Every digit counts: it is multiplied by as many as 10^12 reports.
            return self.count * math.log1p(math.fsum(self.mass * np.expm1(exponent)) / total)
        return self.count * (top + math.log(float(self.mass @ np.exp(exponent - top)) / total))

    def tilted(self, tilt: float) -> tuple[Floats, float, float]:
        """Masses of the scores, mean and deviation of T."""
        exponent = tilt * self.score
        weight = self.mass * np.exp(exponent - exponent.max())
        weight /= weight.sum()
        mean = float(weight @ self.score)
        variance = float(weight @ (self.score - mean) ** 2)
        return weight, self.count * mean, math.sqrt(self.count * variance)

    def tilt_where(self, reached: Callable[[float], float], sign: int) -> float:
        """The tilt of that sign where a function that rises with its size is zero, or the largest."""
        # 700.0: of a score, so that its weight is a float
        most = 700.0 / max(float(np.abs(self.score).max()), 1.0)
        if reached(sign * most) <= 0:
            return sign * most
        return sign * zero_between(lambda size: reached(sign * size), 0.0, most, xtol=1e-12, rtol=1e-6)

    def end(self, tilt: float, *, sign: int, log_tail: float) -> float:
        """A value that T, tilted, passes with a probability of at most e^-log_tail (Chernoff)."""
        base = self.cumulant(tilt)

        def decay(more: float) -> float:
            mean = self.tilted(tilt + more)[1]
            return more * mean - (self.cumulant(tilt + more) - base) - log_tail

        return self.tilted(tilt + self.tilt_where(decay, sign))[1]

    def law(self) -> tuple[Floats, ...]:
        """Places of T in their order, and what a class keeps of each: the columns of :meth:`_piece`."""
        # 70.0: −log of the mass of T that is left out at either end
        low, high = (self.end(0.0, sign=sign, log_tail=70.0 + self.log_weight) for sign in (-1, 1))
        lowest = max(math.floor(low), int(self.count * self.score.min()))
        highest = min(math.ceil(high), int(self.count * self.score.max()))
        _, mean, deviation = self.tilted(0.0)
        left, right = math.ceil(mean - _REACH * deviation), math.floor(mean + _REACH * deviation)
        left, right = max(min(left, math.floor(mean)), lowest), min(max(right, math.ceil(mean)), highest)
        below, above = (
            list(self._outwards(start, end, sign=sign))
            for start, end, sign in ((left - 1, lowest, -1), (right + 1, highest, 1))
        )
        pieces = [*reversed(below), self._piece(0.0, left, right), *above]
        return tuple(np.concatenate(columns) for columns in zip(*pieces, strict=True))

    def _outwards(
        self, start: int, last: int, *, sign: int
    ) -> Iterator[tuple[Floats, Floats, Floats, Floats]]:
        for _ in range(_MOST_TILTS):
            if sign * (last - start) < 0:
                return

            def starts(tilt: float, start: int = start) -> float:
                _, mean, deviation = self.tilted(tilt)
                return sign * (mean - start) - _REACH * deviation

            tilt = self.tilt_where(starts, sign)
            _, mean, deviation = self.tilted(tilt)
            reach = math.floor(sign * mean + _REACH * deviation)
            stop = sign * min(max(reach, sign * start), sign * last)
            yield self._piece(tilt, min(start, stop), max(start, stop))
            start = stop + sign

    def _piece(self, tilt: float, left: int, right: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Places from ``left`` to ``right``, their masses, rounded down, and E[Σu; T] and E[Σv; T].

        The difference of the latter is rounded towards 0.
        """
        found, count = self._transform(tilt, left, right), self.count
        mass, mass_top = found.law(1.0, count)
        gain_u, u_top = found.law(count * found.first_u, count - 1)
        gain_v, v_top = found.law(count * found.first_v, count - 1)
        place = np.arange(left, right + 1, dtype=np.float64)
        aliased = 2 * math.exp(-_LOG_ALIASED)  # at either end of the window
        error = _ROUNDOFF * mass_top + aliased
        gain_error = _ROUNDOFF * (u_top + v_top) + aliased * self.count
        # The loss is rounded towards 0, then both masses are lowered alike.
        half = np.maximum(np.abs(gain_u - gain_v) - gain_error, 0.0) / 2 * np.sign(gain_u - gain_v)
        middle = (gain_u + gain_v) / 2
        kept = np.clip((mass - error) / (mass + error), 0.0, 1.0)
        kept = np.where(mass > 4 * error, kept, 0.0)
        untilt = np.exp(self.cumulant(tilt) - tilt * place) * kept
        raised = mass + error
        return place, raised * untilt, (middle + half) * untilt, (middle - half) * untilt

    def _transform(self, tilt: float, left: int, right: int) -> _Transform:
        weight, _, _ = self.tilted(tilt)
        log_aliased = _LOG_ALIASED + self.log_weight
        low = min(math.floor(self.end(tilt, sign=-1, log_tail=log_aliased)), left)
        high = max(math.ceil(self.end(tilt, sign=1, log_tail=log_aliased)), right)
        length = transform_size(high - low + 1)
        # Few frequencies matter; they are found roughly, and then computed with all digits.
        rough = np.zeros(length)
        np.add.at(rough, self.score.astype(np.int64) % length, weight)
        with np.errstate(divide="ignore"):
            decay = -max(self.count - self.changed, 1) * np.log(np.abs(fft.rfft(rough)))
        every = self.count == self.changed > 1  # then nobody else's scores fade any
        # 50.0: −log of the least size of a frequency that is summed
        heard = np.nonzero((decay < 50.0 + self.log_weight) | every)[0]
        angle = (2 * math.pi / length) * heard
        real, imaginary = np.zeros(len(angle)), np.zeros(len(angle))
        first_u, first_v = np.zeros(len(angle), dtype=complex), np.zeros(len(angle), dtype=complex)
        share = weight / self.mass
        for score, w, u, v in zip(self.score, weight, self.u * share, self.v * share, strict=True):
            versine, sine = 2 * np.sin(angle * (score / 2)) ** 2, np.sin(angle * score)
            real -= w * versine
            imaginary += w * sine
            first_u += u * (1 - versine - 1j * sine)
            first_v += v * (1 - versine - 1j * sine)
        with np.errstate(divide="ignore"):
            modulus = 0.5 * np.log1p(np.maximum(2 * real + real**2 + imaginary**2, -1.0))
        return _Transform(
            first=low,
            inside=slice(left - low, right - low + 1),
            length=length,
            heard=heard,
            one=1 + real - 1j * imaginary,
            modulus=modulus,
            phase=np.arctan2(imaginary, 1 + real),
            first_u=first_u,
            first_v=first_v,
        )


Waves = npt.NDArray[np.complex128]


@dataclass(frozen=True, slots=True)
class _Transform:
    """Of the tilted law of one score, at the frequencies that matter.

    Attributes:
        first: the least value of the sum in its window.
        inside: the part of the window that is asked for.
        length: of the window.
        heard: which frequencies these are.
        one: of the masses. ``modulus`` is the log of its size, ``phase`` its angle with the sign changed.
        first_u, first_v: of the masses times u, and times v.
    """

    first: int
    inside: slice
    length: int
    heard: Cells
    one: Waves
    modulus: Floats
    phase: Floats
    first_u: Waves
    first_v: Waves

    def law(self, first: Waves | float, times: int) -> tuple[Floats, float]:
        """Of ``first`` times the masses' transform to so high a power; and its largest size anywhere."""
        kernel = np.zeros(self.length // 2 + 1, dtype=complex)
        angle = (2 * math.pi / self.length) * self.heard
        turned = np.exp(1j * (angle * self.first - times * self.phase))
        kernel[self.heard] = first * turned * (np.exp(times * self.modulus) if times else 1.0)
        found = np.asarray(fft.irfft(kernel, n=self.length), dtype=np.float64)
        return found[self.inside], float(np.abs(found).max())


@dataclass(frozen=True, slots=True)
class _Bundle(_Tallied):
    """Scores of which several are client 1's. Pieces hold places, losses (rounded down), P and Q masses."""

    several: int
    participation: float

    @property
    def changed(self) -> int:
        return self.several

    @property
    def log_weight(self) -> float:
        return self.several * math.log1p(
            max(float((column / self.mass).max()) for column in (self.u, self.v))
        )

    def _piece(self, tilt: float, left: int, right: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Places, losses (rounded down), and the masses under P and Q."""
        found, rest = self._transform(tilt, left, right), self.count - self.several
        x, other, several = found.one + found.first_u, found.one + found.first_v, self.several
        roundoff = _ROUNDOFF + 8 * several * 2.0**-53
        aliased = 2 * math.exp(-_LOG_ALIASED)  # at either end of the window

        def apart(first: Waves, one: Waves, two: Waves) -> tuple[Floats, float]:
            """γ times the difference of the laws with ``several`` scores of one kind, and of another."""
            gain, top = found.law(first * _powers(one, two, several), rest)
            return self.participation * gain, self.participation * (roundoff * top + aliased)

        mass, top = found.law(1.0, self.count)
        gain_u, error_u = apart(found.first_u, x, found.one)
        gain_v, error_v = apart(found.first_v, other, found.one)
        difference, error = apart(found.first_u - found.first_v, x, other)
        error_u, error_v = (each + roundoff * top + aliased for each in (error_u, error_v))
        p, q = mass + gain_u - error_u, mass + gain_v
        least = difference - error
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = 1 + least / np.where(least > 0, q + error_v, q - error_v)
        keep = (p > 0) & (q > error_v) & (ratio > 0)
        place = np.arange(left, right + 1, dtype=np.float64)
        place, p, least, q = place[keep], p[keep], least[keep], q[keep]
        loss = np.log1p(least / np.where(least > 0, q + error_v, q - error_v))
        p = p * np.exp(self.cumulant(tilt) - tilt * place)
        return place, loss, p, p * np.exp(-loss)


def _powers(one: Waves, two: Waves, count: int) -> Waves:
    """The sum of one^i·two^(count − 1 − i) over i = 0 … count − 1: (one^count − two^count)/(one − two)."""
    total, ones, twos = np.ones_like(one), one, two
    for digit in bin(count)[3:]:
        total, ones, twos = total * (ones + twos), ones * ones, twos * twos
        if digit == "1":
            total, ones, twos = total * one + twos, ones * one, twos * two
    return total
