"""The papers' figures: numbers of the text below them, from the figures' own files."""

from __future__ import annotations

import json
import math

from measured.parts import ROOT, Sentences, Tables

FIGURES = "docs/reference/figures.md"


def _at(figure: str, panel: int, curve: str, place: float) -> float:
    """A curve's value at an abscissa."""
    path = ROOT / "examples" / "figures" / "results" / f"{figure}.json"
    found = json.loads(path.read_text(encoding="utf-8"))["panels"][panel]
    (one,) = (each for each in found["curves"] if each["name"] == curve)
    return float(one["values"][one.get("x", found["x"]["values"]).index(place)])


def _lower_curve() -> str:
    """The curve of one figure that bounds nothing."""
    name, attained = "lower Rényi bound, converted (bounds nothing)", "attained by a mechanism, this package"
    certified = "certified, this package"
    below = [
        100 * (1 - _at("thesis-5.3", panel, name, 3.0) / _at("thesis-5.3", panel, attained, 3.0))
        for panel in (0, 1)
    ]
    for panel in (0, 1):
        assert _at("thesis-5.3", panel, name, 0.1) > _at("thesis-5.3", panel, certified, 0.1)
    return (
        "at ε0 = 0.1 it lies above the certified ε (thesis Figure 5.3), at ε0 = 3 "
        f"{min(below):.0f} to {max(below):.0f} % below what a mechanism attains"
    )


TABLES: Tables = {}


def sentences() -> Sentences:
    """Pieces of text with numbers of the figures."""
    silent = math.log(1_000 / (16 * math.log(2 / 1e-5)))  # beyond, Theorem 3.1 says nothing
    return {FIGURES: [_lower_curve(), f"which ends at ε0 = {silent:.2f} here"]}
