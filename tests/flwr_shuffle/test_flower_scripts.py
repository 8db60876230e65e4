"""Flower's own quickstart apps train privately after five changed lines, which are the README's, and one of
queries answers privately after six, which are its page's.

Flower 1.24 wrote the first by ``flwr new``, from templates that are in its package. That is fetched for the
test. The other is rebuilt in ``quickstart_pandas``.
"""

from __future__ import annotations

import importlib
import math
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from string import Template

import numpy as np
import pytest

pytest.importorskip("ray")

from changed_scripts import MOST, STAND_INS, Change, changed, changed_lines, lines_of_pages
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import Counts, InProcessGrid, MechanismSpec, QueryGrid
from processes import Deployment, wait_for
from thinning import first_fast

from shuffle_plugins.accounting import Adversary, FederatedAccountant, FederatedRound
from shuffle_plugins.ledger import BudgetLedger, RoundState

ROOT = Path(__file__).parents[2]
FLOWER = "flwr==1.24.0"
FRAMEWORKS = {"numpy": "NumPy", "pytorch": "PyTorch"}
CLIENTS, COHORT, ROUNDS, LOCAL_EPSILON, DELTA = 1000, 100, 3, 4.0, 1e-5

CLIENT_IMPORT = "from flwr_shuffle import ClientLimits, ShuffleMod"
SERVER_IMPORT = "from flwr_shuffle import FixedSize, ShuffleStrategy"
MOD = "ShuffleMod(limits=ClientLimits(max_local_epsilon=4.0, max_rounds=100))"
STRATEGY = """strategy = ShuffleStrategy(FedAvg(fraction_train=1.0), randomizer="privunit", local_epsilon=4.0,
    clipping_norm=1.0, sampling=FixedSize(100), population=1000, delta=1e-5, ledger="budget.db")"""
INNER = {"numpy": "strategy = FedAvg()", "pytorch": "strategy = FedAvg(fraction_train=fraction_train)"}


def changes(kind: str) -> dict[str, list[Change]]:
    """By file of an app, which lines change."""
    client, server = "from flwr.clientapp import ClientApp", "from flwr.serverapp.strategy import FedAvg"
    return {
        "client_app": [
            (client, f"{client}\n{CLIENT_IMPORT}"),
            ("app = ClientApp()", f"app = ClientApp(mods=[{MOD}])"),
        ],
        "server_app": [(server, f"{server}\n{SERVER_IMPORT}"), (INNER[kind], STRATEGY)],
    }


