"""Numbers that clients measure, of a model or of their data: a vector in a ball, and what its mean tells.

Ranges and bins are public, and the same for all clients of a round.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from flwr_shuffle.updates import numbers_in, of_kind, text_of
from shuffle_plugins.core.checks import Count, Positive, Ranged, in_range, whole_number
from shuffle_plugins.mechanisms import MechanismSpec, Norm, SumSpec
from shuffle_plugins.mechanisms.spec import Spec
from shuffle_plugins.protocols import VectorSum

MOST_METRICS = 64
MOST_ENTRIES = 1 << 20  # of all metrics together, so that no server makes a client fill its memory

_FAILED_ROUNDS = "failed-rounds"  # a metric that clients know by themselves
_PARTS = 16  # of a range, and of each of these: see Quantiles

_Vector = NDArray[np.float64]
_BinCount = Annotated[int, whole_number(at_most=MOST_ENTRIES)]


class MetricKind(Ranged, ABC):
    """What is told of the numbers that clients return under a name.

    A client's entries are in [−1, 1], and add up to at most ``levels`` in absolute values. Every client has
    the same weight, however many numbers it returns.
    """

    levels: ClassVar[int] = 1

    @property
    @abstractmethod
    def size(self) -> int:
        """How many entries a client's vector has for it."""

    @abstractmethod
    def vector(self, found: Sequence[float]) -> _Vector:
        """A client's entries, (size,), from the numbers that its app returned; ValueError for others."""

    @abstractmethod
    def read(self, mean: _Vector, *, reports: int) -> float | list[float]:
        """What the entries' mean over so many clients says."""

    def error(self, noise: float, *, reports: int) -> float:
        """Standard error of what is told, from that of the sum of one entry over so many clients."""
        del reports
        return noise


@dataclass(frozen=True)
class _Ranges(MetricKind):
    """A kind with a public range; a number outside counts as the nearer end."""

    low: Annotated[float, in_range()]
    high: Annotated[float, in_range()]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise ValueError(f"a range is two finite numbers in order, got {self.low}, {self.high}")

    def binned(self, found: Sequence[float], *, bins: int) -> _Vector:
        """The share of the numbers in each of equal bins; zeros if there are none."""
        inner = np.linspace(self.low, self.high, bins + 1)[1:-1]
        counts = np.bincount(np.digitize(found, inner), minlength=bins)
        return counts / max(1, len(found))


@dataclass(frozen=True)
class Mean(_Ranges):
    """The mean over the clients of one number each, in the range [low, high]."""

    @property
    @override
    def size(self) -> int:
        return 1

    @override
    def vector(self, found: Sequence[float]) -> _Vector:
        if len(found) != 1:
            raise ValueError(f"a mean takes one number of each client, and the app returned {len(found)}")
        value = min(max(found[0], self.low), self.high)
        return np.array([2 * (value - self.low) / (self.high - self.low) - 1])

    @override
    def read(self, mean: _Vector, *, reports: int) -> float:
        return self.low + (float(mean[0]) + 1) / 2 * (self.high - self.low)

    @override
    def error(self, noise: float, *, reports: int) -> float:
        return noise / reports / 2 * (self.high - self.low)


@dataclass(frozen=True)
class Counts(MetricKind):
    """How many clients hold each of ``bins`` things, from counts or shares that the app returns in a list.

    Those of one client that add up to more than 1 are divided by their sum. With one thing it is how many
    clients hold it: the app returns 1 or 0.
    """

    bins: _BinCount = 1

    @property
    @override
    def size(self) -> int:
        return self.bins

    @override
    def vector(self, found: Sequence[float]) -> _Vector:
        if len(found) != self.bins or min(found) < 0 or math.isinf(max(found)):
            raise ValueError(f"counts are {self.bins} finite numbers, none below 0")
        shares: _Vector = np.array(found) / max(1.0, sum(found))
        return shares if self.bins > 1 else 2 * shares - 1  # both ends are equally far from the middle

    @override
    def read(self, mean: _Vector, *, reports: int) -> float | list[float]:
        found: list[float] = (reports * mean).tolist()
        return found if self.bins > 1 else (found[0] + reports) / 2

    @override
    def error(self, noise: float, *, reports: int) -> float:
        return noise if self.bins > 1 else noise / 2


