"""Aggregators and mix nodes among the nodes of a simulation, which nobody has configured."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    ClientLimits,
    FixedSize,
    InProcessGrid,
    SharedSumStage,
    ShuffleMod,
    ShuffleStrategy,
    SimulatedNodes,
    register_aggregator,
    register_mix_node,
)
from flwr_shuffle.messages import ClientRefusal
from mod_harness import ask, instruction
from sharing_run import DIM, SUM, update_of

from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.shuffler import ShuffleError

CLIENTS = 4
SPEC = MechanismSpec(name="linf-block", local_epsilon=2.0)
REPORTS = ClientLimits(max_local_epsilon=8.0, max_rounds=10)
SUMS = ClientLimits(max_local_epsilon=math.inf, max_rounds=10, max_epsilon=1e4, delta=1e-3)


def context_of(partition: int, *, partitions: int = CLIENTS + 2, **own: Any) -> Context:
    config = {"partition-id": partition, "num-partitions": partitions, **own}
    return Context(5, 2, config, RecordDict(), {})


def trained(message: Message, context: Context) -> Message:
    """Fails if data were divided among all nodes, service nodes included."""
    assert context.node_config["num-partitions"] == CLIENTS
    moved = message.content["arrays"]["w"].numpy() + update_of(int(context.node_config["partition-id"]))
    context.state = RecordDict({**context.state, "seen": ArrayRecord({"w": Array(moved)})})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(moved)})}), reply_to=message)


def simulated(folder: Path, *, allow: tuple[str, ...] = (), **numbers: int) -> InProcessGrid:
    """A grid of six nodes, whose app says which of them are service nodes."""

    def node_config(context: Context) -> dict[str, str | int]:
        return SimulatedNodes(context, folder=folder, **numbers).node_config

    limits = REPORTS if numbers.get("mixers") else SUMS
    app = ClientApp(mods=[ShuffleMod(limits=limits, allow=allow, node_config=node_config)])
    app.train()(trained)
    app.evaluate()(trained)
    register_aggregator(app)
    register_mix_node(app)
    return InProcessGrid(app, num_nodes=CLIENTS + 2, run_id=5)


def test_a_simulation_has_aggregators(tmp_path: Path) -> None:
    grid = simulated(tmp_path, aggregators=2)
    public = SimulatedNodes(Context(5, 0, {}, RecordDict(), {}), aggregators=2, folder=tmp_path)
    stage = SharedSumStage(aggregator_public_keys=public.aggregator_public_keys)
    strategy = ShuffleStrategy(
        FedAvg(fraction_evaluate=0.0),
        randomizer=SUM,
        sampling=FixedSize(CLIENTS),
        population=CLIENTS,
        shuffler=stage,
        delta=1e-3,
    )
    start = ArrayRecord({"w": Array(np.linspace(-1, 1, DIM))})
    result = strategy.start(grid, start, num_rounds=2, timeout=60)
    assert [told["reports"] for told in result.train_metrics_clientapp.values()] == [CLIENTS] * 2
    assert stage.excluded_nodes == set(grid.get_node_ids()[CLIENTS:])
    first = grid.context(grid.get_node_ids()[0])
    assert first.node_config == {"partition-id": 0, "num-partitions": CLIENTS + 2}, "Flower's own entries"
    assert "seen" in first.state, "what the app keeps is lost"


def test_keys_are_made_once_for_all_processes_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default beside other temporary files, readable by their owner alone, one folder for each run."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    configs = [SimulatedNodes(context_of(i), aggregators=1, mixers=1).node_config for i in range(6)]
    again = [SimulatedNodes(context_of(i), aggregators=1, mixers=1).node_config for i in range(6)]
    assert configs == again
    assert [config.get("shuffle-role") for config in configs] == [None] * 4 + ["aggregator", "mixer"]
    assert len({config["shuffle-signing-key-file"] for config in configs[:4]}) == 4
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    server = SimulatedNodes(Context(6, 0, {}, RecordDict(), {}), aggregators=1, mixers=1)
    assert server.aggregator_public_keys[0] != configs[0]["shuffle-aggregator-public-keys"], "another run"
    assert sorted(one.name for one in folder.iterdir()) == ["run-5", "run-6"], "no drafts are left"


def test_a_folder_that_somebody_else_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the user with the number 0 too, who was not checked."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "flwr-shuffle-0").symlink_to(elsewhere)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(ShuffleError, match="another user's"):
        SimulatedNodes(context, aggregators=1)


def test_an_operator_decides_and_not_the_app(tmp_path: Path) -> None:
    """On a node whose node_config has any of our keys the app's function is not even called."""
    grid = simulated(tmp_path, aggregators=2)
    app = grid._client_app
    operated = InProcessGrid(app, num_nodes=6, node_config={"shuffle-max-rounds": 1})
    answer = ask(operated, {"w": np.zeros(DIM)}, instruction(SPEC))
    assert answer.error.reason == ClientRefusal.NO_LEDGER
    assert not any(tmp_path.iterdir())


def test_what_the_app_allows_stays_allowed_with_keys(tmp_path: Path) -> None:
    for allow, refused in (((), True), (("evaluate",), False)):
        grid = simulated(tmp_path, allow=allow, aggregators=2)
        arrays = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(DIM))})})
        (answer,) = grid.send_and_receive([Message(arrays, grid.get_node_ids()[0], "evaluate")])
        assert answer.has_error() == refused


def test_too_few_nodes_and_a_function_that_fails_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ShuffleError, match=r"simulate more nodes \(num-supernodes\)"):
        _ = SimulatedNodes(context_of(0, partitions=3), aggregators=2, folder=tmp_path).node_config
    assert SimulatedNodes(context_of(0, partitions=3), folder=tmp_path).node_config == {}
    grid = simulated(tmp_path, aggregators=5)
    answer = ask(grid, {"w": np.zeros(DIM)}, instruction(SPEC))
    assert answer.error.reason == ClientRefusal.BAD_SETTINGS
    assert "simulate more nodes" in caplog.text
    with pytest.raises(ValueError, match="function of a node's context"):
        ShuffleMod(node_config={"shuffle-role": "aggregator"})  # type: ignore[arg-type]
