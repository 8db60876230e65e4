"""Counts of categories through mix nodes: clients send their own and decoys, which come out one by one."""

from __future__ import annotations

import math
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
    QueryGrid,
    SelfSampling,
    SummingStage,
)
from mixing import TrainedRun

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.ledger import ClientLimits
from shuffle_plugins.protocols import DecoyVectorSum

CLIENTS, DIM = 8, 4
SUM = DecoyVectorSum(dim=DIM, cohort=CLIENTS, decoys=9.0, signed=False)


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
