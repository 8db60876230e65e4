"""What all shuffle protocols have in common: who takes part, one calibration, labelled bits, histograms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from typing_extensions import override

from shuffle_plugins.accounting import (
    FINE,
    Adversary,
    LossComposition,
    PrivacyTarget,
    Round,
    Sampling,
    gaussian_losses,
)
from shuffle_plugins.accounting.numerics.search import largest_within, narrowed
from shuffle_plugins.accounting.pairs.noise import participation_losses
from shuffle_plugins.accounting.terms import MAX_POPULATION, honest_clients
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import Ranged, whole_number
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.base import Norm, PrivacyParameter, Reporter, Summation
from shuffle_plugins.protocols.lattices import Lattice, Levels
from shuffle_plugins.randomness.sources import Randomness, secure

_R = TypeVar("_R", bound=Round)

# Deviations over the radius: with less ε is uselessly large, with more data are drowned.
_LEAST_NOISE, _MOST_NOISE = 0.12, 2e7
_PRECISION = 5e-4  # relative, of the noise that a calibration finds


class TargetUnreachable(ValueError):
    """No parameters keep to the target (ε, δ) with as many clients and rounds."""


class Participants(NamedTuple):
    """Who is in a round, as an accountant counts them: ``honest`` of the reports are counted on."""

    reports: int
    honest: int
    population: int
    sampling: Sampling

    @classmethod
    def of(
        cls,
        cohort: object,
        *,
        honest_fraction: float,
        population: object = None,
        sampling: Sampling | None = None,
        came: bool = False,
    ) -> Self:
        """Those of a cohort, by default everybody; ``came`` if these are clients whose reports really came:
        one may have come alone, and is honest, as it is the client whose ε it is.
        """
        reports = checks.whole("cohort", cohort, at_least=1 if came else 2, at_most=MAX_POPULATION)
        if came:
            honest = max(1, honest_clients(reports, honest_fraction))
        else:
            honest = honest_population(reports, honest_fraction)
        people = reports
        if population is not None:
            people = checks.whole("population", population, at_least=reports, at_most=MAX_POPULATION)
        if sampling is None:
            sampling = Sampling.FULL if people == reports else Sampling.WITHOUT_REPLACEMENT
        if sampling is Sampling.WITHOUT_REPLACEMENT:
            # Clients that are not honest may tell whether they were drawn. Should none of them have been,
            # the cohort was drawn from the honest ones; it cannot have been drawn from fewer than itself.
            people = max(reports, honest_clients(people, honest_fraction))
        return cls(reports, honest, people, sampling)


class WantedNoise(NamedTuple):
    """The noise multiplier of a sum, of how many clients, of whom so many are counted on, and what for."""

    noise_multiplier: float
    cohort: int
    honest: int
    target: PrivacyTarget | None


@dataclass(frozen=True, kw_only=True)
class ShuffleProtocol(Ranged, Reporter):
    """Clients send messages to a shuffler, and what it hands on is added up: sums, means, histograms.

    A report is all that a client sends. Shuffled messages tell no more than their total, so a shuffler may
    also be handed whole reports and hand on their total.

    Attributes:
        cohort: n, how many clients take part in one round, at least 2.
        honest_fraction: share of the clients that are counted on to follow the protocol, with those who drop
            out taken off (robust shuffle privacy; Cheu, Joseph, Mao, Peng 2022, Appendix A.3). The guarantee
            holds whatever the others send or do not send.
    """

    cohort: Annotated[int, whole_number(at_least=2, at_most=MAX_POPULATION)]
    honest_fraction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.honest_cohort

    @property
    def honest_cohort(self) -> int:
        """Clients of one round that are counted on, at least."""
        return honest_population(self.cohort, self.honest_fraction)

    @property
    @abstractmethod
    def messages_per_client(self) -> float:
        """Messages that a client's report stands for, on average."""

    @abstractmethod
    def messages(self, reports: Reports) -> list[Reports]:
        """The messages that whole reports stand for, a batch for each client, for a ``Shuffler``."""

    def participants(
        self, *, population: int | None = None, cohort: float | None = None, sampling: Sampling | None = None
    ) -> Participants:
        """Who is in a round, for an accountant; arguments as of :meth:`round`."""
        return Participants.of(
            self.cohort if cohort is None else cohort,
            honest_fraction=self.honest_fraction,
            population=population,
            sampling=sampling,
            came=cohort is not None,
        )