@dataclass(frozen=True)
class Bins(_Ranges):
    """How many clients' numbers lie in each of equal bins between ``low`` and ``high``.

    The app returns a number, or a list of them: then a client counts in each bin by the share of its numbers.
    """

    bins: _BinCount

    @property
    @override
    def size(self) -> int:
        return self.bins

    @override
    def vector(self, found: Sequence[float]) -> _Vector:
        return self.binned(found, bins=self.bins)

    @override
    def read(self, mean: _Vector, *, reports: int) -> list[float]:
        found: list[float] = (reports * mean).tolist()
        return found


@dataclass(frozen=True)
class Quantiles(_Ranges):
    """Quantiles of clients' numbers between ``low`` and ``high``, to a 256th of that range.

    A client tells in which of 16 parts of the range its number lies, and in which of 16 parts of that. Both
    counts are made to agree by least squares. Of all trees with 256 leaves this one has the least error with
    noise for an ℓ1 ball: 4.5 times a count's in the distribution function, where counts of 256 bins have 6.5,
    and trees that branch in 4 or 2 have 5.4 and 7.6.

    Attributes:
        at: which quantiles, in (0, 1): 0.5 is the median.
    """

    levels: ClassVar[int] = 2

    at: tuple[float, ...] = field(default=(0.5,), compare=False)  # clients report the same for all

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.at, tuple) or not self.at or not all(0 < each < 1 for each in self.at):
            raise ValueError(f"at is a tuple of numbers in (0, 1), got {self.at!r}")

    @property
    @override
    def size(self) -> int:
        return _PARTS + _PARTS**2

    @override
    def vector(self, found: Sequence[float]) -> _Vector:
        fine = self.binned(found, bins=_PARTS**2)
        return np.concatenate([fine.reshape(_PARTS, _PARTS).sum(axis=1), fine])

    @override
    def read(self, mean: _Vector, *, reports: int) -> list[float]:
        from scipy.optimize import isotonic_regression  # clients do not need it

        coarse, fine = mean[:_PARTS], mean[_PARTS:].reshape(_PARTS, _PARTS)
        fine = fine + ((coarse - fine.sum(axis=1)) / (_PARTS + 1))[:, None]
        below = isotonic_regression(np.cumsum(fine)).x.clip(min=0)
        edges = np.linspace(self.low, self.high, _PARTS**2 + 1)
        wanted = np.array(self.at) * max(float(below[-1]), np.finfo(float).tiny)
        found: list[float] = np.interp(wanted, np.concatenate([[0.0], below]), edges).tolist()
        return found

    @override
    def error(self, noise: float, *, reports: int) -> float:
        """Of the share of clients below a quantile: at most 2.75 entries', in the middle of the range."""
        return 2.75 * noise / reports


@dataclass(frozen=True, kw_only=True)
class Metric(Ranged):
    """What clients return under a name, and what is told of it."""

    name: Annotated[str, text_of(128)]
    kind: Annotated[Mean | Counts | Bins | Quantiles, of_kind(MetricKind, "a kind of metric")]


def metrics_of(metrics: Mapping[str, MetricKind | tuple[float, float]]) -> tuple[Metric, ...]:
    """The metrics of these names in their order in a vector; two numbers are a range of a :class:`Mean`."""
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics are names with what is told of each, got {metrics!r}")
    for name, kind in metrics.items():
        if isinstance(kind, (tuple, list)) and len(kind) != 2:
            raise ValueError(f"the range of {name!r} is two numbers, got {kind!r}")
    found = tuple(
        Metric(name=name, kind=Mean(*kind) if isinstance(kind, (tuple, list)) else kind)  # type: ignore[arg-type]
        for name, kind in metrics.items()
    )
    check_metrics(found)
    if not found:
        raise ValueError("nothing is asked for: give at least one metric")
    return found


