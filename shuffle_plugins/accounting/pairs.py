r"""Dominating pairs of a shuffled round, as affine functions of a few counts.

Every pair this package accounts with has one shape. Each of ``slots`` reports is *active* with probability
``active`` and then carries a fair sign; an inactive one is *passive* with probability ``passive``. With m the
number of active slots, D the sum of their signs and z the number of passive slots,

    dP/df = 1 + (g/2·(m + D) + c·z)/n        dQ/df = 1 + (g/2·(m − D) + c·z)/n

where g = e^ε0 − 1 is what a slot that speaks for one record adds, and −c what a passive slot takes away. It
follows from the blanket pair

    dP/df = (1 − γ) + (γ/k)·Σ r0             dQ/df = (1 − γ) + (γ/k)·Σ r1

because γ/k = 1/n: a slot contributes r − 1 to n·(dP/df − 1), an absent or neutral one nothing.

Source: the blanket decomposition is Balle, Bell, Gascón, Nissim 2019; its subsampled form, the reduction of
every ε0-LDP randomizer to binary weights and the Poisson mixture are proved in ``docs/accounting.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shuffle_plugins.accounting.binomial import TAIL, binomial_window
from shuffle_plugins.accounting.blanket import Blanket
from shuffle_plugins.accounting.rounds import Adversary, Sampling, ShuffleRound

_COHORT_BUCKETS = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class CountPair:
    """A pair (P, Q) whose densities are affine in three counts; see the module docstring.

    Attributes:
        population: n, the divisor of the counts.
        slots: number of independent report slots.
        active: probability that a slot is active, in [0, 1].
        passive: probability that an inactive slot is passive, in [0, 1].
        gain: g ≥ 0.
        passive_weight: w ≥ 0; c = w − 1.
        one_sided: if true, m counts slots that speak for P alone and dQ/df = 1:
            dP/df = 1 + (g·m + c·z)/n. Such a pair is not symmetric in P and Q.
    """

    population: int
    slots: int
    active: float
    passive: float
    gain: float
    passive_weight: float
    one_sided: bool = False

    @property
    def largest_ratio(self) -> float:
        """A bound on dP/df and on dQ/df."""
        return 1.0 + self.gain

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small; which of two pairs tells more."""
        loss = 1.0 - self.passive_weight
        common = loss**2 * self.passive * (1.0 - self.active) if self.one_sided else 0.0
        return self.slots * (self.gain * self.active * self.gain + common) / self.population**2


@dataclass(frozen=True, kw_only=True, slots=True)
class PairMixture:
    """A pair whose component is public: the components' pairs, side by side, with their masses.

    Attributes:
        masses: probability of each component; their sum may fall short of one by ``dropped``.
        pairs: one pair per component.
        dropped: mass of the components left out, charged to δ by upper bounds and lost by lower ones.
    """

    masses: tuple[float, ...]
    pairs: tuple[CountPair, ...]
    dropped: float = 0.0

    @classmethod
    def single(cls, pair: CountPair) -> PairMixture:
        """A mixture of one."""
        return cls(masses=(1.0,), pairs=(pair,))

    @property
    def information(self) -> float:
        """Mean of the components' information."""
        return math.fsum(m * pair.information for m, pair in zip(self.masses, self.pairs, strict=True))

    @property
    def symmetric(self) -> bool:
        """Whether exchanging P and Q changes nothing."""
        return not any(pair.one_sided for pair in self.pairs)


def blanket_pair(blanket: Blanket, *, population: int, slots: int, participation: float) -> CountPair:
    """The pair that dominates ``slots`` clients who each report with probability ``participation``.

    Upper bound. ``slots`` = k, ``participation`` = 1 is k-of-n sampling (k = n: everybody takes part);
    ``slots`` = n, ``participation`` = γ is Poisson sampling.
    """
    corners = _without_high(blanket)
    active = min(2 * participation * corners.differing, 1.0)
    null = participation * max(0.0, 1.0 - corners.mass)
    return CountPair(
        population=population,
        slots=slots,
        active=active,
        passive=min(null / (1.0 - active), 1.0) if active < 1 else 0.0,
        gain=math.expm1(blanket.local_epsilon),
        passive_weight=0.0,
    )


def _without_high(blanket: Blanket) -> Blanket:
    """Trade (e, e) atoms, with (1, 1) and null mass, for (e, 1) and (1, e) at equal mean.

    Each trade is a mean-preserving spread (step ii of Claim 2), so the pair can only grow.
    """
    e = math.exp(blanket.local_epsilon)
    paired = min(blanket.high, blanket.low)
    return Blanket(
        local_epsilon=blanket.local_epsilon,
        differing=blanket.differing + paired + (blanket.high - paired) * e / (e + 1),
        low=blanket.low - paired,
        exact=False,
    )


