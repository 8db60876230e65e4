"""What one client has spent, and the limits beyond which it does not report."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from sqlite3 import Connection
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Delta, Ranged, TargetEpsilon, whole_number
from shuffle_plugins.core.database import Database, StrPath

if TYPE_CHECKING:
    from shuffle_plugins.accounting import Round, ShuffleAccountant

_ROUNDING = 1e-9  # relative, by which a sum of many ε0 may exceed a limit that it should be equal to


class LedgerError(ValueError):
    """The file is no ledger, is damaged or locked, or what is to be entered contradicts what is in it."""


class Refused(StrEnum):
    """Why a client does not report."""

    MAX_LOCAL_EPSILON = "max-local-epsilon"
    MAX_ROUNDS = "max-rounds"
    MAX_TOTAL = "max-total"
    TOKEN_SPENT = "token-spent"
    NOT_SUMMED = "not-summed"
    FEW_REPORTS = "few-reports"
    SEPARATION = "separation"
    MAX_EPSILON = "max-epsilon"


class Charged(NamedTuple):
    """What a client was charged for one report."""

    shuffled: str | None  # the round it was promised to be in, as JSON; None if everybody may see it
    local_epsilon: float
    local_delta: float


class InWindow(NamedTuple):
    """Which round of a series of windows a report is for, and over how many rounds each window reaches."""

    series: bytes
    place: int  # the round's index
    band: int


class ReportRefused(ValueError):
    """A report would exceed a limit of its client: ``code`` is for others, the text for its own log."""

    def __init__(self, code: Refused, why: str = "") -> None:
        super().__init__(f"refused by the client's own limits: {code}{f', {why}' if why else ''}")
        self.code = code


def _positive(name: str, value: object) -> float:
    """A positive number, which may be infinite: ε0 of a client's share of a multi-message sum is."""
    return math.inf if value == math.inf else checks.number(name, value, above=0)


@dataclass(frozen=True, kw_only=True)
class ClientLimits(Ranged):
    """What a client agrees to spend; None is no limit.

    An infinite ``max_local_epsilon`` agrees to reports that protect only once they are added to everybody's,
    and to no others; ``max_epsilon`` must then limit their total.
    """

    max_local_epsilon: Annotated[float, _positive] | None = None  # of one report, in nats
    max_rounds: Annotated[int, whole_number(at_least=0)] | None = None  # reports in all
    max_total_local_epsilon: Annotated[float, _positive] | None = None  # Σ ε0 over all reports, in nats
    min_reports: Annotated[int, whole_number(at_least=2)] | None = None  # that one is shuffled among
    min_separation: Annotated[int, whole_number(at_least=1)] | None = None  # of rounds in a series of windows
    max_epsilon: TargetEpsilon | None = None  # of all reports together at δ, as of :func:`epsilon_of`
    delta: Delta | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.max_epsilon is None) != (self.delta is None):
            raise ValueError("max_epsilon and delta go together: an ε holds at a δ")
        if self.agrees_to_sums_alone and self.max_epsilon is None:
            raise ValueError(
                "an infinite max_local_epsilon agrees to sums, whose noise the server chooses: limit their "
                "total by max_epsilon and delta (in node_config shuffle-max-epsilon and shuffle-delta)"
            )

    @property
    def agrees_to_sums_alone(self) -> bool:
        """Whether only reports that others' noise or decoys hide are agreed to: ``max_local_epsilon`` is
        infinite."""
        return self.max_local_epsilon == math.inf

    @property
    def limits_all_rounds(self) -> bool:
        """Whether the limits end the client's reports some day, whatever a server promises."""
        total = self.max_total_local_epsilon
        return self.max_rounds is not None or (total is not None and total < math.inf)

    def check(self, *, charged: Charged, history: Mapping[Charged, int], summed: bool = False) -> None:
        """Raise ReportRefused for a report beside this history that would exceed a limit."""
        local_epsilon, spent = charged.local_epsilon, ClientSpending.of(history)
        most = self.max_local_epsilon
        if self.agrees_to_sums_alone and not summed:
            raise ReportRefused(Refused.NOT_SUMMED, f"a report of ε0={local_epsilon:g} by itself")
        if not (local_epsilon < math.inf if most is None else local_epsilon <= most):
            raise ReportRefused(
                Refused.MAX_LOCAL_EPSILON,
                f"ε0={local_epsilon:g} is asked for, {most or 'a finite one'} allowed",
            )
        if self.max_rounds is not None and not spent.reports < self.max_rounds:
            raise ReportRefused(Refused.MAX_ROUNDS, f"{spent.reports} of {self.max_rounds} reports were sent")
        total = self.max_total_local_epsilon
        if total is not None and not spent.local_epsilon + local_epsilon <= total * (1 + _ROUNDING):
            asked = f"ε0={local_epsilon:g} is asked for"
            raise ReportRefused(Refused.MAX_TOTAL, f"{asked}, {spent.local_epsilon:g} of {total:g} are spent")
        if self.min_reports is not None and not _reports(charged) >= self.min_reports:
            few = f"{_reports(charged)} reports are promised, {self.min_reports} asked for"
            raise ReportRefused(Refused.FEW_REPORTS, few)
        if self.max_epsilon is not None and self.delta is not None:
            after = Counter(history)
            after[charged] += 1
            if not (epsilon := epsilon_of(after, delta=self.delta)) <= self.max_epsilon:
                raise ReportRefused(
                    Refused.MAX_EPSILON, f"ε would be {epsilon:g}, {self.max_epsilon:g} allowed"
                )

    def check_separation(self, window: InWindow, taken: Iterable[int]) -> None:
        """Raise ReportRefused if the client was in another round of the series less than ``min_separation``
        ago, or so few ago that both are in one window: what a round is charged holds for one of them.

        ``taken`` are the places of its rounds in the series. Of several rounds at one place at most one is
        opened, so that its own is no reason to refuse.
        """
        least = max(window.band, self.min_separation or 1)
        for place in taken:
            if 0 < abs(window.place - place) < least:
                raise ReportRefused(
                    Refused.SEPARATION,
                    f"round {window.place} of a series of windows is less than {least} from {place}",
                )


