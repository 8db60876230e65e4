"""Test accuracy of the two quick starts: their blocks of code run from first to last, several times.

Each run is a process of its own, as a reader's would be; its noise and its drawings differ from those of the
next. The accuracies that a page prints, in their order, replace those of the page in the result file.

Usage: python examples/start_pages.py [--runs 10] [--page opacus flower] [--results FILE]  (some minutes)
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.progress import track

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "examples" / "results" / "start_pages.json"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# As each of the pages prints it.
ACCURACY = re.compile(r"^[a-z ]+: (\d+)%|'accuracy': ([01]\.\d+)", re.MULTILINE)


def accuracies(printed: str) -> list[float]:
    """The accuracies that a page has printed, as shares of 1."""
    return [float(share) if share else int(percent) / 100 for percent, share in ACCURACY.findall(printed)]


def run(page: str) -> list[float]:
    """Run all Python of a page in an empty folder."""
    text = (ROOT / "docs" / "start" / f"{page}.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(PYTHON.findall(text))],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found = accuracies(done.stdout)
    if not found:
        raise SystemExit(f"{page} printed no accuracy: {done.stdout}")
    return found


def main() -> None:
    """Run the pages, and write the results after each run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10, help="of each page")
    parser.add_argument(
        "--page",
        nargs="+",
        choices=("opacus", "flower"),
        default=["opacus", "flower"],
        help="which of the quick starts",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to write")
    given = parser.parse_args()
    found = json.loads(given.results.read_text()) if given.results.exists() else {}
    for page in given.page:
        found[page] = []
        for _ in track(range(given.runs), description=f"docs/start/{page}.md"):
            found[page].append(run(page))
            given.results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
