"""A federated round: what it is against an observer of the model, the server, and everybody.

A server draws clients and sees who answers, or clients decide in secret and the server sees no more than how
many reports there were. The proofs behind every number are in ``docs/proofs/accounting.md``, "Federated
rounds".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, Self

from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.accounting.terms import Adversary, Sampling
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
    """One federated round as three adversaries see it; hashable.

    Make it by :meth:`drawn`, :meth:`secret` or :meth:`secret_sum`.

    Attributes:
        observer: the round against an observer of the model.
        server: the round against the server, for a client that took part: who took part is known already, so
            both are measured without a further adversary of their own.
        local_epsilon: ε0 of one report in nats; infinite for a client's share of a multi-message sum.
        local_delta: δ0 of one report.
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

        Before an observer the cohort hides among ``reports · candidates / invited`` clients, so that
        dropping out adds no privacy: γ stays invited / candidates. This assumes that dropping out does not
        depend on the data, and is as likely for every invited client; ``docs/proofs/accounting.md`` says how
        much ε is off if it is likelier for some. Before the server γ = 1, also where clients drop out.

        Args:
            mechanism: the clients' randomizer.
            candidates: connected clients among whom was drawn.
            invited: clients that were drawn; a number that was itself drawn (Poisson) is the number that came
                out.
            reports: reports that were shuffled together, at least 1.
            honest_fraction: share of the candidates, and of those that reported, who follow the protocol and
                do not collude with the adversary. The others hide nobody: an honest client is charged for a
                cohort of honest ones alone.
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

        Given both numbers, who reported is a uniform subset of those who answered, for the server too. This
        needs equal chances of all clients to report, coins that nobody but their owner sees, and a shuffler
        that drops the dummies and does not tell.

        Args:
            mechanism: the clients' randomizer.
            answered: envelopes shuffled, dummies included.
            reports: real reports among them, at least 1.
            rate: probability with which a client was asked to report, if it is known. No more than
                ``reports / rate`` clients are then taken to have tossed a coin: further dummies are
                taken to hide nobody.
            honest_fraction: share of those that answered who follow the protocol and do not work with whom ε
                is against, whether the others send reports or dummies.
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
        """A sum to which all who answer add noise, and those drawn by their own secret coins add data.

        The others add the zero vector, in the same way. Nobody learns who did, or how many. Before an
        observer, and before a server that sees the sum alone, a client's data are in it with probability
        ``rate``.

        Args:
            mechanism: the clients' sum. Its own ``honest_fraction`` says how many of them are counted on to
                add their noise.
            answered: clients whose shares are in the sum.
            rate: probability with which each of them adds data.
            hides_shares: whether the server sees nothing of the shares but their sum. If it may see more, it
                is charged as if it knew who took part.
        """
        checks.number("rate", rate, above=0, at_most=1)
        observer = mechanism.secret_round(answered=answered, participation=rate)
        return cls._of(mechanism, observer, observer if hides_shares else observer.opened())

    @property
    def reports(self) -> int:
        """How many reports were shuffled together, or added up."""
        return int(self.server.cohort)

    @property
    def is_secret(self) -> bool:
        """Whether who took part is hidden from the server too."""
        return self.server.population > self.reports or self.server != self.server.opened()

    @property
    def secrecy(self) -> str:
        """How clients are sampled, and what of it must stay secret from an observer and from the server."""
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
        """The observer's round, if no more than who answered were known."""
        return replace(self.observer, population=self.server.population, sampling=self.server.sampling)

    @property
    def kind(self) -> RoundKind:
        """Mechanism, ε0, δ0, and whether participation is secret: what rounds that compare share.

        Of sums and other kinds of round the number of reports as well: those whose cohorts differ do not
        compare, since a sum cannot be thinned out. And, if the server knows more of it than who answered,
        the round of one who does not.
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
        """The round as plain tuples, str, int, float and bool, for checkpoints."""
        local_epsilon = None if math.isinf(self.local_epsilon) else self.local_epsilon
        return (self.observer.state(), self.server.state(), local_epsilon, self.local_delta)

    @classmethod
    def from_state(cls, state: tuple[Any, Any, float | None, float]) -> Self:
        """Rebuild a round from :meth:`state`; lists in place of tuples are read as well."""
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


def as_tuples(value: Any) -> Any:
    """A state or a kind read from JSON, its nested lists turned back into the tuples that were written."""
    return tuple(map(as_tuples, value)) if isinstance(value, (list, tuple)) else value


def _round(mechanism: _Randomizer, *, population: int, cohort: int) -> Round:
    sampling = Sampling.FULL if population == cohort else Sampling.WITHOUT_REPLACEMENT
    return mechanism.round(population=population, cohort=cohort, sampling=sampling)


def _honest(count: int, fraction: float) -> int:
    """How many of ``count`` clients can be counted on, at least one: the client whose ε it is."""
    checks.number("honest_fraction", fraction, above=0, at_most=1)
    return max(1, math.floor(fraction * count))


def _check_counts(**counts: int) -> None:
    """Refuse counts that are not whole numbers from 1 on, in ascending order."""
    for name, count in counts.items():
        checks.whole(name, count)
    ordered = list(counts.items())
    for (less, few), (more, many) in pairwise(ordered):
        if few > many:
            raise ValueError(f"{few} {less} of {many} {more}: there cannot be more")
