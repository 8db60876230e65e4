"""Applies the changes that the pages show to the scripts of others, and counts the lines that change."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path

Change = tuple[str, str]
"""A line of a script, and what stands in its place: lines without the first one's indentation."""

MOST = 5
"""Lines that may change."""

STAND_INS = Path(__file__).parent / "stand_ins"
"""Packages in the place of those from which scripts download their data: tests have no network for it."""

_ROOT = Path(__file__).parents[1]


def changed_lines(before: str, after: str) -> int:
    """Lines that are new, gone, or other than before."""
    matcher = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return sum(
        max(old_end - old, new_end - new)
        for kind, old, old_end, new, new_end in matcher.get_opcodes()
        if kind != "equal"
    )


def changed(text: str, changes: Iterable[Change]) -> str:
    """The text with its lines changed."""
    lines = text.splitlines()
    for old, new in changes:
        (place,) = [number for number, line in enumerate(lines) if line.strip() == old]
        indentation = lines[place][: -len(old)]
        lines[place : place + 1] = [indentation + line for line in new.splitlines()]
    return "\n".join(lines) + "\n"


def lines_of_pages(*pages: str) -> set[str]:
    """All lines of these pages, without spaces around, the + of a difference, and comments behind them."""
    lines = [line for page in pages for line in (_ROOT / page).read_text().splitlines()]
    return {line.removeprefix("+").partition("  #")[0].strip() for line in lines}