@dataclass(frozen=True, kw_only=True)
class SummingProtocol(ShuffleProtocol, Summation, Generic[_R]):
    """A protocol whose clients' messages make up a sum. Totals are whole numbers.

    A subclass gives its parameters for a noise, what a client sends, and the round of those present.
    """

    privacy_parameter: ClassVar[PrivacyParameter] = "noise_multiplier"

    in_secret: ClassVar[bool] = False
    """Whether it is known what a round costs whose clients take part in secret."""

    @override
    def round(
        self,
        *,
        population: int | None = None,
        cohort: float | None = None,
        sampling: Sampling | None = None,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
        participation: float | None = None,
    ) -> _R:
        """The round for an accountant.

        Args:
            population: n of the whole training, of whom the cohort is drawn; by default the cohort alone.
            cohort: clients whose reports really came, by default the field: fewer hide less.
            sampling: k of n where the population is larger, else everybody, by default.
            participation: probability with which each client adds its datum, by a secret coin of its own; the
                others add zero in the same way, and all add noise. It counts against everybody who sees the
                sum alone. None if all add their data.
        """
        reports, honest, people, chosen = self.participants(
            population=population, cohort=cohort, sampling=sampling
        )
        if participation is not None and not self.in_secret:
            Summation.secret_round(self, answered=reports, participation=participation)
        return self._round(
            None if honest == reports else honest,
            participation,
            population=people,
            cohort=reports,
            sampling=chosen,
            adversary=adversary,
        )

    @abstractmethod
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> _R: ...

    @override
    def secret_round(self, *, answered: int, participation: float) -> Round:
        return self.round(cohort=answered, participation=participation)

    @property
    def local_epsilon(self) -> float:
        """ε0 of all messages of one client together, in nats; infinite if others' noise must protect them."""
        return self.round().local_epsilon

    @classmethod
    @abstractmethod
    def _of_noise(cls, wanted: WantedNoise, **data: Any) -> dict[str, Any]:
        """The fields of the protocol of few messages that, to leading order, protects as a Gaussian."""

    @classmethod
    def with_noise(
        cls, *, cohort: int, noise_multiplier: float, honest_fraction: float = 1.0, **data: Any
    ) -> Self:
        """The protocol that, to leading order, protects as a Gaussian of this noise multiplier.

        That is its deviation over half the replace-one sensitivity: over the radius of the data's ball, in
        each coordinate of the sum. What a sum really costs is for its :meth:`round` to say.
        """
        noise = checks.number("noise_multiplier", noise_multiplier, above=0)
        present = Participants.of(cohort, honest_fraction=honest_fraction)
        found = cls._of_noise(WantedNoise(noise, present.reports, present.honest, None), **data)
        return cls(cohort=present.reports, honest_fraction=honest_fraction, **found)

    @classmethod
    def calibrated(
        cls,
        *,
        cohort: int,
        epsilon: float,
        delta: float,
        num_steps: int = 1,
        population: int | None = None,
        honest_fraction: float = 1.0,
        participation: float | None = None,
        **data: Any,
    ) -> Self:
        """The protocol of least noise and few messages whose certified ε at δ is at most ``epsilon``.

        Args:
            epsilon, delta: target for all rounds together, replace-one.
            num_steps: sums that the same people take part in.
            population: n, if each sum draws ``cohort`` of them without replacement.
            participation: probability with which each client adds its data, see :meth:`round`.
            data: the fields that say what clients hold (``dim`` and ``radius``, ``upper``, ``categories``),
                and options of the kind of sum. ``overhead`` is the share of variance in (0, 1] that may be
                spent to send less; ``bits``, ``levels`` or ``samples``, if not chosen by it, are kept as
                given. ``failure`` of unary sums is the probability that anybody of the cohort exceeds the
                limit on its ones: about 1 + e^ε times of it are charged to δ for each step, so that it is
                lowered where all steps would have more than a hundredth of δ. None sets no limit.

        Raises:
            TargetUnreachable: if no such protocol is within the target.
        """
        target = PrivacyTarget(epsilon=epsilon, delta=delta, num_steps=num_steps)
        present = Participants.of(cohort, honest_fraction=honest_fraction, population=population)
        share = checks.participation(participation)
        costs: dict[Any, float] = {}

        def built(noise: float) -> Any:
            found = cls._of_noise(WantedNoise(noise, present.reports, present.honest, target), **data)
            return cls(cohort=present.reports, honest_fraction=honest_fraction, **found)

        def cost(quietness: float) -> float:
            protocol = built(1 / quietness)
            if protocol not in costs:
                costs[protocol] = target.cost(protocol.round(population=population, participation=share))
            return min(costs[protocol], 2 * target.epsilon)  # what lies beyond tells a search nothing more

        least = least_noise_multiplier(
            target, sampling_rate=present.reports / present.population, participation=share
        )
        found = largest_within(
            cost,
            target=target.epsilon,
            start=1 / least,
            lowest=1 / _MOST_NOISE,
            highest=1 / _LEAST_NOISE,
            precision=_PRECISION,
            slope=1.0,
        )
        if found is None:
            raise unreachable(target, cohort=cohort)
        calibrated: Self = built(1 / found)
        return calibrated

    def senders(self, total: Any) -> int:
        """How many clients a total is of; a ValueError if it does not say so."""
        raise ValueError("a total alone does not say how many clients it is of: pass reports=")

    def _count(self, total: Any, reports: int | None) -> int:
        return self.senders(total) if reports is None else checks.whole("reports", reports, at_least=0)

    @abstractmethod
    def estimate(self, total: Any, *, reports: int | None = None) -> Any:
        """Unbiased estimate of the sum over the clients that answered, float64.

        Args:
            total: what :meth:`total` returned, or a tally of shuffled messages.
            reports: how many clients' messages are in it. A tally says so by itself, if every one of them
                sent as many as it should.
        """

    @override
    def randomize(self, x: Any, *, randomness: Randomness | None = None, clip: bool = True) -> Reports:
        if not clip:
            raise ValueError("a sum's guarantee needs its ball, so it always clips: leave clip as it is")
        return self._randomized(x, secure(randomness))

    @abstractmethod
    def _randomized(self, x: Any, randomness: Randomness) -> Reports: ...

    def _rows(self, x: Tensor | Rows) -> Rows:
        """Vectors of the right length; one that is not finite is one of zeros."""
        rows = Rows.of(x)
        if rows.dim != self.dim:  # type: ignore[attr-defined]
            raise ValueError(f"{self.name} takes vectors of dimension {self.dim}, got {rows.dim}")  # type: ignore[attr-defined]
        return rows.finite(getattr(rows, f"{getattr(self, 'norm', Norm.LINF)}_norm")())[0]


