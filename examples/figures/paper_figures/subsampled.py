"""Girgis, Data, Diggavi 2021, "Rényi DP of the Subsampled Shuffle Model" (arXiv 2107.08763), Figures 2–5.

Panel parameters are the captions'; the ranges of T and n are not printed and were chosen here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from paper_figures import bounds
from paper_figures.bounds import Bound, Question
from paper_figures.data import Curve, FigureData, Mark, Panel, ParametersFrom, Point, power

DELTA = 1e-8
ROUNDS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
POPULATIONS = (100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000)
DRAWN = (bounds.CLONES_OR_NOTHING, bounds.SUBSAMPLED_RDP, bounds.LOWER_CONVERTED)
_SOURCE = "Girgis, Data, Diggavi 2021, arXiv 2107.08763"
_EPSILON = "ε at δ = 1e-8"
_TRAINING = Path(__file__).parents[2] / "results" / "paper_mnist_fig5a.json"
_EPOCHS = (1, 2, 4, 7, 10, 15, 20, 30, 40, 60, 80, 110, 150, 200)


def rounds_panel(
    letter: str,
    *,
    local_epsilon: float,
    population: int,
    cohort: int,
    drawn: Sequence[Bound] = DRAWN,
    rounds: Sequence[int] = ROUNDS,
) -> Panel:
    """ε against T."""
    question = Question(
        local_epsilon=local_epsilon, population=population, cohort=cohort, num_steps=1, delta=DELTA
    )
    rate = cohort / population
    return Panel(
        title=f"({letter}) ε0 = {local_epsilon:g}, γ = {rate:g}, n = {power(population)}",
        x_name="rounds T",
        y_name=_EPSILON,
        x=tuple(float(steps) for steps in rounds),
        curves=bounds.curves(questions=bounds.over_rounds(question, rounds), bounds=drawn),
        parameters={
            "local_epsilon": local_epsilon,
            "population": population,
            "cohort": cohort,
            "delta": DELTA,
        },
        parameters_from=ParametersFrom.CAPTION,
    )


def populations_panel(
    letter: str,
    *,
    local_epsilon: float,
    cohort: int,
    drawn: Sequence[Bound] = DRAWN,
    populations: Sequence[int] = POPULATIONS,
) -> Panel:
    """ε against n at fixed k, T = 10⁵."""
    question = Question(
        local_epsilon=local_epsilon,
        population=populations[0],
        cohort=cohort,
        num_steps=100_000,
        delta=DELTA,
    )
    return Panel(
        title=f"({letter}) ε0 = {local_epsilon:g}, k = {power(cohort)}, T = $10^{{5}}$",
        x_name="clients n",
        y_name=_EPSILON,
        x=tuple(float(n) for n in populations),
        curves=bounds.curves(questions=bounds.over_populations(question, populations), bounds=drawn),
        parameters={
            "local_epsilon": local_epsilon,
            "cohort": cohort,
            "num_steps": question.num_steps,
            "delta": DELTA,
        },
        parameters_from=ParametersFrom.CAPTION,
    )


def figure_2() -> FigureData:
    return FigureData(
        name="subsampled-2",
        title="Composed rounds of the subsampled shuffle",
        source=f"{_SOURCE}, Figure 2",
        panels=(
            rounds_panel("a", local_epsilon=2.0, population=10**6, cohort=10**3),
            rounds_panel("b", local_epsilon=1.0, population=10**7, cohort=10**4),
            populations_panel("c", local_epsilon=2.0, cohort=10**3),
        ),
    )


def figure_3() -> FigureData:
    drawn = (bounds.CLONES_OR_NOTHING, bounds.SUBSAMPLED_RDP)
    return FigureData(
        name="subsampled-3",
        title="Composed rounds of the subsampled shuffle, ε0 = 1",
        source=f"{_SOURCE}, Figure 3",
        panels=(
            rounds_panel("a", local_epsilon=1.0, population=10**6, cohort=10**3, drawn=drawn),
            rounds_panel("b", local_epsilon=1.0, population=10**7, cohort=10**4, drawn=drawn),
            populations_panel("c", local_epsilon=1.0, cohort=10**4, drawn=drawn),
        ),
    )


def figure_4() -> FigureData:
    return FigureData(
        name="subsampled-4",
        title="Composed rounds where the clones closed form is silent, ε0 = 3",
        source=f"{_SOURCE}, Figure 4",
        panels=(
            rounds_panel("a", local_epsilon=3.0, population=10**6, cohort=10**3),
            rounds_panel("b", local_epsilon=3.0, population=10**7, cohort=10**3),
            populations_panel("c", local_epsilon=3.0, cohort=10**3),
        ),
    )


def figure_5() -> FigureData:
    return FigureData(
        name="subsampled-5",
        title="Private training on MNIST",
        source=f"{_SOURCE}, Figure 5 (the thesis's Figure 5.7)",
        panels=(
            _accuracy_panel(),
            _epochs_panel("b", local_epsilon=1.5, cohort=10_000, published={"Thm 1": 2.91, "clones": 4.82}),
            _epochs_panel("c", local_epsilon=2.0, cohort=2_000, published={"Thm 1": 5.8, "clones": 18.3}),
        ),
    )


_TRAINING_DRAWN = (bounds.CLONES_NUMERICAL, bounds.SUBSAMPLED_RDP)


def _accuracy_panel() -> Panel:
    """Accuracy of this package's own run of panel (a)'s training, against the ε each analysis gives it."""
    run = json.loads(_TRAINING.read_text(encoding="utf-8"))
    epochs = [entry for entry in run["curve"] if entry["epoch"] in _EPOCHS]
    accuracy = tuple(100 * entry["accuracy"] for entry in epochs)
    settings = run["settings"]
    question = Question(
        local_epsilon=settings["local_epsilon"],
        population=settings["population"],
        cohort=settings["cohort"],
        num_steps=1,
        delta=settings["delta"],
    )
    by_epsilon = bounds.curves(
        questions=bounds.over_rounds(question, [entry["steps"] for entry in epochs]), bounds=_TRAINING_DRAWN
    )
    return Panel(
        title="(a) ε0 = 1.5, k = 10,000 of 60,000",
        x_name="ε at δ = 1e-5",
        y_name="test accuracy, %",
        x=(),
        curves=tuple(
            Curve(
                name=curve.name,
                role=curve.role,
                source=curve.source,
                values=accuracy,
                abscissae=tuple(float(value or 0) for value in curve.values),
            )
            for curve in by_epsilon
        ),
        parameters={
            key: settings[key] for key in ("local_epsilon", "population", "cohort", "delta", "mechanism")
        },
        parameters_from=ParametersFrom.TEXT,
        log_y=False,
        points=(
            Point(x=1.4, y=80.0, name="published accuracy, Thm 1"),
            Point(x=2.91, y=90.0, name="published accuracy, Thm 1"),
            Point(x=1.4, y=70.7, name="published accuracy, clones"),
            Point(x=4.82, y=90.0, name="published accuracy, clones"),
        ),
    )


def _epochs_panel(letter: str, *, local_epsilon: float, cohort: int, published: dict[str, float]) -> Panel:
    """ε against epochs of n/k rounds."""
    population, delta = 60_000, 1e-5
    question = Question(
        local_epsilon=local_epsilon, population=population, cohort=cohort, num_steps=1, delta=delta
    )
    steps = [epoch * population // cohort for epoch in _EPOCHS]
    readings = (*_TRAINING_DRAWN, bounds.CLONES_SIMPLE, bounds.CLONES_SPLIT)
    drawn = bounds.curves(questions=bounds.over_rounds(question, steps), bounds=readings)
    return Panel(
        title=f"({letter}) ε0 = {local_epsilon:g}, k = {cohort:,} of 60,000",
        x_name="epochs",
        y_name="ε at δ = 1e-5",
        x=tuple(float(epoch) for epoch in _EPOCHS),
        curves=drawn,
        parameters={
            "local_epsilon": local_epsilon,
            "population": population,
            "cohort": cohort,
            "delta": delta,
        },
        parameters_from=ParametersFrom.TEXT,
        marks=tuple(
            Mark(axis="y", value=epsilon, name=f"published ε at 90 %, {analysis}")
            for analysis, epsilon in published.items()
        ),
    )
