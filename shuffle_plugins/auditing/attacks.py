r"""Attacks: how an adversary scores the shuffled reports of a round.

Let a report y weigh :math:`a = R_{x_1}(y)/ω(y)` and :math:`b = R_{x_1'}(y)/ω(y)`, with ω the law of a report
of somebody else. Client 1 hides among N clients, those who stay away included, and the others' reports are
independent draws from ω; then the log-likelihood ratio of D and D' is exactly

    log(1 + Σ (a − 1)/N) − log(1 + Σ (b − 1)/N),

the sums over the round's reports (``docs/proofs/accounting.md``, section 1). It is the best score there is
where all others hold the same record. Attacks differ in where a and b come from. No attack can make an audit
unsound: scores are judged on rounds that no attack has seen.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.auditing.simulation import (
    AuditedMechanism,
    LabelledReports,
    Neighbours,
    ReleasedRounds,
    estimand,
)
from shuffle_plugins.core import Reports

Score = Callable[[ReleasedRounds], Tensor]
"""One finite number per round, (rounds,): the larger, the more the round looks like D. Rounds add up."""

ReportLaw = Callable[[AuditedMechanism, Reports, Tensor], Tensor]
"""Log-density of each report if its client's record is the last argument, (reports,).

Against any measure that does not depend on the record. A law only steers an attack: if it is wrong the audit
finds less, it never finds too much.
"""

_LARGEST_WEIGHT = 1e12  # of one report, so that sums stay finite and exact to 1e-4


@dataclass(frozen=True, eq=False)
class Target:
    """What an attack may know before it starts: everything but the random bits."""

    mechanism: AuditedMechanism
    neighbours: Neighbours
    draw: Callable[[], LabelledReports]

    @cached_property
    def samples(self) -> LabelledReports:
        """Labelled reports to learn from; not those on which the attack is judged."""
        return self.draw()


class Attack(ABC):
    """A way to score rounds by how much they look like D rather than D'."""

    name: ClassVar[str]

    @abstractmethod
    def prepare(self, target: Target) -> Score | None:
        """The score against one target; None where the attack does not apply."""


@dataclass(frozen=True, slots=True)
class LikelihoodRatio(Attack):
    """Weights from the mechanism's output law; does not apply to mechanisms that do not tell theirs."""

    law: ReportLaw | None = None  # the mechanism's own ``log_likelihood`` by default
    name: ClassVar[str] = "likelihood ratio"

    @override
    def prepare(self, target: Target) -> Score | None:
        mechanism, neighbours = target.mechanism, target.neighbours
        law = self.law or type(mechanism).log_likelihood
        if self.law is None and not tells_its_law(mechanism, neighbours.original):
            return None

        def score(rounds: ReleasedRounds) -> Tensor:
            def log_density(record: Tensor) -> Tensor:
                return law(mechanism, rounds.reports, record).double()

            each = torch.stack([log_density(record) for record in neighbours.others])
            others = each.logsumexp(dim=0) - math.log(len(each))
            return log_likelihood_ratio(
                rounds,
                original=(log_density(neighbours.original) - others).exp(),
                replacement=(log_density(neighbours.replacement) - others).exp(),
            )

        return score


