"""What all topics share: reading result files, and writing tables and numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [each for each in (str(ROOT), str(ROOT / "benchmarks")) if each not in sys.path]

from shuffle_plugins.core import rounded  # noqa: E402

Tables = dict[str, dict[str, Callable[[], str]]]
"""Tables by page and mark."""
Sentences = dict[str, list[str]]
"""Pieces of text that a page must have."""
SEEDS = 5
"""Of each point of the frontier; while it is run anew there are fewer, and no sentence."""


@cache
def result(name: str) -> Any:
    """A committed result file, such as ``examples/untuned``, the file ``examples/results/untuned.json``."""
    folder, _, file = name.partition("/")
    return json.loads((ROOT / folder / "results" / f"{file}.json").read_text(encoding="utf-8"))


@cache
def frontier() -> list[dict[str, Any]]:
    """Runs of accuracy against ε."""
    text = (ROOT / "examples" / "frontier" / "results.json").read_text(encoding="utf-8")
    return json.loads(text)["runs"]  # type: ignore[no-any-return]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *(list(row) for row in rows)]
    return (
        "\n".join("| " + " | ".join(line) + " |" for line in lines)
        .replace("| --- ", "|---")
        .replace("|--- |", "|---|")
    )


def percent(point: dict[str, Any], *, bold: bool = False) -> str:
    """Mean ± deviation in per cent."""
    spread = "" if point["deviation"] is None else f" ± {100 * point['deviation']:.1f}"
    text = f"{100 * point['accuracy']:.1f}{spread}"
    return f"**{text}**" if bold else text


def interval(point: dict[str, Any], *, digits: int = 4) -> str:
    """Certified ends, rounded outwards."""
    ends = ((point["epsilon_lower"], False), (point["epsilon_upper"], True))
    return "[" + ", ".join(rounded(value, up=up, digits=digits) for value, up in ends) + "]"