def unreachable(target: PrivacyTarget, *, cohort: int) -> TargetUnreachable:
    """The error that says so, and what to ask for instead."""
    return TargetUnreachable(
        f"no noise reaches ε={target.epsilon:g} at δ={target.delta:.2g} over {target.num_steps} steps among "
        f"{cohort} clients: ask for a larger ε or δ, fewer steps, or more clients"
    )


def least_noise_multiplier(
    target: PrivacyTarget, *, sampling_rate: float, participation: float | None = None
) -> float:
    """About the least noise multiplier at which Gaussian noise keeps within the target."""

    def too_little(noise: float) -> bool:
        # Losses are told deviations over the sensitivity, which is twice the radius.
        common: Any = {"noise_multiplier": noise / 2, "sampling_rate": sampling_rate, "resolution": FINE}
        try:
            law = (
                gaussian_losses(**common)
                if participation is None
                else participation_losses(norm=1.0, participation=participation, **common)
            )
            return LossComposition([law], [target.num_steps]).epsilon(target.delta) > target.epsilon
        except ArithmeticError:  # hardly any noise, or more steps than are composed
            return True

    high = _LEAST_NOISE
    while too_little(high):
        high *= 2
        if high > _MOST_NOISE:
            raise TargetUnreachable(
                f"no noise reaches ε={target.epsilon:g} at δ={target.delta:.2g} over {target.num_steps} steps"
                ": ask for a larger ε or δ, or fewer steps"
            )
    return narrowed(too_little, high / 2, high, precision=_PRECISION)[1]