@dataclass(frozen=True, slots=True)
class Frequencies(Attack):
    """Weights from how often each report occurs; needs no law. It reads the integer fields of a report."""

    name: ClassVar[str] = "report frequencies"

    @override
    def prepare(self, target: Target) -> Score | None:
        samples = target.samples
        if all(part.values.is_floating_point() for part in samples.original.fields):
            return None
        return _learned(samples, _symbols, most=min(1 << 16, len(samples.original) // 2))


@dataclass(frozen=True, slots=True)
class Projection(Attack):
    """Weights from where a report falls along the line that best separates x1 from x1'; needs no law.

    Every number in a report is a coordinate; the line is that of the means' difference, each coordinate
    scaled by its variance. It is cut into quantiles, finer at both ends, and single values that repeat.
    """

    name: ClassVar[str] = "projection"

    @override
    def prepare(self, target: Target) -> Score | None:
        samples = target.samples
        one, two = _numbers(samples.original), _numbers(samples.replacement)
        pooled = np.concatenate([one, two, _numbers(samples.others)])
        spread = pooled.var(axis=0)
        line = np.divide(one.mean(axis=0) - two.mean(axis=0), spread, where=spread > 0, out=0 * spread)
        edges = _edges(pooled @ line)

        def bins(reports: Reports) -> NDArray[np.int64]:
            found: NDArray[np.int64] = np.searchsorted(edges, _numbers(reports) @ line, side="right")
            return found

        return _learned(samples, bins)


@dataclass(frozen=True, slots=True)
class Aggregate(Attack):
    """The mechanism's own estimate of the sum, along x1 - x1'; works where single reports tell little.

    One call of the mechanism's ``sum`` per round.
    """

    name: ClassVar[str] = "aggregate"

    @override
    def prepare(self, target: Target) -> Score | None:
        mechanism, neighbours = target.mechanism, target.neighbours
        line = estimand(neighbours.original, dim=mechanism.dim)
        line = line - estimand(neighbours.replacement, dim=mechanism.dim)

        def score(rounds: ReleasedRounds) -> Tensor:
            ends = pairwise([0, *rounds.sizes.cumsum(0).tolist()])
            sums = [mechanism.sum(rounds.reports.narrow(start, stop)) for start, stop in ends]
            return torch.stack(sums).double() @ line

        return score


DEFAULT_ATTACKS: tuple[Attack, ...] = (LikelihoodRatio(), Frequencies(), Projection())


def log_likelihood_ratio(rounds: ReleasedRounds, *, original: Tensor, replacement: Tensor) -> Tensor:
    """The log-likelihood ratio of D and D' for each round, (rounds,) float64; see the module's docstring.

    Of the weights a and b of each report, (reports,), not negative. Rounded to nine decimals, so that the
    order of a round's reports does not show.
    """

    def log_density(weights: Tensor) -> Tensor:
        capped = weights.double().nan_to_num(nan=1.0).clamp(max=_LARGEST_WEIGHT)
        absent = rounds.populations - rounds.sizes
        share = (absent + rounds.totals(capped)) / rounds.populations.clamp(min=1.0)
        return share.clamp(min=1 / _LARGEST_WEIGHT).log()

    return (log_density(original) - log_density(replacement)).round(decimals=9)


def tells_its_law(mechanism: AuditedMechanism, record: Tensor) -> bool:
    """Whether the mechanism has a ``log_likelihood``."""
    try:
        mechanism.log_likelihood(mechanism.randomize(record.unsqueeze(0)), record)
    except NotImplementedError:
        return False
    return True


def _learned(
    samples: LabelledReports, symbols: Callable[[Reports], NDArray[np.int64]], *, most: float = math.inf
) -> Score | None:
    """A score by the weights of each symbol, estimated from labelled reports; None if there are too many.

    A symbol seen rarely by everybody weighs about one: half an observation is added to every count. Symbols
    never seen weigh one.
    """
    one, two, rest = (symbols(part) for part in (samples.original, samples.replacement, samples.others))
    others = rest if len(rest) else np.concatenate([one, two])
    known = np.unique(np.concatenate([one, two, others]))
    if len(known) > most:
        return None

    def frequencies(seen: NDArray[np.int64]) -> NDArray[np.float64]:
        counts = np.bincount(np.searchsorted(known, seen), minlength=len(known))
        return counts / len(seen) + 0.5 / min(len(one), len(others))

    base = frequencies(others)
    weights = [torch.from_numpy(np.append(frequencies(seen) / base, 1.0)) for seen in (one, two)]

    def score(rounds: ReleasedRounds) -> Tensor:
        seen = symbols(rounds.reports)
        place = np.searchsorted(known, seen).clip(max=len(known) - 1)
        place = np.where(known[place] == seen, place, len(known))
        original, replacement = (each[torch.from_numpy(place)] for each in weights)
        return log_likelihood_ratio(rounds, original=original, replacement=replacement)

    return score


def _symbols(reports: Reports) -> NDArray[np.int64]:
    """The integer fields of each report as one number; different reports collide with probability 2**-60."""
    key = np.zeros(len(reports), dtype=np.int64)
    for part in reports.fields:
        if not part.values.is_floating_point():
            for column in part.values.reshape(len(reports), part.width).to(torch.int64).numpy().T:
                key = key * np.int64(6364136223846793005) + column + 1  # Knuth's multiplier
    return key


def _numbers(reports: Reports) -> NDArray[np.float64]:
    columns = [part.values.reshape(len(reports), part.width).double() for part in reports.fields]
    numbers: NDArray[np.float64] = torch.cat(columns, dim=1).numpy()
    return numbers


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    tail = np.geomspace(1e-6, 1 / 64, 16)
    quantiles = np.quantile(values, np.concatenate([tail, np.linspace(1 / 64, 63 / 64, 63), 1 - tail]))
    repeated, counts = np.unique(values, return_counts=True)
    often = np.argsort(-counts, kind="stable")[:64]
    atoms = repeated[often[counts[often] >= 8]]
    edges: NDArray[np.float64] = np.unique(np.concatenate([quantiles, atoms, np.nextafter(atoms, np.inf)]))
    return edges
