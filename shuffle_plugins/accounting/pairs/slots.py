"""Rounds whose slots have one law, of any weights: finite pairs that dominate them, and that they dominate.

Proofs: ``docs/proofs/noise.md``, sections 1, 2 and 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shuffle_plugins.accounting.losses import (
    PositiveLosses,
    hull_outcomes,
    joined,
    loss_of,
    profile_points,
    tested_outcomes,
)
from shuffle_plugins.accounting.numerics.sums import (
    TAIL,
    AcceptingTests,
    Floats,
    expected_positive_part,
    log_positive_part_bound,
    tally,
    window_ends,
)
from shuffle_plugins.accounting.pairs.reports import Atoms

LARGEST_WEIGHT = 1e70
"""What a slot may add, at most."""

_MASS_TOLERANCE = 1e-9
_LARGEST_LOSS = math.log(LARGEST_WEIGHT)
_FEW_OUTCOMES = 50_000  # of all slots together, up to which each is listed
_SCOUTS = 32  # rough values of the profile, by which its points are placed


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
    profile = _Profile(pair.population, pair.slots, u, v, mass)
    # Spreading over points h apart adds at most h²/6 on average: the other half of the tolerance.
    losses = profile.points(tolerance=tolerance, reach=12.0)
    return hull_outcomes(losses, profile.bound(losses, share=tolerance / 2))


class _Profile:
    """H_E(P‖Q) at E = e^loss ≥ 1, if the atoms add u to P and v to Q."""

    def __init__(self, population: float, slots: int, u: Floats, v: Floats, mass: Floats) -> None:
        self._population, self._slots = population, slots
        self._u, self._v, self._mass = u, v, mass
        # The largest loss there is: the densities' ratio lies between those of rounds of equal slots.
        above, gain = population + slots * v, slots * (u - v)
        self._pure = math.inf
        if not np.any((above <= 0) & (gain > 0)):
            with np.errstate(invalid="ignore", divide="ignore"):
                self._pure = math.log1p(float(np.where(gain > 0, gain / above, 0.0).max())) * (1 + 1e-12)
        # Deviation of Σ(u − v) without atoms of more than 20 of it that are seen in no round of 400.
        self._deviation = math.inf
        for _ in range(64):
            apart = np.minimum(np.abs(u - v), 20.0 * self._deviation)
            self._deviation = math.sqrt(slots * float((mass * apart**2).sum()))

    def sums(self, losses: Floats) -> tuple[Floats, Floats, Floats]:
        """The values u − E·v, shape (losses, atoms), n·(1 − E), and what all values are cut by on average.

        A value that makes a sum positive by eight deviations alone is cut to that.
        """
        growth = np.expm1(losses)
        values, shift = (self._u - self._v) - growth[:, None] * self._v, -self._population * growth
        cut = np.minimum(values, np.abs(shift)[:, None] + 8.0 * self._deviation)
        return cut, shift, self._slots * ((values - cut) @ self._mass)

    def points(self, *, tolerance: float, reach: float) -> Floats:
        """Losses from 0 up: √(3·tolerance) deviations apart, up to so many deviations."""
        last = self._last_loss()
        if last <= 0:
            return np.zeros(1)
        scouts = np.union1d(np.linspace(0.0, last, _SCOUTS), np.geomspace(1e-3 * last, last, _SCOUTS))
        # 0.01: of variance by which rough values are smoothed
        rough = hull_outcomes(scouts, self.bound(scouts, share=0.01))
        deviation = math.sqrt(float(((rough.p + rough.q) * rough.loss**2).sum()))
        if deviation <= 0:
            return scouts
        return profile_points(last, step=deviation * math.sqrt(3 * tolerance), uniform=reach * deviation)

    def _last_loss(self) -> float:
        """Where the profile has ended: at the largest loss, or with less than 1e-40 left."""
        end = min(self._pure, _LARGEST_LOSS)
        first = 0.01 * math.sqrt(self._slots * float((self._mass * (self._u - self._v) ** 2).sum()))
        first /= self._population
        if first <= 0 or end <= first:
            return end
        losses = np.geomspace(first, end, 256)
        values, shift, cut = self.sums(losses)
        found = log_positive_part_bound(values=values, masses=self._mass, trials=self._slots, shift=shift)
        # 1e-40: a δ at which a profile may end
        ended = np.nonzero(np.exp(np.minimum(found, 700.0)) + cut < 1e-40 * self._population)[0]
        return float(losses[ended[0]]) if len(ended) else end

    def bound(self, losses: Floats, *, share: float) -> Floats:
        """Upper bounds, shape (losses,), from sums smoothed by that share of their variance."""
        values, shift, cut = self.sums(losses)
        total = expected_positive_part(
            values=values, masses=self._mass, trials=self._slots, shift=shift, share=share
        )
        result = np.minimum((total + cut) / self._population * (1 + 1e-12), 1.0)
        # A profile falls, so a bound holds at every larger loss too.
        return np.minimum.accumulate(np.where(losses >= self._pure, 0.0, result))


@lru_cache(maxsize=64)  # whatever the resolution
def slot_losses_from_below(pair: SlotPair) -> tuple[Floats, Floats, Floats]:
    """A finite pair that ``pair`` dominates: losses, and masses under P and under Q.

    Where few outcomes make up a round they are listed, else each is what one more of many tests accepts.
    """
    # 14.0: of a loss, beyond which a test's rounding is more than what Q accepts
    few = pair if few_outcomes(pair) else _clearest(pair) if pair.largest_ratio > math.exp(14.0) else None
    if few is not None:
        return listed_outcomes(few, common=2.0**-50)[:3]
    return bundle_losses_from_below(
        atoms=pair.atoms, slots=pair.slots, changed=1, participation=pair.slots / pair.population
    )


def _clearest(pair: SlotPair) -> SlotPair | None:
    """Each report read as clear for P, clear for Q, or neither, so that most is told and outcomes are few."""
    u, v, mass = np.array([atom for atom in pair.atoms if atom[2] > 0]).T
    found = None
    for least in np.unique(np.abs(u - v)):
        classes = np.where(u - v >= least, 1, np.where(v - u >= least, 2, 0))
        total, first, second = (tally(classes, w, 3) for w in (mass, mass * (1 + u), mass * (1 + v)))
        seen = total > 0
        columns = (first[seen] / total[seen] - 1, second[seen] / total[seen] - 1, total[seen])
        read = replace(pair, atoms=tuple(zip(*(each.tolist() for each in columns), strict=True)))
        if (found is None or read.information > found.information) and few_outcomes(read):
            found = read
    return found


def bundle_losses_from_below(
    *, atoms: Atoms, slots: int, changed: int, participation: float
) -> tuple[Floats, Floats, Floats]:
    """The same of a round in which several reports are client 1's, and everybody else's are about one z.

    Under P client 1's ``changed`` reports are about x with probability γ (``participation``), and about z
    otherwise; Q is the same with x'. The atoms are what a report tells of x and x' beside z.
    """
    u, v, mass = np.array([atom for atom in atoms if atom[2] > 0]).T
    # What rounding added to the means would be added to the mass of P and Q.
    u, v = (each - mass @ each / mass.sum() for each in (u, v))
    right, left = (
        _tested(*gains, mass, slots=slots, changed=changed, participation=participation)
        for gains in ((u, v), (v, u))
    )
    return joined(right, left, total=1.0)


def _tested(
    u: Floats, v: Floats, mass: Floats, *, slots: int, changed: int, participation: float
) -> PositiveLosses:
    """Outcomes of positive loss whose profile the best of many tests attains."""
    profile = _Profile(slots / (changed * participation), slots, u, v, mass)
    points = profile.points(tolerance=8e-4, reach=9.0)
    if changed > 1:  # the likelihoods are no sum, and the best tests are no more those of E ≥ 1
        points = np.union1d(-points[points < 5.0], points)
    values, shift, _ = profile.sums(points)
    tests = AcceptingTests(
        shift=shift,
        values=values,
        masses=mass,
        u=u,
        v=v,
        reports=slots,
        changed=changed,
        participation=participation,
    )
    # 2e-4: of the variance
    return tested_outcomes(*tests.accepted(2e-4))
