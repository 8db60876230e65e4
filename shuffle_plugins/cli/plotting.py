"""Pictures of the command line's answers: ε against rounds for every bound, and a plan's error against k."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shuffle_plugins import accounting, planning
from shuffle_plugins.core import rounded

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

# Bounds above this multiple of the certified ε are left out: they would only flatten the rest.
_TALLEST = 100.0
# The lower panel's range, in multiples of the certified ε.
_LOWEST_RATIO, _HIGHEST_RATIO = 0.7, 1.25
_BAND = "certified interval"
_BAND_COLOUR = "#ffe47a"
# Okabe and Ito's palette: told apart by colour-blind readers too.
_COLOURS = {
    "blanket pair, PLD": "#00694c",
    "blanket pair, RDP": "#0072b2",
    "crowd pair, PLD": "#117733",
    "crowd pair, RDP": "#332288",
    "3-RR instance": "#cc79a7",
    "binary-RR instance": "#d55e00",
}
_FURTHER_COLOURS = ("#e69f00", "#56b4e9", "#8c564b", "#000000", "#bcbd22")
_UNAMPLIFIED = "local epsilon, no amplification"
# Published bounds recede: grey and thin, told apart by hollow markers; dark if composed by Rényi divergence.
_RENYI_GREY, _POINT_GREY = "#5a5a5a", "#a3a3a3"
_MARKERS = "os^vDPX*<>d+x1p"
# Published bounds whose values differ by less than this share everywhere are one line.
_SAME = 1e-3
# A number of rounds with fewer points than this in a plan has no line, only dots.
_CURVE = 3
_STRAY = "#9a9a9a"
_CHOSEN = "#ffb000"
# Of a panel of choices: room above and below as a share of what the dots span, that span, and a line of it.
_ROOM, _SPAN_POINTS = 0.2, 175
_LINE = 9 / _SPAN_POINTS


def plot_comparisons(*, comparisons: Sequence[accounting.Comparison], path: Path) -> None:
    """Write a log-log picture of ε against rounds: one panel per ε0, one line per bound.

    The certified interval is shaded and the package's own bounds are coloured; published ones are grey, told
    apart by their markers, and share a line where they agree. Those beyond a hundred times the certified ε
    are left out. Below each panel the same lines stand as multiples of the certified ε, on a linear scale
    around 1.

    Args:
        comparisons: any number of answers at one δ; those of equal ε0 are joined in order of their rounds.
        path: file to write; its suffix chooses the format.

    Raises:
        ValueError: if there is nothing to draw; and as :func:`check_drawable`.
    """
    if not comparisons:
        raise ValueError("nothing to plot")

    panels: dict[float, list[accounting.Comparison]] = {}
    for answer in sorted(comparisons, key=lambda each: each.num_steps):
        panels.setdefault(answer.shuffle_round.local_epsilon, []).append(answer)
    figure = _figure(4.0 + 4.5 * len(panels), 6.8)
    rows = figure.subplots(
        2, len(panels), sharex="col", sharey="row", squeeze=False, gridspec_kw={"height_ratios": (3, 1)}
    )
    curves = _curves(comparisons)
    styles = line_styles({name for _, name in curves})
    labels = _labels(curves)
    intervals = [answer.interval for answer in comparisons]
    tallest = _TALLEST * max(interval.upper for interval in intervals)
    loosest = min((each.lower / each.upper for each in intervals if each.lower > 0), default=1.0)
    own: dict[str, Artist] = {}
    published: dict[str, Artist] = {}
    for axis, ratios, (local_epsilon, answers) in zip(*rows, panels.items(), strict=True):
        own |= _certified_band(axis, ratios, answers)
        exact = {answer.num_steps: answer.interval.upper for answer in answers}
        for (kind, name), label in labels.items():
            points = [each[1:] for each in curves[kind, name] if each[0] == local_epsilon]
            if not points or (tallest > 0 and all(epsilon > tallest for _, epsilon in points)):
                continue
            rounds, epsilons = zip(*points, strict=True)
            line = styles[name] | ({} if kind == "upper" else {"linestyle": "--"})
            (drawn,) = axis.plot(rounds, epsilons, **line)
            (published if name in _published() else own)[label] = drawn
            multiples = [
                epsilon / exact[steps] if exact[steps] > 0 else math.nan for steps, epsilon in points
            ]
            ratios.plot(rounds, multiples, **line)
        axis.set(xscale="log", yscale="log", title=f"ε0 = {local_epsilon:g}")
        axis.set_ylim(top=tallest or None)
        ratios.set(xlabel="rounds", ylim=(min(_LOWEST_RATIO, 0.9 * loosest), _HIGHEST_RATIO))
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


def _certified_band(axis: Any, ratios: Any, answers: Sequence[accounting.Comparison]) -> dict[str, Artist]:
    """Shade the certified intervals that have a lower end, and return the band by its name in the legend."""
    found = [(each.num_steps, each.interval) for each in answers if each.interval.lower > 0]
    if not found:
        return {}
    rounds = [steps for steps, _ in found]
    band: dict[str, Any] = {"facecolor": _BAND_COLOUR, "edgecolor": _BAND_COLOUR, "zorder": 1}
    parts = [interval.lower / interval.upper for _, interval in found]
    ratios.fill_between(rounds, parts, [1.0] * len(parts), **band)
    lower, upper = [each.lower for _, each in found], [each.upper for _, each in found]
    return {_BAND: axis.fill_between(rounds, lower, upper, **band)}


def plot_plan(*, plan: planning.Plan, path: Path) -> None:
    """Write a log-log picture of a plan: the error against k above, ε0 below, one curve per T.

    The best mechanism's combinations are drawn, the best and the thrifty one marked; a dashed line is the
    error of a trusted curator's Gaussian mechanism. Where only one cohort was tried, T takes the place of k.

    Args:
        plan: the plan to draw.
        path: file to write; its suffix chooses the format.

    Raises: as :func:`check_drawable`.
    """
    figure = _figure(7.6, 7.2)
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    errors, levels = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2)})
    rows = [row for row in plan.rows if row.mechanism == plan.best.mechanism]
    across_rounds = len({row.cohort for row in rows}) == 1
    curves: dict[int, list[planning.PlanRow]] = {}
    for row in rows:
        curves.setdefault(0 if across_rounds else row.num_steps, []).append(row)

    def place(row: planning.PlanRow) -> int:
        return row.num_steps if across_rounds else row.cohort

    drawn = sorted(steps for steps, curve in curves.items() if len(curve) >= _CURVE)
    colours = _shades(drawn)
    for steps, curve in sorted(curves.items()):
        curve.sort(key=place)
        places = [place(row) for row in curve]
        style: dict[str, Any] = {"color": colours.get(steps, _STRAY), "marker": "o", "markersize": 3}
        if steps in colours:
            label = f"k = {curve[0].cohort:,}" if across_rounds else f"T = {steps:,}"
            style |= {"linewidth": 1.4, "label": label}
        else:
            style |= {"linestyle": "none", "zorder": 1}
        errors.plot(places, [row.average_mse for row in curve], **style)
        levels.plot(places, [row.local_epsilon for row in curve], **style)
    for row, name, marker in ((plan.thrifty, "thrifty", "D"), (plan.best, "best", "*")):
        if name == "thrifty" and row == plan.best:
            continue
        level = rounded(row.local_epsilon, up=False)
        told = f"{name}: k = {row.cohort:,}, T = {row.num_steps:,}, ε0 = {level}"
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


def plot_choices(*, panels: Mapping[str, Sequence[planning.Choice]], path: Path) -> None:
    """Write a log-log picture of error against bits, one panel per question, one named dot per mechanism.

    Mechanisms that no other beats in both error and bits are joined: the frontier.

    Args:
        panels: by title, answers of :func:`~shuffle_plugins.planning.choices` to one question each.
        path: file to write; its suffix chooses the format.

    Raises:
        ValueError: if there is nothing to draw; and as :func:`check_drawable`.
    """
    if not panels or not all(panels.values()):
        raise ValueError("no mechanism to draw")
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = _figure(6.2 * columns, 4.4 * lines)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, (title, found) in zip(axes, panels.items(), strict=False):
        best = sorted(_frontier(found), key=lambda choice: choice.bits)
        axis.plot(
            [choice.bits for choice in best],
            [choice.variance for choice in best],
            color=_STRAY,
            linestyle=":",
            zorder=1,
        )
        across = _placed_in_log([choice.bits for choice in found])
        up = _placed_in_log([choice.variance for choice in found])
        labels: list[tuple[float, float]] = []
        for x, y, choice in sorted(zip(across, up, found, strict=True), key=lambda placed: placed[1]):
            chosen = choice in best
            axis.plot(choice.bits, choice.variance, "o", color=_CHOSEN if chosen else _FURTHER_COLOURS[1])
            height = max(
                [y, *(other + _LINE for at, other in labels if abs(at - x) < 0.3 and other > y - _LINE)]
            )
            labels.append((x, height))
            axis.annotate(
                choice.name,
                (choice.bits, choice.variance),
                xytext=(-6 if x > 0.5 else 6, 5 + (height - y) * _SPAN_POINTS),
                textcoords="offset points",
                horizontalalignment="right" if x > 0.5 else "left",
                fontsize=7.5,
                weight="bold" if chosen else "normal",
            )
        axis.set(
            xscale="log", yscale="log", title=title, xlabel="bits per report", ylabel="mean squared error"
        )
        axis.margins(x=0.1, y=_ROOM)
        axis.grid(True, which="major", alpha=0.3)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    figure.savefig(path, dpi=130)


def _placed_in_log(values: Sequence[float]) -> list[float]:
    """Where values are on a logarithmic axis, 0 the least and 1 the largest."""
    logs = [math.log(value) for value in values]
    low, span = min(logs), max(max(logs) - min(logs), 1e-9)
    return [(each - low) / span for each in logs]


def _frontier(found: Sequence[planning.Choice]) -> list[planning.Choice]:
    return [
        one
        for one in found
        if not any(
            other.bits <= one.bits
            and other.variance <= one.variance
            and (other.bits, other.variance) != (one.bits, one.variance)
            for other in found
        )
    ]


def check_drawable(path: Path) -> None:
    """Refuse a picture that cannot be written, before what it shows is computed.

    Raises:
        ModuleNotFoundError: if Matplotlib is not installed.
        ValueError: if the format is unknown.
        OSError: if the folder does not exist.
    """
    formats = _figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise ValueError(f"{path.name}: a picture's name ends in one of {', '.join(sorted(formats))}")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent} to write {path.name} to")


def _figure(width: float, height: float) -> Figure:
    """An empty figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _shades(values: Sequence[int]) -> dict[int, Any]:
    """A colour for every value, from dark to light."""
    from matplotlib import colormaps

    shades = colormaps["viridis"]
    return {value: shades(0.85 * i / max(len(values) - 1, 1)) for i, value in enumerate(values)}


