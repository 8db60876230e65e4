"""Mutation testing: small changes of the code that certifies and seals, each of which should fail a test.

A *mutant* is a module with one change: another comparison, operator, ``and`` or ``or``, sign, boolean,
rounding direction (``floor`` for ``ceil``), number (one more, or times 1.5), or a ``raise`` that is left out.
Its tests run in a forked process that imports the changed module in the place of the real one. A mutant that
some test fails is *killed*; one that no test fails *survives*. A person reads the survivors and writes a note
on each into the result file: why it computes the same, or only loosens a bound, or what is missing.

Every ``raise`` is left out once. Of the other changes a sample is drawn, in an order that depends on nothing
but the name of the module. Results and notes are kept until the module's source changes, so a run that was
stopped goes on. New tests change no result by themselves: try survivors again with ``--again``.

Run: python benchmarks/mutants.py [--only TEXT ...] [--sample 30] [--again]
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
WITHOUT_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:xdist")
MOST_SECONDS = 600  # of processor time, of a module's tests without a change
LEAST_SECONDS, TIMES_LONGER = 10, 5  # what takes a mutant longer is taken for an endless loop, and killed

SHUFFLER = tuple(
    f"tests/shuffler/test_shuffler_{part}.py" for part in ("envelopes", "mixer", "cascade", "keys")
)
COMPOSITION = "tests/accounting/composition/test_composition.py"
LAWS = tuple(
    f"{COMPOSITION}::test_{part}"
    for part in (
        "a_discounted_law_is_below_all_pairs_that_are_so_near",
        "nothing_is_left_of_a_law_that_all_is_taken_off",
        "what_is_charged_for_rounding_is_what_rounding_takes",
        "a_pair_without_a_common_outcome_has_no_law",
        "the_tighter_of_two_bounds_is_below_both_and_above_the_pair_that_both_bound",
        "law_masses_are_probabilities",
        "small_compositions_bracket_the_product_of_outcomes",
        "what_losses_and_masses_may_be_off_is_charged_for_every_step",
        "what_laws_leave_out_is_charged_to_delta_from_above_alone",
        "laws_bracket_the_exact_profile",
    )
)
PAIRS = "tests/accounting/pairs/test_pairs.py"
INSTANCES = "tests/accounting/pairs/test_instances.py"
SUMS = "tests/accounting/rounds/test_sum_rounds.py"
OF_YOUR_OWN = "tests/accounting/rounds/test_round_of_your_own.py"
ACCOUNTANT = "tests/accounting/test_accountant.py"
EXTREMES = "tests/accounting/test_accountant_extremes.py"
# The modules, and the tests of each: those that should notice, few enough to run once per mutant.
TARGETS = {
    "shuffle_plugins.shuffler.envelopes": SHUFFLER,
    "shuffle_plugins.shuffler.mixer": SHUFFLER,
    "shuffle_plugins.shuffler.tokens": SHUFFLER,
    "shuffle_plugins.shuffler.batches": SHUFFLER,
    "shuffle_plugins.shuffler.keys": ("tests/shuffler/test_shuffler_keys.py",),
    "shuffle_plugins.shuffler.statements": ("tests/shuffler/test_shuffler_statements.py",),
    "shuffle_plugins.shuffler.memory": ("tests/shuffler/test_shuffler_memory.py",),
    "shuffle_plugins.shuffler.permutation": ("tests/shuffler/test_shuffler_permutation.py",),
    "shuffle_plugins.shuffler.service": ("tests/shuffler/test_shuffler_mixer.py",),
    "shuffle_plugins.shuffler.shuffler": (
        "tests/shuffler/test_shuffler_memory.py",
        "tests/shuffler/test_shuffler_envelopes.py",
    ),
    "shuffle_plugins.shuffler.marks": ("tests/shuffler/test_shuffler_cascade.py",),
    "shuffle_plugins.shuffler.spool": ("tests/shuffler/test_shuffler_cascade.py",),
    "shuffle_plugins.accounting.losses.distribution": LAWS,
    "shuffle_plugins.accounting.numerics.grid": (
        "tests/accounting/numerics",
        "tests/accounting/composition",
        PAIRS,
    ),
    "shuffle_plugins.accounting.composition.conversion": ("tests/accounting/composition/test_conversion.py",),
    "shuffle_plugins.accounting.composition.points": tuple(
        f"tests/accounting/published/test_published_{part}.py" for part in ("clones", "catalogue")
    ),
    "shuffle_plugins.accounting.composition.pld": (COMPOSITION,),
    "shuffle_plugins.accounting.composition.growing": (COMPOSITION, ACCOUNTANT),
    "shuffle_plugins.accounting.composition.counted": (COMPOSITION,),
    "shuffle_plugins.accounting.composition.renyi": (COMPOSITION,),
    "shuffle_plugins.accounting.numerics.binomial": (
        "tests/accounting/numerics/test_binomial.py",
        COMPOSITION,
        PAIRS,
    ),
    "shuffle_plugins.accounting.numerics.profiles": (COMPOSITION, SUMS),
    "shuffle_plugins.accounting.losses.shuffle": (PAIRS, COMPOSITION),
    "shuffle_plugins.accounting.losses.coins": (SUMS, "tests/accounting/rounds/test_secret_participation.py"),
    "shuffle_plugins.accounting.pairs.gaussian_cover": (SUMS,),
    "shuffle_plugins.accounting.pairs.blanket": (PAIRS, INSTANCES, ACCOUNTANT),
    "shuffle_plugins.accounting.pairs.shuffle": (PAIRS, INSTANCES),
    "shuffle_plugins.accounting.pairs.counts": (PAIRS, INSTANCES),
    "shuffle_plugins.accounting.pairs.clones": (
        "tests/accounting/published/test_published_clone_pair.py",
        "tests/accounting/published/test_published_clones.py",
    ),
    "shuffle_plugins.accounting.rounds.round": (OF_YOUR_OWN, ACCOUNTANT),
    "shuffle_plugins.accounting.rounds.shuffle": (PAIRS, ACCOUNTANT),
    "shuffle_plugins.accounting.replacement": ("tests/accounting/test_replacement.py", SUMS, EXTREMES),
    "shuffle_plugins.accounting.intervals": (EXTREMES,),
    "shuffle_plugins.accounting.accountant": (ACCOUNTANT, OF_YOUR_OWN, EXTREMES),
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
        changed = copy.deepcopy(node)
        changed.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
        yield changed
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


def mutants(source: str) -> list[tuple[str, CodeType]]:
    """(what was changed, compiled module) of every mutant of a module."""
    tree, found = ast.parse(source), []
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
            change = f"line {getattr(child, 'lineno', 0)}: {before} → {after}"
            same = sum(each.startswith(change) for each, _ in found)
            found.append((change, code) if not same else (f"{change} (place {same + 1} of the line)", code))
    return found


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
    import pytest

    before, finders = set(sys.modules), list(sys.meta_path)
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", *WITHOUT_PLUGINS, *tests])
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
        options = ["-x", *WITHOUT_PLUGINS, "--hypothesis-seed=0"]
        try:
            import pytest

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
    parser.add_argument("--again", action="store_true", help="try survivors once more, after new tests")
    given = parser.parse_args()
    os.chdir(ROOT)
    os.environ["CI"] = "1"  # property tests draw the same cases for every mutant
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import hypothesis  # noqa: F401  imported here, so that no fork needs to
    import scipy.optimize
    import scipy.signal
    import scipy.special
    import scipy.stats  # noqa: F401

    for module, tests in TARGETS.items():
        if not any(text in module for text in given.only):
            continue
        path = ROOT / (module.replace(".", "/") + ".py")
        source = path.read_text()
        fingerprint = hashlib.sha256(source.encode()).hexdigest()[:16]
        entry = recorded().get(module, {})
        if entry.get("source") != fingerprint:
            entry = {"source": fingerprint, "killed": [], "survived": {}}
        every = mutants(source)
        entry["mutants"] = len(every)
        random.Random(module).shuffle(every)
        left_out = [each for each in every if ": raise " in each[0]]
        others = [each for each in every if each not in left_out]
        drawn = {change for change, _ in left_out + others[: given.sample]} - {*entry["killed"]}
        wanted = drawn | {*entry["survived"]} if given.again else drawn - {*entry["survived"]}
        missing = [each for each in left_out + others if each[0] in wanted]
        if not missing:
            continue
        load(tests)
        unchanged = compile(ast.parse(source), str(path), "exec")
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        if not survives(module, path, unchanged, tests, seconds=MOST_SECONDS):
            raise SystemExit(f"the tests of {module} fail without a change")
        taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        seconds = LEAST_SECONDS + math.ceil(TIMES_LONGER * taken)
        for change, code in missing:
            note = entry["survived"].pop(change, "")
            if survives(module, path, code, tests, seconds=seconds):
                entry["survived"][change] = note
                print(f"{module}: survived: {change}", flush=True)
            else:
                entry["killed"].append(change)
            results = recorded() | {module: entry}  # other runs write there, too
            whole = RESULTS.with_suffix(f".{os.getpid()}")  # nobody reads half of it
            whole.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
            whole.replace(RESULTS)
        print(
            f"{module}: {len(entry['killed'])} killed, {len(entry['survived'])} survived, {len(every)} in all"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
