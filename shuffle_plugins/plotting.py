"""ε against the number of rounds, drawn for every bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shuffle_plugins.comparison import Comparison


_TALLEST = 100.0


class PlottingUnavailable(ImportError):
    """Matplotlib is not installed."""


def plot_comparisons(*, comparisons: Sequence[Comparison], path: Path) -> None:
    """Write a log-log picture of ε against rounds: one panel per ε0, one line per bound.

    Args:
        comparisons: any number of answers at one δ; those of equal ε0 are joined in order of their rounds.
        path: file to write; its suffix chooses the format.

    Raises:
        PlottingUnavailable: if Matplotlib is not installed.
        ValueError: if there is nothing to draw, or the format is unknown.
        OSError: if the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlottingUnavailable(
            "plotting needs Matplotlib; install it with: pip install 'shuffle-plugins[plot]'"
        ) from error
    if not comparisons:
        raise ValueError("nothing to plot")

    panels: dict[float, list[Comparison]] = {}
    for comparison in sorted(comparisons, key=lambda each: each.num_steps):
        panels.setdefault(comparison.shuffle_round.local_epsilon, []).append(comparison)

    figure = Figure(figsize=(1.5 + 5.0 * len(panels), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    colours = {
        name: f"C{i}"
        for i, name in enumerate(
            dict.fromkeys(bound.name for comparison in comparisons for bound in comparison.bounds)
        )
    }
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    lines = {}
    for axis, (local_epsilon, answers) in zip(axes, panels.items(), strict=True):
        curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for answer in answers:
            for bound in answer.bounds:
                if bound.epsilon > 0:
                    curves.setdefault((bound.kind, bound.name), []).append((answer.num_steps, bound.epsilon))
        for (kind, name), points in curves.items():
            (lines[f"{name} ({kind})"],) = axis.plot(
                *zip(*points, strict=True),
                color=colours[name],
                linestyle="-" if kind == "upper" else "--",
                marker="o",
                markersize=3,
            )
        certified = [
            (answer.num_steps, answer.interval.lower, answer.interval.upper)
            for answer in answers
            if answer.interval.lower > 0
        ]
        if certified:
            rounds, lower, upper = zip(*certified, strict=True)
            axis.fill_between(rounds, lower, upper, alpha=0.15, color="black", linewidth=0)
        axis.set(xscale="log", yscale="log", xlabel="rounds", title=f"ε0 = {local_epsilon:g}")
        # bounds that far above the certified one would only flatten the rest
        axis.set_ylim(top=_TALLEST * max(answer.interval.upper for answer in comparisons) or None)
        axis.grid(True, which="major", alpha=0.3)
    interval = comparisons[0].interval
    axes[0].set_ylabel(f"ε at δ = {interval.delta:g} ({interval.neighbouring_relation})")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=160)
