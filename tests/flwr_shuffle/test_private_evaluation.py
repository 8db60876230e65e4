"""Evaluation as private reports: what it tells, what it costs, and what a server cannot make of it."""

from __future__ import annotations

import logging
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    ClientLimits,
    ClientsRefused,
    FixedSize,
    InProcessGrid,
    PrivateEvaluation,
    ShuffleMod,
    ShuffleStrategy,
)
from flwr_shuffle.messages import ClientRefusal
from flwr_shuffle.metrics import record_of, vector_of
from mod_harness import instruction, question
from sharing_run import SUM, SharedRun
from strategy_harness import CLIENTS, MODEL, record, shuffled, train
from thinning import first_fast

from shuffle_plugins.accounting import FederatedAccountant, FederatedRound
from shuffle_plugins.ledger import BudgetLedger, ClientLedger
from shuffle_plugins.protocols import VectorSum

METRICS = {"accuracy": (0.0, 1.0), "loss": (0.0, 10.0)}
LIMITS = ClientLimits(max_local_epsilon=500.0, max_rounds=100)


def evaluate(message: Message, context: Context) -> Message:
    """Clients measure 0, 0.05, 0.1, … and a loss of which two are far out of its range."""
    place = int(context.node_config["partition-id"])
    told = MetricRecord({"accuracy": place / 20, "loss": 1e9 if place < 2 else 3.0, "num-examples": 5})
    return Message(RecordDict({"metrics": told}), reply_to=message)


def app_of(evaluation: Any = evaluate, *, mod: Mod | None = None, training: Any = train) -> ClientApp:
    app = ClientApp(mods=[mod or ShuffleMod(limits=LIMITS)])
    app.train()(training)
    app.evaluate()(evaluation)
    return app


def strategy_of(local_epsilon: float = 400.0, **options: Any) -> ShuffleStrategy:
    asked = PrivateEvaluation(metrics=METRICS, local_epsilon=local_epsilon)
    return shuffled(**({"evaluation": asked} | options))


def test_the_means_of_the_clients_metrics() -> None:
    rounds = 10
    clients = app_of(mod=ShuffleMod(limits=ClientLimits(max_local_epsilon=500.0, max_rounds=2 * rounds)))
    grid = InProcessGrid(clients, num_nodes=CLIENTS)
    results = strategy_of().start(grid, record(MODEL), num_rounds=rounds).evaluate_metrics_clientapp
    for told in results.values():
        assert sorted(told) == ["accuracy", "epsilon-observer", "epsilon-server", "loss", "reports"]
        assert told["reports"] == CLIENTS
    # A report tells one metric, so that the mean of 20 has noise at ε0 = 400 too: measured over 20,000
    # means, its standard deviation is 0.092 and 0.97. Six of them of the mean over all rounds are allowed.
    means = {name: np.mean([told[name] for told in results.values()]) for name in METRICS}
    assert means["accuracy"] == pytest.approx(np.mean(np.arange(20) / 20), abs=6 * 0.092 / math.sqrt(rounds))
    clipped = (2 * 10 + 18 * 3) / 20
    assert means["loss"] == pytest.approx(clipped, abs=6 * 0.97 / math.sqrt(rounds))


@pytest.mark.parametrize("local_epsilon", [1.0, 3.0])
def test_the_means_are_unbiased_with_the_noise_that_is_documented(local_epsilon: float) -> None:
    asked = PrivateEvaluation(metrics=METRICS, local_epsilon=local_epsilon)
    mechanism = asked.spec(cohort=2).build(dim=2)
    content = RecordDict({"any": MetricRecord({"accuracy": 0.8, "loss": 2.0})})
    vector = vector_of(asked.asked, content, failed_share=0.0)
    reports = 40_000
    mean = mechanism.sum(mechanism.randomize(vector.repeat(reports, 1))) / reports
    told = record_of(asked.asked, mean, reports=reports)
    deviation = (3.0 if local_epsilon == 1.0 else 1.6) / math.sqrt(reports)
    assert abs(told["accuracy"] - 0.8) < 6 * 0.5 * deviation
    assert abs(told["loss"] - 2.0) < 6 * 5 * deviation
    if local_epsilon == 1.0:
        singles = mechanism.randomize(vector.repeat(2000, 1))
        each = torch.stack([mechanism.sum(singles.narrow(i, i + 1)) for i in range(2000)])
        assert each.std(dim=0).mean().item() == pytest.approx(3.0, rel=0.1)


