"""Who took part in federated rounds, and how often: names, and eras in which they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from shuffle_plugins.accounting.federated.cohorts import Cohort
from shuffle_plugins.accounting.federated.rounds import FederatedRound
from shuffle_plugins.accounting.rounds.laws import Round


class RecordedRound(NamedTuple):
    """An entry of a history: the round, whether its participants are unknown, whether it was released."""

    federated_round: FederatedRound
    unnamed: bool
    released: bool


@dataclass(slots=True)
class _Participation:
    """Who took part in rounds of one kind, and how often.

    Attributes:
        named: rounds of each client, by the names of now.
        most: largest of them.
        earlier: the same under each earlier set of names.
        unnamed: rounds of everybody.
    """

    index: int
    example: FederatedRound
    named: Counter[str] = field(default_factory=Counter)
    most: int = 0
    earlier: list[Counter[str]] = field(default_factory=list)
    unnamed: int = 0

    @property
    def eras(self) -> list[Counter[str]]:
        """Rounds of each client, one counter for each set of names."""
        return [*self.earlier, self.named]

    @property
    def rounds(self) -> int:
        """Rounds that one client can have been in, whatever it was called."""
        return self.most + sum(max(era.values(), default=0) for era in self.earlier) + self.unnamed

    def add(self, names: frozenset[str]) -> None:
        self.named.update(names)
        self.most = max(self.most, max(map(self.named.__getitem__, names)))

    def cohort(self, shuffle_round: Round) -> Cohort:
        return Cohort(self.index, shuffle_round.population, int(shuffle_round.cohort))


def distinct_participants(participants: Iterable[str]) -> frozenset[str]:
    """The names, each once.

    Raises:
        TypeError: unless it is an iterable of str, and not one str.
    """
    if isinstance(participants, str):
        raise TypeError("participants are many names, not one str")
    names = frozenset(participants)
    if not all(isinstance(name, str) for name in names):
        raise TypeError("participants are named by str")
    return names
