"""What runs on a client needs nothing of the server's side, and modules import only from those below."""

import re
from pathlib import Path

import flwr_shuffle

LAYERS = [
    ["updates"],
    ["metrics"],
    ["messages"],
    ["service_nodes", "client"],
    ["grids"],
    ["service_stages", "settings", "inner_strategy"],
    ["rounds"],
    ["strategy", "queries"],
]
CLIENTS = {"updates", "metrics", "messages", "client", "service_nodes"}
IMPORTED = re.compile(r"^\s*from flwr_shuffle\.(\w+) import", re.MULTILINE)


def test_modules_import_only_from_those_below():
    below: set[str] = set()
    for layer in LAYERS:
        for module in layer:
            imported = IMPORTED.findall((Path(flwr_shuffle.__file__).parent / f"{module}.py").read_text())
            assert set(imported) <= (below & CLIENTS if module in CLIENTS else below), module
        below |= set(layer)
