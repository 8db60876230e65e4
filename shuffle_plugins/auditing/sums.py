"""Audits of multi-message sums: attack what a protocol's clients send, once added up."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.auditing.audit import AuditResult, TrialPlan
from shuffle_plugins.auditing.simulation import Dataset
from shuffle_plugins.protocols import CoinSum, FixedPoint, Interval, SplitSum
from shuffle_plugins.randomness import Randomness, secure

_ENTRIES_AT_ONCE = 1 << 20  # numbers of all clients that are encoded at once: 8 MiB


def audit_sum(
    protocol: CoinSum | SplitSum,
    *,
    delta: float,
    num_trials: int = 20_000,
    confidence: float = 0.99,
    records: tuple[Tensor, Tensor] | None = None,
    randomness: Randomness | None = None,
) -> AuditResult:
    """Attack one sum of all clients, and return the lower bound on ε that the attack proves.

    Client 1 holds one of two records and everybody else the second. What all of them send, through
    ``encode``, is added up as the shuffled messages would be; the score is the total along the difference of
    the two records, which orders outcomes as their likelihood ratio does. The noise of all clients is in it:
    of a protocol with an honest fraction below one, more than it is certified for.

    Args:
        protocol: what to audit.
        delta, num_trials, confidence, randomness: as of :func:`~shuffle_plugins.auditing.audit_round`.
        records: the two records, each (size,); by default the ends of the interval or of a diameter.
    """
    plan = TrialPlan(num_steps=1, num_trials=num_trials, delta=delta, confidence=confidence)
    original, replacement = records or _extreme_records(protocol)
    if not original.shape == replacement.shape == (protocol.lattice.size,):
        raise ValueError(f"records must have shape ({protocol.lattice.size},)")
    source = secure(randomness)

    def scores(trials: int) -> dict[Dataset, NDArray[np.float64]]:
        return {
            dataset: _scores(protocol, first, replacement, original - replacement, trials, source)
            for dataset, first in ((Dataset.ORIGINAL, original), (Dataset.REPLACEMENT, replacement))
        }

    event = plan.choose(scores(plan.tried))
    return plan.judge(
        event,
        scores(num_trials),
        attack="sum along the difference",
        neighbours="two records, everybody else at the replacement",
        adversary=Adversary.MODEL_OBSERVER,
    )


def _extreme_records(protocol: CoinSum | SplitSum) -> tuple[Tensor, Tensor]:
    """Two records as far apart as the protocol takes them."""
    lattice = protocol.lattice
    original = torch.zeros(lattice.size, dtype=torch.float64)
    if isinstance(lattice, Interval):
        original[0] = lattice.upper
        return original, torch.zeros_like(original)
    if isinstance(lattice, FixedPoint):
        original[0] = lattice.radius
        return original, -original
    raise ValueError(f"pass the two records to try on {type(protocol).__name__}")


def _scores(
    protocol: CoinSum | SplitSum,
    first: Tensor,
    others: Tensor,
    line: Tensor,
    trials: int,
    randomness: Randomness,
) -> NDArray[np.float64]:
    """Totals along the line, one per trial, (trials,)."""
    cohort = others.repeat(protocol.cohort, 1)
    cohort[0] = first
    step = max(1, _ENTRIES_AT_ONCE // cohort.numel())
    found = []
    for start in range(0, trials, step):
        count = min(step, trials - start)
        reports = protocol.randomize(cohort.repeat(count, 1), randomness=randomness)
        sent = reports.fields[0].values.long()
        found.append(_totals(protocol, sent.reshape(count, protocol.cohort, -1)) @ line)
    scores: NDArray[np.float64] = torch.cat(found).numpy()
    return scores


def _totals(protocol: CoinSum | SplitSum, sent: Tensor) -> Tensor:
    """Estimates of sums from what clients send, (trials, clients, …): float64 (trials, size)."""
    totals = sent.flatten(1).sum(dim=1, keepdim=True) if isinstance(protocol, SplitSum) else sent.sum(dim=1)
    return torch.stack([protocol.estimate(total, reports=protocol.cohort) for total in totals])
