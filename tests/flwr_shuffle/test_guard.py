"""A SuperNode that runs no app without ``ShuffleMod`` first, and none that its operator has not reviewed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import flwr_shuffle.guard
from flwr.app import Context, Message
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.clientapp.typing import ClientAppCallable
from flwr_shuffle import ShuffleMod
from flwr_shuffle.guard import REVIEWED_APPS, check_reviewed, guarded
from flwr_shuffle.messages import ClientRefusal
from processes import Deployment

run_clientapp = import_module("flwr.supernode.runtime.run_clientapp")
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-mnist"


def other_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    return call_next(message, context)


def test_the_mod_is_the_first() -> None:
    app = ClientApp(mods=[ShuffleMod(), other_mod])
    assert guarded(app) is app
    for mods in (None, [], [other_mod], [other_mod, ShuffleMod()]):
        with pytest.raises(LoadClientAppError, match="whose first mod is not ShuffleMod"):
            guarded(ClientApp(mods=mods))


def test_a_list_of_reviewed_apps_is_all_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_reviewed(b"any")
    listed = tmp_path / "reviewed"
    monkeypatch.setenv(REVIEWED_APPS, str(listed))
    with pytest.raises(LoadClientAppError, match="cannot be read"):
        check_reviewed(b"known")
    listed.write_text(f"# of the board\n\n{hashlib.sha256(b'known').hexdigest()}  # digits 1.0\n")
    check_reviewed(b"known")
    with pytest.raises(LoadClientAppError, match="it was not run"):
        check_reviewed(b"any")


def test_no_folder_but_the_unpacked_one_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that names one by ``..`` in an app's version is refused, with the true hash too."""
    for name in ("install_from_fab", "get_project_dir", "get_load_client_app_fn"):
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))
    fab = build_fab_from_disk(EXAMPLE)
    found = hashlib.sha256(fab).hexdigest()
    old = run_clientapp.install_from_fab(fab, tmp_path)
    (tmp_path / "reviewed").write_text(found)

    def run() -> None:
        new = run_clientapp.install_from_fab(fab, skip_prompt=True)
        publisher, app, version = new.name.rsplit(".", 1)[0].split(".", 2)
        assert run_clientapp.get_project_dir(f"{publisher}/{app}", version, found) == new != old
        outside = f"/../..{old}".rsplit(".", 1)[0]
        with pytest.raises(LoadClientAppError, match="it was not run"):
            run_clientapp.get_project_dir("/", outside, found)

    monkeypatch.setattr(flwr_shuffle.guard, "flwr_clientapp", run)
    monkeypatch.setattr(sys, "argv", ["guard.py"])
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv(REVIEWED_APPS, str(tmp_path / "reviewed"))
    flwr_shuffle.guard.guarded_program()


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="the page's commands are of a POSIX shell")
def test_the_pages_commands_make_the_program_and_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (EXAMPLE.parents[1] / "docs" / "guides" / "shuffling.md").read_text()
    [commands] = re.findall(r"```sh\n(mkdir guard\n.*?)SHUFFLE_REVIEWED_APPS=", page, flags=re.DOTALL)
    app = shutil.copytree(EXAMPLE, tmp_path / "app")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["bash", "-ec", commands], cwd=app, env=os.environ | {"PATH": path}, check=True)
    monkeypatch.setenv(REVIEWED_APPS, str(app / "reviewed.txt"))
    check_reviewed(next(app.glob("*.fab")).read_bytes())
    asked = [app / "guard" / "flwr-clientapp", "--help"]
    told = subprocess.run(asked, env=os.environ | {"PATH": path}, check=True, capture_output=True, text=True)
    assert "Run a Flower ClientApp" in told.stdout


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A SuperLink, and two SuperNodes with the guard before Flower's program on their path."""
    reviewed = tmp_path / "reviewed"
    variables = {REVIEWED_APPS: str(reviewed), "TESTED_APP_FOLDER": str(tmp_path)}
    with Deployment(tmp_path / "deployment", variables=variables) as deployment:
        program = deployment.folder / "bin" / "flwr-clientapp"
        shim = program.read_text()
        program.write_text(shim.replace("sys.argv", f"[{flwr_shuffle.guard.__file__!r}, *sys.argv[1:]]"))
        deployment.start_superlink()
        for place in range(2):
            config = {
                "partition-id": place,
                "num-partitions": 2,
                "shuffle-max-local-epsilon": 3.0,
                "shuffle-max-rounds": 9,
                "shuffle-ledger-file": str(tmp_path / f"{place}.db"),
            }
            deployment.start_supernode(f"client-{place}", node_config=config)
        yield deployment


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_supernodes_train_by_reviewed_apps_and_within_their_operators_limits_alone(
    deployment: Deployment, tmp_path: Path
) -> None:
    def text_of(name: str, *, reviewed: bytes) -> str:
        (tmp_path / "reviewed").write_text(hashlib.sha256(reviewed).hexdigest())
        config = {"population": 3, "cohort": 3, "minimum-reports": 2, "num-server-rounds": 1}
        run = deployment.start_run(EXAMPLE, name=name, run_config=config)
        run.wait(seconds=600)
        return run.text()

    # What the app agrees to for simulated clients does not replace what an operator left out.
    deployment.start_supernode("open", node_config={"partition-id": 0, "num-partitions": 2})
    log = deployment.folder / "client-0" / "log"
    assert "2 reports; ε" not in text_of("unread", reviewed=b"another")
    assert "it was not run" in log.read_text()
    told = text_of("private", reviewed=build_fab_from_disk(EXAMPLE))
    assert f"1: {ClientRefusal.NO_LIMITS}" in told, told
    assert "2 reports; ε" in told
