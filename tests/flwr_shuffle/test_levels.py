"""Clients choose the largest level that their limits allow, and are trained and charged by groups."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    ClientLimits,
    FixedSize,
    GroupGrid,
    InProcessGrid,
    ShuffleGrid,
    ShuffleMod,
    ShuffleStrategy,
    grids_by_level,
)
from flwr_shuffle.messages import LEVELS_KEY, ClientRefusal

from shuffle_plugins.accounting import Adversary, ShuffleAccountant
from shuffle_plugins.ledger import BudgetLedger
from shuffle_plugins.mechanisms import registry

LEVELS = (1.0, 4.0)
MODEL = ArrayRecord({"w": Array(np.zeros(3))})
trained: dict[float, list[int]] = {}


def limits_of(context: Context) -> dict[str, Any]:
    """Of twelve nodes four allow 0.5, four 2 and four 6."""
    return {
        "shuffle-max-local-epsilon": (0.5, 2.0, 6.0)[int(context.node_config["partition-id"]) % 3],
        "shuffle-max-rounds": 20,
    }


def app_of(**options: Any) -> ClientApp:
    app = ClientApp(mods=[ShuffleMod(**{"node_config": limits_of} | options)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        place = int(context.node_config["partition-id"])
        trained.setdefault(limits_of(context)["shuffle-max-local-epsilon"], []).append(place)
        moved = message.content["arrays"]["w"].numpy() + 0.1
        content = {
            "arrays": ArrayRecord({"w": Array(moved)}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def strategy_of(level: float, **options: Any) -> ShuffleStrategy:
    return ShuffleStrategy(
        FedAvg(fraction_evaluate=0.0),
        **{
            "randomizer": "linf-coordinate",
            "local_epsilon": level,
            "clipping_norm": 1.0,
            "sampling": FixedSize(4),
            "population": 4,
            "delta": 1e-2,
        }
        | options,
    )


def test_a_client_takes_the_largest_level_that_its_limits_allow(caplog: pytest.LogCaptureFixture) -> None:
    grid = InProcessGrid(app_of(), num_nodes=12)
    caplog.set_level(logging.INFO, logger="flwr")
    found = grids_by_level(grid, (4.0, 1.0, 4.0))
    first = grid.get_node_ids()[0]
    places = {level: sorted(n - first for n in each.get_node_ids()) for level, each in found.items()}
    assert places == {1.0: [1, 4, 7, 10], 4.0: [2, 5, 8, 11]}
    assert "4 at local_epsilon=1, 4 at local_epsilon=4; 4 nodes take none" in caplog.text
    assert {node.node_id for node in found[1.0].get_nodes()} == found[1.0].members
    app_limits = ClientLimits(max_local_epsilon=1.5, max_rounds=3)  # the stricter of both holds
    again = grids_by_level(InProcessGrid(app_of(limits=app_limits), num_nodes=12), LEVELS)
    assert [len(each.get_node_ids()) for each in again.values()] == [8, 0]
    for refused in ((), (0.0,), (1.0, -1.0)):
        with pytest.raises(ValueError, match="level"):
            grids_by_level(grid, refused)
    with pytest.raises(ValueError, match="plain grid"):
        GroupGrid(ShuffleGrid(grid, stage=strategy_of(1.0).settings.stage), members=[1])


def test_groups_are_trained_by_turns_and_each_is_charged_for_itself() -> None:
    trained.clear()
    grids = grids_by_level(InProcessGrid(app_of(), num_nodes=12), LEVELS)
    strategies = {level: strategy_of(level) for level in LEVELS}
    arrays = MODEL
    for _ in range(2):
        for level, own in grids.items():
            arrays = strategies[level].start(own, arrays, num_rounds=1, timeout=30).arrays
    assert not np.allclose(arrays["w"].numpy(), 0.0)
    assert {most: sorted(set(places)) for most, places in trained.items()} == {
        2.0: [1, 4, 7, 10],
        6.0: [2, 5, 8, 11],
    }
    for level, strategy in strategies.items():
        alone = ShuffleAccountant()
        mechanism = registry.get("linf-coordinate", local_epsilon=level, dim=3)
        alone.step(mechanism.round(population=4, cohort=4, sampling="full"), num_steps=2)
        found = strategy.accountant.epsilon(1e-2, adversary=Adversary.MODEL_OBSERVER)
        assert found.upper == pytest.approx(alone.epsilon(1e-2).upper, rel=1e-6)
        assert f"local_epsilon={level:g}" in str(strategy.statement())


def test_each_group_has_a_ledger_of_its_own(tmp_path: Any) -> None:
    grids = grids_by_level(InProcessGrid(app_of(), num_nodes=12), LEVELS)
    arrays = MODEL
    for level, own in grids.items():  # one after the other
        ledger = BudgetLedger(tmp_path / "budget.db", model=f"level {level:g}")
        arrays = strategy_of(level, ledger=ledger).start(own, arrays, num_rounds=2, timeout=30).arrays
    spent = [
        BudgetLedger(tmp_path / "budget.db", model=f"level {level:g}").accountant().num_rounds
        for level in LEVELS
    ]
    assert spent == [2, 2]


def test_what_is_no_offer_is_refused_and_clients_without_limits_take_nothing() -> None:
    grid = InProcessGrid(app_of(), num_nodes=1)
    node = grid.get_node_ids()[0]
    for record in (ConfigRecord({"levels": ["1.0"]}), ConfigRecord(), MetricRecord({"levels": [1.0]})):
        (reply,) = grid.send_and_receive([Message(RecordDict({LEVELS_KEY: record}), node, "train")])
        assert reply.error.reason == str(ClientRefusal.BAD_INSTRUCTION)
    unlimited = InProcessGrid(app_of(node_config=None), num_nodes=3)
    assert all(not each.get_node_ids() for each in grids_by_level(unlimited, LEVELS).values())