def test_what_it_costs_is_in_the_same_books(tmp_path: Path) -> None:
    strategy = shuffled(
        evaluation=PrivateEvaluation(metrics=METRICS, local_epsilon=1.0),
        randomizer="linf-block",
        local_epsilon=2.0,
        ledger=BudgetLedger(tmp_path / "ledger", model="m"),
    )
    files = {"shuffle-max-local-epsilon": 2.0, "shuffle-max-rounds": 9}
    grid = InProcessGrid(
        app_of(mod=ShuffleMod()),
        num_nodes=CLIENTS,
        node_config=lambda place: files | {"shuffle-ledger-file": str(tmp_path / f"{place}.db")},
    )
    strategy.start(grid, record(MODEL), num_rounds=3)
    with BudgetLedger(tmp_path / "ledger", model="m") as ledger:
        charged = [each.charged.local_epsilon for each in ledger.rounds() if each.charged]
        assert ledger.last_checkpoint().server_round == 3  # type: ignore[union-attr]
    assert charged == [2.0, 1.0] * 3
    expected = FederatedAccountant()
    for each in strategy.accountant._records:
        expected.step(each.federated_round, participants=[str(i) for i in range(CLIENTS)])
    assert strategy.get_epsilon(1e-6) == pytest.approx(expected.epsilon(1e-6, lower=False).upper, rel=1e-6)
    training = FederatedAccountant()
    one = strategy.accountant._records[0].federated_round
    for _ in range(3):
        training.step(one, participants=[str(i) for i in range(CLIENTS)])
    assert strategy.get_epsilon(1e-6) > training.epsilon(1e-6, lower=False).upper
    with ClientLedger(tmp_path / "0.db") as ledger:
        assert (ledger.spent().reports, ledger.spent().local_epsilon) == (6, 9.0)


def test_clients_that_answer_evaluations_alone_hide_nobody_in_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draws = random.Random(0)  # too few rounds are released once in some thousand runs
    monkeypatch.setattr(random, "SystemRandom", lambda: draws)
    protected = ShuffleMod(limits=LIMITS)

    def unwilling(message: Message, context: Context, call_next: Any) -> Message:
        if message.metadata.message_type == "train" and int(context.node_config["partition-id"]) < 10:
            raise RuntimeError("no training here")
        return protected(message, context, call_next)

    strategy = strategy_of(1.0, sampling=FixedSize(4), minimum_reports=3)
    strategy.start(InProcessGrid(app_of(mod=unwilling), num_nodes=CLIENTS), record(MODEL), num_rounds=40)
    rounds = [each.federated_round for each in strategy.accountant.history]
    trained, evaluated = ([each for each in rounds if each.local_epsilon == level] for level in (400.0, 1.0))
    assert len(evaluated) == 40
    assert {each.observer.population for each in evaluated} == {CLIENTS}
    assert trained[-1].observer.population <= 11


def test_a_metric_that_the_app_does_not_return_is_named_beside_those_that_it_does() -> None:
    told = RecordDict({"metrics": MetricRecord({"acc": 0.5, "loss": 1.0})})
    with pytest.raises(ValueError, match=r"0 values as 'accuracy'; its MetricRecords have \['acc', 'loss'\]"):
        vector_of(PrivateEvaluation(metrics=METRICS, local_epsilon=1.0).asked, told, failed_share=0.0)


@pytest.mark.parametrize(("kind", "metrics"), [("train", True), ("evaluate", False)])
def test_an_instruction_of_the_other_kind_is_refused(kind: str, metrics: bool) -> None:
    asked = PrivateEvaluation(metrics=METRICS, local_epsilon=1.0)
    told = instruction(asked.spec(cohort=2), metrics=asked.asked if metrics else ())
    grid = InProcessGrid(app_of(), num_nodes=1)
    [answer] = grid.send_and_receive([question({"w": np.zeros(9)}, told, node=2, kind=kind)])
    assert answer.error.reason == ClientRefusal.BAD_INSTRUCTION


def test_clients_that_fail_are_told_of_by_a_randomised_number() -> None:
    def failing(message: Message, context: Context) -> Message:
        if int(context.node_config["partition-id"]) < 15:
            raise RuntimeError("no data")
        return train(message, context)

    asked = PrivateEvaluation(metrics={"failed-rounds": (0, 1)}, local_epsilon=400.0)
    strategy = shuffled(evaluation=asked, local_epsilon=400.0)
    grid = InProcessGrid(app_of(training=failing), num_nodes=CLIENTS)
    result = strategy.start(grid, record(MODEL), num_rounds=2)
    assert result.train_metrics_clientapp[1]["reports"] == CLIENTS  # all of them look alike in training
    assert result.evaluate_metrics_clientapp[1]["failed-rounds"] == pytest.approx(0.75, abs=0.01)