def k_ary_lower_pair(
    *, local_epsilon: float, categories: int, population: int, slots: int, participation: float
) -> CountPair:
    """Exact pair of K-ary randomized response when every other client holds one third value.

    A real ε0-LDP instance, hence a lower bound on the worst case over randomizers.

    Args:
        local_epsilon: ε0.
        categories: K ≥ 3.
        population: n.
        slots: k, or n under Poisson sampling.
        participation: 1, or γ under Poisson sampling.

    Raises:
        ValueError: if ``categories`` < 3.
    """
    if categories < 3:
        raise ValueError("K-ary response with a third value needs K >= 3; use binary_lower_pair for K = 2")
    e = math.exp(local_epsilon)
    size = e + categories - 1
    active = 2.0 * participation / size
    passive = participation * e / size / (1.0 - active)
    return CountPair(
        population=population,
        slots=slots,
        active=active,
        passive=min(passive, 1.0),
        gain=e - 1.0,
        passive_weight=1.0 / e,
    )


def mirror_lower_pair(blanket: Blanket, *, population: int, slots: int, participation: float) -> CountPair:
    """Exact pair of a mechanism when every other client holds the replacement record. A lower bound.

    Reports are only read as "speaks for x1", "speaks for x1'" or neither, which is a post-processing. For the
    generic blanket this is binary randomized response with everybody else at 0.
    """
    active = participation * blanket.differing
    e = math.exp(blanket.local_epsilon)
    return CountPair(
        population=population,
        slots=slots,
        active=active,
        passive=min(e * active / (1.0 - active), 1.0),
        gain=e - 1.0,
        passive_weight=1.0 / e,
        one_sided=True,
    )


def upper_mixture(shuffle_round: ShuffleRound) -> PairMixture:
    """The dominating pair of a round for its sampling scheme and adversary."""
    blanket = shuffle_round.effective_blanket()

    def build(population: int, slots: int, participation: float) -> CountPair:
        return blanket_pair(blanket, population=population, slots=slots, participation=participation)

    return _by_scheme(shuffle_round, build, upper=True)


def lower_mixtures(shuffle_round: ShuffleRound) -> dict[str, PairMixture]:
    """Exact pairs of real instances under the round's scheme, by name: what some adversary really can learn.

    A mechanism's own blanket gives the instance in which everybody else holds the replacement record. The
    generic worst case is also bounded by 3-ary randomized response. Empty if the round's blanket is itself
    only a bound, and for single passes, whose cost is attained only before those who know the batches.
    """
    if shuffle_round.sampling is Sampling.SINGLE_PASS:
        return {}
    blanket = shuffle_round.effective_blanket()
    found: dict[str, PairMixture] = {}
    if shuffle_round.mechanism == "generic":

        def ternary(population: int, slots: int, participation: float) -> CountPair:
            return k_ary_lower_pair(
                local_epsilon=shuffle_round.local_epsilon,
                categories=3,
                population=population,
                slots=slots,
                participation=participation,
            )

        found["3-RR instance"] = _by_scheme(shuffle_round, ternary, upper=False)
    if blanket.exact:

        def mirror(population: int, slots: int, participation: float) -> CountPair:
            return mirror_lower_pair(blanket, population=population, slots=slots, participation=participation)

        name = "binary-RR" if shuffle_round.mechanism == "generic" else shuffle_round.mechanism
        found[f"{name} instance"] = _by_scheme(shuffle_round, mirror, upper=False)
    return found


def _by_scheme(
    shuffle_round: ShuffleRound, build: Callable[[int, int, float], CountPair], *, upper: bool
) -> PairMixture:
    """Place a pair in a sampling scheme, before an adversary.

    Against a server that sees the cohort, the cohort is the population.
    """
    population, sampling = shuffle_round.population, shuffle_round.sampling
    sees_cohort = shuffle_round.adversary is Adversary.SERVER
    if sampling is Sampling.POISSON:
        if sees_cohort:
            return _random_cohorts(shuffle_round, build, upper=upper)
        return PairMixture.single(build(population, population, shuffle_round.sampling_rate))
    cohort = int(shuffle_round.cohort)
    if sees_cohort or sampling in (Sampling.FULL, Sampling.SINGLE_PASS):
        population = cohort
    return PairMixture.single(build(population, cohort, 1.0))


def _random_cohorts(
    shuffle_round: ShuffleRound, build: Callable[[int, int, float], CountPair], *, upper: bool
) -> PairMixture:
    """Poisson cohorts before a server: the client took part, so the cohort is 1 + Bin(n − 1, γ) and public.

    With full participation fewer clients are worse, so a bucket of cohort sizes is replaced by its smallest
    size in an upper bound and by its largest in a lower one.
    """
    first, law = binomial_window(shuffle_round.population - 1, shuffle_round.sampling_rate)
    edges = np.unique(np.linspace(0, len(law), _COHORT_BUCKETS + 1).astype(np.int64))
    sizes = 1 + first + (edges[:-1] if upper else edges[1:] - 1)
    return PairMixture(
        masses=tuple(float(mass) for mass in np.add.reduceat(law, edges[:-1])),
        pairs=tuple(build(int(size), int(size), 1.0) for size in sizes),
        dropped=TAIL,
    )
