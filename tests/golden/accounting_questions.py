"""All questions about numbers that need no randomness, by subject: one file of ``data`` each."""

from __future__ import annotations

import accountant_questions
import command_line_questions
import planning_questions
import protocol_questions
import published_questions
from answers import Questions

SUBJECTS: dict[str, Questions] = {
    "accountant": accountant_questions.QUESTIONS,
    "command_line": command_line_questions.QUESTIONS,
    "planning": planning_questions.QUESTIONS,
    "protocols": protocol_questions.QUESTIONS,
    "published": published_questions.QUESTIONS,
}
