"""Private evaluation: each client reports a few metrics, randomised and shuffled like an update."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from flwr.app import MetricRecord, RecordDict
from torch import Tensor

from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import MechanismSpec, Spec, SumSpec
from shuffle_plugins.protocols import VectorSum

MOST_METRICS = 64

FAILED_ROUNDS = "failed-rounds"
"""Name of a metric that clients know by themselves: the share of their rounds in which the app failed."""

_LONGEST_NAME = 128
_RANDOMIZER = "linf-block"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number that a client measures, and the range that it is clipped to.

    Raises:
        ValueError: if the name is not 1 to 128 printable characters, or low < high are not finite.
    """

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        name, ends = self.name, (self.low, self.high)
        if type(name) is not str or not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
            raise ValueError(f"a metric's name has 1 to {_LONGEST_NAME} printable characters, got {name!r}")
        if any(type(end) not in (int, float) or not math.isfinite(end) for end in ends) or not (
            self.low < self.high and math.isfinite(self.high - self.low)
        ):
            raise ValueError(f"the range of metric {name!r} is two finite numbers in order, got {ends!r}")
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateEvaluation:
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

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> PrivateEvaluation(metrics={"accuracy": (0, 1), "loss": (0, 10)}, local_epsilon=1.0).names
        ('accuracy', 'loss')
    """

    metrics: Mapping[str, tuple[float, float]]
    local_epsilon: float | None = None
    noise_multiplier: float | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, Mapping) or not 1 <= len(self.metrics) <= MOST_METRICS:
            raise ValueError(f"metrics are 1 to {MOST_METRICS} names with their ranges, got {self.metrics!r}")
        checks.whole("every", self.every)
        if (self.local_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give local_epsilon, or beside a sum noise_multiplier")
        if self.noise_multiplier is not None:
            checks.number("noise_multiplier", self.noise_multiplier, above=0)
        else:
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
        """The mechanism that makes a report of a client's metrics.

        Args:
            cohort: fewest clients that answer; a sum's noise is made by so many.
            honest_fraction: share of them that a sum's noise counts on.

        Raises:
            ValueError: if so few clients cannot make that noise.
        """
        if self.local_epsilon is not None:
            return MechanismSpec(name=_RANDOMIZER, local_epsilon=self.local_epsilon, radius=1.0)
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
    """A client's metrics as a vector in the cube [-1, 1]^m.

    Args:
        metrics: the metrics that the round asks for, in the order of the entries.
        content: what the app's evaluation returned.
        failed_share: the value of :data:`FAILED_ROUNDS`, which the app does not return.

    Raises:
        ValueError: if a metric is missing, is in several records, or is not one number.
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


def to_json(metrics: Iterable[Metric]) -> str:
    """The metrics as text; empty for none."""
    listed = [[metric.name, metric.low, metric.high] for metric in metrics]
    return json.dumps(listed) if listed else ""


def from_json(text: str) -> tuple[Metric, ...]:
    """Read what :func:`to_json` wrote.

    Raises:
        ValueError: if it is anything else.
    """
    if not text:
        return ()
    try:
        listed = json.loads(text)
        metrics = tuple(Metric(name=name, low=low, high=high) for name, low, high in listed)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError("not a list of metrics") from error
    if not 1 <= len(metrics) <= MOST_METRICS or len({metric.name for metric in metrics}) < len(metrics):
        raise ValueError(f"metrics are 1 to {MOST_METRICS} different ones")
    return metrics
