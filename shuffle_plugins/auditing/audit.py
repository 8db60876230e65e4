"""The audit: attack simulated rounds or sums, and say what the attack proves about ε."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shuffle_plugins.accounting import NEIGHBOURING_RELATION, Adversary, Sampling, ShuffleRound
from shuffle_plugins.auditing.attacks import DEFAULT_ATTACKS, Attack, Score, Target
from shuffle_plugins.auditing.simulation import (
    AuditedMechanism,
    Dataset,
    Neighbours,
    RoundSimulator,
    extreme_neighbours,
)
from shuffle_plugins.core.checks import Count, Ranged, in_range, whole_number
from shuffle_plugins.core.confidence import epsilon_lower_bound
from shuffle_plugins.protocols import SplitSum
from shuffle_plugins.protocols.coins import CoinSum
from shuffle_plugins.protocols.lattices import FixedPoint, Interval
from shuffle_plugins.protocols.windows import WindowedSum, Windows
from shuffle_plugins.randomness import Randomness, secure

Side = Literal["at least", "below"]

Scores = dict[Dataset, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """That a trial's score is ``side`` a threshold; it is likelier on the dataset ``suspect``."""

    threshold: float
    side: Side
    suspect: Dataset
    promise: tuple[float, float]
    """The bound that it would have proved on the trials on which it was chosen and, where that is 0, the
    standardised difference of both counts. The full confidence keeps events that were merely lucky out."""

    @classmethod
    def best(cls, scores: Scores, *, delta: float, confidence: float) -> Self:
        """The best threshold and direction for these scores of as many trials on each dataset."""
        thresholds = _thresholds(np.concatenate(list(scores.values())))
        trials = len(scores[Dataset.ORIGINAL])
        below = {dataset: np.searchsorted(np.sort(found), thresholds) for dataset, found in scores.items()}
        sides: tuple[Side, ...] = ("at least", "below")
        found = []
        for side, suspect in itertools.product(sides, Dataset):
            hits, false_alarms = (
                below[dataset] if side == "below" else trials - below[dataset]
                for dataset in (suspect, suspect.other)
            )
            bounds = epsilon_lower_bound(
                hits, false_alarms, trials=trials, delta=delta, confidence=confidence
            )
            apart = (hits - false_alarms) / np.sqrt(hits + false_alarms + 1.0)
            place = int(np.lexsort((apart, bounds))[-1])
            promise = float(bounds[place]), float(apart[place])
            found.append(cls(threshold=float(thresholds[place]), side=side, suspect=suspect, promise=promise))
        return max(found, key=lambda event: event.promise)

    def count(self, scores: NDArray[np.float64]) -> int:
        """In how many trials the event happens."""
        below = int((scores < self.threshold).sum())
        return below if self.side == "below" else len(scores) - below


