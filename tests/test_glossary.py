"""The glossary holds: its names exist, no name means two things, and retired names stay away."""

import ast
import inspect
import pkgutil
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import shuffle_plugins

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = (ROOT / "docs/reference/glossary.md").read_text()
IN_USE, RETIRED = GLOSSARY.split("## Names that are not used")
SOURCES = sorted([*ROOT.glob("shuffle_plugins/**/*.py"), *ROOT.glob("integrations/*_shuffle/**/*.py")])


def cells(text: str, column: int) -> list[str]:
    """The cells of one column of all tables in the text, headings left out."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    rules = {i for i, row in enumerate(rows) if all(re.fullmatch("-+", cell.strip()) for cell in row)}
    return [row[column].strip() for i, row in enumerate(rows) if not {i, i + 1} & rules]


TERMS = [(term, name) for term, name in zip(cells(IN_USE, 0), cells(IN_USE, 2), strict=True)]
RETIRED_NAMES = {name for cell in cells(RETIRED, 0) for name in re.findall(r"`(\w+)`", cell)}
RETIRED_MEMBERS = re.findall(r"`(\w+)\.(\w+)`", "".join(cells(RETIRED, 0)))


@cache
def definitions(path: Path) -> tuple[list[str], list[str]]:
    """Public names of a module, and of its classes' methods."""
    names, methods = [], []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        if isinstance(node, ast.ClassDef):
            methods += [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
    return [n for n in names if not n.startswith("_")], [n for n in methods if not n.startswith("_")]


@pytest.mark.parametrize(("term", "name"), TERMS, ids=[term for term, _ in TERMS])
def test_names_of_the_glossary_are_there(term: str, name: str) -> None:
    dotted, argument = re.fullmatch(r"`([\w.]+)(?:\((\w+)=\))?`", name).groups()
    found = pkgutil.resolve_name(f"shuffle_plugins.{dotted}")
    if argument is not None:
        assert argument in inspect.signature(found).parameters, name


def test_the_glossary_is_read_at_all() -> None:
    assert len(TERMS) > 30
    assert {"Against", "LossLaw", "sum_round"} <= RETIRED_NAMES
    assert ("VectorSum", "decode") in RETIRED_MEMBERS


def test_a_public_name_is_defined_in_one_module() -> None:
    modules = defaultdict(set)
    for path in SOURCES:
        for name in definitions(path)[0]:
            modules[name].add(str(path.relative_to(ROOT)))
    twice = {name: sorted(found) for name, found in modules.items() if len(found) > 1}
    assert twice == {}


def test_retired_names_stay_away() -> None:
    found = defaultdict(set)
    for path in SOURCES:
        for name in {*definitions(path)[0], *definitions(path)[1]} & RETIRED_NAMES:
            found[name].add(str(path.relative_to(ROOT)))
    assert {name: sorted(where) for name, where in found.items()} == {}


@pytest.mark.parametrize(("owner", "member"), RETIRED_MEMBERS)
def test_retired_members_stay_away(owner: str, member: str) -> None:
    faces = (shuffle_plugins.accounting, shuffle_plugins.protocols)
    (found,) = [getattr(face, owner) for face in faces if owner in dir(face)]
    assert not hasattr(found, member)
