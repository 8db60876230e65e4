"""Two neighbouring datasets, and shuffled rounds on them, simulated many at a time in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shuffle_plugins.accounting import Adversary, Sampling, ShuffleRound
from shuffle_plugins.core import Reports, checks
from shuffle_plugins.mechanisms.base import FrequencyOracle, LocalRandomizer, Norm
from shuffle_plugins.randomness.sources import Randomness

AuditedMechanism = LocalRandomizer | FrequencyOracle
"""What can be audited: a randomizer of vectors or of categories."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Neighbours:
    """A pair of replace-one neighbours: client 1 holds ``original`` in D and ``replacement`` in D'.

    Vectors are (dim,), categories (). The other n - 1 clients hold ``others``, (records, dim) or (records,),
    at least one, in turn, in both datasets.
    """

    name: str
    original: Tensor
    replacement: Tensor
    others: Tensor

    def __post_init__(self) -> None:
        one, two, rest = self.original, self.replacement, self.others
        fits = two.shape == one.shape and rest.dim() == one.dim() + 1 and rest.shape[1:] == one.shape
        if one.dim() > 1 or not fits:
            raise ValueError(
                "neighbours are two records (dim,) and the others' records (records, dim), or two categories "
                "() and the others' categories (records,), got shapes "
                f"{tuple(one.shape)}, {tuple(two.shape)}, {tuple(rest.shape)}"
            )
        if rest.shape[0] == 0:
            raise ValueError("neighbours need at least one record for the other clients")
        if not one.dtype == two.dtype == rest.dtype:
            raise ValueError("the records of neighbours differ in dtype")


def extreme_neighbours(mechanism: AuditedMechanism) -> tuple[Neighbours, ...]:
    """Records as far apart as the mechanism's domain has them, before several choices of everybody else.

    For categories the first two, for vectors antipodal records on the boundary of the ball, float32.
    """
    if isinstance(mechanism, FrequencyOracle):
        return _two_categories(mechanism.dim)
    dim = mechanism.dim
    unit = {Norm.L1: torch.eye(1, dim)[0], Norm.L2: torch.full((dim,), dim**-0.5), Norm.LINF: torch.ones(dim)}
    original: Tensor = mechanism.radius * unit[mechanism.norm]
    replacement = -original
    choices = {
        "antipodal records, everybody else at the replacement": replacement.unsqueeze(0),
        "antipodal records, everybody else at the original": original.unsqueeze(0),
        "antipodal records, everybody else at the origin": torch.zeros(1, mechanism.dim),
        "antipodal records, everybody else at one of the two": torch.stack([replacement, original]),
    }
    if mechanism.dim > 1:
        between = _between(original, norm=mechanism.norm)
        choices["antipodal records, everybody else between the two"] = between.unsqueeze(0)
    return tuple(
        Neighbours(name=name, original=original, replacement=replacement, others=others)
        for name, others in choices.items()
    )


def _two_categories(dim: int) -> tuple[Neighbours, ...]:
    choices = {"at the replacement": [1], "at the original": [0], "at one of the two": [1, 0]}
    if dim > 2:
        choices["at a third"] = [dim - 1]
    return tuple(
        Neighbours(
            name=f"two categories, everybody else {place}",
            original=torch.tensor(0),
            replacement=torch.tensor(1),
            others=torch.tensor(others),
        )
        for place, others in choices.items()
    )


def estimand(record: Tensor, *, dim: int) -> Tensor:
    """What a report of a record estimates, (dim,) float64: the vector itself, or a category's unit vector."""
    if record.dim() == 1:
        return record.double()
    unit = torch.zeros(dim, dtype=torch.float64)
    unit[record] = 1
    return unit


def _between(original: Tensor, *, norm: Norm) -> Tensor:
    if norm is Norm.L1:
        return original.roll(1)
    turned = original.clone()
    turned[1::2] *= -1
    if norm is Norm.L2 and len(original) % 2:
        turned[-1] = 0
        turned *= (len(original) / (len(original) - 1)) ** 0.5
    return turned


_CHUNK = 1 << 20  # most numbers of all clients, or rounds, that are randomised at once
_ORDER_BITS = 43  # random bits of a report's place; the 20 bits above them hold its round

_NOT_ONE_ROUND = {
    Sampling.SINGLE_PASS: "a single pass is measured against whoever knows the batches: audit its smallest "
    "batch as a round with full participation",
    Sampling.CHECK_IN: "a check-in pass is not one round: audit a round with full participation, which is "
    "what a whole pass is certified as, against an observer",
    Sampling.EPOCH: "an epoch is not one round: audit a round with full participation, which is what an "
    "epoch is certified as: one of the population against an observer, of one batch against a server",
}


class Dataset(StrEnum):
    """Which of the two neighbours a round was run on."""

    ORIGINAL = "original"
    REPLACEMENT = "replacement"

    @property
    def other(self) -> Dataset:
        """The other one of the two."""
        return Dataset.REPLACEMENT if self is Dataset.ORIGINAL else Dataset.ORIGINAL


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedRounds:
    """What the adversary sees of several rounds."""

    reports: Reports  # round by round; within a round in uniformly random order
    sizes: Tensor  # (rounds,) int64, how many reports each round has
    populations: Tensor  # (rounds,) float64, among how many clients client 1 must be looked for

    def totals(self, values: Tensor) -> Tensor:
        """Sums of one number per report, (reports,), over each round: (rounds,) float64."""
        index = torch.repeat_interleave(self.sizes)
        return torch.zeros(len(self.sizes), dtype=torch.float64).index_add_(0, index, values.double())