def honest_population(population: int, honest_fraction: float) -> int:
    """How many of so many clients are counted on, of the decimal that is written: 7 for 0.7 of 10."""
    honest = honest_clients(population, honest_fraction)
    if honest < 1:
        raise ValueError(f"honest_fraction={honest_fraction!r} of {population} clients is nobody")
    return honest


def check_bits(blocks: Iterable[Tensor]) -> None:
    """Refuse entries that are neither 0 nor 1."""
    if not all(bool(((block == 0) | (block == 1)).all()) for block in blocks):
        raise ValueError("the batch has entries that are neither 0 nor 1; nothing was released")


@dataclass(frozen=True, kw_only=True)
class LatticeSum(SummingProtocol[_R]):
    """Clients round their data to a lattice and add noise that is whole numbers.

    Attributes:
        levels: g, lattice steps per radius, or over an interval.
    """

    lattice_type: ClassVar[type[Any]]

    levels: Levels

    @cached_property
    def lattice(self) -> Lattice:
        """How data become integers."""
        held = self.lattice_type.__dataclass_fields__
        built: Lattice = self.lattice_type(**{name: getattr(self, name) for name in held})
        return built

    @property
    @abstractmethod
    def noise_variance(self) -> float:
        """Variance of the noise in one coordinate of the sum, in squared units of the data."""

    @property
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖²: of noise, and of rounding."""
        rounding = self.cohort * self.lattice.rounding_variance * self.lattice.step**2
        return self.lattice.size * (self.noise_variance + rounding)


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """What is left of shuffled labelled bits: ones, and bits, under each label, int64 (labels,).

    Tallies of disjoint groups of clients add up. ``foreign`` are messages with a label that does not exist,
    which no honest client sends.
    """

    ones: Tensor
    bits: Tensor
    foreign: int = 0

    def __add__(self, other: Tally) -> Tally:
        if not isinstance(other, Tally):
            return NotImplemented
        if self.ones.shape != other.ones.shape:
            raise ValueError(f"tallies of {len(self.ones)} and of {len(other.ones)} labels do not add up")
        return Tally(
            ones=self.ones + other.ones, bits=self.bits + other.bits, foreign=self.foreign + other.foreign
        )

    def __radd__(self, other: int) -> Tally:  # sum(tallies) starts from 0
        return self if other == 0 else NotImplemented


class LabelledSum(SummingProtocol[_R]):
    """A sum whose messages are labelled bits: its total is a number for each label."""

    @property
    @abstractmethod
    def labels(self) -> int:
        """How many labels there are, and numbers in a total."""

    @property
    def message_layout(self) -> ReportLayout:
        """The form of one message: a label and a bit."""
        fields = (FieldLayout((self.labels - 1).bit_length()), FieldLayout(1))
        return ReportLayout(self.name, self.labels, fields)

    @override
    def messages(self, reports: Reports) -> list[Reports]:
        if self.cohort * self.messages_per_client > 1 << 28:
            raise ValueError(
                f"{self.messages_per_client:,} messages from each of {self.cohort:,} clients are too many to "
                "list: hand the shuffler whole reports, or take a protocol of fewer messages"
            )
        layout = self.message_layout
        return [layout.reports(*self._listed(read)) for read in self._read(reports)]

    def tally(self, messages: Reports) -> Tally:
        """Count shuffled messages under each label; impossible labels are left out and counted as foreign."""
        self.message_layout.check(messages)
        label, bit = (part.values.to(torch.int64) for part in messages.fields)
        known = label < self.labels
        label, bit = label[known], bit[known]
        return Tally(
            ones=torch.bincount(label[bit == 1], minlength=self.labels),
            bits=torch.bincount(label, minlength=self.labels),
            foreign=int((~known).sum()),
        )

    @override
    def senders(self, total: Tensor | Tally) -> int:
        if not isinstance(total, Tally):
            return super().senders(total)
        sent = self._sent(total)
        count, rest = divmod(int(sent[0]), self._each)
        if rest or bool((sent != sent[0]).any()):
            raise ValueError("these are not the messages of a whole number of clients: pass reports=")
        return count

    @override
    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Any:
        return self._sum(total, reports=reports)

    @override
    def _sum(self, total: Tensor | Tally, *, reports: int | None = None) -> Tensor:
        numbers = self._total_of(total) if isinstance(total, Tally) else total
        if numbers.shape != (self.labels,):
            raise ValueError(f"a total is ({self.labels},), got {tuple(numbers.shape)}")
        return self._estimated(numbers, self._count(total, reports))

    _each = 1  # messages that a client sends at every place of which it is known how many came

    def _sent(self, tally: Tally) -> Tensor:
        """How many messages came at every such place, int64 (places,)."""
        return tally.bits

    def _total_of(self, tally: Tally) -> Tensor:
        return tally.ones

    @abstractmethod
    def _estimated(self, numbers: Tensor, reports: int) -> Tensor:
        """The estimated sum from a total of so many clients, float64."""

    @abstractmethod
    def _read(self, reports: Reports) -> Any:
        """What each client sends, an entry each, which :meth:`_listed` takes; refuses what none sends."""

    @abstractmethod
    def _listed(self, read: Any) -> tuple[Tensor, Tensor]: ...


class CountSum(LabelledSum[_R]):
    """A sum to which clients send equally many bits under each label: a report is a count for each."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Counts of a client, each under its label."""

    @property
    @abstractmethod
    def messages_per_coordinate(self) -> int:
        """Bits that a client sends under each label."""

    @property
    @override
    def labels(self) -> int:
        return self.size

    @property
    @override
    def messages_per_client(self) -> int:
        return self.labels * self.messages_per_coordinate

    @property
    @override
    def layout(self) -> ReportLayout:
        counts = FieldLayout(self.messages_per_coordinate.bit_length(), self.labels)
        return ReportLayout(self.name, self.labels, (counts,))

    @override
    def total(self, reports: Reports) -> Tensor:
        """Ones under each label in all reports, int64 (labels,); totals of groups of clients add up."""
        return self._read(reports).sum(dim=0, dtype=torch.int64).cpu()

    @property
    def _each(self) -> int:  # type: ignore[override]
        return self.messages_per_coordinate

    @override
    def _read(self, reports: Reports) -> Tensor:
        self.layout.check(reports)
        counts = reports.fields[0].values.reshape(len(reports), self.labels)
        if self.messages_per_coordinate > 1:
            counts = counts.to(torch.int64)
            most = self.messages_per_coordinate
            if counts.numel() and not (int(counts.min()) >= 0 and int(counts.max()) <= most):
                raise ValueError(f"a client sent a count outside [0, {most}]: leave its messages out")
        return counts

    @override
    def _listed(self, read: Tensor) -> tuple[Tensor, Tensor]:
        each = self.messages_per_coordinate
        label = torch.arange(self.labels).repeat_interleave(each)
        return label, (torch.arange(each)[None, :] < read[:, None].cpu()).reshape(-1)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histogram:
    """Unbiased estimates of how many clients hold each category.

    Attributes:
        counts: float64 (categories,); single entries may be negative, or above the number of clients.
        reports: how many clients' data are in it.
        refused: messages that no client following the protocol sends, left out.
    """

    counts: Tensor
    reports: int
    refused: int = 0

    def __post_init__(self) -> None:
        if self.reports < 1:
            raise ValueError("nobody's data are in this histogram: there is nothing to estimate from")

    @property
    def frequencies(self) -> Tensor:
        """Unbiased estimates of the clients' shares, float64 (categories,)."""
        return self.counts / self.reports

    @property
    def distribution(self) -> Tensor:
        """The probability vector nearest to the frequencies, never further from the truth than they are."""
        return onto_simplex(self.frequencies)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Intervals:
    """Confidence intervals for frequencies, float64 (categories,); if ``simultaneous`` all hold together."""

    lower: Tensor
    upper: Tensor
    confidence: float
    simultaneous: bool


