r"""Pairs in which the others' reports hide by all of their laws, and not by the blanket alone.

A report of another client is drawn from that client's own R_z. Under the blanket pair only the part of it
that every record could have sent hides anybody. Here the differing client's likelihood is read against R_z
itself: with r, r' its laws under its two records, and n clients of whom k report,

.. math:: H_E ≤ E\Big[\Big(1 - E + \frac1D \sum_i \Big(\frac{r - E r'}{R_{z_i}} - (1 - E)\Big)\Big)_+\Big]

over the k reports, up to terms of relative order 1/n that are bounded too: D is a little above n. What others
hold is not known, so this is an envelope over all of their datasets. By convexity it is enough to look at a
few extreme laws of theirs and how many clients have which. Datasets are bounded in groups; who may have
either of two laws in a group counts by the part that both have in common. Proof:
``docs/proofs/accounting.md``, section 3b.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shuffle_plugins.accounting.numerics.binomial import TAIL
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.hinge import (
    Draw,
    expected_positive_parts,
    log_positive_part_bounds,
)
from shuffle_plugins.accounting.numerics.profiles import hull_outcomes, joined, profile_points

_FINEST = 2e-3  # tolerance, finer than which groups of datasets cost more than it
_COARSER = 4  # groups of datasets to one where losses are resolved coarsely
_FEWEST_GROUPS = 4
_CONTOURS = 2  # on each of which neighbouring groups are bounded together
_SCOUTS, _SCOUTS_SHARE, _SCOUT_GROUPS = 24, 0.01, 2
_ENDS = 64  # losses at which the profile may end
_UNIFORM_REACH = 12.0  # standard deviations of the loss that points cover evenly
_LOG_NEGLIGIBLE = math.log(1e-40)  # of a δ at which a profile may end
# −log of probabilities by which it is told apart how few blanket reports there are, by how many are expected
_RARENESS = ((500.0, (12.0, 3.0, 0.8)), (2e4, (10.0, 2.5)))
_HALVINGS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class CrowdLaws:
    """One report, told apart by no more than matters: classes of reports and their probabilities.

    All laws are over the same classes. Exchanging the two records, and the classes along with them, must turn
    the set of the others' laws into itself: the pair is symmetric.

    Attributes:
        second: under the differing client's replacement record.
        difference: what the differing client's record gives beyond that.
        others: laws of other clients. The law of any record z must be such that (r − E·r')/R_z is, in
            convex order and for every E ≥ 1, below a mixture of those of the laws given.
    """

    second: tuple[float, ...]
    difference: tuple[float, ...]
    others: tuple[tuple[float, ...], ...]

    @classmethod
    def sign(cls, local_epsilon: float, *, participation: float = 1.0) -> CrowdLaws:
        """A public random index, and the record's bit there flipped with probability 1/(e^ε0 + 1).

        The classes are the two bits where the two records differ, and no report at all, which has probability
        1 − ``participation``. The others' bits are like one record's or like the other's.
        """
        zero = participation / (math.exp(local_epsilon) + 1)
        one = participation / (1 + math.exp(-local_epsilon))
        apart = participation * math.tanh(local_epsilon / 2)
        absent = (1 - participation,) if participation < 1 else ()
        return cls(
            second=(zero, one, *absent),
            difference=(apart, -apart, *(0.0 for _ in absent)),
            others=((zero, one, *absent), (one, zero, *absent)),
        )

    @property
    def blanket(self) -> Floats:
        """What all of the others' laws have in common."""
        return np.asarray(np.min(np.array(self.others), axis=0), dtype=np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class CrowdPair:
    """The envelope over all datasets of others; symmetric in P and Q.

    Attributes:
        local_epsilon: ε0.
        population: n.
        slots: k, reports that are seen of a uniform subset of the clients; n under Poisson sampling.
        laws: of one report.
        groups: of datasets, about; each costs up to a relative 1/(2·groups) of ε.
    """

    local_epsilon: float
    population: int
    slots: int
    laws: CrowdLaws
    groups: int = 128

    @property
    def one_sided(self) -> bool:
        """False: exchanging P and Q changes nothing."""
        return False

    @property
    def largest_ratio(self) -> float:
        """A bound on the ratio of the masses of P and Q at every outcome."""
        return 1.0 + self.slots / self.population * math.expm1(self.local_epsilon)

    @property
    def largest_loss(self) -> float:
        """The logarithm of the same, which keeps its digits where the ratio is one but for rounding."""
        return math.log1p(self.slots / self.population * math.expm1(self.local_epsilon))

    @property
    def information(self) -> float:
        """Variance of the privacy loss when it is small."""
        gain = max(_squared(self.laws, np.array(law)) for law in self.laws.others)
        return self.slots * gain / self.population**2


def _squared(laws: CrowdLaws, law: Floats) -> float:
    return float((np.array(laws.difference) ** 2 / law).sum())


def crowd_losses(pair: CrowdPair, *, tolerance: float) -> tuple[Floats, Floats, Floats, float]:
    """A finite pair that dominates every dataset: losses of its outcomes, and masses under P and under Q.

    Args:
        pair: the pair.
        tolerance: relative excess of the variance of the loss, in (0, 0.1], beside what groups of datasets
            cost.

    Returns:
        Three arrays (outcomes,), and the P mass missing from them.
    """
    tolerance = max(tolerance, _FINEST)
    groups = pair.groups if tolerance <= _FINEST else pair.groups // _COARSER
    crowds = list(_crowds(pair))
    if len(crowds) > 3:  # so few blanket reports cost more than fewer groups do
        groups = groups * 3 // 4
    last = _last_loss(pair, crowds)
    scouts = np.union1d(np.linspace(0.0, last, _SCOUTS), np.geomspace(1e-3 * last, last, _SCOUTS))
    rough = [c.mass * c.bound(scouts, share=_SCOUTS_SHARE, groups=_SCOUT_GROUPS) for c in crowds]
    rough_law = hull_outcomes(scouts, np.sum(rough, axis=0))
    deviation = math.sqrt(float(((rough_law.p + rough_law.q) * rough_law.loss**2).sum()))
    losses = scouts
    if deviation > 0:
        step = deviation * math.sqrt(3 * tolerance)
        losses = profile_points(last, step=step, uniform=_UNIFORM_REACH * deviation)
    total = np.zeros(len(losses))
    for crowd in crowds:
        own = max(math.ceil(crowd.mass * groups), _FEWEST_GROUPS)
        total += crowd.mass * crowd.bound(losses, share=tolerance / 2, groups=own)
    right = hull_outcomes(losses, total)
    right, left, rest = joined(right, right, total=1.0)
    return (
        np.concatenate([right.loss, [0.0], -left.loss]),
        np.concatenate([right.p, [rest], left.q]),
        np.concatenate([right.q, [rest], left.p]),
        right.beyond + TAIL,
    )


def _last_loss(pair: CrowdPair, crowds: list[_Crowd]) -> float:
    """Where the profile has ended: at the largest loss, or with less than 1e-40 left of each crowd's."""
    end = pair.largest_loss
    first = 0.01 * math.sqrt(pair.information)
    if end <= first:
        return end
    losses = np.geomspace(first, end, _ENDS)
    bounds = [math.log(c.mass) + c.log_bound(losses, groups=_SCOUT_GROUPS) for c in crowds]
    ended = np.nonzero(np.max(bounds, axis=0) < _LOG_NEGLIGIBLE)[0]
    return float(losses[ended[0]]) if len(ended) else end


def _crowds(pair: CrowdPair) -> Iterator[_Crowd]:
    """The round given how many of the others send blanket reports, or rather a variable that stands for it.

    A probability of 1e-30 is left out.
    """
    theta = float(pair.laws.blanket.sum())
    blanket = (pair.population - 1) * theta
    between = next((steps for most, steps in _RARENESS if blanket < most), ())
    rareness = sorted([0.0, *between, -math.log(TAIL)])
    shares = [_blanket_share(theta, pair.population - 1, rare) for rare in rareness]
    for i in range(len(rareness) - 1):
        mass = math.exp(-rareness[i]) - math.exp(-rareness[i + 1])
        yield _Crowd(pair, theta=theta, least=shares[i + 1], most=shares[i], mass=mass)


def _blanket_share(theta: float, others: int, rareness: float) -> float:
    """θ_u/θ at the u below which u is with probability e^(−rareness): u·(1 − θ + θu)^others."""
    low, high = 0.0, rareness  # of −log u
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        log_probability = -middle + others * math.log1p(theta * math.expm1(-middle))
        low, high = (middle, high) if log_probability > -rareness else (low, middle)
    return math.exp(-high) / (1 + theta * math.expm1(-high))


class _Crowd:
    """Upper bounds on the profile, given an interval that θ_u/θ lies in.

    Args:
        pair: the pair.
        theta: mass of the blanket.
        least, most: the interval.
        mass: its probability.
    """

    def __init__(self, pair: CrowdPair, *, theta: float, least: float, most: float, mass: float) -> None:
        laws, n = pair.laws, pair.population
        self.mass = mass
        self._pure = pair.largest_loss
        self._divisor = n - 1 + 1 / (theta * most)
        self._others, self._kinds = pair.slots - 1, len(laws.others)
        self._second, self._difference = np.array(laws.second), np.array(laws.difference)
        blanket, visible = laws.blanket, pair.slots / n
        floors = [_floor(np.array(law), blanket, least, most) for law in laws.others]
        doubt = self._atoms(np.min(floors, axis=0))
        # One report more is nobody else's, or, if that one is out of sight, the last of the others.
        scale = self._divisor / (1 + (n - 1) * theta * least)
        own = self._atoms(blanket / theta)
        own = (scale * own[0], scale * own[1], visible * own[2])
        rest = (doubt[0], doubt[1], (1 - visible) * doubt[2])
        extra = own if visible == 1 else tuple(np.concatenate(each) for each in zip(own, rest, strict=True))
        self._atoms_of = [*map(self._atoms, floors), doubt, extra]

    def _atoms(self, law: Floats) -> tuple[Floats, Floats, Floats]:
        """(r − r')/a, r'/a − 1, and masses a, for a sub-density a; nothing is likely where a lacks mass."""
        difference = np.append(self._difference / law, 0.0)
        second = np.append(self._second / law - 1, -1.0)
        return difference, second, np.append(law, max(1 - float(law.sum()), 0.0))

    def _draws(self, losses: Floats) -> tuple[list[Draw], Floats]:
        growth = np.expm1(losses)
        draws = [Draw(apart - growth[:, None] * second, mass) for apart, second, mass in self._atoms_of]
        return draws, -self._divisor * growth

    def _mixes(self, groups: int) -> Floats:
        """How many draws of each law make up the sums that bound all datasets, shape (sums, laws).

        Where clients of the kinds number n_1, n_2, …, a group holds the datasets with n_j at least its own
        l_j; the others' clients beyond Σ l_j are in doubt.
        """
        others, kinds = self._others, self._kinds
        groups = min(groups, others + 1)
        last = max(groups - kinds + 1, 0)
        # n_j ≥ i_j·others/groups for i_j = ⌊n_j·groups/others⌋, and these add up to more than groups − kinds.
        steps = np.array([i for i in itertools.product(range(last + 1), repeat=kinds) if sum(i) == last])
        least = np.ceil(steps * (others / groups) * (1 - 1e-12))
        return np.column_stack([least, others - least.sum(axis=1), np.ones(len(least))])

    def bound(self, losses: Floats, *, share: float, groups: int) -> Floats:
        """The envelope at E = e^loss, shape (losses,), from sums smoothed by that share of their variance."""
        draws, shift = self._draws(losses)
        worst = np.zeros(len(losses))
        mixes = self._mixes(groups)
        for alike in np.array_split(mixes, max(1, min(_CONTOURS, len(mixes) // 4))):
            sums = expected_positive_parts(draws=draws, mixes=alike, shift=shift, share=share)
            worst = np.maximum(worst, sums.max(axis=1))
        result = np.minimum(worst / self._divisor * (1 + 1e-14), 1.0)
        # A profile falls, so a bound holds at every larger loss too.
        return np.minimum.accumulate(np.where(losses >= self._pure, 0.0, result))

    def log_bound(self, losses: Floats, *, groups: int) -> Floats:
        """Chernoff's bound on the logarithm of the same."""
        draws, shift = self._draws(losses)
        bounds = [log_positive_part_bounds(draws=draws, mix=mix, shift=shift) for mix in self._mixes(groups)]
        return np.asarray(np.max(bounds, axis=0) - math.log(self._divisor), dtype=np.float64)


def _floor(law: Floats, blanket: Floats, least: float, most: float) -> Floats:
    """The least that a_u = θ_u·w + (1 − θ_u)·V can be, class by class, for θ_u/θ between two numbers."""
    theta = float(blanket.sum())
    rest = law - blanket
    if rest.sum() <= 0:
        return least * blanket
    rest = rest / rest.sum()
    ends = [share * blanket + (1 - share * theta) * rest for share in (least, most)]
    return np.asarray(np.minimum(*ends), dtype=np.float64)
