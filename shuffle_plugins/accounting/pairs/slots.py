r"""Rounds whose slots carry weights of any size: from the law of one slot to a finite privacy loss law.

A slot adds (u, v) to n·(dP/df − 1, dQ/df − 1), with any finite law. There are too many combinations to count.
But every hockey-stick divergence is one expectation of one sum, bounded from above at points E_0 < E_1 < …,
and the lower convex hull of the bounds is the profile of a finite pair that dominates (P, Q). The cost does
not depend on the number of slots. Proofs: ``docs/proofs/noise.md``, section 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shuffle_plugins.accounting.numerics.binomial import TAIL, window_ends
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.hinge import expected_positive_part, log_positive_part_bound
from shuffle_plugins.accounting.numerics.profiles import (
    PositiveLosses,
    hull_outcomes,
    joined,
    loss_of,
    profile_points,
)

LARGEST_WEIGHT = 1e70
"""What a slot may add, at most."""

_MASS_TOLERANCE = 1e-9
_LARGEST_LOSS = math.log(LARGEST_WEIGHT)
_LOG_NEGLIGIBLE = math.log(1e-40)  # of a δ at which a profile may end
_FEW_OUTCOMES = 30_000  # of all slots together, up to which each is listed
_FEW_STEPS = 1_000_000  # partial outcomes on the way to them
_SCOUTS = 32  # rough values of the profile, by which its points are placed
_SCOUTS_SHARE = 0.01  # of variance by which rough values are smoothed
_UNIFORM_REACH = 12.0  # standard deviations of the loss that points cover evenly
_RARE = 1e-4  # expected number of draws that may be treated one at a time
_OUTLYING = 20.0  # … if they are so many standard deviations of the rest away


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotPair:
    """A pair (P, Q): dP/df = 1 + Σ u_i/n and dQ/df = 1 + Σ v_i/n over independent slots of one law.

    Attributes:
        population: n, the divisor.
        slots: number of independent slots, in [1, n].
        atoms: the law of a slot as triples (u, v, mass): u, v ≥ −1, masses sum to one, and u and v have the
            same mean, −``lost``.
        lost: P mass that one slot leaves out, n times over; charged to δ. Zero unless weights were cut.

    Neighbouring relation of the divergences: that of the pair; replace-one for blanket pairs.

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
        if not all(len(atom) == 3 and all(map(math.isfinite, atom)) for atom in self.atoms):
            raise ValueError("atoms must be triples (u, v, mass) of finite numbers")
        if any(mass < 0 or min(u, v) < -1 - _MASS_TOLERANCE for u, v, mass in self.atoms):
            raise ValueError("an atom needs a mass that is not negative, and u, v of at least -1")
        total = math.fsum(mass for _, _, mass in self.atoms)
        if abs(total - 1) > _MASS_TOLERANCE:
            raise ValueError(f"the masses of a slot's atoms must sum to 1, got {total!r}")
        if not 0 <= self.lost < 1:
            raise ValueError(f"lost must be in [0, 1), got {self.lost!r}")
        for name, axis in (("u", 0), ("v", 1)):
            mean = math.fsum(atom[axis] * atom[2] for atom in self.atoms)
            if abs(mean + self.lost) > _MASS_TOLERANCE:
                raise ValueError(f"{name} must have mean -lost = {-self.lost!r}, got {mean!r}")

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
    """A finite pair that dominates ``pair``: losses of its outcomes, their masses under P and under Q.

    Args:
        pair: the pair.
        tolerance: relative excess of the variance of the loss, in (0, 0.1]. A loss of ε comes out larger by
            about half of it, relatively.

    Returns:
        Losses, P masses and Q masses, shape (outcomes,) each, and the P mass missing from them (as much Q
        mass is missing, on the other side): H_E(P‖Q) ≤ Σ (p − E·q)₊ + missing for every E > 0, and so it is
        with P and Q exchanged.

    Raises:
        ValueError: if the tolerance is out of range.
    """
    if not 0 < tolerance <= 0.1:
        raise ValueError(f"tolerance must be in (0, 0.1], got {tolerance!r}")
    if few_outcomes(pair):
        return listed_outcomes(pair)
    u, v, mass = (np.array(column) for column in zip(*(a for a in pair.atoms if a[2] > 0), strict=True))
    lost = pair.slots * pair.lost / pair.population
    right = _speaking_for_first(pair, u, v, mass, tolerance=tolerance)
    left = _speaking_for_first(pair, v, u, mass, tolerance=tolerance) if pair.one_sided else right
    right, left, rest = joined(right, left, total=1.0 - lost)
    return (
        np.concatenate([right.loss, [0.0], -left.loss]),
        np.concatenate([right.p, [rest], left.q]),
        np.concatenate([right.q, [rest], left.p]),
        max(right.beyond, left.beyond) + lost,
    )