@dataclass(frozen=True, kw_only=True)
class ClientSpending:
    """What a client has spent: number of reports, Σ ε0 and Σ δ0, its guarantee if nobody is trusted."""

    reports: int
    local_epsilon: float
    local_delta: float
    epsilon: float = math.inf  # of :func:`epsilon_of`; infinite if there is none, or no δ was given

    @classmethod
    def of(cls, history: Mapping[Charged, int], *, delta: float | None = None) -> Self:
        """What a history adds up to."""
        return cls(
            reports=sum(history.values()),
            local_epsilon=math.fsum(charged.local_epsilon * count for charged, count in history.items()),
            local_delta=math.fsum(charged.local_delta * count for charged, count in history.items()),
            epsilon=math.inf if delta is None else epsilon_of(history, delta=delta),
        )


def epsilon_of(history: Mapping[Charged, int], *, delta: float) -> float:
    """The certified ε of a client's reports against a server that knows in which rounds it took part.

    Each round is one of as many reports as were promised, all of which take part: more reports cost no more,
    and sampling that a client cannot check is not counted, but for its own secret coin in a sum whose shares
    nobody sees. Replace-one neighbours. Infinite if there is no finite one at ``delta``.
    """
    return _epsilon(frozenset(history.items()), checks.delta(delta))


@lru_cache(maxsize=256)  # clients of a simulation have equal histories
def _epsilon(history: frozenset[tuple[Charged, int]], delta: float) -> float:
    counts = dict(history)
    accountant = accountant_of(counts)
    if accountant is None or ClientSpending.of(counts).local_delta >= delta:
        return math.inf
    return accountant.epsilon(delta, lower=False).upper


def accountant_of(history: Mapping[Charged, int]) -> ShuffleAccountant | None:
    """The rounds of :func:`epsilon_of`; None if nothing hides a report that alone is not private."""
    from shuffle_plugins.accounting import Sampling, ShuffleAccountant, ShuffleRound
    from shuffle_plugins.core.checks import MAX_LOCAL_EPSILON

    accountant = ShuffleAccountant()
    for (shuffled, local_epsilon, local_delta), count in history.items():
        if shuffled is not None:
            accountant.step(_round(shuffled), num_steps=count)
        elif local_epsilon > MAX_LOCAL_EPSILON:
            return None
        else:
            seen = ShuffleRound(
                local_epsilon=local_epsilon,
                population=1,
                cohort=1,
                sampling=Sampling.FULL,
                local_delta=local_delta,
            )
            accountant.step(seen, num_steps=count)
    return accountant


@lru_cache(maxsize=256)
def _round(shuffled: str) -> Round:
    from shuffle_plugins.accounting import Round

    return Round.from_state(json.loads(shuffled))


