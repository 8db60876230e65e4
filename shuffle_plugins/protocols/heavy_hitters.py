"""The most frequent values of a large domain, found prefix by prefix by histograms of few messages."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from shuffle_plugins.accounting import Adversary, Round, Sampling
from shuffle_plugins.core import Reports, checks
from shuffle_plugins.core.checks import Count, Positive, Ranged, whole_number
from shuffle_plugins.core.rows import checked_categories
from shuffle_plugins.protocols.coins import HistogramSum
from shuffle_plugins.protocols.decoys import DecoyHistogram
from shuffle_plugins.protocols.laplace import LaplaceHistogram
from shuffle_plugins.randomness.sources import Randomness, secure

PrefixHistogram = DecoyHistogram | LaplaceHistogram | HistogramSum
"""Histograms whose noise does not depend on what clients hold, and to which a client may add nothing."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PrefixQuestion:
    """What clients are asked in one round: which prefix their value has, of those that are still candidates.

    Attributes:
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
        """The prefixes asked for, by the number of their category, int64 (candidates,)."""
        ends = torch.arange(1 << (self.asked_bits - self.kept_bits))
        return ((self.kept.unsqueeze(1) << (self.asked_bits - self.kept_bits)) + ends).flatten()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoundValues:
    """Values that many clients hold, the most frequent first.

    Attributes:
        counts: unbiased estimates of how many of those who answered the last round hold each.
        cut: rounds in which more prefixes were frequent enough than could be kept; the rarer were left out.
    """

    values: Tensor
    counts: Tensor
    cut: int


@dataclass(frozen=True, kw_only=True)
class HeavyHitters(Ranged):
    """Finds the values of [0, 2**bits) that many clients hold, without asking about every value.

    Round by round, clients are asked for longer prefixes of their value. A client's answer is the category of
    its prefix, or none, in a histogram; by :class:`DecoyHistogram` that is a message, and decoys of what is
    asked for. All clients answer all rounds, unless in ``groups``. Data are integers (clients,) of so many
    ``bits``.

    Attributes:
        counts: the protocol of the first round, whose number of categories is a power of two. Those of later
            rounds differ in that number alone (:meth:`asked`).
        width: prefixes that are kept from round to round, at most; a power of two below the number of
            categories. In the first round all prefixes of log2(categories) bits are asked for, then each kept
            prefix with its categories/width continuations.
        false_positives: expected number of prefixes that nobody holds which survive, in all rounds together.
    """

    name: ClassVar[str] = "heavy-hitters"

    bits: Annotated[int, whole_number(at_most=62)]
    cohort: int
    counts: PrefixHistogram
    width: Count = 1 << 8
    false_positives: Positive = 0.1
    groups: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.counts.cohort != self.clients_per_round:
            raise ValueError(f"{self.clients_per_round} clients answer a round, not {self.counts.cohort}")

    @classmethod
    def calibrated(
        cls,
        *,
        bits: int,
        cohort: int,
        epsilon: float,
        delta: float,
        kind: type[PrefixHistogram] = DecoyHistogram,
        categories: int | None = None,
        width: int | None = None,
        false_positives: float = 0.1,
        groups: bool = False,
        **of_counts: Any,
    ) -> Self:
        """The search of the least noise whose certified ε at δ, of all rounds, is at most ``epsilon``.

        Args:
            kind: ``DecoyHistogram`` for a shuffle of messages, ``HistogramSum`` for secure sums.
                ``LaplaceHistogram`` finds only more frequent values at the same ε, as the
                tails of its noise are heavy, and several rounds favour Gaussian noise.
            categories: prefixes that may be asked for at once; by default up to 65,536, of which there are no
                more than clients.
            width: by default about a thousandth of the cohort, at least 256.
            of_counts: further arguments of the histogram's ``calibrated``.
        """
        if categories is None:
            categories = min(1 << 16, 1 << checks.whole("cohort", cohort, at_least=4).bit_length() - 1)
        if width is None:
            wanted = max(cohort // 1_000, 256) if isinstance(cohort, int) else 256
            width = min(1 << (wanted - 1).bit_length(), categories // 2)
        rounds = _rounds(bits=bits, categories=categories, width=width)
        counts = kind.calibrated(
            categories=categories,
            cohort=cohort // rounds if groups else cohort,
            epsilon=epsilon,
            delta=delta,
            num_steps=1 if groups else rounds,
            **of_counts,
        )
        return cls(
            bits=bits,
            cohort=cohort,
            counts=counts,
            width=width,
            false_positives=false_positives,
            groups=groups,
        )

    @property
    def rounds(self) -> int:
        """Rounds of questions and answers."""
        return _rounds(bits=self.bits, categories=self.counts.categories, width=self.width)

    @property
    def num_steps(self) -> int:
        """How many of :meth:`round` the search costs: a pass in groups is one."""
        return 1 if self.groups else self.rounds

    @property
    def clients_per_round(self) -> int:
        """Clients who answer a round."""
        return self.cohort // self.rounds if self.groups else self.cohort

    def round(self, *, adversary: Adversary = Adversary.MODEL_OBSERVER) -> Round:
        """The round for an accountant, which takes :attr:`num_steps` of it before anything is released."""
        alone = self.counts.round(adversary=adversary)
        if not self.groups:
            return alone
        return replace(alone, population=self.cohort, sampling=Sampling.SINGLE_PASS)

    @property
    def threshold(self) -> int:
        """The estimate from which a prefix survives: the least that keeps to ``false_positives``."""
        rate = self.false_positives / (self.rounds * self.counts.categories)
        clients = range(self.clients_per_round + 1)
        return bisect_left(clients, True, key=lambda least: self.counts.exceeding(least) <= rate)

    def detectable(self, *, confidence: float = 0.95) -> int:
        """The least number of clients whose common value is found with this confidence.

        It holds as long as no more than ``width`` prefixes survive a round (:attr:`FoundValues.cut`). In
        groups it is a number of all clients, if groups hold equal shares.
        """
        missed = (1 - checks.confidence(confidence)) / self.rounds
        if self._missing(self.clients_per_round) > missed:
            raise ValueError("not even a value that everybody holds is found: ask for a larger ε or δ")
        held = range(1, self.clients_per_round)
        least = 1 + bisect_left(held, True, key=lambda clients: self._missing(clients) <= missed)
        return least * (self.rounds if self.groups else 1)

    def _missing(self, held: int) -> float:
        """Probability that the estimate of a prefix of so many clients stays below the threshold."""
        return 1 - self.counts.exceeding(self.threshold - held)

    def first(self) -> PrefixQuestion:
        """The question of the first round."""
        return PrefixQuestion(
            number=0,
            kept=torch.zeros(1, dtype=torch.int64),
            kept_bits=0,
            asked_bits=min(self.bits, self.counts.categories.bit_length() - 1),
        )

    def asked(self, question: PrefixQuestion) -> PrefixHistogram:
        """The histogram by which this question is answered: of its candidates alone."""
        return replace(self.counts, categories=max(len(question.candidates()), 2))

    def answers(self, x: Tensor, question: PrefixQuestion) -> Tensor:
        """The category that each client answers, int64 (clients,); -1 for none."""
        values = checked_categories(x, categories=1 << self.bits)
        prefix = values >> (self.bits - question.kept_bits)
        place = torch.searchsorted(question.kept, prefix).clamp(max=len(question.kept) - 1)
        more = question.asked_bits - question.kept_bits
        end = (values >> (self.bits - question.asked_bits)) & ((1 << more) - 1)
        return torch.where(question.kept[place] == prefix, (place << more) + end, -1)

    def randomize(
        self, x: Tensor, question: PrefixQuestion, *, randomness: Randomness | None = None
    ) -> Reports:
        """Each client's report; add them up with ``asked(question).total``."""
        return self.asked(question).randomize(self.answers(x, question), randomness=randomness)

    def following(
        self, total: Tensor, question: PrefixQuestion, *, reports: int
    ) -> PrefixQuestion | FoundValues:
        """The next question, or what was found in all rounds, from the total of so many reports."""
        estimates = self.asked(question).estimate(total, reports=reports).counts
        candidates = question.candidates()
        chosen = (estimates[: len(candidates)] >= self.threshold).nonzero().squeeze(1)
        chosen = chosen[estimates[chosen].argsort(descending=True)]
        if question.asked_bits == self.bits or not len(chosen):
            return FoundValues(values=candidates[chosen], counts=estimates[chosen], cut=question.cut)
        kept = chosen[: self.width]
        more = (self.counts.categories // self.width).bit_length() - 1
        return PrefixQuestion(
            number=question.number + 1,
            kept=candidates[kept.sort().values],
            kept_bits=question.asked_bits,
            asked_bits=min(self.bits, question.asked_bits + more),
            cut=question.cut + (len(chosen) > self.width),
        )

    def find(self, x: Tensor, *, randomness: Randomness | None = None) -> FoundValues:
        """The whole search, for a host that simulates all clients. Record its cost first."""
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
            counts = self.asked(question)
            total, noise = counts.share(answering, randomness=source), counts.common_noise(randomness=source)
            found = self.following(total if noise is None else total + noise, question, reports=size)
            if isinstance(found, FoundValues):
                return found
            question = found


def _rounds(*, bits: int, categories: int, width: int) -> int:
    checks.whole("categories", categories, at_least=2, at_most=1 << 24)
    checks.whole("width", width, at_most=categories // 2)
    for name, value in (("categories", categories), ("width", width)):
        if value & (value - 1):
            raise ValueError(f"{name} must be a power of two, got {value}")
    left = max(0, bits - (categories.bit_length() - 1))
    return 1 + math.ceil(left / ((categories // width).bit_length() - 1))
