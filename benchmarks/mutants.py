"""Mutation testing: small changes of the code that certifies and seals, each of which should fail a test.

A *mutant* is a module with one change: another comparison, operator, ``and`` or ``or``, sign, boolean, a
name for its opposite (``floor`` and ``ceil``, ``max`` and ``min``, ``any`` and ``all``), a number (one more,
or times 1.5), or a ``raise`` that is left out. The package's tests that reach the changed lines are run, the
shortest first, in a forked process that imports the changed module in the place of the real one. If a test
fails, or the run crashes or takes too long, the mutant is *killed*; if all pass, or no test reaches it, it
*survives*. A person reads the survivors and writes a note on each into the result file: why it computes the
same, or only loosens a bound, or what is missing. Lines that are reached through a shared fixture or a cache
count for the first test that reached them, so a survivor may be one that another test would kill.

Every ``raise`` is left out once. Of the other changes a sample is drawn, in an order that depends on nothing
but the name of the module. Results are kept until the module's source changes, so a run that was stopped
goes on; any change of it, be it of a comment, discards the module's results and notes. New tests change no
result by themselves: ``--again`` tries survivors without a note again.

Run: python benchmarks/mutants.py [--only TEXT ...] [--sample 30] [--seconds 20] [--slow] [--again]
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import math
import os
import random
import resource
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
WITHOUT_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:xdist")
MOST_SECONDS = 600  # of processor time, for a module's tests without a change
# A mutant whose tests use more processor time than this, and so many times that of the unchanged module, is
# taken to loop for ever, and counts as killed.
LEAST_SECONDS, TIMES_LONGER = 10, 5
FAST, ALL = "not slow and not process", "not process"
# The packages, and the folders of the tests that should notice.
TARGETS = {
    "shuffler": ("tests/shuffler",),
    "accounting": ("tests/accounting", "tests/planning", "tests/cli", "tests/golden", "tests/protocols"),
}

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
RENAMED = {"floor": "ceil", "maximum": "minimum", "max": "min", "any": "all", "left": "right"}
RENAMED |= {new: old for old, new in RENAMED.items()}


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """The node with one thing changed, for each thing that can be."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[place] = SWAPPED[type(operator)]()  # type: ignore[call-overload]
            yield changed
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
        other = copy.deepcopy(node)
        other.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
        yield other
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            yield ast.Constant(node.value + 1 if isinstance(node.value, int) else node.value * 1.5 or 1.0)
        elif node.value in RENAMED:
            yield ast.Constant(RENAMED[node.value])
    elif isinstance(node, ast.Attribute) and node.attr in RENAMED:
        yield ast.Attribute(node.value, RENAMED[node.attr], node.ctx)
    elif isinstance(node, ast.Name) and node.id in RENAMED:
        yield ast.Name(RENAMED[node.id], node.ctx)
    elif isinstance(node, ast.Raise):
        yield ast.Pass()


