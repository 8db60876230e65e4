"""Who took part in federated rounds how often, and which of two cohorts costs more.

That rests on a lemma (``docs/proofs/accounting.md``, "Federated rounds"): a round of k' of n' clients costs
no more than one of k of n if k' ≥ k and k'/n' ≤ k/n, or if k' ≤ k and n' ≥ n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from shuffle_plugins.accounting.federated.rounds import FederatedRound, RoundKind
from shuffle_plugins.accounting.rounds.round import Round

_FINEST = 1.001  # ratio of the grid that sizes are rounded to first; coarser ones follow until they fit


class Cohort(NamedTuple):
    """The size of a round of one kind."""

    kind: int
    hiding: int  # clients among whom the reporting ones hide
    reports: int

    @property
    def open(self) -> bool:
        """Whether everybody reports: sampling hides nobody."""
        return self.hiding == self.reports

    @property
    def spread(self) -> float:
        """How many clients there are for each report: 1/γ."""
        return self.hiding / self.reports

    @property
    def weight(self) -> float:
        """What the round costs to first order, up to a factor of its kind: the variance of its loss, γ²/k."""
        return self.reports / self.hiding**2

    def covers(self, other: Cohort) -> bool:
        """Whether a round of this size is known to cost at least as much as the other."""
        if self.kind != other.kind:
            return False
        if other.reports <= self.reports and other.hiding >= self.hiding:
            return True
        return other.reports >= self.reports and other.reports * self.hiding <= self.reports * other.hiding


def fewer_sizes(cohorts: Mapping[Cohort, int], *, limit: int, costlier: bool = True) -> Counter[Cohort]:
    """The same numbers of rounds, in at most ``limit`` sizes, or half a dozen of each kind.

    Sizes are replaced by ones that cost at least as much if ``costlier``, or else by ones that cost no more.
    """
    limit = max(limit, 6 * len({cohort.kind for cohort in cohorts}))
    if len(cohorts) <= limit:
        return Counter(cohorts)
    found = [_merged(cohorts, _Grid.around(cohorts, at_rate, costlier), limit) for at_rate in (True, False)]
    return min(found, key=_weight) if costlier else max(found, key=_weight)


def _weight(cohorts: Mapping[Cohort, int]) -> float:
    return math.fsum(cohort.weight * rounds for cohort, rounds in cohorts.items())


def _merged(cohorts: Mapping[Cohort, int], grid: _Grid, limit: int) -> Counter[Cohort]:
    ratio = _FINEST
    while True:
        merged: Counter[Cohort] = Counter()
        for cohort, rounds in cohorts.items():
            merged[grid.rounded(cohort, ratio)] += rounds
        if len(merged) <= limit:
            return merged
        ratio *= ratio  # sizes of the coarser grid are some of the finer one's, and known already


@dataclass(frozen=True, slots=True)
class _Grid:
    """Sizes to round to: powers of a ratio, and multiples of the least spread and the fewest clients.

    Powers stay where they are as a history grows, as do the fewest clients where as many are always there.
    """

    reports: int  # the fewest; no size is rounded to fewer
    spread: float  # the fewest clients for each report
    hiding: int  # the fewest clients
    at_rate: bool  # round reports and the rate; otherwise reports and clients
    costlier: bool  # round to what costs more

    @classmethod
    def around(cls, cohorts: Iterable[Cohort], at_rate: bool, costlier: bool) -> Self:
        return cls(
            reports=min(cohort.reports for cohort in cohorts),
            spread=min((cohort.spread for cohort in cohorts if not cohort.open), default=1.0),
            hiding=min((cohort.hiding for cohort in cohorts if not cohort.open), default=1),
            at_rate=at_rate,
            costlier=costlier,
        )

    def rounded(self, cohort: Cohort, ratio: float) -> Cohort:
        kind, hiding, reports = cohort
        few, many = max(_down(reports, 1, ratio), self.reports), _up(reports, ratio)
        if cohort.open:
            fair = few if self.costlier else many
            return Cohort(kind, fair, fair)
        if not self.at_rate:
            if self.costlier:
                less = _down(hiding, self.hiding, ratio)
                return Cohort(kind, less, many) if many <= less else Cohort(kind, few, few)
            return Cohort(kind, _up(hiding, ratio, least=self.hiding), few)
        if self.costlier:
            spread = self.spread * ratio ** _steps(cohort.spread / self.spread, ratio, math.floor)
            return Cohort(kind, max(few, min(math.floor(few * spread), few * hiding // reports)), few)
        spread = self.spread * ratio ** _steps(cohort.spread / self.spread, ratio, math.ceil)
        return Cohort(kind, max(math.ceil(many * spread), -(-many * hiding // reports)), many)


def _down(value: int, least: int, ratio: float) -> int:
    return min(value, max(least, math.floor(least * ratio ** _steps(value / least, ratio, math.floor))))


def _up(value: int, ratio: float, *, least: int = 1) -> int:
    return max(value, math.ceil(least * ratio ** _steps(value / least, ratio, math.ceil)))


def _steps(value: float, ratio: float, whole: Callable[[float], int]) -> int:
    return whole(math.log(value) / math.log(ratio))


def costliest(cohorts: Mapping[Cohort, int], most: Mapping[int, int]) -> Counter[Cohort]:
    """A history that costs at least as much as any with at most ``most[kind]`` of the rounds of each kind.

    Of open cohorts the smallest are taken. Of sampled ones either all, or the largest as if each were drawn
    from the fewest clients, whichever weighs less.
    """
    taken: Counter[Cohort] = Counter()
    for kind in {cohort.kind for cohort in cohorts}:
        own = {cohort: rounds for cohort, rounds in cohorts.items() if cohort.kind == kind}
        opened = {cohort: rounds for cohort, rounds in own.items() if cohort.open}
        sampled = {cohort: rounds for cohort, rounds in own.items() if not cohort.open}
        wanted = most.get(kind, 0)
        few = _first(sorted(opened, key=lambda cohort: cohort.reports), opened, wanted)
        if sampled:
            fewest = min(cohort.hiding for cohort in sampled)
            descending = sorted(sampled, key=lambda cohort: -cohort.reports)
            largest: Counter[Cohort] = Counter()
            for cohort, rounds in _first(descending, sampled, wanted).items():
                largest[Cohort(kind, fewest, cohort.reports)] += rounds
            fits = descending[0].reports <= fewest
            few += largest if fits and _weight(largest) < _weight(sampled) else Counter(sampled)
        taken += few
    return taken


def cheapest(cohorts: Mapping[Cohort, int], taken: Mapping[int, int]) -> Counter[Cohort]:
    """A history that costs no more than any with ``taken[kind]`` rounds of each kind."""
    found: Counter[Cohort] = Counter()
    for kind, rounds in taken.items():
        own = {cohort: count for cohort, count in cohorts.items() if cohort.kind == kind}
        if all(cohort.open for cohort in own):
            found += _first(sorted(own, key=lambda cohort: -cohort.reports), own, rounds)
        else:
            most = max(cohort.hiding for cohort in own)
            found[Cohort(kind, most, min(cohort.reports for cohort in own))] += rounds
    return found


def _first(order: Iterable[Cohort], cohorts: Mapping[Cohort, int], wanted: int) -> Counter[Cohort]:
    """The first ``wanted`` rounds in that order."""
    taken: Counter[Cohort] = Counter()
    for cohort in order:
        rounds = min(wanted, cohorts[cohort])
        wanted -= rounds
        if rounds:
            taken[cohort] = rounds
    return taken


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
    """Who took part in the rounds of one kind, and how often."""

    index: int  # number of the kind, in the order in which kinds appeared
    example: FederatedRound
    named: Counter[str] = field(default_factory=Counter)  # rounds of each client, by the names that hold now
    most: int = 0  # the largest of them
    earlier: list[Counter[str]] = field(default_factory=list)  # the same under each earlier set of names
    unnamed: int = 0  # rounds whose participants are not known; everybody is taken to have been in them
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
        """Take over named participants that were counted elsewhere, by era and kind of round.

        ``known`` has, for each kind, the numbers of reports of rounds whose participants are known by name: a
        ValueError if the two do not belong together.
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
    """The names, each once; TypeError unless it is an iterable of str, and not one str."""
    if isinstance(participants, str):
        raise TypeError("participants are many names, not one str")
    names = frozenset(participants)
    if not all(isinstance(name, str) for name in names):
        raise TypeError("participants are named by str")
    return names
