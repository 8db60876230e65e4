"""What a history of federated rounds costs, against an observer of the model, the server, and everybody."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

from shuffle_plugins.accounting.accountant import (
    BothDirections,
    ShuffleAccountant,
    check_none_forgotten,
    check_saved,
    sealed,
    upper_law,
)
from shuffle_plugins.accounting.federated.rounds import (
    Cohort,
    FederatedRound,
    ParticipationCounts,
    RecordedRound,
    RoundKind,
    cheapest,
    costliest,
    distinct_participants,
    fewer_sizes,
)
from shuffle_plugins.accounting.rounds.records import SampledRecordsRound, SeveralReportsRound
from shuffle_plugins.accounting.rounds.round import Round, ShuffleRound, as_tuples, check_recordable
from shuffle_plugins.accounting.terms import (
    NEIGHBOURING_RELATION,
    Adversary,
    EpsilonInterval,
    Method,
    Sampling,
    check_method,
    known,
    round_adversary,
)
from shuffle_plugins.core import checks, rounded

_STATE_VERSION = 4
_MOST_SIZES = 400  # sizes of cohorts composed finely and in any order
_FEW_SIZES = 64  # the same of rounds whose losses take long, and for what is asked seldom
_AMPLIFIED = (Adversary.MODEL_OBSERVER, Adversary.SERVER)


@dataclass(frozen=True, kw_only=True, slots=True)
class FederatedSpending:
    """What a history of federated rounds cost at ``delta``, by who is trusted. Replace-one neighbours.

    Attributes:
        observer: ε of any client against an observer of the model.
        server: ε of the client who took part most, against the server.
        local_epsilon: Σ ε0 of the client who reported most: its ε if nobody is trusted; infinite if Σ δ0 of
            its reports exceeds ``delta``.
        worst_client_rounds: rounds of the client who took part most.
    """

    observer: EpsilonInterval
    server: EpsilonInterval
    local_epsilon: float
    delta: float
    num_rounds: int
    worst_client_rounds: int

    def __str__(self) -> str:
        """A line for each adversary: ε, δ, the relation and how many rounds."""
        count = f"rounds: {self.num_rounds}"
        lines = (
            (known("ε", self.observer), Adversary.MODEL_OBSERVER, count),
            (
                known("ε", self.server),
                Adversary.SERVER,
                f"{count}, of one client at most {self.worst_client_rounds}",
            ),
            (f"ε ≤ {rounded(self.local_epsilon, up=True)}", Adversary.LOCAL, "no amplification"),
        )
        return "\n".join(
            f"{epsilon} at δ = {self.delta:g} ({NEIGHBOURING_RELATION} neighbours, "
            f"adversary: {adversary}; {what})"
            for epsilon, adversary, what in lines
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSpread:
    """How unevenly rounds are spread over the clients that took part in at least one, all known by name.

    Each ε is certified against the server, of the client that took part least and of the one in the middle.
    """

    clients: int
    fewest_rounds: int
    median_rounds: int
    most_rounds: int
    fewest_epsilon: float
    median_epsilon: float


@dataclass(slots=True)
class _Answers:
    """What was found out for one adversary and one δ."""

    charged: float | None = None  # what the history costs; None where a round was recorded since
    # A size, an ε that one more of it does not exceed, and as of how many rounds of one client.
    allowed: tuple[Cohort, float, int] | None = None
    limit: float = math.inf  # an ε that the history is known not to exceed
    shown: float = 0.0  # the largest ε given out, so that ε never falls while rounds are recorded

    def record(self, cohort: Cohort, *, taken: int) -> None:
        """Keep what still holds once one more round is recorded, with which one client was in so many."""
        self.charged, self.limit = None, self.not_over(cohort, taken=taken)
        self.allowed = None

    def not_over(self, cohort: Cohort, *, taken: int) -> float:
        """An ε that one more round of this size, the ``taken``-th of one client, is known not to exceed."""
        if self.allowed is None:
            return math.inf
        size, epsilon, most = self.allowed
        return epsilon if size.covers(cohort) and taken <= most else math.inf


class FederatedAccountant:
    """Adds up federated rounds against an observer, against the server, and with nobody trusted.

    Before the server a client pays for the rounds it took part in. The number reported bounds every client's
    at once: of each kind of round (one mechanism at one ε0) the costliest ones, as many as any one client
    took part in (``docs/proofs/accounting.md``, section 5a, "The dominating history"). Rounds of secret
    participation have no such order and are charged to everybody. Before an observer all rounds of a kind are
    charged, unless sampling hides in none of them who took part: then as before the server. That clients are
    kept apart in windows of sums (:attr:`WindowRound.separation`) is up to the host. ``method`` is as of
    :class:`ShuffleAccountant`.

    Example:
        >>> from shuffle_plugins.mechanisms import registry
        >>> mechanism = registry.get("linf-block", local_epsilon=2.0, dim=1000)
        >>> accountant = FederatedAccountant()
        >>> one = FederatedRound.drawn(mechanism, candidates=1000, invited=100, reports=95)
        >>> accountant.step(one, participants=[str(client) for client in range(95)])
        >>> found = accountant.spending(1e-6)
        >>> found.observer.upper < found.server.upper < found.local_epsilon
        True
    """

    def __init__(self, *, method: Method = "pld") -> None:
        self._method = check_method(method)
        self._records: list[RecordedRound] = []
        self._participation = ParticipationCounts()
        self._cohorts: dict[Adversary, Counter[Cohort]] = {adversary: Counter() for adversary in _AMPLIFIED}
        self._answers: defaultdict[tuple[Adversary, float], _Answers] = defaultdict(_Answers)
        self._whole = {adversary: ShuffleAccountant(method=method) for adversary in _AMPLIFIED}
        # Of histories that dominate, those of one adversary follow each other: what they share is kept.
        self._dominated = {each: BothDirections(upper_law, most_fine=_MOST_SIZES) for each in _AMPLIFIED}
        for whole in self._whole.values():
            whole._uppers = BothDirections(upper_law, most_fine=_MOST_SIZES)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self._method}: {self.num_rounds:,} rounds>"

    # -- recording --------------------------------------------------------------------------------------

    def step(
        self, federated_round: FederatedRound, *, participants: Iterable[str] | None, released: bool = True
    ) -> None:
        """Record one round. Call it before the round's output is released.

        Args:
            federated_round: the round, at the number of reports that were received.
            participants: names of the clients that answered, dummies included; None if they are not known,
                and then everybody is taken to have answered.
            released: whether anything computed from the reports leaves the server. Reports that it threw away
                cost nothing against an observer; against the server they cost as much as any others.
        """
        names = None if participants is None else distinct_participants(participants)
        if names is not None and len(names) < federated_round.reports:
            raise ValueError(
                f"{federated_round.reports} reports of {len(names)} participants: somebody's round would not "
                "be counted. Name everybody who answered, or pass participants=None"
            )
        self._record(federated_round, unnamed=names is None, released=released)
        self._participation.add(federated_round, names)
        kind = self._participation.of(federated_round)
        for (adversary, _), answers in self._answers.items():
            if released or adversary is Adversary.SERVER:
                taken = self._participation.taken(adversary)[kind.index]
                answers.record(kind.cohort(federated_round.before(adversary)), taken=taken)

    def join(self, names: Iterable[str]) -> None:
        """Clients join by names that were not there before, such as the ids of nodes that were restarted.

        Each may be any of those that took part before: it is counted as the one that took part most.
        """
        self._participation.join(distinct_participants(names))

    def assumed(self, names: Iterable[str]) -> dict[RoundKind, dict[str, int]]:
        """Of those that joined among these clients, in how many rounds of each kind each may have been."""
        return self._participation.before(names)

    def rename(self) -> None:
        """From here on participants go by new names, such as the node ids of another run.

        A client may be any of those who took part before, so the largest numbers of rounds add up.
        """
        self._participation.rename()

    def _record(self, federated_round: FederatedRound, *, unnamed: bool, released: bool) -> None:
        for adversary in _AMPLIFIED:
            check_recordable(federated_round.before(adversary))
        kind = self._participation.of(federated_round)
        kind.recorded += 1
        kind.sampled |= not kind.cohort(federated_round.observer).open
        # Of sums of one kind the largest δ0 is charged.
        kind.example = max(kind.example, federated_round, key=lambda each: each.local_delta)
        for adversary in _AMPLIFIED:
            if released or adversary is Adversary.SERVER:
                shuffle_round = federated_round.before(adversary)
                cohort = kind.cohort(shuffle_round)
                self._cohorts[adversary][cohort] += 1
                self._whole[adversary].step(shuffle_round)
        self._records.append(RecordedRound(federated_round, unnamed=unnamed, released=released))

    @property
    def method(self) -> Method:
        """How upper bounds of rounds compose: ``"pld"`` or ``"rdp"``."""
        return self._method

    @property
    def num_rounds(self) -> int:
        """How many rounds were recorded."""
        return len(self._records)

    @property
    def history(self) -> tuple[RecordedRound, ...]:
        """The rounds in the order in which they were recorded."""
        return tuple(self._records)

    @property
    def worst_client_rounds(self) -> int:
        """Rounds of the client who took part most."""
        return int(self._participation.worst_client(lambda _: 1.0))

    # -- asking -----------------------------------------------------------------------------------------

    def spending(self, delta: float) -> FederatedSpending:
        """What the rounds cost at δ before every adversary: :meth:`epsilon` of each, and Σ ε0."""
        return FederatedSpending(
            observer=self.epsilon(delta),
            server=self.epsilon(delta, adversary=Adversary.SERVER),
            local_epsilon=self._local(delta),
            delta=delta,
            num_rounds=self.num_rounds,
            worst_client_rounds=self.worst_client_rounds,
        )

    def epsilon(
        self, delta: float, *, adversary: Adversary = Adversary.MODEL_OBSERVER, lower: bool = True
    ) -> EpsilonInterval:
        """Certified bounds on ε at δ.

        Upper: the rounds composed at their own sizes; against the server the costliest that a client can have
        been in. Of more than 400 sizes (64 where a law takes long), close ones are replaced by costlier ones.
        Lower: what real instances attain; against the server, those of the client known by name who took part
        most, at sizes that cost less.

        Args:
            adversary: the model's observer or the server; ``LOCAL`` only without a lower end.
            lower: False leaves the lower end at 0, and gives as the upper end what a budget is charged and
                :meth:`would_exceed` compares. It never falls while rounds are recorded (composed anew, an ε
                may move by a few parts in ten thousand), and is infinite where no ε can be certified.
        """
        checks.delta(delta)
        if not lower:
            upper, bound = self._charged_epsilon(delta, Adversary(adversary)), "what a budget is charged"
            return EpsilonInterval.below(upper, bound=bound, delta=delta, adversary=str(adversary))
        adversary = round_adversary(adversary)
        accountant, attained = self._charged(adversary), self._attained(adversary)
        if attained is None:
            return replace(accountant.epsilon(delta), adversary=adversary.value)
        above = accountant.epsilon(delta, lower=False)
        if above.upper == math.inf:
            accountant.epsilon(delta)  # says what is wrong
        attained_epsilon, name = attained._lower_epsilon(delta, upper=above.upper)
        attained_epsilon = min(attained_epsilon, above.upper)
        return replace(
            above,
            adversary=adversary.value,
            lower=attained_epsilon,
            lower_bound=name if attained_epsilon else "none",
        )

    def client_spread(self, delta: float) -> ClientSpread | None:
        """How rounds are spread over clients; None if these are not known by one set of names."""
        checks.delta(delta)
        rounds = self._participation.of_clients()
        if not rounds:
            return None
        in_order = sorted(rounds, key=lambda kinds: sum(kinds.values()))
        fewest, median = in_order[0], in_order[(len(in_order) - 1) // 2]
        least, middle = (self._dominating(Adversary.SERVER, taken) for taken in (fewest, median))
        return ClientSpread(
            clients=len(rounds),
            fewest_rounds=sum(fewest.values()),
            median_rounds=sum(median.values()),
            most_rounds=sum(in_order[-1].values()),
            fewest_epsilon=least.epsilon(delta, lower=False).upper,
            median_epsilon=middle.epsilon(delta, lower=False).upper,
        )

    def records_epsilon(
        self, delta: float, *, records_per_client: int, adversary: Adversary = Adversary.MODEL_OBSERVER
    ) -> EpsilonInterval:
        """ε at δ for neighbours that differ in one *record* of a client, which has m of them.

        For clients that in every round draw some of their m records, uniformly, without replacement and in
        secret, and each of whose reports is computed on one of them alone (CLDP-SGD, DSS-SGD): that they do
        is up to their app. Sums of many messages and reports with δ0 > 0 are refused.
        """
        adversary = round_adversary(adversary)
        charged = self._charged(adversary)
        exact = adversary is Adversary.MODEL_OBSERVER
        if len(self._cohorts[adversary]) > _FEW_SIZES:
            exact = False
            charged = self._dominating(adversary, self._participation.taken(adversary), limit=_FEW_SIZES)
        accountant = ShuffleAccountant(method=self._method)
        for each, steps in charged.history:
            if isinstance(each, SeveralReportsRound):
                exact = False  # hosts charge such a round for the fewest reports that it was promised to have
                records = each.records(records_per_client=records_per_client)
            elif type(each) is ShuffleRound:
                records = SampledRecordsRound.of(each, records_per_client=records_per_client)
            else:
                raise ValueError(
                    f"the draw of a record is accounted for shuffled reports, and this history has a "
                    f"{type(each).__name__}: use epsilon()"
                )
            accountant.step(records, num_steps=steps)
        found = replace(accountant.epsilon(delta), adversary=adversary.value)
        if exact:
            return found
        return replace(found, lower=0.0, lower_bound="none")  # charged is more than took place

    def _charged_epsilon(self, delta: float, adversary: Adversary) -> float:
        if adversary is Adversary.LOCAL:
            return self._local(delta)
        answers = self._answers[adversary, delta]
        if answers.charged is None:
            answers.charged = self._charged(adversary).epsilon(delta, lower=False).upper
        answers.shown = max(min(answers.charged, answers.limit), answers.shown)
        return answers.shown

    def would_exceed(
        self,
        federated_round: FederatedRound,
        *,
        max_epsilon: float,
        delta: float,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
        participants: Iterable[str] | None = None,
    ) -> bool:
        """Whether one more such round would take ε over ``max_epsilon``.

        Ask with the most that the round can cost: the fewest reports that are accepted. ``participants`` are
        all that may be in it, if that is known; None takes the client who took part most to be in it.
        """
        checks.target_epsilon(max_epsilon, name="max_epsilon")
        checks.delta(delta)
        adversary = Adversary(adversary)
        if adversary is Adversary.LOCAL:
            return self._local(delta, extra=federated_round) > max_epsilon * (1 + 1e-9)
        shuffle_round = federated_round.before(adversary)
        check_recordable(shuffle_round)
        kind = self._participation.of(federated_round)
        cohort, answers = kind.cohort(shuffle_round), self._answers[adversary, delta]
        taken = self._participation.after(federated_round, participants, adversary=adversary)
        if answers.not_over(cohort, taken=taken[kind.index]) <= max_epsilon:
            return False
        if self._is_whole(adversary) and taken[kind.index] > kind.recorded:
            whole = self._whole[adversary]
            exceeds = whole.would_exceed(shuffle_round, target_epsilon=max_epsilon, delta=delta)
        else:
            longer = self._dominating(adversary, taken, also=cohort)
            exceeds = longer.epsilon(delta, lower=False).upper > max_epsilon
        if not exceeds:
            answers.allowed = cohort, max_epsilon, taken[kind.index]
        return exceeds

    # -- composing --------------------------------------------------------------------------------------

    def _is_whole(self, adversary: Adversary) -> bool:
        """Whether all rounds are charged, as they are."""
        most = self._most_sizes
        slow = self._method == "rdp" or most == _FEW_SIZES  # a size takes milliseconds at every question
        if slow and len(self._cohorts[adversary]) > most:
            return False
        taken = self._participation.taken(adversary)
        return all(taken[kind.index] >= kind.recorded for kind in self._participation.kinds)

    @property
    def _most_sizes(self) -> int:
        takes_long = any(kind.example.server.takes_long for kind in self._participation.kinds)
        return _FEW_SIZES if takes_long else _MOST_SIZES

    def _charged(self, adversary: Adversary) -> ShuffleAccountant:
        """The rounds that the number reported charges for."""
        if self._is_whole(adversary):
            return self._whole[adversary]
        return self._dominating(adversary, self._participation.taken(adversary))

    def _dominating(
        self,
        adversary: Adversary,
        taken: Mapping[int, int],
        *,
        also: Cohort | None = None,
        limit: int | None = None,
    ) -> ShuffleAccountant:
        """Rounds that cost at least as much as any with so many of each kind, ``also`` among them."""
        cohorts = self._cohorts[adversary]
        if also is not None:
            cohorts = cohorts + Counter({also: 1})
        cohorts = costliest(cohorts, taken)
        return self._accountant(adversary, fewer_sizes(cohorts, limit=limit or self._most_sizes))

    def _attained(self, adversary: Adversary) -> ShuffleAccountant | None:
        """Rounds that a client was in, or less costly ones; None where those are charged."""
        if adversary is Adversary.MODEL_OBSERVER:
            whole, kinds = self._is_whole(adversary), self._participation.kinds
            hidden = {kind.index for kind in kinds if kind.sampled or whole}
            attained = Counter({c: n for c, n in self._cohorts[adversary].items() if c.kind in hidden})
        else:
            attained = cheapest(self._cohorts[adversary], self._participation.of_busiest_client())
        if attained == self._cohorts[adversary] and self._is_whole(adversary):
            return None
        return self._accountant(adversary, fewer_sizes(attained, limit=_FEW_SIZES, costlier=False))

    def _accountant(self, adversary: Adversary, cohorts: Mapping[Cohort, int]) -> ShuffleAccountant:
        accountant = ShuffleAccountant(method=self._method)
        accountant._uppers = self._dominated[adversary]
        examples = {kind.index: kind.example.before(adversary) for kind in self._participation.kinds}
        for cohort, rounds in sorted(cohorts.items()):
            accountant.step(_like(examples[cohort.kind], cohort), num_steps=rounds)
        return accountant

    def _local(self, delta: float, *, extra: FederatedRound | None = None) -> float:
        epsilon = self._participation.worst_client(lambda kind: kind.example.local_epsilon)
        tails = self._participation.worst_client(lambda kind: kind.example.local_delta)
        if extra is not None:
            epsilon += extra.local_epsilon
            tails += extra.local_delta
        return epsilon if tails <= delta else math.inf

    # -- checkpoints ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The history and who took part how often, as plain values."""
        return sealed(
            version=_STATE_VERSION,
            method=self._method,
            history=tuple(
                (record.federated_round.state(), record.unnamed, record.released) for record in self._records
            ),
            participation=self._participation.state(),
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the history by a saved one, as of :meth:`ShuffleAccountant.load_state_dict`."""
        check_saved(state, by=type(self).__name__, version=_STATE_VERSION, method=self._method)
        try:
            loaded = FederatedAccountant.from_records(
                [
                    RecordedRound(FederatedRound.from_state(saved), unnamed=unnamed, released=released)
                    for saved, unnamed, released in state["history"]
                ],
                participation=[
                    {as_tuples(kind): named for kind, named in era} for era in state["participation"]
                ],
                method=self._method,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the saved history is damaged: {error}") from error
        check_none_forgotten(*([(each, 1) for each in one._records] for one in (loaded, self)))
        self.__dict__.update(loaded.__dict__)

    @classmethod
    def from_records(
        cls,
        records: Iterable[RecordedRound],
        *,
        participation: Sequence[Mapping[RoundKind, Mapping[str, Sequence[int]]]],
        method: Method = "pld",
    ) -> Self:
        """An accountant of rounds that were recorded elsewhere.

        ``participation`` says, for each kind of round, in how many of those whose participants are known by
        name each client took part, and in how many it may have been before it joined (see :meth:`join`); one
        mapping for each set of names, see :meth:`rename`.
        """
        accountant = cls(method=method)
        for record in records:
            if type(record.unnamed) is not bool or type(record.released) is not bool:
                raise ValueError("a record's flags are true or false")
            accountant._record(record.federated_round, unnamed=record.unnamed, released=record.released)
            accountant._participation.of(record.federated_round).unnamed += record.unnamed
        known: defaultdict[RoundKind, list[int]] = defaultdict(list)
        for record in accountant._records:
            if not record.unnamed:
                known[record.federated_round.kind].append(record.federated_round.reports)
        accountant._participation.load(participation, known=known)
        return accountant


@lru_cache(maxsize=8192)
def _like(example: Round, cohort: Cohort) -> Round:
    sampling = Sampling.FULL if cohort.open else Sampling.WITHOUT_REPLACEMENT
    if example.comparable is None and cohort.reports != example.cohort:
        raise AssertionError("sums of different cohorts were compared")
    return replace(example, population=cohort.hiding, cohort=cohort.reports, sampling=sampling)
