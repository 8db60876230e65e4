"""The base class of counted unary protocols: clients flip the bits of a vector, and the bits are summed."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import (
    Adversary,
    BitEncoding,
    CountedRound,
    PrivacyTarget,
    Sampling,
    largest_within,
)
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks, rows_at_once
from shuffle_plugins.mechanisms.oracles import flip_threshold
from shuffle_plugins.protocols.coins.calibration import least_noise_multiplier
from shuffle_plugins.protocols.errors import TargetUnreachable
from shuffle_plugins.protocols.shuffle_protocol import check_clips, counted_on
from shuffle_plugins.protocols.tally import LabelledSum, Tally
from shuffle_plugins.protocols.unary.sampling import DRAWN_DISTANCE, drawn_binomials
from shuffle_plugins.protocols.unary.weights import exceeding_probability, least_max_weight
from shuffle_plugins.randomness import WHOLE, Randomness, secure

LEAST_BIT_EPSILON, MOST_BIT_EPSILON = 1e-3, 40.0
FAILURE = 2.0**-40
"""Probability that some vector of a cohort has more ones than ``max_weight``, unless another is given."""

_CHARGED, _LARGEST_EXPONENT = 1e-2, 400.0  # share of a target's δ that limits on weight may cost; of e
_BITS_AT_ONCE = 1 << 20
_PRECISION = 1e-4  # of ε0 of a bit, that a calibration finds


@dataclass(frozen=True, kw_only=True, slots=True)
class UnaryCounts(LabelledSum):
    r"""Each client flips the bits of a vector of ``size`` bits, and the bits are summed one by one.

    A client's message for a bit is a label and the flipped bit. Shuffled, such messages say nothing but
    their sums; so do vectors that are added up by a secure sum, such as Prio3MultihotCountVec. That costs far
    less than shuffling whole vectors, whose bits stay together.

    If an honest client's flipped vector has more than ``max_weight`` ones, the client flips all its bits
    again. This makes the distribution differ from that of bits flipped once, and the distance is charged to δ
    (:meth:`round`).

    Attributes:
        cohort: n, how many clients take part in one sum, at least 2.
        bit_epsilon: ε0 of one bit, in (0, 40]: a zero is sent as a one with probability 1/(e^ε0 + 1).
        encoding: ``"symmetric"`` flips ones as often as zeros; ``"optimal"`` sends a one as a fair coin.
        max_weight: most ones that a report may have after the flips; None for no limit.
        honest_fraction: share of the clients that are counted on to flip their bits.

    Raises:
        ValueError: if a field is out of range.
    """

    bit_epsilon: float
    encoding: BitEncoding = BitEncoding.SYMMETRIC
    max_weight: int | None = None

    def __post_init__(self) -> None:
        LabelledSum.__post_init__(self)
        object.__setattr__(self, "encoding", checks.choice(BitEncoding, "encoding", self.encoding))
        limits = {"above": 0.0, "at_most": MOST_BIT_EPSILON}
        object.__setattr__(self, "bit_epsilon", checks.number("bit_epsilon", self.bit_epsilon, **limits))
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

    # -- what kinds of data differ in -------------------------------------------------------------------

    @property
    @abstractmethod
    def size(self) -> int:
        """Bits of a client's vector."""

    @property
    @abstractmethod
    def ones(self) -> int:
        """How many bits of a client's vector may be set before they are flipped."""

    @abstractmethod
    def _held(self, x: Tensor | Rows, randomness: Randomness) -> Tensor:
        """Which bits are set for each client, int64 (clients, ones); -1 where there are fewer.

        Raises:
            ValueError: if x is not what the protocol takes.
        """

    # -- what it costs ----------------------------------------------------------------------------------

    @override
    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> CountedRound:
        present = self.participants(population=population, cohort=cohort, sampling=sampling)
        return CountedRound(
            bit_epsilon=self.bit_epsilon,
            length=self.size,
            ones=self.ones,
            encoding=self.encoding,
            distance=min(1.0, 2 * self.ones * DRAWN_DISTANCE + present.reports * self.false_positive_rate),
            population=present.population,
            cohort=present.reports,
            honest=None if present.honest == present.reports else present.honest,
            sampling=present.sampling,
            adversary=adversary,
        )

    @property
    def false_positive_rate(self) -> float:
        """Probability that an honest client's flipped vector has more than ``max_weight`` ones, at most."""
        if self.max_weight is None:
            return 0.0
        return exceeding_probability(
            self.max_weight,
            length=self.size,
            ones=self.ones,
            bit_epsilon=self.bit_epsilon,
            encoding=self.encoding,
        )

    @property
    def own(self) -> float:
        """Probability that a one is sent as a one."""
        return self._own_threshold / WHOLE

    @property
    def other(self) -> float:
        """Probability that a zero is sent as a one."""
        return self._other_threshold / WHOLE

    @property
    def gain(self) -> float:
        """How much a one adds to the expected count of its bit: own − other."""
        return (self._own_threshold - self._other_threshold) / WHOLE

    @property
    def _other_threshold(self) -> int:
        return flip_threshold(self.bit_epsilon)

    @property
    def _own_threshold(self) -> int:
        symmetric = self.encoding is BitEncoding.SYMMETRIC
        return WHOLE - self._other_threshold if symmetric else WHOLE // 2

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
    def labels(self) -> int:
        """Bits of a client's vector, each under its label."""
        return self.size

    @property
    def messages_per_coordinate(self) -> int:
        """Messages that a client sends for a bit: 1."""
        return 1

    @property
    def layout(self) -> ReportLayout:
        """The form of a client's whole report: its flipped bits."""
        return ReportLayout(self.name, self.size, (FieldLayout(1, self.size),))

    # -- what is done -----------------------------------------------------------------------------------

    def randomize(self, x: Any, *, randomness: Randomness | None = None, clip: bool = True) -> Reports:
        """Each client's flipped bits.

        Raises:
            ValueError: if x is not a batch of the protocol's data, or if ``clip`` is false: a sum always
                clips.
        """
        check_clips(clip)
        source = secure(randomness)
        return self._reports(self._held(x, source), source)

    def _reports(self, held: Tensor, source: Randomness) -> Reports:
        bits = torch.empty(len(held), self.size, dtype=torch.uint8)
        rows = rows_at_once(self.size, device=held.device, entries=_BITS_AT_ONCE)
        for start in range(0, len(held), rows):
            bits[start : start + rows] = self._flipped(held[start : start + rows], source)
        return self.layout.reports(bits)

    def _flipped(self, held: Tensor, randomness: Randomness) -> Tensor:
        thresholds = torch.full((len(held), self.size + 1), self._other_threshold)  # the last is for nobody
        thresholds.scatter_(1, held % (self.size + 1), self._own_threshold)
        thresholds = thresholds[:, :-1].contiguous()
        bits = randomness.bernoulli(thresholds).to(torch.uint8)
        while self.max_weight is not None:
            again = bits.sum(dim=1, dtype=torch.int64) > self.max_weight
            if not bool(again.any()):
                break
            bits[again] = randomness.bernoulli(thresholds[again]).to(torch.uint8)
        return bits

    def share(self, x: Any, *, randomness: Randomness | None = None) -> Tensor:
        """Sums of these clients' flipped bits, int64 (size,) on the CPU, without listing the bits.

        The number of flips of each bit is drawn at once, not flip by flip. The distribution is that of bits
        flipped once, without a limit on the number of ones. Results of several groups of clients may be
        added.

        Raises:
            ValueError: as :meth:`randomize`.
        """
        source = secure(randomness)
        return self._share(self._held(x, source), source)

    def _share(self, held: Tensor, source: Randomness) -> Tensor:
        count = torch.bincount(held[held >= 0].flatten(), minlength=self.size).cpu()
        kept = drawn_binomials(count, threshold=self._own_threshold, randomness=source)
        return kept + drawn_binomials(len(held) - count, threshold=self._other_threshold, randomness=source)

    def _counts(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        """Unbiased estimate of how many clients hold each bit, float64 (size,)."""
        sums, count = self._ones(total), self._number(total, reports)
        return (sums.double() - count * self.other) / self.gain

    @override
    def _read(self, reports: Reports) -> Tensor:
        """The reports' bits, uint8 (clients, size)."""
        self.layout.check(reports, 2)
        bits = reports.fields[0].values.reshape(len(reports), self.size)
        if self.max_weight is not None and bool((bits.sum(dim=1, dtype=torch.int64) > self.max_weight).any()):
            raise ValueError(
                f"a client sent more than {self.max_weight} ones, which no client that follows the protocol "
                "does: leave its report out"
            )
        return bits


_S = TypeVar("_S", bound=UnaryCounts)


def calibrated_bits(
    target: PrivacyTarget,
    *,
    build: Callable[[float], _S],
    ones: int,
    encoding: BitEncoding,
    cohort: int,
    population: int | None,
    honest_fraction: float,
) -> _S:
    """The protocol whose bits have the largest ε0 within the target, to a part in ten thousand.

    Args:
        target: what all rounds together may cost.
        build: the protocol, from ε0 of a bit.
        ones, encoding, cohort, honest_fraction: as of the protocol.
        population: how many people the cohort is drawn from; None if the cohort is everybody.

    Raises:
        ValueError: if an argument is out of range.
        TargetUnreachable: if no ε0 of a bit is within the target.
    """
    honest, people = counted_on(cohort, population, honest_fraction)
    noise = least_noise_multiplier(target, sampling_rate=cohort / people)
    found = largest_within(
        lambda level: target.cost(build(level).round(population=population)),
        target=target.epsilon,
        start=min(
            max(epsilon_of_noise(noise, ones=ones, encoding=encoding, honest=honest), LEAST_BIT_EPSILON),
            MOST_BIT_EPSILON / 2,
        ),
        lowest=LEAST_BIT_EPSILON,
        highest=MOST_BIT_EPSILON,
        precision=_PRECISION,
    )
    if found is None:
        raise TargetUnreachable(
            f"no bits down to ε0={LEAST_BIT_EPSILON:g} reach ε={target.epsilon:g} at δ={target.delta:g} over "
            f"{target.num_steps} steps among {cohort} clients: ask for a larger ε or δ, fewer steps, or more "
            "clients"
        )
    return build(found)


def epsilon_of_noise(noise_multiplier: float, *, ones: int, encoding: BitEncoding, honest: int) -> float:
    """ε0 of a bit that, to leading order, is as private as a Gaussian of this noise multiplier.

    A count's noise over what a client changes it by has the variance n/(4·sinh²(ε0/2)), in the optimal
    encoding four times that, and a client changes 2·ones counts.

    Args:
        noise_multiplier: the Gaussian's deviation over the replace-one sensitivity.
        ones, encoding: as of the protocol.
        honest: clients who flip bits.
    """
    share = 1 if encoding is BitEncoding.SYMMETRIC else 4
    return 2 * math.asinh(math.sqrt(share * honest / (8 * ones)) / noise_multiplier)


def affordable_failure(failure: float | None, target: PrivacyTarget) -> float | None:
    """``failure``, or less where so many rounds, or so large an ε, would have it charged too much of δ.

    Raises:
        ValueError: if ``failure`` is not in (0, 1).
    """
    if failure is None:
        return None
    charged = target.num_steps * (1 + math.exp(min(target.epsilon, _LARGEST_EXPONENT)))
    return min(checks.number("failure", failure, above=0, below=1), _CHARGED * target.delta / charged)


def weight_limit(
    failure: float | None, *, size: int, ones: int, bit_epsilon: float, encoding: BitEncoding, cohort: int
) -> int | None:
    """The least ``max_weight`` that some client of the cohort exceeds with at most this probability.

    None if ``failure`` is None.

    None as well where more than half of the bits may be set: no limit is accounted there.

    Raises:
        ValueError: if ``failure`` is not in (0, 1).
    """
    if failure is None or size < 2 * ones:
        return None
    rate = checks.number("failure", failure, above=0, below=1) / cohort
    found = least_max_weight(
        length=size, ones=ones, bit_epsilon=bit_epsilon, encoding=encoding, false_positive_rate=rate
    )
    return max(found, ones)
