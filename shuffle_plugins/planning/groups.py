"""Means over groups of clients whose reports are of different precision; what a louder report is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shuffle_plugins.accounting.rounds.groups import ONE_BIT
from shuffle_plugins.core import checks
from shuffle_plugins.planning.errors import NormName, report_error


@dataclass(frozen=True, kw_only=True)
class GroupWeights:
    """Weights by which the means of groups add up to one mean.

    Attributes:
        weights: one for each group; they sum to one.
        variance: E‖weighted mean − its own mean‖², from the groups' variances.
    """

    weights: tuple[float, ...]
    variance: float

    def combine(self, means: Sequence[Any]) -> Any:
        """The weighted mean of the groups' means: numbers, arrays or tensors."""
        if len(means) != len(self.weights):
            raise ValueError(f"there are {len(self.weights)} groups, got {len(means)} means")
        return sum(weight * mean for weight, mean in zip(self.weights, means, strict=True))


def weigh_groups(variances: Sequence[float], *, clients: Sequence[int] | None = None) -> GroupWeights:
    """Weights for groups whose unbiased means have these variances; reports have to show their group.

    Args:
        variances: E‖estimate − mean‖² of each group's mean, positive. For k reports the variance of one over
            k; where groups are samples of one population, and more than the noise, plus S²/k.
        clients: the number of clients of each group: then the mean of all clients is estimated without bias,
            whatever they hold. None weighs by precision, one over the variance: the smallest variance
            there is (Gauss and Markov), unbiased for a mean that all groups have in common, as they do where
            who is in which group does not depend on what clients hold.
    """
    each = [checks.number("variances", variance, above=0) for variance in variances]
    if not each:
        raise ValueError("give the variance of one group at least")
    if clients is None:
        raw = [min(each) / variance for variance in each]
    elif len(clients) == len(each):
        raw = [float(checks.whole("clients", count)) for count in clients]
    else:
        raise ValueError(f"there are {len(each)} variances and {len(clients)} numbers of clients")
    weights = tuple(weight / math.fsum(raw) for weight in raw)
    return GroupWeights(
        weights=weights, variance=math.fsum(w * w * v for w, v in zip(weights, each, strict=True))
    )


def one_encoding_factor(mechanism: str, *, groups: Sequence[tuple[float, int]], decoded_at: float) -> float:
    """What makes a mean of the sum of reports that do not show their group: mean = factor · sum.

    The reports are all decoded with one ε0, ``decoded_at``. One of another ε0 is then off by a known factor,
    tanh(ε0/2)/tanh(decoded_at/2), so that each group's mean has a weight in proportion to tanh(ε0/2) times
    its reports. That is unbiased for a mean that groups have in common. The variance is at most the number of
    reports times factor² times that of one report at ``decoded_at``.

    Args:
        mechanism: ``"binary-rr"``, ``"l1-hadamard"`` or ``"linf-coordinate"``.
        groups: ε0 and number of reports of each.
        decoded_at: ε0 of the mechanism that decodes.
    """
    if mechanism not in ONE_BIT:
        raise ValueError(f"mechanism must be one of {', '.join(sorted(ONE_BIT))}, got {mechanism!r}")
    shown = [math.tanh(checks.local_epsilon(level) / 2) * checks.whole("groups", n) for level, n in groups]
    return math.tanh(checks.local_epsilon(decoded_at, name="decoded_at") / 2) / math.fsum(shown)


def report_worth(
    mechanism: str, *, local_epsilon: float, louder: float, dim: int, norm: NormName, radius: float = 1.0
) -> float:
    """How many reports of ``local_epsilon`` one of ε0 ``louder`` is worth: the ratio of their variances."""
    quiet, loud = (
        report_error(mechanism, local_epsilon=level, dim=dim, radius=radius, norm=norm).variance
        for level in (local_epsilon, louder)
    )
    return quiet / loud
