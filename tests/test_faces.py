"""The front door: what `import shuffle_plugins` and its packages offer, and what importing them loads."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import shuffle_plugins

ROOT = Path(__file__).resolve().parents[1]
STUBS = sorted([*ROOT.glob("shuffle_plugins/**/__init__.pyi"), *ROOT.glob("integrations/*/__init__.pyi")])
PACKAGES = [".".join(stub.parent.relative_to(ROOT).parts).removeprefix("integrations.") for stub in STUBS]
LAYERS = [
    *("core", "features", "randomness", "compressors", "accounting", "mechanisms", "shuffler"),
    *("secure_aggregation", "protocols", "ledger", "planning", "auditing", "optim", "bandits"),
    *("testing", "cli", "opacus_shuffle", "flwr_shuffle"),
]
"""From the ground up. What stands lower never imports what stands higher."""

IMPORT = re.compile(r"^ *(from \w+_(?:plugins|shuffle)[\w.]* import (?:\([^)]*\)|[^(\n]+))", re.MULTILINE)
"""An import of this project's names on a page."""

HEAVY = ("torch", "torch._dynamo", "numpy", "scipy", "numba", "typer", "rich", "flwr", "opacus")


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, for all tests that look at one."""
    return ast.parse(path.read_text(encoding="utf-8"))


def loaded(code: str) -> set[str]:
    """The heavy libraries that a fresh interpreter has loaded after running ``code``."""
    report = f"import sys; {code}; print(*[name for name in {HEAVY} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_of_a_face_is_there(package):
    face = importlib.import_module(package)
    assert face.__all__, package
    assert dir(face) == sorted(face.__all__)
    for name in face.__all__:
        assert getattr(face, name) is not None, f"{package}.{name}"


def test_importing_the_project_loads_no_library():
    packages = [name for name in PACKAGES if name != "opacus_shuffle"]  # it registers itself with Opacus
    assert "shuffle_plugins.accounting" in packages
    assert loaded("import " + ", ".join(packages)) == set()


def test_the_front_door_opens_packages_and_names_by_need():
    import shuffle_plugins as sp

    assert {"accounting", "mechanisms", "ShuffleAccountant", "ShuffleRound", "get"} <= set(dir(sp))
    assert sp.accounting.ShuffleRound is sp.ShuffleRound
    assert sp.mechanisms.get is sp.get
    assert sp.__version__


def test_accounting_never_loads_torch():
    names = "; ".join(
        f"accounting.{name}" for name in importlib.import_module("shuffle_plugins.accounting").__all__
    )
    libraries = loaded(f"from shuffle_plugins import accounting; {names}")
    assert "scipy" in libraries
    assert "torch" not in libraries


@pytest.mark.slow
@pytest.mark.parametrize("host", ["flwr_shuffle", "opacus_shuffle"])
def test_a_host_loads_no_compiler_until_one_is_used(host: str) -> None:
    libraries = loaded(f"import {host}; [getattr({host}, name) for name in {host}.__all__]")
    assert "torch" in libraries
    assert not {"numba", "torch._dynamo"} & libraries


@pytest.mark.parametrize(
    ("absent", "code", "extra"),
    [
        ("opacus", "from opacus_shuffle import PrivacyEngine", "opacus"),
        ("torch", "from flwr_shuffle import ShuffleStrategy", "flower"),
        ("accelerate", "from opacus_shuffle.transformers import PrivateTrainer", "transformers"),
        ("torch", "import shuffle_plugins as sp; sp.protocols.FrequencyEstimation", "torch"),
        ("numba", "from shuffle_plugins.compressors import compiled", "torch"),
    ],
)
def test_a_name_that_needs_a_missing_extra_says_what_to_install(absent: str, code: str, extra: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{absent!r}] = None; {code}"],
        capture_output=True,
        text=True,
    )
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: this needs {absent}")
    assert last.endswith(f"pip install -e '.[{extra}]'")


def test_no_name_of_a_face_is_hidden_by_a_module_of_that_name():
    for stub in STUBS:
        named = set(re.findall(r"^from \.\w+(?:\.\w+)* import (\w+)", stub.read_text(), re.MULTILINE))
        assert not named & {path.stem for path in stub.parent.iterdir()}, stub


def package_of(module: str) -> str:
    """The package that a module belongs to, as LAYERS calls it; empty for what is not of this project."""
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == "shuffle_plugins" else first if first in LAYERS else ""


@cache
def face(package: str) -> dict[str, str]:
    """What the stub of a package lists: names, and whether each is a ``"module"`` or a ``"name"``."""
    path = ROOT / package.replace(".", "/") / "__init__.pyi"
    path = path if path.exists() else ROOT / "integrations" / package.replace(".", "/") / "__init__.pyi"
    if not path.exists():
        return {}
    stub = [node for node in parsed(path).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: "name" if node.module else "module" for node in stub for alias in node.names}


def at_a_face(module: str, name: str) -> bool:
    """Whether a face lists the name, or the whole module that it is imported from."""
    above, _, last = module.rpartition(".")
    return name in face(module) or face(above).get(last) == "module"


@cache
def imports(code: ast.Module) -> list[tuple[str, str]]:
    """(module, name) of every import of this project's names."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and node.module and package_of(node.module + "."):
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "shuffle_plugins":
            found += [(f"shuffle_plugins.{alias.name}", "") for alias in node.names]
    return found


@cache
def page_code(page: Path) -> ast.Module:
    """The imports of this project's names on a page."""
    return ast.parse("\n".join(IMPORT.findall(page.read_text())))


def sources() -> Iterator[tuple[str, ast.Module]]:
    """(path, code) of the packages, the examples, the benchmarks, and the Python of the pages."""
    for folder in ("shuffle_plugins", "integrations", "examples", "benchmarks"):
        for path in sorted(ROOT.glob(f"{folder}/**/*.py")):
            yield str(path.relative_to(ROOT)), parsed(path)
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        yield str(page.relative_to(ROOT)), page_code(page)


def home(path: str) -> str:
    """The package that a file belongs to; empty for examples, benchmarks and pages."""
    return package_of(path.removeprefix("integrations/").removesuffix(".py").replace("/", "."))


def test_what_pages_and_examples_import_is_at_a_face() -> None:
    past = {
        f"{path}: from {module} import {name}"
        for path, code in sources()
        for module, name in imports(code)
        if name and not home(path) and not at_a_face(module, name)
    }
    assert sorted(past) == []


def test_packages_take_no_private_name_of_each_other() -> None:
    private = {
        f"{path}: from {module} import {name}"
        for path, code in sources()
        for module, name in imports(code)
        if home(path) not in ("", package_of(module)) and re.search(r"\b_[a-z]", f"{module}.{name}")
    }
    assert sorted(private) == []


def test_no_import_goes_up() -> None:
    up = {
        f"{path}: {module}"
        for path, code in sources()
        if home(path) in LAYERS
        for module, _ in imports(code)
        if package_of(module) in LAYERS and LAYERS.index(package_of(module)) > LAYERS.index(home(path))
    }
    assert sorted(up) == []


@pytest.mark.parametrize("name", ["SubsampledShuffleRDPAccountant", "ShuffleMod"])
def test_a_host_s_name_that_is_looked_for_here_is_said_to_be_there(name: str) -> None:
    with pytest.raises(ImportError, match=f"_shuffle import {name}"):
        getattr(shuffle_plugins, name)
    for face in (shuffle_plugins, shuffle_plugins.accounting):
        with pytest.raises(AttributeError, match="nothing_of_any"):
            _ = face.nothing_of_any
