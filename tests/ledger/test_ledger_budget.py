"""The budget ledger: what it holds, what it refuses, who may use it at once."""

from __future__ import annotations

import secrets
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ledger_rounds import drawn, people

from shuffle_plugins.accounting import Adversary, FederatedAccountant, FederatedRound
from shuffle_plugins.ledger import BudgetLedger, LedgerError, RoundState

DELTA = 1e-5
NINETY, WORST, PEOPLE = drawn(90), drawn(50), people(99)


def token() -> bytes:
    return secrets.token_bytes(16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.sqlite"


def receive_round(
    ledger: BudgetLedger,
    actual: FederatedRound = NINETY,
    *,
    names: list[str] | None = PEOPLE,
    run: str = "r",
    server_round: int = 1,
    worst: FederatedRound = WORST,
    **about: Any,
) -> bytes:
    own = token()
    ledger.begin(token=own, run=run, server_round=server_round, worst=worst)
    ledger.receive(own, actual=actual, participants=names, **about)
    return own


def complete_round(ledger: BudgetLedger, *, data: bytes | None = None, **about: Any) -> bytes:
    own = receive_round(ledger, **about)
    ledger.complete(own, checkpoint=data)
    return own


def test_a_round_is_charged_at_its_worst_until_it_is_received(path: Path) -> None:
    with BudgetLedger(path, model="m") as ledger:
        spent = [ledger.accountant().epsilon(DELTA, lower=False).upper]
        own = token()
        ledger.begin(token=own, run="r", server_round=1, worst=drawn(50))
        spent.append(ledger.accountant().epsilon(DELTA, lower=False).upper)
        assert ledger.rounds()[0].state is RoundState.OPEN
        ledger.receive(own, actual=drawn(90), participants=people(99))
        spent.append(ledger.accountant().epsilon(DELTA, lower=False).upper)
        ledger.complete(own, checkpoint=None)
        spent.append(ledger.accountant().epsilon(DELTA, lower=False).upper)
        (found,) = ledger.rounds()
    assert spent[0] == 0 < spent[2] == spent[3] < spent[1]
    assert (found.state, found.charged, found.participants) == (RoundState.COMPLETE, drawn(90), 99)
    assert (found.token, found.run, found.server_round, found.released) == (own, "r", 1, True)


def test_nodes_of_one_run_are_not_recognised_in_the_next(path: Path) -> None:
    with BudgetLedger(path, model="m") as ledger:
        for run in range(4):
            for server_round in range(3):
                names = [f"{run}-{client}" for client in range(90)]
                receive_round(ledger, names=names, run=f"run-{run}", server_round=server_round)
        assert ledger.accountant().worst_client_rounds == 12


def test_the_ledgers_accountant_is_the_one_that_was_there(path: Path) -> None:
    accountant = FederatedAccountant()
    with BudgetLedger(path, model="m") as ledger:
        for index, names in enumerate([people(95), people(99)[4:], None, people(100)]):
            receive_round(ledger, drawn(80 + index), names=names, run="run", server_round=index)
            accountant.step(drawn(80 + index), participants=names)
        own = token()
        ledger.begin(token=own, run="run", server_round=9, worst=drawn(50))
        ledger.refuse(own, actual=drawn(3), participants=people(4))
        accountant.step(drawn(3), participants=people(4), released=False)
        own = token()
        ledger.begin(token=own, run="r", server_round=9, worst=drawn(50))
        ledger.refuse(own, actual=None, participants=None)
        assert ledger.accountant().spending(DELTA) == accountant.spending(DELTA)
    with BudgetLedger(path, model="m", method="rdp") as again:
        rdp = again.accountant()
    assert rdp.method == "rdp"
    assert rdp.epsilon(DELTA, lower=False).upper > accountant.epsilon(DELTA, lower=False).upper


def test_what_a_client_that_joined_may_have_been_in_is_kept_of_all_kinds(path: Path) -> None:
    known = FederatedAccountant()
    with BudgetLedger(path, model="m") as ledger:
        for actual, names in ((drawn(90), people(99)), (drawn(90, local_epsilon=0.5), ["new", *people(98)])):
            receive_round(ledger, actual, names=names, worst=actual, before=known.assumed(names))
            known.step(actual, participants=names)
            known.join(["new"])
        last, names = drawn(90, local_epsilon=0.5), ["new", *people(98)]
        receive_round(ledger, last, names=names, worst=last, before=known.assumed(names))
        known.step(last, participants=names)
        found = ledger.accountant()
        assert found.state_dict()["participation"] == known.state_dict()["participation"]
        assert found.spending(DELTA) == known.spending(DELTA)
        assert found.worst_client_rounds == 3


def test_a_run_cannot_be_named_like_an_era_of_another(path: Path) -> None:
    with BudgetLedger(path, model="m") as ledger:
        with pytest.raises(ValueError, match="the name of a run may not hold '#'"):
            ledger.begin(token=token(), run="r#2", server_round=1, worst=drawn(50))
        assert not ledger.rounds()


def test_a_refused_round_costs_what_was_learnt(path: Path) -> None:
    with BudgetLedger(path, model="m") as ledger:
        own = token()
        ledger.begin(token=own, run="r", server_round=1, worst=drawn(50))
        ledger.refuse(own, actual=drawn(20), participants=people(20))
        accountant = ledger.accountant()
        assert accountant.epsilon(DELTA, lower=False).upper == 0
        assert accountant.epsilon(DELTA, adversary=Adversary.SERVER, lower=False).upper > 0.1
        other = token()
        ledger.begin(token=other, run="r", server_round=1, worst=drawn(50))
        before = accountant.spending(DELTA)
        ledger.refuse(other, actual=None, participants=None)
        assert ledger.accountant().spending(DELTA) == before
        assert ledger.rounds()[1].charged is None


def test_models_have_budgets_of_their_own_and_runs_share_one(path: Path) -> None:
    with BudgetLedger(path, model="a") as first:
        complete_round(first, run="one", data=b"a")
        complete_round(first, run="two", data=b"aa")
        assert first.accountant().worst_client_rounds == 2
    with BudgetLedger(path, model="b") as second:
        assert second.accountant().num_rounds == 0
        assert second.last_checkpoint() is None
        complete_round(second, data=b"b")
    with BudgetLedger(path, model="a") as first:
        checkpoint = first.last_checkpoint()
    assert checkpoint is not None
    assert checkpoint.data == b"aa"


def test_steps_out_of_order_are_refused_and_change_nothing(path: Path) -> None:
    with BudgetLedger(path, model="m") as ledger:
        own = complete_round(ledger, data=b"first")
        before = ledger.rounds()
        with pytest.raises(LedgerError, match="complete, not open"):
            ledger.receive(own, actual=drawn(90), participants=people(90))
        with pytest.raises(LedgerError, match="complete, not received"):
            ledger.complete(own, checkpoint=b"second")
        with pytest.raises(LedgerError, match="complete, not open"):
            ledger.refuse(own, actual=None, participants=None)
        with pytest.raises(LedgerError, match="no round with this token"):
            ledger.receive(token(), actual=drawn(90), participants=people(90))
        with pytest.raises(LedgerError, match="draw a fresh one"):
            ledger.begin(token=own, run="r", server_round=2, worst=drawn(50))
        assert ledger.rounds() == before
        open_one = token()
        ledger.begin(token=open_one, run="r", server_round=2, worst=drawn(50))
        with pytest.raises(LedgerError, match="open, not received"):
            ledger.complete(open_one, checkpoint=b"second")
        with pytest.raises(LedgerError, match="name all who answered"):
            ledger.receive(open_one, actual=drawn(90), participants=people(89))
        with pytest.raises(TypeError, match="many names"):
            ledger.receive(open_one, actual=drawn(1), participants="node")
        with pytest.raises(ValueError, match="token"):
            ledger.begin(token=b"", run="r", server_round=3, worst=drawn(50))
        with pytest.raises(ValueError, match="model"):
            BudgetLedger(path, model="")
        assert [each.state for each in ledger.rounds()] == [RoundState.COMPLETE, RoundState.OPEN]
        checkpoint = ledger.last_checkpoint()
    assert checkpoint is not None
    assert checkpoint.data == b"first"


def test_two_processes_do_not_train_one_model(path: Path) -> None:
    with BudgetLedger(path, model="m") as first, BudgetLedger(path, model="m") as second:
        complete_round(first)
        with pytest.raises(LedgerError, match="another process"):
            second.begin(token=token(), run="r", server_round=1, worst=drawn(50))
        complete_round(first, server_round=2, data=b"a model")
        second.accountant()  # as a query does that shares the budget
        asked = receive_round(second, server_round=3)
        with pytest.raises(LedgerError, match="has saved a model"):
            second.complete(asked, checkpoint=b"another model")
        second.complete(asked, checkpoint=None)
    with BudgetLedger(path, model="m") as third:
        complete_round(third, server_round=4, data=b"the next")


@pytest.mark.parametrize("cut", [0.3, 0.6])
def test_a_damaged_file_gives_no_number(path: Path, cut: float) -> None:
    with BudgetLedger(path, model="m") as ledger:
        for index in range(5):
            complete_round(ledger, server_round=index, data=bytes(20_000))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut)])

    def read() -> None:
        with BudgetLedger(path, model="m") as ledger:
            ledger.accountant()
            ledger.last_checkpoint()

    with pytest.raises(LedgerError):
        read()


