"""What a model has cost its clients, round by round, over runs and restarts, and what a ledger says of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from sqlite3 import Connection
from typing import Any, Generic, TypeVar

from shuffle_plugins.accounting import (
    Adversary,
    FederatedAccountant,
    FederatedRound,
    FederatedSpending,
    Method,
    PrivacyStatement,
    ShuffleAccountant,
    Unit,
)
from shuffle_plugins.accounting.federated.rounds import (
    RecordedRound,
    RoundKind,
    distinct_participants,
)
from shuffle_plugins.accounting.rounds.round import as_tuples
from shuffle_plugins.accounting.statement import Guarantee, StatedTarget
from shuffle_plugins.core import checks
from shuffle_plugins.core.database import Database, StrPath
from shuffle_plugins.ledger.client import (
    Charged,
    ClientSpending,
    LedgerError,
    accountant_of,
    is_client_ledger,
    read_reports,
)

_ERA = "#"  # stands between the names of a run and of an era of it


class RoundState(StrEnum):
    """How far a round has come, as the ledger has it."""

    OPEN = "open"  # begun; charged the most it can still cost
    RECEIVED = "received"  # charged at what was received, and free to be released
    COMPLETE = "complete"  # released, and its checkpoint saved
    REFUSED = "refused"  # nothing was released


@dataclass(frozen=True, kw_only=True)
class LedgerRound:
    """One round as it stands in the ledger."""

    token: bytes
    run: str
    server_round: int
    state: RoundState
    charged: FederatedRound | None  # None if it was refused before anybody learnt anything
    participants: int | None  # None if nobody knows who answered

    @property
    def released(self) -> bool:
        """Whether an observer of the model is taken to have seen its outcome."""
        return self.state is not RoundState.REFUSED


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What was saved with the last completed round."""

    server_round: int
    token: bytes
    data: bytes


class BudgetFile(Database):
    """The file of a budget ledger, of any models; errors as of :class:`Database`."""

    WHAT = "budget ledger"
    APPLICATION_ID = 0x53504247
    ERROR = LedgerError
    SCHEMA = (
        """CREATE TABLE rounds (
            id INTEGER PRIMARY KEY,
            token BLOB NOT NULL UNIQUE,
            model TEXT NOT NULL,
            run TEXT NOT NULL,
            server_round INTEGER NOT NULL,
            state TEXT NOT NULL,
            charged TEXT,
            participants INTEGER,
            begun TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
        ) STRICT""",
        "CREATE INDEX rounds_of_model ON rounds (model, id)",
        """CREATE TABLE kinds (
            id INTEGER PRIMARY KEY,
            kind TEXT NOT NULL UNIQUE
        ) STRICT""",
        """CREATE TABLE participation (
            model TEXT NOT NULL,
            run TEXT NOT NULL,
            kind INTEGER NOT NULL REFERENCES kinds (id),
            participant TEXT NOT NULL,
            rounds INTEGER NOT NULL,
            before INTEGER NOT NULL,
            PRIMARY KEY (model, run, kind, participant)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE checkpoints (
            model TEXT PRIMARY KEY NOT NULL,
            server_round INTEGER NOT NULL,
            token BLOB NOT NULL,
            data BLOB NOT NULL
        ) STRICT""",
        """CREATE TABLE identities (
            model TEXT PRIMARY KEY NOT NULL,
            app TEXT NOT NULL,
            layout TEXT NOT NULL
        ) STRICT""",
    )


