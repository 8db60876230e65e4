"""All questions about reports, sums, hosts, files and messages, by topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reports_files
import reports_mechanisms
import reports_messages
import reports_opacus
import reports_strategy
import reports_sums
import reports_words
from reports_answers import Questions

TOPICS: dict[str, Questions] = {
    "files": reports_files.questions(),
    "mechanisms": reports_mechanisms.questions(),
    "messages": reports_messages.questions(),
    "opacus": reports_opacus.questions(),
    "strategy": reports_strategy.questions(),
    "sums": reports_sums.questions(),
    "words": reports_words.questions(),
}

FILES: dict[str, Callable[[], None]] = {
    "files": reports_files.write_files,
    "opacus": reports_opacus.write_files,
    "strategy": reports_strategy.write_files,
}
"""What writes the files that a topic's questions read."""


def ask(question: Callable[[], Any]) -> Any:
    """The answer; a refusal is an answer too."""
    try:
        return question()
    except ValueError:
        return {"refused": True}
