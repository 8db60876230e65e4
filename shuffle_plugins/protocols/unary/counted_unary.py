"""Histograms and sums of binary vectors by counted unary encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from shuffle_plugins.accounting import BitEncoding, PrivacyTarget
from shuffle_plugins.core import Reports, Rows, checked_categories, checks
from shuffle_plugins.protocols.histograms import Histogram, Intervals
from shuffle_plugins.protocols.tally import Tally
from shuffle_plugins.protocols.unary.unary_counts import (
    FAILURE,
    UnaryCounts,
    affordable_failure,
    calibrated_bits,
    weight_limit,
)
from shuffle_plugins.protocols.unary.weights import bernstein
from shuffle_plugins.randomness import Randomness, secure


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedUnary(UnaryCounts):
    """How many clients hold each of several bits: histograms, and sums of binary vectors of bounded weight.

    A client's data are a vector of bits, with a one for each category that it holds (unary encoding). Each
    bit is flipped at random, and only the sum of each bit over all clients is seen. The parameters are those
    of Prio3MultihotCountVec (draft-irtf-cfrg-vdaf), which adds such vectors up among two aggregators and
    proves that none has more than ``max_weight`` ones. With ``encoding="symmetric"`` this is the client
    randomization of draft-wang-ppm-differential-privacy, whose ``EPSILON_0`` is ``bit_epsilon``.

    Data are categories, integers (clients,) in [0, length), or binary vectors (clients, length) with at most
    ``held`` ones each. Estimates are in clients.

    Attributes:
        length: bits of a client's vector; for a histogram the number of categories.
        cohort: n, how many clients take part in one sum, at least 2.
        bit_epsilon: ε0 of one bit, in (0, 40]: a zero is sent as a one with probability 1/(e^ε0 + 1).
        held: how many ones a client's vector may have at most before its bits are flipped; 1 for a histogram.
        encoding: ``"symmetric"`` flips ones as often as zeros. A whole report of a vector with a single one
            then has twice the ε0 of a bit. ``"optimal"`` sends a one as a fair coin, and a report has the ε0
            of a bit once. At equal noise in bits that few clients hold, a client is protected almost twice
            as well from those who see its own report. In return each client adds a variance of about 1 to
            the count of a bit that it holds.
        max_weight: most ones that a report may have after the flips; None for no limit. See
            ``calibrated(failure=)``.
        honest_fraction: share of the clients that are counted on to flip their bits; the guarantee holds
            whatever the others send or do not send.

    Raises:
        ValueError: if a field is out of range.
    """

    name: ClassVar[str] = "counted-unary"

    length: int
    held: int = 1

    def __post_init__(self) -> None:
        checks.whole("length", self.length)
        checks.whole("held", self.held, at_most=self.length)
        UnaryCounts.__post_init__(self)

    @classmethod
    def calibrated(
        cls,
        *,
        length: int,
        cohort: int,
        epsilon: float,
        delta: float,
        held: int = 1,
        encoding: BitEncoding | str = BitEncoding.SYMMETRIC,
        num_steps: int = 1,
        population: int | None = None,
        honest_fraction: float = 1.0,
        failure: float | None = FAILURE,
    ) -> Self:
        """The protocol of the least noise whose certified ε at δ is at most ``epsilon``.

        Args:
            length, cohort, held, encoding, honest_fraction: as the fields.
            epsilon: target for all rounds together, replace-one.
            delta: δ of the target.
            num_steps: sums that the same people take part in.
            population: n, if each sum draws ``cohort`` of them without replacement.
            failure: ``max_weight`` is the least limit that anybody of the cohort exceeds with at most this
                probability. About 1 + e^ε times of it are charged to δ for each step; where all steps
                together would have more than a hundredth of δ, the limit is that of a smaller probability.
                None for no limit.

        Raises:
            ValueError: if a target is out of range or cannot be reached.
        """
        kind = checks.choice(BitEncoding, "encoding", encoding)

        target = PrivacyTarget(epsilon=epsilon, delta=delta, num_steps=num_steps)
        affordable = affordable_failure(failure, target)
        return calibrated_bits(
            target,
            build=lambda bit_epsilon: cls(
                length=length,
                cohort=cohort,
                bit_epsilon=bit_epsilon,
                held=held,
                encoding=kind,
                honest_fraction=honest_fraction,
                max_weight=weight_limit(
                    affordable, size=length, ones=held, bit_epsilon=bit_epsilon, encoding=kind, cohort=cohort
                ),
            ),
            ones=checks.whole("held", held),
            encoding=kind,
            cohort=cohort,
            population=population,
            honest_fraction=honest_fraction,
        )

    @property
    def size(self) -> int:
        """Bits of a client's vector: ``length``."""
        return self.length

    @property
    def ones(self) -> int:
        """How many of them may be set: ``held``."""
        return self.held

    # -- what it is worth -------------------------------------------------------------------------------

    @property
    def worst_variance(self) -> float:
        """Largest E‖estimate − counts‖² over all data, attained; in the symmetric encoding all are equal."""
        return self.counts_variance

    @property
    def squared_error(self) -> float:
        """E‖f̂ − f‖² of the frequencies of those who report, for the data of largest error."""
        return self.worst_variance / self.cohort**2

    def largest_error(self, *, confidence: float = 0.95) -> float:
        """Bound on the largest error of all estimated frequencies, which holds with this confidence.

        By Bernstein's inequality for each count, and a union bound.

        Raises:
            ValueError: if ``confidence`` is not in (0, 1).
        """
        error = (1 - checks.confidence(confidence)) / 2 / self.length
        bits = max(self.variance(0.0), self.variance(float(self.cohort))) * self.gain**2
        return bernstein(bits, error) / self.gain / self.cohort

    def intervals(
        self, histogram: Histogram, *, confidence: float = 0.95, simultaneous: bool = False
    ) -> Intervals:
        """Intervals for the clients' frequencies, by Bernstein's inequality.

        Args:
            histogram: from :meth:`histogram` or :meth:`randomize_histogram`.
            confidence: that each interval holds its frequency; with ``simultaneous`` that all do.
            simultaneous: whether to widen them by a union bound.

        Raises:
            ValueError: if ``confidence`` is not in (0, 1).
        """
        error = (1 - checks.confidence(confidence)) / 2 / (self.length if simultaneous else 1)
        bits = max(self.variance(0.0), self.variance(float(self.cohort))) * self.gain**2
        reach = bernstein(bits * histogram.reports / self.cohort, error) / self.gain / histogram.reports
        centre = histogram.frequencies
        return Intervals(
            lower=(centre - reach).clamp(0.0, 1.0),
            upper=(centre + reach).clamp(0.0, 1.0),
            confidence=confidence,
            simultaneous=simultaneous,
        )

    # -- what is done -----------------------------------------------------------------------------------

    def randomize_held(self, held: Tensor, *, randomness: Randomness | None = None) -> Reports:
        """Randomise as :meth:`randomize` does, for clients that hold one category each, or none.

        Args:
            held: categories, int64 (clients,); -1 for a client that sets no bit.
            randomness: source of all random bits; a fresh ``SecureRandomness`` by default.

        Raises:
            ValueError: if a category does not exist.
        """
        return self._reports(self._checked_held(held), secure(randomness))

    def share_held(self, held: Tensor, *, randomness: Randomness | None = None) -> Tensor:
        """Sum as :meth:`share` does, for clients that hold one category each, or none.

        The arguments are those of :meth:`randomize_held`.

        Raises:
            ValueError: if a category does not exist.
        """
        return self._share(self._checked_held(held), secure(randomness))

    def _checked_held(self, held: Tensor) -> Tensor:
        return (checked_categories(held + 1, categories=self.length + 1) - 1).unsqueeze(1)

    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        """Unbiased estimate of how many clients hold each bit, float64 (length,).

        Args:
            total: what :meth:`total` or :meth:`tally` returned.
            reports: how many clients' messages are in it. A tally says so by itself, if every one of them
                sent one message under each label.

        Raises:
            ValueError: if the total is of another width, or does not say of how many clients it is.
        """
        return self._counts(total, reports=reports)

    def histogram(self, total: Tensor | Tally, *, reports: int | None = None) -> Histogram:
        """The estimate as a histogram, with frequencies and the nearest distribution.

        Raises:
            ValueError: as :meth:`estimate`, or if the total is of no client.
        """
        count = self.senders(total) if reports is None else reports
        return Histogram(
            counts=self._counts(total, reports=count),
            reports=count,
            refused=total.foreign if isinstance(total, Tally) else 0,
        )

    def randomize_histogram(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Histogram:
        """A draw of the protocol's histogram, for a host that simulates all clients.

        Raises:
            TypeError, ValueError: as :meth:`randomize_sum`.
        """
        return Histogram(counts=self.randomize_sum(x, randomness=randomness).double(), reports=self.cohort)

    def _sum(self, total: Tensor, *, reports: int) -> Tensor:
        return self._counts(total, reports=reports)

    def _held(self, x: Tensor | Rows, randomness: Randomness) -> Tensor:
        if isinstance(x, Tensor) and x.dim() == 1:
            held = checked_categories(x, categories=self.length).unsqueeze(1)
            return torch.nn.functional.pad(held, (0, self.held - 1), value=-1)
        blocks = x.blocks if isinstance(x, Rows) else (checked_matrix(x),)
        if sum(block.shape[1] for block in blocks) != self.length:
            raise ValueError(
                f"{self.name} takes categories, (clients,), or vectors of {self.length} bits, (clients, "
                f"{self.length})"
            )
        if not all(bool(((block == 0) | (block == 1)).all()) for block in blocks):
            raise ValueError("the batch has entries that are neither 0 nor 1; nothing was released")
        bits = torch.cat([block != 0 for block in blocks], dim=1)
        weights = bits.sum(dim=1)
        if bool((weights > self.held).any()):
            raise ValueError(
                f"a vector has {int(weights.max())} ones, more than held={self.held}; nothing was released"
            )
        clients, columns = bits.nonzero(as_tuple=True)
        place = torch.arange(len(clients)) - (weights.cumsum(0) - weights)[clients].cpu()
        held = torch.full((len(bits), self.held), -1, dtype=torch.int64)
        held[clients.cpu(), place] = columns.cpu()
        return held


def checked_matrix(x: object) -> Tensor:
    """Return a batch of vectors, (clients, length).

    Raises:
        TypeError: if it is no tensor.
        ValueError: if it has other than two dimensions.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"data come as a torch tensor, got {type(x).__name__}: convert it first")
    if x.dim() != 2:
        raise ValueError(f"data are (clients,) or (clients, length), got shape {tuple(x.shape)}")
    return x.detach()
