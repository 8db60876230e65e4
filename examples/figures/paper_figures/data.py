"""What a figure consists of, and its form in JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

NEIGHBOURING_RELATION = "replace-one"
_DIGITS = 6


class Role(StrEnum):
    """What a curve says about the quantity on the vertical axis."""

    CERTIFIED = "certified"  # upper bound of this package
    ATTAINED = "attained"  # its lower bound: a real mechanism and adversary
    UPPER = "upper"  # published upper bound
    LOWER = "lower"  # published lower bound
    NEITHER = "neither"  # drawn in the paper, or by us for comparison; bounds nothing here
    MEASURED = "measured"


class ParametersFrom(StrEnum):
    """Where a panel's parameters come from."""

    CAPTION = "caption"
    TEXT = "text"
    CHOSEN = "chosen here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One curve of a panel.

    Attributes:
        name: what it is; curves of one name look the same in every figure.
        role: what it says.
        source: where it comes from.
        values: one for every abscissa, None where the bound says nothing.
        series: which of several families in one panel it belongs to.
        abscissae: its own, if they differ from the panel's.
    """

    name: str
    role: Role
    source: str
    values: tuple[float | None, ...]
    series: str = ""
    abscissae: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A line across a panel at one value of one axis."""

    axis: str
    value: float
    name: str
    series: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A pair of values as published."""

    x: float
    y: float
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One panel of a figure; ``log_x`` and ``log_y`` choose the scales, ``y_range`` the ordinates shown."""

    title: str
    x_name: str
    y_name: str
    x: tuple[float, ...]
    curves: tuple[Curve, ...]
    parameters: Mapping[str, float | int | str]
    parameters_from: ParametersFrom
    log_x: bool = True
    log_y: bool = True
    y_range: tuple[float, float] | None = None
    marks: tuple[Mark, ...] = ()
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureData:
    """A figure: its file name, what it shows, which published figure it redraws."""

    name: str
    title: str
    source: str
    panels: tuple[Panel, ...]


def save_json(figure: FigureData, path: Path) -> None:
    """Write a figure's numbers, six significant digits each."""
    path.write_text(json.dumps(_as_json(figure), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rounded(value: float | None) -> float | None:
    """Six significant digits; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def _as_json(figure: FigureData) -> dict[str, Any]:
    return {
        "figure": figure.name,
        "title": figure.title,
        "source": figure.source,
        "neighbouring_relation": NEIGHBOURING_RELATION,
        "panels": [_panel(panel) for panel in figure.panels],
    }


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "title": panel.title.replace("$", "").replace("{", "").replace("}", ""),
        "parameters": dict(panel.parameters),
        "parameters_from": panel.parameters_from.value,
        "x": {"name": panel.x_name, "values": _numbers(panel.x)},
        "y": {"name": panel.y_name},
        "curves": [_curve(curve) for curve in panel.curves],
        "marks": [
            {"axis": m.axis, "value": rounded(m.value), "name": m.name, "series": m.series}
            for m in panel.marks
        ],
        "points": [{"x": p.x, "y": p.y, "name": p.name} for p in panel.points],
    }


def _curve(curve: Curve) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": curve.name, "role": curve.role.value, "source": curve.source}
    if curve.series:
        entry["series"] = curve.series
    if curve.abscissae is not None:
        entry["x"] = _numbers(curve.abscissae)
    entry["values"] = _numbers(curve.values)
    return entry


def _numbers(values: Sequence[float | None]) -> list[float | None]:
    return [rounded(value) for value in values]


def power(value: int) -> str:
    """10ⁿ as figures print it, for a power of ten."""
    exponent = len(str(value)) - 1
    if value != 10**exponent:
        raise ValueError(f"{value} is not a power of ten")
    return f"$10^{{{exponent}}}$"
