"""Laws of whole numbers, added up and mixed: what reports that are counted come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shuffle_plugins.accounting.numerics.sums import TAIL, Floats, binomial_window, hypergeometric_window


@dataclass(frozen=True, kw_only=True, slots=True)
class CountMasses:
    """Masses of whole numbers from ``first`` up; those of next to no mass are left out."""

    first: int
    masses: Floats

    @classmethod
    def of(cls, first: int, masses: Floats) -> CountMasses:
        """Without the rarest values at either end."""
        seen = np.flatnonzero(masses > TAIL)
        if not len(seen):
            return cls(first=first, masses=np.zeros(1))
        return cls(first=first + int(seen[0]), masses=masses[seen[0] : seen[-1] + 1])

    def plus(self, other: CountMasses) -> CountMasses:
        """The law of the sum of two independent numbers. All terms are positive, so that none cancel."""
        return CountMasses.of(self.first + other.first, np.convolve(self.masses, other.masses))

    def times(self, draws: int) -> CountMasses:
        """The law of a sum of so many independent draws."""
        found, square = CountMasses(first=0, masses=np.ones(1)), self
        while draws:
            if draws & 1:
                found = found.plus(square)
            draws >>= 1
            if draws:
                square = square.plus(square)
        return found

    def on(self, first: int, length: int) -> Floats:
        """Masses of so many numbers from ``first`` up, which hold all of these."""
        found = np.zeros(length)
        found[self.first - first : self.first - first + len(self.masses)] = self.masses
        return found


def reach_of(*laws: CountMasses) -> tuple[int, int]:
    """The first number that any of the laws has, and how many follow up to the last one."""
    first = min(law.first for law in laws)
    return first, max(law.first + len(law.masses) for law in laws) - first


def mixed_counts(laws: Sequence[tuple[float, CountMasses]]) -> CountMasses:
    """A mixture, by probabilities."""
    first, length = reach_of(*(law for _, law in laws))
    return CountMasses.of(first, sum((mass * law.on(first, length) for mass, law in laws), np.zeros(length)))


def drawn_counts(groups: Sequence[tuple[CountMasses, int]], *, draws: int) -> CountMasses:
    """The sum over that many clients, drawn uniformly from one or two groups: a law, and a size, each."""
    among = sum(size for _, size in groups)
    if len(groups) == 1 or draws == among:
        total = CountMasses(first=0, masses=np.ones(1))
        for law, size in groups:
            total = total.plus(law.times(min(size, draws)))
        return total
    (one, size), (two, _) = groups
    first, masses = hypergeometric_window(draws=draws, marked=size, among=among)
    last = first + len(masses) - 1
    ones, twos = [one.times(first)], [two.times(draws - last)]
    for _ in range(len(masses) - 1):
        ones.append(ones[-1].plus(one))
        twos.append(twos[-1].plus(two))
    pairs = zip(masses.tolist(), ones, reversed(twos), strict=True)
    return mixed_counts([(mass, a.plus(b)) for mass, a, b in pairs if mass > TAIL])


def split_counts(total: CountMasses, *, shown: CountMasses, clear: float) -> tuple[Floats, Floats]:
    """Masses of a number of reports and how many of them are for x; if client 1 holds x, and if it holds x'.

    Each report of another client is for x or for x' with probability ½.

    Args:
        total: the law of the number.
        shown: that part of it in which client 1's report is one of them.
        clear: by how much client 1's report is likelier for what it holds.
    """
    first, second = [], []
    start, length = reach_of(total, shown)
    own = shown.on(start, length)[total.first - start :]
    for i, mass in enumerate(total.masses.tolist()):
        number = total.first + i
        least, halves = binomial_window(number, 0.5)
        away = 2 * (least + np.arange(len(halves))) / max(number, 1) - 1
        told = clear * own[i] * away
        first.append(halves * np.maximum(mass + told, 0.0))
        second.append(halves * np.maximum(mass - told, 0.0))
    return np.concatenate(first), np.concatenate(second)
