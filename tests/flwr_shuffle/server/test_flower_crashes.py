"""Wherever a round is cut off, its cost is on disk before anything is released, and training goes on."""

from functools import wraps

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    FixedSize,
    InMemoryStage,
    InProcessGrid,
    ShuffleGrid,
    inner_strategy,
    rounds,
    strategy,
)
from flwr_shuffle.updates import Layout
from strategy_harness import MODEL, grid_of, honest_payload, record, shuffled
from thinning import first_fast

from shuffle_plugins.accounting import Adversary, FederatedAccountant
from shuffle_plugins.ledger import BudgetLedger, RoundState

DELTA = 1e-6
ROUNDS = 3


class Killed(BaseException):
    """No handler of exceptions holds it up."""


class Releasing(FedAvg):
    """Remembers what it was given: from then on a round counts as released."""

    released: list[int]

    def __init__(self):
        super().__init__(fraction_evaluate=0.0)

    def aggregate_train(self, server_round, replies):
        type(self).released.append(server_round)
        return super().aggregate_train(server_round, replies)


POINTS = [
    (ShuffleGrid, "open"),
    (ShuffleGrid, "get_node_ids"),
    (FixedSize, "draw"),
    (FedAvg, "configure_train"),
    (FixedSize, "planned"),
    (FederatedAccountant, "would_exceed"),
    (BudgetLedger, "begin"),
    (ShuffleGrid, "send_and_receive"),
    (InProcessGrid, "send_and_receive"),
    (InMemoryStage, "collect"),
    (rounds, "valid_sum"),
    (FixedSize, "accounted"),
    (BudgetLedger, "receive"),
    (FederatedAccountant, "step"),
    (Layout, "shifted"),
    (FedAvg, "aggregate_train"),
    (strategy, "strategy_state"),
    (inner_strategy.ModelState, "to_bytes"),
    (BudgetLedger, "complete"),
    (FederatedAccountant, "epsilon"),
]
LASTING = ("begin", "receive", "aggregate_train", "to_bytes", "complete")
"""After anything else all is as before the next point."""
CUTS = [(*point, False) for point in POINTS] + [(*point, True) for point in POINTS if point[1] in LASTING]


def cut(monkeypatch, owner, name, *, after):
    """Once a round is complete, the next call of a function is the last thing its process does."""
    original, complete = getattr(owner, name), BudgetLedger.complete
    done = []

    @wraps(complete)
    def completing(*args, **named):
        complete(*args, **named)
        done.append(True)

    @wraps(original)
    def cutting(*args, **named):
        due = bool(done)
        if due and not after:
            raise Killed
        found = (completing if original is complete else original)(*args, **named)
        if due:
            raise Killed
        return found

    monkeypatch.setattr(BudgetLedger, "complete", completing)
    monkeypatch.setattr(owner, name, cutting)


def start(path, payload=honest_payload):
    run = shuffled(
        Releasing(),
        randomizer="linf-block",
        local_epsilon=1.0,
        clipping_norm=1.0,
        sampling=FixedSize(10),
        max_epsilon=50.0,
        ledger=path,
    )
    return run, run.start(grid_of(payload), record(MODEL), num_rounds=ROUNDS)


def books(path):
    with BudgetLedger(path, model="model") as ledger:
        accountant = ledger.accountant()
        spent = [accountant.epsilon(DELTA, adversary=adversary, lower=False).upper for adversary in Adversary]
        return ledger.rounds(), np.array(spent), ledger.last_checkpoint()


@first_fast(
    ("owner", "name", "after"), CUTS, fast=3, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_run_cut_off_goes_on(owner, name, after, tmp_path, monkeypatch):
    Releasing.released = []
    with monkeypatch.context() as patched:
        cut(patched, owner, name, after=after)
        with pytest.raises(Killed):
            start(tmp_path / "ledger")
    rounds, spent, saved = books(tmp_path / "ledger")
    charged = [entry.server_round for entry in rounds if entry.charged is not None and entry.released]
    assert set(Releasing.released) <= set(charged)  # nothing is released that is not recorded
    assert 1 <= len(rounds) <= 2
    assert (spent > 0).all()
    done = [entry.server_round for entry in rounds if entry.state is RoundState.COMPLETE]
    assert saved.server_round == done[-1]

    Releasing.released = []
    run, result = start(tmp_path / "ledger")
    assert Releasing.released == list(range(done[-1] + 1, ROUNDS + 1))
    assert sorted(result.train_metrics_clientapp) == Releasing.released
    rounds, afterwards, saved = books(tmp_path / "ledger")
    assert (afterwards >= spent).all()
    assert saved.server_round == ROUNDS
    attempts = len(rounds)
    assert run.accountant.num_rounds == attempts == sum(entry.charged is not None for entry in rounds)


def test_a_client_that_takes_the_server_with_it(tmp_path):
    """Cut off while clients answer: some reports are out, so the round is charged."""
    seen = []

    def payload(message, context):
        seen.append(context.node_id)
        if len(seen) == 15:  # in the second round
            raise Killed
        return honest_payload(message, context)

    Releasing.released = []
    with pytest.raises(Killed):
        start(tmp_path / "ledger", payload)
    rounds, spent, _ = books(tmp_path / "ledger")
    assert [entry.state for entry in rounds] == [RoundState.COMPLETE, RoundState.OPEN]
    start(tmp_path / "ledger")
    rounds, afterwards, _ = books(tmp_path / "ledger")
    assert len(rounds) == ROUNDS + 1
    assert (afterwards > spent).all()


def test_an_error_that_is_survived_is_charged_too(tmp_path, monkeypatch):
    """The same strategy object goes on after an exception in a round."""
    Releasing.released = []
    run = shuffled(Releasing(), sampling=FixedSize(10), ledger=tmp_path / "ledger")
    collect = InMemoryStage.collect
    with monkeypatch.context() as patched:
        patched.setattr(InMemoryStage, "collect", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.start(grid_of(), record(MODEL), num_rounds=1)
    assert InMemoryStage.collect is collect
    run.start(grid_of(), record(MODEL), num_rounds=1)
    rounds, spent, _ = books(tmp_path / "ledger")
    assert [entry.state for entry in rounds] == [RoundState.OPEN, RoundState.COMPLETE]
    assert run.accountant.num_rounds == 2
    for adversary, total in zip(Adversary, spent, strict=True):
        assert run.accountant.epsilon(DELTA, adversary=adversary, lower=False).upper == pytest.approx(
            total, rel=0.02
        )
