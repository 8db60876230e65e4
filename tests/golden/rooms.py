"""All questions, by room: one file of ``data`` each."""

from __future__ import annotations

import accounting_questions
import command_line_questions
import mechanism_questions
import opacus_questions
import planning_questions
import protocol_questions
from answers import Questions

ROOMS: dict[str, Questions] = {
    "accounting": accounting_questions.QUESTIONS,
    "command_line": command_line_questions.QUESTIONS,
    "mechanisms": mechanism_questions.QUESTIONS,
    "opacus": opacus_questions.QUESTIONS,
    "planning": planning_questions.QUESTIONS,
    "protocols": protocol_questions.QUESTIONS,
}
