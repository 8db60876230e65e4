"""Frequency oracles: randomizers of a category whose reports support some categories, their own more often.

Category c is counted by ([y ∈ L_c] - b)/(a - b) with a the probability that a report supports its own
category and b that it supports another one. A mechanism is its likely sets L_c and its sampler. Every report
has just two likelihoods, in the ratio e^ε0, and any two categories have the same law.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar, cast

from typing_extensions import override

from shuffle_plugins.accounting import Blanket, RecordTypes
from shuffle_plugins.accounting.pairs.reports import two_level_atoms
from shuffle_plugins.compressors.hadamard import hadamard_scatter, hadamard_signs, padded_dim
from shuffle_plugins.compressors.quantization import flip_threshold, odds_below
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.core.checks import whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.core.rows import spans
from shuffle_plugins.mechanisms.base import MOST_OUTCOMES, FrequencyOracle
from shuffle_plugins.randomness.chacha import WHOLE
from shuffle_plugins.randomness.sources import Randomness

RANK_BITS = 62

_LARGEST_TABLE = 1 << 12  # of binomials that is looked up; computed beyond


class SupportOracle(FrequencyOracle):
    """An oracle whose reports are counted by the categories that they support."""

    _alike: ClassVar[bool] = True  # any three categories have the same shares

    @property
    @abstractmethod
    def _rates(self) -> tuple[float, float, float, float]:
        """a, 1 - a, b and a - b, none of them a difference that cancels."""

    @property
    @abstractmethod
    def _odds(self) -> Fraction:
        """The largest of a report, as probabilities are rounded."""

    @abstractmethod
    def _share(self, one: int, other: int, third: int) -> float:
        """The blanket's mass of reports that are likely, or not, for each of three categories."""

    @property
    def _exact(self) -> bool:
        """False where probabilities, multiples of 2**-62, do not follow ε0.

        The oracle is then a post-processing of the one at ε0, whose blanket holds as a bound.
        """
        return math.log1p(float(self._odds - 1)) >= self.local_epsilon * (1 - 1e-6)

    @override
    def blanket(self) -> Blanket:
        """The masses of its likely sets. Of two categories there is no third record, which hides nobody."""
        epsilon, thirds = self.local_epsilon, self._exact and self.dim > 2
        shares = {kinds: self._share(*kinds) for kinds in itertools.product((0, 1), repeat=3)}
        law = Blanket(
            local_epsilon=epsilon,
            differing=shares[1, 0, 0] + shares[1, 0, 1],
            low=shares[0, 0, 0] + shares[0, 0, 1],
            high=shares[1, 1, 0] + shares[1, 1, 1],
            outside=shares[1, 0, 0] if thirds else 0.0,
            exact=self._exact,
        )
        if not self._alike:
            return law
        instances = (two_level_atoms(local_epsilon=epsilon, shares=shares),) if thirds else ()
        types = RecordTypes.two_level(local_epsilon=epsilon, shares=shares)
        return replace(law, instances=instances, others=types)

    @abstractmethod
    def _supporters(self, reports: Reports) -> Tensor:
        """How many reports, checked, support each category, (dim,)."""

    @property
    @override
    def worst_variance(self) -> float:
        own, missed, other, gain = self._rates
        return (own * missed + (self.dim - 1) * other * (1 - other)) / gain**2

    @override
    def sum(self, reports: Reports) -> Tensor:
        _, _, other, gain = self._rates
        return (self._supporters(reports).double() - len(reports) * other) / gain