def _reports(charged: Charged) -> float:
    """How many reports the server promised to shuffle this one among."""
    return 1 if charged.shuffled is None else float(_round(charged.shuffled).cohort)


def written(shuffled: Round) -> str:
    """A round as JSON text, as :class:`Charged` holds it."""
    return json.dumps(shuffled.state(), allow_nan=False)


class ClientLedger(Database):
    """A client's reports in a file: charged before they are made, so that a crash over-counts.

    Several processes may use one file at a time; together they stay within the limits. The file is made if it
    is not there.
    """

    WHAT = "client's ledger"
    APPLICATION_ID = 0x5350434C
    ERROR = LedgerError
    SCHEMA = (
        """CREATE TABLE reports (
            token BLOB PRIMARY KEY NOT NULL,
            run TEXT NOT NULL,
            server_round INTEGER NOT NULL,
            mechanism TEXT NOT NULL,
            local_epsilon REAL NOT NULL,
            local_delta REAL NOT NULL,
            charged TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
            shuffled TEXT,
            series BLOB,
            place INTEGER
        ) STRICT, WITHOUT ROWID""",
    )

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
        shuffled: str | None = None,
        summed: bool = False,
        window: InWindow | None = None,
    ) -> None:
        """Charge one report. It is on the disk when this returns; make the report only then.

        Args:
            token: random id of the round; each is charged once and then refused.
            local_epsilon, local_delta: of the report; ε0 of a share of a multi-message sum is infinite.
            limits: what the client agrees to over everything in this file, or ReportRefused.
            shuffled: the round that the report is promised to be in, by :func:`written`; None if it may be
                seen by itself.
            summed: whether it is seen by nobody before it is added to others', or shuffled among
                their decoys.
            window: where it stands in a series of windows of sums; None if it is in none.
        """
        epsilon = _positive("local_epsilon", local_epsilon)
        checks.number("local_delta", local_delta, at_least=0, below=1)
        if not isinstance(token, bytes) or not token:
            raise ValueError("a round's token is bytes")
        with self.writing() as connection:
            if connection.execute("SELECT 1 FROM reports WHERE token = ?", (token,)).fetchone():
                raise ReportRefused(Refused.TOKEN_SPENT)
            charged = Charged(shuffled, epsilon, float(local_delta))
            limits.check(charged=charged, history=_history(connection), summed=summed)
            series, place = (None, None) if window is None else (window.series, window.place)
            if window is not None:
                taken = connection.execute("SELECT place FROM reports WHERE series = ?", (series,))
                limits.check_separation(window, [other for (other,) in taken])
            connection.execute(
                "INSERT INTO reports "
                "(token, run, server_round, mechanism, local_epsilon, local_delta, shuffled, series, place) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (token, run, server_round, mechanism, epsilon, charged.local_delta, shuffled, series, place),
            )

    def spent(self) -> ClientSpending:
        """What the reports in the file add up to; LedgerError if it cannot be read."""
        with self.reading() as connection:
            return ClientSpending.of(_history(connection))


def is_client_ledger(path: StrPath) -> bool:
    """Whether a file is a client's ledger, of any version; False if it is none, or something else."""
    try:
        with open(path, "rb") as file:
            return file.read(72)[68:] == ClientLedger.APPLICATION_ID.to_bytes(4, "big")  # SQLite's header
    except OSError:
        return False


def read_reports(path: StrPath) -> dict[str, dict[Charged, int]]:
    """How often a client was charged for what, by run in the order of their first report."""
    with ClientLedger(path, create=False) as database, database.reading() as connection:
        rows = connection.execute(
            "SELECT run, shuffled, local_epsilon, local_delta, count(*) FROM reports "
            "GROUP BY run, shuffled, local_epsilon, local_delta "
            "ORDER BY (SELECT min(charged) FROM reports AS first WHERE first.run = reports.run), run"
        ).fetchall()
    runs: dict[str, dict[Charged, int]] = {}
    for run, shuffled, local_epsilon, local_delta, count in rows:
        runs.setdefault(run, {})[Charged(shuffled, local_epsilon, local_delta)] = count
    return runs


def _history(connection: Connection) -> dict[Charged, int]:
    rows = connection.execute(
        "SELECT shuffled, local_epsilon, local_delta, count(*) FROM reports "
        "GROUP BY shuffled, local_epsilon, local_delta"
    )
    return {Charged(shuffled, epsilon, local_delta): count for shuffled, epsilon, local_delta, count in rows}