def check_metrics(metrics: Sequence[Metric]) -> None:
    """Refuse a name twice, and more than a client takes on."""
    if len({metric.name for metric in metrics}) < len(metrics) or len(metrics) > MOST_METRICS:
        raise ValueError(f"metrics are at most {MOST_METRICS} different ones")
    if size_of(metrics) > MOST_ENTRIES:
        raise ValueError(f"the bins of all metrics together are at most {MOST_ENTRIES:,}")


def size_of(metrics: Iterable[Metric]) -> int:
    """Length of the vector of all metrics."""
    return sum(metric.kind.size for metric in metrics)


def radius_of(metrics: Iterable[Metric], norm: Norm) -> float:
    """Radius of the ball that holds every vector of these metrics."""
    levels = sum(metric.kind.levels for metric in metrics)
    return {Norm.L1: float(levels), Norm.L2: math.sqrt(levels), Norm.LINF: 1.0}[norm]


def vector_of(metrics: Iterable[Metric], content: RecordDict, *, failed_share: float) -> Tensor:
    """A client's metrics as a vector, with the share of its rounds that failed."""
    vectors = []
    for metric in metrics:
        failed = metric.name == _FAILED_ROUNDS
        found = [failed_share] if failed else numbers_in(content, metric.name)
        vectors.append(metric.kind.vector(found))
    return torch.from_numpy(np.concatenate(vectors)).float().clamp_(-1, 1)


def errors_of(metrics: Iterable[Metric], noise: float, *, reports: int) -> MetricRecord:
    """Standard errors of what :func:`record_of` gives, from that of the sum of one entry."""
    return MetricRecord({each.name: each.kind.error(noise, reports=reports) for each in metrics})


def record_of(metrics: Iterable[Metric], mean: Tensor, *, reports: int) -> MetricRecord:
    """What the vectors' mean over so many clients says of each metric."""
    record, start, entries = MetricRecord(), 0, mean.double().numpy()
    for metric in metrics:
        record[metric.name] = metric.kind.read(entries[start : start + metric.kind.size], reports=reports)
        start += metric.kind.size
    return record


@dataclass(frozen=True, kw_only=True)
class PrivateEvaluation(Ranged):
    """Ask clients for metrics of the model in private reports, that are charged like a round of training.

    Each client sends one randomised report of all metrics together. docs/guides/flower.md says how exact.

    Args:
        metrics: what is told of each, by the name it has in the clients' MetricRecord: ``(low, high)`` is the
            range of a mean, and a value outside counts as the nearer end. Counts, histograms and quantiles go
            as in a query (docs/guides/queries.md). ``"failed-rounds": (0, 1)`` is the share of a client's
            rounds of this run in which its app failed.
        local_epsilon: ε0 of one client's report, in nats.
        noise_multiplier: in place of ``local_epsilon`` beside a sum; of the sum of the metrics, as in
            :meth:`~shuffle_plugins.protocols.VectorSum.with_noise`.
        every: evaluate after every so many rounds.

    Example:
        >>> PrivateEvaluation(metrics={"accuracy": (0, 1), "loss": (0, 10)}, local_epsilon=1.0).every
        1
    """

    metrics: Mapping[str, MetricKind | tuple[float, float]]
    local_epsilon: float | None = None
    noise_multiplier: Positive | None = None
    every: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = metrics_of(self.metrics)
        if (self.local_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give local_epsilon, or beside a sum noise_multiplier")
        if self.noise_multiplier is None:
            self.spec(cohort=2).build(dim=size_of(asked))

    @property
    def asked(self) -> tuple[Metric, ...]:
        """The metrics in the order in which they lie in a report."""
        return metrics_of(self.metrics)

    def spec(self, *, cohort: int, honest_fraction: float = 1.0) -> Spec:
        """The mechanism that makes a report; the noise of a sum is made by so many clients."""
        if self.local_epsilon is not None:
            return MechanismSpec(name="linf-block", local_epsilon=self.local_epsilon, radius=1.0)
        assert self.noise_multiplier is not None
        return SumSpec(
            protocol=VectorSum.with_noise(
                dim=size_of(self.asked),
                cohort=cohort,
                noise_multiplier=self.noise_multiplier,
                radius=radius_of(self.asked, Norm.L2),
                honest_fraction=honest_fraction,
            )
        )
