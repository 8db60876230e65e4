"""Who takes part in a round: drawn by the server, or decided by each client in secret."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated

from typing_extensions import override

from shuffle_plugins.accounting import FederatedRound
from shuffle_plugins.core.ranges import Ranged, in_range, whole_number
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.mechanisms.base import SeveralReports

FEWEST_REPORTS = 2
"""Fewest reports of any round: one client's report cannot hide among others."""

_Share = Annotated[float, in_range(above=0, at_most=1)]

_KEPT = 0.8  # share of the expected reports without which a round is refused, unless the user says otherwise
_DEVIATIONS = 4.0  # standard deviations from the mean: a draw is farther off once in 30,000 rounds


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """A round before anybody has answered.

    Attributes:
        mechanism: the mechanism that randomises the reports.
        candidates: how many clients were connected; the invited were drawn from them.
        invited: how many clients are asked for a report.
        hides_shares: whether the server sees nothing of a sum's shares but their total.
        samples: how many reports each client that takes part sends.
        fewest: fewest clients whose reports are released. Where each sends several, every round is charged
            for so few: rounds of different sizes do not compare then (docs/proofs/accounting.md, Claim 9).
    """

    mechanism: PrivateSum
    candidates: int
    invited: int
    hides_shares: bool = False
    samples: int = 1
    fewest: int = FEWEST_REPORTS

    @property
    def sent(self) -> PrivateSum | SeveralReports:
        """What a client sends: a report, or several."""
        return self.mechanism if self.samples == 1 else SeveralReports(self.mechanism, self.samples)

    def charged(self, *, answered: int, clients: int) -> tuple[int, int]:
        """How many answers and clients' reports a round is charged for; of those who answered, no larger a
        share reports.
        """
        if self.samples == 1 or clients <= self.fewest:
            return answered, clients
        return max(self.fewest, answered * self.fewest // clients), self.fewest


class ClientSampling(ABC):
    """How the clients of a round are chosen, and what the round therefore costs.

    Attributes:
        honest_fraction: share of the clients that follow the protocol and do not work together with the
            adversary. The others may send anything: every ε is that of an honest client hidden among honest
            ones. A sum has its own ``honest_fraction``, and this must be 1.
    """

    honest_fraction: float = 1.0

    @property
    def participation(self) -> float:
        """Probability with which an invited client reports, by its own secret coin; 1 if all do."""
        return 1.0

    @abstractmethod
    def draw(self, node_ids: Sequence[int]) -> list[int]:
        """The nodes to invite, drawn from the operating system's entropy, in random order."""

    @abstractmethod
    def expected_reports(self, population: int) -> float:
        """How many reports a round has on average, if nobody drops out."""

    def default_minimum(self, population: int) -> int:
        """Fewest reports with which a round is released, unless the user says otherwise; at least 2.

        80 % of the number that a round has but once in 30,000 rounds, if nobody drops out.
        """
        expected = self.expected_reports(population)
        return max(FEWEST_REPORTS, math.ceil(_KEPT * (expected - self._deviation(expected))))

    @abstractmethod
    def accounted(self, invitation: Invitation, *, answered: int, reports: int) -> FederatedRound:
        """What a round cost in which so many answered (with a report or a dummy), and so many clients
        reported.
        """

    def worst(self, invitation: Invitation, *, minimum: int) -> FederatedRound:
        """The most that a round of at least ``minimum`` reports can cost: as if nobody else had answered."""
        return self.accounted(invitation, answered=minimum, reports=minimum)

    def planned(self, invitation: Invitation, *, minimum: int) -> FederatedRound:
        """The round that the budget is asked about before anything is sent; few rounds cost more.

        About a round that did cost more the budget is asked again, before its release.
        """
        return self.worst(invitation, minimum=minimum)

    def fewest_answers(self, *, invited: int, minimum: int) -> int:
        """Fewest clients that must answer for a round to cost no more than :meth:`planned`."""
        del invited
        return minimum

    def _deviation(self, expected: float) -> float:
        """How far below its mean the number of reports of a poor draw is."""
        return _DEVIATIONS * math.sqrt(expected)


class _ServerDraws(ClientSampling, Ranged):
    """The server sees who takes part: sampling amplifies only for who observes the model alone."""

    @override
    def accounted(self, invitation: Invitation, *, answered: int, reports: int) -> FederatedRound:
        _, reports = invitation.charged(answered=answered, clients=reports)
        return FederatedRound.drawn(
            invitation.sent,
            candidates=invitation.candidates,
            invited=invitation.invited,
            reports=reports,
            honest_fraction=self.honest_fraction,
        )


@dataclass(frozen=True)
class FixedSize(_ServerDraws):
    """The server invites ``cohort`` of the connected clients, uniformly, or all if no more are left."""

    cohort: Annotated[int, whole_number(at_least=FEWEST_REPORTS)]
    _: KW_ONLY
    honest_fraction: _Share = field(default=1.0, repr=False)

    @override
    def draw(self, node_ids: Sequence[int]) -> list[int]:
        return random.SystemRandom().sample(node_ids, min(self.cohort, len(node_ids)))

    @override
    def expected_reports(self, population: int) -> float:
        return self.cohort

    @override
    def _deviation(self, expected: float) -> float:
        return 0.0


@dataclass(frozen=True)
class Poisson(_ServerDraws):
    """The server invites each connected client with probability ``rate``, independently."""

    rate: _Share
    _: KW_ONLY
    honest_fraction: _Share = field(default=1.0, repr=False)

    @override
    def draw(self, node_ids: Sequence[int]) -> list[int]:
        system = random.SystemRandom()
        drawn = [node for node in node_ids if system.random() < self.rate]
        system.shuffle(drawn)
        return drawn

    @override
    def expected_reports(self, population: int) -> float:
        return self.rate * population


@dataclass(frozen=True)
class SelfSampling(ClientSampling, Ranged):
    """Every connected client is invited; each reports with probability ``rate`` by its own secret coin.

    The others send dummies that look the same. Behind a mix node not even the server knows who reported, so
    sampling amplifies against the server as well. To a multi-message sum the others add zeros, with their
    noise, so that nobody learns even how many took part; against the server that counts if the stage
    hides shares (:attr:`ShuffleStage.hides_shares`)."""

    rate: _Share
    _: KW_ONLY
    honest_fraction: _Share = field(default=1.0, repr=False)

    @property
    @override
    def participation(self) -> float:
        return self.rate

    @override
    def draw(self, node_ids: Sequence[int]) -> list[int]:
        return random.SystemRandom().sample(node_ids, len(node_ids))

    @override
    def expected_reports(self, population: int) -> float:
        return self.rate * population

    @override
    def accounted(self, invitation: Invitation, *, answered: int, reports: int) -> FederatedRound:
        """What a round cost: ``reports`` of those who answered, and nobody knows whose.

        Of those who answered no more are counted than ``reports / rate``: clients that always send dummies
        make no round cheaper. To a sum everybody who answers sends a report.
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
    def planned(self, invitation: Invitation, *, minimum: int) -> FederatedRound:
        """The round in which a fifth does not answer, and more of the rest report than in nearly any round.

        :meth:`worst` is of no use here: if nobody but those who report answers, sampling hides nothing. To a
        sum everybody who answers sends a report, so that the worst is planned for.
        """
        if invitation.mechanism.must_be_summed:
            return self.worst(invitation, minimum=minimum)
        answered = self.fewest_answers(invited=invitation.invited, minimum=minimum)
        expected = self.expected_reports(answered)
        reports = math.ceil(expected + _DEVIATIONS * math.sqrt(expected * (1 - self.rate)))
        return self.accounted(invitation, answered=answered, reports=min(max(reports, minimum), answered))

    @override
    def fewest_answers(self, *, invited: int, minimum: int) -> int:
        return max(minimum, math.ceil(_KEPT * invited))