def _telling(pair: SlotPair) -> tuple[list[tuple[float, float, float]], float, int]:
    """Atoms other than (0, 0), the mass of that one, and how many others are drawn at most, but for 1e-30."""
    atoms = [(u, v, mass) for u, v, mass in pair.atoms if (u or v) and mass > 0]
    silent = math.fsum(mass for u, v, mass in pair.atoms if not (u or v))
    told = min(math.fsum(mass for _, _, mass in atoms), 1.0)
    # One slot may be client 1's; in all others the law of draws is that of the pair's own measure.
    most = min(window_ends(pair.slots - 1, told)[1] + 1, pair.slots) if silent > 0 else pair.slots
    return atoms, silent, most


def few_outcomes(pair: SlotPair) -> bool:
    """Whether :func:`listed_outcomes` takes little time."""
    atoms, silent, most = _telling(pair)
    kinds = len(atoms) + (silent > 0)
    # As many multisets are built on the way as there are of one kind more.
    return math.comb(most + kinds - 1, most) <= _FEW_OUTCOMES and math.comb(most + kinds, most) <= _FEW_STEPS


def listed_outcomes(pair: SlotPair, *, common: float = 0.0) -> tuple[Floats, Floats, Floats, float]:
    """The pair itself, outcome by outcome: one for every multiset of atoms.

    Args:
        pair: of few outcomes.
        common: added to the densities of P and of Q.

    Returns:
        Losses, P masses and Q masses, shape (outcomes,) each, and the P mass that the pair leaves out.
    """
    atoms, silent, most = _telling(pair)
    u, v, mass = (np.array(column) for column in zip(*atoms, strict=True)) if atoms else (np.zeros(0),) * 3
    kinds = len(mass)
    last, run = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    weight, sum_u, sum_v, apart = np.ones(1), np.zeros(1), np.zeros(1), np.zeros(1)
    if silent > 0:
        weight *= math.exp(pair.slots * math.log(silent))
        mass = mass / silent
    levels = []
    for drawn in range(most + 1):
        if drawn:
            # Atoms are drawn in order; N!/Π counts! grows with each by the slots that are left, over its run.
            parent = np.repeat(np.arange(len(last)), kinds - last)
            first = np.cumsum(kinds - last) - (kinds - last)
            atom = np.arange(len(parent)) - first[parent] + last[parent]
            run = np.where(atom == last[parent], run[parent] + 1, 1)
            weight = weight[parent] * mass[atom] * ((pair.slots - drawn + 1) / run)
            # Likelihoods, which are not negative, keep the digits that sums of gains would lose.
            sum_u, sum_v, last = sum_u[parent] + (1 + u)[atom], sum_v[parent] + (1 + v)[atom], atom
            apart = apart[parent] + (u - v)[atom]
        if silent > 0 or drawn == most:
            rest = pair.population - drawn
            levels.append(
                (
                    weight * ((rest + sum_u) / pair.population + common),
                    weight * ((rest + sum_v) / pair.population + common),
                    weight * apart / pair.population,
                )
            )
    p, q, gain = (np.concatenate(columns) for columns in zip(*levels, strict=True))
    beyond = TAIL if most < pair.slots else 0.0
    return loss_of(p, q, gain), p, q, pair.slots * pair.lost / pair.population + beyond


