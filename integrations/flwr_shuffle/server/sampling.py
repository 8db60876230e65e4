"""Who takes part in a round: drawn by the server, or decided by each client in secret."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from flwr_shuffle.randomizers import Randomizer
from shuffle_plugins.accounting import FederatedRound

_KEPT = 0.8  # share of the expected reports without which a round is refused, unless the user says otherwise
_DEVIATIONS = 4.0
_FEWEST = 2


class ClientSampling(ABC):
    """How the clients of a round are chosen, and what that makes of its cost."""

    @property
    def participation(self) -> float:
        """Probability with which an invited client reports, by its own secret coin; 1 if all do."""
        return 1.0

    @abstractmethod
    def draw(self, node_ids: Sequence[int]) -> list[int]:
        """The nodes to invite, drawn from the operating system's entropy, in random order.

        Raises:
            ValueError: if there are too few nodes.
        """

    @abstractmethod
    def expected_reports(self, population: int) -> float:
        """How many reports a round has on average, if nobody drops out."""

    def default_minimum(self, population: int) -> int:
        """Fewest reports of a round worth releasing: 80 % of what a poor draw would bring, at least 2."""
        expected = self.expected_reports(population)
        return max(_FEWEST, math.ceil(_KEPT * (expected - self._deviation(expected))))

    @abstractmethod
    def accounted(
        self,
        mechanism: Randomizer,
        *,
        candidates: int,
        invited: int,
        answered: int,
        reports: int,
        honest_fraction: float = 1.0,
    ) -> FederatedRound:
        """What a round cost.

        Args:
            mechanism: of the reports.
            candidates: connected clients of which the invited were drawn.
            invited: clients asked.
            answered: clients that sent a report or a dummy.
            reports: reports shuffled together.
            honest_fraction: share of the clients that can be counted on; see :class:`FederatedRound`.
        """

    @abstractmethod
    def worst(
        self,
        mechanism: Randomizer,
        *,
        candidates: int,
        invited: int,
        minimum: int,
        honest_fraction: float = 1.0,
    ) -> FederatedRound:
        """What a round of at least ``minimum`` reports can cost at most."""

    def planned(
        self,
        mechanism: Randomizer,
        *,
        candidates: int,
        invited: int,
        minimum: int,
        honest_fraction: float = 1.0,
    ) -> FederatedRound:
        """What a round costs at most but for rare chance: asked of a budget before anything is sent.

        A round that came out dearer is asked about again, before it is released.
        """
        return self.worst(
            mechanism,
            candidates=candidates,
            invited=invited,
            minimum=minimum,
            honest_fraction=honest_fraction,
        )

    def fewest_answers(self, *, invited: int, minimum: int) -> int:
        """Fewest clients that must answer for a round to cost no more than :meth:`planned`."""
        del invited
        return minimum

    def _deviation(self, expected: float) -> float:
        return _DEVIATIONS * math.sqrt(expected)


class _ServerDraws(ClientSampling):
    """Sampling in which the server sees who takes part: it amplifies for an observer of the model alone."""

    def accounted(
        self,
        mechanism: Randomizer,
        *,
        candidates: int,
        invited: int,
        answered: int,
        reports: int,
        honest_fraction: float = 1.0,
    ) -> FederatedRound:
        """What a round cost; see :meth:`ClientSampling.accounted`."""
        del answered
        return FederatedRound.drawn(
            mechanism,
            candidates=candidates,
            invited=invited,
            reports=reports,
            honest_fraction=honest_fraction,
        )

    def worst(
        self,
        mechanism: Randomizer,
        *,
        candidates: int,
        invited: int,
        minimum: int,
        honest_fraction: float = 1.0,
    ) -> FederatedRound:
        """What a round of at least ``minimum`` reports can cost at most."""
        return FederatedRound.drawn(
            mechanism,
            candidates=candidates,
            invited=invited,
            reports=minimum,
            honest_fraction=honest_fraction,
        )


@dataclass(frozen=True)
class FixedSize(_ServerDraws):
    """The server invites ``cohort`` of the connected clients, uniformly.

    Raises:
        ValueError: if the cohort is less than 2.
    """

    cohort: int

    def __post_init__(self) -> None:
        if type(self.cohort) is not int or self.cohort < _FEWEST:
            raise ValueError(f"cohort is a whole number of clients, at least {_FEWEST}, got {self.cohort!r}")

    def draw(self, node_ids: Sequence[int]) -> list[int]:
        """A uniform subset of ``cohort`` nodes."""
        if len(node_ids) < self.cohort:
            raise ValueError(f"cannot draw {self.cohort} of {len(node_ids)} nodes")
        return random.SystemRandom().sample(node_ids, self.cohort)

    def expected_reports(self, population: int) -> float:
        """The cohort."""
        return self.cohort

    def _deviation(self, expected: float) -> float:
        return 0.0


@dataclass(frozen=True)
class Poisson(_ServerDraws):
    """The server invites each connected client with probability ``rate``, independently.

    Raises:
        ValueError: if the rate is not in (0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def draw(self, node_ids: Sequence[int]) -> list[int]:
        """Each node with probability ``rate``; none, if chance will."""
        system = random.SystemRandom()
        drawn = [node for node in node_ids if system.random() < self.rate]
        system.shuffle(drawn)
        return drawn

    def expected_reports(self, population: int) -> float:
        """rate · population."""
        return self.rate * population


@dataclass(frozen=True)
class SelfSampling(ClientSampling):
    """Every connected client is invited; each reports with probability ``rate`` by its own secret coin.

    The others send dummies that look the same. Behind a mix node not even the server knows who reported, so
    sampling amplifies against the server as well.

    Raises:
        ValueError: if the rate is not in (0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    @property
    def participation(self) -> float:
        """The rate."""
        return float(self.rate)

    def draw(self, node_ids: Sequence[int]) -> list[int]:
        """All nodes, in random order."""
        return random.SystemRandom().sample(node_ids, len(node_ids))

    def expected_reports(self, population: int) -> float:
        """rate · population."""
        return self.rate * population

    def accounted(
        self,
        mechanism: Randomizer,
        *,
        candidates: int,
        invited: int,
        answered: int,
        reports: int,
        honest_fraction: float = 1.0,
    ) -> FederatedRound:
        """What a round cost: ``reports`` of those who answered, and nobody knows whose.

        Of those who answered no more are counted than ``reports / rate``: clients that always send dummies
        make no round cheaper.
        """
        del candidates, invited
        return FederatedRound.secret(
            mechanism, answered=answered, reports=reports, rate=self.rate, honest_fraction=honest_fraction
        )

    def worst(
        self,
        mechanism: Randomizer,
        *,
        candidates: int,
        invited: int,
        minimum: int,
        honest_fraction: float = 1.0,
    ) -> FederatedRound:
        """What a round of at least ``minimum`` reports can cost at most: when nobody else answers."""
        del candidates, invited
        return FederatedRound.secret(
            mechanism, answered=minimum, reports=minimum, honest_fraction=honest_fraction
        )

    def planned(
        self,
        mechanism: Randomizer,
        *,
        candidates: int,
        invited: int,
        minimum: int,
        honest_fraction: float = 1.0,
    ) -> FederatedRound:
        """The round when a fifth does not answer, and of the rest as many report as hardly ever do.

        The worst is no help here: should nobody but those who report answer, sampling hides nothing.
        """
        del candidates
        answered = self.fewest_answers(invited=invited, minimum=minimum)
        expected = self.expected_reports(answered)
        reports = math.ceil(expected + _DEVIATIONS * math.sqrt(expected * (1 - self.rate)))
        return FederatedRound.secret(
            mechanism,
            answered=answered,
            reports=min(max(reports, minimum), answered),
            rate=self.rate,
            honest_fraction=honest_fraction,
        )

    def fewest_answers(self, *, invited: int, minimum: int) -> int:
        """Four of five that were invited: dummies are what the reports hide among."""
        return max(minimum, math.ceil(_KEPT * invited))


def _check_rate(rate: float) -> None:
    if type(rate) not in (int, float) or not 0 < rate <= 1:
        raise ValueError(f"rate is a probability in (0, 1], got {rate!r}")
