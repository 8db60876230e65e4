"""What a model has cost its clients, round by round, over runs and restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from sqlite3 import Connection
from typing import Any

from shuffle_plugins.accounting import FederatedAccountant, FederatedRound, Method
from shuffle_plugins.accounting.federated.rounds import (
    RecordedRound,
    RoundKind,
    as_tuples,
    distinct_participants,
)
from shuffle_plugins.core.database import Database, StrPath
from shuffle_plugins.ledger.client import LedgerError

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
    :meth:`complete`; or :meth:`begin`, :meth:`refuse`. Every step is on the disk when it returns. A process
    that dies in between leaves the round charged at the most it can have cost. Several models may share the
    file, others may read it at any time; two processes may write to it, but not train one model.

    Args:
        path: the file; made if it is not there.
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

    def claim(self, *, app: str, layout: str) -> None:
        """Bind the model's budget, at the first run, to the app that trains it and to the model's arrays.

        Two projects that happen to use one file and name do not go on with each other's model.

        Args:
            app: name of the run's app, unless the ledger was given one; empty for a script in a simulation.
            layout: a text that differs between models of different arrays.
        """
        app = app if self._app is None else self._app
        with self.writing() as connection:
            found = connection.execute(
                "SELECT app, layout FROM identities WHERE model = ?", (self.model,)
            ).fetchone()
            if found is None:
                connection.execute("INSERT INTO identities VALUES (?, ?, ?)", (self.model, app, layout))
                return
        if found[0] != app:
            raise LedgerError(
                f"{self.path} holds the budget of {self.model!r} as trained by {_app(found[0])}, and this "
                f"run is of {_app(app)}. If it is the same model under a new name, go on with "
                f"BudgetLedger(app={found[0]!r}); otherwise give this model a name of its own (model=…), or "
                "another ledger"
            )
        if found[1] != layout:
            raise LedgerError(
                f"{self.path} holds the budget of {self.model!r}, a model with other arrays than this one: "
                "other names, shapes or types. Give this model a name of its own (model=…), or another ledger"
            )

    def begin(self, *, token: bytes, run: str, server_round: int, worst: FederatedRound) -> None:
        """Enter a round before anything is sent.

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
        self._last = entered

    def receive(
        self, token: bytes, *, actual: FederatedRound, participants: Iterable[str] | None, era: str = ""
    ) -> None:
        """Enter what an open round cost, before anything computed from its reports is released.

        Args:
            actual: the round at the number of reports received.
            participants: names of the clients that answered; None if they are not known, and then everybody
                is taken to have answered.
            era: of the names within the run. A participant of one era may be any of another's, as nodes that
                are restarted get new ids.
        """
        self._settle(token, RoundState.RECEIVED, actual, participants, era)

    def refuse(
        self,
        token: bytes,
        *,
        actual: FederatedRound | None,
        participants: Iterable[str] | None,
        era: str = "",
    ) -> None:
        """Enter that nothing of an open round is released; arguments as of :meth:`receive`.

        ``actual`` is the round as the server saw it, which costs the same against the server as if it had
        been released; None if the server learnt nothing from any report.
        """
        self._settle(token, RoundState.REFUSED, actual, participants, era)

    def complete(self, token: bytes, *, checkpoint: bytes | None) -> None:
        """Enter that a received round was released, and save what to go on from: both or neither.

        ``checkpoint`` replaces the model's last one; None keeps that.
        """
        with self.writing() as connection:
            round_id, _, server_round = self._expect(connection, token, RoundState.RECEIVED)
            connection.execute("UPDATE rounds SET state = ? WHERE id = ?", (RoundState.COMPLETE, round_id))
            if checkpoint is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO checkpoints (model, server_round, token, data) "
                    "VALUES (?, ?, ?, ?)",
                    (self.model, server_round, token, checkpoint),
                )

    def _settle(
        self,
        token: bytes,
        state: RoundState,
        actual: FederatedRound | None,
        participants: Iterable[str] | None,
        era: str,
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
                    "INSERT INTO participation (model, run, kind, participant, rounds) "
                    "VALUES (?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET rounds = rounds + 1",
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

    def accountant(self) -> FederatedAccountant:
        """An accountant of the model's rounds; those left open are charged at their worst, to everybody."""
        with self.reading() as connection:
            return read_accountant(connection, self.model, method=self._method)

    def last_checkpoint(self) -> Checkpoint | None:
        """What was saved with the last completed round that saved anything."""
        with self.reading() as connection:
            found = connection.execute(
                "SELECT server_round, token, data FROM checkpoints WHERE model = ?", (self.model,)
            ).fetchone()
        return None if found is None else Checkpoint(server_round=found[0], token=found[1], data=found[2])


def _app(name: str) -> str:
    return f"the app {name!r}" if name else "a script without an app's name (app='')"


def read_models(connection: Connection) -> list[str]:
    """Models with rounds, in the order of their first."""
    rows = connection.execute("SELECT model FROM rounds GROUP BY model ORDER BY min(id)")
    return [model for (model,) in rows]


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
        "SELECT run, kinds.kind, participant, rounds "
        "FROM participation JOIN kinds ON kinds.id = participation.kind "
        "WHERE model = :model AND (:run IS NULL OR run = :run OR substr(run, 1, length(:era)) = :era) "
        "ORDER BY run",
        {"model": model, "run": run, "era": None if run is None else run + _ERA},
    )
    # A node of one run, or era, may have been any node of another: names do not last longer than that.
    eras: dict[str, dict[RoundKind, dict[str, int]]] = {}
    for named_in, kind, participant, rounds in rows:
        eras.setdefault(named_in, {}).setdefault(_read_kind(kind), {})[participant] = rounds
    try:
        return FederatedAccountant.from_records(records, participation=list(eras.values()), method=method)
    except (KeyError, ValueError) as error:
        raise LedgerError(f"the ledger contradicts itself: {error}") from error


def _last_round(connection: Connection, model: str) -> int | None:
    (last,) = connection.execute("SELECT max(id) FROM rounds WHERE model = ?", (model,)).fetchone()
    return None if last is None else int(last)


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
