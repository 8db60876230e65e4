"""The Flower app of DP-AdaPeD: what its clients keep, what leaves them, and how it goes on after a kill."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from example_scripts import example_script
from flwr.app import Context, RecordDict
from recorded_grid import RecordedGrid, app_modules, contents

FOLDER = Path(__file__).parents[2] / "examples" / "flower-adaped"
CLIENTS = 6


@pytest.fixture(scope="module")
def apps() -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    with app_modules(FOLDER, "flower_adaped") as found:
        yield found


@pytest.fixture
def config() -> dict[str, Any]:
    written = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return written | {"population": CLIENTS, "num-server-rounds": 2, "local-steps": 3}


def grid_of(apps, config, **kwargs) -> RecordedGrid:
    return RecordedGrid(apps[0].app, num_nodes=CLIENTS, run_config=config, **kwargs)


def serve(apps, grid, config) -> None:
    apps[1].app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))


def kept(apps, grid) -> list[dict[str, torch.Tensor]]:
    return [apps[0].personal_model(grid.context(node)) for node in grid.get_node_ids()]


def test_clients_learn_models_of_their_own_and_epsilon_is_kept(apps, config, capsys):
    grid = grid_of(apps, config)
    serve(apps, grid, config)
    models = kept(apps, grid)
    for model in models[1:]:
        assert not torch.equal(model["0.weight"], models[0]["0.weight"])
    lines = capsys.readouterr().out.splitlines()
    (last,) = [line for line in lines if line.startswith("round 2: global model")]
    assert float(last.split("1e-03: " if "1e-03" in last else "0.001: ")[1].split()[0]) <= config["epsilon"]
    assert any(line.startswith("round 2: mean accuracy of the clients' own models") for line in lines)


def test_only_reports_of_the_global_model_and_psi_leave_a_client(apps, config):
    config |= {"evaluation": "none"}
    grid = grid_of(apps, config)
    serve(apps, grid, config)
    trained = [reply for reply in grid.replies if reply.metadata.message_type.startswith("train")]
    assert len(trained) == 2 * CLIENTS
    assert len({len(contents(reply.content)) for reply in trained}) == 1  # nothing varies with the data
    for reply in trained:
        assert not reply.content.array_records
        assert not reply.content.metric_records
    sent = b"".join(contents(message.content) for message in [*grid.sent, *grid.replies])
    start = apps[2].initial(config)
    assert start["2.bias"].numpy().tobytes() in sent  # so what is searched below would be found
    for model in kept(apps, grid):
        for name, value in model.items():
            trained_entries = (value != start[name]).reshape(
                -1
            )  # weights of pixels that are always blank stay
            for place in range(0, value.numel() - 3, 4):
                if trained_entries[place : place + 4].all():
                    assert value.reshape(-1)[place : place + 4].numpy().tobytes() not in sent
    [asked] = {tuple(m.content["arrays"]) for m in grid.sent if "arrays" in m.content}
    assert asked == ("0.weight", "0.bias", "2.weight", "2.bias", "dissimilarity")


@pytest.mark.slow
def test_a_killed_server_goes_on_with_the_clients_models(apps, config, tmp_path):
    config |= {"ledger-file": str(tmp_path / "budget.db"), "evaluation": "none", "num-server-rounds": 3}
    grid = grid_of(apps, config)
    methods = {name: getattr(grid, name) for name in ("send_and_receive", "push_messages")}
    rounds: list[int] = []

    def killed(method):
        def call(*given, **how):
            rounds.append(len(rounds))
            if len(rounds) == 2:
                raise KeyboardInterrupt
            return method(*given, **how)

        return call

    for name, method in methods.items():
        setattr(grid, name, killed(method))
    with pytest.raises(KeyboardInterrupt):
        serve(apps, grid, config)
    between = kept(apps, grid)
    assert all(model is not None for model in between)
    for name, method in methods.items():
        setattr(grid, name, method)
    seen: list[dict[str, torch.Tensor] | None] = []
    original = apps[0].personal_model

    def watched(context):
        seen.append(original(context))
        return seen[-1]

    apps[0].personal_model = watched
    try:
        serve(apps, grid, config)
    finally:
        apps[0].personal_model = original
    firsts = [model for model in seen[:CLIENTS] if model is not None]
    assert len(firsts) == CLIENTS  # no client began anew
    assert {model["0.bias"].sum().item() for model in firsts} == {m["0.bias"].sum().item() for m in between}


def test_no_server_says_where_a_node_with_limits_writes(apps, config, tmp_path):
    config |= {"personal-models": str(tmp_path / "models")}
    own = tmp_path / "own.npz"
    limits = {"shuffle-ledger-file": "client.db", "personal-model-file": str(own)}
    grid = grid_of(apps, config, node_config=limits)
    context = grid.context(grid.get_node_ids()[0])
    apps[0].keep(context, {"w": torch.ones(2)})
    assert own.exists()
    del context.node_config["personal-model-file"]
    apps[0].keep(context, {"w": torch.ones(2)})
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("randomizer", ["vector-sum", "privunit"])
def test_any_registered_randomizer_or_sum_will_do(apps, config, randomizer):
    config |= {"randomizer": randomizer, "evaluation": "private" if randomizer == "privunit" else "none"}
    config |= {"epsilon": 50.0 if randomizer == "privunit" else 8.0, "num-server-rounds": 1}
    grid = grid_of(apps, config)
    serve(apps, grid, config)
    assert len(kept(apps, grid)) == CLIENTS
    assert not any(reply.has_error() for reply in grid.replies)


def test_no_server_destroys_a_personal_model(apps, config):
    """With a global model that is not finite; nor does training that diverges: the one of before is kept."""
    config |= {"evaluation": "none"}
    grid = grid_of(apps, config)
    serve(apps, grid, config)
    before = kept(apps, grid)
    context = grid.context(grid.get_node_ids()[0])
    arrays = {name: value * float("nan") for name, value in apps[2].initial(config).items()}
    with pytest.raises(ValueError, match="is not finite"):
        apps[2].method(config).received(arrays, personal_model=apps[0].personal_model(context))
    with pytest.raises(ValueError, match="no finite personal model"):
        apps[0].keep(context, {name: value * float("inf") for name, value in before[0].items()})
    after = apps[0].personal_model(context)
    assert all(torch.equal(value, before[0][name]) for name, value in after.items())


def test_the_page_shows_the_table_of_the_committed_results():
    page = (FOLDER.parents[1] / "docs" / "reference" / "benchmarks.md").read_text()
    with example_script("adaped_mnist") as measured:
        assert measured.table(json.loads(measured.RESULTS.read_text())) in page
