"""Examples in docstrings run, and print what they say. Their reader has what the package's face offers."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = [
    ".".join(path.relative_to(folder).with_suffix("").parts)
    for folder, package in ((ROOT, "shuffle_plugins"), (ROOT / "integrations", "*_shuffle"))
    for path in sorted(folder.glob(f"{package}/**/*.py"))
    if "    >>> " in path.read_text(encoding="utf-8")
]
HELD: dict[str, dict[str, Any]] = {
    "shuffle_plugins.bandits.elimination": {
        "features": np.eye(2),
        "serve": lambda chosen: 2.0 * chosen - 1,
    }
}
"""What else the reader of an example has."""


def face_of(module: str) -> ModuleType:
    parts = module.split(".")
    return importlib.import_module(".".join(parts[: 2 if parts[0] == "shuffle_plugins" else 1]))


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name: str) -> None:
    face, module = face_of(name), importlib.import_module(name)
    offered = {each: getattr(face, each) for each in face.__all__} | HELD.get(name, {})
    found = [test for test in doctest.DocTestFinder().find(module, globs=offered) if test.examples]
    assert found
    for test in found:
        said: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
        assert not said, "".join(said)
