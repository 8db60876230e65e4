"""What a shuffled run is asked to be: who takes part in its rounds, and all other settings, checked once."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from typing_extensions import override

from flwr_shuffle.grids import InMemoryStage, ShuffleStage, SummingStage, Waiting
from flwr_shuffle.metrics import PrivateEvaluation
from flwr_shuffle.updates import Updates, of_kind
from shuffle_plugins.accounting import Adversary, FederatedRound
from shuffle_plugins.core.checks import Delta, Positive, Ranged, in_range, one_of, whole_number
from shuffle_plugins.mechanisms import Kind, PrivateSum, SumSpec, available
from shuffle_plugins.mechanisms import MechanismSpec as MechanismSpec
from shuffle_plugins.mechanisms.base import SeveralReports
from shuffle_plugins.mechanisms.registry import ONE_MESSAGE, check_known
from shuffle_plugins.mechanisms.spec import Spec
from shuffle_plugins.protocols import WindowedSum
from shuffle_plugins.shuffler import InMemoryShuffler, Shuffler

FEWEST_REPORTS = 2  # one client's report cannot hide among others
_AtLeastTwo = Annotated[int, whole_number(at_least=FEWEST_REPORTS)]
_Share = Annotated[float, in_range(above=0, at_most=1)]

_KEPT = 0.8  # share of the expected reports without which a round is refused, unless the user says otherwise
_DEVIATIONS = 4.0  # standard deviations from the mean: a draw is farther off once in 30,000 rounds


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """A round before anybody has answered: ``invited`` were drawn from ``candidates`` connected clients.

    Attributes:
        fewest: fewest clients whose reports are released. Where each sends several, every round is charged
            for so few: rounds of different sizes do not compare then (docs/proofs/accounting.md, Claim 9).
        hides_shares: whether the server sees nothing of a sum's shares but their total.
        samples: how many reports each client that takes part sends.
    """

    mechanism: PrivateSum
    candidates: int
    invited: int
    fewest: int = FEWEST_REPORTS
    hides_shares: bool = False
    samples: int = 1

    @property
    def sent(self) -> PrivateSum | SeveralReports:
        """What a client sends: a report, or several."""
        return self.mechanism if self.samples == 1 else SeveralReports(self.mechanism, self.samples)

    def charged(self, *, answered: int, clients: int) -> tuple[int, int]:
        """How many answers and clients' reports a round is charged for; no smaller a share reports."""
        if self.samples == 1 or clients <= self.fewest:
            return answered, clients
        return max(self.fewest, answered * self.fewest // clients), self.fewest


@dataclass(frozen=True, kw_only=True)
class ClientSampling(ABC, Ranged):
    """How the clients of a round are chosen, and what the round therefore costs.

    Attributes:
        honest_fraction: share of the clients that follow the protocol and do not work together with the
            adversary; every ε is that of an honest one hidden among honest ones. A sum has its own.
    """

    honest_fraction: _Share = field(default=1.0, repr=False)

    @property
    def participation(self) -> float:
        """Probability with which an invited client reports, by its own secret coin; 1 if all do."""
        return 1.0

    @abstractmethod
    def draw(self, node_ids: Sequence[int]) -> list[int]:
        """The nodes to invite, by the operating system's entropy, in random order.

        ``node_ids`` are those who may be invited, whose last invitation is longest ago first.
        """

    @abstractmethod
    def poor_draw(self, population: int) -> float:
        """How many reports a round has, if nobody drops out, in all but one of 30,000 rounds."""

    def default_minimum(self, population: int) -> int:
        """Fewest reports with which a round is released, unless the user says otherwise."""
        return max(FEWEST_REPORTS, math.ceil(_KEPT * self.poor_draw(population)))

    def accounted(self, invitation: Invitation, *, answered: int, reports: int) -> FederatedRound:
        """What a round cost in which so many answered (with a report or a dummy), and so many reported."""
        _, reports = invitation.charged(answered=answered, clients=reports)
        return FederatedRound.drawn(
            invitation.sent,
            candidates=invitation.candidates,
            invited=invitation.invited,
            reports=reports,
            honest_fraction=self.honest_fraction,
        )

    def planned(self, invitation: Invitation) -> FederatedRound:
        """The round that the budget is asked about before anything is sent: here, the costliest."""
        return self.accounted(invitation, answered=invitation.fewest, reports=invitation.fewest)

    def fewest_answers(self, invitation: Invitation) -> int:
        """Fewest clients that must answer for a round to cost no more than :meth:`planned`."""
        return invitation.fewest


@dataclass(frozen=True)
class FixedSize(ClientSampling):
    """The server invites ``cohort`` of those who may be invited, uniformly, or all if no more are left."""

    cohort: _AtLeastTwo

    @override
    def draw(self, node_ids: Sequence[int]) -> list[int]:
        return random.SystemRandom().sample(node_ids, min(self.cohort, len(node_ids)))

    @override
    def poor_draw(self, population: int) -> float:
        return self.cohort


@dataclass(frozen=True)
class Cyclic(FixedSize):
    """The server invites the ``cohort`` clients whose last invitation is longest ago.

    All take part about equally often, which is what ε against the server grows with. As the order is no
    secret, nothing is earned before an observer: each client is charged for the rounds that it was in.
    """

    @override
    def draw(self, node_ids: Sequence[int]) -> list[int]:
        return super().draw(node_ids[: self.cohort])

    @override
    def accounted(self, invitation: Invitation, *, answered: int, reports: int) -> FederatedRound:
        known = replace(invitation, candidates=reports, invited=reports)
        return super().accounted(known, answered=answered, reports=reports)


@dataclass(frozen=True)
class Poisson(ClientSampling):
    """The server invites each connected client with probability ``rate``, independently."""

    rate: _Share

    @override
    def draw(self, node_ids: Sequence[int]) -> list[int]:
        system = random.SystemRandom()
        drawn = [node for node in node_ids if system.random() < self.rate]
        system.shuffle(drawn)
        return drawn

    @override
    def poor_draw(self, population: int) -> float:
        expected = self.rate * population
        return expected - _DEVIATIONS * math.sqrt(expected)


@dataclass(frozen=True)
class SelfSampling(ClientSampling):
    """Every connected client is invited; each reports with probability ``rate`` by its own secret coin.

    The others send dummies that look the same, or add zeros to a sum. Behind a mix node, and where a stage
    hides shares, not even the server knows who reported: sampling amplifies against it as well.
    """

    rate: _Share

    @property
    @override
    def participation(self) -> float:
        return self.rate

    @override
    def draw(self, node_ids: Sequence[int]) -> list[int]:
        return random.SystemRandom().sample(node_ids, len(node_ids))

    poor_draw = Poisson.poor_draw

    @override
    def accounted(self, invitation: Invitation, *, answered: int, reports: int) -> FederatedRound:
        """What a round cost: ``reports`` of those who answered, of whom no more are counted than ``reports /
        rate``: clients that always send dummies make no round cheaper.
        """
        if invitation.mechanism.must_be_summed:
            return FederatedRound.secret_sum(
                invitation.mechanism,
                answered=reports,
                rate=self.rate,
                hides_shares=invitation.hides_shares,
            )
        answered, reports = invitation.charged(answered=answered, clients=reports)
        return FederatedRound.secret(
            invitation.sent,
            answered=answered,
            reports=reports,
            rate=self.rate,
            honest_fraction=self.honest_fraction,
        )

    @override
    def planned(self, invitation: Invitation) -> FederatedRound:
        """The round in which a fifth does not answer, and more of the rest report than in nearly any round.

        In the costliest nobody but those who report answers, and sampling hides nothing. To a sum everybody
        who answers sends a report.
        """
        if invitation.mechanism.must_be_summed:
            return super().planned(invitation)
        answered = self.fewest_answers(invitation)
        expected = self.rate * answered
        reports = math.ceil(expected + _DEVIATIONS * math.sqrt(expected * (1 - self.rate)))
        reports = min(max(reports, invitation.fewest), answered)
        return self.accounted(invitation, answered=answered, reports=reports)

    @override
    def fewest_answers(self, invitation: Invitation) -> int:
        if invitation.mechanism.must_be_summed:
            return invitation.fewest
        return max(invitation.fewest, math.ceil(_KEPT * invitation.invited))


def _evaluation(name: str, value: object) -> object:
    if not isinstance(value, PrivateEvaluation) and value not in (None, "raw"):
        raise ValueError(f'{name} is a PrivateEvaluation, "raw" or None, got {value!r}')
    return value


@dataclass(frozen=True, kw_only=True)
class Settings(Ranged):
    """Checked settings of a run; the fields are those of :class:`ShuffleStrategy`."""

    mechanism: Spec
    sampling: Annotated[
        ClientSampling, of_kind(ClientSampling, "FixedSize, Poisson or SelfSampling, such as FixedSize(100)")
    ]
    population: _AtLeastTwo
    minimum_reports: _AtLeastTwo | None
    stage: ShuffleStage
    delta: Delta
    max_epsilon: Positive | None
    adversary: Annotated[Adversary, one_of(Adversary)] = Adversary.MODEL_OBSERVER
    updates: Annotated[Updates, of_kind(Updates, "Updates(…)")] = Updates()  # noqa: RUF009  (it is frozen)
    waiting: Annotated[Waiting, of_kind(Waiting, "Waiting(…)")] = Waiting()  # noqa: RUF009
    evaluation: Annotated[PrivateEvaluation | Literal["raw"] | None, _evaluation] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        sampling, spec = self.sampling, self.mechanism
        invited = (
            min(sampling.cohort, self.population) if isinstance(sampling, FixedSize) else self.population
        )
        if self.fewest_reports > invited:
            raise ValueError(
                f"a round needs {self.fewest_reports} reports (minimum_reports, the clients of the sum, or "
                f"the minimum of the stage), and invites {invited} clients: invite more, or ask for fewer"
            )
        if self.updates.records_per_client > 1 and spec.must_be_summed:
            raise ValueError(
                "the draw of records is not accounted for sums, whose reports hide in each other: take a "
                "one-message mechanism, or leave records_per_client out"
            )
        if self.updates.samples_per_client > 1 and not self.stage.takes_several:
            raise ValueError(
                "this stage does not take several reports of a client apart: use a MixNodeStage with a "
                "single mixer, a shuffler in this process, or samples_per_client=1"
            )
        lies = isinstance(sampling, SelfSampling) and sampling.honest_fraction < 1
        if self.updates.samples_per_client > 1 and lies:
            raise ValueError(
                "with samples_per_client > 1 and self-sampling no bound is known for honest_fraction < 1: "
                "use FixedSize or Poisson, or samples_per_client=1"
            )
        if spec.cohort is None and self.stage.adds_up:
            raise ValueError(
                "this stage adds up multi-message sums; reports of a mechanism are shuffled: give a "
                "MixNodeStage, shuffle_plugins.shuffler.InMemoryShuffler(), or none"
            )
        if spec.cohort is not None:
            self._check_sum(spec.cohort)
        if isinstance(self.evaluation, PrivateEvaluation):
            self.spec_of(self.evaluation)  # refuses before the run what the stage does not take

    def _check_sum(self, clients: int) -> None:
        """Refuse what contradicts a sum whose noise is made by so many clients."""
        if (share := self.sampling.honest_fraction) != 1:
            raise ValueError(
                "the noise of a sum is made for the honest clients among its own: leave honest_fraction "
                f"out of the sampling and build the sum with honest_fraction={share:g}"
            )
        if not self.mechanism.must_be_summed:
            if self.stage.adds_up or not self.stage.takes_several:
                raise ValueError(
                    f"the messages of {self.mechanism.name} are shuffled each by itself: give a MixNodeStage "
                    "with a single mixer, or a shuffler in this process"
                )
        elif not self.stage.adds_up:
            raise ValueError(
                "a client's share of a multi-message sum hides in everybody's sum alone: a shuffler of "
                "whole reports, such as a mix node, would not protect it. Give shuffler=SharedSumStage(…), "
                "by which nobody sees a share, or SummingStage(), where the server is trusted, or take a "
                "one-message mechanism"
            )
        secret = isinstance(self.sampling, SelfSampling) and isinstance(self.mechanism, SumSpec)
        if not secret and not isinstance(self.sampling, FixedSize):
            raise ValueError(
                "the noise of a sum is made by clients whose number is known: use FixedSize sampling, or "
                "SelfSampling, with which all who answer add noise"
            )
        if self.windowed is not None:
            self._check_separation(self.windowed.band)
        self._check_secret(self.mechanism, clients)
        if self.minimum_reports not in (None, clients):
            raise ValueError(
                f"the sum is protected by the noise of {clients} clients: leave minimum_reports out, or "
                f"build the sum with cohort={self.minimum_reports}"
            )

    def _check_separation(self, band: int) -> None:
        """Refuse rounds for which nobody would be left who was not in the windows before."""
        if not isinstance(self.sampling, FixedSize):
            raise ValueError("in windows of sums a client sits out most rounds: use FixedSize or Cyclic")
        if self.population < (needed := band * self.sampling.cohort):
            raise ValueError(
                f"a client takes part in one of {band} rounds in a row, so {self.sampling.cohort} clients in "
                f"each need a population of at least {needed}: invite fewer, or build the sum with fewer "
                "coefficients"
            )

    def _check_secret(self, spec: Spec, clients: int) -> None:
        """Refuse before the run a sum of secret participation of which nothing is known."""
        if isinstance(self.sampling, SelfSampling) and isinstance(spec, SumSpec):
            spec.protocol.secret_round(answered=clients, participation=self.sampling.rate)

    def spec_of(self, evaluation: PrivateEvaluation) -> Spec:
        """The mechanism of an evaluation's reports; ValueError if the stage does not take them."""
        summed = self.mechanism.must_be_summed
        if evaluation.local_epsilon is not None and summed:
            raise ValueError(
                "clients that agree to sums send no single reports of metrics: give "
                "PrivateEvaluation(noise_multiplier=…) in place of local_epsilon"
            )
        if evaluation.noise_multiplier is not None and not summed:
            raise ValueError(
                "metrics are added up beside a sum alone: give PrivateEvaluation(local_epsilon=…) in place "
                "of noise_multiplier"
            )
        honest = getattr(getattr(self.mechanism, "protocol", None), "honest_fraction", 1.0)
        spec = evaluation.spec(cohort=self.fewest_reports, honest_fraction=honest)
        self._check_secret(spec, self.fewest_reports)
        return spec

    @property
    def windowed(self) -> WindowedSum | None:
        """The sum of the run if windows of it are opened."""
        protocol = self.mechanism.protocol if isinstance(self.mechanism, SumSpec) else None
        return protocol if isinstance(protocol, WindowedSum) else None

    @property
    def fewest_reports(self) -> int:
        """Fewest reports with which a round is released; at least the stage's minimum."""
        chosen = self.mechanism.cohort or self.minimum_reports
        if chosen is None:
            chosen = min(self.population, self.sampling.default_minimum(self.population))
        return max(chosen, self.stage.minimum)


def mechanism_of(
    randomizer: str | MechanismSpec | PrivateSum, *, local_epsilon: float | None, clipping_norm: float | None
) -> Spec:
    """The spec of the mechanism that a user named or gave."""
    alone = local_epsilon is None and clipping_norm is None
    whole = isinstance(randomizer, MechanismSpec) or (
        isinstance(randomizer, PrivateSum) and randomizer.cohort is not None
    )
    if whole and not alone:
        raise ValueError(
            "a sum or a MechanismSpec has its own ε0 and radius: leave out both local_epsilon and "
            "clipping_norm"
        )
    if isinstance(randomizer, PrivateSum) and whole:
        return SumSpec(protocol=randomizer)
    if randomizer in available(Kind.SUMS) or not isinstance(randomizer, (str, MechanismSpec)):
        raise ValueError(
            "randomizer is a mechanism's name, a MechanismSpec, or a sum of vectors itself, such as "
            "VectorSum.calibrated(dim=…, cohort=…, radius=…, epsilon=…, delta=…, num_steps=…, population=…) "
            f"or BallSum.calibrated(…); got {randomizer!r}"
        )
    try:
        name = randomizer.name if isinstance(randomizer, MechanismSpec) else randomizer
        check_known(name, *ONE_MESSAGE)
    except ValueError as error:
        raise ValueError(f"{error}; a sum is an object, such as VectorSum.calibrated(…)") from None
    if isinstance(randomizer, MechanismSpec):
        return randomizer
    if local_epsilon is None or clipping_norm is None:
        missing = {
            "local_epsilon (the ε0 of a report; begin with 4.0)": local_epsilon,
            "clipping_norm (the largest length of an update; begin with 1.0)": clipping_norm,
        }
        asked = " and ".join(what for what, value in missing.items() if value is None)
        raise ValueError(f"with the name of a mechanism, {randomizer!r}, give {asked}")
    return MechanismSpec(name=randomizer, local_epsilon=local_epsilon, radius=clipping_norm)


def stage_of(shuffler: ShuffleStage | Shuffler | None, *, mechanism: Spec) -> ShuffleStage:
    """The stage that a user gave, or one in this process, around the shuffler given or as reports need it."""
    if isinstance(shuffler, ShuffleStage):
        return shuffler
    if shuffler is None and mechanism.must_be_summed:
        return SummingStage()
    return InMemoryStage(InMemoryShuffler() if shuffler is None else shuffler)


def trust_of(settings: Settings) -> Iterator[str]:
    """Whom somebody who believes the ε of a run must trust, a sentence each."""
    stage, secret = settings.stage, isinstance(settings.sampling, SelfSampling)
    mixed = bool(stage.analyzer_key) and not stage.adds_up
    yield stage.trust
    if secret and not mixed and not stage.hides_shares:
        stages = "a stage that hides shares" if stage.adds_up else "a mix node"
        yield f"Participation is open to this process: only {stages} hides it from the server"
    if mixed and secret:
        yield (
            "the first mixer sees who sent a dummy, so that secret participation hides nobody from it; ε "
            "against a mixer that also reads the models is not stated"
        )
    elif mixed:
        yield "a mixer that also reads the models learns no more than the server, whose ε holds against it"
    if settings.windowed is not None:
        band = settings.windowed.band
        yield (
            f"a client takes part at most once in {band} rounds in a row: this process invites nobody "
            "sooner, a node that joins waits as long, and each client's own ledger refuses anything else"
        )
    yield "whoever submits the app is trusted with the code that runs on clients, mix nodes and aggregators"
    share: float | None = settings.sampling.honest_fraction
    if isinstance(settings.mechanism, SumSpec):
        share = getattr(settings.mechanism.protocol, "honest_fraction", None)
    counted = "an unknown share" if share is None else f"{share:.0%}"
    yield f"{counted} of the clients are counted on to follow the protocol and not to help the adversary"
