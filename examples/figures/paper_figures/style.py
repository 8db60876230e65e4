"""One visual language for all figures: the same bound looks the same everywhere.

Colours are Okabe and Ito's, told apart by colour-blind readers too; line patterns separate what colours might
not. What this package certifies is thick, and the interval down to what a mechanism attains is shaded.
"""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from PIL import Image

from paper_figures import bounds, refinement
from paper_figures.data import Curve, FigureData, Panel, Role

_WIDTH, _PANEL_HEIGHT, _LEGEND_LINE = 4.4, 2.6, 0.2  # inches; a phone is as wide, and its letters as large
_STRIP_HEIGHT, _STRIP_RANGE = 0.75, (0.55, 1.35)
_PALETTE = 128
_DPI = 130
_TALLEST = 300.0  # times the largest certified value; what lies above would only flatten the rest
_BAND = "certified interval"
_BAND_COLOUR = "#ffe47a"
_OURS, _RED, _BLUE, _SKY, _PINK = "#00694c", "#d55e00", "#0072b2", "#56b4e9", "#cc79a7"
_ORANGE, _BROWN, _GREY, _BLACK = "#e69f00", "#8c564b", "#7f7f7f", "#000000"
_BASE: dict[str, Any] = {"linewidth": 1.4, "zorder": 3}
_SERIES = (_BLUE, _RED, _PINK, _OURS, _SKY, _ORANGE)

_STYLES: dict[str, dict[str, Any]] = {
    bounds.OURS: {"color": _OURS, "linewidth": 2.4, "zorder": 4},
    bounds.OURS_BELOW: {"color": _OURS, "linewidth": 1.0, "linestyle": (0, (4, 1.5)), "zorder": 4},
    bounds.SUBSAMPLED_RDP.name: {"color": _RED},
    bounds.LOWER_CONVERTED.name: {"color": _BLACK, "linestyle": (0, (1, 1.2))},
    bounds.SHUFFLE_RDP.name: {"color": _BLUE},
    bounds.SHUFFLE_RDP_AS_PRINTED.name: {"color": _BLUE, "linestyle": (0, (5, 1.5))},
    bounds.SHUFFLE_RDP_BLUNT.name: {"color": _BLUE, "linestyle": (0, (1, 1.2))},
    bounds.SHUFFLE_RDP_2.name: {"color": _SKY},
    bounds.SHUFFLE_RDP_POISSON.name: {"color": _BLUE, "linestyle": (0, (1, 1.2))},
    bounds.CLONES.name: {"color": _PINK},
    bounds.CLONES_OR_NOTHING.name: {"color": _PINK},
    bounds.CLONES_NUMERICAL.name: {"color": _PINK, "linestyle": (0, (5, 1.5))},
    bounds.CLONES_SIMPLE.name: {"color": _ORANGE, "linestyle": (0, (5, 1.5))},
    bounds.CLONES_SPLIT.name: {"color": _ORANGE, "linestyle": (0, (1, 1.2))},
    bounds.CLONES_RDP.name: {"color": _PINK, "linestyle": (0, (5, 1.5, 1, 1.5))},
    bounds.BLANKET.name: {"color": _ORANGE},
    bounds.CHECK_INS.name: {"color": _BROWN, "linestyle": (0, (5, 1.5, 1, 1.5))},
    bounds.EFM19_RDP.name: {"color": _GREY},
    **{
        f"thesis, m = {levels}": {"color": _RED, "linestyle": dashes, "linewidth": 1.1}
        for levels, dashes in ((1, "-"), (2, (0, (5, 1.5))), (3, (0, (3, 1.5, 1, 1.5))), (4, (0, (1, 1.2))))
    },
    "Laplace": {"color": _PINK},
    "bit planes, this package": {"color": _OURS, "linewidth": 2.4, "zorder": 4},
    "PrivUnit": {"color": _BLACK, "linestyle": (0, (1, 1.2))},
    "multi-message, m = 4, thesis RDP": {"color": _RED},
    "multi-message, m = 6, thesis RDP": {"color": _RED, "linestyle": (0, (5, 1.5))},
    "multi-message, m = 4, our accounting": {"color": _OURS},
    "multi-message, m = 6, our accounting": {"color": _OURS, "linestyle": (0, (5, 1.5))},
    "multi-message, s = 200, thesis RDP": {"color": _RED, "linestyle": (0, (1, 1.2))},
    "multi-message, s = 250, thesis RDP": {"color": _RED, "linestyle": (0, (3, 1.5, 1, 1.5))},
    "Kashin, s = 500, thesis RDP": {"color": _BROWN},
    "Kashin, s = 500, our accounting": {"color": _BLACK},
    "multi-message, s = 250, our accounting": {"color": _OURS, "linestyle": (0, (3, 1.5, 1, 1.5))},
    "Laplace, clones": {"color": _PINK, "linestyle": (0, (5, 1.5))},
    "Laplace, clones closed form": {"color": _PINK, "linestyle": (0, (3, 1.5, 1, 1.5))},
    "PrivUnit, clones closed form": {"color": _ORANGE, "linestyle": (0, (3, 1.5, 1, 1.5))},
    "Laplace, our accounting": {"color": _BLUE},
    "PrivUnit, clones": {"color": _ORANGE, "linestyle": (0, (5, 1.5))},
    "PrivUnit, our accounting": {"color": _SKY},
    "binary response, closed form": {"color": _SKY, "linestyle": (0, (5, 1.5, 1, 1.5))},
    "binary response, exact": {"color": _BLACK, "linestyle": (0, (1, 1.2))},
    refinement.SHORTEST: {},
    refinement.MEASURED: {"marker": "o", "markersize": 2.5},
    refinement.JOINT: {"color": _OURS},
    refinement.SEPARATE: {"color": _RED, "linestyle": (0, (5, 1.5))},
    "RAPPOR": {"color": _PINK},
    "k-ary response": {"color": _BLUE},
    "Hadamard response": {"color": _ORANGE},
    "one-bit Hadamard response": {"color": _OURS, "linestyle": (0, (5, 1.5))},
}
_SERIES_PATTERNS: dict[str, dict[str, Any]] = {
    bounds.OURS: {"linewidth": 2.2, "linestyle": "-"},
    "clones, numerical": {"linewidth": 1.1, "linestyle": (0, (5, 1.5))},
    "binary response, exact": {"linewidth": 1.3, "linestyle": (0, (1, 1.2))},
    refinement.SHORTEST: {"linewidth": 1.6, "linestyle": "-"},
    refinement.MEASURED: {"linewidth": 1.2, "linestyle": "-"},
}
_MARK: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (1, 3)), "zorder": 1}
_MARKS = {
    "published ε at 90 %, Thm 1": _RED,
    "published ε at 90 %, clones": _PINK,
    "published ε0 below which R = 0.9 matters": _BLACK,
}
_POINTS = {
    "published accuracy, Thm 1": (_RED, "o"),
    "published accuracy, clones": (_PINK, "s"),
    "published saving": (_ORANGE, "o"),
    "published pair (n, error)": (_ORANGE, "o"),
}
_FONTS = {"title": 10.0, "label": 9.0, "tick": 9.0, "legend": 9.0}


