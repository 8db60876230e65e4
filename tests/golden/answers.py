"""Answers written down as data: how a value becomes JSON, and when two answers are the same.

A question is a function without arguments. Its answer is a number, a text, or anything built of those. What
it raises as ``ValueError`` or ``ArithmeticError`` is an answer too: that it refuses, not in which words.
"""

from __future__ import annotations

import hashlib
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
ENTRIES = {"float64": 1e-12, "float32": 1e-6}
"""By how much of its largest entry a vector may differ: by the order of summation, and logarithms."""
HALF_SPACES = ("privunit-g", "blanket-mixed-gaussian")
"""Sums of their reports move by up to 2e-6 with the type of processor, which adds up in another order."""
MOST_VALUES = 8

Question = Callable[[], Any]

REFUSALS = (ValueError, ArithmeticError)


class Questions(dict[str, Question]):
    """Questions by name, each asked for once."""

    def add(self, name: str, question: Question) -> None:
        """Add one under a name of its own."""
        assert name not in self, f"two questions are called {name!r}"
        self[name] = question


def read(room: str) -> dict[str, Any]:
    """What was recorded of a room."""
    path = DATA / f"{room}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write(room: str, answers: Mapping[str, Any]) -> None:
    """One answer a line, so that a difference is readable."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in answers.items()
    )
    (DATA / f"{room}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


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


def digest(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def tensor(values: Any) -> dict[str, Any]:
    """A tensor: of floats, its first values, their sum and squares; of whole numbers, a digest of all."""
    flat = values.detach().flatten()
    shape = list(values.shape)
    if not values.is_floating_point():
        flat = flat.long()
        data = flat.contiguous().numpy().astype("<i8").tobytes()
        return {"shape": shape, "first": flat[:MOST_VALUES].tolist(), **digest(data)}
    found = flat.double()
    finite = found[found.isfinite()]
    return {
        "dtype": str(values.dtype).removeprefix("torch."),
        "shape": shape,
        "values": found[:MOST_VALUES].tolist(),
        "largest": float(finite.abs().max()) if len(finite) else 0.0,
        "sum": float(finite.sum()),
        "squares": float(finite.square().sum()),
    }


def differences(found: Any, recorded: Any, *, at: str = "") -> Iterator[str]:
    """Where two answers differ, in words; nothing if they are the same up to the tolerances above."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        for key in recorded.keys() | found.keys():
            if key not in found or key not in recorded:
                yield f"{at}.{key}: only {'recorded' if key in recorded else 'found'}"
        if "values" in recorded and "dtype" in recorded:
            yield from _differences_of_vectors(found, recorded, at=at)
            return
        for key in recorded.keys() & found.keys():
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
    if at.endswith(".upper"):
        return bool(found <= recorded * (1 + MOVED))
    if at.endswith(".lower"):
        return bool(found >= recorded * (1 - MOVED))
    return math.isclose(found, recorded, rel_tol=RELATIVE)


def _differences_of_vectors(found: dict[str, Any], recorded: dict[str, Any], *, at: str) -> Iterator[str]:
    if [found.get(key) for key in ("dtype", "shape")] != [recorded[key] for key in ("dtype", "shape")]:
        yield f"{at}: of {found.get('dtype')} {found.get('shape')}"
        return
    relative = (
        1e-5 if at.startswith(HALF_SPACES) and recorded["dtype"] == "float32" else ENTRIES[recorded["dtype"]]
    )
    entries, largest = max(1, math.prod(recorded["shape"])), recorded["largest"]
    pairs = [(new, old, largest) for new, old in zip(found["values"], recorded["values"], strict=True)]
    scales = {"largest": largest, "sum": entries * largest, "squares": entries * largest**2}
    pairs += [(found[key], recorded[key], scale) for key, scale in scales.items()]
    for new, old, scale in pairs:
        if not (new == old or abs(new - old) <= relative * scale):
            yield f"{at}: {new!r}, recorded is {old!r}"
