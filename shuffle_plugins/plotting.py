"""Pictures of the command line's answers: ε against rounds for every bound, and a plan's error against k."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    from shuffle_plugins.comparison import Comparison
    from shuffle_plugins.planning import Plan, PlanRow

_TALLEST = 100.0
_LOWEST_RATIO, _HIGHEST_RATIO = 0.7, 1.25
_BAND = "certified interval"
_BAND_COLOUR = "#ffe47a"
# Okabe and Ito's palette: told apart by colour-blind readers too.
_COLOURS = {
    "blanket pair, PLD": "#00694c",
    "blanket pair, RDP": "#0072b2",
    "subsampled shuffle RDP, published": "#d55e00",
    "clones, closed form": "#cc79a7",
    "local epsilon, no amplification": "#7f7f7f",
    "3-RR instance": "#009e73",
    "binary-RR instance": "#e69f00",
}
_CURVE = 3
_STRAY = "#9a9a9a"
_CHOSEN = "#ffb000"
_FURTHER_COLOURS = ("#56b4e9", "#8c564b", "#000000", "#bcbd22")


class PlottingUnavailable(ImportError):
    """Matplotlib is not installed."""


def plot_comparisons(*, comparisons: Sequence[Comparison], path: Path) -> None:
    """Write a log-log picture of ε against rounds: one panel per ε0, one line per bound.

    The certified interval is shaded. Below each panel the same lines stand as multiples of the certified ε,
    on a linear scale around 1.

    Args:
        comparisons: any number of answers at one δ; those of equal ε0 are joined in order of their rounds.
        path: file to write; its suffix chooses the format.

    Raises:
        PlottingUnavailable: if Matplotlib is not installed.
        ValueError: if there is nothing to draw, or the format is unknown.
        OSError: if the file cannot be written.
    """
    if not comparisons:
        raise ValueError("nothing to plot")

    panels: dict[float, list[Comparison]] = {}
    for comparison in sorted(comparisons, key=lambda each: each.num_steps):
        panels.setdefault(comparison.shuffle_round.local_epsilon, []).append(comparison)

    figure = _figure(1.5 + 5.0 * len(panels), 6.4)
    colours = bound_colours({bound.name for comparison in comparisons for bound in comparison.bounds})
    rows = figure.subplots(
        2, len(panels), sharex="col", sharey="row", squeeze=False, gridspec_kw={"height_ratios": (3, 1)}
    )
    legend: dict[str, Artist] = {}
    intervals = [answer.interval for answer in comparisons if answer.interval.lower > 0]
    loosest = min((interval.lower / interval.upper for interval in intervals), default=1.0)
    for axis, ratios, (local_epsilon, answers) in zip(*rows, panels.items(), strict=True):
        curves: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
        for answer in answers:
            for bound in answer.bounds:
                if bound.epsilon > 0:
                    upper_epsilon = answer.interval.upper
                    ratio = bound.epsilon / upper_epsilon if upper_epsilon > 0 else math.nan
                    point = (answer.num_steps, bound.epsilon, ratio)
                    curves.setdefault((bound.kind, bound.name), []).append(point)
        certified = [
            (answer.num_steps, answer.interval.lower, answer.interval.upper)
            for answer in answers
            if answer.interval.lower > 0
        ]
        if certified:
            rounds, lower, upper = zip(*certified, strict=True)
            band: dict[str, Any] = {"facecolor": _BAND_COLOUR, "edgecolor": _BAND_COLOUR, "zorder": 1}
            legend[_BAND] = axis.fill_between(rounds, lower, upper, **band)
            part = [low / high for low, high in zip(lower, upper, strict=True)]
            ratios.fill_between(rounds, part, [1.0] * len(part), **band)
        for (kind, name), points in curves.items():
            rounds, epsilons, multiples = zip(*points, strict=True)
            line: dict[str, Any] = {
                "color": colours[name],
                "linestyle": "-" if kind == "upper" else "--",
                "linewidth": 1.2,
                "marker": "o",
                "markersize": 2.5,
            }
            (legend[f"{name} ({kind})"],) = axis.plot(rounds, epsilons, **line)
            ratios.plot(rounds, multiples, **line)
        axis.set(xscale="log", yscale="log", title=f"ε0 = {local_epsilon:g}")
        # bounds that far above the certified one would only flatten the rest
        axis.set_ylim(top=_TALLEST * max(answer.interval.upper for answer in comparisons) or None)
        axis.grid(True, which="major", alpha=0.3)
        ratios.set(xlabel="rounds", ylim=(min(_LOWEST_RATIO, 0.9 * loosest), _HIGHEST_RATIO))
        ratios.grid(True, which="major", alpha=0.3)
    interval = comparisons[0].interval
    rows[0][0].set_ylabel(f"ε at δ = {interval.delta:g} ({interval.neighbouring_relation})")
    rows[1][0].set_ylabel("× certified ε")
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=160)


def plot_plan(*, plan: Plan, path: Path) -> None:
    """Write a log-log picture of a plan: the error against k above, ε0 below, one curve per T.

    The best mechanism's combinations are drawn, the best and the thrifty one marked; a dashed line is the
    error of a trusted curator's Gaussian mechanism. Where only one cohort was tried, T takes the place of k.

    Args:
        plan: what to draw.
        path: file to write; its suffix chooses the format.

    Raises:
        PlottingUnavailable: if Matplotlib is not installed.
        ValueError: if the format is unknown.
        OSError: if the file cannot be written.
    """
    figure = _figure(7.6, 7.2)
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    errors, levels = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2)})
    rows = [row for row in plan.rows if row.mechanism == plan.best.mechanism]
    across_rounds = len({row.cohort for row in rows}) == 1
    curves: dict[int, list[PlanRow]] = {}
    for row in rows:
        curves.setdefault(0 if across_rounds else row.num_steps, []).append(row)

    def place(row: PlanRow) -> int:
        return row.num_steps if across_rounds else row.cohort

    drawn = sorted(steps for steps, curve in curves.items() if len(curve) >= _CURVE)
    colours = _shades(drawn)
    for steps, curve in sorted(curves.items()):
        curve.sort(key=place)
        places = [place(row) for row in curve]
        style: dict[str, Any] = {"color": colours.get(steps, _STRAY), "marker": "o", "markersize": 3}
        if steps in colours:
            style |= {
                "linewidth": 1.4,
                "label": f"k = {curve[0].cohort:,}" if across_rounds else f"T = {steps:,}",
            }
        else:
            style |= {"linestyle": "none", "zorder": 1}
        errors.plot(places, [row.average_mse for row in curve], **style)
        levels.plot(places, [row.local_epsilon for row in curve], **style)
    for row, name, marker in ((plan.thrifty, "thrifty", "D"), (plan.best, "best", "*")):
        if name == "thrifty" and row == plan.best:
            continue
        told = f"{name}: k = {row.cohort:,}, T = {row.num_steps:,}, ε0 = {row.local_epsilon:.3g}"
        mark: dict[str, Any] = {
            "marker": marker,
            "markersize": 15 if marker == "*" else 8,
            "markerfacecolor": _CHOSEN,
            "markeredgecolor": "black",
            "linestyle": "none",
            "zorder": 5,
        }
        errors.plot([place(row)], [row.average_mse], label=told, **mark)
        levels.plot([place(row)], [row.local_epsilon], **mark)
    curator = plan.baselines[-1]
    errors.axhline(curator.average_mse, color="#7f7f7f", linestyle="--", linewidth=1.2, label=curator.name)
    figure.suptitle(
        f"{plan.best.mechanism}, d = {plan.dim:,}, n = {plan.population:,}: ε = {plan.target_epsilon:g}, "
        f"δ = {plan.delta:g}\n({plan.neighbouring_relation}, {plan.adversary}, {plan.sampling})",
        fontsize="medium",
    )
    errors.set(xscale="log", yscale="log", ylabel="MSE of the average over T rounds")
    levels.set(xscale="log", yscale="log", ylabel="ε0 of one report", xlabel="T" if across_rounds else "k")
    for axis in (errors, levels):
        axis.grid(True, which="major", alpha=0.3)
    levels.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    levels.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    levels.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(*errors.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=160)


def _figure(width: float, height: float) -> Figure:
    """An empty figure that needs no display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlottingUnavailable(
            "plotting needs Matplotlib; install it with: pip install 'shuffle-plugins[plot]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _shades(values: Sequence[int]) -> dict[int, Any]:
    """A colour for every value, from dark to light."""
    from matplotlib import colormaps

    shades = colormaps["viridis"]
    return {value: shades(0.85 * i / max(len(values) - 1, 1)) for i, value in enumerate(values)}


def bound_colours(names: Collection[str]) -> dict[str, str]:
    """A colour for every bound: always the same for those of this package, a spare one for the rest."""
    others = sorted(set(names) - _COLOURS.keys())
    spare = {name: _FURTHER_COLOURS[i % len(_FURTHER_COLOURS)] for i, name in enumerate(others)}
    return {name: _COLOURS.get(name) or spare[name] for name in names}