@dataclass(frozen=True, slots=True, eq=False)
class LabelledReports:
    """Reports to learn a mechanism's laws from: those of client 1 by dataset, and everybody else's."""

    original: Reports
    replacement: Reports
    others: Reports


class RoundSimulator:
    """Runs a mechanism on two neighbouring datasets.

    Client 1's row comes first in the mechanism's batch and reports are shuffled afterwards, so what a report
    tells about its row stays in it. ``rounds_per_call`` rounds' clients share one call of ``randomize``; None
    for as many as fit. With 1 every call is one cohort, as in a deployment, which is slower.
    """

    def __init__(
        self,
        *,
        mechanism: AuditedMechanism,
        neighbours: Neighbours,
        shuffle_round: ShuffleRound,
        rounds_per_call: int | None,
        randomness: Randomness,
    ) -> None:
        if type(shuffle_round) is not ShuffleRound:
            raise ValueError(
                f"simulated are rounds of one report of each client; this is a {type(shuffle_round).__name__}"
            )
        if shuffle_round.sampling in _NOT_ONE_ROUND:
            raise ValueError(_NOT_ONE_ROUND[shuffle_round.sampling])
        if rounds_per_call is not None:
            checks.whole("rounds_per_call", rounds_per_call)
        self._mechanism = mechanism
        self._round = shuffle_round
        self._records = {
            Dataset.ORIGINAL: torch.cat([neighbours.original.unsqueeze(0), neighbours.others]),
            Dataset.REPLACEMENT: torch.cat([neighbours.replacement.unsqueeze(0), neighbours.others]),
        }
        kinds = len(neighbours.others)
        others = shuffle_round.population - 1
        self._holders = np.array([(others + kinds - 1 - i) // kinds for i in range(kinds)])
        self._rounds_per_call = rounds_per_call
        self._randomness = randomness
        self._sees_cohort = shuffle_round.adversary is Adversary.SERVER
        key = randomness.words(2).numpy().view(np.uint64)
        self._generator = np.random.Generator(np.random.Philox(key=key))

    def released(self, dataset: Dataset, *, num_rounds: int) -> Iterator[ReleasedRounds]:
        """Simulate rounds and yield what the adversary sees of them, in chunks."""
        for start in range(0, num_rounds, self._chunk):
            count = min(self._chunk, num_rounds - start)
            cohorts = self._cohorts(count, present=self._sees_cohort)
            sizes = torch.from_numpy(cohorts.sum(axis=1))
            reports = self._randomize(dataset, cohorts)
            among = sizes if self._sees_cohort else torch.full((count,), self._round.population)
            yield ReleasedRounds(reports.permute(self._orders(sizes)), sizes, among.double())

    def labelled(self, *, num_rounds: int) -> LabelledReports:
        """Reports of rounds with client 1 in them, as far as they fit into memory, by whose they are."""
        count = max(1, min(num_rounds, 4 * self._chunk))
        first: dict[str, Reports] = {}
        others = []
        for dataset in Dataset:
            cohorts = self._cohorts(count, present=True)
            reports = self._randomize(dataset, cohorts)
            sizes = torch.from_numpy(cohorts.sum(axis=1))
            starts = sizes.cumsum(0) - sizes
            rest = torch.ones(len(reports), dtype=torch.bool)
            rest[starts] = False
            ordered = reports.permute(torch.cat([starts, rest.nonzero().squeeze(1)]))
            first[dataset.value] = ordered.narrow(0, count)
            others.append(ordered.narrow(count, len(reports)))
        return LabelledReports(**first, others=Reports.concat(others))

    @property
    def _chunk(self) -> int:
        values = max(self._round.cohort, 1.0) * self._mechanism.dim
        return max(1, min(int(_CHUNK / values), _CHUNK))

    def _cohorts(self, count: int, *, present: bool) -> NDArray[np.int64]:
        """How many clients of each kind take part in each round, (count, 1 + kinds); client 1 comes first."""
        drawn, rate = self._generator, self._round.sampling_rate
        first = np.ones(count, dtype=np.int64) if present else (drawn.random(count) < rate).astype(np.int64)
        cohorts = np.zeros((count, 1 + len(self._holders)), dtype=np.int64)
        cohorts[:, 0] = first
        if self._round.sampling is Sampling.POISSON:
            cohorts[:, 1:] = drawn.binomial(self._holders, rate, size=(count, len(self._holders)))
            return cohorts
        for inside in (0, 1):
            chosen = np.flatnonzero(first == inside)
            size = int(self._round.cohort) - inside
            if len(self._holders) == 1:
                cohorts[chosen, 1] = size
            elif len(chosen):
                cohorts[chosen, 1:] = drawn.multivariate_hypergeometric(
                    self._holders, size, size=len(chosen), method="marginals"
                )
        return cohorts

    def _randomize(self, dataset: Dataset, cohorts: NDArray[np.int64]) -> Reports:
        step = self._rounds_per_call or len(cohorts)
        kinds = np.arange(cohorts.shape[1])
        parts = []
        for start in range(0, len(cohorts), step):
            part = cohorts[start : start + step]
            holders = torch.from_numpy(np.repeat(np.tile(kinds, len(part)), part.ravel()))
            rows = self._records[dataset][holders]
            parts.append(self._mechanism.randomize(rows, randomness=self._randomness))
        return Reports.concat(parts)

    def _orders(self, sizes: Tensor) -> Tensor:
        """An order of all reports that leaves them in their rounds and is uniform in each.

        Two of k reports draw the same key with probability below k²/2**44, and then keep their order.
        """
        index = torch.repeat_interleave(sizes)
        keys = self._randomness.words(len(index)).bitwise_and_((1 << _ORDER_BITS) - 1)
        return keys.add_(index << _ORDER_BITS).argsort(stable=True)
