"""Clients that report on several of their records in a round: real stages, ledgers and accountants."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr_shuffle import (
    FixedSize,
    InProcessGrid,
    MixNodeStage,
    SelfSampling,
    ShuffleMod,
    SummingStage,
    Updates,
    drawn_record,
)
from flwr_shuffle import client as mod_module
from flwr_shuffle.client import STATE_KEY
from flwr_shuffle.settings import Invitation
from mixing import TrainedRun
from mod_harness import app as app_of
from mod_harness import ask, question
from mod_harness import instruction as instruction_of_round

from shuffle_plugins.accounting import Adversary, SampledRecordsRound, SeveralReportsRound, ShuffleAccountant
from shuffle_plugins.ledger import BudgetLedger, ClientLimits
from shuffle_plugins.mechanisms import MechanismSpec, get
from shuffle_plugins.shuffler.keys import ServiceKey

RECORDS, SAMPLES, DIM = 5, 3, 4
LIMITS = ClientLimits(max_local_epsilon=30.0, max_rounds=100)


def direction(client: int, place: int) -> np.ndarray:
    """What a record adds to the model; inside a ball of radius 1."""
    drawn = np.random.default_rng([client, place]).normal(size=DIM)
    return (0.9 * drawn / np.linalg.norm(drawn)).astype(np.float32)


class World(TrainedRun):
    """Clients that report on three of their records each, which of them, and what they sent."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        self.places: dict[int, list[list[int]]] = defaultdict(list)
        self.sent: list[list[bytes]] = []
        options = {
            "randomizer": "privunit-g",
            "local_epsilon": 8.0,
            "clipping_norm": 1.0,
            "sampling": FixedSize(6),
            "delta": 1e-5,
            "minimum_reports": 4,
            "updates": Updates(records_per_client=RECORDS, samples_per_client=SAMPLES),
        }
        super().__init__(folder=folder, train=self.trained, limits=LIMITS, options=options, **more)
        honest = mod_module._Task.payload

        def noted(task: Any, reports: Any, *, takes_part: bool) -> bytes:
            if takes_part:
                self.sent.append([report.to_bytes() for report in reports])
            return honest(task, reports, takes_part=takes_part)

        monkeypatch.setattr(mod_module._Task, "payload", noted)

    def trained(self, message: Message, context: Context) -> Message:
        client, place = int(context.node_config["partition-id"]), drawn_record(message)
        self.places[client].append(place)
        moved = message.content["arrays"]["w"].numpy() + direction(client, place)
        message.content["arrays"].clear()  # apps may empty a record as they read it
        content = {"arrays": ArrayRecord({"w": Array(moved)}), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)


@pytest.mark.parametrize(
    "mixed", [{}, {"mixers": 1}, {"mixers": 1, "piece_bytes": 64}], ids=["in memory", "mixer", "in pieces"]
)
def test_every_report_comes_out_once_and_apart_from_its_clients_others(tmp_path, monkeypatch, mixed):
    world = World(tmp_path, monkeypatch, **mixed)
    strategy = world.strategy()
    result = world.run(strategy, rounds=2)
    for one_client in world.places.values():
        for first in range(0, len(one_client), SAMPLES):
            drawn = one_client[first : first + SAMPLES]
            assert len(set(drawn)) == SAMPLES  # without replacement
            assert set(drawn) <= set(range(RECORDS))
    assert len(world.sent) == 2 * 6
    for number, found in enumerate(world.found):
        opened = found.reports.each_to_bytes()
        of_round = world.sent[6 * number : 6 * (number + 1)]
        assert sorted(opened) == sorted(report for mine in of_round for report in mine)
        owner = {report: client for client, mine in enumerate(of_round) for report in mine}
        order = [owner[report] for report in opened]
        neighbours = sum(one == two for one, two in itertools.pairwise(order))
        assert neighbours < 12  # were clients' reports together, all 12 would be; by chance two are
    assert len(world.sizes) == 1
    assert result.train_metrics_clientapp[2]["reports"] == 6 * SAMPLES
    reported = torch.tensor(result.arrays["w"].numpy())
    assert bool(reported.isfinite().all())
    assert bool((reported != 0).any())