def _thresholds(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lines between neighbouring scores, at quantiles and close to both ends."""
    values = np.unique(scores)
    if len(values) == 1:
        return values
    ordered = np.sort(scores)
    ends = np.unique(np.geomspace(1, len(ordered), 64).astype(np.int64)) - 1
    spread = np.linspace(0, len(ordered) - 1, 128).astype(np.int64)
    chosen = np.unique(np.concatenate([ordered[ends], ordered[len(ordered) - 1 - ends], ordered[spread]]))
    place = np.searchsorted(values, chosen)
    upper = values[np.minimum(place + 1, len(values) - 1)]
    lines: NDArray[np.float64] = np.unique((chosen + upper) / 2)
    return lines


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """What an attack proves about ε. It bounds from below only: no audit can show that something is private.

    The mechanism is not (ε', δ)-DP for any ε' < ``epsilon``, unless an event of probability at most
    1 - ``confidence`` happened in the audit. In ``num_trials`` on each of two datasets, of ``num_steps``
    rounds, the ``event`` happened ``hits`` times on the suspect one, and ``false_alarms`` times on the other.
    """

    epsilon: float
    delta: float
    confidence: float
    num_trials: int
    num_steps: int
    attack: str
    neighbours: str
    event: Event
    hits: int
    false_alarms: int
    adversary: str
    neighbouring_relation: ClassVar[str] = NEIGHBOURING_RELATION

    def violates(self, certified_epsilon: float) -> bool:
        """Whether the attack refutes the claim that the mechanism is (``certified_epsilon``, δ)-DP."""
        if not certified_epsilon >= 0:
            raise ValueError(f"certified_epsilon must be a number, at least 0, got {certified_epsilon!r}")
        return self.epsilon > certified_epsilon

    def consistent_with(self, certified_epsilon: float) -> bool:
        """Whether the attack leaves that claim standing; it does not confirm it."""
        return not self.violates(certified_epsilon)

    def __str__(self) -> str:
        """One line: the bound, δ, confidence, relation, adversary, and the attack behind it."""
        return (
            f"ε ≥ {math.floor(self.epsilon * 1e4) / 1e4:.4g} at δ = {self.delta:g} "
            f"({self.confidence:.6g} confidence, {self.neighbouring_relation} neighbours, adversary: "
            f"{self.adversary}; {self.attack}, {self.neighbours}: {self.hits} hits and {self.false_alarms} "
            f"false alarms in {self.num_trials} trials each)"
        )


@dataclass(frozen=True, kw_only=True)
class TrialPlan(Ranged):
    """Trials and confidence of an audit, as of :func:`audit_round`."""

    num_steps: Count
    num_trials: Annotated[int, whole_number(at_least=100)]  # 100 clean hits show an ε of 2.9 at 99 %
    delta: Annotated[float, in_range(at_least=0, below=1)]
    confidence: Annotated[float, in_range(above=0, below=1)]

    @property
    def tried(self) -> int:
        """Trials per dataset on which events are chosen, and which are then not judged."""
        return max(self.num_trials // 4, 100)

    def judge(
        self, event: Event, scores: Scores, *, attack: str, neighbours: str, adversary: Adversary
    ) -> AuditResult:
        """The bound that an event proves on ``num_trials`` fresh trials of each dataset."""
        hits, false_alarms = (event.count(scores[d]) for d in (event.suspect, event.suspect.other))
        bound = epsilon_lower_bound(
            hits, false_alarms, trials=self.num_trials, delta=self.delta, confidence=self.confidence
        )
        return AuditResult(
            epsilon=float(bound),
            delta=self.delta,
            confidence=self.confidence,
            num_trials=self.num_trials,
            num_steps=self.num_steps,
            attack=attack,
            neighbours=neighbours,
            event=event,
            hits=hits,
            false_alarms=false_alarms,
            adversary=adversary.value,
        )


def audit_round(
    mechanism: AuditedMechanism,
    shuffle_round: ShuffleRound,
    *,
    delta: float,
    num_steps: int = 1,
    num_trials: int = 20_000,
    confidence: float = 0.99,
    neighbours: Sequence[Neighbours] | None = None,
    attacks: Sequence[Attack] = DEFAULT_ATTACKS,
    rounds_per_call: int | None = None,
    randomness: Randomness | None = None,
) -> AuditResult:
    """Attack shuffled rounds of a mechanism and return the lower bound on ε that the attack proves.

    Each attack is tried on each pair of neighbours on trials of its own; the pair, the attack, the threshold
    and the direction that look best there are then judged on ``num_trials`` fresh trials per dataset. As the
    event is fixed before those trials, Clopper-Pearson holds for them, whatever was tried before:
    ε ≥ log((TPR_low - δ)/FPR_high) (Jagielski, Ullman, Oprea 2020; Nasr et al. 2021).

    Args:
        mechanism: what to audit, through its ``randomize`` alone.
        shuffle_round: population, cohort, sampling (any but a pass) and adversary; its blanket is not used.
        delta: δ in [0, 1). The bound cannot show events rarer than about 4/``num_trials``.
        num_steps: rounds composed in one trial; the same client differs in all of them.
        num_trials: at least 100; another quarter of it is spent on each pair of neighbours.
        neighbours: pairs of datasets to try, by default :func:`extreme_neighbours`.
        rounds_per_call: 1 to call the mechanism once per cohort, which shows leaks that depend on a batch.
    """
    plan = TrialPlan(num_steps=num_steps, num_trials=num_trials, delta=delta, confidence=confidence)
    if mechanism.local_epsilon != shuffle_round.local_epsilon:
        raise ValueError(
            f"the round is accounted at ε0={shuffle_round.local_epsilon}, but {mechanism.name} declares "
            f"ε0={mechanism.local_epsilon}"
        )
    pairs = extreme_neighbours(mechanism) if neighbours is None else tuple(neighbours)
    if not pairs:
        raise ValueError("no neighbours to try: pass at least one pair, or None for the extreme ones")
    randomness = secure(randomness)
    contenders = []
    for pair in pairs:
        simulator = RoundSimulator(
            mechanism=mechanism,
            neighbours=pair,
            shuffle_round=shuffle_round,
            rounds_per_call=rounds_per_call,
            randomness=randomness,
        )
        target = Target(
            mechanism=mechanism, neighbours=pair, draw=partial(simulator.labelled, num_rounds=plan.tried)
        )
        usable = {a.name: score for a in attacks if (score := a.prepare(target)) is not None}
        trials = _trials(simulator, list(usable.values()), plan.tried, num_steps) if usable else {}
        for place, (name, score) in enumerate(usable.items()):
            found = {dataset: scores[place] for dataset, scores in trials.items()}
            event = Event.best(found, delta=delta, confidence=confidence)
            contenders.append((event, name, score, pair, simulator))
    if not contenders:
        raise ValueError(
            f"none of the attacks applies to {mechanism.name}: pass Projection() or Aggregate(), or "
            "LikelihoodRatio(law=...) with its law"
        )
    event, name, score, pair, simulator = max(contenders, key=lambda contender: contender[0].promise)
    fresh = _trials(simulator, [score], num_trials, num_steps)
    return plan.judge(
        event,
        {dataset: scores[0] for dataset, scores in fresh.items()},
        attack=name,
        neighbours=pair.name,
        adversary=shuffle_round.adversary,
    )


def audit_local(
    mechanism: AuditedMechanism,
    *,
    delta: float = 0.0,
    num_trials: int = 20_000,
    confidence: float = 0.99,
    neighbours: Sequence[Neighbours] | None = None,
    attacks: Sequence[Attack] = DEFAULT_ATTACKS,
    randomness: Randomness | None = None,
) -> AuditResult:
    """Attack single reports: a cohort of one, in which nothing but ε0 protects the client.

    A mechanism whose result :meth:`~AuditResult.violates` its ``local_epsilon`` is broken.
    """
    alone = ShuffleRound(
        local_epsilon=mechanism.local_epsilon, population=1, cohort=1, sampling=Sampling.FULL
    )
    pairs = extreme_neighbours(mechanism)[:1] if neighbours is None else neighbours
    return audit_round(
        mechanism,
        alone,
        delta=delta,
        num_trials=num_trials,
        confidence=confidence,
        neighbours=pairs,
        attacks=attacks,
        randomness=randomness,
    )


def _trials(simulator: RoundSimulator, scores: Sequence[Score], num_trials: int, num_steps: int) -> Scores:
    """Scores of fresh trials on each dataset, (scores, trials): sums over a trial's rounds."""
    found: Scores = {}
    for dataset in Dataset:
        totals = torch.zeros(len(scores), num_trials, dtype=torch.float64)
        done = 0
        for rounds in simulator.released(dataset, num_rounds=num_trials * num_steps):
            count = len(rounds.sizes)
            trial = torch.arange(done, done + count) // num_steps
            for total, score in zip(totals, scores, strict=True):
                each = score(rounds)
                if each.shape != (count,) or not bool(each.isfinite().all()):
                    raise ValueError(f"an attack must return one finite number for each of {count} rounds")
                total.index_add_(0, trial, each.double())
            done += count
        found[dataset] = totals.numpy()
    return found


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

    Of a :class:`~shuffle_plugins.protocols.WindowedSum` all windows that a participation enters are attacked,
    each weighted with its coefficient.

    Client 1 holds one of two ``records``, each (size,), by default the ends of the interval or of a diameter;
    everybody else holds the second. What all of them send is added up as the shuffled messages would be; the
    score is the total along the difference of the two records, which orders outcomes as their likelihood
    ratio does. The noise of all clients is in it: of a protocol with an honest fraction below one, more than
    it is certified for. The other arguments are as of :func:`audit_round`.
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

    event = Event.best(scores(plan.tried), delta=delta, confidence=confidence)
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
        if isinstance(protocol, WindowedSum):
            found.append(_windows(protocol, cohort, others, count, randomness) @ line)
            continue
        reports = protocol.randomize(cohort.repeat(count, 1), randomness=randomness)
        sent = reports.fields[0].values.long()
        sent = sent.reshape(count, protocol.cohort, -1)
        split = isinstance(protocol, SplitSum)
        totals = sent.flatten(1).sum(dim=1, keepdim=True) if split else sent.sum(dim=1)
        sums = [protocol.estimate(total, reports=protocol.cohort) for total in totals]
        found.append(torch.stack(sums) @ line)
    scores: NDArray[np.float64] = torch.cat(found).numpy()
    return scores


def _windows(
    protocol: WindowedSum, first: Tensor, others: Tensor, count: int, randomness: Randomness
) -> Tensor:
    """Σ_j c_j·Y_j of so many series, whose first rounds are of ``first``, (count, dim)."""
    windows, later = Windows(protocol), others.repeat(len(first), 1)
    seen = torch.zeros(count, protocol.dim, dtype=torch.int64)
    for place, weight in enumerate(protocol.coefficients):
        rows = later if place else first
        reports = protocol.randomize(rows.repeat(count, 1), randomness=randomness)
        sent = [part.values.reshape(count, len(rows), -1).long().sum(dim=1) for part in reports.fields]
        seen += weight * windows.open(torch.cat(sent, dim=1), reports=len(rows))
    return seen.double()
