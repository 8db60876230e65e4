"""The tables of pages that hold measured or computed numbers, written from the committed result files.

A page has a table between the marks ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``. What a run costs in
privacy is in its result file: ``examples/paper_mnist.py --report-only`` writes it anew without training.
Sentences that hold such numbers are listed too; this script says which of them a page lacks.
``docs/measured`` has one module for each topic.

Usage: python docs/tables.py            (writes the tables into the pages)
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import measured
from measured.parts import ROOT, Sentences, Tables

TOPICS = tuple(
    importlib.import_module(f"measured.{module.name}")
    for module in pkgutil.iter_modules(measured.__path__)
    if module.name != "parts"
)


def tables() -> Tables:
    """Tables of all topics, by page and mark."""
    found: Tables = defaultdict(dict)
    for topic in TOPICS:
        for page, written in topic.TABLES.items():
            assert not found[page].keys() & written.keys()
            found[page] |= written
    return dict(found)


def sentences() -> Sentences:
    """Sentences of all topics, by page."""
    found: Sentences = defaultdict(list)
    for topic in TOPICS:
        for page, pieces in getattr(topic, "sentences", dict)().items():
            found[page] += pieces
    return dict(found)


def indented(text: str, by: str) -> str:
    """Its lines moved to the right, but for empty ones."""
    return "\n".join(by + line if line else line for line in text.split("\n"))


def with_tables(text: str, written: dict[str, Callable[[], str]]) -> str:
    """A page's text with its tables as the results have them, indented as the marks are.

    Raises:
        ValueError: if a mark is missing.
    """
    for name, write in written.items():
        begins, ends = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begins)
        _, closed, after = rest.partition(ends)
        if not found or not closed:
            raise ValueError(f"the page has no marks for {name!r}")
        by = before[before.rfind("\n") + 1 :]
        text = f"{before}{begins}\n\n{indented(write(), by)}\n\n{by}{ends}{after}"
    return text


def main() -> int:
    """Write the tables, and say what sentences are stale; 1 if there are any."""
    stale = 0
    for name, written in tables().items():
        page = ROOT / name
        page.write_text(with_tables(page.read_text(encoding="utf-8"), written), encoding="utf-8")
    for name, pieces in sentences().items():
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for piece in pieces:
            if piece not in text:
                print(f"{name} lacks: {piece}")
                stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