def test_what_a_run_is_charged(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    strategy = world.strategy(ledger=BudgetLedger(tmp_path / "budget.db", app="test"))
    world.run(strategy, rounds=2)
    mechanism = get("privunit-g", local_epsilon=8.0, dim=DIM)
    clients = mechanism.round(population=5, cohort=4)  # 4 at least, and 6 of 8 were drawn
    expected, records = ShuffleAccountant(), ShuffleAccountant()
    expected.step(SeveralReportsRound.of(clients, reports_per_client=SAMPLES), num_steps=2)
    records.step(
        SampledRecordsRound.of(clients, records_per_client=RECORDS, samples_per_client=SAMPLES), num_steps=2
    )
    spent = strategy.spending()
    assert spent.observer.upper == pytest.approx(expected.epsilon(1e-5).upper, rel=1e-9)
    assert spent.local_epsilon == 2 * SAMPLES * 8.0
    assert spent.observer.upper <= spent.server.upper <= spent.local_epsilon
    found = strategy.accountant.records_epsilon(1e-5, records_per_client=RECORDS)
    assert found.upper == pytest.approx(records.epsilon(1e-5).upper, rel=1e-9)
    assert found.lower == 0  # of a round charged for fewer reports than it had
    with pytest.raises(ValueError, match="at most records_per_client"):
        strategy.accountant.records_epsilon(1e-5, records_per_client=SAMPLES - 1)
    assert BudgetLedger(tmp_path / "budget.db", model="model").accountant().spending(1e-5) == spent
    states = [world.grid.context(node).state for node in world.grid.get_node_ids()]
    records = [state[STATE_KEY]["charged"] for state in states if STATE_KEY in state]
    charged = [json.loads(charge)[1] for record in records for charge in record]
    assert charged == [SAMPLES * 8.0] * (2 * 6)  # six of the eight clients in each of two rounds


def test_all_reports_of_a_client_or_a_dummy(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch, mixers=1)
    coins = iter([True, False, True, True, False, True, False, True])
    monkeypatch.setattr(mod_module, "_coin", lambda probability: next(coins))
    strategy = world.strategy(sampling=SelfSampling(0.5))
    world.run(strategy)
    [found] = world.found
    assert (len(found.reports), found.answered, len(world.sizes)) == (5 * SAMPLES, 8, 1)
    assert all(len(drawn) == SAMPLES for drawn in world.places.values())  # who sits out trains too


@pytest.mark.parametrize(("answered", "clients"), [(8, 5), (8, 8), (100, 60), (50, 10)])
def test_no_smaller_a_share_is_charged_than_reported(answered, clients):
    """Of more than half of those who answered, where half were expected to report, and charged for four."""
    invitation = Invitation(
        mechanism=get("laplace", local_epsilon=1.0, dim=3), candidates=200, invited=200, samples=2, fewest=4
    )
    for sampling in (SelfSampling(0.5), SelfSampling(1.0)):
        charged = sampling.accounted(invitation, answered=answered, reports=clients)
        assert charged.reports == 4
        for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
            seen = charged.before(adversary)
            assert seen.cohort / seen.population >= clients / answered
    few = SelfSampling(0.5).accounted(invitation, answered=8, reports=3)
    assert few.reports == 3  # fewer than are let through: as they were


def test_a_record_on_which_training_fails_changes_its_own_report_alone(monkeypatch):
    vectors: list[torch.Tensor] = []
    made = mod_module._Task.report

    def noted(task: Any, vector: torch.Tensor, *, takes_part: bool) -> Any:
        vectors.append(vector)
        return made(task, vector, takes_part=takes_part)

    monkeypatch.setattr(mod_module._Task, "report", noted)

    def train(message: Message, context: Context) -> Message:
        place = drawn_record(message)
        if place == 1:
            raise SystemExit("this record cannot be read")
        value = np.full(2, np.nan if place == 2 else 1.0 + place, dtype=np.float32)
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(value)})}), reply_to=message)

    grid = InProcessGrid(app_of(train, mod=ShuffleMod(limits=LIMITS)), num_nodes=1)
    asked = instruction_of_round(
        MechanismSpec(name="laplace", local_epsilon=1.0), records_per_client=4, samples_per_client=4
    )
    answer = ask(grid, {"w": np.zeros(2, dtype=np.float32)}, asked)
    assert not answer.has_error()
    sent = sorted(tuple(vector.tolist()) for vector in vectors if bool(vector.isfinite().all()))
    assert sent == [(0.0, 0.0), (0.0, 0.0), (1.0, 1.0), (4.0, 4.0)]


def test_what_cannot_be_accounted_is_refused(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    row = ",".join(ServiceKey.generate().public.hex() for _ in range(2))
    for said, changes in {
        "does not take several reports": {"shuffler": MixNodeStage(mixer_public_key=row)},
        "no bound is known for honest_fraction": {"sampling": SelfSampling(0.5, honest_fraction=0.9)},
        "several reports of a client apart": {"shuffler": SummingStage()},
    }.items():
        with pytest.raises(ValueError, match=said):
            world.strategy(**changes)
    with pytest.raises(ValueError, match="at most records_per_client, got 3 of 2"):
        Updates(records_per_client=2, samples_per_client=3)
    with pytest.raises(ValueError, match="δ0 = 0"):
        world.run(world.strategy(randomizer="gaussian"))
    assert not world.places  # nobody was asked
    cascade = {"records_per_client": 3, "samples_per_client": 2, "mixers": 2, "analyzer_key": bytes(32)}
    with pytest.raises(ValueError, match="mix cascade"):
        instruction_of_round(MechanismSpec(name="laplace", local_epsilon=1.0), **cascade)


def test_no_record_is_drawn_unless_it_is_asked_for():
    plain = instruction_of_round(MechanismSpec(name="laplace", local_epsilon=1.0))
    with pytest.raises(ValueError, match="no record was drawn"):
        drawn_record(question({"w": np.zeros(2, dtype=np.float32)}, plain, node=1))