def draw(figure: FigureData, path: Path) -> None:
    """Write a figure as PNG, its panels below each other and the legend below all of them.

    Below a panel of ε or of divergences stands a strip: the same curves as multiples of the certified value.

    Raises:
        OSError: if the file cannot be written.
    """
    rows = len(figure.panels)
    canvas = Figure(figsize=(_WIDTH, 1.0), layout="constrained")
    FigureCanvasAgg(canvas)
    legend: dict[str, Artist] = {}
    outer = canvas.add_gridspec(rows, 1)
    strips = any(map(_has_strip, figure.panels))
    series = dict.fromkeys(curve.series for panel in figure.panels for curve in panel.curves if curve.series)
    colours = dict(zip(series, _SERIES, strict=False))
    for index, panel in enumerate(figure.panels):
        place = outer[index]
        if _has_strip(panel):
            inner = place.subgridspec(2, 1, height_ratios=(3, 1))
            axis = canvas.add_subplot(inner[0])
            _draw_panel(axis, panel, legend, colours)
            _draw_strip(canvas.add_subplot(inner[1], sharex=axis), panel)
            axis.tick_params(labelbottom=False)
            axis.set_xlabel("")
        else:
            _draw_panel(canvas.add_subplot(place), panel, legend, colours)
    first = [name for name in (_BAND, bounds.OURS, bounds.OURS_BELOW) if name in legend]
    names = first + [name for name in legend if name not in first]
    height = (_PANEL_HEIGHT + (_STRIP_HEIGHT if strips else 0)) * rows
    canvas.set_size_inches(_WIDTH, height + _LEGEND_LINE * len(names) + 0.15)
    canvas.legend(
        [legend[name] for name in names],
        names,
        loc="outside lower center",
        fontsize=_FONTS["legend"],
        frameon=False,
        handlelength=2.6,
    )
    raw = BytesIO()
    canvas.savefig(raw, dpi=_DPI)
    # few colours are used: a palette halves the file
    few = Image.open(raw).convert("RGB").quantize(_PALETTE, dither=Image.Dither.NONE)
    few.save(path, optimize=True, dpi=(_DPI, _DPI))


