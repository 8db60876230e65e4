"""The most frequent values of a large domain, found prefix by prefix with counted unary encoding."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from scipy import special, stats
from torch import Tensor

from shuffle_plugins.accounting import Adversary, BitEncoding, CountedRound, Sampling
from shuffle_plugins.core import Reports, checks
from shuffle_plugins.core.ranges import Positive, Ranged
from shuffle_plugins.core.rows import checked_categories
from shuffle_plugins.protocols.unary import CountedUnary, Encoding
from shuffle_plugins.randomness.sources import Randomness, secure

_MOST_BITS = 62
_TAILS = 1e-12  # of a count's law, left out where it is convolved, and added to what is bounded


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PrefixQuestion:
    """What clients are asked in one round: which prefix their value has, of those that are still candidates.

    Attributes:
        number: of the round, from 0.
        kept: prefixes that survived the round before, increasing, int64 (prefixes,).
        kept_bits: their length; 0 in the first round, where there is one, the empty prefix.
        asked_bits: length of the prefixes that are asked for: each kept prefix with every continuation.
        cut: rounds before this in which more prefixes were frequent enough than could be kept.
    """

    number: int
    kept: Tensor
    kept_bits: int
    asked_bits: int
    cut: int = 0

    def candidates(self) -> Tensor:
        """The prefixes asked for, in the order of the bits of a report, int64 (candidates,)."""
        ends = torch.arange(1 << (self.asked_bits - self.kept_bits))
        return ((self.kept.unsqueeze(1) << (self.asked_bits - self.kept_bits)) + ends).flatten()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoundValues:
    """Values that many clients hold, the most frequent first.

    Attributes:
        values: int64 (values,).
        counts: unbiased estimates of how many clients hold each, float64 (values,); of those who answered the
            last round.
        cut: rounds in which more prefixes were frequent enough than could be kept; the rarer ones were left
            out.
    """

    values: Tensor
    counts: Tensor
    cut: int


@dataclass(frozen=True, kw_only=True)
class HeavyHitters(Ranged):
    """Finds the values of [0, 2**bits) that many clients hold, without asking about every value.

    Round by round, clients are asked for longer prefixes of their value: in the first round for its leading
    bits, then for the continuations of the prefixes that were frequent. A client's answer is a vector of
    ``length`` bits, that of its prefix set, or none; it flips them all and only sums are seen
    (:class:`CountedUnary`). Rounds are composed by the accountant: what is asked may depend on earlier
    answers in any way.

    All clients answer all rounds. Noise then grows with the root of the number of rounds, for counts of
    everybody; if each client answered one round only, in groups, the same noise would stand beside counts of
    a group (``groups=True``, to compare).

    Data are integers (clients,).

    Attributes:
        bits: length of a value.
        cohort: n, how many clients there are.
        bit_epsilon, encoding, max_weight, honest_fraction: as of :class:`CountedUnary`.
        length: bits of an answer, a power of two.
        width: prefixes that are kept from round to round, at most; a power of two below ``length``. In the
            first round all prefixes of log2(length) bits are asked for, then each kept prefix with its
            length/width continuations.
        false_positives: expected number of prefixes that nobody holds which survive, in all rounds together.
        groups: whether a client answers one round only.
    """

    name: ClassVar[str] = "heavy-hitters"

    bits: int
    cohort: int
    bit_epsilon: float
    encoding: Encoding = BitEncoding.SYMMETRIC
    length: int = 1 << 16
    width: int = 1 << 8
    false_positives: Positive = 0.1
    groups: bool = False
    max_weight: int | None = None
    honest_fraction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_plan(bits=self.bits, length=self.length, width=self.width)
        _ = self.counts

    @classmethod
    def calibrated(
        cls,
        *,
        bits: int,
        cohort: int,
        epsilon: float,
        delta: float,
        length: int = 1 << 16,
        width: int | None = None,
        false_positives: float = 0.1,
        groups: bool = False,
        **of_counts: Any,
    ) -> Self:
        """The search of the least noise whose certified ε at δ, of all rounds, is at most ``epsilon``.

        Args:
            bits, cohort, length, false_positives, groups: as the fields.
            width: as the field; by default about a thousandth of the cohort, at least 256.
            epsilon: target for the whole search, replace-one.
            delta: δ of the target.
            of_counts: ``encoding``, ``honest_fraction`` and ``failure``, as of :class:`CountedUnary`.
        """
        if width is None:
            wanted = max(cohort // 1_000, 256) if isinstance(cohort, int) else 256
            width = min(1 << (wanted - 1).bit_length(), length // 2)
        _check_plan(bits=bits, length=length, width=width)
        rounds = _rounds(bits=bits, length=length, width=width)
        counts = CountedUnary.calibrated(
            length=length,
            cohort=cohort // rounds if groups else cohort,
            epsilon=epsilon,
            delta=delta,
            num_steps=1 if groups else rounds,
            **of_counts,
        )
        return cls(
            bits=bits,
            cohort=cohort,
            bit_epsilon=counts.bit_epsilon,
            encoding=counts.encoding,
            length=length,
            width=width,
            false_positives=false_positives,
            groups=groups,
            max_weight=counts.max_weight,
            honest_fraction=counts.honest_fraction,
        )

    # -- what it costs ----------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """Rounds of questions and answers."""
        return _rounds(bits=self.bits, length=self.length, width=self.width)

    @property
    def num_steps(self) -> int:
        """How many of :meth:`round` the search costs: a pass in groups is one."""
        return 1 if self.groups else self.rounds

    @property
    def clients_per_round(self) -> int:
        """Clients who answer a round."""
        return self.cohort // self.rounds if self.groups else self.cohort

    @property
    def counts(self) -> CountedUnary:
        """The protocol of one round."""
        return CountedUnary(
            length=self.length,
            cohort=self.clients_per_round,
            bit_epsilon=self.bit_epsilon,
            encoding=self.encoding,
            max_weight=self.max_weight,
            honest_fraction=self.honest_fraction,
        )

    def round(self, *, adversary: Adversary = Adversary.MODEL_OBSERVER) -> CountedRound:
        """The round for an accountant, which takes :attr:`num_steps` of it before anything is released."""
        alone = self.counts.round(adversary=adversary)
        if not self.groups:
            return alone
        return replace(alone, population=self.cohort, sampling=Sampling.SINGLE_PASS)

    # -- what it finds ----------------------------------------------------------------------------------

    @property
    def threshold(self) -> int:
        """The sum of a bit from which its prefix survives: the least that keeps to ``false_positives``."""
        rate = self.false_positives / (self.rounds * self.length)
        clients, other = self.clients_per_round, self.counts.other
        return bisect_left(
            range(clients + 1),
            True,
            key=lambda total: float(special.bdtrc(total - 1, clients, other)) <= rate,
        )

    def detectable(self, *, confidence: float = 0.95) -> int:
        """The least number of clients whose common value is found with this confidence.

        It holds as long as no more than ``width`` prefixes survive a round, as
        :attr:`FoundValues.cut` tells. In groups it is a number of all clients, if groups hold equal shares.
        """
        missed = (1 - checks.confidence(confidence)) / self.rounds
        if self._missing(self.clients_per_round) > missed:
            raise ValueError("not even a value that everybody holds is found: ask for a larger ε or δ")
        held = range(1, self.clients_per_round)
        least = 1 + bisect_left(held, True, key=lambda clients: self._missing(clients) <= missed)
        return least * (self.rounds if self.groups else 1)

    def _missing(self, held: int) -> float:
        """Probability that the sum of a bit held by so many clients stays below the threshold; rounded up."""
        counts, threshold = self.counts, self.threshold
        own = stats.binom(held, counts.own)
        others = stats.binom(self.clients_per_round - held, counts.other)
        low = max(int(own.ppf(_TAILS / 2)) - 1, 0)
        high = min(int(own.isf(_TAILS / 2)) + 1, held)
        kept = torch.arange(low, high + 1).numpy()
        return min(1.0, float((own.pmf(kept) * others.cdf(threshold - 1 - kept)).sum()) + _TAILS)

    def first(self) -> PrefixQuestion:
        """The question of the first round."""
        return PrefixQuestion(
            number=0,
            kept=torch.zeros(1, dtype=torch.int64),
            kept_bits=0,
            asked_bits=min(self.bits, self.length.bit_length() - 1),
        )

    def answers(self, x: Tensor, question: PrefixQuestion) -> Tensor:
        """Which bit of its answer each client sets, int64 (clients,); -1 for none."""
        values = checked_categories(x, categories=1 << self.bits)
        prefix = values >> (self.bits - question.kept_bits)
        place = torch.searchsorted(question.kept, prefix).clamp(max=len(question.kept) - 1)
        more = question.asked_bits - question.kept_bits
        end = (values >> (self.bits - question.asked_bits)) & ((1 << more) - 1)
        return torch.where(question.kept[place] == prefix, (place << more) + end, -1)

    def randomize(
        self, x: Tensor, question: PrefixQuestion, *, randomness: Randomness | None = None
    ) -> Reports:
        """Each client's answer, flipped. Add reports up with ``counts.total``."""
        return self.counts.randomize_held(self.answers(x, question), randomness=randomness)

    def following(
        self, total: Tensor, question: PrefixQuestion, *, reports: int
    ) -> PrefixQuestion | FoundValues:
        """The next question, or, after the last round, what was found.

        Args:
            total: sums of the answers' bits, from ``counts.total``.
            question: what was asked.
            reports: how many clients answered. The threshold is that of everybody who should; fewer make
                fewer false positives, and more misses.
        """
        estimates = self.counts.estimate(total, reports=reports)
        candidates = question.candidates()
        chosen = (total[: len(candidates)].cpu() >= self.threshold).nonzero().squeeze(1)
        chosen = chosen[estimates[chosen].argsort(descending=True)]
        if question.asked_bits == self.bits or not len(chosen):
            return FoundValues(values=candidates[chosen], counts=estimates[chosen], cut=question.cut)
        kept = chosen[: self.width]
        more = (self.length // self.width).bit_length() - 1
        return PrefixQuestion(
            number=question.number + 1,
            kept=candidates[kept.sort().values],
            kept_bits=question.asked_bits,
            asked_bits=min(self.bits, question.asked_bits + more),
            cut=question.cut + (len(chosen) > self.width),
        )

    def find(self, x: Tensor, *, randomness: Randomness | None = None) -> FoundValues:
        """The whole search, for a host that simulates all clients. Record its cost first.

        Args:
            x: everybody's values, integers (clients,).
            randomness: the clients' and, in groups, of who answers when; a fresh ``SecureRandomness`` by
                default.
        """
        values = checked_categories(x, categories=1 << self.bits)
        if len(values) != self.cohort:
            raise ValueError(f"the search is for {self.cohort} clients, got {len(values)}")
        source = secure(randomness)
        if self.groups:
            values = values[source.permutation(len(values))]
        question = self.first()
        while True:
            size = self.clients_per_round
            start = question.number * size if self.groups else 0
            answering = self.answers(values[start : start + size], question)
            total = self.counts.share_held(answering, randomness=source)
            found = self.following(total, question, reports=size)
            if isinstance(found, FoundValues):
                return found
            question = found


def _check_plan(*, bits: int, length: int, width: int) -> None:
    checks.whole("bits", bits, at_most=_MOST_BITS)
    checks.whole("length", length, at_least=2, at_most=1 << 24)
    checks.whole("width", width, at_most=length // 2)
    for name, value in (("length", length), ("width", width)):
        if value & (value - 1):
            raise ValueError(f"{name} must be a power of two, got {value}")


def _rounds(*, bits: int, length: int, width: int) -> int:
    left = max(0, bits - (length.bit_length() - 1))
    return 1 + math.ceil(left / ((length // width).bit_length() - 1))