def test_an_evaluation_beyond_the_budget_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    one = FederatedRound.drawn(
        strategy_of().settings.mechanism.build(dim=9), candidates=CLIENTS, invited=CLIENTS, reports=16
    )
    alone = FederatedAccountant()
    alone.step(one, participants=None)
    strategy = strategy_of(local_epsilon=300.0, max_epsilon=alone.epsilon(1e-6, lower=False).upper * 1.01)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = strategy.start(InProcessGrid(app_of(), num_nodes=CLIENTS), record(MODEL), num_rounds=1)
    assert result.evaluate_metrics_clientapp == {}
    assert strategy.accountant.num_rounds == 1
    assert "configure_evaluate: left out" in caplog.text


@first_fast("verified", [False, True])
def test_beside_a_shared_sum_the_metrics_are_a_small_sum(tmp_path: Path, verified: bool) -> None:
    """Charged as a round of its own, for the fewest clients, and against an honest share as training's is."""
    run = SharedRun(folder=tmp_path)
    run.app.evaluate()(evaluate)  # clients measure 0, 0.05, … 0.25
    asked = PrivateEvaluation(metrics=METRICS, noise_multiplier=0.2)
    strategy = run.strategy(shuffler=run.new_stage(verified=verified), evaluation=asked)
    start = ArrayRecord({"w": Array(np.zeros(24))})
    told = strategy.start(run.grid, start, num_rounds=2).evaluate_metrics_clientapp
    for each in told.values():
        # half a range · 0.2 · √2 / 6 is one deviation: 0.024 and 0.24
        assert each["accuracy"] == pytest.approx(0.125, abs=7 * 0.024)
        assert each["loss"] == pytest.approx((2 * 10 + 4 * 3) / 6, abs=7 * 0.24)
        assert each["reports"] == 6
    small = asked.spec(cohort=strategy.minimum_reports).build(dim=2)
    expected = FederatedAccountant()
    for mechanism in [SUM, small] * 2:
        one = FederatedRound.drawn(mechanism, candidates=6, invited=6, reports=strategy.minimum_reports)
        expected.step(one, participants=[str(client) for client in range(6)])
    assert strategy.get_epsilon(1e-3) == pytest.approx(expected.epsilon(1e-3, lower=False).upper, rel=1e-6)


def test_an_evaluation_that_the_stage_does_not_take_is_refused_before_the_run(tmp_path: Path) -> None:
    single = PrivateEvaluation(metrics=METRICS, local_epsilon=1.0)
    with pytest.raises(ValueError, match=r"give PrivateEvaluation\(noise_multiplier"):
        SharedRun(folder=tmp_path).strategy(evaluation=single)
    with pytest.raises(ValueError, match=r"give PrivateEvaluation\(local_epsilon"):
        shuffled(evaluation=PrivateEvaluation(metrics=METRICS, noise_multiplier=1.0))
    half = VectorSum.with_noise(dim=24, cohort=4, noise_multiplier=2.0, overhead=0.3, honest_fraction=0.5)
    (tmp_path / "half").mkdir()
    liars = SharedRun(folder=tmp_path / "half", mechanism=half).strategy()
    asked = liars.settings.spec_of(PrivateEvaluation(metrics=METRICS, noise_multiplier=1.0))
    assert asked.protocol.honest_fraction == 0.5  # type: ignore[attr-defined]


def test_a_run_in_which_everybody_refuses_ends_with_the_reasons() -> None:
    mod = ShuffleMod(limits=ClientLimits(max_local_epsilon=500.0, max_rounds=1))
    strategy = shuffled()
    with pytest.raises(
        ClientsRefused,
        match=r"of 20 clients asked last, up to round 2, not one.*\n.*20: shuffle: the client has taken",
    ):
        strategy.start(InProcessGrid(app_of(mod=mod), num_nodes=CLIENTS), record(MODEL), num_rounds=5)
    assert strategy.arrays is not None  # the first round's model is there
    assert strategy.accountant.num_rounds == 1


def test_the_inner_strategys_names_are_used() -> None:
    seen: list[list[str]] = []

    def noting(message: Message, context: Context) -> Message:
        seen.append(sorted(message.content))
        assert message.content["settings"]["server-round"] == 1
        return evaluate(message, context)

    strategy = strategy_of(local_epsilon=1.0)
    strategy.strategy = FedAvg(arrayrecord_key="model", configrecord_key="settings")
    strategy.start(
        InProcessGrid(app_of(noting), num_nodes=CLIENTS),
        record(MODEL),
        num_rounds=1,
        evaluate_config=ConfigRecord(),
    )
    assert seen[0] == ["model", "settings", "shuffle"]