def mutable(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """(parent, field, index, child) of all code, but for annotations, decorators, imports, f-strings and what
    stands in a ``raise``."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "ops", "op", "ctx"}:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield node, field, index, child
                if not isinstance(child, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
                    yield from mutable(child)


@dataclass(frozen=True)
class Mutant:
    """What was changed, on which lines, and the module compiled with it."""

    change: str
    lines: range
    code: CodeType


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a module."""
    tree = ast.parse(source)
    found: list[Mutant] = []
    # One tree is changed, compiled and changed back.
    for parent, field, index, child in list(mutable(tree)):
        for changed in changes(child):
            siblings = getattr(parent, field)
            ast.copy_location(changed, child)
            before, after = ast.unparse(child), ast.unparse(changed)
            if index is None:
                setattr(parent, field, changed)
            else:
                siblings[index] = changed
            code = compile(ast.fix_missing_locations(tree), "<mutant>", "exec")
            if index is None:
                setattr(parent, field, child)
            else:
                siblings[index] = child
            first = getattr(child, "lineno", 0)
            change = f"line {first}: {before} → {after}"
            same = sum(each.change.startswith(change) for each in found)
            change += f" (place {same + 1} of the line)" if same else ""
            found.append(
                Mutant(change, range(first, (getattr(child, "end_lineno", None) or first) + 1), code)
            )
    return found


class Watch:
    """A plugin of pytest that records the lines each test runs, and its seconds of processor time."""

    def __init__(self, sources: Path) -> None:
        self.coverage = coverage.Coverage(source=[str(sources)], data_file=None, config_file=False)
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a test under its own name."""
        self.coverage.switch_context(item.nodeid)
        before = time.process_time()
        found = yield
        self.seconds[item.nodeid] = time.process_time() - before
        self.coverage.switch_context("")  # lines that run on import belong to no test
        return found


@cache
def watched(package: str, marks: str) -> dict[str, Any]:
    """The lines each test of a package runs, and its seconds. Kept until one of their files changes.

    Args:
        package: within ``shuffle_plugins``.
        marks: which tests, as pytest's ``-m`` takes it.
    """
    sources, tests = ROOT / "shuffle_plugins" / package, TARGETS[package]
    folders = [sources, *(ROOT / folder for folder in tests)]
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    contents = b"".join(file.read_bytes() for file in files) + marks.encode()
    fingerprint = hashlib.sha256(contents).hexdigest()[:16]
    kept = ROOT / "build" / f"watched-{package}-{fingerprint}.json"
    if not kept.exists():
        print(f"{package}: which lines each test runs is recorded first", flush=True)
        kept.parent.mkdir(exist_ok=True)
        child = os.fork()
        if child == 0:
            plugin = Watch(sources)
            plugin.coverage.start()
            status = int(pytest.main([*WITHOUT_PLUGINS, "-m", marks, *tests], plugins=[plugin]))
            plugin.coverage.stop()
            if status == 0:
                data = plugin.coverage.get_data()
                lines = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
                kept.write_text(json.dumps({"seconds": plugin.seconds, "lines": lines}))
            os._exit(status)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"the tests of {package} fail without a change")
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


class Tests:
    """The tests for a mutant of a module: those that run its lines.

    Lines that none runs, or that run on import alone, are for all tests of the files that have one which runs
    the module.
    """

    def __init__(self, package: str, path: Path, *, marks: str, most: float) -> None:
        seen = watched(package, marks)
        self.seconds: dict[str, float] = seen["seconds"]
        self.lines = {int(line): {*names} - {""} for line, names in seen["lines"].get(str(path), {}).items()}
        files = {name.partition("::")[0] for name in set().union(*self.lines.values())}
        self.all = {name for name in self.seconds if name.partition("::")[0] in files}
        self.most = most

    def of(self, mutant: Mutant) -> tuple[str, ...]:
        """Names of tests, the shortest first, that take no more than ``most`` seconds together or are one."""
        found = set().union(*(self.lines.get(line, set()) for line in mutant.lines)) or self.all
        chosen: list[str] = []
        taken = 0.0
        for name in sorted(found, key=lambda each: (self.seconds[each], each)):
            taken += self.seconds[name]
            if chosen and taken > self.most:
                break
            chosen.append(name)
        return tuple(chosen)


class InPlaceOf(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from code that is given."""

    def __init__(self, module: str, path: Path, code: CodeType) -> None:
        self.module, self.path, self.code = module, path, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the module that is replaced, and of no other."""
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Run the given code as the module."""
        exec(self.code, module.__dict__)


def load(tests: Sequence[str]) -> None:
    """Import what the tests need but for the project itself, so that no fork has to."""
    before, finders = set(sys.modules), list(sys.meta_path)
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", *WITHOUT_PLUGINS, "-m", ALL, *tests])
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        file = Path(getattr(sys.modules[name], "__file__", None) or "/")
        if file.is_relative_to(ROOT) and "site-packages" not in file.parts:
            del sys.modules[name]


def survives(module: str, path: Path, code: CodeType, tests: Sequence[str], *, seconds: int) -> bool:
    """Whether all tests pass with the code in place of the module, in so many seconds of processor time."""
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        sys.meta_path.insert(0, InPlaceOf(module, path, code))
        options = ["-x", *WITHOUT_PLUGINS, "--hypothesis-seed=0", "-m", ALL]
        try:
            status = int(pytest.main([*options, *tests]))
        except BaseException:
            status = 99
        os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def recorded() -> dict[str, Any]:
    """What was found so far, by the module's name."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def main() -> int:
    """Run what is missing of every module's sample, and write the result after each mutant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="parts of modules' names")
    parser.add_argument(
        "--sample", type=int, default=30, metavar="N", help="changes of each module, beside raises"
    )
    parser.add_argument(
        "--seconds", type=float, default=20, metavar="S", help="of tests for each change, the shortest first"
    )
    parser.add_argument("--slow", action="store_true", help="slow tests, too")
    parser.add_argument("--again", action="store_true", help="try survivors without a note once more")
    given = parser.parse_args()
    os.chdir(ROOT)
    os.environ["CI"] = "1"  # property tests draw the same cases for every mutant
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import hypothesis  # noqa: F401  imported here, so that no fork needs to
    import scipy.optimize
    import scipy.signal
    import scipy.special
    import scipy.stats  # noqa: F401

    for package in TARGETS:
        for path in sorted((ROOT / "shuffle_plugins" / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if any(text in module for text in given.only):
                try_module(module, path, package, given)
    return 0


def try_module(module: str, path: Path, package: str, given: argparse.Namespace) -> None:
    """Run what is missing of a module's sample, and write the result after each mutant."""
    source = path.read_text()
    fingerprint = hashlib.sha256(source.encode()).hexdigest()[:16]
    entry = recorded().get(module, {})
    if entry.get("source") != fingerprint:
        entry = {"source": fingerprint, "killed": [], "survived": {}}
    every = mutants(source)
    entry["mutants"] = len(every)
    random.Random(module).shuffle(every)
    left_out = [each for each in every if ": raise " in each.change]
    others = [each for each in every if each not in left_out]
    drawn = {each.change for each in left_out + others[: given.sample]} - {*entry["killed"]}
    wanted = drawn - {*entry["survived"]}
    if given.again:
        wanted |= {change for change, note in entry["survived"].items() if not note}
    missing = [each for each in left_out + others if each.change in wanted]
    if not missing:
        return
    tests = Tests(package, path, marks=ALL if given.slow else FAST, most=given.seconds)
    needed = sorted({name for each in missing for name in tests.of(each)})
    load(needed)
    unchanged = compile(ast.parse(source), str(path), "exec")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    if not survives(module, path, unchanged, needed, seconds=MOST_SECONDS):
        raise SystemExit(f"the tests of {module} fail without a change")
    taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    seconds = LEAST_SECONDS + math.ceil(TIMES_LONGER * taken)
    for each in missing:
        note = entry["survived"].pop(each.change, "")
        chosen = tests.of(each)
        if not chosen or survives(module, path, each.code, chosen, seconds=seconds):
            entry["survived"][each.change] = note
            print(f"{module}: survived: {each.change}", flush=True)
        else:
            entry["killed"].append(each.change)
        results = recorded() | {module: entry}  # other runs write there, too
        whole = RESULTS.with_suffix(f".{os.getpid()}")  # nobody reads half of it
        whole.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        whole.replace(RESULTS)
    print(
        f"{module}: {len(entry['killed'])} killed, {len(entry['survived'])} survived, {len(every)} in all",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
