"""The papers' figures: numbers of the text below them, from the figures' own files."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

from scipy.optimize import brentq

from measured.parts import ROOT, Sentences, Tables

FIGURES = "docs/reference/figures.md"


@cache
def _file(name: str) -> Any:
    path = ROOT / "examples" / "figures" / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _at(figure: str, panel: int, curve: str, place: float, **wanted: str) -> float:
    """A curve's value at an abscissa."""
    found = _file(figure)["panels"][panel]
    (one,) = (
        each
        for each in found["curves"]
        if each["name"] == curve and all(each.get(key) == value for key, value in wanted.items())
    )
    return float(one["values"][one.get("x", found["x"]["values"]).index(place)])


def _ratios() -> list[str]:
    """Sentences on the headline ratios."""
    rows = _file("headlines")["rows"]
    found = {(row["published_ratio"], row["reading"]): row["reproduced_ratio"] for row in rows}
    over_bound, over_baseline = (
        [row[f"{what}_over_certified"] for row in rows] for what in ("bound", "baseline")
    )
    grows = [
        found[11, f"ε0 = {level}, clones closed form{silent}"]
        for level, silent in (("0.5", ""), ("1", ", silent: no shuffling"), ("2", ", silent: no shuffling"))
    ]
    full, blunt = "shuffle RDP, c = 1/2", "shuffle RDP, c = 1/2, sharper sampling branch left out"
    clones, with_full, with_blunt = (
        _at("thesis-5.6", 1, name, 1e5) for name in ("clones, closed form (ε0 where silent)", full, blunt)
    )
    best = "best c, clones numerically"
    return [
        f"**14×: yes**, {found[14, 'clones closed form, silent at k = 1000: no shuffling']:.1f}.",
        f"own numerical bound the factor is {found[14, 'clones numerically']:.1f}",
        f"comes out at {found[2.5, 'c = 1/2, sampling theorem in full']:.2f}",
        f"second-order term gives {found[2.5, 'c = 1/2, sharper sampling branch left out']:.2f}",
        f"without that branch ({clones:.2f} against {with_blunt:.1f}) and not with it "
        f"({clones:.2f} against {with_full:.2f})",
        f"The closed form of the clones gives {found[8, 'c = 1/2, clones closed form']:.0f}, the numerical "
        f"bound {found[8, 'c = 1/2, clones numerically']:.1f} with",
        f"The best split (Remark 5.3.3) gives {found[8, best]:.1f}, and "
        f"{found[8, f'{best}, simple strong composition']:.1f} with",
        f"{grows[0]:.1f} at 0.5, {grows[1]:.1f} at 1, {grows[2]:.0f} at 2",
        f"by {min(over_bound):.1f} to {max(over_bound):.0f} times, and {min(over_baseline):.0f} to "
        f"{max(over_baseline):.0f} times below the baselines",
    ]


def _training() -> list[str]:
    """Sentences on the ε of the two training schedules."""

    def both(curve: str) -> str:
        return " and ".join(f"{_at('subsampled-5', panel, curve, 200.0):.3g}" for panel in (1, 2))

    return [
        f"reproduces ({both('subsampled shuffle RDP, Thm 1')} after 200 epochs;",
        f"After 200 epochs: {both('clones, numerical')} by strong composition (KOV), "
        f"{both('clones, numerical, simple strong composition')} by the simpler theorem",
        f"and {both('the same, δ of a shuffle γδ/2T instead of δ/2γT')} if each shuffle",
    ]


