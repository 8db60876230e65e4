"""Counted unary encoding: clients flip the bits of a vector, and only the sum of each bit is seen."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import BitEncoding, CountedRound
from shuffle_plugins.compressors.quantization import flip_threshold
from shuffle_plugins.core import Reports, Rows, checks
from shuffle_plugins.core.checks import Count, Dim, Radius, in_range, one_of
from shuffle_plugins.core.rows import checked_categories, rows_at_once
from shuffle_plugins.mechanisms.base import CountRange, Norm, PrivateSum
from shuffle_plugins.protocols.draws import drawn_binomials
from shuffle_plugins.protocols.lattices import drawn_coordinates
from shuffle_plugins.protocols.sums import CountSum, HistogramProtocol, WantedNoise, check_bits, unreachable
from shuffle_plugins.randomness.chacha import WHOLE
from shuffle_plugins.randomness.sources import Randomness, secure

MOST_BIT_EPSILON = 40.0
BitEpsilon = Annotated[float, in_range(above=0, at_most=MOST_BIT_EPSILON)]
Encoding = Annotated[BitEncoding, one_of(BitEncoding)]


@dataclass(frozen=True, kw_only=True)
class UnaryCounts(CountSum[CountedRound]):
    """Each client flips the bits of a vector (unary encoding), and only the sum of each bit is seen.

    That costs far less than shuffling whole vectors, whose bits stay together.

    Attributes:
        bit_epsilon: ε0 of one bit, in (0, 40]: a zero is sent as a one with probability 1/(e^ε0 + 1).
        encoding: ``"symmetric"`` flips ones as often as zeros; a report of a vector with a single one then
            has twice the ε0 of a bit. ``"optimal"`` sends a one as a fair coin, and a report has the ε0 of a
            bit once; a client adds a variance of about 1 to the count of a bit it holds.
        max_weight: most ones that a report may have after the flips; an honest client with more flips all
            bits again, and how far that takes their law is charged to δ. None for no limit, which there is
            none of where more than half of the bits may be set.
    """

    bit_epsilon: BitEpsilon
    encoding: Encoding = BitEncoding.SYMMETRIC
    max_weight: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("length", self.size, at_most=1 << 31)
        if self.max_weight is not None:
            checks.whole("max_weight", self.max_weight, at_least=self.ones, at_most=self.size)
            if self.max_weight < self.size < 2 * self.ones:
                raise ValueError(
                    f"vectors of {self.size} bits of which {self.ones} may be set have no max_weight below "
                    f"{self.size}: what it tells of a vector's weight is not accounted where more than half "
                    "of the bits may be set; leave it out"
                )
        _ = self.round()

    @property
    @abstractmethod
    def ones(self) -> int:
        """How many bits of a client's vector may be set before they are flipped."""

    @classmethod
    @abstractmethod
    def _shape(cls, **data: Any) -> tuple[int, int]: ...

    @abstractmethod
    def _held(self, x: Tensor | Rows, randomness: Randomness) -> Tensor:
        """Which bits are set for each client, int64 (clients, ones); -1 where there are fewer."""

    @override
    @classmethod
    def _of_noise(
        cls,
        wanted: WantedNoise,
        *,
        encoding: BitEncoding | str = BitEncoding.SYMMETRIC,
        failure: float | None = 2.0**-40,
        **data: Any,
    ) -> dict[str, Any]:
        noise_multiplier, cohort, honest, target = wanted
        kind = checks.choice(BitEncoding, "encoding", encoding)
        size, ones = cls._shape(**data)
        # A count's noise over what a client changes it by has the variance n/(4·sinh²(ε0/2)), in the optimal
        # encoding four times that, and a client changes 2·ones counts.
        share = 1 if kind is BitEncoding.SYMMETRIC else 4
        bit_epsilon = 2 * math.asinh(math.sqrt(share * honest / (2 * ones)) / noise_multiplier)
        bit_epsilon = min(bit_epsilon, MOST_BIT_EPSILON)
        if target is not None and bit_epsilon < 1e-3:
            raise unreachable(target, cohort=cohort)
        limit = None
        if failure is not None:
            checks.number("failure", failure, above=0, below=1)
            if target is not None:
                charged = target.num_steps * (1 + math.exp(min(target.epsilon, 400.0)))
                failure = min(failure, 0.01 * target.delta / charged)  # a hundredth of δ
            if size >= 2 * ones:
                law, rate = (size, ones, *_thresholds_of(bit_epsilon, kind)), failure / cohort
                limit = ones + bisect_left(
                    range(ones, size), True, key=lambda most: exceeding_probability(most, *law) <= rate
                )
        return {"bit_epsilon": bit_epsilon, "encoding": kind, "max_weight": limit, **data}

    @override
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> CountedRound:
        return CountedRound(
            bit_epsilon=self.bit_epsilon,
            length=self.size,
            ones=self.ones,
            encoding=self.encoding,
            distance=min(1.0, who["cohort"] * self.false_positive_rate),
            honest=honest,
            **who,
        )

    @property
    def false_positive_rate(self) -> float:
        """Probability that an honest client's flipped vector has more than ``max_weight`` ones, at most."""
        if self.max_weight is None:
            return 0.0
        return exceeding_probability(self.max_weight, self.size, self.ones, *self._thresholds)

    @cached_property
    def _thresholds(self) -> tuple[int, int]:
        return _thresholds_of(self.bit_epsilon, self.encoding)

    @property
    def own(self) -> float:
        """Probability that a one is sent as a one."""
        return self._thresholds[0] / WHOLE

    @property
    def other(self) -> float:
        """Probability that a zero is sent as a one."""
        return self._thresholds[1] / WHOLE

    @property
    def gain(self) -> float:
        """How much a one adds to the expected count of its bit: own − other."""
        own, other = self._thresholds
        return (own - other) / WHOLE

    def variance(self, held: float) -> float:
        """Variance of one estimated count, for a bit that ``held`` clients of the cohort hold."""
        own, other = self.own * (1 - self.own), self.other * (1 - self.other)
        return (held * own + (self.cohort - held) * other) / self.gain**2

    @property
    def counts_variance(self) -> float:
        """Bound on the sum over all bits of the variance of the estimated counts."""
        most = min(self.ones, self.size)
        held = (most if self.own * (1 - self.own) >= self.other * (1 - self.other) else 0) * self.cohort
        return self.variance(held) + (self.size - 1) * self.variance(0.0)

    @property
    def influence(self) -> float:
        """How much one client can change a single estimated count, whatever it sends."""
        return 1 / self.gain

    @property
    @override
    def messages_per_coordinate(self) -> int:
        return 1

    @override
    def _randomized(self, x: Any, randomness: Randomness) -> Reports:
        held = self._held(x, randomness)
        bits = torch.empty(len(held), self.size, dtype=torch.uint8)
        rows = rows_at_once(self.size, device=held.device, entries=1 << 20)
        for start in range(0, len(held), rows):
            bits[start : start + rows] = self._flipped(held[start : start + rows], randomness)
        return self.layout.reports(bits)

    def _flipped(self, held: Tensor, randomness: Randomness) -> Tensor:
        own, other = self._thresholds
        thresholds = torch.full((len(held), self.size + 1), other)  # the last is for nobody
        thresholds.scatter_(1, held % (self.size + 1), own)
        thresholds = thresholds[:, :-1].contiguous()
        bits = randomness.bernoulli(thresholds).to(torch.uint8)
        while self.max_weight is not None:
            again = bits.sum(dim=1, dtype=torch.int64) > self.max_weight
            if not bool(again.any()):
                break
            bits[again] = randomness.bernoulli(thresholds[again]).to(torch.uint8)
        return bits

    @override
    def share(self, x: Any, *, randomness: Randomness | None = None) -> Tensor:
        """As :meth:`Summation.share`, of bits flipped once, without a limit on the number of ones."""
        source = secure(randomness)
        held = self._held(x, source)
        own, other = self._thresholds
        count = torch.bincount(held[held >= 0].flatten(), minlength=self.size).cpu()
        kept = drawn_binomials(count, threshold=own, randomness=source)
        return kept + drawn_binomials(len(held) - count, threshold=other, randomness=source)

    @override
    def _estimated(self, numbers: Tensor, reports: int) -> Tensor:
        return (numbers.double() - reports * self.other) / self.gain

    @override
    def _read(self, reports: Reports) -> Tensor:
        bits = super()._read(reports)
        if self.max_weight is not None and bool((bits.sum(dim=1, dtype=torch.int64) > self.max_weight).any()):
            raise ValueError(
                f"a client sent more than {self.max_weight} ones, which no client that follows the protocol "
                "does: leave its report out"
            )
        return bits


