"""All questions about numbers that need no randomness, by subject: one file of ``data`` each."""

from __future__ import annotations

import accountant_questions
from answers import Questions

SUBJECTS: dict[str, Questions] = {
    "accountant": accountant_questions.QUESTIONS,
}