@dataclass(frozen=True)
class Mixture:
    r"""With probability γ a report is uniform among those likely for x, otherwise uniform among all.

    γ is ``kept``/2**62, rounded down, so that odds never exceed e^ε0; ``share`` is the part of all reports
    that is likely for x.
    """

    kept: int
    share: Fraction

    @classmethod
    def of(cls, local_epsilon: float, *, share: Fraction) -> Mixture:
        """The largest γ within ε0; at least 2**-62."""
        weight = (odds_below(checks.local_epsilon(local_epsilon)) - 1) * share
        kept = math.floor(WHOLE * weight / (1 + weight))
        if kept < 1:
            raise ValueError(
                f"local_epsilon={local_epsilon!r} leaves a true report a probability below 2**-62 when only "
                f"{float(share):.3g} of the reports are likely: raise it, or use fewer categories"
            )
        return cls(kept=kept, share=share)

    @property
    def truth(self) -> float:
        """γ, the probability of a report drawn from those likely for the category."""
        return self.kept / WHOLE

    @property
    def noise(self) -> float:
        """1 - γ, without cancellation."""
        return (WHOLE - self.kept) / WHOLE

    @property
    def odds(self) -> Fraction:
        """Of a likely report over another one, at most e^ε0."""
        return 1 + Fraction(self.kept, WHOLE - self.kept) / self.share

    def truthful(self, count: int, randomness: Randomness, device: torch.device | str) -> Tensor:
        """True with probability γ, (count,) bool."""
        return randomness.bernoulli(torch.tensor(self.kept, device=device).expand(count))


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOracle(SupportOracle):
    """An oracle whose report, one of N, is uniform among those likely for x with probability γ, else among
    all.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mixture  # noqa: B018  (refuses what it cannot be)

    @cached_property
    def _mixture(self) -> Mixture:
        return Mixture.of(self.local_epsilon, share=self._shares[0])

    @property
    @abstractmethod
    def _shares(self) -> tuple[Fraction, Fraction]:
        """The part of all reports that is likely for x, and that part of these that is likely for another."""

    @property
    @abstractmethod
    def _count(self) -> int:
        """N; a report that is one number below it is one of all there are."""

    @abstractmethod
    def _likely(self, reports: Reports, category: int) -> Tensor:
        """Which reports are likely for a category, bool (reports,)."""

    @property
    @override
    def _odds(self) -> Fraction:
        return self._mixture.odds

    @property
    @override
    def _rates(self) -> tuple[float, float, float, float]:
        truth, noise, (share, overlap) = self._mixture.truth, self._mixture.noise, self._shares
        other = truth * float(overlap) + noise * float(share)
        return (truth + noise * float(share), noise * float(1 - share), other, truth * float(1 - overlap))

    @override
    def outcomes(self) -> Reports | None:
        return self.layout.reports(torch.arange(self._count)) if self._count <= MOST_OUTCOMES else None

    @override
    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        likely = self._likely(reports, int(self.check_categories(x.reshape(1))[0]))
        uniform, more = math.log(self._mixture.noise), math.log1p(float(self._mixture.odds - 1))
        return likely.double().mul_(more).add_(uniform - math.log(self._count))

    def _truthful(self, x: Tensor, randomness: Randomness) -> Tensor:
        return self._mixture.truthful(len(x), randomness, x.device)


class HadamardResponse(MixtureOracle):
    """Hadamard response of one block (Acharya, Sun, Zhang 2019, section 4): best for small ε0, in few bits.

    Category x stands for row x + 1 of the Hadamard matrix of size S, the smallest power of two above K. A
    report is a column y; the half of them where :math:`H_{x+1,y} = 1` has odds e^ε0 over the rest.
    """

    name: ClassVar[str] = "hadamard-response"
    _alike = False

    @property
    @override
    def _count(self) -> int:
        return padded_dim(self.dim + 1)

    @property
    @override
    def _shares(self) -> tuple[Fraction, Fraction]:
        return Fraction(1, 2), Fraction(1, 2)

    @property
    @override
    def layout(self) -> ReportLayout:
        return ReportLayout(self.name, self.dim, (FieldLayout((self._count - 1).bit_length()),))

    @override
    def _share(self, one: int, other: int, third: int) -> float:
        # The third is the product of two rows: it hides nobody, as it is unlikely where just one is likely.
        return 1 / (2 * (math.exp(self.local_epsilon) + 1)) if third == (one == other) else 0.0

    @override
    def _supporters(self, reports: Reports) -> Tensor:
        columns = self._columns(reports)
        ones = torch.ones(len(columns), dtype=torch.float64, device=columns.device)
        return (hadamard_scatter(columns, ones, dim=self.dim + 1)[1:] + len(columns)) / 2

    @override
    def _likely(self, reports: Reports, category: int) -> Tensor:
        columns = self._columns(reports)
        return hadamard_signs(torch.tensor(category + 1, device=columns.device), columns) > 0

    def _columns(self, reports: Reports) -> Tensor:
        return self.read_reports(reports, self._count)[0]

    @override
    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        rows = x + 1
        columns = randomness.integers(self._count, len(x), device=x.device)
        wrong = self._truthful(x, randomness) & (hadamard_signs(rows, columns) < 0)
        # Flipping a column's bit at the row's lowest one changes the sign: it maps one half onto the other.
        return self.layout.reports(torch.where(wrong, columns ^ (rows & -rows), columns))


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalHashing(MixtureOracle):
    r"""Optimal local hashing (Wang, Blocki, Li, Jha 2017), with a hash family that is exactly uniform.

    A client draws a hash :math:`h(x) = \sum_j a_j x_j \bmod g` of the bits of its category, and sends its
    coefficients a with a value in [0, g): h(x) with odds e^ε0 over any other. Three categories' hash values
    are as those of a random function (``docs/proofs/mechanisms.md``, section 3). Summing takes clients x dim
    comparisons.

    Attributes:
        buckets: g, range of the hash, in [2, 2**31]; the best one, about e^ε0 + 1, by default.
    """

    name: ClassVar[str] = "local-hashing"
    buckets: Annotated[int, whole_number(at_least=2, at_most=1 << 31)] | None = None

    def __post_init__(self) -> None:
        if self.buckets is None:
            odds = math.exp(checks.local_epsilon(self.local_epsilon))
            object.__setattr__(self, "buckets", max(round(min(odds, 10**9)) + 1, 2))
        super().__post_init__()

    @property
    def _buckets(self) -> int:
        return cast(int, self.buckets)

    @property
    def _digits(self) -> int:
        return (self.dim - 1).bit_length()

    @property
    @override
    def _shares(self) -> tuple[Fraction, Fraction]:
        return Fraction(1, self._buckets), Fraction(1, self._buckets)

    @property
    @override
    def layout(self) -> ReportLayout:
        field = FieldLayout((self._buckets - 1).bit_length(), self._digits + 1)
        return ReportLayout(self.name, self.dim, (field,))

    @override
    def _share(self, one: int, other: int, third: int) -> float:
        g = self._buckets
        met = (1 - 1 / g, 1 / g)
        return g / (math.exp(self.local_epsilon) + g - 1) * met[one] * met[other] * met[third]

    @override
    def _supporters(self, reports: Reports) -> Tensor:
        coefficients, values = self._parts(reports)
        low = self._digits // 2
        counts = torch.zeros(1 << self._digits, dtype=torch.int64, device=values.device)
        # h(c) = z is met in the middle: the upper bits' part of h(c) equals z less the lower bits' part.
        compact = torch.int16 if self._buckets <= 1 << 15 else torch.int64
        rows = max(1, (1 << 20) // len(counts))
        for start in range(0, len(values), rows):
            part = coefficients[start : start + rows]
            upper = self._hashes(part[:, low:], torch.zeros_like(part[:, :1])).to(compact)
            lower = self._hashes(-part[:, :low], values[start : start + rows].unsqueeze(1)).to(compact)
            same = upper.unsqueeze(2) == lower.unsqueeze(1)
            counts += _column_counts(same.view(torch.uint8).reshape(len(part), -1))
        return counts[: self.dim]

    @override
    def outcomes(self) -> Reports | None:
        if self._count > MOST_OUTCOMES:
            return None
        powers = self._buckets ** torch.arange(self._digits, -1, -1)
        return self.layout.reports(torch.arange(self._count).unsqueeze(1) // powers % self._buckets)

    @property
    @override
    def _count(self) -> int:
        return int(self._buckets ** (self._digits + 1))

    @override
    def _likely(self, reports: Reports, category: int) -> Tensor:
        coefficients, values = self._parts(reports)
        return self._hash(coefficients, torch.full_like(values, category)) == values

    def _hash(self, coefficients: Tensor, x: Tensor) -> Tensor:
        """Each client's hash of its own category, (clients,)."""
        digits = x.unsqueeze(1) >> torch.arange(self._digits, device=x.device) & 1
        return (coefficients * digits).sum(dim=1).remainder_(self._buckets)

    def _hashes(self, coefficients: Tensor, first: Tensor) -> Tensor:
        """Each client's ``first`` plus its hash of every number of as many bits as coefficients, doubling."""
        found = first
        for column in coefficients.unbind(dim=1):
            found = torch.cat([found, found + column.unsqueeze(1)], dim=1)
        return found.remainder(self._buckets)

    def _parts(self, reports: Reports) -> tuple[Tensor, Tensor]:
        (numbers,) = self.read_reports(reports, self._buckets)
        return numbers[:, :-1], numbers[:, -1]

    @override
    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        coefficients = randomness.integers(self._buckets, (len(x), self._digits), device=x.device)
        uniform = randomness.integers(self._buckets, len(x), device=x.device)
        values = torch.where(self._truthful(x, randomness), self._hash(coefficients, x), uniform)
        return self.layout.reports(torch.cat([coefficients, values.unsqueeze(1)], dim=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class SubsetSelection(MixtureOracle):
    """Subset selection (Wang et al. 2016; Ye, Barg 2018): the least error of the oracles here, in more bits.

    A report is a set of s categories; those with the true one have odds e^ε0 over the rest. On the wire a set
    is its rank, ceil(log2 C(K, s)) bits, while that is at most 62; else its s elements or K flags, whichever
    is shorter.

    Attributes:
        size: s, categories in a report, in [1, K/2]; the best one, about K/(e^ε0 + 1), by default.
    """

    name: ClassVar[str] = "subset-selection"
    size: int | None = None

    def __post_init__(self) -> None:
        if self.size is None:
            best = round(checks.dim(self.dim) / (math.exp(checks.local_epsilon(self.local_epsilon)) + 1))
            object.__setattr__(self, "size", min(max(best, 1), self.dim - 1))
        super().__post_init__()

    @property
    @override
    def _shares(self) -> tuple[Fraction, Fraction]:
        size = checks.whole("size", self.size, at_most=self.dim // 2)
        return Fraction(size, self.dim), Fraction(size - 1, self.dim - 1)

    @property
    def _size(self) -> int:
        return cast(int, self.size)

    @cached_property
    def _rank_bits(self) -> int | None:
        return rank_bits(self.dim, self._size)

    @property
    def _index_bits(self) -> int:
        return (self.dim - 1).bit_length()

    @property
    def _flagged(self) -> bool:
        return self._rank_bits is None and self._size * self._index_bits > self.dim

    @property
    @override
    def layout(self) -> ReportLayout:
        if self._rank_bits is not None:
            field = FieldLayout(self._rank_bits)
        else:
            field = FieldLayout(1, self.dim) if self._flagged else FieldLayout(self._index_bits, self._size)
        return ReportLayout(self.name, self.dim, (field,))

    @override
    def blanket(self) -> Blanket:
        return super().blanket() if self.dim > 2 else Blanket.generic(self.local_epsilon, exact=self._exact)

    @override
    def _share(self, one: int, other: int, third: int) -> float:
        k, s, wanted = self.dim, self._size, one + other + third
        chance = 1 / (1 + math.expm1(self.local_epsilon) * s / k)
        for i in range(3):  # the wanted ones first
            taken = s - min(i, wanted)
            chance *= (taken if i < wanted else k - i - taken) / (k - i)
        return max(chance, 0.0)

    @override
    def _supporters(self, reports: Reports) -> Tensor:
        if self._flagged:
            return _column_counts(self._flags(reports))
        return torch.bincount(self._elements(reports).reshape(-1), minlength=self.dim)

    @property
    @override
    def _count(self) -> int:
        return math.comb(self.dim, self._size)

    @override
    def outcomes(self) -> Reports | None:
        return None if self._rank_bits is None else super().outcomes()

    @override
    def _likely(self, reports: Reports, category: int) -> Tensor:
        if self._flagged:
            return self._flags(reports)[:, category] > 0
        return (self._elements(reports) == category).any(dim=1)

    def _elements(self, reports: Reports) -> Tensor:
        if self._rank_bits is not None:
            (ranks,) = self.read_reports(reports, self._count)
            return unrank(ranks, things=self.dim, size=self._size)
        (elements,) = self.read_reports(reports, self.dim)
        if bool((elements[:, 1:] <= elements[:, :-1]).any()):
            raise ValueError("a report is no ascending list of categories: it was altered or forged; drop it")
        return elements

    def _flags(self, reports: Reports) -> Tensor:
        self.layout.check(reports, 2)
        flags = reports.fields[0].values
        if bool((_row_counts(flags) != self._size).any()):
            raise ValueError(
                f"a report is no set of {self._size} categories: it was altered or forged; drop it"
            )
        return flags

    @override
    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        anywhere = randomness.integers(self.dim, len(x), device=x.device)
        anchors = torch.where(self._truthful(x, randomness), x, anywhere)
        if self._flagged:
            flags = flags_through(anchors, things=self.dim, size=self._size, randomness=randomness)
            return self.layout.reports(flags)
        elements = elements_through(anchors, things=self.dim, size=self._size, randomness=randomness)
        sent = elements if self._rank_bits is None else rank(elements, things=self.dim)
        return self.layout.reports(sent)


@dataclass(frozen=True, kw_only=True, eq=False)
class KRandomizedResponse(SubsetSelection):
    """K-ary randomized response (Kairouz, Bonawitz, Ramage 2016; thesis Table 7.1): a set of one category.

    The true category has odds e^ε0 over any other one. The best oracle where K is below about e^ε0.
    """

    name: ClassVar[str] = "k-rr"
    _alike = False
    size: int = field(init=False, repr=False, default=1)

    @override
    def blanket(self) -> Blanket:
        return super().blanket() if self.dim > 2 else Blanket.bit(self.local_epsilon, exact=self._exact)

    @override
    def _elements(self, reports: Reports) -> Tensor:
        return self.read_reports(reports, self.dim)[0].unsqueeze(1)

    @override
    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        truthful = self._truthful(x, randomness)
        uniform = randomness.integers(self.dim, len(x), device=x.device)
        return self.layout.reports(torch.where(truthful, x, uniform))


def rank_bits(things: int, size: int) -> int | None:
    """Bits of a rank among the sets of ``size`` of ``things``; None if they are more than 62."""
    choices = math.lgamma(things + 1) - math.lgamma(size + 1) - math.lgamma(things - size + 1)
    if size > 1 and choices > 2 * RANK_BITS * math.log(2):
        return None
    bits = (math.comb(things, size) - 1).bit_length()
    return bits if bits <= RANK_BITS else None


def rank(sets: Tensor, *, things: int) -> Tensor:
    """Rank of each set, (clients, size) ascending, in colexicographic order: Σ C(c_i, i + 1)."""
    ranks = sets.new_zeros(len(sets))
    for i in range(sets.shape[1]):
        ranks += _choices(sets[:, i], i + 1, things=things)
    return ranks


def unrank(ranks: Tensor, *, things: int, size: int) -> Tensor:
    """The sets of the given ranks, int64 (clients, size), each row ascending; the inverse of :func:`rank`."""
    left = ranks.clone()
    sets = torch.empty(len(ranks), size, dtype=torch.int64, device=ranks.device)
    for i in range(size - 1, -1, -1):
        sets[:, i] = _largest(left, i + 1, things=things)
        left -= _choices(sets[:, i], i + 1, things=things)
    return sets


def _largest(ranks: Tensor, size: int, *, things: int) -> Tensor:
    """The largest c below ``things`` with C(c, size) at most the rank."""
    if things <= _LARGEST_TABLE:
        return torch.searchsorted(_table(things, size).to(ranks.device), ranks, right=True) - 1
    low, high = torch.full_like(ranks, size - 1), torch.full_like(ranks, things)
    for _ in range(things.bit_length()):
        middle = (low + high) // 2
        fits = _binomials(middle, size) <= ranks
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return low


def _choices(elements: Tensor, size: int, *, things: int) -> Tensor:
    if things <= _LARGEST_TABLE:
        return _table(things, size).to(elements.device)[elements]
    return _binomials(elements, size)


@lru_cache(maxsize=256)
def _table(things: int, size: int) -> Tensor:
    return _binomials(torch.arange(things), size)


def _binomials(things: Tensor, size: int) -> Tensor:
    """C(things, size) of each int64 entry, exact where C(things, i) fits in 62 bits for all i up to size."""
    found = torch.ones_like(things)
    for i in range(size):
        left = things - i
        found = found // (i + 1) * left + found % (i + 1) * left // (i + 1)
    return found


def elements_through(anchors: Tensor, *, things: int, size: int, randomness: Randomness) -> Tensor:
    """A uniform set of ``size`` of ``things`` among those with the anchor, (clients, size) ascending.

    The other elements are Floyd's draw (Bentley, Floyd 1987): one integer each.
    """
    chosen = torch.zeros(len(anchors), size, dtype=torch.int64, device=anchors.device)
    for i, last in enumerate(range(things - size, things - 1), start=1):
        drawn = randomness.integers(last + 1, len(anchors), device=anchors.device) + 1
        taken = (chosen[:, :i] == drawn.unsqueeze(1)).any(dim=1)
        chosen[:, i] = torch.where(taken, last + 1, drawn)
    return chosen.add_(anchors.unsqueeze(1)).remainder_(things).sort(dim=1).values


def flags_through(anchors: Tensor, *, things: int, size: int, randomness: Randomness) -> Tensor:
    """The same draw as flags 0 and 1, uint8 (clients, things), for sets that are not small.

    The others are the first ``size`` - 1 distinct values of a stream of uniform ones.
    """
    flags = torch.zeros(len(anchors), things, dtype=torch.uint8, device=anchors.device)
    flags.scatter_(1, anchors.unsqueeze(1), 1)
    rows = max(1, (1 << 18) // size)  # which fit a cache
    for start in range(0, len(anchors), rows):
        part, first = flags[start : start + rows], anchors[start : start + rows]
        missing = size - _row_counts(part)
        while bool(missing.any()):
            clients = torch.repeat_interleave(missing)
            drawn = randomness.integers(things - 1, len(clients), device=anchors.device)
            part[clients, (drawn + first[clients]).add_(1).remainder_(things)] = 1
            missing = size - _row_counts(part)
    return flags


def _column_counts(flags: Tensor) -> Tensor:
    """How many ones each column has, int64, without widening all of them."""
    counts = torch.zeros(flags.shape[1], dtype=torch.int64, device=flags.device)
    for start in range(0, len(flags), 255):  # ones that a byte can count
        counts += flags[start : start + 255].sum(dim=0, dtype=torch.uint8)
    return counts


def _row_counts(flags: Tensor) -> Tensor:
    return _column_counts(flags.T)


class UnaryEncoding(SupportOracle):
    """A bit for each category: the true one is set with probability a, every other one with b.

    The blanket is the report's probability as if nobody's bit were the true one, times (1 - a)/(1 - b); only
    a report of all ones has none that is unlikely.
    """

    @cached_property
    @abstractmethod
    def _thresholds(self) -> tuple[int, int]:
        """a and b, in units of 2**-62."""

    @property
    @abstractmethod
    def _chances(self) -> tuple[float, float]:
        """1 - a and b, in real arithmetic."""

    @property
    @override
    def _odds(self) -> Fraction:
        own, other = self._thresholds
        return Fraction(own * (WHOLE - other), other * (WHOLE - own))

    @override
    def _share(self, one: int, other: int, third: int) -> float:
        missed, likely = self._chances
        bits = (1 - likely, likely)
        return missed / (1 - likely) * bits[one] * bits[other] * bits[third]

    @override
    def blanket(self) -> Blanket:
        law, (missed, likely) = super().blanket(), self._chances
        all_ones = missed / (1 - likely) * likely ** max(self.dim, 3)
        return replace(law, low=law.low + all_ones * math.exp(self.local_epsilon), high=law.high - all_ones)

    @property
    @override
    def layout(self) -> ReportLayout:
        return ReportLayout(self.name, self.dim, (FieldLayout(1, self.dim),))

    @property
    @override
    def _rates(self) -> tuple[float, float, float, float]:
        own, other = self._thresholds
        return own / WHOLE, (WHOLE - own) / WHOLE, other / WHOLE, (own - other) / WHOLE

    @override
    def _supporters(self, reports: Reports) -> Tensor:
        return _column_counts(self._flags(reports))

    @override
    def outcomes(self) -> Reports | None:
        if 1 << self.dim > MOST_OUTCOMES:
            return None
        words = torch.arange(1 << self.dim).unsqueeze(1)
        return self.layout.reports((words >> torch.arange(self.dim) & 1).to(torch.uint8))

    @override
    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        category = int(self.check_categories(x.reshape(1))[0])
        flags = self._flags(reports)
        own = flags[:, category].double()
        found = torch.zeros_like(own)
        true, other = self._thresholds
        for ones, bits, threshold in (
            (own, 1, true),
            (_row_counts(flags).double() - own, self.dim - 1, other),
        ):
            found += ones * math.log(threshold / WHOLE)
            found += (bits - ones) * math.log((WHOLE - threshold) / WHOLE)
        return found

    def _flags(self, reports: Reports) -> Tensor:
        self.layout.check(reports, 2)
        return reports.fields[0].values

    @override
    def randomize_categories(self, x: Tensor, randomness: Randomness) -> Reports:
        own, other = self._thresholds
        bits = torch.empty(len(x), self.dim, dtype=torch.uint8, device=x.device)
        for start, stop in spans(len(x), width=self.dim, device=x.device):
            thresholds = torch.full((stop - start, self.dim), other, device=x.device)
            thresholds.scatter_(1, x[start:stop].unsqueeze(1), own)
            bits[start:stop] = randomness.bernoulli(thresholds)
        return self.layout.reports(bits)


class Rappor(UnaryEncoding):
    """Symmetric unary encoding, basic one-time RAPPOR (Erlingsson, Pihur, Korolova 2014; thesis Table 7.1).

    Every bit is flipped with probability :math:`1/(e^{ε_0/2} + 1)`, as two categories differ in two bits.
    """

    name: ClassVar[str] = "rappor"

    @cached_property
    @override
    def _thresholds(self) -> tuple[int, int]:
        other = flip_threshold(Fraction(self.local_epsilon) / 2)
        return WHOLE - other, other

    @property
    @override
    def _chances(self) -> tuple[float, float]:
        flipped = 1 / (math.exp(self.local_epsilon / 2) + 1)
        return flipped, flipped


class OptimalUnaryEncoding(UnaryEncoding):
    """Optimal unary encoding (Wang, Blocki, Li, Jha 2017): a = 1/2, b = 1/(e^ε0 + 1)."""

    name: ClassVar[str] = "oue"

    @cached_property
    @override
    def _thresholds(self) -> tuple[int, int]:
        return WHOLE // 2, flip_threshold(self.local_epsilon)

    @property
    @override
    def _chances(self) -> tuple[float, float]:
        return 0.5, 1 / (math.exp(self.local_epsilon) + 1)
