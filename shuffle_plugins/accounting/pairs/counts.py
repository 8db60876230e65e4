r"""Dominating pairs of a shuffled round.

Most of them are affine functions of a few counts (:class:`CountPair`). Each of ``slots`` reports is *active*
with probability ``active`` and then carries a fair sign; an inactive one is *passive* with probability
``passive`` and otherwise *neutral*. With m the number of active slots, D the sum of their signs and z, y the
numbers of passive and of neutral slots,

    dP/df = 1 + (a·m + b·D + (w − 1)·z + c·y)/n        dQ/df = 1 + (a·m − b·D + (w − 1)·z + c·y)/n.

f is the distribution of the slots when every report is drawn from the blanket. A slot of weights (r0, r1), a
report's likelihoods under the two records over the blanket's, has a = (r0 + r1)/2 − 1 and b = (r0 − r1)/2
with its mirror image; an empty slot has r0 = r1 = 0, and a slot without a client (Poisson sampling) adds
nothing.

Reports with many different weights need :class:`~shuffle_plugins.accounting.pairs.slots.SlotPair`; randomised
bits that are only counted have :class:`~shuffle_plugins.accounting.pairs.bits.BitPair`, and reports that hide
by all of their laws :class:`~shuffle_plugins.accounting.pairs.crowd.CrowdPair`.

Source: the blanket decomposition is Balle, Bell, Gascón, Nissim 2019; its subsampled form, the reduction of
every ε0-LDP randomizer to binary weights and the mixtures are proved in ``docs/proofs/accounting.md``,
sections 1 to 3; real instances are in section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shuffle_plugins.accounting.pairs.bits import BitPair
from shuffle_plugins.accounting.pairs.blanket import Blanket
from shuffle_plugins.accounting.pairs.crowd import CrowdPair
from shuffle_plugins.accounting.pairs.instances import Atoms
from shuffle_plugins.accounting.pairs.mixes import MixPair
from shuffle_plugins.accounting.pairs.slots import SlotPair
from shuffle_plugins.accounting.pairs.spread import SpreadPair

_UP = 2.0**-50
_MOST_SPREAD = 10.0
"""Largest ε0 at which (e, e) reports keep their precision when spread over the two kinds of inactive slot.

Above it :func:`_without_high` trades them.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountPair:
    """A pair (P, Q) whose densities are affine in three counts; see the module docstring.

    Attributes:
        population: n, the divisor of the counts.
        slots: number of independent report slots.
        active: probability that a slot is active, in [0, 1].
        passive: probability that an inactive slot is passive, in [0, 1].
        sign_gain: b ≥ 0.
        weak_gain: a − b, what an active slot adds to the density that it does not speak for.
        passive_weight: w ≥ 0.
        neutral_gain: c.
        one_sided: if true, m counts slots that speak for P alone and dQ/df = 1:
            dP/df = 1 + (2b·m + (w − 1)·z)/n. Such a pair is not symmetric in P and Q.
    """

    population: int
    slots: int
    active: float
    passive: float
    sign_gain: float
    passive_weight: float
    weak_gain: float = 0.0
    neutral_gain: float = 0.0
    one_sided: bool = False

    @property
    def largest_ratio(self) -> float:
        """A bound on dP/df and on dQ/df."""
        return 1.0 + max(2 * self.sign_gain + self.weak_gain, self.neutral_gain)

    @property
    def information(self) -> float:
        """Approximate variance of the privacy loss, for small losses.

        It orders real instances of a round: the larger leaks more.
        """
        loss = 1.0 - self.passive_weight
        common = loss**2 * self.passive * (1.0 - self.active) if self.one_sided else 0.0
        gain = 2 * self.sign_gain
        return self.slots * (gain * self.active * gain + common) / self.population**2

    def as_slots(self) -> SlotPair:
        """The same pair, slot by slot.

        Raises:
            ValueError: if the pair is one-sided.
        """
        if self.one_sided:
            raise ValueError("a one-sided pair has no symmetric slots")
        weak, strong = self.weak_gain, self.weak_gain + 2 * self.sign_gain
        inactive, common = 1.0 - self.active, self.passive_weight - 1.0
        atoms = (
            (strong, weak, self.active / 2),
            (weak, strong, self.active / 2),
            (common, common, inactive * self.passive),
            (self.neutral_gain, self.neutral_gain, inactive * (1.0 - self.passive)),
        )
        return SlotPair(
            population=self.population,
            slots=self.slots,
            atoms=tuple(atom for atom in atoms if atom[2] > 0),
        )


