"""A training process killed at any moment: nothing released is unrecorded, and ε never falls."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from ledger_rounds import KILL_POINTS, train

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.ledger import BudgetLedger, RoundState

pytestmark = pytest.mark.process

DELTA = 1e-5
FATAL = 3


def run_until_killed(ledger: Path, released: Path, point: str) -> None:
    child = os.fork()
    if child == 0:
        try:
            train(ledger, released, 3, point, FATAL)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def spent(ledger: Path) -> dict[Adversary, float]:
    with BudgetLedger(ledger, model="m") as books:
        accountant = books.accountant()
        return {
            adversary: accountant.epsilon(DELTA, adversary=adversary, lower=False).upper
            for adversary in Adversary
        }


@pytest.mark.parametrize("point", KILL_POINTS)
def test_killed_at(point: str, tmp_path: Path) -> None:
    ledger, released = tmp_path / "budget.sqlite", tmp_path / "released"
    train(ledger, released, FATAL - 1, "", 0)
    before = spent(ledger)
    with BudgetLedger(ledger, model="m") as books:
        last_before = books.last_checkpoint()
    assert last_before is not None

    run_until_killed(ledger, released, point)

    with BudgetLedger(ledger, model="m") as books:
        rounds = {each.token: each for each in books.rounds()}
        checkpoint = books.last_checkpoint()
    free_to_be_released = {
        token for token, each in rounds.items() if each.state in (RoundState.RECEIVED, RoundState.COMPLETE)
    }
    tokens = {bytes.fromhex(line) for line in released.read_text().split()}
    assert tokens <= free_to_be_released
    assert checkpoint is not None
    assert checkpoint.data == checkpoint.token + bytes(100_000)
    complete = [each for each in rounds.values() if each.state is RoundState.COMPLETE]
    assert complete[-1].token == checkpoint.token
    assert complete[-1].server_round == checkpoint.server_round
    after = spent(ledger)
    assert all(after[adversary] >= before[adversary] for adversary in Adversary)
    begun = point != "before-begin" and not point.startswith("begin: ")
    assert (len(rounds) == FATAL) is begun
    if begun:
        assert after[Adversary.LOCAL] == before[Adversary.LOCAL] + 1.5
        assert after[Adversary.MODEL_OBSERVER] > before[Adversary.MODEL_OBSERVER]
    assert (checkpoint == last_before) is (point != "after-complete")

    train(ledger, released, 2, "", 0)
    with BudgetLedger(ledger, model="m") as books:
        resumed = books.last_checkpoint()
    assert resumed is not None
    assert resumed.server_round == checkpoint.server_round + 2
    final = spent(ledger)
    assert all(final[adversary] > after[adversary] for adversary in Adversary)
