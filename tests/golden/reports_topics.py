"""All questions about reports, sums, hosts, files and messages, by topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reports_mechanisms
import reports_sums
import reports_words
from reports_answers import Questions

TOPICS: dict[str, Questions] = {
    "mechanisms": reports_mechanisms.questions(),
    "sums": reports_sums.questions(),
    "words": reports_words.questions(),
}


def ask(question: Callable[[], Any]) -> Any:
    """The answer; a refusal is an answer too."""
    try:
        return question()
    except ValueError as error:
        return {"refused": type(error).__name__}