Pair = CountPair | SlotPair | BitPair | CrowdPair | MixPair | SpreadPair


@dataclass(frozen=True, kw_only=True, slots=True)
class PairMixture:
    """A pair whose component is public: the components' pairs, side by side, with their masses.

    Attributes:
        masses: probability of each component; their sum may fall short of one by ``dropped``.
        pairs: one pair per component.
        dropped: mass of the components left out, charged to δ by upper bounds and lost by lower ones.
    """

    masses: tuple[float, ...]
    pairs: tuple[Pair, ...]
    dropped: float = 0.0

    @classmethod
    def single(cls, pair: Pair) -> PairMixture:
        """A mixture whose only component is this pair."""
        return cls(masses=(1.0,), pairs=(pair,))

    @property
    def information(self) -> float:
        """Mean of the components' information."""
        return math.fsum(m * pair.information for m, pair in zip(self.masses, self.pairs, strict=True))

    @property
    def readable_information(self) -> float:
        """What of it lower bounds read; instances are ordered by it."""
        return math.fsum(
            m * (pair.readable_information if isinstance(pair, SlotPair) else pair.information)
            for m, pair in zip(self.masses, self.pairs, strict=True)
        )

    @property
    def symmetric(self) -> bool:
        """Whether exchanging P and Q changes nothing."""
        return not any(pair.one_sided for pair in self.pairs)


def blanket_pair(
    blanket: Blanket, *, population: int, slots: int, participation: float
) -> CountPair | SlotPair:
    """The pair that dominates ``slots`` clients who each report with probability ``participation``.

    Upper bound. ``slots`` = k, ``participation`` = 1 is k-of-n sampling (k = n: everybody takes part);
    ``slots`` = n, ``participation`` = γ is Poisson sampling.
    """
    if blanket.high > 0 and blanket.local_epsilon > _MOST_SPREAD:
        blanket = _without_high(blanket)
    if blanket.edges or blanket.tail:
        return slot_pair(blanket, population=population, slots=slots, participation=participation)
    # Rounded up, as the pair grows with it (docs/proofs/accounting.md, section 5).
    active = min(2 * participation * blanket.differing * (1 + _UP), 1.0)
    null = participation * max(0.0, 1.0 - blanket.mass)
    passive, neutral_gain = (min(null / (1.0 - active), 1.0) if active < 1 else 0.0), 0.0
    if blanket.high > 0 and active < 1:
        # Every inactive slot contributes between -1 and e^ε0 - 1. All their mass is put on the two ends, with
        # the mean kept: the pair can only grow.
        neutral_gain = math.expm1(blanket.local_epsilon)
        mean = (participation * blanket.high * neutral_gain - null) / (1.0 - active)
        passive = min(max((neutral_gain - mean) / (neutral_gain + 1.0), 0.0), 1.0)
    return CountPair(
        population=population,
        slots=slots,
        active=active,
        passive=passive,
        sign_gain=blanket.difference / 2,
        passive_weight=0.0,
        weak_gain=blanket.weak - 1.0,
        neutral_gain=neutral_gain,
    )


def _without_high(blanket: Blanket) -> Blanket:
    """Trade (e, e) reports, with (1, 1) and empty ones, for (e, 1) and (1, e) at equal mean.

    Each trade is a mean-preserving spread (step ii of Claim 2). It is what is left where (e, e) reports are
    so rare that spreading others over them and nothing loses its digits.
    """
    e = math.exp(blanket.local_epsilon)
    paired = min(blanket.high, blanket.low)
    return replace(
        blanket,
        differing=blanket.differing + paired + (blanket.high - paired) * e / (e + 1),
        low=blanket.low - paired,
        high=0.0,
        outside=0.0,
        exact=False,
    )


