"""The front door: what `import shuffle_plugins` and its packages offer, and what importing them loads."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STUBS = sorted([*ROOT.glob("shuffle_plugins/**/__init__.pyi"), *ROOT.glob("integrations/*/__init__.pyi")])
PACKAGES = [".".join(stub.parent.relative_to(ROOT).parts).removeprefix("integrations.") for stub in STUBS]
HEAVY = ("torch", "numpy", "scipy", "numba", "typer", "rich", "flwr", "opacus")


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


def test_a_face_without_the_name_says_so():
    import shuffle_plugins as sp

    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = sp.accounting.no_such_thing


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


def test_a_function_is_not_hidden_by_the_module_of_its_name():
    code = (
        "import shuffle_plugins.optim.minimize, shuffle_plugins as sp; assert callable(sp.optim.minimize), sp"
    )
    loaded(code)
