"""Private evaluation: each client reports a few metrics, randomised and shuffled like an update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from flwr.app import MetricRecord, RecordDict
from torch import Tensor

from flwr_shuffle.wire import text_of
from shuffle_plugins.core.ranges import Count, Positive, Ranged, in_range
from shuffle_plugins.mechanisms import MechanismSpec, SumSpec
from shuffle_plugins.mechanisms.spec import Spec
from shuffle_plugins.protocols import VectorSum

MOST_METRICS = 64

FAILED_ROUNDS = "failed-rounds"
"""Name of a metric that clients know by themselves: the share of their rounds in which the app failed."""


@dataclass(frozen=True, kw_only=True)
class Metric(Ranged):
    """A number that a client measures, and the range that it is clipped to."""

    name: Annotated[str, text_of(128)]
    low: Annotated[float, in_range()]
    high: Annotated[float, in_range()]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise ValueError(
                f"the range of {self.name!r} is two finite numbers in order, got {self.low}, {self.high}"
            )


@dataclass(frozen=True, kw_only=True)
class PrivateEvaluation(Ranged):
    """Ask clients for metrics of the model in private reports, that are charged like a round of training.

    Each client evaluates the model on its own data, clips every metric to its range, and sends one randomised
    report of all of them together. The server learns the mean over the clients that reported, every client
    with the same weight. With ``local_epsilon`` the reports are shuffled, with the noise of ``linf-block``:
    the standard deviation of a mean is half the width of the range, times c / √reports, where c is 2.1 for
    one metric and 3.0 for two at ε0 = 1, and 1.2 and 1.6 at ε0 = 2. With ``noise_multiplier`` they are added
    up by the stage of a sum, in a ``VectorSum`` of their own: half the width, times noise_multiplier ·
    √metrics / reports. Its cost adds to that of training, in the same ledger.

    Args:
        metrics: (low, high) of each metric, by the name it has in the clients' MetricRecord. Choose ranges
            that most values are in: a value outside counts as the nearer end.
            ``"failed-rounds": (0, 1)`` is the share of a client's rounds of this run in which its app failed.
            For models of 1,000 numbers or more training itself tells of it, without this cost.
        local_epsilon: ε0 of one client's report, in nats.
        noise_multiplier: in place of ``local_epsilon`` beside a sum; of the sum of the metrics, as in
            :meth:`~shuffle_plugins.protocols.VectorSum.with_noise`.
        every: evaluate after every so many rounds.

    Example:
        >>> PrivateEvaluation(metrics={"accuracy": (0, 1), "loss": (0, 10)}, local_epsilon=1.0).names
        ('accuracy', 'loss')
    """

    metrics: Mapping[str, tuple[float, float]]
    local_epsilon: float | None = None
    noise_multiplier: Positive | None = None
    every: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.metrics, Mapping) or not 1 <= len(self.metrics) <= MOST_METRICS:
            raise ValueError(f"metrics are 1 to {MOST_METRICS} names with their ranges, got {self.metrics!r}")
        if (self.local_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give local_epsilon, or beside a sum noise_multiplier")
        if self.noise_multiplier is None:
            self.spec(cohort=2).build(dim=len(self.ranges))

    @property
    def ranges(self) -> tuple[Metric, ...]:
        """The metrics in the order in which they lie in a report."""
        return tuple(Metric(name=name, low=ends[0], high=ends[1]) for name, ends in self.metrics.items())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics that clients report, in the order of the report's numbers."""
        return tuple(self.metrics)

    def spec(self, *, cohort: int, honest_fraction: float = 1.0) -> Spec:
        """The mechanism that makes a report; the noise of a sum is made by so many clients, of which a share
        is honest.
        """
        if self.local_epsilon is not None:
            return MechanismSpec(name="linf-block", local_epsilon=self.local_epsilon, radius=1.0)
        assert self.noise_multiplier is not None
        metrics = len(self.metrics)
        return SumSpec(
            protocol=VectorSum.with_noise(
                dim=metrics,
                cohort=cohort,
                noise_multiplier=self.noise_multiplier,
                radius=math.sqrt(metrics),  # of the ball around the cube of their ranges
                honest_fraction=honest_fraction,
            )
        )


def vector_of(metrics: Iterable[Metric], content: RecordDict, *, failed_share: float) -> Tensor:
    """A client's metrics as a vector in the cube [-1, 1]^m; ``failed_share`` is the value of
    FAILED_ROUNDS.
    """
    values = []
    for metric in metrics:
        found = [record[metric.name] for record in content.metric_records.values() if metric.name in record]
        if metric.name == FAILED_ROUNDS:
            found = [failed_share]
        if len(found) != 1 or isinstance(found[0], list) or math.isnan(found[0]):
            raise ValueError(f"evaluation returned no single number as {metric.name!r}")
        clipped = min(max(float(found[0]), metric.low), metric.high)
        values.append(2 * (clipped - metric.low) / (metric.high - metric.low) - 1)
    return torch.tensor(values, dtype=torch.float32).clamp_(-1, 1)


def record_of(metrics: Iterable[Metric], mean: Tensor) -> MetricRecord:
    """The mean of each metric, from the mean of the vectors; by its noise it can be outside of the range."""
    return MetricRecord(
        {
            metric.name: metric.low + (float(entry) + 1) / 2 * (metric.high - metric.low)
            for metric, entry in zip(metrics, mean, strict=True)
        }
    )