def test_a_round_that_was_tampered_with_gives_no_number(path: Path) -> None:
    with BudgetLedger(path, model="m") as ledger:
        complete_round(ledger)
    for sql in ("UPDATE rounds SET charged = '[1]'", "UPDATE participation SET rounds = 5"):
        with sqlite3.connect(path) as connection:
            connection.execute("SAVEPOINT undone")
            connection.execute(sql)
            connection.execute("RELEASE undone")
        connection.close()
        with BudgetLedger(path, model="m") as ledger, pytest.raises(LedgerError, match=r"read|contradicts"):
            ledger.accountant()


def test_a_locked_file_is_waited_for(path: Path) -> None:
    BudgetLedger(path, model="m").close()
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('BEGIN EXCLUSIVE'); print('held', flush=True); sys.stdin.readline(); c.execute('COMMIT')"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script, str(path)], **pipes) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        let_go = threading.Event()

        def release() -> None:
            let_go.set()
            holder.communicate(b"\n")

        timer = threading.Timer(0.5, release)
        timer.start()
        try:
            with BudgetLedger(path, model="m") as ledger:
                complete_round(ledger)
            assert let_go.is_set()
        finally:
            timer.join()


def test_a_budget_belongs_to_one_app_and_one_kind_of_model(path: Path) -> None:
    with BudgetLedger(path, model="m") as ledger:
        ledger.claim(app="clinic/digits", layout="a")
        complete_round(ledger)
    with BudgetLedger(path, model="m") as ledger:
        ledger.claim(app="clinic/digits", layout="a")
        with pytest.raises(LedgerError, match=r"trained by the app 'clinic/digits'.*'bank/loans'.*model=…"):
            ledger.claim(app="bank/loans", layout="a")
        with pytest.raises(LedgerError, match=r"other arrays.*model=…"):
            ledger.claim(app="clinic/digits", layout="b")
        with pytest.raises(LedgerError, match="without an app's name"):
            ledger.claim(app="", layout="a")
    with BudgetLedger(path, model="other") as ledger:
        ledger.claim(app="bank/loans", layout="b")