def test_the_lines_are_those_of_the_readme() -> None:
    """But for white space, the marks of a difference, and commas before brackets."""
    said = "".join((ROOT / "README.md").read_text().split())
    said = said.replace("+", "").replace(",)", ")")
    for line in (STRATEGY, f"app = ClientApp(mods=[{MOD}])", CLIENT_IMPORT, SERVER_IMPORT):
        assert "".join(line.split()) in said


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    folder = tmp_path_factory.mktemp("flower")
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), FLOWER]
    done = subprocess.run(fetch, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot fetch {FLOWER}: {done.stderr.strip()[-300:]}")
    (wheel,) = folder.glob("*.whl")
    return zipfile.Path(wheel, "flwr/cli/new/templates/app/")


def write_app(kind: str, templates: zipfile.Path, folder: Path, *, private: bool = True) -> Path:
    """What ``flwr new`` wrote, with changed lines."""
    app, package = folder / f"quickstart-{kind}", f"quickstart_{kind}"
    (app / package).mkdir(parents=True)
    names = {
        "framework_str": FRAMEWORKS[kind],
        "import_name": package,
        "package_name": app.name,
        "project_name": app.name,
        "username": "somebody",
    }
    files = {
        "pyproject.toml": f"pyproject.{kind}.toml.tpl",
        f"{package}/__init__.py": "code/__init__.py.tpl",
        f"{package}/task.py": f"code/task.{kind}.py.tpl",
        f"{package}/client_app.py": f"code/client.{kind}.py.tpl",
        f"{package}/server_app.py": f"code/server.{kind}.py.tpl",
    }
    number = 0
    for file, template in files.items():
        before = Template((templates / template).read_text()).substitute(names)
        after = changed(before, changes(kind).get(Path(file).stem, []) if private else [])
        number += changed_lines(before, after)
        (app / file).write_text(after)
    assert number <= MOST
    return app


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The SuperLink of simulations, which ``flwr run`` would start itself and wait for 15 seconds only."""
    programs = ("flower-superexec", "flower-superlink", "flwr", "flwr-simulation")
    folder = tmp_path_factory.mktemp("simulation")
    with Deployment(folder, programs=programs) as deployment:
        command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
        command += ["--host", "127.0.0.1", "--port", str(deployment.port)]
        superlink = deployment.start("superlink", command)
        ready = f"running on http://127.0.0.1:{deployment.port}"
        wait_for(lambda: ready in superlink.text(), seconds=600, what="SuperLink")
        yield deployment


def flwr_run(app: Path, simulation: Deployment, *, clients: int, again: Path | None = None) -> str:
    """The log of ``flwr run``; the file ``again`` is removed where Ray did not start in its 30 seconds."""
    for attempt in range(10):
        home = simulation.folder / f"{app.name}-{attempt}"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink.test]\naddress = "127.0.0.1:{simulation.port}"\ninsecure = true\n'
        )
        command = ["flwr", "run", ".", "test", "--stream", "--federation-config", f"num-supernodes={clients}"]
        program = simulation.start(home.name, command, cwd=app)
        assert program.wait(seconds=3000) == 0, program.text()[-6000:]
        if "timed out during startup" not in program.text():
            break
        if again is not None:
            again.unlink(missing_ok=True)
    return program.text()


@pytest.mark.process
def test_quickstart_numpy_averages_its_updates(templates: zipfile.Path, simulation: Deployment) -> None:
    """The parameter starts at 1; in a round every client adds a uniform number, of variance 1/12."""
    app = write_app("numpy", templates, simulation.folder)
    ledger = simulation.folder / "superlink" / "budget.db"
    log = flwr_run(app, simulation, clients=CLIENTS, again=ledger)
    mechanism = MechanismSpec(name="privunit", local_epsilon=LOCAL_EPSILON, radius=1.0).build(dim=1)
    each = FederatedRound.drawn(mechanism, candidates=CLIENTS, invited=COHORT, reports=COHORT)
    expected = FederatedAccountant()
    told = re.findall(rf"{COHORT} reports; ε ≤ ([\d.]+) against an observer", log)
    assert len(told) == ROUNDS, log[-6000:]
    for epsilon in told:
        expected.step(each, participants=None)
        bound = expected.epsilon(DELTA, adversary=Adversary.MODEL_OBSERVER, lower=False).upper
        assert float(epsilon) == pytest.approx(bound, rel=1e-3)
    with BudgetLedger(ledger, model="model") as budget:
        assert [entry.state for entry in budget.rounds()] == [RoundState.COMPLETE] * ROUNDS
    assert "Training failed" not in log  # by a client: the server would be sent zeros
    assert "random_metric" not in log  # metrics of the clients stay with them
    (parameter,) = np.load(ledger.parent / "final_model.npz")["arr_0"].ravel()
    deviation = math.sqrt(ROUNDS * (mechanism.worst_variance + 1 / 12) / COHORT)
    assert abs(parameter - 1 - ROUNDS / 2) < 6 * deviation
    assert parameter > 1.5


@pytest.mark.process
def test_the_same_lines_fit_quickstart_pytorch(templates: zipfile.Path, tmp_path: Path) -> None:
    app = write_app("pytorch", templates, tmp_path)
    for file in app.rglob("*.py"):
        compile(file.read_text(), str(file), "exec")


@pytest.mark.process
def test_the_apps_are_plain_flower_before_they_are_changed(
    templates: zipfile.Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = write_app("numpy", templates, tmp_path, private=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(app)
    config = {"num-server-rounds": 1}
    client, server = (
        importlib.import_module(f"quickstart_numpy.{name}_app") for name in ("client", "server")
    )
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    server.app(grid=InProcessGrid(client.app, num_nodes=10, run_config=config), context=context)
    assert "random_metric" in caplog.text
    assert "against an observer" not in caplog.text


QUERIES_APP = Path(__file__).parent / "quickstart_pandas"
PLANTS = 150  # a client each
COLUMNS = ("SepalLengthCm", "SepalWidthCm")
QUERY_CHANGES: dict[str, list[Change]] = {
    "client_app": [
        ("from flwr.clientapp import ClientApp", f"from flwr.clientapp import ClientApp\n{CLIENT_IMPORT}"),
        (
            "app = ClientApp()",
            'limits = ClientLimits(max_local_epsilon=float("inf"), max_epsilon=3, delta=1e-5, max_rounds=3)\n'
            "app = ClientApp(mods=[ShuffleMod(limits=limits)])",
        ),
    ],
    "server_app": [
        (
            "from flwr.serverapp import Grid, ServerApp",
            "from flwr.serverapp import Grid, ServerApp\nfrom flwr_shuffle import Counts, QueryGrid",
        ),
        (
            'num_rounds = context.run_config["num-server-rounds"]',
            'num_rounds = context.run_config["num-server-rounds"]\n'
            'grid = QueryGrid(grid, {"SepalLengthCm": Counts(9), "SepalWidthCm": Counts(9)}, cohort=150, '
            "epsilon=1, delta=1e-5)",
        ),
        ("assert total_count == sum(counts.sum() for counts in histograms.values())", ""),
    ],
}


def write_queries(folder: Path, *, private: bool = True) -> Path:
    """The app of queries, with changed lines."""
    app, number = folder / QUERIES_APP.name, 0
    for file in [each for each in QUERIES_APP.rglob("*") if each.suffix in (".py", ".toml")]:
        before = file.read_text()
        after = changed(before, QUERY_CHANGES.get(file.stem, []) if private else [])
        number += changed_lines(before, after)
        written = app / file.relative_to(QUERIES_APP)
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(after)
    assert number == 6 * private
    shutil.copytree(STAND_INS / "flwr_datasets", app / "flwr_datasets")
    return app


def test_the_lines_of_queries_are_those_of_the_page() -> None:
    said = lines_of_pages("docs/guides/queries.md")
    lines = [line for each in QUERY_CHANGES.values() for _, new in each for line in new.splitlines()]
    assert set(lines) <= said


def check_histograms(log: str, *, private: bool) -> None:
    """Of each round the exact counts, or with noise of the deviation that a query says it has."""
    whole = r"'(\w+)': array\(\[(.*?)\]"
    rounds = re.findall(r"Aggregated histogram: ({.*?})", log, re.DOTALL)
    assert len(rounds) == ROUNDS, log[-6000:]
    edges = np.linspace(2.0, 10.0, 10)
    flowers = runpy.run_path(str(STAND_INS / "flwr_datasets/__init__.py"))["flowers"]()
    exact = {name: np.histogram(flowers[name], edges)[0] for name in COLUMNS}
    errors = []
    for told in rounds:
        found = {
            name: np.array(numbers.split(","), float) for name, numbers in re.findall(whole, told, re.DOTALL)
        }
        errors.append(np.concatenate([found[name] - exact[name] for name in COLUMNS]))
    assert np.any(errors) == private
    if private:
        asked = {name: Counts(9) for name in COLUMNS}
        grid = QueryGrid(InProcessGrid(ClientApp(), num_nodes=2), asked, cohort=PLANTS, epsilon=1, delta=1e-5)
        mechanism = grid.settings.mechanism.build(dim=18)
        stated = math.sqrt(mechanism.worst_variance / mechanism.dim)
        assert 0.4 < math.sqrt(np.mean(np.square(errors))) / stated < 2.5
        assert log.count(f"{PLANTS} reports; ε ≤") == ROUNDS


@first_fast("private", [False, True])
def test_quickstart_pandas_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, private: bool
) -> None:
    app = write_queries(tmp_path, private=private)
    monkeypatch.syspath_prepend(app)
    for name in [each for each in sys.modules if each.startswith(("pandas_example", "flwr_datasets"))]:
        monkeypatch.delitem(sys.modules, name)
    client, server = (importlib.import_module(f"pandas_example.{name}_app") for name in ("client", "server"))
    config = {"num-server-rounds": ROUNDS, "fraction-sample": 1.0}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    server.app(grid=InProcessGrid(client.app, num_nodes=PLANTS, run_config=config), context=context)
    check_histograms(caplog.text, private=private)
    assert f"Received {1 if private else PLANTS}/{PLANTS} results" in caplog.text


@pytest.mark.process
def test_quickstart_pandas_by_flwr_run(simulation: Deployment) -> None:
    app = write_queries(simulation.folder)
    log = flwr_run(app, simulation, clients=PLANTS)
    check_histograms(log, private=True)
    assert "answered with an error" not in log