class BudgetLedger(BudgetFile):
    """The rounds of one model in a file, each entered before anything of it can leak.

    A round goes :meth:`begin` (before anything is sent), :meth:`receive` (before anything is released),
    :meth:`complete`; or :meth:`begin`, :meth:`refuse`. Every step is on the disk when it returns; a process
    that dies in between leaves the round charged at the most it can have cost. Two processes may write to
    the file, but not train one model.

    Args:
        model: whose budget it is. Models trained on the same people's data share one budget only if they
            share a name.
        app: name of the app that the budget belongs to; by default the run's own, ``publisher/name``.
    """

    def __init__(
        self, path: StrPath, *, model: str = "model", app: str | None = None, method: Method = "pld"
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ValueError(f"model must be a name, got {model!r}")
        self.model, self._app = model, app
        self._method = FederatedAccountant(method=method).method
        super().__init__(path)
        with self.reading() as connection:
            self._last = _last_round(connection, model)
            self._saved = _last_saved(connection, model)

    def claim(self, *, app: str, layout: str | None) -> None:
        """Bind the model's budget, at the first run, to the app that trains it and to the model's arrays.

        ``app`` is empty for a script in a simulation, and ``layout`` differs between models of other arrays;
        it is None for queries, which have no arrays.
        """
        app = app if self._app is None else self._app
        with self.writing() as connection:
            found = connection.execute(
                "SELECT app, layout FROM identities WHERE model = ?", (self.model,)
            ).fetchone()
            if found is None:
                connection.execute("INSERT INTO identities VALUES (?, ?, ?)", (self.model, app, layout or ""))
                return
            if layout is not None and found == (app, ""):  # only queries were asked so far
                connection.execute("UPDATE identities SET layout = ? WHERE model = ?", (layout, self.model))
                return
        if found[0] != app:
            raise LedgerError(
                f"{self.path} holds the budget of {self.model!r} as trained by {_app(found[0])}, and this "
                f"run is of {_app(app)}. If it is the same model under a new name, go on with "
                f"BudgetLedger(app={found[0]!r}); otherwise give this model a name of its own (model=…), or "
                "another ledger"
            )
        if layout is not None and found[1] != layout:
            raise LedgerError(
                f"{self.path} holds the budget of {self.model!r}, a model with other arrays than this one: "
                "other names, shapes or types. Give this model a name of its own (model=…), or another ledger"
            )

    def begin(self, *, token: bytes, run: str, server_round: int, worst: FederatedRound) -> int:
        """Enter a round before anything is sent, and tell its number in the file; LedgerError if another
        object has entered one since this one was opened, or its :meth:`accountant` read.

        Args:
            token: bytes that name the round; never used before.
            run, server_round: name of the run, without a ``#``, and number of the round in it.
            worst: the round at its costliest: with the fewest reports that are accepted.
        """
        if not isinstance(token, bytes) or not token:
            raise ValueError("a round's token is bytes")
        if _ERA in run:
            raise ValueError(
                f"the name of a run may not hold {_ERA!r}, which sets off its eras in the ledger, got {run!r}"
            )
        with self.writing() as connection:
            if _last_round(connection, self.model) != self._last:
                raise LedgerError(
                    f"another process trains {self.model!r} with this ledger: stop one of the two, then "
                    "open the ledger anew"
                )
            if connection.execute("SELECT 1 FROM rounds WHERE token = ?", (token,)).fetchone():
                raise LedgerError(
                    "a round with this token was begun before; draw a fresh one for every attempt"
                )
            cursor = connection.execute(
                "INSERT INTO rounds (token, model, run, server_round, state, charged) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (token, self.model, run, server_round, RoundState.OPEN, _written(worst)),
            )
            entered = cursor.lastrowid
        assert entered is not None
        self._last = entered
        return entered

    def receive(
        self,
        token: bytes,
        *,
        actual: FederatedRound,
        participants: Iterable[str] | None,
        era: str = "",
        before: Mapping[RoundKind, Mapping[str, int]] | None = None,
    ) -> None:
        """Enter what an open round cost, before anything computed from its reports is released.

        Args:
            participants: names of the clients that answered; None for everybody.
            era: of the names within the run. A participant of one era may be any of another's, as nodes that
                are restarted get new ids.
            before: of those that joined within the era, in how many rounds of each kind each may have been
                under another name (:meth:`FederatedAccountant.assumed`).
        """
        self._settle(token, RoundState.RECEIVED, actual, participants, era, before)

    def refuse(
        self,
        token: bytes,
        *,
        actual: FederatedRound | None,
        participants: Iterable[str] | None,
        era: str = "",
        before: Mapping[RoundKind, Mapping[str, int]] | None = None,
    ) -> None:
        """Enter that nothing of an open round is released; arguments as of :meth:`receive`.

        ``actual`` is the round as the server saw it, which costs the same against the server as if it had
        been released; None if the server learnt nothing from any report.
        """
        self._settle(token, RoundState.REFUSED, actual, participants, era, before)

    def complete(self, token: bytes, *, checkpoint: bytes | None) -> None:
        """Enter that a received round was released, and save what to go on from: both or neither.

        ``checkpoint`` replaces the model's last one; None keeps that. LedgerError if another object has saved
        one since this one was opened, or asked for it.
        """
        with self.writing() as connection:
            if checkpoint is not None and _last_saved(connection, self.model) != self._saved:
                raise LedgerError(
                    f"another process trains {self.model!r} with this ledger, and has saved a model: stop "
                    "one of the two, then open the ledger anew"
                )
            round_id, _, server_round = self._expect(connection, token, RoundState.RECEIVED)
            connection.execute("UPDATE rounds SET state = ? WHERE id = ?", (RoundState.COMPLETE, round_id))
            if checkpoint is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO checkpoints (model, server_round, token, data) "
                    "VALUES (?, ?, ?, ?)",
                    (self.model, server_round, token, checkpoint),
                )
        if checkpoint is not None:
            self._saved = token

    def _settle(
        self,
        token: bytes,
        state: RoundState,
        actual: FederatedRound | None,
        participants: Iterable[str] | None,
        era: str,
        before: Mapping[RoundKind, Mapping[str, int]] | None,
    ) -> None:
        names = None if participants is None else distinct_participants(participants)
        if actual is not None and names is not None and len(names) < actual.reports:
            raise LedgerError(f"{actual.reports} reports of {len(names)} participants: name all who answered")
        with self.writing() as connection:
            round_id, run, _ = self._expect(connection, token, RoundState.OPEN)
            connection.execute(
                "UPDATE rounds SET state = ?, charged = ?, participants = ? WHERE id = ?",
                (
                    state,
                    None if actual is None else _written(actual),
                    None if names is None else len(names),
                    round_id,
                ),
            )
            if actual is not None and names is not None:
                kind = _kind_id(connection, actual.kind)
                named_in = f"{run}{_ERA}{era}" if era else run
                connection.executemany(
                    "INSERT INTO participation (model, run, kind, participant, rounds, before) "
                    "VALUES (?, ?, ?, ?, 0, ?) ON CONFLICT DO NOTHING",
                    [
                        (self.model, named_in, _kind_id(connection, each), name, rounds)
                        for each, assumed in (before or {}).items()
                        for name, rounds in assumed.items()
                    ],
                )
                connection.executemany(
                    "INSERT INTO participation (model, run, kind, participant, rounds, before) "
                    "VALUES (?, ?, ?, ?, 1, 0) ON CONFLICT DO UPDATE SET rounds = rounds + 1",
                    [(self.model, named_in, kind, name) for name in sorted(names)],
                )

    def _expect(self, connection: Connection, token: bytes, state: RoundState) -> tuple[int, str, int]:
        found = connection.execute(
            "SELECT id, run, server_round, state FROM rounds WHERE token = ? AND model = ?",
            (token, self.model),
        ).fetchone()
        if found is None:
            raise LedgerError("no round with this token was begun")
        if found[3] != state:
            raise LedgerError(f"round {found[2]} of run {found[1]} is {found[3]}, not {state}")
        return found[0], found[1], found[2]

    def rounds(self) -> list[LedgerRound]:
        """The model's rounds in the order they were begun."""
        with self.reading() as connection:
            return read_rounds(connection, self.model)

    def last_entered(self) -> int | None:
        """Number in the file of the model's last round; None if there is none."""
        with self.reading() as connection:
            return _last_round(connection, self.model)

    def accountant(self) -> FederatedAccountant:
        """An accountant of the model's rounds; those left open are charged at their worst, to everybody."""
        last = self.last_entered()  # first: of what is entered in between the next begin() hears
        with self.reading() as connection:
            found = read_accountant(connection, self.model, method=self._method)
        self._last = last
        return found

    def last_checkpoint(self) -> Checkpoint | None:
        """What was saved with the last completed round that saved anything."""
        with self.reading() as connection:
            found = connection.execute(
                "SELECT server_round, token, data FROM checkpoints WHERE model = ?", (self.model,)
            ).fetchone()
        self._saved = None if found is None else found[1]
        return None if found is None else Checkpoint(server_round=found[0], token=found[1], data=found[2])


