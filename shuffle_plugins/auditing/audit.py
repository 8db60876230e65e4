"""The audit: attack simulated rounds, and say what the attack proves about ε."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shuffle_plugins.accounting import NEIGHBOURING_RELATION, Adversary, Sampling, ShuffleRound
from shuffle_plugins.auditing.attacks import DEFAULT_ATTACKS, Attack, Score, Target
from shuffle_plugins.auditing.events import LEAST_TRIALS, SELECTION_SHARE, Event, Side
from shuffle_plugins.auditing.neighbours import AuditedMechanism, Neighbours, extreme_neighbours
from shuffle_plugins.auditing.simulation import Dataset, RoundSimulator
from shuffle_plugins.core import checks, epsilon_lower_bound
from shuffle_plugins.randomness import Randomness, secure


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """What an attack proves about ε. It bounds from below only: no audit can show that something is private.

    Attributes:
        epsilon: ε's lower bound, rounded down: the mechanism is not (ε', δ)-DP for any ε' < ``epsilon``,
            unless an event of probability at most 1 - ``confidence`` happened in the audit. 0 says nothing.
        delta: δ the bound is for.
        confidence: joint confidence of the bound, both error rates together.
        num_trials: independent trials behind the bound, on each of the two datasets.
        num_steps: rounds in each trial.
        attack: name of the attack.
        neighbours: name of the pair of datasets.
        threshold: where the attack draws its line.
        side: the event is "the trial's score is ``side`` the threshold".
        suspect: the dataset on which the event is the more likely.
        hits: trials on that dataset in which the event happened.
        false_alarms: trials on the other one in which it happened.
        neighbouring_relation: always ``"replace-one"``.
        adversary: what the attacker sees.
    """

    epsilon: float
    delta: float
    confidence: float
    num_trials: int
    num_steps: int
    attack: str
    neighbours: str
    threshold: float
    side: Side
    suspect: Dataset
    hits: int
    false_alarms: int
    neighbouring_relation: str
    adversary: str

    def violates(self, certified_epsilon: float) -> bool:
        """Whether the attack refutes the claim that the mechanism is (``certified_epsilon``, δ)-DP.

        Raises:
            ValueError: if the claim is negative or not a number.
        """
        if not certified_epsilon >= 0:
            raise ValueError(f"certified_epsilon must be a number, at least 0, got {certified_epsilon!r}")
        return self.epsilon > certified_epsilon

    def consistent_with(self, certified_epsilon: float) -> bool:
        """Whether the attack leaves that claim standing; it does not confirm it.

        Raises:
            ValueError: as :meth:`violates`.
        """
        return not self.violates(certified_epsilon)

    def __str__(self) -> str:
        """One line: the bound, δ, confidence, relation, adversary, and the attack behind it."""
        return (
            f"ε ≥ {math.floor(self.epsilon * 1e4) / 1e4:.4g} at δ = {self.delta:g} "
            f"({self.confidence:.6g} confidence, {self.neighbouring_relation} neighbours, adversary: "
            f"{self.adversary}; {self.attack}, {self.neighbours}: {self.hits} hits and {self.false_alarms} "
            f"false alarms in {self.num_trials} trials each)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """How many trials an audit spends on what, and with what confidence it speaks.

    Attributes:
        num_steps: rounds in each trial, at least 1.
        num_trials: trials per dataset that are judged, at least 100.
        delta: δ in [0, 1) of the bound.
        confidence: joint confidence of the bound, in (0, 1).

    Raises:
        ValueError: if a field is out of range.
    """

    num_steps: int
    num_trials: int
    delta: float
    confidence: float

    def __post_init__(self) -> None:
        checks.number("delta", self.delta, at_least=0, below=1)
        checks.confidence(self.confidence)
        checks.whole("num_steps", self.num_steps)
        checks.whole("num_trials", self.num_trials, at_least=LEAST_TRIALS)

    @property
    def tried(self) -> int:
        """Trials per dataset on which events are chosen."""
        return max(self.num_trials // SELECTION_SHARE, LEAST_TRIALS)

    def choose(self, scores: dict[Dataset, NDArray[np.float64]]) -> Event:
        """The event that looks best in these trials, which are then not judged."""
        return Event.best(scores, delta=self.delta, confidence=self.confidence)

    def judge(
        self,
        event: Event,
        scores: dict[Dataset, NDArray[np.float64]],
        *,
        attack: str,
        neighbours: str,
        adversary: Adversary,
    ) -> AuditResult:
        """The bound that an event proves on trials which had no part in choosing it.

        Args:
            event: the event, as it was chosen on other trials.
            scores: the attack's scores of ``num_trials`` fresh trials on each dataset.
            attack: name of the attack.
            neighbours: name of the pair of datasets.
            adversary: what the attacker sees.
        """
        happened = {dataset: int(event.happens(found).sum()) for dataset, found in scores.items()}
        hits, false_alarms = happened[event.suspect], happened[event.innocent]
        bound = epsilon_lower_bound(
            hits, false_alarms, trials=self.num_trials, delta=self.delta, confidence=self.confidence
        )
        return AuditResult(
            epsilon=float(bound),
            delta=float(self.delta),
            confidence=float(self.confidence),
            num_trials=self.num_trials,
            num_steps=self.num_steps,
            attack=attack,
            neighbours=neighbours,
            threshold=event.threshold,
            side=event.side,
            suspect=event.suspect,
            hits=hits,
            false_alarms=false_alarms,
            neighbouring_relation=NEIGHBOURING_RELATION,
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
    r"""Attack shuffled rounds of a mechanism and return the lower bound on ε that the attack proves.

    Each attack is tried on each pair of neighbours on trials of its own; the pair, the attack, the threshold
    and the direction that look best there are then judged on ``num_trials`` fresh trials per dataset. As the
    event is fixed before those trials, Clopper-Pearson holds for them, whatever was tried before:
    ε ≥ log((TPR_low - δ)/FPR_high) (Jagielski, Ullman, Oprea 2020; Nasr et al. 2021).

    Args:
        mechanism: what to audit, through its ``randomize`` alone.
        shuffle_round: population, cohort, sampling and adversary; its ε0 must be what the mechanism declares.
            Any sampling but a single pass. Its blanket is not used.
        delta: δ in [0, 1). The bound cannot show events rarer than about 4/``num_trials``.
        num_steps: rounds composed in one trial; the same client differs in all of them.
        num_trials: trials per dataset that are judged, at least 100; another quarter of it is spent on each
            pair of neighbours to choose the event, and as many rounds to learn from.
        confidence: joint confidence of the bound, in (0, 1).
        neighbours: pairs of datasets to try; :func:`extreme_neighbours` by default.
        attacks: attacks to try.
        rounds_per_call: 1 to call the mechanism once per cohort; see
            :class:`~shuffle_plugins.auditing.simulation.RoundSimulator`.
        randomness: source of all random bits, the mechanism's included; a fresh
            :class:`~shuffle_plugins.randomness.SecureRandomness` by default.

    Raises:
        ValueError: if an argument is out of range, the round's ε0 is not the mechanism's, no attack applies,
            or the mechanism refuses the neighbours' records.
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
    contenders: list[tuple[_Contender, Neighbours, RoundSimulator]] = []
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
        contenders.extend((found, pair, simulator) for found in _contend(attacks, target, simulator, plan))
    if not contenders:
        raise ValueError(
            f"none of the attacks applies to {mechanism.name}: pass Projection() or Aggregate(), or "
            "LikelihoodRatio(law=...) with its law"
        )
    chosen, pair, simulator = max(contenders, key=lambda contender: contender[0].event.promise)
    fresh = _trials(simulator, [chosen.score], num_trials, num_steps)
    return plan.judge(
        chosen.event,
        {dataset: scores[0] for dataset, scores in fresh.items()},
        attack=chosen.attack,
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

    A mechanism whose result :meth:`~AuditResult.violates` its ``local_epsilon`` is broken. Arguments and
    errors as for :func:`audit_round`; the neighbours' ``others`` play no part.
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


def _contend(
    attacks: Sequence[Attack], target: Target, simulator: RoundSimulator, plan: TrialPlan
) -> list[_Contender]:
    """The best event of each attack that applies."""
    prepared = [(attack.name, attack.prepare(target)) for attack in attacks]
    usable = [(name, score) for name, score in prepared if score is not None]
    if not usable:
        return []
    trials = _trials(simulator, [score for _, score in usable], plan.tried, plan.num_steps)
    return [
        _Contender(name, score, plan.choose({dataset: found[place] for dataset, found in trials.items()}))
        for place, (name, score) in enumerate(usable)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Contender:
    """An attack that applies, its score, and the event at which it looks best."""

    attack: str
    score: Score
    event: Event


def _trials(
    simulator: RoundSimulator, scores: Sequence[Score], num_trials: int, num_steps: int
) -> dict[Dataset, NDArray[np.float64]]:
    """Scores of fresh trials on each dataset, (scores, trials): sums over a trial's rounds."""
    found: dict[Dataset, NDArray[np.float64]] = {}
    for dataset in Dataset:
        totals = torch.zeros(len(scores), num_trials, dtype=torch.float64)
        done = 0
        for rounds in simulator.released(dataset, num_rounds=num_trials * num_steps):
            count = len(rounds.sizes)
            trial = torch.arange(done, done + count) // num_steps
            for total, score in zip(totals, scores, strict=True):
                total.index_add_(0, trial, _checked(score(rounds), count))
            done += count
        found[dataset] = totals.numpy()
    return found


def _checked(scores: Tensor, count: int) -> Tensor:
    """An attack's scores, once they are one finite number per round."""
    if scores.shape != (count,) or not bool(scores.isfinite().all()):
        raise ValueError(f"an attack must return one finite number for each of {count} rounds")
    return scores.double()
