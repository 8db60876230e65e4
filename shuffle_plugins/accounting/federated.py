"""Federated rounds: what they cost a client before an observer of the model, the server, and everybody.

A server draws clients and sees who answers, or clients decide in secret and the server sees no more than how many
reports there were. The proofs behind every number are in ``docs/accounting.md``, "Federated rounds".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol, Self, get_args

from shuffle_plugins.accounting.accountant import (
    EpsilonInterval,
    Method,
    ShuffleAccountant,
    check_delta,
    check_target,
)
from shuffle_plugins.accounting.blanket import Blanket
from shuffle_plugins.accounting.rounds import NEIGHBOURING_RELATION, Adversary, Sampling, ShuffleRound

FederatedState = tuple[Any, Any, float, float]

_STATE_VERSION = 1
_SIZES_EXACT = 32
_SIZES_QUICK = 12
_FINEST_RATIO = 1.001
_ROUNDS_PER_SPARE = 100
_MOST_AHEAD_SHARE = 4
_LEAST_AHEAD = 16
_DEAR_SHARE = 0.05
_TOLERANCE = 1e-9


class Against(StrEnum):
    """Whom a budget is held against.

    ``OBSERVER`` reads what the rounds release and does not see who took part. ``SERVER`` also sees who answers.
    ``LOCAL`` sees every report with its sender's name: nobody is trusted, nothing is amplified.
    """

    OBSERVER = "observer"
    SERVER = "server"
    LOCAL = "local"


_AMPLIFIED = (Against.OBSERVER, Against.SERVER)


class _Randomizer(Protocol):
    """What is asked of a mechanism: those of ``shuffle_plugins.mechanisms`` all have it."""

    @property
    def local_epsilon(self) -> float: ...

    @property
    def local_delta(self) -> float: ...

    def shuffle_round(self, *, population: int, cohort: float, sampling: Sampling = ...) -> ShuffleRound: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FederatedRound:
    """One federated round as three adversaries see it; hashable.

    Make it by :meth:`drawn` or :meth:`secret`.

    Attributes:
        observer: the round before an observer of the model.
        server: the round before the server, for a client that took part: who took part is known already, so both
            are measured without a further adversary of their own.
        local_epsilon: ε0 of one report in nats.
        local_delta: δ0 of one report.

    Raises:
        ValueError: if the two rounds are not one round of one mechanism, or their sampling is not that of a
            cohort of known size.
    """

    observer: ShuffleRound
    server: ShuffleRound
    local_epsilon: float
    local_delta: float

    def __post_init__(self) -> None:
        for shuffle_round in (self.observer, self.server):
            if not isinstance(shuffle_round, ShuffleRound):
                raise ValueError(f"a federated round is made of ShuffleRounds, got {shuffle_round!r}")
            if shuffle_round.sampling not in (Sampling.FULL, Sampling.WITHOUT_REPLACEMENT):
                raise ValueError(f"the cohort's size must be known, got {shuffle_round.sampling} sampling")
            if shuffle_round.adversary is not Adversary.MODEL_OBSERVER:
                raise ValueError(
                    "say what an adversary knows by population and cohort; leave the rounds' adversary alone"
                )
            if shuffle_round.local_epsilon != self.local_epsilon:
                raise ValueError(f"local_epsilon is {self.local_epsilon!r}, a round's {shuffle_round.local_epsilon!r}")
        if self.observer.cohort != self.server.cohort:
            raise ValueError("observer and server see the same number of reports")
        if _mechanism_of(self.observer) != _mechanism_of(self.server):
            raise ValueError("observer and server see the reports of one mechanism")
        if not 0 <= self.local_delta < 1:
            raise ValueError(f"local_delta must be in [0, 1), got {self.local_delta!r}")

    @classmethod
    def drawn(cls, mechanism: _Randomizer, *, candidates: int, invited: int, reports: int) -> Self:
        """A round whose clients the server drew: uniformly ``invited`` of ``candidates``.

        Before an observer the cohort hides among ``reports · candidates / invited`` clients, so that those who
        drop out earn nothing: γ stays invited / candidates. This needs that who drops out is independent of the
        data, and that every invited client is as likely to. Before the server γ = 1.

        Args:
            mechanism: the clients' randomizer.
            candidates: connected clients among whom was drawn.
            invited: clients that were drawn; a number that was itself drawn (Poisson) is the number that came out.
            reports: reports that were shuffled together, at least 1.

        Raises:
            ValueError: unless 1 ≤ reports ≤ invited ≤ candidates, or if the mechanism cannot be shuffled.
        """
        _check_counts(reports=reports, invited=invited, candidates=candidates)
        hiding = max(reports, reports * candidates // invited)
        return cls(
            observer=_round(mechanism, population=hiding, cohort=reports),
            server=_round(mechanism, population=reports, cohort=reports),
            local_epsilon=mechanism.local_epsilon,
            local_delta=mechanism.local_delta,
        )

    @classmethod
    def secret(cls, mechanism: _Randomizer, *, answered: int, reports: int) -> Self:
        """A round in which clients sampled themselves in secret and the others sent dummies.

        Given both numbers, who reported is a uniform subset of those who answered, for the server too. This
        needs equal chances of all clients to report, coins that nobody but their owner sees, and a shuffler that
        drops the dummies and does not tell.

        Args:
            mechanism: the clients' randomizer.
            answered: envelopes shuffled, dummies included.
            reports: real reports among them, at least 1.

        Raises:
            ValueError: unless 1 ≤ reports ≤ answered, or if the mechanism cannot be shuffled.
        """
        _check_counts(reports=reports, answered=answered)
        both = _round(mechanism, population=answered, cohort=reports)
        return cls(
            observer=both,
            server=both,
            local_epsilon=mechanism.local_epsilon,
            local_delta=mechanism.local_delta,
        )

    @property
    def reports(self) -> int:
        """Reports shuffled together."""
        return int(self.server.cohort)

    @property
    def is_secret(self) -> bool:
        """Whether who took part is hidden from the server too."""
        return self.server.population > self.reports

    def state(self) -> FederatedState:
        """The round as plain tuples, str, int, float and bool, for checkpoints."""
        return (self.observer.state(), self.server.state(), self.local_epsilon, self.local_delta)

    @classmethod
    def from_state(cls, state: FederatedState) -> Self:
        """Rebuild a round from :meth:`state`; lists in place of tuples are read as well.

        Raises:
            ValueError: if it is not what :meth:`state` writes.
        """
        try:
            observer, server, local_epsilon, local_delta = state
            return cls(
                observer=ShuffleRound.from_state(observer),
                server=ShuffleRound.from_state(server),
                local_epsilon=local_epsilon,
                local_delta=local_delta,
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not the state of a FederatedRound: {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class FederatedSpending:
    """What a history of federated rounds cost at ``delta``, by who is trusted. Replace-one neighbours.

    Attributes:
        observer: ε of any client before an observer of the model.
        server: ε of the client who took part most before the server (``adversary`` is ``"server"``).
        local_epsilon: Σ ε0 of the client who reported most: its ε if nobody is trusted; infinite if Σ δ0 of its
            reports exceeds ``delta``.
        delta: δ all three are for.
        num_rounds: rounds recorded.
        worst_client_rounds: rounds of the client who took part most.
    """

    observer: EpsilonInterval
    server: EpsilonInterval
    local_epsilon: float
    delta: float
    num_rounds: int
    worst_client_rounds: int


class FederatedAccountant:
    """Adds up federated rounds before an observer, the server and nobody trusted.

    Each client's cost before the server is that of the rounds it took part in. The number reported bounds it for
    all clients at once, by one history that dominates every client's: of each kind of round (one mechanism at one
    ε0) the dearest, as many as any one client took part in. *Proof.* A client's j-th smallest cohort of a kind is
    no smaller than the j-th smallest of all, and a larger cohort at γ = 1 costs no more: the further reports can be
    added by anybody. So round by round the client's history is a post-processing of a dominated one, and a
    dominating pair of the latter composes. ∎ Rounds of secret participation are charged to everybody.

    Args:
        method: how upper bounds compose, as for :class:`ShuffleAccountant`.

    Raises:
        ValueError: if ``method`` is unknown.

    Example:
        >>> from shuffle_plugins.mechanisms import registry
        >>> mechanism = registry.get("linf-block", local_epsilon=2.0, dim=1000)
        >>> accountant = FederatedAccountant()
        >>> one = FederatedRound.drawn(mechanism, candidates=1000, invited=100, reports=95)
        >>> accountant.step(one, participants=[str(i) for i in range(95)])
        >>> found = accountant.spending(1e-6)
        >>> found.observer.upper < found.server.upper < found.local_epsilon
        True
    """

    def __init__(self, *, method: Method = "pld") -> None:
        if method not in get_args(Method):
            raise ValueError(f"method must be one of {get_args(Method)}, got {method!r}")
        self._method: Method = method
        self._entries: list[_Entry] = []
        self._kinds: dict[_Kind, int] = {}
        self._observed: Counter[_Size] = Counter()
        self._served: Counter[_Size] = Counter()
        self._named: list[Counter[str]] = []
        self._unnamed: list[int] = []
        self._most: list[int] = []
        self._spares: dict[tuple[Against, float], _Spare] = {}
        self._allowances: dict[Against, _Allowance] = {}
        self._strides: dict[Against, int] = {}
        self._shown: dict[tuple[Against, float], float] = {}
        self._laws: dict[_Size, ShuffleRound] = {}

    # -- recording --------------------------------------------------------------------------------------

    def step(
        self, federated_round: FederatedRound, *, participants: Iterable[str] | None, released: bool = True
    ) -> None:
        """Record one round. Call it before the round's output is released.

        Args:
            federated_round: the round, at the number of reports that were received.
            participants: names of the clients that answered, dummies included; None if they are not known, and
                then everybody is taken to have answered.
            released: whether anything computed from the reports leaves the server. Reports that the server
                received and threw away cost nothing before an observer, and all they cost before the server.

        Raises:
            TypeError: if an argument is of the wrong type.
            ValueError: if there are fewer participants than reports.
        """
        if not isinstance(federated_round, FederatedRound):
            raise TypeError(f"step takes a FederatedRound, got {type(federated_round).__name__}")
        names = None if participants is None else checked_participants(participants, federated_round)
        self._record(federated_round, released=released, unnamed=names is None)
        kind = self._kinds[_kind_of(federated_round)]
        if names is None:
            self._unnamed[kind] += 1
        else:
            named = self._named[kind]
            named.update(names)
            self._most[kind] = max(self._most[kind], max(map(named.__getitem__, names)))

    def _record(self, federated_round: FederatedRound, *, released: bool, unnamed: bool) -> None:
        kind = self._index(_kind_of(federated_round))
        served = _size_of(kind, federated_round.server)
        self._served[served] += 1
        self._laws.setdefault(served, federated_round.server)
        self._advance(Against.SERVER, served)
        if released:
            observed = _size_of(kind, federated_round.observer)
            self._observed[observed] += 1
            self._laws.setdefault(observed, federated_round.observer)
            self._advance(Against.OBSERVER, observed)
        last = self._entries[-1] if self._entries else None
        entry = _Entry(federated_round=federated_round, released=released, unnamed=unnamed, steps=1)
        if last is not None and replace(last, steps=1) == entry:
            self._entries[-1] = replace(last, steps=last.steps + 1)
        else:
            self._entries.append(entry)

    def _index(self, kind: _Kind) -> int:
        if kind not in self._kinds:
            self._kinds[kind] = len(self._kinds)
            self._named.append(Counter())
            self._unnamed.append(0)
            self._most.append(0)
        return self._kinds[kind]

    def _advance(self, against: Against, size: _Size) -> None:
        """Keep what was found for rounds to come as long as they are no dearer than foreseen."""
        for key, spare in list(self._spares.items()):
            if key[0] is against:
                if spare.left < 1 or not spare.size.covers(size):
                    del self._spares[key]
                else:
                    self._spares[key] = replace(spare, left=spare.left - 1)
        allowance = self._allowances.get(against)
        if allowance is not None:
            if allowance.left < 1 or not allowance.size.covers(size):
                del self._allowances[against]
            else:
                self._allowances[against] = replace(allowance, left=allowance.left - 1)

    @property
    def method(self) -> Method:
        """How upper bounds compose."""
        return self._method

    @property
    def num_rounds(self) -> int:
        """How many rounds were recorded."""
        return self._served.total()

    @property
    def worst_client_rounds(self) -> int:
        """Rounds of the client who took part most."""
        return self._worst_client(lambda kind: 1.0)

    # -- asking -----------------------------------------------------------------------------------------

    def spending(self, delta: float) -> FederatedSpending:
        """What the rounds cost at δ, with lower bounds beside the upper ones.

        A lower bound is what real instances of the rounds as recorded attain, before the server for the client
        who took part most among those known by name.

        Raises:
            ValueError: if ``delta`` is not in (0, 1), or less than what the rounds' own δ0 adds up to.
        """
        check_delta(delta)
        return FederatedSpending(
            observer=self._interval(Against.OBSERVER, delta),
            server=self._interval(Against.SERVER, delta),
            local_epsilon=self._local(delta),
            delta=delta,
            num_rounds=self.num_rounds,
            worst_client_rounds=self.worst_client_rounds,
        )

    def spent(self, delta: float, *, against: Against = Against.OBSERVER) -> float:
        """The certified ε alone, quickly; infinite if there is none at ``delta``.

        Never below ``spending(delta)``'s up to numerics, above it by at most about one per cent: cohorts of many
        sizes are rounded down to few, and in long histories a few rounds to come are counted already. It never
        falls while rounds are recorded.

        Raises:
            ValueError: if ``delta`` is not in (0, 1).
        """
        check_delta(delta)
        against = Against(against)
        if against is Against.LOCAL:
            return self._local(delta)
        key = (against, delta)
        spare = self._spares.get(key)
        if spare is None:
            spare = self._spares[key] = self._ahead(against, delta)
        found = spare.epsilon
        allowance = self._allowances.get(against)
        if allowance is not None and allowance.delta == delta:
            found = min(found, allowance.max_epsilon)
        self._shown[key] = max(found, self._shown.get(key, 0.0))
        return self._shown[key]

    def would_exceed(
        self,
        federated_round: FederatedRound,
        *,
        max_epsilon: float,
        delta: float,
        against: Against = Against.OBSERVER,
    ) -> bool:
        """Whether one more such round would take the certified ε at ``delta`` over ``max_epsilon``.

        Before the server and locally it is taken to be a round of the client who took part most. Ask with the
        dearest the round can become: the fewest reports that are accepted. Cheap while rounds of its kind go on.

        Raises:
            TypeError: if the round is not a :class:`FederatedRound`.
            ValueError: if ``max_epsilon`` or ``delta`` is out of range.
        """
        if not isinstance(federated_round, FederatedRound):
            raise TypeError(f"would_exceed takes a FederatedRound, got {type(federated_round).__name__}")
        check_target(max_epsilon)
        check_delta(delta)
        against = Against(against)
        if against is Against.LOCAL:
            return self._local(delta, extra=federated_round) > max_epsilon * (1 + _TOLERANCE)
        kind = self._index(_kind_of(federated_round))
        shuffle_round = (
            federated_round.observer if against is Against.OBSERVER else federated_round.server
        )
        size = _size_of(kind, shuffle_round)
        self._laws.setdefault(size, shuffle_round)
        allowance = self._allowances.get(against)
        if (
            allowance is not None
            and (allowance.max_epsilon, allowance.delta) == (max_epsilon, delta)
            and allowance.left >= 1
            and allowance.size.covers(size)
        ):
            return False
        steps = self.num_rounds
        ahead = max(_LEAST_AHEAD, steps // _MOST_AHEAD_SHARE)
        ahead = min(ahead, self._strides.get(against, ahead) * 4)
        while True:
            if self._composed(against, extra=size, count=ahead).spent(delta) <= max_epsilon:
                break
            if ahead == 1:
                self._strides[against] = 1
                return True
            ahead = max(1, ahead // 4)
        self._strides[against] = ahead
        self._allowances[against] = _Allowance(
            size=size, left=ahead, max_epsilon=max_epsilon, delta=delta
        )
        return False

    # -- composing --------------------------------------------------------------------------------------

    def _worst_client(self, weight: Any) -> int:
        raise NotImplementedError