def _speaking_for_first(
    pair: SlotPair, u: Floats, v: Floats, mass: Floats, *, tolerance: float
) -> PositiveLosses:
    """The outcomes of positive loss of a pair that dominates."""
    profile = _Profile(pair, u, v, mass)
    last = profile.last_loss()
    if last <= 0:
        return hull_outcomes(np.zeros(1), np.zeros(1))
    scouts = np.union1d(np.linspace(0.0, last, _SCOUTS), np.geomspace(1e-3 * last, last, _SCOUTS))
    scouts_law = hull_outcomes(scouts, profile.bound(scouts, share=_SCOUTS_SHARE))
    deviation = math.sqrt(float(((scouts_law.p + scouts_law.q) * scouts_law.loss**2).sum()))
    if deviation <= 0:
        return scouts_law
    # Spreading over points h apart adds at most h²/6 on average: the other half of the tolerance.
    losses = profile_points(
        last, step=deviation * math.sqrt(3 * tolerance), uniform=_UNIFORM_REACH * deviation
    )
    return hull_outcomes(losses, profile.bound(losses, share=tolerance / 2))


class _Profile:
    """H_E(P‖Q) at E = e^loss ≥ 1, from above.

    Args:
        pair: gives n and the number of slots.
        u: what the atoms add for P.
        v: what they add for Q.
        mass: their masses.
    """

    def __init__(self, pair: SlotPair, u: Floats, v: Floats, mass: Floats) -> None:
        self._population, self._slots = pair.population, pair.slots
        self._u, self._v, self._mass = u, v, mass
        self._pure = self._pure_loss()
        rare = self._find_rare()
        self._bulk = ~rare
        self._jumps = rare & (u > v)

    def _find_rare(self) -> npt.NDArray[np.bool_]:
        """Atoms so large and so seldom that more than one in a round is negligible."""
        size = np.maximum(self._u, self._v)
        order = np.argsort(-size, kind="stable")
        expected = self._slots * np.cumsum(self._mass[order])
        energy = self._slots * (self._mass * (self._u - self._v) ** 2)[order]
        of_the_rest = np.maximum(energy.sum() - np.cumsum(energy), 0.0)
        outlying = (expected <= _RARE) & (of_the_rest > 0) & (size[order] > _OUTLYING * np.sqrt(of_the_rest))
        rare = np.zeros(len(size), dtype=np.bool_)
        if np.any(outlying):
            rare[order[: int(np.nonzero(outlying)[0][-1]) + 1]] = True
        return rare

    def _sum(self, losses: Floats) -> tuple[Floats, Floats]:
        """The values u − E·v, shape (losses, atoms), and n·(1 − E)."""
        growth = np.expm1(losses)
        return (self._u - self._v) - growth[:, None] * self._v, -self._population * growth

    def _pure_loss(self) -> float:
        """The largest loss there is: the densities' ratio lies between those of rounds of equal slots."""
        above = self._population + self._slots * self._v
        gain = self._slots * (self._u - self._v)
        if np.any((above <= 0) & (gain > 0)):
            return math.inf
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(gain > 0, gain / above, 0.0).max()
        return math.log1p(float(ratio)) * (1 + 1e-12)

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
        ended = np.nonzero(bound < _LOG_NEGLIGIBLE)[0]
        return float(losses[ended[0]]) if len(ended) else end

    def bound(self, losses: Floats, *, share: float) -> Floats:
        """Upper bounds, shape (losses,), from sums smoothed by that share of their variance."""
        values, shift = self._sum(losses)
        bulk = np.where(self._bulk, values, 0.0)
        total = expected_positive_part(
            values=bulk[:, self._bulk],
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
        """Rounds with a rare atom: the expected number of them, times a bound on the positive part of each.

        The smaller of Scarf's and Chernoff's: ``docs/proofs/noise.md``, "Rare weights".
        """
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
