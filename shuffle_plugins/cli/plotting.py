"""Pictures of the command line's answers: ε against rounds for every bound, a plan's error against k."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shuffle_plugins import accounting, planning
from shuffle_plugins.core import rounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAND = {"facecolor": "#ffe47a", "edgecolor": "#ffe47a", "zorder": 1}
# Okabe and Ito's palette, told apart by colour-blind readers too, for the package's own bounds; published
# ones recede: grey and thin, told apart by hollow markers, dark if composed by Rényi divergence.
_COLOURS = ("#00694c", "#0072b2", "#cc79a7", "#d55e00", "#332288", "#e69f00", "#56b4e9", "#8c564b", "#000000")
_UNAMPLIFIED = "local epsilon, no amplification"
_STRAY, _CHOSEN = "#9a9a9a", "#ffb000"
_WIDTH = 4.4  # inches: letters of nine points are then readable on a phone
_SPAN_POINTS = 175  # height of a panel of choices; a line of text in it is 11
_LINE = 11 / _SPAN_POINTS
_LETTER, _GAP = 0.028, 0.05  # of a panel's width: a letter, and from a dot to its name

Curve = list[tuple[float, int, float]]


def check_drawable(path: Path) -> None:
    """Refuse a picture that cannot be written, before what it shows is computed."""
    formats = _figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise ValueError(f"{path.name}: a picture's name ends in one of {', '.join(sorted(formats))}")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent} to write {path.name} to")


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plot_comparisons(*, comparisons: Sequence[accounting.Comparison], path: Path) -> None:
    """Write a log-log picture of ε against rounds: one panel per ε0, one line per bound.

    Published bounds are grey. Below each panel the same lines stand as multiples of the certified ε.
    """
    panels: dict[float, list[accounting.Comparison]] = {}
    curves: dict[tuple[str, str], Curve] = {}
    for answer in sorted(comparisons, key=lambda each: each.num_steps):
        level = answer.shuffle_round.local_epsilon
        panels.setdefault(level, []).append(answer)
        for bound in answer.bounds:
            if bound.epsilon > 0:  # zeros have no place on a log scale
                point = (level, answer.num_steps, bound.epsilon)
                curves.setdefault((bound.kind, bound.name), []).append(point)
    markers = dict(
        zip(
            (each.name for each in accounting.published.PUBLISHED_BOUNDS),
            cycle("os^vDPX*<>d+x1p"),
            strict=False,
        )
    )
    styles = _styles(curves, markers)
    figure = _figure(4.0 + 4.5 * len(panels), 6.8)
    rows = figure.subplots(
        2, len(panels), sharex="col", sharey="row", squeeze=False, gridspec_kw={"height_ratios": (3, 1)}
    )
    intervals = [answer.interval for answer in comparisons]
    # Bounds above a hundred times the certified ε are left out: they would flatten the rest.
    tallest = 100.0 * max(interval.upper for interval in intervals)
    loosest = min((each.lower / each.upper for each in intervals if each.lower > 0), default=1.0)
    own: dict[str, Any] = {}
    published: dict[str, Any] = {}
    for axis, ratios, (local_epsilon, answers) in zip(*rows, panels.items(), strict=True):
        known = [(each.num_steps, each.interval) for each in answers if each.interval.lower > 0]
        if known:
            steps, found = zip(*known, strict=True)
            lower, upper = [each.lower for each in found], [each.upper for each in found]
            own["certified interval"] = axis.fill_between(steps, lower, upper, **_BAND)
            parts = [each.lower / each.upper for each in found]
            ratios.fill_between(steps, parts, [1.0] * len(parts), **_BAND)
        exact = {answer.num_steps: answer.interval.upper or math.nan for answer in answers}
        for key, curve in curves.items():
            label = key[1] if key[1] in markers else f"{key[1]} ({key[0]})"
            points = [each[1:] for each in curve if each[0] == local_epsilon]
            if not points or (tallest > 0 and all(epsilon > tallest for _, epsilon in points)):
                continue
            steps, epsilons = zip(*points, strict=True)
            (line,) = axis.plot(steps, epsilons, **styles[key])
            (published if key[1] in markers or key[1] == _UNAMPLIFIED else own)[label] = line
            multiples = [epsilon / exact[at] for at, epsilon in points]
            ratios.plot(steps, multiples, **styles[key])
        axis.set(xscale="log", yscale="log", title=f"ε0 = {local_epsilon:g}")
        axis.set_ylim(top=tallest or None)
        ratios.set(xlabel="rounds", ylim=(min(0.7, 0.9 * loosest), 1.25))
        for each in (axis, ratios):
            each.grid(True, which="major", alpha=0.3)
    rows[0][0].set_ylabel(f"ε at δ = {intervals[0].delta:g} ({intervals[0].neighbouring_relation})")
    rows[1][0].set_ylabel("× certified ε")
    for entries, title, place in (
        (own, "this package", "outside right lower"),
        (published, "published upper bounds", "outside right upper"),
    ):
        if entries:
            figure.legend(entries.values(), entries.keys(), loc=place, title=title, fontsize="small")
    figure.savefig(path, dpi=160)


def _styles(
    curves: Mapping[tuple[str, str], Curve], published: Mapping[str, str]
) -> dict[tuple[str, str], dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    colours = cycle(_COLOURS)
    for kind, name in sorted(curves):
        style: dict[str, Any] = {"markersize": 5}
        if name == _UNAMPLIFIED:
            style |= {"color": "black", "linestyle": ":", "linewidth": 1.2, "zorder": 2}
        elif name in published:
            style |= {"color": "#5a5a5a" if "RDP" in name else "#a3a3a3", "linewidth": 0.8, "zorder": 2}
            style |= {"marker": published[name], "markerfacecolor": "white"}
        else:
            style |= {"color": next(colours), "linewidth": 1.8, "marker": ".", "zorder": 3}
        found[kind, name] = style | ({} if kind == "upper" else {"linestyle": "--"})
    return found


def plot_plan(*, plan: planning.Plan, path: Path) -> None:
    """Write a log-log picture of a plan: the error against k above, ε0 below, one curve per T.

    The best mechanism's combinations are drawn, the best and the thrifty one marked; a dashed line is the
    error of a trusted curator's Gaussian mechanism. Where only one cohort was tried, T takes the place of k.
    """
    figure = _figure(_WIDTH, 7.6)
    from matplotlib import colormaps
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    errors, levels = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2)})
    rows = [row for row in plan.rows if row.mechanism == plan.best.mechanism]
    across_rounds = len({row.cohort for row in rows}) == 1
    curves: dict[int, list[planning.PlanRow]] = {}
    for row in rows:
        curves.setdefault(0 if across_rounds else row.num_steps, []).append(row)

    def place(row: planning.PlanRow) -> int:
        return row.num_steps if across_rounds else row.cohort

    def draw(rows: Sequence[planning.PlanRow], *, label: str | None = None, **style: Any) -> None:
        places = [place(row) for row in rows]
        errors.plot(places, [row.average_mse for row in rows], label=label, **style)
        levels.plot(places, [row.local_epsilon for row in rows], **style)

    drawn = sorted(steps for steps, curve in curves.items() if len(curve) >= 3)  # fewer points are dots
    for steps, curve in sorted(curves.items()):
        curve.sort(key=place)
        if steps in drawn:
            shade = colormaps["viridis"](0.85 * drawn.index(steps) / max(len(drawn) - 1, 1))
            label = f"k = {curve[0].cohort:,}" if across_rounds else f"T = {steps:,}"
            draw(curve, label=label, color=shade, marker="o", markersize=3, linewidth=1.4)
        else:
            draw(curve, color=_STRAY, marker="o", markersize=3, linestyle="none", zorder=1)
    marked = {"thrifty": (plan.thrifty, "D", 8)} if plan.thrifty != plan.best else {}
    for name, (row, marker, size) in (marked | {"best": (plan.best, "*", 15)}).items():
        level = rounded(row.local_epsilon, up=False)
        draw(
            [row],
            label=f"{name}: k = {row.cohort:,}, T = {row.num_steps:,}, ε0 = {level}",
            marker=marker,
            markersize=size,
            markerfacecolor=_CHOSEN,
            markeredgecolor="black",
            linestyle="none",
            zorder=5,
        )
    curator = plan.baselines[-1]
    errors.axhline(curator.average_mse, color="#7f7f7f", linestyle="--", linewidth=1.2, label=curator.name)
    figure.suptitle(
        f"{plan.best.mechanism}, d = {plan.dim:,}, n = {plan.population:,}:\n"
        f"ε = {plan.target_epsilon:g}, δ = {plan.delta:g}, {plan.neighbouring_relation},\n"
        f"{plan.adversary}, {plan.sampling}",
        fontsize="medium",
    )
    errors.set(xscale="log", yscale="log", ylabel="MSE of the average over T rounds")
    levels.set(xscale="log", yscale="log", ylabel="ε0 of one report", xlabel="T" if across_rounds else "k")
    for axis in (errors, levels):
        axis.grid(True, which="major", alpha=0.3)
    levels.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    levels.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    levels.yaxis.set_minor_formatter(NullFormatter())
    marks, names = errors.get_legend_handles_labels()
    figure.legend(marks, names, loc="outside lower center", ncols=1 if len(names) < 8 else 2, fontsize=9)
    figure.savefig(path, dpi=130)


def plot_choices(*, panels: Mapping[str, Sequence[planning.Choice]], path: Path) -> None:
    """Write a log-log picture of error against bits: panels below each other, one named dot per mechanism.

    Mechanisms that no other beats in both error and bits are joined: the frontier.
    """
    if not panels:
        raise ValueError("no mechanism to draw")
    figure = _figure(_WIDTH, 3.9 * len(panels))
    axes = figure.subplots(len(panels), squeeze=False).flatten()
    for axis, (title, found) in zip(axes, panels.items(), strict=True):
        best: list[planning.Choice] = []
        for choice in sorted(found, key=lambda each: (each.bits, each.variance)):
            last = best[-1] if best else None
            if (
                last is None
                or choice.variance < last.variance
                or ((choice.bits, choice.variance) == (last.bits, last.variance))
            ):
                best.append(choice)
        frontier = [each.bits for each in best], [each.variance for each in best]
        axis.plot(*frontier, color=_STRAY, linestyle=":", zorder=1)
        across = _placed_in_log([each.bits for each in found])
        up = _placed_in_log([each.variance for each in found])
        labels: list[tuple[float, float, float]] = []  # left and right end, height
        for x, y, choice in sorted(zip(across, up, found, strict=True), key=lambda placed: placed[1]):
            axis.plot(choice.bits, choice.variance, "o", color=_CHOSEN if choice in best else "#56b4e9")
            long = _LETTER * len(choice.name)
            left = x - _GAP - long if x > 0.5 else x + _GAP
            height = y
            for start, end, at in sorted(labels, key=lambda label: label[2]):
                if start < left + long and left < end and abs(at - height) < _LINE:
                    height = at + _LINE
            labels.append((left, left + long, height))
            axis.annotate(
                choice.name,
                (choice.bits, choice.variance),
                xytext=(-12 if x > 0.5 else 12, 5 + (height - y) * _SPAN_POINTS),
                textcoords="offset points",
                horizontalalignment="right" if x > 0.5 else "left",
                fontsize=9,
                weight="bold" if choice in best else "normal",
                arrowprops={"arrowstyle": "-", "color": _STRAY, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 3},
            )
        axis.set(xscale="log", yscale="log", xlabel="bits per report", ylabel="mean squared error")
        axis.set_title(title)
        axis.margins(x=0.1, y=0.25)
        axis.grid(True, which="major", alpha=0.3)
    figure.savefig(path, dpi=130)


def _placed_in_log(values: Sequence[float]) -> list[float]:
    logs = [math.log(value) for value in values]
    low, span = min(logs), max(max(logs) - min(logs), 1e-9)
    return [(each - low) / span for each in logs]
