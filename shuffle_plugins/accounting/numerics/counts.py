"""Laws of whole numbers, added up and mixed: what reports that are counted come to."""

from __future__ import annotations

import math
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
    total = np.zeros(length)
    for mass, law in laws:
        total[law.first - first : law.first - first + len(law.masses)] += mass * law.masses
    return CountMasses.of(first, total)


def drawn_counts(groups: Sequence[tuple[float, int]], *, draws: int) -> CountMasses:
    """How many of that many clients, drawn uniformly, are counted.

    Each client is counted with the probability of its group, on its own. So of all clients a sum of binomial
    numbers would be, and given how many the drawn ones are a uniform subset.

    Args:
        groups: the probability, and the number of clients, of each.
        draws: how many clients are drawn.
    """
    among = sum(size for _, size in groups)
    total = CountMasses(first=0, masses=np.ones(1))
    for chance, size in groups:
        first, masses = binomial_window(size, chance)
        total = total.plus(CountMasses(first=first, masses=masses))
    if draws == among:
        return total
    found = []
    for marked, mass in enumerate(total.masses.tolist(), start=total.first):
        first, masses = hypergeometric_window(draws=draws, marked=marked, among=among)
        found.append((mass, CountMasses(first=first, masses=masses)))
    return mixed_counts(found)


def signed_counts(numbers: CountMasses) -> CountMasses:
    """The sum of fair signs, of a random number of them."""
    fair = CountMasses(first=-1, masses=np.array([0.5, 0.0, 0.5]))
    more = CountMasses(first=0, masses=np.zeros(1))
    for mass in reversed(numbers.masses.tolist()):  # of those beyond the least number, as in Horner's rule
        more = mixed_counts([(1.0, more.plus(fair)), (mass, CountMasses(first=0, masses=np.ones(1)))])
    least, halves = binomial_window(numbers.first, 0.5)
    spread = np.zeros(2 * len(halves) - 1)
    spread[::2] = halves
    return more.plus(CountMasses(first=2 * least - numbers.first, masses=spread))


def split_counts(*, hidden: CountMasses, shown: CountMasses, local_epsilon: float) -> tuple[Floats, Floats]:
    """Masses of a number of reports and how many of them are for x; if client 1 holds x, and if it holds x'.

    Each report of another client is for x or for x' with probability ½. All terms are positive, so that none
    cancel.

    Args:
        hidden: the law of the number where client 1's report is none of them.
        shown: the same where it is one of them; the total of both is one.
        local_epsilon: client 1's report is e to this as likely for what it holds as for the other.
    """
    start, length = reach_of(hidden, shown)
    likely, unlikely = (1 / (1 + math.exp(sign * local_epsilon)) for sign in (-1, 1))
    first, second = [], []
    columns = zip(hidden.on(start, length).tolist(), shown.on(start, length).tolist(), strict=True)
    for number, (without, with_own) in enumerate(columns, start=start):
        least, halves = binomial_window(number, 0.5)
        share = (least + np.arange(len(halves))) / max(number, 1)
        first.append(halves * (without + 2 * with_own * (likely * share + unlikely * (1 - share))))
        second.append(halves * (without + 2 * with_own * (unlikely * share + likely * (1 - share))))
    return np.concatenate(first), np.concatenate(second)
