"""What one client has spent, and the limits beyond which it does not report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from sqlite3 import Connection
from typing import Self

from shuffle_plugins.ledger.database import Database, Format, StrPath

_ROUNDING = 1e-9

_FORMAT = Format(
    what="client's ledger",
    application_id=0x5350434C,
    version=1,
    schema=(
        """CREATE TABLE reports (
            token BLOB PRIMARY KEY NOT NULL,
            run TEXT NOT NULL,
            server_round INTEGER NOT NULL,
            mechanism TEXT NOT NULL,
            local_epsilon REAL NOT NULL,
            local_delta REAL NOT NULL,
            charged TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
        ) STRICT, WITHOUT ROWID""",
    ),
)


class Refused(StrEnum):
    """Why a client does not report."""

    MAX_LOCAL_EPSILON = "max-local-epsilon"
    MAX_ROUNDS = "max-rounds"
    MAX_TOTAL = "max-total"
    TOKEN_SPENT = "token-spent"


class ReportRefused(ValueError):
    """A report would go beyond what its client agreed to; ``code`` says which limit."""

    def __init__(self, code: Refused) -> None:
        super().__init__(f"refused by the client's own limits: {code}")
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientLimits:
    """What a client agrees to spend; None is no limit.

    Attributes:
        max_local_epsilon: largest ε0 of one report, in nats. Infinity, and nothing less, agrees to reports
            that protect in the sum of everybody's alone: whoever adds up must be trusted.
        max_rounds: reports in all.
        max_total_local_epsilon: largest Σ ε0 over all reports, in nats.

    Raises:
        ValueError: if a limit is not a positive number, or ``max_rounds`` not an int of at least 0.
    """

    max_local_epsilon: float | None = None
    max_rounds: int | None = None
    max_total_local_epsilon: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_local_epsilon", "max_total_local_epsilon"):
            limit = getattr(self, name)
            number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
            if limit is not None and not (number and limit > 0):
                raise ValueError(f"{name} must be a positive number, got {limit!r}")
        if self.max_rounds is not None and (type(self.max_rounds) is not int or self.max_rounds < 0):
            raise ValueError(f"max_rounds must be an int of at least 0, got {self.max_rounds!r}")

    @property
    def limits_all_rounds(self) -> bool:
        """Whether the limits end the client's reports some day, whatever it is asked."""
        total = self.max_total_local_epsilon
        return self.max_rounds is not None or (total is not None and total < math.inf)

    def check(self, *, local_epsilon: float, spent: ClientSpending) -> None:
        """Return if one more report is within the limits. Sums may exceed theirs by rounding.

        Raises:
            ReportRefused: otherwise.
        """
        most = self.max_local_epsilon
        if not (local_epsilon < math.inf if most is None else local_epsilon <= most):
            raise ReportRefused(Refused.MAX_LOCAL_EPSILON)
        if self.max_rounds is not None and not spent.reports < self.max_rounds:
            raise ReportRefused(Refused.MAX_ROUNDS)
        total = self.max_total_local_epsilon
        if total is not None and not spent.local_epsilon + local_epsilon <= total * (1 + _ROUNDING):
            raise ReportRefused(Refused.MAX_TOTAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSpending:
    """What a client has spent: number of reports, Σ ε0 and Σ δ0, its guarantee if nobody is trusted."""

    reports: int
    local_epsilon: float
    local_delta: float


class ClientLedger:
    """A client's reports in a file: charged before they are made, so that a crash over-counts.

    Several processes may use one file at a time; together they stay within the limits.

    Args:
        path: the file; made if it is not there.

    Raises:
        FileNotFoundError: if its folder does not exist.
        LedgerError: if the file is no client's ledger, is damaged or locked.
    """

    def __init__(self, path: StrPath) -> None:
        self._database = Database(path, format=_FORMAT, create=True)

    def charge(
        self,
        *,
        run: str,
        token: bytes,
        server_round: int,
        mechanism: str,
        local_epsilon: float,
        local_delta: float,
        limits: ClientLimits,
    ) -> None:
        """Charge one report. It is on the disk when this returns; make the report only then.

        Args:
            run: name of the run that asks.
            token: of the round; each is charged once and then refused.
            server_round: number of the round in its run.
            mechanism: name of the randomizer.
            local_epsilon: ε0 of the report in nats; infinity for a share of a multi-message sum.
            local_delta: δ0 of the report.
            limits: what the client agrees to over everything in this file.

        Raises:
            ReportRefused: if the limits do not allow it; nothing is charged.
            ValueError: if a value is out of range.
            LedgerError: if the file cannot be written.
        """
        epsilon = _checked(local_epsilon)
        if not 0 <= local_delta < 1:
            raise ValueError(f"local_delta must be in [0, 1), got {local_delta!r}")
        if not isinstance(token, bytes) or not token:
            raise ValueError("a round's token is bytes")
        with self._database.writing() as connection:
            if connection.execute("SELECT 1 FROM reports WHERE token = ?", (token,)).fetchone():
                raise ReportRefused(Refused.TOKEN_SPENT)
            limits.check(local_epsilon=epsilon, spent=self._spent(connection))
            connection.execute(
                "INSERT INTO reports (token, run, server_round, mechanism, local_epsilon, local_delta) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (token, run, server_round, mechanism, epsilon, float(local_delta)),
            )

    def spent(self) -> ClientSpending:
        """What is in the file.

        Raises:
            LedgerError: if it cannot be read.
        """
        with self._database.reading() as connection:
            return self._spent(connection)

    def _spent(self, connection: Connection) -> ClientSpending:
        rows = connection.execute(
            "SELECT local_epsilon, local_delta, count(*) FROM reports GROUP BY local_epsilon, local_delta"
        ).fetchall()
        return ClientSpending(
            reports=sum(count for _, _, count in rows),
            local_epsilon=math.fsum(epsilon * count for epsilon, _, count in rows),
            local_delta=math.fsum(delta * count for _, delta, count in rows),
        )

    def close(self) -> None:
        """Close the file; harmless to repeat."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked(local_epsilon: float) -> float:
    """ε0 of one report: of many messages together it may be large, or infinite."""
    number = isinstance(local_epsilon, (int, float)) and not isinstance(local_epsilon, bool)
    if not (number and local_epsilon > 0):
        raise ValueError(f"local_epsilon must be a positive number, got {local_epsilon!r}")
    return float(local_epsilon)
