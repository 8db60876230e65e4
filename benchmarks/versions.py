"""Which versions of Python and of other packages this package works with.

Every set of versions gets a virtual environment of its own, in which this package is installed from the
working tree, and where a selection of the fast tests runs. ``lowest`` pins every requirement to the lower
bound in ``pyproject.toml``, ``newest`` takes what the index offers. PyTorch is the one version given by
``--torch`` in both, since other builds of it are gigabytes; ``--another-torch`` adds a set with another one.

Run: python benchmarks/versions.py [--only SET ...] [--python PATH ...] [--torch VERSION]
     [--another-torch VERSION] [--over NAME==VERSION]

A set that ran replaces its entry in results/versions.json, and the table in docs/reference/versions.md is
written anew from that file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
PAGE = ROOT / "docs" / "reference" / "versions.md"
TABLE = re.compile(r"(?<=<!-- versions -->\n).*?(?=<!-- end -->)", re.DOTALL)

SHOWN = ("torch", "opacus", "flwr", "numpy", "scipy", "numba", "cryptography", "typer", "rich")
"""The packages whose versions are recorded."""

BOUND_BY_HOSTS = ("typer", "rich", "typing-extensions")
"""The lower bounds of Flower and PyTorch for these are above ours."""

HELPERS = ("pytest>=8", "hypothesis>=6.100", "scikit-learn>=1.5", "packaging", "mpmath")
ACCOUNTING = (
    "tests/accounting/test_accountant.py",
    "tests/accounting/test_privacy_target.py",
    "tests/accounting/rounds/test_round_kinds.py",
    "tests/accounting/rounds/test_epochs.py",
    "tests/accounting/published/test_published_clones.py",
)
HOSTS = (
    "tests/mechanisms/test_mechanism_contract.py",
    "tests/shuffler/test_shuffler_envelopes.py",
    "tests/opacus_shuffle/test_opacus_engine.py",
    "tests/opacus_shuffle/test_opacus_scripts.py",
    "tests/flwr_shuffle/test_flower_in_process.py",
    "tests/flwr_shuffle/test_flower_messages.py",
    "tests/flwr_shuffle/server/test_flower_strategy.py",
    "tests/flwr_shuffle/client/test_mod_behaviour.py",
)


def lower_bounds(*groups: str, leave: Sequence[str] = ()) -> list[str]:
    """``name==version`` for the lower bounds of the package and its extras, but of PyTorch and ``leave``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(each for group in groups for each in project["optional-dependencies"][group]),
    ]
    found = [re.match(r"([\w-]+)>=([\d.]+)", each) for each in asked]
    return [f"{each[1]}=={each[2]}" for each in found if each and each[1] not in ("torch", *leave)]


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=variables | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def measured(
    python: str,
    *,
    extras: Sequence[str],
    pins: Sequence[str],
    over: Sequence[str],
    tests: Sequence[str],
    torch: str,
) -> dict[str, Any]:
    """What came of one set of versions: the versions, and how many tests passed, failed and were skipped.

    Args:
        python: interpreter that makes the environment.
        extras: of this package.
        pins: requirements beside those of the package, which must agree with them.
        over: packages that are put in at the end, whatever the package requires.
        tests: files or folders of tests.
        torch: version of PyTorch, if an extra needs it.
    """
    with tempfile.TemporaryDirectory(prefix="versions") as folder:
        made = run(python, "-m", "venv", folder)
        inside = Path(folder, "bin", "python")
        install = (inside, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")
        steps = [[f"torch=={torch}"]] if extras else []
        steps += [["-e", f".[{','.join(extras)}]" if extras else ".", *HELPERS, *pins]]
        steps += [["--no-deps", *over]] if over else []
        for step in steps:
            if made.returncode == 0:
                made = run(*install, *step)
        if made.returncode:
            raise SystemExit(f"these versions cannot be installed: {made.stderr.strip()}")
        listed = json.loads(run(inside, "-m", "pip", "list", "--format", "json").stdout)
        versions = {each["name"].lower(): each["version"] for each in listed}
        report = Path(folder, "report.xml")
        ran = run(inside, "-m", "pytest", "-p", "no:cacheprovider", "-rfE", "--junitxml", report, *tests)
        print(
            *[line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "E  "))],
            sep="\n",
        )
        return {
            "python": run(inside, "-c", "import platform; print(platform.python_version())").stdout.strip(),
            "versions": {name: versions[name] for name in SHOWN if name in versions},
            **counted(report),
        }


def counted(report: Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped; one failed if they did not even begin."""
    if not report.exists():
        return {"passed": 0, "failed": 1, "skipped": 0}
    (suite,) = ElementTree.parse(report).getroot()
    number = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    return {
        "passed": number["tests"] - failed - number["skipped"],
        "failed": failed,
        "skipped": number["skipped"],
    }


def table(results: dict[str, Any]) -> str:
    """The rows of the page, in Markdown."""
    lines = ["| set | Python | versions | tests passed | failed |", "|---|---|---|---|---|"]
    for name, result in results.items():
        versions = ", ".join(f"{each} {version}" for each, version in result["versions"].items())
        lines.append(
            f"| {name} | {result['python']} | {versions} | {result['passed']} | {result['failed']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="SET", help="sets to run; all if not given")
    parser.add_argument(
        "--python", nargs="*", default=[], metavar="PATH", help="more interpreters, for accounting alone"
    )
    parser.add_argument("--torch", default="2.13.0", metavar="VERSION")
    parser.add_argument("--another-torch", metavar="VERSION", help="one more set: the newest, with this")
    parser.add_argument(
        "--over", metavar="NAME==VERSION", help="one more set: the newest, but this, whatever is required"
    )
    given = parser.parse_args()
    here = {"python": sys.executable, "over": [], "torch": given.torch}
    alone = {**here, "extras": [], "tests": ACCOUNTING}
    hosts = {**here, "extras": ["opacus", "flower"], "tests": HOSTS}
    sets = {
        "accounting alone, lowest": {**alone, "pins": lower_bounds()},
        "accounting alone, newest": {**alone, "pins": []},
        "Opacus and Flower, lowest": {
            **hosts,
            "pins": lower_bounds("torch", "opacus", "flower", leave=BOUND_BY_HOSTS),
        },
        "Opacus and Flower, newest": {**hosts, "pins": []},
    }
    for path in given.python:
        version = run(path, "-c", "import sys; print(*sys.version_info[:2], sep='.')").stdout.strip()
        sets[f"accounting alone, newest, Python {version}"] = {
            **sets["accounting alone, newest"],
            "python": path,
        }
    if given.another_torch:
        sets[f"Opacus and Flower, newest, torch {given.another_torch}"] = {
            **hosts,
            "pins": [],
            "torch": given.another_torch,
        }
    if given.over:
        sets[f"newest, but {given.over}"] = {**hosts, "pins": [], "over": [given.over]}
    failed = 0
    for name, setting in sets.items():
        if given.only and name not in given.only:
            continue
        print(f"== {name}", flush=True)
        found = measured(**setting)
        print(found, flush=True)
        results = (json.loads(RESULTS.read_text()) if RESULTS.exists() else {}) | {name: found}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        PAGE.write_text(TABLE.sub(table(results), PAGE.read_text()))
        failed += found["failed"] if "but" not in name else 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