def _has_strip(panel: Panel) -> bool:
    return any(c.role is Role.CERTIFIED and not c.series and c.abscissae is None for c in panel.curves)


def _draw_strip(axis: Axes, panel: Panel) -> None:
    """The panel's curves as multiples of the certified one, around one."""
    (certified,) = (curve.values for curve in panel.curves if curve.role is Role.CERTIFIED)
    for curve in panel.curves:
        multiples = [
            math.nan if value is None or not unit else value / unit
            for value, unit in zip(curve.values, certified, strict=True)
        ]
        if curve.role is Role.ATTAINED:
            axis.fill_between(panel.x, multiples, 1.0, color=_BAND_COLOUR, zorder=2, linewidth=0)
        axis.plot(panel.x, multiples, **(_BASE | _STYLES[curve.name]))
    axis.set_ylim(*_STRIP_RANGE)
    _dress(axis, panel)
    axis.set_ylabel("× certified", fontsize=_FONTS["tick"], labelpad=2)


def _draw_panel(axis: Axes, panel: Panel, legend: dict[str, Artist], colours: dict[str, str]) -> None:
    _draw_band(axis, panel, legend)
    for curve in panel.curves:
        style = _BASE | _STYLES[curve.name]
        if curve.series:
            style |= {**_SERIES_PATTERNS[curve.name], "color": colours[curve.series]}
        x, y = _points(panel, curve)
        axis.plot(x, y, **style)
        if curve.series:
            legend.setdefault(curve.name, Line2D([], [], **{**_SERIES_PATTERNS[curve.name], "color": _GREY}))
        else:
            legend.setdefault(curve.name, Line2D([], [], **style))
    for name in dict.fromkeys(curve.series for curve in panel.curves if curve.series):
        legend.setdefault(name, Patch(color=colours[name]))
    for mark in panel.marks:
        line = axis.axhline if mark.axis == "y" else axis.axvline
        line(mark.value, color=colours.get(mark.series) or _MARKS[mark.name], **_MARK)
        legend.setdefault(mark.name, Line2D([], [], color=_MARKS.get(mark.name, _GREY), **_MARK))
    for point in panel.points:
        colour, marker = _POINTS[point.name]
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "linestyle": "none"}
        axis.plot([point.x], [point.y], markeredgecolor="black", markeredgewidth=0.6, zorder=6, **look)
        legend.setdefault(point.name, Line2D([], [], **look))
    axis.set_yscale("log" if panel.log_y else "linear")
    _limit(axis, panel)
    _dress(axis, panel)
    axis.set_title(panel.title, fontsize=_FONTS["title"])
    axis.set_ylabel(panel.y_name, fontsize=_FONTS["label"], labelpad=2)


def _dress(axis: Axes, panel: Panel) -> None:
    axis.set_xscale("log" if panel.log_x else "linear")
    axis.set_xlabel(panel.x_name, fontsize=_FONTS["label"], labelpad=1)
    axis.tick_params(labelsize=_FONTS["tick"])
    axis.grid(True, which="major", alpha=0.25, linewidth=0.6)
    axis.margins(x=0.02)


def _draw_band(axis: Axes, panel: Panel, legend: dict[str, Artist]) -> None:
    upper = [curve for curve in panel.curves if curve.role is Role.CERTIFIED and not curve.series]
    lower = [curve for curve in panel.curves if curve.role is Role.ATTAINED and not curve.series]
    look: dict[str, Any] = {"color": _BAND_COLOUR, "zorder": 2, "linewidth": 0}
    for below, above in zip(lower, upper, strict=True):
        (low_x, low_y), (high_x, high_y) = _points(panel, below), _points(panel, above)
        if above.abscissae is None:
            axis.fill_between(high_x, low_y, high_y, **look)
        else:
            axis.fill_betweenx(high_y, low_x, high_x, **look)
        legend.setdefault(_BAND, Patch(color=_BAND_COLOUR))


def _points(panel: Panel, curve: Curve) -> tuple[list[float], list[float]]:
    abscissae = panel.x if curve.abscissae is None else curve.abscissae
    values = [math.nan if value is None else value for value in curve.values]
    return list(abscissae), values


def _limit(axis: Axes, panel: Panel) -> None:
    if panel.y_range is not None:
        axis.set_ylim(*panel.y_range)
        return
    if not panel.log_y:
        return
    shown = [v for c in panel.curves for v in c.values if v is not None and v > 0]
    shown += [mark.value for mark in panel.marks if mark.axis == "y"]
    own = [v for c in panel.curves if c.role is Role.CERTIFIED for v in c.values if v is not None]
    axis.set_ylim(0.6 * min(shown), min(1.6 * max(shown), _TALLEST * max(own, default=math.inf)))
