"""A package that nobody knows adds a mechanism through its entry point, as the page on extending says."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.mechanisms import registry

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def blocks():
    """The page's code, in order, by language."""
    found = BLOCK.findall((ROOT / "docs" / "guides" / "extending.md").read_text())
    return {language: [code for kind, code in found if kind == language] for language in ("python", "toml")}


@pytest.fixture(scope="module")
def installed(blocks, tmp_path_factory):
    """A folder with the page's package, as an installer would leave it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "my_mechanisms.py").write_text(blocks["python"][0])
    project = tomllib.loads(blocks["toml"][0])["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def package(installed, monkeypatch):
    """The package on the path, and the registry as it was before."""
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    importlib.invalidate_caches()
    yield "l1-vertex"
    sys.modules.pop("my_mechanisms", None)


def test_it_is_available_by_name(package, blocks):
    scope = {}
    exec(blocks["python"][1], scope)
    assert scope["mechanism"].name == package
    assert registry.summary(package) == "from my-mechanisms"
    assert registry.blanket(package, local_epsilon=4.0, dim=20).local_epsilon == 4.0


def test_it_conforms(package, blocks, capsys):
    scope = {}
    exec(blocks["python"][3], scope)
    assert capsys.readouterr().out.startswith("l1-vertex: conforms")
    measured = [dict(result.measured) for result in scope["report"].of("keeps local epsilon")]
    assert len(measured) == 9
    spent = {one["declared"]: one["spent"] for one in measured}
    assert spent[1e-4] == pytest.approx(1e-4, rel=1e-6)
    assert spent[1.5] == pytest.approx(1.5, rel=1e-9)


@pytest.mark.slow
def test_its_tests_pass_in_a_process_of_their_own(installed, blocks, tmp_path):
    (tmp_path / "test_mine.py").write_text(blocks["python"][4].replace("(1, 2, 7, 20)", "(3,)"))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert re.search(r"\d+ passed", run.stdout)


@pytest.mark.slow
def test_opacus_trains_with_it_by_name(package, blocks):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    scope = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": DataLoader(TensorDataset(torch.randn(40, 4), torch.arange(40) % 2), batch_size=8),
    }
    before = model.weight.detach().clone()
    exec(blocks["python"][2], scope)
    for x, y in scope["loader"]:
        scope["optimizer"].zero_grad()
        nn.functional.cross_entropy(scope["model"](x), y).backward()
        scope["optimizer"].step()
    assert scope["optimizer"].mechanism.name == package
    assert not torch.equal(model.weight, before)
    assert bool(model.weight.isfinite().all())
