"""Draw the figures and tabulate the headline ratios: ``python examples/figures/make.py``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from paper_figures import clones, mean_estimation, refinement, subsampled, thesis
from paper_figures.claims import PAGE, claims, page, save_evaluations
from paper_figures.data import FigureData, save_json
from paper_figures.headlines import HEADLINES, compute, save_rows, table
from paper_figures.style import draw
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

RESULTS = Path(__file__).parent / "results"
HEADLINE_TASK = "headlines"
EVALUATION_TASK = "evaluations"
FIGURES: dict[str, Callable[[], FigureData]] = {
    "subsampled-2": subsampled.figure_2,
    "subsampled-3": subsampled.figure_3,
    "subsampled-4": subsampled.figure_4,
    "subsampled-5": subsampled.figure_5,
    "clones-2": clones.figure_2,
    "clones-3": clones.figure_3,
    "clones-4": clones.figure_4,
    "thesis-3.2": mean_estimation.figure_3_2,
    "thesis-5.2": thesis.figure_5_2,
    "thesis-5.3": thesis.figure_5_3,
    "thesis-5.4": thesis.figure_5_4,
    "thesis-5.5": thesis.figure_5_5,
    "thesis-5.6": thesis.figure_5_6,
    "thesis-7.3": refinement.figure_7_3,
    "thesis-7.7": refinement.figure_7_7,
    "thesis-7.9": refinement.figure_7_9,
    "thesis-table-7.1": refinement.table_7_1,
}
_NAMES = (*FIGURES, HEADLINE_TASK, EVALUATION_TASK)


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(_NAMES)}; may be repeated. Default: all.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Where PNG and JSON go.")] = RESULTS,
    table_only: Annotated[
        bool, typer.Option("--table", help="Only write docs/reference/claims.md, from the committed results.")
    ] = False,
) -> None:
    """Draw every figure of the papers with this package's curves beside theirs; some minutes."""
    if table_only:
        PAGE.write_text(page(claims()), encoding="utf-8")
        return
    wanted = list(only or _NAMES)
    unknown = sorted(set(wanted) - set(_NAMES))
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; choose from {', '.join(_NAMES)}")
    results.mkdir(parents=True, exist_ok=True)
    console = Console()
    columns = (
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    headlines = ""
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("figures", total=len(wanted))
        for name in wanted:
            progress.update(task, description=name)
            started = time.perf_counter()
            if name == HEADLINE_TASK:
                rows = [compute(headline) for headline in HEADLINES]
                save_rows(rows, results / "headlines.json")
                headlines = table(rows)
            elif name == EVALUATION_TASK:
                save_evaluations(results / "evaluations.json")
            else:
                figure = FIGURES[name]()
                save_json(figure, results / f"{name}.json")
                draw(figure, results / f"{name}.png")
            progress.console.print(f"{name:16} {time.perf_counter() - started:6.1f} s")
            progress.advance(task)
    if headlines:
        console.print(headlines, markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
