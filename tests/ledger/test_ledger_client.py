"""A client's own ledger: limits that hold over restarts, processes and crashes."""

from __future__ import annotations

import math
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ledger_rounds import charge, die

from shuffle_plugins.ledger import (
    BudgetLedger,
    ClientLedger,
    ClientLimits,
    LedgerError,
    ReportRefused,
)
from shuffle_plugins.ledger.client import Refused, written
from shuffle_plugins.protocols import VectorSum

EPSILON = 1.0608  # of the sum below, at δ = 1e-6
SHARED = written(VectorSum.with_noise(dim=4, cohort=100, noise_multiplier=8.0).round())
SUMS = ClientLimits(max_local_epsilon=math.inf, max_epsilon=2.0, delta=1e-6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "client.sqlite"


def test_limits_hold_over_restarts(path: Path) -> None:
    limits = ClientLimits(max_local_epsilon=0.1, max_total_local_epsilon=0.3)
    for _ in range(3):
        with ClientLedger(path) as ledger:
            charge(ledger, limits)
    with ClientLedger(path) as ledger:
        with pytest.raises(ReportRefused) as refused:
            charge(ledger, limits)
        assert refused.value.code is Refused.MAX_TOTAL
        assert "ε0=0.1 is asked for, 0.3 of 0.3 are spent" in str(refused.value)
        spent = ledger.spent()
    assert spent.reports == 3
    assert spent.local_epsilon == pytest.approx(0.3)
    assert spent.local_delta == pytest.approx(3e-9)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (ClientLimits(max_local_epsilon=0.09), Refused.MAX_LOCAL_EPSILON),
        (ClientLimits(max_local_epsilon=1.0, max_rounds=1), Refused.MAX_ROUNDS),
        (ClientLimits(max_total_local_epsilon=0.15), Refused.MAX_TOTAL),
    ],
)
def test_each_limit_refuses_on_its_own_and_charges_nothing(
    path: Path, limits: ClientLimits, code: Refused
) -> None:
    with ClientLedger(path) as ledger:
        charge(ledger, ClientLimits())
        with pytest.raises(ReportRefused) as refused:
            charge(ledger, limits)
        assert refused.value.code is code
        assert ledger.spent().reports == 1


def test_a_token_is_charged_once(path: Path) -> None:
    token = secrets.token_bytes(16)
    with ClientLedger(path) as ledger:
        charge(ledger, ClientLimits(), token=token)
    with ClientLedger(path) as ledger:
        with pytest.raises(ReportRefused) as refused:
            charge(ledger, ClientLimits(), token=token)
        assert refused.value.code is Refused.TOKEN_SPENT
        assert ledger.spent().reports == 1


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such permissions")
def test_a_ledger_is_for_its_owner_alone(tmp_path: Path) -> None:
    ClientLedger(tmp_path / "client").close()
    BudgetLedger(tmp_path / "budget", model="m").close()
    ClientLedger(tmp_path / "there").close()
    (tmp_path / "there").chmod(0o640)  # as its owner wants it
    ClientLedger(tmp_path / "there").close()
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == {"client": 0o600, "budget": 0o600, "there": 0o640}


@pytest.mark.parametrize(
    "limits",
    [
        ClientLimits(),
        ClientLimits(max_local_epsilon=1e308),
        replace(SUMS, max_total_local_epsilon=1e308),
        replace(SUMS, max_epsilon=EPSILON * 0.999),
    ],
)
def test_a_share_of_a_sum_needs_an_explicit_yes(path: Path, limits: ClientLimits) -> None:
    share: dict[str, Any] = {"local_epsilon": math.inf, "summed": True, "shuffled": SHARED}
    with ClientLedger(path) as ledger:
        with pytest.raises(ReportRefused):
            charge(ledger, limits, **share)
        with pytest.raises(ReportRefused):
            charge(ledger, SUMS, **share | {"shuffled": None})  # nobody says what hides it
        assert ledger.spent().reports == 0
        charge(ledger, SUMS, **share)
    with ClientLedger(path) as ledger:
        assert ledger.spent().local_epsilon == math.inf
        with pytest.raises(ReportRefused):
            charge(ledger, ClientLimits(max_total_local_epsilon=1e308), local_epsilon=1.0)


@pytest.mark.parametrize("local_epsilon", [1e-9, 1.0, 400.0, math.inf])
def test_who_agrees_to_sums_agrees_to_no_report_by_itself(path: Path, local_epsilon: float) -> None:
    with ClientLedger(path) as ledger, pytest.raises(ReportRefused) as refused:
        charge(ledger, SUMS, local_epsilon=local_epsilon, shuffled=SHARED)
    assert refused.value.code is Refused.NOT_SUMMED


@pytest.mark.parametrize(
    "total",
    [{}, {"max_rounds": 9}, {"max_total_local_epsilon": 9.0}, {"max_epsilon": math.inf, "delta": 0.1}],
)
def test_who_agrees_to_sums_limits_their_total(total: dict[str, Any]) -> None:
    """The server chooses the noise of a sum: a number of rounds alone bounds nothing."""
    with pytest.raises(ValueError, match="max_epsilon"):
        ClientLimits(max_local_epsilon=math.inf, **total)


RACER = """
import secrets, sys
from shuffle_plugins.ledger import ClientLedger, ClientLimits, ReportRefused
limits = ClientLimits(max_local_epsilon=1.0, max_total_local_epsilon=10.0)
charged = 0
with ClientLedger(sys.argv[1]) as ledger:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        while True:
            ledger.charge(run="r", token=secrets.token_bytes(16), server_round=1, mechanism="m",
                          local_epsilon=0.5, local_delta=0.0, limits=limits)
            charged += 1
    except ReportRefused:
        print(charged, flush=True)
"""


def test_two_processes_together_stay_within_the_limit(path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(2)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        charged = []
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        for racer in racers:
            out, _ = racer.communicate(timeout=600)
            charged.append(int(out))
    finally:
        for racer in racers:
            if racer.poll() is None:
                racer.kill()
                racer.wait()
    assert sum(charged) == 20
    with ClientLedger(path) as ledger:
        assert ledger.spent().local_epsilon == 10.0


@pytest.mark.parametrize(("statement", "charged"), [("INSERT", 0), ("COMMIT", 0), ("", 1)])
def test_a_kill_over_counts_and_never_under_counts(path: Path, statement: str, charged: int) -> None:
    ClientLedger(path).close()
    child = os.fork()
    if child == 0:
        try:
            ledger = ClientLedger(path)
            if statement:
                ledger._connection.set_trace_callback(
                    lambda sql: die() if sql.startswith(statement) else None
                )
            charge(ledger, ClientLimits())
            die()  # charged, and the report not made yet
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with ClientLedger(path) as ledger:
        assert ledger.spent().reports == charged
        charge(ledger, ClientLimits())
        assert ledger.spent().reports == charged + 1


def test_a_full_or_read_only_disk_is_an_error_before_the_report(path: Path) -> None:
    ledger = ClientLedger(path)
    ledger._connection.execute("PRAGMA query_only = ON")
    with ledger, pytest.raises(LedgerError, match="cannot be used"):
        charge(ledger, ClientLimits())
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM reports").fetchone() == (0,)
    connection.close()
