"""Clients that send several messages each, shuffled one by one: reports on several records, and decoys."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr_shuffle import (
    ClientsRefused,
    Counts,
    FixedSize,
    InProcessGrid,
    MixNodeStage,
    QueryGrid,
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
from shuffle_plugins.protocols import DecoyVectorSum
from shuffle_plugins.shuffler.keys import ServiceKey

CLIENTS, RECORDS, SAMPLES, DIM = 8, 5, 3, 4
SUM = DecoyVectorSum(dim=DIM, cohort=CLIENTS, decoys=9.0, signed=False)
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


def trained(message: Message, context: Context) -> Message:
    moved = message.content["arrays"]["w"].numpy().copy()
    moved[int(context.node_config["partition-id"]) % 3] += 1
    content = {"arrays": ArrayRecord({"w": Array(moved)}), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


def world_of(folder: Path, *, mixers: int = 1, limit: float = math.inf) -> TrainedRun:
    """Eight clients that hold a category each."""
    return TrainedRun(
        folder=folder,
        train=trained,
        limits=ClientLimits(max_local_epsilon=limit, max_rounds=100, max_epsilon=50.0, delta=1e-3),
        options={"randomizer": SUM, "sampling": FixedSize(CLIENTS), "delta": 1e-3},
        mixers=mixers,
    )


@pytest.mark.parametrize("mixers", [0, 1])
def test_messages_come_out_one_by_one_and_count_the_categories(tmp_path: Path, mixers: int) -> None:
    world = world_of(tmp_path, mixers=mixers)
    strategy = world.strategy()
    result = world.run(strategy, rounds=2)
    assert world.found[-1].reports is not None
    assert len(world.sizes) == 1  # however many decoys a client drew
    assert len(world.found[-1].reports) == CLIENTS * SUM.reports_per_client
    labels = world.found[-1].reports.fields[0].values.long()
    counts = torch.bincount(labels, minlength=DIM + 1)[:DIM]
    assert bool((counts[:3] >= torch.tensor([3, 3, 2])).all())
    order = labels.view(CLIENTS, -1)  # were clients' messages together, blanks would end each row
    assert bool((order[:, :2] == DIM).any())
    moved = result.arrays["w"].numpy()
    expected = 2 * np.array([3, 3, 2, 0]) / CLIENTS
    assert np.abs(moved - expected).max() < 6 * math.sqrt(2 * 9.0) / CLIENTS
    alone = ShuffleAccountant()
    alone.step(SUM.round(), num_steps=2)
    spent = strategy.spending()
    assert spent.observer.upper == pytest.approx(alone.epsilon(1e-3).upper, rel=1e-9)
    assert spent.server.upper == spent.observer.upper


@pytest.mark.parametrize("valid", [CLIENTS - 1, 1])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_round_of_fewer_than_the_sum_is_made_for_costs_what_was_seen(
    tmp_path: Path, valid: int, share: float
) -> None:
    """All clients answer, and some by nonsense: the messages of the others were seen one by one."""
    world = world_of(tmp_path, mixers=0)
    mechanism = replace(SUM, decoys=100.0, honest_fraction=share)
    strategy = world.strategy(randomizer=mechanism)
    stage = strategy.settings.stage
    collect = stage.collect

    def spoiled(replies: Any) -> Any:
        found = collect(replies)
        assert found.reports is not None
        return replace(found, reports=found.reports.narrow(0, valid * mechanism.reports_per_client))

    stage.collect = spoiled  # type: ignore[method-assign]
    world.run(strategy)
    [charged] = strategy.accountant.history
    assert (charged.released, charged.federated_round.reports) == (False, valid)
    spent = strategy.spending().server.upper
    full, seen = ShuffleAccountant(), ShuffleAccountant()
    full.step(mechanism.round())
    seen.step(mechanism.round(cohort=valid))
    assert spent == pytest.approx(seen.epsilon(1e-3).upper, rel=1e-9)
    assert spent > full.epsilon(1e-3).upper


def test_stages_and_clients_that_do_not_fit_refuse(tmp_path: Path) -> None:
    world = world_of(tmp_path, mixers=0)
    with pytest.raises(ValueError, match="shuffled each by itself"):
        world.strategy(shuffler=SummingStage())
    (tmp_path / "two").mkdir()
    with pytest.raises(ValueError, match="single mixer"):
        world_of(tmp_path / "two", mixers=2).strategy()
    with pytest.raises(ValueError, match="in secret"):
        world.strategy(sampling=SelfSampling(0.5))
    (tmp_path / "limited").mkdir()
    limited = world_of(tmp_path / "limited", limit=4.0)
    with pytest.raises(ClientsRefused, match="sums"):
        limited.run(limited.strategy())


@pytest.mark.parametrize("signed", [False, True])
def test_reports_of_vectors_are_unbiased(signed: bool) -> None:
    wide = DecoyVectorSum(dim=3, cohort=6, decoys=4.0, radius=2.0, signed=signed)
    x = torch.tensor(
        [[1.0, 0.5, 0.0], [4.0, 4.0, 0.0], [-3.0, 0.0, 1.0], [0.0, 0.0, 0.0]] + [[0.0, 0.0, 2.0]] * 2
    )
    truth = torch.tensor([0.5, 1.5, 4.5] if signed else [2.0, 1.5, 5.0], dtype=torch.float64)
    errors = torch.stack([wide.sum(wide.randomize(x)).double() - truth for _ in range(800)])
    assert float(errors.mean(dim=0).abs().max()) < 5.5 * math.sqrt(4 * (14 if signed else 10) / 800)
    assert float(errors.square().sum(dim=1).mean()) < 1.15 * wide.worst_variance
    sent = wide.randomize(x)
    torch.testing.assert_close(wide.aggregate(sent), wide.sum(sent) / 6)
    assert {len(one) for one in wide.messages(sent)} == {wide.reports_per_client}
    assert torch.equal(wide.total(sent), sum(wide.total(one) for one in wide.messages(sent)))
    calibrated = DecoyVectorSum.calibrated(dim=20, cohort=2_000, epsilon=1.0, delta=1e-6)
    spent = ShuffleAccountant()
    spent.step(calibrated.round())
    assert 0.99 < spent.epsilon(1e-6).upper <= 1


def test_a_query_through_a_mix_node_counts_by_decoys(tmp_path: Path) -> None:
    world = world_of(tmp_path)

    @world.app.query()
    def answer(message: Message, context: Context) -> Message:
        place = int(context.node_config["partition-id"]) % 3
        told = MetricRecord({"party": [int(place == each) for each in range(4)]})
        return Message(RecordDict({"query_results": told}), reply_to=message)

    asked = {"party": Counts(4)}
    options = {"cohort": CLIENTS, "delta": 1e-3, "shuffler": world.stage}
    grid = QueryGrid(world.grid, asked, epsilon=3.0, **options)
    nodes = world.grid.get_node_ids()[:CLIENTS]
    [reply] = grid.send_and_receive([Message(RecordDict(), node, "query") for node in nodes])
    found = np.array(reply.content["query_results"]["party"])
    error = float(reply.content["standard_errors"]["party"])
    assert 1.5 < error < 4.5
    assert np.abs(found - [3, 3, 2, 0]).max() < 6.5 * error
    assert reply.content["privacy"]["reports"] == CLIENTS
    assert 2.5 < reply.content["privacy"]["epsilon-server"] <= 3.0
    with pytest.raises(ValueError, match="shuffled each by itself"):
        QueryGrid(world.grid, asked, randomizer=SUM, cohort=CLIENTS, delta=1e-3, shuffler=SummingStage())