def _app(name: str) -> str:
    return f"the app {name!r}" if name else "a script without an app's name (app='')"


def read_rounds(connection: Connection, model: str) -> list[LedgerRound]:
    """A model's rounds in the order they were begun."""
    rows = connection.execute(
        "SELECT token, run, server_round, state, charged, participants FROM rounds "
        "WHERE model = ? ORDER BY id",
        (model,),
    )
    return [
        LedgerRound(
            token=token,
            run=run,
            server_round=server_round,
            state=RoundState(state),
            charged=None if charged is None else _read(charged),
            participants=participants,
        )
        for token, run, server_round, state, charged, participants in rows
    ]


def read_accountant(
    connection: Connection, model: str, *, run: str | None = None, method: Method = "pld"
) -> FederatedAccountant:
    """An accountant of a model's rounds, or of those of one run."""
    records = [
        RecordedRound(each.charged, unnamed=each.participants is None, released=each.released)
        for each in read_rounds(connection, model)
        if each.charged is not None and run in (None, each.run)
    ]
    rows = connection.execute(
        "SELECT run, kinds.kind, participant, rounds, before "
        "FROM participation JOIN kinds ON kinds.id = participation.kind "
        "WHERE model = :model AND (:run IS NULL OR run = :run OR substr(run, 1, length(:era)) = :era) "
        "ORDER BY run",
        {"model": model, "run": run, "era": None if run is None else run + _ERA},
    )
    # A node of one run, or era, may have been any node of another: names do not last longer than that.
    eras: dict[str, dict[RoundKind, dict[str, tuple[int, int]]]] = {}
    for named_in, kind, participant, *both in rows:
        eras.setdefault(named_in, {}).setdefault(_read_kind(kind), {})[participant] = (both[0], both[1])
    try:
        return FederatedAccountant.from_records(records, participation=list(eras.values()), method=method)
    except (KeyError, ValueError) as error:
        raise LedgerError(f"the ledger contradicts itself: {error}") from error