class HistogramProtocol(SummingProtocol[_R]):
    """A sum whose total is a histogram: its errors, from the law of one category's noise."""

    if TYPE_CHECKING:  # the sum that it is mixed into has them

        @property
        def labels(self) -> int:
            """How many counts there are."""

        def _sum(self, total: Any, *, reports: int | None = None) -> Tensor: ...

    @abstractmethod
    def _reach(self, error: float, *, reports: int) -> float:
        """t, in clients, with P[|error of a count| > t] ≤ error, for a histogram of so many reports."""

    def exceeding(self, least: float) -> float:
        """Probability that a count is estimated too high by ``least`` clients or more, everybody reporting.

        NotImplementedError where that depends on how many hold the category.
        """
        raise NotImplementedError(f"the noise of a count of {self.name} depends on who holds its category")

    @property
    def squared_error(self) -> float:
        """E‖f̂ − f‖² of the frequencies of those who report, for the data of largest error."""
        return self.worst_variance / self.cohort**2

    def largest_error(self, *, confidence: float = 0.95) -> float:
        """What no frequency is further than from its estimate, with this confidence for all together."""
        error = 1 - checks.confidence(confidence)
        return self._reach(error / self.labels, reports=self.cohort) / self.cohort

    def intervals(
        self, histogram: Histogram, *, confidence: float = 0.95, simultaneous: bool = False
    ) -> Intervals:
        """Intervals for the clients' frequencies: from the exact law of coins, or by Bernstein's inequality.

        With ``simultaneous`` they are widened by a union bound, so that all hold with this confidence.
        """
        error = (1 - checks.confidence(confidence)) / (self.labels if simultaneous else 1)
        reach = self._reach(error, reports=histogram.reports) / histogram.reports
        centre = histogram.frequencies
        return Intervals(
            lower=(centre - reach).clamp(0.0, 1.0),
            upper=(centre + reach).clamp(0.0, 1.0),
            confidence=confidence,
            simultaneous=simultaneous,
        )

    @override
    def estimate(self, total: Tensor | Tally, *, reports: int | None = None) -> Histogram:
        count = self._count(total, reports)
        return Histogram(
            counts=self._sum(total, reports=count),
            reports=count,
            refused=total.foreign if isinstance(total, Tally) else 0,
        )

    def randomize_histogram(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Histogram:
        """A draw of the protocol's histogram, for a host that simulates all clients."""
        return Histogram(counts=self.randomize_sum(x, randomness=randomness).double(), reports=self.cohort)


def onto_simplex(values: Tensor) -> Tensor:
    r"""Euclidean projection of each vector onto the probability simplex, in O(K log K).

    :math:`\max(v - τ, 0)` with the τ for which entries sum to 1 (Duchi, Shalev-Shwartz, Singer, Chandra 2008,
    Figure 1). The simplex is convex, so projecting an estimate never raises its ℓ2 error.

    ``values`` are floating (…, K).
    """
    if not bool(values.isfinite().all()):
        raise ValueError("an estimate has NaN or infinite entries; it cannot be projected")
    # Large common offsets would eat the digits of the cumulated sum.
    shifted = values.double() - values.double().amax(dim=-1, keepdim=True)
    ordered = shifted.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, values.shape[-1] + 1, dtype=torch.float64, device=values.device)
    thresholds = (ordered.cumsum(dim=-1) - 1) / ranks
    kept = (ordered > thresholds).sum(dim=-1, keepdim=True)
    projected = (shifted - thresholds.gather(-1, kept - 1)).clamp_(min=0.0)
    return (projected / projected.sum(dim=-1, keepdim=True)).to(values.dtype)
