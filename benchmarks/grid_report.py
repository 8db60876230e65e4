"""What the grid shows: by how much each published bound is above ours, and how tight our own interval is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from grid_settings import Cell
from matplotlib import pyplot as plt

TOLERANCE = 1e-6
"""Relative; ours above a published bound by more is a violation."""

LARGE_COHORT = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Of ratios: how many, and the least, the median and the greatest."""

    count: int
    least: float
    median: float
    most: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a grid shows.

    Attributes:
        neighbouring_relation: of every ε.
        settings: how many.
        wall_seconds: of the whole grid.
        processor_seconds: of it, over all processes.
        processes: that shared it.
        seconds: processor time per setting of our interval and of every published bound.
        published: published over our upper bound, by name, where it applies.
        best_published: the smallest published over ours.
        specific: bounds for one mechanism over that mechanism's own upper bound.
        generic: upper over lower for every ε0-LDP randomizer, by regime.
        mechanisms: the same for mechanisms with their own law.
        violations: settings where ours is above a published bound.
    """

    neighbouring_relation: str
    settings: int
    wall_seconds: float
    processor_seconds: float
    processes: int
    seconds: dict[str, Spread]
    published: dict[str, Spread]
    best_published: Spread
    specific: dict[str, Spread]
    generic: dict[str, Spread]
    mechanisms: dict[str, Spread]
    violations: list[dict[str, Any]]


REGIMES: dict[str, Callable[[Cell], bool]] = {
    "all": lambda cell: True,
    f"k >= {LARGE_COHORT}": lambda cell: cell.setting.cohort >= LARGE_COHORT,
    f"k < {LARGE_COHORT}": lambda cell: cell.setting.cohort < LARGE_COHORT,
    "T = 1": lambda cell: cell.setting.num_steps == 1,
    "T > 1": lambda cell: cell.setting.num_steps > 1,
    "T >= 1000": lambda cell: cell.setting.num_steps >= 1_000,
    "k = n": lambda cell: cell.setting.cohort == cell.setting.population,
    "k < n": lambda cell: cell.setting.cohort < cell.setting.population,
    "ε0 < 0.4": lambda cell: cell.setting.local_epsilon < 0.4,
    "0.4 <= ε0 < 1.2": lambda cell: 0.4 <= cell.setting.local_epsilon < 1.2,
    "1.2 <= ε0 < 3": lambda cell: 1.2 <= cell.setting.local_epsilon < 3,
    "ε0 >= 3": lambda cell: cell.setting.local_epsilon >= 3,
    "space-filling": lambda cell: cell.setting.kind == "space-filling",
}


def report(cells: Sequence[Cell], *, wall_seconds: float, processes: int) -> Report:
    names = list(cells[0].published)
    laws = {name for cell in cells for name in cell.mechanisms}
    specific = {name for cell in cells for name in cell.specific}
    generic = {
        regime: _spread([_ratio(cell.own.upper, cell.own.lower) for cell in cells if holds(cell)])
        for regime, holds in REGIMES.items()
    }
    return Report(
        neighbouring_relation="replace-one",
        settings=len(cells),
        wall_seconds=wall_seconds,
        processor_seconds=sum(cell.processor_seconds for cell in cells),
        processes=processes,
        seconds={
            "ours": _spread([cell.own.seconds for cell in cells]),
            **{name: _spread([cell.seconds[name] for cell in cells]) for name in names},
        },
        published={name: _spread(_over(cells, name)) for name in names},
        best_published=_spread([_ratio(best_published(cell), cell.own.upper) for cell in cells]),
        specific={
            name: _spread(
                [
                    _ratio(value, cell.mechanisms[name.split(":")[0]].upper)
                    for cell in cells
                    if (value := cell.specific.get(name)) is not None
                ]
            )
            for name in sorted(specific)
        },
        generic=generic,
        mechanisms={
            name: _spread(
                [
                    _ratio(own.upper, own.lower)
                    for cell in cells
                    if (own := cell.mechanisms.get(name)) is not None
                ]
            )
            for name in sorted(laws)
        },
        violations=[violation for cell in cells for violation in violations(cell)],
    )


def best_published(cell: Cell) -> float:
    return min(value for value in cell.published.values() if value is not None)


def violations(cell: Cell) -> list[dict[str, Any]]:
    """The bounds that ours is above, with all that is needed to reproduce it."""
    pairs = [(name, value, cell.own.upper) for name, value in cell.published.items()]
    pairs += [
        (name, value, cell.mechanisms[name.split(":")[0]].upper) for name, value in cell.specific.items()
    ]
    setting = cell.setting
    return [
        {
            "bound": name,
            "published": value,
            "ours": ours,
            "excess": _ratio(ours, value) - 1,
            "population": setting.population,
            "cohort": setting.cohort,
            "local_epsilon": setting.local_epsilon,
            "num_steps": setting.num_steps,
            "delta": setting.delta,
        }
        for name, value, ours in pairs
        if value is not None and ours > value * (1 + TOLERANCE)
    ]


def plot(cells: Sequence[Cell], path: Path) -> None:
    """Upper over lower, and the best published over ours, both against ε0."""
    mpl.use("Agg")
    figure, (above, below) = plt.subplots(2, figsize=(4.5, 7.2), layout="constrained")
    groups = {
        f"k ≥ {LARGE_COHORT}": ("#0072b2", "o", REGIMES[f"k >= {LARGE_COHORT}"]),
        f"k < {LARGE_COHORT}": ("#d55e00", "^", REGIMES[f"k < {LARGE_COHORT}"]),
    }
    for label, (colour, marker, holds) in groups.items():
        some = [cell for cell in cells if holds(cell)]
        style: dict[str, Any] = {"color": colour, "marker": marker, "s": 16, "alpha": 0.7, "label": label}
        levels = [cell.setting.local_epsilon for cell in some]
        above.scatter(levels, [_ratio(cell.own.upper, cell.own.lower) for cell in some], **style)
        below.scatter(levels, [_ratio(best_published(cell), cell.own.upper) for cell in some], **style)
    above.axhline(math.sqrt(4 / 3), color="#7f7f7f", linewidth=1)
    above.annotate("√(4/3)", (0.1, math.sqrt(4 / 3)), xytext=(0, 3), textcoords="offset points")
    above.set(ylabel="our upper / our lower", title="every ε0-LDP randomizer: certified interval")
    above.set_ylim(0.99, 1.3)
    below.axhline(1.0, color="#7f7f7f", linewidth=1)
    below.set(yscale="log", ylabel="best published / ours", title="best valid published bound over ours")
    for axes in (above, below):
        axes.set(xscale="log", xlabel="ε0")
        axes.grid(visible=True, alpha=0.25)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _over(cells: Sequence[Cell], name: str) -> list[float]:
    return [_ratio(value, cell.own.upper) for cell in cells if (value := cell.published[name]) is not None]


def _ratio(upper: float, lower: float) -> float:
    """upper / lower; infinite over nothing, but nothing over nothing is one."""
    if upper == 0:
        return 1.0
    return upper / lower if lower > 0 else math.inf


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(count=0, least=math.nan, median=math.nan, most=math.nan)
    return Spread(count=len(values), least=min(values), median=statistics.median(values), most=max(values))