def _last_round(connection: Connection, model: str) -> int | None:
    (last,) = connection.execute("SELECT max(id) FROM rounds WHERE model = ?", (model,)).fetchone()
    return None if last is None else int(last)


def _last_saved(connection: Connection, model: str) -> bytes | None:
    found = connection.execute("SELECT token FROM checkpoints WHERE model = ?", (model,)).fetchone()
    return None if found is None else bytes(found[0])


def _kind_id(connection: Connection, kind: RoundKind) -> int:
    text = json.dumps(kind, allow_nan=False)
    connection.execute("INSERT OR IGNORE INTO kinds (kind) VALUES (?)", (text,))
    (found,) = connection.execute("SELECT id FROM kinds WHERE kind = ?", (text,)).fetchone()
    return int(found)


def _written(federated_round: FederatedRound) -> str:
    return json.dumps(federated_round.state(), allow_nan=False)


@lru_cache(maxsize=4096)
def _read(text: str) -> FederatedRound:
    try:
        return FederatedRound.from_state(json.loads(text))
    except ValueError as error:
        raise LedgerError(f"the ledger holds a round that cannot be read: {error}") from error


@lru_cache(maxsize=4096)
def _read_kind(text: str) -> Any:
    return as_tuples(json.loads(text))


# ---- what a ledger says, for people ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Rounds of a run, or of a model over all its runs, and what they cost."""

    rounds: dict[RoundState, int]  # how many in each state
    reports: int  # received
    spending: FederatedSpending  # rounds left open are charged the most they can have cost

    @classmethod
    def of(cls, rounds: Sequence[LedgerRound], spending: FederatedSpending) -> Spent:
        """From the rounds as they stand."""
        states = Counter(each.state for each in rounds)
        kept = [each for each in rounds if each.charged is not None and each.state is not RoundState.OPEN]
        return cls(
            rounds={state: states[state] for state in RoundState},
            reports=sum(each.charged.reports for each in kept if each.charged is not None),
            spending=spending,
        )


_Part = TypeVar("_Part", Spent, ClientSpending)


@dataclass(frozen=True, kw_only=True)
class Budget(Generic[_Part]):
    """What one model has cost, or one client has spent; ε of runs compose and do not add up."""

    model: str | None  # None for a client
    runs: dict[str, _Part]  # in the order they began
    total: _Part
    delta: float


def read_budget(path: StrPath, *, delta: float, model: str | None = None) -> list[Budget[Spent]]:
    """The budgets, of one model or all, in a file that others may be writing to.

    A ValueError if ``delta`` is less than what the rounds' own δ0 adds up to.
    """
    with BudgetFile(path, create=False) as database, database.reading() as connection:
        kept = {}
        for name in _models(connection, path, model):
            rounds = read_rounds(connection, name)
            runs = list(dict.fromkeys(each.run for each in rounds))
            asked = runs if len(runs) == 1 else [*runs, None]  # None: of all runs together
            kept[name] = rounds, {run: read_accountant(connection, name, run=run) for run in asked}
    # The file is free again: composing may take a second.
    budgets = []
    for name, (rounds, accountants) in kept.items():
        parts = {
            run: Spent.of([each for each in rounds if run in (None, each.run)], part.spending(delta))
            for run, part in accountants.items()
        }
        total = list(parts.values())[-1]
        by_run = {run: part for run, part in parts.items() if run is not None}
        budgets.append(Budget(model=name, runs=by_run, total=total, delta=delta))
    return budgets


