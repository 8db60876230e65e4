import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from shuffle_plugins import mechanisms
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.mechanisms.signs import BinaryRandomizedResponse


@pytest.fixture(autouse=True)
def own_entries(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))


def offer(monkeypatch, name, value):
    point = EntryPoint(name=name, value=value, group=registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])


def test_listing_and_accounting_do_not_import_torch():
    program = (
        "import sys, shuffle_plugins.mechanisms as m\n"
        "names = m.available()\n"
        "assert {'binary-rr', 'linf-coordinate', 'privunit'} <= set(names)\n"
        "assert all(m.summary(name) for name in names)\n"
        "m.blanket('privunit', local_epsilon=1.5, dim=1000)\n"
        "m.blanket('linf-coordinate', local_epsilon=1.5, dim=1000)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_unknown_names_and_options_are_refused():
    with pytest.raises(ValueError, match=r"no mechanism named 'privunits'; did you mean 'privunit' or .*\?$"):
        mechanisms.get("privunits", local_epsilon=1.0, dim=3)
    with pytest.raises(ValueError, match=r"no mechanism named 'xyz'; available: binary-rr"):
        mechanisms.get("xyz", local_epsilon=1.0, dim=3)
    with pytest.raises(TypeError, match="takes no option gamma"):
        mechanisms.get("privunit", local_epsilon=1.0, dim=3, gamma=0.1)
    with pytest.raises(AttributeError, match="Cauchy"):
        _ = mechanisms.Cauchy


def test_register():
    mechanisms.register("my-rr", BinaryRandomizedResponse, summary="mine")
    assert "my-rr" in mechanisms.available()
    assert mechanisms.summary("my-rr") == "mine"
    built = mechanisms.get("my-rr", local_epsilon=1.0, dim=1)
    assert mechanisms.blanket("my-rr", local_epsilon=1.0, dim=1) == built.blanket()
    with pytest.raises(ValueError, match="registered already"):
        mechanisms.register("my-rr", BinaryRandomizedResponse)


def test_installed_packages_add_mechanisms(monkeypatch):
    offer(monkeypatch, "third-party", "shuffle_plugins.mechanisms.signs:BinaryRandomizedResponse")
    assert "third-party" in mechanisms.available()
    assert "third-party" in mechanisms.available()
    assert mechanisms.get("third-party", local_epsilon=1.0, dim=1).bits_per_report == 1


@pytest.mark.parametrize(("name", "match"), [("privunit", "taken"), ("Bad Name", r"elsewhere:It.*malformed")])
def test_installed_packages_that_do_not_fit_are_named(monkeypatch, name, match):
    offer(monkeypatch, name, "elsewhere:It")
    with pytest.raises(ValueError, match=match):
        mechanisms.available()
