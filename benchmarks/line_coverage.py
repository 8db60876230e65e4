"""Which lines of the packages the fast tests run.

Compiled kernels are left out: a tracer does not see what numba and Triton compile. Tests in processes of
their own are not traced either, nor are slow tests run, so more lines are tested than are counted here.

Run: python benchmarks/line_coverage.py [--data FILE] [TEST ...]

Takes twice as long as the tests, on one core. ``--data`` reads what ``coverage run`` has recorded before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "line_coverage.json"
SETTINGS = r"""
[run]
source = shuffle_plugins,flwr_shuffle,opacus_shuffle
[report]
exclude_also =
    if TYPE_CHECKING:
    raise NotImplementedError
    @abstractmethod
    ^\s*\.\.\.$
    @triton\.jit
    @compiled
"""


def package(path: str) -> str:
    """``shuffle_plugins.accounting`` of ``shuffle_plugins/accounting/…``; an integration is one package."""
    parts = Path(path).parts
    if parts[0] == "integrations":
        return parts[1]
    return ".".join(parts[: 2 if len(parts) > 2 else 1])


def counted(report: Path) -> dict[str, dict[str, int]]:
    """Lines with a statement, and those of them that no test ran, by package."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: {"lines": 0, "not_run": 0})
    for path, each in json.loads(report.read_text())["files"].items():
        of = found[package(path)]
        of["lines"] += each["summary"]["num_statements"]
        of["not_run"] += each["summary"]["missing_lines"]
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a data file of coverage; the tests are not run then")
    parser.add_argument("tests", nargs="*", help="arguments of pytest; all fast tests if not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings, report = Path(folder, "settings.ini"), Path(folder, "report.json")
        settings.write_text(SETTINGS)
        data = options.data or Path(folder, "data")
        common = [f"--rcfile={settings}", f"--data-file={data}"]

        def coverage(*arguments: str | Path) -> None:
            subprocess.run([sys.executable, "-m", "coverage", *map(str, arguments)], cwd=ROOT, check=True)

        if options.data is None:
            coverage("run", *common, "-m", "pytest", "-p", "no:cacheprovider", *options.tests)
        coverage("json", *common, "-q", "-o", report)
        found = counted(report)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    for name, of in found.items():
        print(f"{name}: {1 - of['not_run'] / max(of['lines'], 1):.1%} of {of['lines']:,} lines")


if __name__ == "__main__":
    main()
