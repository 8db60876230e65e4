"""The wheel and the source distribution: what is in them, and that they work away from this repository."""

from __future__ import annotations

import email
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"": "shuffle_plugins", "integrations/": "*_shuffle"}

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, path: tuple[Path, ...] = (), code: int = 0) -> str:
    """Output and errors of a command of Python that sees ``path`` before what is installed."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables["PYTHONPATH"] = os.pathsep.join(map(str, path))
    variables |= {"OMP_NUM_THREADS": "1", "SOURCE_DATE_EPOCH": "1700000000"}
    ran = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, env=variables, capture_output=True, text=True
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, built from this repository."""
    folder = tmp_path_factory.mktemp("source")
    run("-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """The wheel, built from what is in the source distribution and nothing else."""
    with tarfile.open(source) as archive:
        archive.extractall(source.parent, filter="data")
    (unpacked,) = (each for each in source.parent.iterdir() if each.is_dir())
    run("-m", "hatchling", "build", "-t", "wheel", "-d", source.parent, cwd=unpacked)
    (built,) = source.parent.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    run(
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"),
        *("--no-compile", "--target", folder, wheel),
        cwd=folder,
    )
    return folder


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def requirements(metadata: Message, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a plain installation requires, and what that requires, and no more."""
    folder = tmp_path_factory.mktemp("requirements")
    waiting = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        extras = wanted.extras or {""}
        if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if wanted.name in seen:
            continue
        seen.add(wanted.name)
        found = importlib.metadata.distribution(wanted.name)
        waiting += [Requirement(text) for text in found.requires or []]
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(found.locate_file(top))))
    assert {"numpy", "scipy"} <= seen
    assert not seen & {"torch", "numba", "opacus", "flwr"}
    return folder


def test_the_source_distribution_holds_what_is_built_and_nothing_large(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert {"LICENSE", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "README.md", "pyproject.toml"} <= names
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders == {"shuffle_plugins", "integrations"}
    assert source.stat().st_size < 2e6


def test_another_build_elsewhere_and_later_has_the_same_bytes(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    for path in unpacked.rglob("*"):
        os.utime(path, (1.6e9, 1.6e9))
    run("-m", "hatchling", "build", "-d", tmp_path, cwd=unpacked)
    for built in (source, wheel):
        assert (tmp_path / built.name).read_bytes() == built.read_bytes()


def test_an_index_would_take_both(source: Path, wheel: Path, metadata: Message) -> None:
    if importlib.util.find_spec("twine") is None:
        pytest.skip("twine is not installed")
    assert "PASSED" in run("-m", "twine", "check", "--strict", source, wheel, cwd=source.parent)


def test_addresses_are_all_placeholders_or_all_real(metadata: Message) -> None:
    found = [each.partition(", ")[2] for each in metadata.get_all("Project-URL", [])]
    assert len(found) == 5
    assert len({".invalid" in address for address in found}) == 1
    elsewhere = subprocess.run(
        ["git", "grep", "-l", "shuffle-plugins[.]invalid"], cwd=ROOT, capture_output=True, text=True
    )
    assert set(elsewhere.stdout.split()) <= {"pyproject.toml"}


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    there = {
        str(path.relative_to(ROOT / start))
        for start, packages in SOURCES.items()
        for package in (ROOT / start).glob(packages)
        for path in package.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {"flwr_shuffle/py.typed", "opacus_shuffle/py.typed", "shuffle_plugins/py.typed"} <= there
    assert "shuffle_plugins/cli/page/static/page.js" in there
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == there
    assert wheel.stat().st_size < 3e6


def test_the_description_is_the_readme_without_links_into_the_repository(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "## Read on" in text
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("https://")] == []


def test_the_version_is_that_of_the_code(metadata: Message) -> None:
    import shuffle_plugins

    assert metadata["Version"] == shuffle_plugins.__version__


ALONE = """
import sys
import shuffle_plugins as sp
assert sp.__file__.startswith(sys.argv[1]), sp.__file__
accountant = sp.ShuffleAccountant()
clients = sp.ShuffleRound(local_epsilon=1.5, population=60_000, cohort=10_000, channel_fixed=True)
accountant.step(clients, num_steps=1200)
print(accountant.epsilon(1e-5))
assert {"privunit", "vector-sum"} <= set(sp.available())
blanket = sp.mechanisms.registry.blanket("privunit", local_epsilon=1.0, dim=10)
assert "torch" not in sys.modules and "numba" not in sys.modules
try:
    sp.get("privunit", local_epsilon=1.0, dim=10).randomize([[0.0] * 10])
except ModuleNotFoundError as error:
    print(error)
"""

TOGETHER = """
import sys, torch, opacus_shuffle, flwr_shuffle
import shuffle_plugins as sp
from shuffle_plugins.cli.page.server import application
for package in (sp, opacus_shuffle, flwr_shuffle):
    assert package.__file__.startswith(sys.argv[1]), package.__file__
application()  # refuses if its folder of static files is not there
assert len(sp.get("privunit", local_epsilon=2.0, dim=4).randomize(torch.eye(4) / 2)) == 4
model = torch.nn.Linear(4, 2)
data = torch.utils.data.TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
model, optimizer, loader = opacus_shuffle.PrivacyEngine().make_private(
    module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), max_grad_norm=1.0,
    data_loader=torch.utils.data.DataLoader(data, batch_size=4), randomizer="privunit", local_epsilon=2.0,
)
print(flwr_shuffle.ClientLimits(max_local_epsilon=4.0, max_rounds=1))  # loads no Flower, which takes seconds
"""


def test_accounting_works_with_what_a_plain_installation_requires(
    installed: Path, requirements: Path, tmp_path: Path
) -> None:
    path = (installed, requirements)
    printed = run("-S", "-c", ALONE, installed, cwd=tmp_path, path=path)
    assert "ε ∈ [0.384, 0.3845]" in printed
    assert "pip install 'shuffle-plugins[torch]'" in printed


def test_the_command_works_with_what_a_plain_installation_requires(
    installed: Path, requirements: Path, tmp_path: Path
) -> None:
    path, command = (installed, requirements), installed / "bin" / "shuffle-plugins"
    question = ("--population", "60000", "--cohort", "10000", "--local-epsilon", "1.5", "--rounds", "1200")
    printed = run("-S", command, "epsilon", *question, "--delta", "1e-5", cwd=tmp_path, path=path)
    assert "ε ∈ [0.384, 0.3845]" in printed
    refused = run("-S", command, "keys", "client", "key.pem", cwd=tmp_path, path=path, code=2)
    assert "pip install 'shuffle-plugins[torch]'" in refused


def test_adapters_and_the_page_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    run("-c", TOGETHER, installed, cwd=tmp_path, path=(installed,))