def line_styles(names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Matplotlib's properties of every bound's line: always the same for bounds known by name."""
    published = _published()
    unknown = sorted(set(names) - _COLOURS.keys() - published.keys() - {_UNAMPLIFIED})
    spare = {name: _FURTHER_COLOURS[i % len(_FURTHER_COLOURS)] for i, name in enumerate(unknown)}

    def style(name: str) -> dict[str, Any]:
        if name == _UNAMPLIFIED:
            return {"color": "black", "linestyle": ":", "linewidth": 1.2, "marker": "", "zorder": 2}
        if name in published:
            return {
                "color": _RENYI_GREY if "RDP" in name else _POINT_GREY,
                "linestyle": "-",
                "linewidth": 0.8,
                "marker": published[name],
                "markersize": 5,
                "markerfacecolor": "white",
                "zorder": 2,
            }
        return {
            "color": _COLOURS.get(name) or spare[name],
            "linestyle": "-",
            "linewidth": 1.8,
            "marker": ".",
            "markersize": 5,
            "zorder": 3,
        }

    return {name: style(name) for name in names}


def _published() -> dict[str, str]:
    """The marker of every published bound."""
    bounds = accounting.published.PUBLISHED_BOUNDS
    return {bound.name: _MARKERS[i % len(_MARKERS)] for i, bound in enumerate(bounds)}


def _curves(
    comparisons: Sequence[accounting.Comparison],
) -> dict[tuple[str, str], list[tuple[float, int, float]]]:
    """(ε0, rounds, ε) of every bound by its kind and name, in order; zeros have no place on a log scale."""
    curves: dict[tuple[str, str], list[tuple[float, int, float]]] = {}
    for answer in sorted(comparisons, key=lambda each: each.num_steps):
        for bound in answer.bounds:
            if bound.epsilon > 0:
                point = (answer.shuffle_round.local_epsilon, answer.num_steps, bound.epsilon)
                curves.setdefault((bound.kind, bound.name), []).append(point)
    return curves


def _labels(
    curves: dict[tuple[str, str], list[tuple[float, int, float]]],
) -> dict[tuple[str, str], str]:
    """Legend entries; published bounds that agree everywhere get one, at the first of them."""
    published = _published()
    labels: dict[tuple[str, str], str] = {}
    for key, points in curves.items():
        kind, name = key
        if name not in published:
            labels[key] = f"{name} ({kind})"
            continue
        twin = next(
            (other for other in labels if other[1] in published and _agree(curves[other], points)), None
        )
        if twin is None:
            labels[key] = name
        else:
            labels[twin] += f"\n= {name}"
    return labels


def _agree(one: Sequence[tuple[float, int, float]], two: Sequence[tuple[float, int, float]]) -> bool:
    return len(one) == len(two) and all(
        first[:2] == second[:2] and math.isclose(first[2], second[2], rel_tol=_SAME)
        for first, second in zip(one, two, strict=True)
    )
