"""``shuffle-plugins statement``: of options, of saved accountants, of ledgers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from accounted import accounted
from command_line import CommandLine
from ledger_rounds import charge, drawn, people

from shuffle_plugins.accounting import FederatedAccountant, ShuffleAccountant, ShuffleRound
from shuffle_plugins.ledger import BudgetLedger, ClientLedger, read_client_budget
from shuffle_plugins.ledger.client import written

QUESTION = ["-n", "2000", "-k", "200", "-e", "1", "-t", "20", "-d", "1e-5"]
ROUND = ShuffleRound(local_epsilon=1.0, population=2000, cohort=200, channel_fixed=True)


@pytest.fixture
def run(run: CommandLine) -> CommandLine:
    return replace(run, command=("statement",))


def accountant() -> ShuffleAccountant:
    return accounted(ROUND, num_steps=20)


def test_options_and_a_saved_accountant_state_the_same(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "accountant.json"
    path.write_text(json.dumps(accountant().state_dict()))
    saved = run.json(str(path), "-d", "1e-5")
    asked = run.json(*QUESTION)
    assert asked["guarantees"][0]["upper"] == accountant().epsilon(1e-5).upper
    assert saved.pop("subject") != asked.pop("subject")
    assert saved == asked
    _, text, _ = run(*QUESTION)
    _, markdown, _ = run(*QUESTION, "--markdown", "--unit", "user")
    assert text.startswith("PRIVACY STATEMENT\n")
    assert markdown.startswith("# Privacy statement\n")
    assert "User: all data of one person" in markdown


def test_a_federated_accountant_is_read_from_json(run: CommandLine, tmp_path: Path) -> None:
    federated = FederatedAccountant()
    federated.step(drawn(90), participants=people(95))
    path = tmp_path / "federated.json"
    path.write_text(json.dumps(federated.state_dict()))
    found = run.json(str(path), "-d", "1e-6", "--target-epsilon", "0.01", "--adversary", "server")
    assert [each["adversary"] for each in found["guarantees"]] == ["model-observer", "server", "local"]
    assert found["budget"]["adversary"] == "server"
    assert found["budget"]["exceeded"]
    assert found["clients"]["clients"] == 95


def test_a_servers_ledger(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "budget"
    with BudgetLedger(path, model="digits") as ledger:
        assert run.json(str(path))["num_rounds"] == 0
        for index in range(3):
            token = bytes([index]) * 16
            ledger.begin(token=token, run="run", server_round=index, worst=drawn(50))
            if index < 2:
                ledger.receive(token, actual=drawn(90), participants=people(95))
        spending = ledger.accountant().spending(1e-5)
        found = run.json(str(path))
        assert [each["upper"] for each in found["guarantees"]] == [
            spending.observer.upper,
            spending.server.upper,
            spending.local_epsilon,
        ]
    assert found["subject"] == "the model 'digits' of a budget ledger"
    assert found["warnings"] == [
        "rounds that were begun and not ended, each charged the most that it can cost: 1"
    ]
    assert found["trust"][0].startswith("unknown")
    with BudgetLedger(path, model="letters") as ledger:
        ledger.begin(token=b"x" * 16, run="run", server_round=0, worst=drawn(50))
    assert run(str(path))[::2] == (2, f"error: {path} has several models; name one of 'digits', 'letters'\n")
    assert run.json(str(path), "--model", "letters")["num_rounds"] == 1


@pytest.mark.slow
def test_a_clients_ledger(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "client"
    promised = written(
        ShuffleRound(local_epsilon=1.0, population=50, cohort=50, sampling="full", channel_fixed=True)
    )
    with ClientLedger(path) as ledger:
        assert run.json(str(path))["num_rounds"] == 0
        for shuffled in (promised, promised, None):
            charge(ledger, local_epsilon=1.0, local_delta=0.0, shuffled=shuffled)
        found = run.json(str(path), "--target-epsilon", "1")
        server, local = found["guarantees"]
        total = read_client_budget(path, delta=1e-5).total
        assert (server["adversary"], server["upper"], server["lower"]) == ("server", total.epsilon, None)
        assert (local["adversary"], local["upper"]) == ("local", 3.0)
        assert found["budget"]["exceeded"]
        assert found["warnings"] == ["the budget ε ≤ 1 at δ = 1e-05 against the server is exceeded"]


def test_files_that_are_no_state_are_refused_in_a_line(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, reason in (
        (b"\xff\xfe", "is no ledger, no JSON and no file of torch.save"),
        (b"[1, 2]", "holds no accountant's state"),
        (b'{"history": 3}', "not a state of ShuffleAccountant"),
        (b'{"history": 3, "participation": 1}', "not a state of FederatedAccountant"),
        (b'{"core": {"method": "pld"}, "mechanism": "x_pld"}', "not a state of ShuffleAccountant"),
        (b'{"core": {"method": "x"}, "mechanism": "x_pld"}', "method must be"),
    ):
        path.write_bytes(content)
        assert reason in run.refused(str(path), "-d", "1e-5")


def test_what_contradicts_itself_is_refused(run: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "accountant.json"
    path.write_text(json.dumps(accountant().state_dict()))
    for arguments, reason in (
        (["-n", "2000"], "--local-epsilon and --rounds and --delta and --cohort must be given"),
        ([str(path)], "--delta is needed"),
        ([str(path), "-d", "1e-5", "-k", "200"], "leave out --cohort"),
        ([*QUESTION, "--model", "m"], "--model is for a ledger"),
        ([str(tmp_path / "nothing")], "No such file"),
    ):
        assert reason in run.refused(*arguments)
