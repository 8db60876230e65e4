"""ε over one field of a setting, on two logarithmic axes: where everything stands, in pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shuffle_plugins.cli.page.answers import Point
from shuffle_plugins.core import rounded

_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 30.0, 16.0, 48.0
_TALLEST = 30.0  # bounds above this multiple of the certified ε are cut off: they would flatten the rest
_MARGIN = 1.25  # factor between the outermost ε and the frame
_MOST_TICKS = 7

Spot = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A line of the grid: where it is, and what stands beside it."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A bound as a line.

    Attributes:
        name: what it is called.
        style: ``upper``, ``lower``, ``local`` or ``published``.
        path: of SVG; empty if none of it is in the frame.
    """

    name: str
    style: str
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A point of the curve: where it is, and what it says."""

    x: float
    y: float
    text: str
    own: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """Everything to be drawn, in pixels from the upper left corner.

    Attributes:
        width, height: of the whole.
        left, right, top, bottom: the frame.
        across, up: ticks of the two axes.
        band: path around the certified intervals; empty if no lower bound is known.
        lines: bounds.
        dots: points of the certified upper bound.
    """

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    band: str
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...]


def draw(points: Sequence[Point], *, own: float, symbol: str, width: float) -> Picture | None:
    """The picture of these points; None if none of them has an ε above zero.

    Args:
        points: in order of place.
        own: the place of the setting.
        symbol: of what the picture runs over.
        width: in pixels.
    """
    shown = [each for each in points if 0 < each.upper < math.inf]
    if not shown:
        return None
    height = min(max(0.62 * width, 260.0), 420.0)
    left, right, top, bottom = _LEFT, width - _RIGHT, _TOP, height - _BOTTOM
    highest = max(each.upper for each in shown)
    lowest = min(each.lower if each.lower > 0 else each.upper for each in shown)
    others = [value for each in shown for value in (each.local, *(e for _, e in each.published))]
    ceiling = _MARGIN * max([highest, *(value for value in others if value <= _TALLEST * highest)])
    across = _Axis(shown[0].place, shown[-1].place, start=left, end=right)
    up = _Axis(lowest / _MARGIN, ceiling, start=bottom, end=top)

    def path(pairs: Iterable[tuple[float, float]]) -> str:
        spots = ((across.at(place), up.at(value)) for place, value in pairs if value > 0)
        return _path(spots)

    lines = [
        Line(name=name, style="published", path=path(_of(shown, name)))
        for name in dict.fromkeys(name for each in shown for name, _ in each.published)
    ]
    lines += [
        Line(name="local, ε0·T", style="local", path=path((each.place, each.local) for each in shown)),
        Line(name="certified from above", style="upper", path=path((p.place, p.upper) for p in shown)),
        Line(name="certified from below", style="lower", path=path((p.place, p.lower) for p in shown)),
    ]
    known = [each for each in shown if each.lower > 0]
    around = [(each.place, each.upper) for each in known]
    around += [(each.place, each.lower) for each in reversed(known)]
    return Picture(
        width=width,
        height=height,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        across=across.ticks(),
        up=up.ticks(),
        band=f"{path(around)} Z" if len(known) > 1 else "",
        lines=tuple(lines),
        dots=tuple(
            Dot(
                x=round(across.at(each.place), 1),
                y=round(up.at(each.upper), 1),
                text=f"{symbol} = {short(each.place)}: {interval(each.lower, each.upper)}",
                own=each.place == own,
            )
            for each in shown
        ),
    )


def interval(lower: float, upper: float) -> str:
    """An interval of ε as text, rounded outwards; without a lower bound, its upper end."""
    shown = rounded(upper, up=True)
    return f"ε ∈ [{rounded(lower, up=False)}, {shown}]" if lower > 0 else f"ε ≤ {shown}"


def short(value: float) -> str:
    """A number beside an axis: 0.01, 1,200, 1e6."""
    if value >= 1e5 or value < 1e-3:
        text = f"{value:.4g}" if value < 1e5 or value >= 1e6 else f"{value:,.6g}"
        return text.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return f"{value:,.6g}"


def _of(points: Iterable[Point], name: str) -> list[tuple[float, float]]:
    return [(each.place, value) for each in points for known, value in each.published if known == name]


def _path(spots: Iterable[Spot]) -> str:
    return " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(spots))


class _Axis:
    """A logarithmic axis between two values, from one pixel to another."""

    def __init__(self, low: float, high: float, *, start: float, end: float) -> None:
        if low == high:
            low, high = low / 2, high * 2
        self._low, self._high = math.log10(low), math.log10(high)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> tuple[Tick, ...]:
        """At powers of ten, fewer if they are many, and at 2 and 5 between them if they are few."""
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        every = max(1, math.ceil((self._high - self._low) / _MOST_TICKS))
        steps: tuple[int, ...] = (1,)
        if self._high - self._low < 3:
            steps = (1, 2, 5)
        if self._high - self._low < 0.5:
            steps = (1, 2, 3, 4, 5, 6, 7, 8, 9)
        values = (float(f"{step}e{power}") for power in decades if power % every == 0 for step in steps)
        inside = [v for v in values if self._low - 1e-9 <= math.log10(v) <= self._high + 1e-9]
        return tuple(Tick(at=round(self.at(value), 1), label=short(value)) for value in inside)
