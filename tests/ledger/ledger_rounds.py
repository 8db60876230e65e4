"""Rounds for the tests of ledgers, and a training loop that kills itself where it is told to."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from shuffle_plugins.accounting import FederatedRound, Sampling, ShuffleRound
from shuffle_plugins.ledger import BudgetLedger, ClientLedger, ClientLimits

CALLS = (
    "before-begin",
    "after-begin",
    "before-receive",
    "after-receive",
    "after-release",
    "after-complete",
)
STATEMENTS = {
    "begin": ("BEGIN IMMEDIATE", "INSERT INTO rounds", "COMMIT"),
    "receive": ("BEGIN IMMEDIATE", "UPDATE rounds", "INSERT INTO participation", "COMMIT"),
    "complete": ("BEGIN IMMEDIATE", "UPDATE rounds", "INSERT OR REPLACE INTO checkpoints", "COMMIT"),
}
KILL_POINTS = (
    *CALLS,
    *(f"{call}: {statement}" for call, statements in STATEMENTS.items() for statement in statements),
    "receive: in the middle",
    "complete: in the middle",
)
_MIDDLE = {"receive": 2000, "complete": 20}


@dataclass(frozen=True)
class Randomizer:
    """The least that a round asks of a mechanism."""

    local_epsilon: float = 1.5
    local_delta: float = 0.0

    def round(
        self, *, population: int, cohort: float, sampling: Sampling = Sampling.WITHOUT_REPLACEMENT
    ) -> ShuffleRound:
        return ShuffleRound(
            local_epsilon=self.local_epsilon, population=population, cohort=cohort, sampling=sampling
        )


def drawn(reports: int, *, local_epsilon: float = 1.5) -> FederatedRound:
    mechanism = Randomizer(local_epsilon)
    return FederatedRound.drawn(mechanism, candidates=1000, invited=100, reports=reports)


def people(count: int) -> list[str]:
    return [f"node-{i}" for i in range(count)]


NO_LIMITS = ClientLimits()


def charge(ledger: ClientLedger, limits: ClientLimits = NO_LIMITS, **about: Any) -> None:
    """A client's report, a small one unless ``about`` says otherwise."""
    report: dict[str, Any] = {
        "run": "r",
        "token": secrets.token_bytes(16),
        "server_round": 1,
        "mechanism": "privunit",
        "local_epsilon": 0.1,
        "local_delta": 1e-9,
    }
    ledger.charge(limits=limits, **report | about)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(ledger: Path, released: Path, rounds: int, point: str, fatal: int) -> None:
    """So many rounds after the last checkpoint; a line in ``released`` for each that was released."""
    with BudgetLedger(ledger, model="m") as books:
        connection: Connection = books._connection
        last = books.last_checkpoint()
        first = 1 if last is None else last.server_round + 1
        for server_round in range(first, first + rounds):
            doomed = server_round == fatal

            def reach(name: str, doomed: bool = doomed) -> None:
                if doomed and name == point:
                    die()

            def within(call: str, doomed: bool = doomed) -> None:
                if not doomed or not point.startswith(f"{call}: "):
                    return
                wanted = point.removeprefix(f"{call}: ")
                if wanted == "in the middle":
                    instructions = itertools.count()
                    last = _MIDDLE[call]
                    connection.set_progress_handler(
                        lambda: die() if next(instructions) > last else None,
                        1,
                    )
                else:
                    connection.set_trace_callback(lambda sql: die() if sql.startswith(wanted) else None)

            token = secrets.token_bytes(16)
            reach("before-begin")
            within("begin")
            books.begin(token=token, run="r", server_round=server_round, worst=drawn(50))
            reach("after-begin")
            reach("before-receive")
            within("receive")
            books.receive(token, actual=drawn(90 + server_round), participants=people(99))
            reach("after-receive")
            with released.open("a") as file:
                file.write(f"{token.hex()}\n")
                file.flush()
                os.fsync(file.fileno())
            reach("after-release")
            within("complete")
            books.complete(token, checkpoint=token + bytes(100_000))
            reach("after-complete")
