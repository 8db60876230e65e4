"""Flower's quickstart apps, rebuilt in ``flower_apps``, train privately after at most five changed lines."""

from __future__ import annotations

import difflib
import importlib
import re
import shutil
import sys
from pathlib import Path

import joblib
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr_shuffle import InProcessGrid

import shuffle_plugins as sp

APPS = Path(__file__).parent / "flower_apps"
CLIENTS = 20

IMPORT_CLIENT = "from flwr.clientapp import ClientApp\n"
IMPORT_SERVER = "from flwr.serverapp.strategy import FedAvg\n"
CONFIG = {
    "pytorchexample": {
        "num-server-rounds": 2,
        "fraction-evaluate": 0.5,
        "local-epochs": 1,
        "learning-rate": 0.1,
        "batch-size": 32,
    },
    "sklearnexample": {"num-server-rounds": 3},
}
STRATEGY = {
    "pytorchexample": "FedAvg(fraction_evaluate=fraction_evaluate)",
    "sklearnexample": "FedAvg(fraction_train=1.0, fraction_evaluate=1.0)",
}
DIM = {"pytorchexample": 62_006, "sklearnexample": 15}
LIMITS = "limits=ClientLimits(max_local_epsilon={0}, max_rounds=100)"
REST = f"clipping_norm=1.0, sampling=FixedSize({CLIENTS}), population={CLIENTS}, delta=1e-3)"


def local_changes(name: str) -> dict[str, list[tuple[str, str]]]:
    """One report of each client, as the README has it; lines of a file before and after."""
    wrapped = f'ShuffleStrategy({STRATEGY[name]}, randomizer="privunit", local_epsilon=4.0, {REST}'
    return {
        "client_app.py": [
            (IMPORT_CLIENT, f"{IMPORT_CLIENT}from flwr_shuffle import ClientLimits, ShuffleMod\n"),
            ("app = ClientApp()", f"app = ClientApp(mods=[ShuffleMod({LIMITS.format('4.0')})])"),
        ],
        "server_app.py": [
            (IMPORT_SERVER, f"{IMPORT_SERVER}from flwr_shuffle import FixedSize, ShuffleStrategy\n"),
            (f"strategy = {STRATEGY[name]}", f"strategy = {wrapped}"),
        ],
    }


def sum_changes(name: str) -> dict[str, list[tuple[str, str]]]:
    """A sum of many messages, with noise for ε = 4 in all rounds."""
    changes = local_changes(name)
    calibrated = (
        f"VectorSum.calibrated(dim={DIM[name]}, radius=1.0, cohort={CLIENTS}, population={CLIENTS}, "
        "epsilon=4.0, delta=1e-3, num_steps=num_rounds)"
    )
    (client_import, (app, _)), (server_import, (strategy, wrapped)) = changes.values()
    imports = f"{server_import[1]}from shuffle_plugins.protocols import VectorSum\n"
    given = wrapped.replace(
        'randomizer="privunit", local_epsilon=4.0, clipping_norm=1.0', f"randomizer={calibrated}"
    )
    limits = LIMITS.format("float('inf')")
    return {
        "client_app.py": [client_import, (app, f"app = ClientApp(mods=[ShuffleMod({limits})])")],
        "server_app.py": [(IMPORT_SERVER, imports), (strategy, given)],
    }


def changed_lines(before: str, after: str) -> int:
    """Lines that are new or other than before."""
    return sum(line.startswith("+ ") for line in difflib.ndiff(before.splitlines(), after.splitlines()))


def run(
    name: str, changes: dict[str, list[tuple[str, str]]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> InProcessGrid:
    """Change lines of an app, and run its server and all of its clients in ``folder``."""
    shutil.copytree(APPS / name, folder / name)
    changed = 0
    for file, pairs in changes.items():
        before = after = (folder / name / file).read_text()
        for old, new in pairs:
            assert after.count(old) == 1, f"{old!r} is not once in {file}"
            after = after.replace(old, new)
        (folder / name / file).write_text(after)
        changed += changed_lines(before, after)
    assert changed <= 5
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    client = importlib.import_module(f"{name}.client_app")
    server = importlib.import_module(f"{name}.server_app")
    grid = InProcessGrid(client.app, num_nodes=CLIENTS, run_config=CONFIG[name])
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=CONFIG[name])
    server.app(grid=grid, context=context)
    return grid


def test_lines_are_counted() -> None:
    before = "a\nb\nc\n"
    assert changed_lines(before, before) == 0
    assert changed_lines(before, "a\nB\nc\nd\n") == 2


def printed_epsilon(text: str) -> list[float]:
    """ε against an observer after every round, as the log says."""
    return [float(each) for each in re.findall(r"ε ≤ ([\d.e+-]+) against an observer", text)]


@pytest.mark.slow
def test_quickstart_sklearn_with_one_report_per_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The ε that is printed is that of three rounds of all clients, computed here from their description."""
    run("sklearnexample", local_changes("sklearnexample"), tmp_path, monkeypatch)
    mechanism = sp.get("privunit", local_epsilon=4.0, dim=DIM["sklearnexample"])
    accountant = sp.ShuffleAccountant()
    accountant.step(mechanism.round(population=CLIENTS, cohort=CLIENTS, sampling="full"), num_steps=3)
    printed = printed_epsilon(caplog.text)
    assert len(printed) == 3
    assert printed[-1] == pytest.approx(accountant.epsilon(1e-3).upper, rel=1e-3)
    model = joblib.load(tmp_path / "logreg_model.pkl")
    assert model.coef_.any()


@pytest.mark.slow
def test_quickstart_pytorch_with_a_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run("pytorchexample", sum_changes("pytorchexample"), tmp_path, monkeypatch)
    first, second = printed_epsilon(caplog.text)
    assert first < second <= 4.0
    assert second > 3.9
    assert "noise more than by training" in caplog.text  # for this network twenty clients are far too few
    model = torch.load(tmp_path / "final_model.pt")
    assert sum(values.numel() for values in model.values()) == DIM["pytorchexample"]


@pytest.mark.slow
def test_the_apps_are_plain_flower_before_they_are_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run("sklearnexample", {}, tmp_path, monkeypatch)
    assert "accuracy" in caplog.text
    assert printed_epsilon(caplog.text) == []
