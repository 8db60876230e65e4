"""A federated round against an observer of the model, the server, and everybody, and who took part how often.

Proofs: ``docs/proofs/accounting.md``, "Federated rounds".
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.accounting.terms import Adversary, Sampling, honest_clients
from shuffle_plugins.core import checks

RoundKind = tuple[Any, ...]


class _Mechanism(Protocol):
    @property
    def local_epsilon(self) -> float: ...

    @property
    def local_delta(self) -> float: ...


class _Randomizer(_Mechanism, Protocol):
    def round(self, *, population: int, cohort: int, sampling: Sampling = ...) -> Round: ...


class _SecretSum(_Mechanism, Protocol):
    def secret_round(self, *, answered: int, participation: float) -> Round: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FederatedRound:
    """One federated round as three adversaries see it: :meth:`drawn`, :meth:`secret` or :meth:`secret_sum`.

    Attributes:
        server: the round against the server, for a client that took part: who took part is known already, so
            both are measured without a further adversary of their own.
        local_epsilon: ε0 of one report; infinite for a client's share of a multi-message sum.
    """

    observer: Round
    server: Round
    local_epsilon: float
    local_delta: float

    def __post_init__(self) -> None:
        for shuffle_round in (self.observer, self.server):
            if not isinstance(shuffle_round, Round):
                raise ValueError(f"a federated round is made of rounds, got {shuffle_round!r}")
            if shuffle_round.sampling not in (Sampling.FULL, Sampling.WITHOUT_REPLACEMENT):
                raise ValueError(f"the cohort's size must be known, got {shuffle_round.sampling} sampling")
            if shuffle_round.adversary is not Adversary.MODEL_OBSERVER:
                raise ValueError(
                    "say what an adversary knows by population and cohort; leave the rounds' adversary alone"
                )
            if shuffle_round.local_epsilon != self.local_epsilon:
                raise ValueError(
                    f"local_epsilon is {self.local_epsilon!r}, a round's {shuffle_round.local_epsilon!r}"
                )
        if self.observer.cohort != self.server.cohort:
            raise ValueError("observer and server see the same number of reports")
        if self.server not in (self._hidden, self._hidden.opened()):
            raise ValueError("observer and server see the reports of one mechanism")
        least = self.server.local_delta
        if not least <= self.local_delta < 1:
            raise ValueError(f"local_delta must be in [0, 1) and the rounds', got {self.local_delta!r}")
        if self.observer.population < self.server.population:
            raise ValueError("an observer cannot know more than the server")
        if self.server.population > self.reports and not self.server.SELF_SAMPLED:
            raise ValueError(
                "the server sees who adds to a sum; whose data are in it clients may decide in secret "
                "(FederatedRound.secret_sum)"
            )

    @classmethod
    def drawn(
        cls,
        mechanism: _Randomizer,
        *,
        candidates: int,
        invited: int,
        reports: int,
        honest_fraction: float = 1.0,
    ) -> Self:
        """A round whose clients the server drew: uniformly ``invited`` of ``candidates``.

        Before an observer γ = invited / candidates, however many drop out: that must not depend on the data,
        and be as likely for every invited client (``docs/proofs/accounting.md`` says how much ε is off
        otherwise). Before the server γ = 1.

        Args:
            honest_fraction: share of the candidates, and of those that reported, who follow the protocol and
                do not collude with the adversary. The others hide nobody.
        """
        _check_counts(reports=reports, invited=invited, candidates=candidates)
        reports = _honest(reports, honest_fraction)
        hiding = max(reports, reports * _honest(candidates, honest_fraction) // invited)
        observer = _round(mechanism, population=hiding, cohort=reports)
        return cls._of(mechanism, observer, _round(mechanism, population=reports, cohort=reports))

    @classmethod
    def secret(
        cls,
        mechanism: _Randomizer,
        *,
        answered: int,
        reports: int,
        rate: float | None = None,
        honest_fraction: float = 1.0,
    ) -> Self:
        """A round in which clients sampled themselves in secret and the others sent dummies.

        This needs equal chances of all clients to report, coins that nobody but their owner sees, and a
        shuffler that drops the dummies and does not tell.

        Args:
            answered: envelopes shuffled, dummies included.
            reports: real reports among them.
            rate: probability with which a client was asked to report, if it is known. No more than
                ``reports / rate`` clients are then taken to have tossed a coin.
            honest_fraction: share of those that answered who follow the protocol and do not collude.
        """
        _check_counts(reports=reports, answered=answered)
        hiding = _honest(answered, honest_fraction)
        if rate is not None:
            checks.number("rate", rate, above=0, at_most=1)
            hiding = min(hiding, max(1, math.floor(reports / rate)))
        both = _round(mechanism, population=hiding, cohort=min(reports, hiding))
        return cls._of(mechanism, both, both)

    @classmethod
    def _of(cls, mechanism: _Mechanism, observer: Round, server: Round) -> Self:
        local_epsilon, local_delta = mechanism.local_epsilon, mechanism.local_delta
        return cls(observer=observer, server=server, local_epsilon=local_epsilon, local_delta=local_delta)

    @classmethod
    def secret_sum(
        cls, mechanism: _SecretSum, *, answered: int, rate: float, hides_shares: bool = True
    ) -> Self:
        """A sum to which all who answered add noise, and each adds data with probability ``rate``.

        The others add the zero vector. Nobody learns who did, or how many. ``hides_shares`` says whether the
        server sees nothing of the shares but their sum; if not, it is charged as if it knew who took part.
        """
        checks.number("rate", rate, above=0, at_most=1)
        observer = mechanism.secret_round(answered=answered, participation=rate)
        return cls._of(mechanism, observer, observer if hides_shares else observer.opened())

    @property
    def reports(self) -> int:
        """How many were shuffled, or added up."""
        return int(self.server.cohort)

    @property
    def is_secret(self) -> bool:
        """Whether who took part is hidden from the server too."""
        return self.server.population > self.reports or self.server != self.server.opened()

    @property
    def secrecy(self) -> str:
        """What of the sampling must stay secret from an observer and from the server."""
        if not self.is_secret:
            return f"{self.observer.secrecy}; the server sees it, and against the server this earns nothing"
        if self.server.opened() != self.server:
            return self.server.secrecy
        return (
            "every client that answers decides by a coin of its own, which nobody else may see, whether it "
            "sends its report or a dummy; neither the adversary nor the server may learn who sent which"
        )

    @property
    def _hidden(self) -> Round:
        """The observer's round to one who knows who answered."""
        return replace(self.observer, population=self.server.population, sampling=self.server.sampling)

    @property
    def kind(self) -> RoundKind:
        """What rounds that compare share: mechanism, ε0, δ0, and whether participation is secret.

        Of sums the number of reports as well, since a sum cannot be thinned out; and, if the server knows
        more of it than who answered, the round of one who does not.
        """
        shared = self.server.comparable
        if shared is None:
            state, hidden = self.server.state(), self._hidden
            return state if hidden == self.server else (state, hidden.state())
        mechanism, blanket = shared
        return mechanism, self.local_epsilon, self.local_delta, blanket, self.is_secret

    def before(self, adversary: Adversary) -> Round:
        """The round against an observer or the server."""
        if adversary is Adversary.LOCAL:
            raise ValueError("with nobody trusted a round costs local_epsilon")
        return self.observer if adversary is Adversary.MODEL_OBSERVER else self.server

    def state(self) -> tuple[Any, Any, float | None, float]:
        """The round as plain values."""
        local_epsilon = None if math.isinf(self.local_epsilon) else self.local_epsilon
        return (self.observer.state(), self.server.state(), local_epsilon, self.local_delta)

    @classmethod
    def from_state(cls, state: tuple[Any, Any, float | None, float]) -> Self:
        """The round of a :meth:`state`, whose tuples may have become lists."""
        try:
            observer, server, local_epsilon, local_delta = state
            return cls(
                observer=Round.from_state(observer),
                server=Round.from_state(server),
                local_epsilon=math.inf if local_epsilon is None else local_epsilon,
                local_delta=local_delta,
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not the state of a FederatedRound: {error}") from error


def _round(mechanism: _Randomizer, *, population: int, cohort: int) -> Round:
    sampling = Sampling.FULL if population == cohort else Sampling.WITHOUT_REPLACEMENT
    return mechanism.round(population=population, cohort=cohort, sampling=sampling)


def _honest(count: int, fraction: float) -> int:
    """At least one: the client whose ε it is."""
    return max(1, honest_clients(count, fraction))


def _check_counts(**counts: int) -> None:
    """Refuse counts that are not whole numbers from 1 on, in ascending order."""
    for (less, few), (more, many) in pairwise(counts.items()):
        checks.whole(less, few)
        checks.whole(more, many)
        if few > many:
            raise ValueError(f"{few} {less} of {many} {more}: there cannot be more")


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

    Sizes that are close are replaced by one that costs at least as much as each if ``costlier``, or else by
    one that costs no more.
    """
    limit = max(limit, 6 * len({cohort.kind for cohort in cohorts}))
    found, ratio = Counter(cohorts), 1.001
    while len(found) > limit:
        width, close = math.log(ratio), defaultdict[tuple[int, ...], list[Cohort]](list)
        for cohort in cohorts:
            cell = (int(math.log(cohort.reports) / width), int(math.log(cohort.spread) / width))
            close[cohort.kind, cohort.open, *cell].append(cohort)
        found = Counter()
        for group in close.values():
            found[_replacing(group, costlier)] += sum(cohorts[each] for each in group)
        ratio *= ratio
    return found


def _replacing(group: list[Cohort], costlier: bool) -> Cohort:
    """A size that :meth:`covers <Cohort.covers>` all of a kind, or that all cover: by clients or by rate."""
    kind, reports, hiding = group[0].kind, [each.reports for each in group], [each.hiding for each in group]
    fewest, most = min(reports), max(reports)
    if group[0].open:
        return Cohort(kind, fewest, fewest) if costlier else Cohort(kind, most, most)
    # The rate is exact in whole numbers: of fractions the largest, or the smallest.
    extreme = min if costlier else max
    far = extreme(group, key=lambda each: Fraction(each.hiding, each.reports))
    if costlier:
        choices = [Cohort(kind, max(fewest, fewest * far.hiding // far.reports), fewest)]
        if most <= min(hiding):
            choices.append(Cohort(kind, min(hiding), most))
        return min(choices, key=lambda each: each.weight)
    choices = [Cohort(kind, -(-most * far.hiding // far.reports), most), Cohort(kind, max(hiding), fewest)]
    return max(choices, key=lambda each: each.weight)


def _weight(cohorts: Mapping[Cohort, int]) -> float:
    return math.fsum(cohort.weight * rounds for cohort, rounds in cohorts.items())


def costliest(cohorts: Mapping[Cohort, int], most: Mapping[int, int]) -> Counter[Cohort]:
    """A history that costs at least as much as any with at most ``most[kind]`` of the rounds of each kind.

    Of open cohorts the smallest; of sampled ones all, or the largest as if drawn from the fewest clients.
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
    """An entry of a history; participants may be unnamed, and nothing of it released."""

    federated_round: FederatedRound
    unnamed: bool
    released: bool


@dataclass(slots=True)
class KindParticipation:
    """Who took part in the rounds of one kind, and how often."""

    index: int  # number of the kind, in the order in which kinds appeared
    example: FederatedRound
    named: Counter[tuple[int, str]] = field(default_factory=Counter)  # rounds of each client, by era and name
    # Of a client that joined within an era the most that it can have been in before, under another name.
    before: dict[tuple[int, str], int] = field(default_factory=dict)
    most: Counter[int] = field(default_factory=Counter)  # the largest sum of both in each era
    unnamed: int = 0  # rounds whose participants are not known; everybody is taken to have been in them
    recorded: int = 0
    sampled: bool = False  # whether an observer does not know of all rounds who was in them

    @property
    def rounds(self) -> int:
        """The most rounds that one client can have been in, under all its names together."""
        return self.most.total() + self.unnamed

    def add(self, named: Mapping[str, int], *, era: int) -> None:
        """Count so many more rounds of each of these clients."""
        for name, rounds in named.items():
            self.named[era, name] += rounds
            self.most[era] = max(self.most[era], self.of((era, name)))

    def after(self, names: Iterable[str] | None, *, era: int) -> int:
        """:attr:`rounds` after one more, of these clients, or of the busiest one."""
        if names is None:
            return self.rounds + 1
        return self.rounds + max(0, *(self.of((era, name)) + 1 - self.most[era] for name in names))

    def of(self, client: tuple[int, str]) -> int:
        """In how many rounds a client is taken to have been."""
        return self.named[client] + self.before.get(client, 0)

    def cohort(self, shuffle_round: Round) -> Cohort:
        """The size of a round of this kind."""
        return Cohort(self.index, shuffle_round.population, int(shuffle_round.cohort))


class ParticipationCounts:
    """Who took part how often, for every kind of round. Names hold for an era, which :meth:`rename` ends."""

    def __init__(self) -> None:
        self._kinds: dict[RoundKind, KindParticipation] = {}
        self._era = 0

    @property
    def kinds(self) -> list[KindParticipation]:
        """Participation in each kind of round, in the order of their indices."""
        return list(self._kinds.values())

    def taken(self, adversary: Adversary) -> dict[int, int]:
        """Of each kind the most rounds that can tell something of one client: those that it can have been in,
        before an observer of whom sampling hides it all.
        """
        hidden = adversary is Adversary.MODEL_OBSERVER
        return {kind.index: kind.recorded if hidden and kind.sampled else kind.rounds for kind in self.kinds}

    def after(
        self, federated_round: FederatedRound, names: Iterable[str] | None, *, adversary: Adversary
    ) -> dict[int, int]:
        """:meth:`taken` after one more round, of these clients, or of the busiest one."""
        kind = self.of(federated_round)
        sampled = kind.sampled or not kind.cohort(federated_round.observer).open
        hidden = adversary is Adversary.MODEL_OBSERVER and sampled
        after = kind.recorded + 1 if hidden else kind.after(names, era=self._era)
        return self.taken(adversary) | {kind.index: after}

    def join(self, names: Iterable[str]) -> None:
        """Clients join an era: each may be any that was in it before under another name, and is counted on as
        the one that took part most.
        """
        joined = [(self._era, name) for name in names]
        for kind in self.kinds:
            if most := kind.most[self._era]:
                kind.before = {client: most for client in joined if client not in kind.named} | kind.before

    def before(self, names: Iterable[str]) -> dict[RoundKind, dict[str, int]]:
        """Of clients that joined, in how many rounds of each kind each is taken to have been before."""
        clients = [(self._era, name) for name in names]
        return {
            key: {client[1]: kind.before[client] for client in clients if client in kind.before}
            for key, kind in self._kinds.items()
        }

    def of(self, federated_round: FederatedRound) -> KindParticipation:
        """Who took part in rounds of this round's kind; a new kind begins without participants."""
        key = federated_round.kind
        if key not in self._kinds:
            self._kinds[key] = KindParticipation(index=len(self._kinds), example=federated_round)
        return self._kinds[key]

    def add(self, federated_round: FederatedRound, names: Iterable[str] | None) -> None:
        """Count a round; everybody is taken to have been in one without names."""
        kind = self.of(federated_round)
        if names is None:
            kind.unnamed += 1
        else:
            kind.add(dict.fromkeys(names, 1), era=self._era)

    def rename(self) -> None:
        """End an era: nobody is known by the names used until now."""
        self._era += 1

    def _totals(self, weight: Callable[[KindParticipation], float]) -> dict[tuple[int, str], float]:
        totals: dict[tuple[int, str], float] = {}
        seen = {client for kind in self.kinds for client in kind.named}  # who only joined is another
        for kind in self.kinds:
            each = weight(kind)
            for client in (kind.named.keys() | kind.before.keys()) & seen:
                totals[client] = totals.get(client, 0.0) + each * kind.of(client)
        return totals

    def of_busiest_client(self) -> dict[int, int]:
        """Rounds of each kind, by its index, of the client known by name who took part most in all."""
        totals = sum((kind.named for kind in self.kinds), Counter[tuple[int, str]]())
        if not totals:
            return {}
        busiest = max(sorted(totals), key=totals.__getitem__)  # of several the same one in every run
        return {kind.index: kind.named[busiest] for kind in self.kinds if busiest in kind.named}

    def of_clients(self) -> list[dict[int, int]]:
        """Rounds of each kind, by its index, of every client; none if somebody may have had two names."""
        clients = {client for kind in self.kinds for client in kind.named}
        if len({era for era, _ in clients}) != 1 or any(kind.before for kind in self.kinds):
            return []
        return [{kind.index: kind.named[each] + kind.unnamed for kind in self.kinds} for each in clients]

    def worst_client(self, weight: Callable[[KindParticipation], float]) -> float:
        """The largest sum of weights over the rounds that one client can have been in."""
        kinds = [kind for kind in self.kinds if kind.rounds]
        if len(kinds) == 1:
            return weight(kinds[0]) * kinds[0].rounds
        worst: dict[int, float] = {}  # a client of one era may be any client of another
        for (era, _), total in self._totals(weight).items():
            worst[era] = max(worst.get(era, 0.0), total)
        return math.fsum([*worst.values(), *(weight(kind) * kind.unnamed for kind in kinds if kind.unnamed)])

    def state(self) -> tuple[tuple[tuple[RoundKind, dict[str, tuple[int, int]]], ...], ...]:
        """For each era and kind, in how many rounds each named client was, and may have been before."""
        found: list[dict[RoundKind, dict[str, tuple[int, int]]]] = [{} for _ in range(self._era + 1)]
        for key, kind in self._kinds.items():
            for era, name in sorted(kind.named.keys() | kind.before.keys()):
                both = kind.named[era, name], kind.before.get((era, name), 0)
                found[era].setdefault(key, {})[name] = both
        return tuple(tuple(era.items()) for era in found)

    def load(
        self,
        eras: Sequence[Mapping[RoundKind, Mapping[str, Sequence[int]]]],
        *,
        known: Mapping[RoundKind, Sequence[int]],
    ) -> None:
        """Take over named participants that were counted elsewhere, as of :meth:`state`.

        ``known`` has the numbers of reports of those rounds, with which they must agree.
        """
        for self._era, era in enumerate(eras):
            for key, named in era.items():
                kind = self._kinds[key]
                for name, (rounds, before) in named.items():
                    if not isinstance(name, str) or type(rounds) is not int or type(before) is not int:
                        raise ValueError("participants are names, in a whole number of rounds each")
                    if rounds < 0 or before < 0 or not rounds + before:
                        raise ValueError("participants were in a round, or may have been")
                    if before:
                        kind.before[self._era, name] = before
                    if rounds:
                        kind.add({name: rounds}, era=self._era)
        for key, kind in self._kinds.items():
            reports = known.get(key, ())
            if kind.most.total() > len(reports):
                raise ValueError("somebody took part in more rounds than there were")
            if kind.named.total() < sum(reports):
                raise ValueError("who took part in rounds with known participants is missing")


def distinct_participants(participants: Iterable[str]) -> frozenset[str]:
    """The names, each once; one str is refused."""
    if isinstance(participants, str):
        raise TypeError("participants are many names, not one str")
    names = frozenset(participants)
    if not all(isinstance(name, str) for name in names):
        raise TypeError("participants are named by str")
    return names
