"""Answers written down as data: how a value becomes JSON, and when two values are the same.

A question is a function without arguments. Its answer is a number, a text, or anything built of those. What
it raises as ``ValueError`` or ``ArithmeticError`` is an answer too: that it refuses, not in which words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"
RELATIVE = 1e-6
"""By how much two floats may differ: other processors add up in another order, searches end elsewhere."""
MOVED = 5e-4
"""By how much of itself an upper end may rise and a lower end may fall; the other way they are free."""
ROUNDING = 1e-12
"""By how much a mass of a saved law may differ, of a whole of one."""

Question = Callable[[], Any]

REFUSALS = (ValueError, ArithmeticError)


class Questions(dict[str, Question]):
    """Questions by name, each asked for once."""

    def add(self, name: str, question: Question) -> None:
        """Add one under a name of its own."""
        assert name not in self, f"two questions are called {name!r}"
        self[name] = question


def plain(value: Any) -> Any:
    """The value in dict, list, str, int, float, bool and None."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    raise TypeError(f"no answer can be a {type(value).__name__}: {value!r}")


def answer(question: Question) -> Any:
    """What the question answers today, or that it refuses."""
    try:
        return plain(question())
    except REFUSALS as error:
        kind = next(kind for kind in REFUSALS if isinstance(error, kind))
        return {"raises": kind.__name__}


def differences(found: Any, recorded: Any, *, at: str = "") -> Iterator[str]:
    """Where two answers differ, in words; nothing if they are the same up to the tolerances above."""
    if isinstance(recorded, str) and recorded.startswith(("[", "{")):  # a saved law, as text
        found, recorded, at = json.loads(found), json.loads(recorded), f"{at}.state"
    if isinstance(recorded, dict) and isinstance(found, dict):
        for key in recorded.keys() | found.keys():
            if key not in found or key not in recorded:
                yield f"{at}.{key}: only {'recorded' if key in recorded else 'found'}"
            else:
                yield from differences(found[key], recorded[key], at=f"{at}.{key}")
    elif isinstance(recorded, list) and isinstance(found, list):
        if len(found) != len(recorded):
            yield f"{at}: {len(found)} entries, recorded are {len(recorded)}"
        for index, (new, old) in enumerate(zip(found, recorded, strict=False)):
            yield from differences(new, old, at=f"{at}[{index}]")
    elif type(found) is not type(recorded) or not _allowed(found, recorded, at):
        yield f"{at}: {found!r}, recorded is {recorded!r}"


def _allowed(found: Any, recorded: Any, at: str) -> bool:
    if not isinstance(recorded, float) or math.isnan(recorded):
        return bool(found == recorded or (found != found and recorded != recorded))
    if at.endswith("upper"):
        return bool(found <= recorded * (1 + MOVED))
    if at.endswith("lower"):
        return bool(found >= recorded * (1 - MOVED))
    law = ".state" in at or ".round" in at
    return math.isclose(found, recorded, rel_tol=RELATIVE, abs_tol=ROUNDING if law else 0.0)