def _scientific(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")


def _means() -> list[str]:
    """Sentences on the errors of bit planes."""

    def number(curve: str, place: float) -> float:
        return _at("thesis-3.2", 0, curve, place)

    def shuffled(panel: int, curve: str, place: float) -> float:
        return _at("thesis-3.2", panel, curve, place)

    thesis, ours, laplace = "thesis, m = 3", "bit planes, this package", "Laplace"
    planes, rotated = "Kashin, s = 500, thesis RDP", "multi-message, s = 250, thesis RDP"
    fewest = "multi-message, m = 4, thesis RDP"
    levels = _file("thesis-3.2")["panels"][0]["x"]["values"]
    below = [level for level in levels if number(ours, level) < number(laplace, level)]
    planes_win = [
        min(shuffled(1, f"multi-message, m = {m}, {whose}", 1.0) for m in (4, 6))
        for whose in ("our accounting", "thesis RDP")
    ]
    noise = shuffled(1, "Laplace, our accounting", 1.0), shuffled(1, "Laplace, clones", 1.0)
    closed, many = "Laplace, clones closed form", "PrivUnit, clones closed form"
    silent = math.log(1_000 / (16 * math.log(2 / 1e-5)))  # beyond, Theorem 3.1 says nothing

    def from_on(panel: int, lower: str, upper: str) -> float:
        """The least abscissa from which on the first curve is below the second."""
        places = _file("thesis-3.2")["panels"][panel]["x"]["values"]
        below = [shuffled(panel, lower, x) < shuffled(panel, upper, x) for x in places]
        return float(places[len(below) - below[::-1].index(False)])

    assert from_on(1, fewest, "Laplace, clones") == 1.0
    vectors = from_on(2, planes, "PrivUnit, clones")
    own = from_on(2, "Kashin, s = 500, our accounting", "PrivUnit, our accounting")
    return [
        "with the thesis's accounting the planes win from ε = 1 on",
        f"which ends at ε0 = {silent:.2f} here",
        f"they win from ε = 1 on in (b), and in (c) from {vectors:g} on ({own:g} with our accounting",
        f"({number(thesis, 4.0):.3f} against {number(laplace, 4.0):.3f} at ε0 = 4, "
        f"{number(thesis, 8.0):.3f} against {number(laplace, 8.0):.3f} at 8)",
        f"they are closer ({number(ours, 4.0):.3f} and {number(ours, 8.0):.3f}), and below Laplace noise at "
        f"ε0 = {max(below):g} and less",
        f"with ours they are {planes_win[1] / planes_win[0]:.0f} times better again "
        f"(at ε = 1: {_scientific(planes_win[0])}, {_scientific(planes_win[1])} published; Laplace "
        f"{_scientific(noise[0])}, {_scientific(noise[1])} published)",
        f"in (b) ({_scientific(shuffled(1, fewest, 0.5))} against {_scientific(shuffled(1, closed, 0.5))} at "
        f"ε = 0.5) and in (c) with Kashin representations ({shuffled(2, planes, 0.8):.2f} against "
        f"{shuffled(2, many, 0.8):.2f} at ε = 0.8, {shuffled(2, planes, 2.4):.2f} against "
        f"{shuffled(2, many, 2.4):.2f} at 2.4)",
        f"they lose in (c) under either reading ({shuffled(2, rotated, 0.8):.1f} at ε = 0.8)",
    ]


def _entropy(chance: float) -> float:
    """Of a bit, in bits."""
    return -chance * math.log2(chance) - (1 - chance) * math.log2(1 - chance)


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


def _randomness() -> list[str]:
    """Sentences on chapter 7."""
    joint, separate = "one report for all levels", "a report for each level"
    near = [_at("thesis-7.9", 0, name, 0.99) for name in (joint, separate)]
    ten = [_at("thesis-7.9", 1, name, 10.0) for name in (joint, separate)]
    savings = [100 * _at("thesis-7.3", 1, "shortest key", 5.0, series=f"k = {k}") for k in (2, 4, 10)]
    measured = "measured, mean of 20 runs"
    errors = [
        _at("thesis-7.7", 0, measured, clients, series=f"R = {bits}")
        for clients, bits in ((150_000.0, "1"), (850_000.0, "0.7"))
    ]
    fair = brentq(lambda level: _entropy(1 / (math.exp(level) + 1)) - 0.9, 0.1, 2.0)
    deviation = max(
        panel["parameters"].get("largest_deviation", 0.0) for panel in _file("thesis-7.7")["panels"]
    )
    return [
        f"R = 0.9 costs accuracy below ε0 = {fair:.2f}",
        f"the largest standard deviation of one run is {deviation:.2f}",
        f"the savings are {savings[0]:.1f}, {savings[1]:.1f} and {savings[2]:.1f} %",
        f"measured there are {errors[0]:.2f} and {errors[1]:.2f}",
        f"({near[0]:.2f} bits against {near[1]:.2f} at ε2 = 0.99)",
        f"it is {ten[0]:.3f} bits against {ten[1]:.3f}",
    ]


TABLES: Tables = {}


def sentences() -> Sentences:
    """Pieces of text with numbers of the figures."""
    return {FIGURES: [*_ratios(), _lower_curve(), *_training(), *_means(), *_randomness()]}
