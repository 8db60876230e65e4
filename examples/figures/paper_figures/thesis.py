"""Girgis's thesis (UCLA 2023), Figures 5.2–5.6; the first four are those of the CCS 2021 paper.

Captions with the panels' parameters are not legible. Figure 5.6 is the NeurIPS paper's Figure 2; of the
others the text gives n, T, ε0 and γ here and there, and the rest was chosen here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paper_figures import bounds, subsampled
from paper_figures.bounds import Bound, Question
from paper_figures.data import Curve, FigureData, Panel, ParametersFrom, Role, power
from paper_figures.single_shuffle import certified_renyi, vector_curve
from shuffle_plugins.accounting import Sampling
from shuffle_plugins.accounting.published import divergences

_SOURCE = "Girgis, thesis (UCLA 2023)"
_ROUNDS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
_LEVELS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
_SIZES = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
_SINGLE = 1e-6
_COMPOSED = 1e-8

_RENYI: tuple[tuple[str, Role, str, Callable[..., np.ndarray]], ...] = (
    (
        "amplification by shuffling, RDP",
        Role.UPPER,
        "Erlingsson et al. 2019, Remark 1",
        divergences.erlingsson_rdp,
    ),
    ("shuffle RDP, second bound", Role.UPPER, "Thm 5.3.2", divergences.second_shuffle_rdp),
    ("shuffle RDP, best c", Role.UPPER, "Thm 5.3.1", divergences.first_shuffle_rdp),
    ("binary response, exact", Role.LOWER, "Thm 5.3.3", divergences.subsampled_rdp_lower_bound),
)


def figure_5_2() -> FigureData:
    return FigureData(
        name="thesis-5.2",
        title="One shuffle in Rényi divergence",
        source=f"{_SOURCE}, Figure 5.2",
        panels=(
            _orders_panel("a", local_epsilon=0.5, cohort=10**6),
            _orders_panel("b", local_epsilon=2.0, cohort=10**6),
            _orders_panel("c", local_epsilon=2.0, cohort=10**4),
            _levels_panel("d", order=8, cohort=10**6),
            _sizes_panel("e", order=8, local_epsilon=0.5),
            _sizes_panel("f", order=8, local_epsilon=2.0),
        ),
    )


def figure_5_3() -> FigureData:
    return FigureData(
        name="thesis-5.3",
        title="One shuffle in (ε, δ)",
        source=f"{_SOURCE}, Figure 5.3",
        panels=(
            _single_panel("a", cohort=10**4),
            _single_panel("b", cohort=10**6),
            _single_panel("c", local_epsilon=0.5),
            _single_panel("d", local_epsilon=2.0),
        ),
    )


def figure_5_4() -> FigureData:
    return FigureData(
        name="thesis-5.4",
        title="Composed shuffles, everybody in every round",
        source=f"{_SOURCE}, Figure 5.4",
        panels=tuple(
            _composed_panel(
                letter,
                local_epsilon=level,
                population=10**6,
                cohort=10**6,
                drawn=(
                    bounds.EFM19_RDP,
                    bounds.CLONES,
                    bounds.CLONES_NUMERICAL,
                    bounds.SHUFFLE_RDP_AS_PRINTED,
                    bounds.SHUFFLE_RDP,
                ),
                given=ParametersFrom.TEXT if level != 1.0 else ParametersFrom.CHOSEN,
            )
            for letter, level in (("a", 0.5), ("b", 1.0), ("c", 2.0))
        ),
    )


def figure_5_5() -> FigureData:
    return FigureData(
        name="thesis-5.5",
        title="Composed shuffles of Poisson samples, γ = 0.001",
        source=f"{_SOURCE}, Figure 5.5",
        panels=tuple(
            _composed_panel(
                letter,
                local_epsilon=level,
                population=population,
                cohort=population // 1000,
                drawn=(bounds.CLONES_OR_NOTHING, bounds.CLONES_NUMERICAL, bounds.SHUFFLE_RDP_POISSON),
                sampling=Sampling.POISSON,
                given=ParametersFrom.CHOSEN,
            )
            for letter, level, population in (("a", 1.0, 10**6), ("b", 2.0, 10**6), ("c", 1.0, 10**7))
        ),
    )


def figure_5_6() -> FigureData:
    drawn = (
        bounds.CLONES_OR_NOTHING,
        bounds.CLONES_NUMERICAL,
        bounds.SHUFFLE_RDP_AS_PRINTED,
        bounds.SHUFFLE_RDP_BLUNT,
        bounds.SUBSAMPLED_RDP,
        bounds.LOWER_CONVERTED,
    )
    rounds, populations = subsampled.rounds_panel, subsampled.populations_panel
    return FigureData(
        name="thesis-5.6",
        title="Composed rounds of the subsampled shuffle, with sampling of Rényi curves",
        source=f"{_SOURCE}, Figure 5.6 (the NeurIPS paper's Figure 2)",
        panels=(
            rounds("a", local_epsilon=2.0, population=10**6, cohort=10**3, drawn=drawn),
            rounds("b", local_epsilon=1.0, population=10**7, cohort=10**4, drawn=drawn),
            populations("c", local_epsilon=2.0, cohort=10**3, drawn=drawn),
        ),
    )


def _orders_panel(letter: str, *, local_epsilon: float, cohort: int) -> Panel:
    """Rényi divergence against the order."""
    orders = np.unique(np.geomspace(2, 100_000, 28).round())
    lower, upper = certified_renyi(orders=orders, local_epsilon=local_epsilon, cohort=cohort)

    def at(bound: Callable[..., np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda order: bound(orders=order, local_epsilon=local_epsilon, cohort=cohort)

    return Panel(
        title=f"({letter}) ε0 = {local_epsilon:g}, n = {power(cohort)}",
        x_name="order α",
        y_name="Rényi divergence",
        x=tuple(orders.tolist()),
        curves=(
            *(vector_curve(name, role, source, orders, at(bound)) for name, role, source, bound in _RENYI),
            *bounds.own_curves(lower=lower.tolist(), upper=upper.tolist()),
        ),
        parameters={"local_epsilon": local_epsilon, "num_reports": cohort},
        parameters_from=ParametersFrom.CHOSEN,
    )


def _levels_panel(letter: str, *, order: int, cohort: int) -> Panel:
    """Rényi divergence against ε0."""
    return Panel(
        title=f"({letter}) α = {order}, n = {power(cohort)}",
        x_name="ε0",
        y_name="Rényi divergence",
        x=_LEVELS,
        curves=_at_order(order, [(level, cohort) for level in _LEVELS]),
        parameters={"order": order, "num_reports": cohort},
        parameters_from=ParametersFrom.CHOSEN,
        log_x=False,
    )


def _sizes_panel(letter: str, *, order: int, local_epsilon: float) -> Panel:
    """Rényi divergence against n."""
    return Panel(
        title=f"({letter}) α = {order}, ε0 = {local_epsilon:g}",
        x_name="clients n",
        y_name="Rényi divergence",
        x=tuple(float(size) for size in _SIZES),
        curves=_at_order(order, [(local_epsilon, size) for size in _SIZES]),
        parameters={"order": order, "local_epsilon": local_epsilon},
        parameters_from=ParametersFrom.CHOSEN,
    )


def _at_order(order: int, settings: list[tuple[float, int]]) -> tuple[Curve, ...]:
    found = [
        Curve(
            name=name,
            role=role,
            source=source,
            values=tuple(
                float(bound(orders=[order], local_epsilon=level, cohort=size)[0]) for level, size in settings
            ),
        )
        for name, role, source, bound in _RENYI
    ]
    own = [certified_renyi(orders=[order], local_epsilon=level, cohort=size) for level, size in settings]
    lower, upper = ([float(each[side][0]) for each in own] for side in (0, 1))
    return (*found, *bounds.own_curves(lower=lower, upper=upper))


def _single_panel(letter: str, *, local_epsilon: float | None = None, cohort: int | None = None) -> Panel:
    """ε of one shuffle against ε0 or against n, whichever is left out."""
    levels = _LEVELS if local_epsilon is None else (local_epsilon,)
    sizes = _SIZES if cohort is None else (cohort,)
    questions = [
        Question(local_epsilon=level, population=size, cohort=size, num_steps=1, delta=_SINGLE)
        for level in levels
        for size in sizes
    ]
    against_levels = local_epsilon is None
    fixed = f"n = {power(sizes[0])}" if against_levels else f"ε0 = {levels[0]:g}"
    return Panel(
        title=f"({letter}) {fixed}, δ = 1e-6",
        x_name="ε0" if against_levels else "clients n",
        y_name="ε",
        x=levels if against_levels else tuple(float(size) for size in sizes),
        curves=bounds.curves(
            questions=questions,
            bounds=(
                bounds.EFM19_RDP,
                bounds.BLANKET,
                bounds.SHUFFLE_RDP,
                bounds.CLONES_NUMERICAL,
                bounds.LOWER_CONVERTED,
            ),
        ),
        parameters={
            "delta": _SINGLE,
            **({"num_reports": sizes[0]} if against_levels else {"local_epsilon": levels[0]}),
        },
        parameters_from=ParametersFrom.CHOSEN,
        log_x=not against_levels,
    )


def _composed_panel(
    letter: str,
    *,
    local_epsilon: float,
    population: int,
    cohort: int,
    drawn: tuple[Bound, ...],
    given: ParametersFrom,
    sampling: Sampling | None = None,
) -> Panel:
    """ε against T."""
    question = Question(
        local_epsilon=local_epsilon, population=population, cohort=cohort, num_steps=1, delta=_COMPOSED
    )
    return Panel(
        title=f"({letter}) ε0 = {local_epsilon:g}, n = {power(population)}",
        x_name="rounds T",
        y_name="ε at δ = 1e-8",
        x=tuple(float(steps) for steps in _ROUNDS),
        curves=bounds.curves(
            questions=bounds.over_rounds(question, _ROUNDS), bounds=drawn, sampling=sampling
        ),
        parameters={
            "local_epsilon": local_epsilon,
            "population": population,
            "cohort": cohort,
            "delta": _COMPOSED,
        },
        parameters_from=given,
    )
