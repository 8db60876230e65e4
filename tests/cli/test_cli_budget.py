"""``shuffle-plugins budget``: reads a ledger, also while a run is going on, and never makes one."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from accounted import accounted
from command_line import CommandLine
from ledger_rounds import charge, drawn, people

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.ledger import BudgetLedger, ClientLedger
from shuffle_plugins.ledger.client import written
from shuffle_plugins.mechanisms import MechanismSpec


@pytest.fixture
def run(run: CommandLine) -> CommandLine:
    return replace(run, command=("budget",))


def fill(path: Path) -> BudgetLedger:
    """A ledger that is being written to: two runs, a round in every state."""
    ledger = BudgetLedger(path, model="digits")
    for index in range(5):
        token = secrets.token_bytes(16)
        ledger.begin(token=token, run=f"run-{index // 3}", server_round=index, worst=drawn(50))
        if index < 3:
            ledger.receive(token, actual=drawn(90), participants=people(95))
            ledger.complete(token, checkpoint=None)
        elif index == 3:
            ledger.refuse(token, actual=drawn(10), participants=people(12))
    return ledger


def test_what_is_printed_while_a_run_is_going_on(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "budget"
    with fill(path) as ledger:
        with ledger.writing():  # in the middle of entering something
            code, out, err = run(str(path))
        spending = ledger.accountant().spending(1e-5)
    assert (code, err) == (0, "")
    for text in ("digits", "run-0", "run-1", "all runs", "3 complete", "1 open", "1 refused"):
        assert text in out
    for text in ("replace-one", "observer", "server", "local", spending.observer.upper_bound):
        assert text in out
    assert spending.observer.lower_bound in " ".join(out.split())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["budget"]


def test_json_keeps_its_contract(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "budget"
    with fill(path) as ledger:
        (found,) = run.json(str(path), "--delta", "1e-6")
        spending = ledger.accountant().spending(1e-6)
    assert found["rounds"] == {"open": 1, "received": 0, "complete": 3, "refused": 1}
    assert (found["reports"], found["rounds_charged"], found["delta"]) == (280, 5, 1e-6)
    assert found["worst_client_rounds"] == 5
    assert found["observer"] == {
        "lower": spending.observer.lower,
        "upper": spending.observer.upper,
        "adversary": "model-observer",
        "upper_bound": spending.observer.upper_bound,
        "lower_bound": spending.observer.lower_bound,
    }
    assert found["server"]["adversary"] == "server"
    assert found["server"]["upper"] == spending.server.upper
    assert found["local_epsilon"] == 7.5
    assert found["neighbouring_relation"] == "replace-one"
    first, second = found["runs"]
    assert first["observer"]["upper"] < found["observer"]["upper"]
    assert (first["reports"], second["reports"]) == (270, 10)


def test_models_are_told_apart(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "budget"
    fill(path).close()
    BudgetLedger(path, model="empty").close()
    with BudgetLedger(path, model="other [x]") as ledger:
        ledger.begin(token=b"t", run="r", server_round=1, worst=drawn(50))
    assert [each["model"] for each in run.json(str(path))] == ["digits", "other [x]"]
    assert [each["model"] for each in run.json(str(path), "--model", "digits")] == ["digits"]
    assert "other [x]" in run(str(path))[1]
    assert "'digits'" in run.refused(str(path), "--model", "nobody")


def test_a_ledger_without_rounds(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "budget"
    BudgetLedger(path, model="m").close()
    assert run(str(path)) == (0, "No rounds yet.\n", "")
    assert run.json(str(path)) == []


def test_what_is_no_ledger_ends_in_one_line_and_is_not_made(run: CommandLine, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("x" * 2000)
    for wrong in (tmp_path / "missing", text, tmp_path, tmp_path / "no" / "where"):
        assert str(wrong) in run.refused(str(wrong))
    assert [each.name for each in tmp_path.iterdir()] == ["text"]
    assert run()[0] == 2


# -- a client's ledger --------------------------------------------------------------------------------------


def test_a_clients_ledger_is_read_too(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "client.db"
    mechanism = MechanismSpec(name="linf-block", local_epsilon=1.5).build(dim=8)
    promised = mechanism.round(population=100, cohort=100, sampling=Sampling.FULL)
    with ClientLedger(path) as ledger:
        for name in ("run-b", "run-b", "run-b", "run-a"):
            charge(ledger, run=name, local_epsilon=1.5, local_delta=0.0, shuffled=written(promised))
    out = run.text(str(path), "--delta", "1e-6")
    for text in ("run-a", "run-b", "all runs", "Σ ε0", "4.5", "replace-one", "nobody is trusted"):
        assert text in out
    found = json.loads(run(str(path), "--delta", "1e-6", "--json")[1])
    server = accounted(promised, num_steps=4).epsilon(1e-6, lower=False).upper
    assert found["server_upper"] == server < found["local_epsilon"] == 6.0
    assert [each["run"] for each in found["runs"]] == ["run-a", "run-b"] or found["runs"][0]["rounds"] == 3
    assert (found["rounds"], found["local_delta"], found["client"]) == (4, 0.0, True)


def test_a_clients_ledger_has_no_models(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "client.db"
    ClientLedger(path).close()
    assert run(str(path)) == (0, "No rounds yet.\n", "")
    assert "--model" in run.refused(str(path), "--model", "m")
