"""Who took part in federated rounds, and how often: names, and eras in which they hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shuffle_plugins.accounting.federated.cohorts import Cohort
from shuffle_plugins.accounting.federated.rounds import FederatedRound, RoundKind
from shuffle_plugins.accounting.rounds.round import Round


class RecordedRound(NamedTuple):
    """An entry of a history.

    Attributes:
        federated_round: the round, at the number of reports that were received.
        unnamed: whether its participants are unknown.
        released: whether anything computed from its reports left the server.
    """

    federated_round: FederatedRound
    unnamed: bool
    released: bool


@dataclass(slots=True)
class KindParticipation:
    """Who took part in the rounds of one kind, and how often.

    Attributes:
        index: number of the kind, in the order in which kinds appeared.
        example: one round of the kind.
        named: rounds of each client, by the names that hold now.
        most: the largest of them.
        earlier: the same under each earlier set of names.
        unnamed: rounds whose participants are not known; everybody is taken to have been in them.
        recorded: all rounds of the kind.
    """

    index: int
    example: FederatedRound
    named: Counter[str] = field(default_factory=Counter)
    most: int = 0
    earlier: list[Counter[str]] = field(default_factory=list)
    unnamed: int = 0
    recorded: int = 0

    @property
    def eras(self) -> list[Counter[str]]:
        """Rounds of each client, one counter for each set of names."""
        return [*self.earlier, self.named]

    @property
    def rounds(self) -> int:
        """The most rounds that one client can have been in, under all its names together."""
        return self.most + sum(max(era.values(), default=0) for era in self.earlier) + self.unnamed

    def add(self, names: frozenset[str]) -> None:
        """Count one more round of each of these clients."""
        self.named.update(names)
        self.most = max(self.most, max(map(self.named.__getitem__, names)))

    def cohort(self, shuffle_round: Round) -> Cohort:
        """The size of a round of this kind."""
        return Cohort(self.index, shuffle_round.population, int(shuffle_round.cohort))


class ParticipationCounts:
    """Who took part how often, for every kind of round.

    Names hold for an era, which :meth:`rename` ends. A client of one era may be any client of another, so
    over eras the largest numbers of rounds add up.
    """

    def __init__(self) -> None:
        self._kinds: dict[RoundKind, KindParticipation] = {}

    @property
    def kinds(self) -> list[KindParticipation]:
        """Participation in each kind of round, in the order of their indices."""
        return list(self._kinds.values())

    @property
    def is_complete(self) -> bool:
        """Whether of every kind, one client can have been in all rounds."""
        return all(kind.rounds >= kind.recorded for kind in self.kinds)

    @property
    def taken(self) -> dict[int, int]:
        """Of each kind, by its index, the most rounds that one client can have been in."""
        return {kind.index: kind.rounds for kind in self.kinds}

    @property
    def num_eras(self) -> int:
        """Sets of names so far, the one that holds now included."""
        return max((len(kind.eras) for kind in self.kinds), default=0)

    def of(self, federated_round: FederatedRound) -> KindParticipation:
        """Who took part in rounds of this round's kind; a new kind begins without participants."""
        key = federated_round.kind
        if key not in self._kinds:
            earlier = [Counter[str]() for _ in range(self.num_eras - 1)]
            self._kinds[key] = KindParticipation(
                index=len(self._kinds), example=federated_round, earlier=earlier
            )
        return self._kinds[key]

    def rename(self) -> None:
        """End an era: nobody is known by the names used until now."""
        for kind in self.kinds:
            kind.earlier.append(kind.named)
            kind.named, kind.most = Counter(), 0

    def of_busiest_client(self) -> dict[int, int]:
        """Rounds of each kind, by its index, of the client known by name who took part most in all."""
        totals: Counter[tuple[int, str]] = Counter()
        for kind in self.kinds:
            for era, named in enumerate(kind.eras):
                for name, rounds in named.items():
                    totals[era, name] += rounds
        if not totals:
            return {}
        era, name = max(totals, key=totals.__getitem__)
        return {kind.index: kind.eras[era][name] for kind in self.kinds if name in kind.eras[era]}

    def of_clients(self) -> list[dict[int, int]]:
        """Rounds of each kind, by its index, of every client known by name, those without names included.

        Empty if clients had more than one set of names.
        """
        eras = [era for era in range(self.num_eras) if any(kind.eras[era] for kind in self.kinds)]
        if len(eras) != 1:
            return []
        (era,) = eras
        names = {name for kind in self.kinds for name in kind.eras[era]}
        return [
            {kind.index: kind.eras[era].get(name, 0) + kind.unnamed for kind in self.kinds} for name in names
        ]

    def worst_client(self, weight: Callable[[KindParticipation], float]) -> float:
        """The largest sum of weights over the rounds that one client can have been in."""
        kinds = [kind for kind in self.kinds if kind.rounds]
        if len(kinds) == 1:
            return weight(kinds[0]) * kinds[0].rounds
        worst = math.fsum(weight(kind) * kind.unnamed for kind in kinds if kind.unnamed)
        for era in range(self.num_eras if kinds else 0):
            totals: dict[str, float] = {}
            for kind in kinds:
                for name, rounds in kind.eras[era].items():
                    totals[name] = totals.get(name, 0.0) + weight(kind) * rounds
            worst += max(totals.values(), default=0.0)
        return worst

    def state(self) -> tuple[tuple[tuple[RoundKind, dict[str, int]], ...], ...]:
        """For each era and kind, how many rounds each named client took part in."""
        return tuple(
            tuple((key, dict(kind.eras[era])) for key, kind in self._kinds.items() if kind.eras[era])
            for era in range(self.num_eras)
        )

    def load(
        self,
        eras: Sequence[Mapping[RoundKind, Mapping[str, int]]],
        *,
        known: Mapping[RoundKind, Sequence[int]],
    ) -> None:
        """Take over named participants that were counted elsewhere.

        Args:
            eras: for each era and kind of round, how many rounds each client took part in.
            known: for each kind, the numbers of reports of rounds whose participants are known by name.

        Raises:
            KeyError: if a kind has no rounds.
            ValueError: if the numbers do not belong to these rounds.
        """
        counted: Counter[RoundKind] = Counter()
        reported: Counter[RoundKind] = Counter()
        for number, era in enumerate(eras):
            if number:
                self.rename()
            for key, named in era.items():
                if not all(isinstance(n, str) and type(r) is int and r >= 1 for n, r in named.items()):
                    raise ValueError("participants are names, in a whole number of rounds each")
                kind = self._kinds[key]
                kind.named = Counter(named)
                kind.most = max(named.values(), default=0)
                counted[key] += kind.most
                reported[key] += sum(named.values())
        if any(rounds > len(known.get(key, ())) for key, rounds in counted.items()):
            raise ValueError("somebody took part in more rounds than there were")
        if any(reported[key] < sum(reports) for key, reports in known.items()):
            raise ValueError("who took part in rounds with known participants is missing")


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