def read_client_budget(path: StrPath, *, delta: float) -> Budget[ClientSpending]:
    """What is in a client's ledger, which others may be writing to."""
    runs = read_reports(path)
    return Budget(
        model=None,
        runs={run: ClientSpending.of(history, delta=delta) for run, history in runs.items()},
        total=ClientSpending.of(_together(runs.values()), delta=delta),
        delta=delta,
    )


def _together(histories: Iterable[Mapping[Charged, int]]) -> Counter[Charged]:
    everything: Counter[Charged] = Counter()
    for history in histories:
        everything.update(history)
    return everything


def _models(connection: Connection, path: StrPath, model: str | None) -> list[str]:
    """The models in a ledger, in the order of their first rounds, or the one that is asked for."""
    rows = connection.execute("SELECT model FROM rounds GROUP BY model ORDER BY min(id)")
    models = [found for (found,) in rows]
    if model is None:
        return models
    if model not in models:
        known = ", ".join(map(repr, models)) or "none"
        raise LedgerError(f"{path} has no rounds of {model!r}; models in it: {known}")
    return [model]


def read_statement(
    path: StrPath,
    *,
    delta: float,
    model: str | None = None,
    unit: Unit = Unit.CLIENT,
    target_epsilon: float | None = None,
    target_adversary: Adversary = Adversary.MODEL_OBSERVER,
) -> PrivacyStatement:
    """The privacy statement of a budget ledger's model, or of a client's ledger; only reads.

    ``model`` is needed where the ledger holds several. The target's adversary is that of the budget; of a
    client's ledger it is always the server.
    """
    if is_client_ledger(path):
        if model is not None:
            raise LedgerError(f"{path} is a client's ledger, which has no models: leave the model out")
        history = _together(read_reports(path).values())
        return _client_statement(history, delta=delta, unit=unit, target_epsilon=target_epsilon)
    with BudgetFile(path, create=False) as database, database.reading() as connection:
        models = _models(connection, path, model)
        if len(models) > 1:
            raise LedgerError(f"{path} has several models; name one of {', '.join(map(repr, models))}")
        name = models[0] if models else None
        accountant = FederatedAccountant() if name is None else read_accountant(connection, name)
        rounds = [] if name is None else read_rounds(connection, name)
    left_open = sum(each.state is RoundState.OPEN for each in rounds)
    warnings = [f"rounds that were begun and not ended, each charged the most that it can cost: {left_open}"]
    return PrivacyStatement.of(
        accountant,
        delta=delta,
        subject="a budget ledger" if name is None else f"the model {name!r} of a budget ledger",
        unit=unit,
        warnings=warnings if left_open else (),
        target_epsilon=target_epsilon,
        target_adversary=target_adversary,
    )


def _client_statement(
    history: Mapping[Charged, int], *, delta: float, unit: Unit, target_epsilon: float | None
) -> PrivacyStatement:
    """The statement of one client, against a server that knows in which rounds it took part."""
    spending, target = ClientSpending.of(history, delta=delta), None
    if target_epsilon is not None:
        target = StatedTarget(
            epsilon=checks.target_epsilon(target_epsilon),
            delta=delta,
            adversary=Adversary.SERVER.value,
            spent=spending.epsilon,
        )
    stated = PrivacyStatement.of(
        accountant_of(history) or ShuffleAccountant(),
        delta=delta,
        subject="one client's ledger",
        unit=unit,
        trust=(
            "the server is taken at its word on how many reports a round has; in a sealed round the mix node "
            "gives out no fewer than were promised",
            "who shuffles or adds up is unknown to the ledger. Somebody must be trusted to let nobody see "
            "more of the rounds than is said under them",
        ),
        warnings=() if target is None or target.warning is None else (target.warning,),
    )
    if not history:
        return replace(stated, target=target)
    bound = stated.guarantees[0].epsilon
    server = Guarantee.bounded(
        spending.epsilon,
        bound="none" if bound is None else bound.upper_bound,
        adversary=Adversary.SERVER,
        delta=delta,
        detail="for this client, each round being of as few reports as it was promised",
        none="a report protects nothing by itself and was promised nothing, or Σ δ0 reaches δ",
    )
    local = spending.local_epsilon if spending.local_delta <= delta else math.inf
    return replace(
        stated,
        guarantees=(server, Guarantee.of_sum(local, delta=delta, detail="for this client")),
        target=target,
    )
