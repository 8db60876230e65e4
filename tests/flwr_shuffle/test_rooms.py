"""The rooms of the Flower host: what runs on a client needs nothing of the server's side."""

import re
from pathlib import Path

import flwr_shuffle
import pytest

ROOT = Path(flwr_shuffle.__file__).parent
IMPORTED = re.compile(r"^\s*from flwr_shuffle\.(client|stages|server)\b", re.MULTILINE)


@pytest.mark.parametrize(
    ("room", "others"),
    [(".", set()), ("client", {"client"}), ("stages", {"stages"}), ("server", {"server", "stages"})],
)
def test_a_room_imports_only_what_lies_below_it(room, others):
    files = [file for file in (ROOT / room).glob("*.py") if file.name != "guard.py"]  # a program by itself
    assert len(files) > 3 or room == "client"
    for file in files:
        assert set(IMPORTED.findall(file.read_text())) <= others, file.name
