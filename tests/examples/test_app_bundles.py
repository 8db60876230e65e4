"""``flwr build`` of the example apps, as people publish them: the strict format, with licence and README."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")))
def test_flwr_builds_the_app_in_the_strict_format(name: str, tmp_path: Path) -> None:
    app = tmp_path / name
    shutil.copytree(EXAMPLES / name, app, ignore=shutil.ignore_patterns("__pycache__", "*.fab"))
    ran = subprocess.run(
        [Path(sys.executable).with_name("flwr"), "build"],
        cwd=app,
        env=os.environ | {"FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (bundle,) = app.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
        settings = tomllib.loads(archive.read("pyproject.toml").decode())["tool"]["flwr"]["app"]
    assert settings["fab-format-version"] == 1
    package = name.replace("-", "_")
    assert {"LICENSE", "README.md", f"{package}/client_app.py", f"{package}/server_app.py"} <= names
