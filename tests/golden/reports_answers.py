"""How answers are written down and compared: exactly what is discrete, floats to their own rounding.

An answer is made of dicts, lists, strings, whole numbers, floats, bytes (hexadecimal or a digest), vectors.
A vector says its dtype: float64 is compared to 1e-12 and float32 to 1e-6 of its largest entry, as an order of
summation, or another processor's logarithm, may change the last digits. Single numbers: as in ``answers``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import answers
from torch import Tensor

DATA = Path(__file__).parent / "data"
FILES = DATA / "files"
MOST_VALUES = 8
RELATIVE = {"float64": 1e-12, "float32": 1e-6}

Questions = Mapping[str, Callable[[], Any]]


def path_of(topic: str) -> Path:
    return DATA / f"reports_{topic}.json"


def read(topic: str) -> dict[str, Any]:
    path = path_of(topic)
    answers: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return answers


def write(topic: str, answers: Mapping[str, Any]) -> None:
    """One question a line, so that a difference is readable."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(answers[name])}" for name in sorted(answers))
    path_of(topic).write_text("{\n" + lines + "\n}\n")


def digest(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def whole(values: Tensor) -> dict[str, Any]:
    """A tensor of whole numbers or bools: its first values, and a digest of all of them."""
    flat = values.detach().long().contiguous().flatten()
    data = flat.numpy().astype("<i8").tobytes()
    return {"shape": list(values.shape), "first": flat[:MOST_VALUES].tolist(), **digest(data)}


def vector(values: Tensor) -> dict[str, Any]:
    """A tensor of floats: its first values, their sum and the sum of their squares."""
    found = values.detach().double().flatten()
    finite = found[found.isfinite()]
    return {
        "dtype": str(values.dtype).removeprefix("torch."),
        "shape": list(values.shape),
        "values": found[:MOST_VALUES].tolist(),
        "largest": float(finite.abs().max()) if len(finite) else 0.0,
        "sum": float(finite.sum()),
        "squares": float(finite.square().sum()),
    }


def tensor(values: Tensor) -> dict[str, Any]:
    return vector(values) if values.is_floating_point() else whole(values)


def compare(found: Any, expected: Any, *, at: str = "", relative: Mapping[str, float] = RELATIVE) -> None:
    """Raise an AssertionError that names the first place where they differ, numbers by over ``relative``."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), f"{at}: {found!r} is not {expected!r}"
        assert sorted(found) == sorted(expected), f"{at}: {sorted(found)} is not {sorted(expected)}"
        if "values" in expected and "dtype" in expected:
            _compare_vectors(found, expected, at=at, relative=relative[expected["dtype"]])
            return
        for key, value in expected.items():
            compare(found[key], value, at=f"{at}/{key}", relative=relative)
    elif isinstance(expected, list):
        assert isinstance(found, list | tuple), f"{at}: {found!r} is not {expected!r}"
        assert len(found) == len(expected), f"{at}: {len(found)} entries, {len(expected)} expected"
        for place, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            compare(ours, theirs, at=f"{at}/{place}", relative=relative)
    else:
        assert not list(answers.differences(found, expected, at=at))


def _compare_vectors(found: dict[str, Any], expected: dict[str, Any], *, at: str, relative: float) -> None:
    for key in ("dtype", "shape"):
        assert found[key] == expected[key], f"{at}/{key}: {found[key]} is not {expected[key]}"
    entries, largest = max(1, math.prod(expected["shape"])), expected["largest"]
    for place, (ours, theirs) in enumerate(zip(found["values"], expected["values"], strict=True)):
        assert _close(ours, theirs, relative * largest), f"{at}/{place}: {ours!r} is not {theirs!r}"
    for key, scale in (("largest", largest), ("sum", entries * largest), ("squares", entries * largest**2)):
        assert _close(found[key], expected[key], relative * scale), (
            f"{at}/{key}: {found[key]!r} is not {expected[key]!r}"
        )


def _close(found: float, expected: float, distance: float) -> bool:
    return found == expected or abs(found - expected) <= distance