def slot_pair(blanket: Blanket, *, population: int, slots: int, participation: float) -> SlotPair:
    """The same pair slot by slot, with every kind of report on its own. Upper bound."""
    gain = math.expm1(blanket.local_epsilon)
    one_record = [(gain, blanket.differing), *((r - 1.0, mass) for r, mass in blanket.edges)]
    atoms = [(u, 0.0, participation * mass) for u, mass in one_record if mass > 0]
    atoms += [(v, u, mass) for u, v, mass in atoms]
    atoms.append((gain, gain, participation * blanket.high))
    atoms.append((-1.0, -1.0, participation * max(0.0, 1.0 - blanket.mass)))
    rest = 1.0 - math.fsum(mass for _, _, mass in atoms)
    atoms.append((0.0, 0.0, max(rest, 0.0)))
    return SlotPair(
        population=population,
        slots=slots,
        atoms=tuple(atom for atom in atoms if atom[2] > 0),
        lost=participation * blanket.tail,
    )


def third_record_pair(
    *, local_epsilon: float, outside: float, population: int, slots: int, participation: float
) -> CountPair:
    """Exact pair when all other clients hold the same record, neither x1 nor x1'. A lower bound.

    Reports are read as "for x1", "for x1'" or neither: the first two are those, of weights (e, 1) and (1, e),
    that the third record makes no likelier than the blanket does (``docs/proofs/accounting.md``, section 4).
    In K-ary randomized response that is any third value, with ``outside`` = 1/(e + K − 1).

    Args:
        local_epsilon: ε0.
        outside: probability that the third record gives to each of the first two classes.
        population: n, the number of clients.
        slots: k, or n under Poisson sampling.
        participation: 1, or γ under Poisson sampling.

    Raises:
        ValueError: if ``outside`` is not in (0, 1/(e + 1)].
    """
    e = math.exp(local_epsilon)
    if not 0 < outside <= 1 / (e + 1) * (1 + 1e-12):
        raise ValueError(f"the mass outside of a third record must be in (0, 1/(e^ε0 + 1)], got {outside!r}")
    active = 2.0 * participation * outside
    others = 1.0 - 2.0 * outside
    return CountPair(
        population=population,
        slots=slots,
        active=active,
        passive=min(participation * others / (1.0 - active), 1.0) if active < 1 else 0.0,
        sign_gain=math.expm1(local_epsilon) / 2,
        passive_weight=max(1.0 - (e + 1.0) * outside, 0.0) / others if others > 0 else 0.0,
    )


def alike_pair(atoms: Atoms, *, population: int, slots: int, participation: float) -> SlotPair:
    """Exact pair when all other clients hold one record, which gives a report these gains. A lower bound."""
    present = tuple((u, v, participation * mass) for u, v, mass in atoms)
    absent = ((0.0, 0.0, 1.0 - participation),) if participation < 1 else ()
    return SlotPair(population=population, slots=slots, atoms=(*present, *absent))


def mirror_pair(blanket: Blanket, *, population: int, slots: int, participation: float) -> CountPair:
    """Exact pair of a mechanism when every other client holds the replacement record. A lower bound.

    Reports are read as "for x1", "for x1'" or neither (``docs/proofs/accounting.md``, section 4).

    For the generic blanket the instance is binary randomized response with everybody else at 0.
    """
    active = participation * blanket.differing
    e = math.exp(blanket.local_epsilon)
    return CountPair(
        population=population,
        slots=slots,
        active=active,
        passive=min(e * active / (1.0 - active), 1.0),
        sign_gain=math.expm1(blanket.local_epsilon) / 2,
        passive_weight=1.0 / e,
        one_sided=True,
    )