@dataclass(frozen=True, kw_only=True)
class CountedUnary(HistogramProtocol[CountedRound], UnaryCounts):
    """How many clients hold each of several bits: histograms, and sums of binary vectors of bounded weight.

    The parameters are those of Prio3MultihotCountVec (draft-irtf-cfrg-vdaf), which proves that no vector has
    more than ``max_weight`` ones. With ``encoding="symmetric"`` this is the client randomization of
    draft-wang-ppm-differential-privacy, whose ``EPSILON_0`` is ``bit_epsilon``.

    Data are categories, integers (clients,) in [0, length), or binary vectors (clients, length) with at most
    ``held`` ones each. Estimates are in clients. Other attributes are those of :class:`UnaryCounts`.
    """

    name: ClassVar[str] = "counted-unary"

    length: Count
    held: Count = 1

    def __post_init__(self) -> None:
        self._shape(length=self.length, held=self.held)
        super().__post_init__()

    @override
    @classmethod
    def _shape(cls, *, length: int, held: int = 1) -> tuple[int, int]:  # type: ignore[override]
        return checks.whole("length", length), checks.whole("held", held, at_most=length)

    @property
    @override
    def size(self) -> int:
        return self.length

    @property
    @override
    def ones(self) -> int:
        return self.held

    @property
    def worst_variance(self) -> float:
        """Largest E‖estimate − counts‖² over all data, attained; in the symmetric encoding all are equal."""
        return self.counts_variance

    @override
    def _reach(self, error: float, *, reports: int) -> float:
        # Bernstein's inequality, on both sides.
        each = max(self.variance(0.0), self.variance(float(self.cohort))) * self.gain**2 / self.cohort
        third = -math.log(error / 2) / 3
        return (third + math.sqrt(third**2 + 6 * third * each * reports)) / self.gain

    @override
    def _held(self, x: Tensor | Rows, randomness: Randomness) -> Tensor:
        if isinstance(x, Tensor) and x.dim() == 1:
            held = checked_categories(x, categories=self.length).unsqueeze(1)
            return torch.nn.functional.pad(held, (0, self.held - 1), value=-1)
        if not isinstance(x, Rows):
            if not isinstance(x, Tensor):
                raise TypeError(f"data come as a torch tensor, got {type(x).__name__}: convert it first")
            if x.dim() != 2:
                raise ValueError(f"data are (clients,) or (clients, length), got shape {tuple(x.shape)}")
        blocks = x.blocks if isinstance(x, Rows) else (x.detach(),)
        if sum(block.shape[1] for block in blocks) != self.length:
            raise ValueError(
                f"{self.name} takes categories, (clients,), or vectors of {self.length} bits, (clients, "
                f"{self.length})"
            )
        check_bits(blocks)
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


@dataclass(frozen=True, kw_only=True)
class UnaryL1Sum(UnaryCounts, PrivateSum):
    r"""The sum of vectors in an ℓ1 ball, by counted unary encoding of one drawn coordinate per client.

    A client draws coordinate j with probability \|x_j\|/radius, and none with the rest. Among 2·dim bits,
    first one for each positive coordinate and then one for each negative, it sets the bit of that coordinate
    and its sign: as a signed vector times the radius, x on average. It then flips all bits as in
    :class:`CountedUnary`. Use it for histograms of a client's own records, or other short vectors of small
    ℓ1 norm; longer vectors than ``radius``, in ℓ1, are scaled onto the ball. Other attributes are those of
    :class:`UnaryCounts`.
    """

    name: ClassVar[str] = "unary-l1-sum"
    norm: ClassVar[Norm] = Norm.L1

    dim: Dim
    radius: Radius = 1.0

    @override
    @classmethod
    def _shape(cls, *, dim: int, **data: Any) -> tuple[int, int]:  # type: ignore[override]
        return 2 * checks.dim(dim), 1

    @property
    def size(self) -> int:
        """Bits of a report: two for each coordinate, for its signs."""
        return 2 * self.dim

    @property
    @override
    def ones(self) -> int:
        return 1

    @property
    @override
    def counts(self) -> CountRange:
        return CountRange(self.size, 0, 1)

    @property
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖², from the flips and from each client's draw of one coordinate."""
        return self.radius**2 * (self.counts_variance + self.cohort)

    @override
    def _estimated(self, numbers: Tensor, reports: int) -> Tensor:
        counts = super()._estimated(numbers, reports)
        return (counts[: self.dim] - counts[self.dim :]) * self.radius

    @override
    def _held(self, x: Tensor | Rows, randomness: Randomness) -> Tensor:
        held = drawn_coordinates(self._rows(x), radius=self.radius, signed=True, randomness=randomness)
        return held.unsqueeze(1)


def _thresholds_of(bit_epsilon: float, encoding: BitEncoding) -> tuple[int, int]:
    """Probabilities that a one, and a zero, is sent as a one, times 2**62."""
    other = flip_threshold(bit_epsilon)
    return WHOLE - other if encoding is BitEncoding.SYMMETRIC else WHOLE // 2, other


def exceeding_probability(max_weight: int, length: int, ones: int, own: int, other: int) -> float:
    """Probability that a vector with ``ones`` ones has more than ``max_weight`` after its bits are flipped.

    Vectors with fewer ones have more than that no more often. Bits are sent as ones with the probabilities
    ``own`` and ``other``, times 2**62. Rounded up.
    """
    if max_weight >= length:
        return 0.0
    kept = np.arange(ones + 1)
    tails = stats.binom.sf(max_weight - kept, length - ones, other / WHOLE)
    # Of binomial tails as SciPy computes them a relative 1e-9, and more of it for each bit, to the safe side.
    return min(1.0, float(stats.binom.pmf(kept, ones, own / WHOLE) @ tails) * (1 + 1e-9 + length * 2.0**-52))
