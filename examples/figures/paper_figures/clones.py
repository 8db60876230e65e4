"""Feldman, McMillan, Talwar 2021, "Hiding Among the Clones" (arXiv 2012.12803), Figures 2–4.

The text at hand has no captions: the curves are the text's, the parameters were chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paper_figures import bounds
from paper_figures.bounds import Question
from paper_figures.data import Curve, FigureData, Mark, Panel, ParametersFrom, Role, power
from paper_figures.single_shuffle import (
    binary_response_delta,
    certified_renyi,
    vector_curve,
)
from shuffle_plugins.accounting import binary_pair
from shuffle_plugins.accounting.published import divergences, shuffles

_SOURCE = "Feldman, McMillan, Talwar 2021, arXiv 2012.12803"
_PAPER = "Feldman et al. 2021"
_DELTA = 1e-6
_LEVELS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0)
_SIZES = (1000, 2000, 5000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 10_000_000)
_TAIL_REPORTS = 1000
_TAIL_LEVELS = (3.5, 4.0, 5.0)
_TAIL_DELTAS = (1e-4, 1e-8, 1e-12)
_LOWEST_DELTA = 1e-18
_NOBODY = "δ = P[nobody else reports the differing value]"


@dataclass(frozen=True, slots=True)
class _Shuffle:
    local_epsilon: float
    cohort: int
    delta: float


def figure_2() -> FigureData:
    return FigureData(
        name="clones-2",
        title="Amplification by one shuffle",
        source=f"{_SOURCE}, Figure 2",
        panels=(
            _amplification("a", sizes=_SIZES, levels=(1.0,)),
            _amplification("b", sizes=(10_000,), levels=_LEVELS),
            _amplification("c", sizes=(1_000_000,), levels=_LEVELS),
        ),
    )


def _amplification(letter: str, *, sizes: Sequence[int], levels: Sequence[float]) -> Panel:
    """ε of one shuffle, against n or against ε0."""
    settings = [_Shuffle(level, size, _DELTA) for size in sizes for level in levels]
    against_sizes = len(sizes) > 1
    drawn: list[tuple[str, Role, str, Callable[[_Shuffle], float]]] = [
        ("clones, closed form", Role.UPPER, f"{_PAPER}, Thm 3.1", _closed_form),
        ("clones, numerical", Role.UPPER, f"{_PAPER}, Thm 3.2 and App. F", _numerical),
        (
            "privacy blanket, Bennett",
            Role.UPPER,
            "Balle et al. 2019, generic blanket",
            _single(bounds.BLANKET),
        ),
        ("random check-ins, shuffling", Role.UPPER, "Balle et al. 2020, Thm 5.1", _check_ins),
        ("binary response, closed form", Role.NEITHER, "Cheu et al. 2019, Thm 4.11", _binary_closed_form),
        ("binary response, exact", Role.LOWER, f"{_PAPER}, App. G", _binary_lower),
    ]
    curves = [
        Curve(name=name, role=role, source=source, values=tuple(_or_none(epsilon, each) for each in settings))
        for name, role, source, epsilon in drawn
    ]
    intervals = [bounds.certified(_question(each)) for each in settings]
    curves += bounds.own_curves(lower=[low for low, _ in intervals], upper=[up for _, up in intervals])
    fixed = f"ε0 = {levels[0]:g}" if against_sizes else f"n = {power(sizes[0])}"
    return Panel(
        title=f"({letter}) {fixed}, δ = 1e-6",
        x_name="clients n" if against_sizes else "ε0",
        y_name="ε",
        x=tuple(float(size) for size in sizes) if against_sizes else tuple(levels),
        curves=tuple(curves),
        parameters={
            "delta": _DELTA,
            **({"local_epsilon": levels[0]} if against_sizes else {"num_reports": sizes[0]}),
        },
        parameters_from=ParametersFrom.CHOSEN,
        log_x=against_sizes,
    )


def figure_3() -> FigureData:
    return FigureData(
        name="clones-3",
        title="One shuffle in Rényi divergence, and shuffles composed",
        source=f"{_SOURCE}, Figure 3",
        panels=(
            _renyi_panel("a", local_epsilon=2.0, cohort=10_000),
            _composition_panel("b", local_epsilon=0.5),
            _composition_panel("c", local_epsilon=2.0),
        ),
    )


def _renyi_panel(letter: str, *, local_epsilon: float, cohort: int) -> Panel:
    orders = np.unique(np.geomspace(2, 30_000, 30).round())
    lower, upper = certified_renyi(orders=orders, local_epsilon=local_epsilon, cohort=cohort)

    def at(bound: Callable[..., np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda order: np.minimum(
            bound(orders=order, local_epsilon=local_epsilon, cohort=cohort), local_epsilon
        )

    return Panel(
        title=f"({letter}) ε0 = {local_epsilon:g}, n = {power(cohort)}",
        x_name="order α",
        y_name="Rényi divergence",
        x=tuple(orders.tolist()),
        curves=(
            vector_curve(
                bounds.SHUFFLE_RDP.name,
                Role.UPPER,
                "Girgis et al. 2021 (CCS), Thm 5.3.1, capped at ε0",
                orders,
                at(divergences.first_shuffle_rdp),
            ),
            vector_curve(bounds.CLONES_RDP.name, Role.UPPER, f"{_PAPER}, Sec. 6.1", orders, at(_clone_rdp)),
            vector_curve(
                "binary response, exact",
                Role.LOWER,
                "Girgis et al. 2021 (CCS), Thm 5.3.3",
                orders,
                at(divergences.subsampled_rdp_lower_bound),
            ),
            *bounds.own_curves(lower=lower.tolist(), upper=upper.tolist()),
        ),
        parameters={"local_epsilon": local_epsilon, "num_reports": cohort},
        parameters_from=ParametersFrom.CHOSEN,
    )


def _composition_panel(letter: str, *, local_epsilon: float) -> Panel:
    rounds = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
    population, delta = 10**6, 1e-8
    question = Question(
        local_epsilon=local_epsilon, population=population, cohort=population, num_steps=1, delta=delta
    )
    return Panel(
        title=f"({letter}) ε0 = {local_epsilon:g}, n = $10^{{6}}$, δ = 1e-8",
        x_name="rounds T",
        y_name="ε",
        x=tuple(float(steps) for steps in rounds),
        curves=bounds.curves(
            questions=bounds.over_rounds(question, rounds),
            bounds=(bounds.SHUFFLE_RDP, bounds.CLONES_NUMERICAL, bounds.CLONES_RDP),
        ),
        parameters={"local_epsilon": local_epsilon, "population": population, "delta": delta},
        parameters_from=ParametersFrom.CHOSEN,
    )


def figure_4() -> FigureData:
    return FigureData(
        name="clones-4",
        title="Tails of the privacy loss of one shuffle",
        source=f"{_SOURCE}, Figure 4 (Appendix B)",
        panels=(_tail_panel(), _breakdown_panel()),
    )


def _tail_panel() -> Panel:
    """δ against ε/ε0 for several ε0, down to where only the absence of clones is left."""
    shares = (0.0, *np.linspace(0.02, 0.94, 24).tolist(), *np.linspace(0.95, 0.999, 8).tolist())
    curves: list[Curve] = []
    marks = []
    for level in _TAIL_LEVELS:
        series = f"ε0 = {level:g}"
        clone = shuffles.clone_pair(local_epsilon=level, cohort=_TAIL_REPORTS)
        own = binary_pair(local_epsilon=level, cohort=_TAIL_REPORTS)
        exact = [
            binary_response_delta(epsilon=share * level, local_epsilon=level, cohort=_TAIL_REPORTS)
            for share in shares
        ]
        curves += (
            Curve(
                name="clones, numerical",
                role=Role.UPPER,
                source=f"{_PAPER}, Thm 3.2",
                values=tuple(clone.delta(share * level)[1] for share in shares),
                series=series,
            ),
            Curve(
                name="binary response, exact",
                role=Role.LOWER,
                source=f"{_PAPER}, App. G",
                values=tuple(exact),
                series=series,
            ),
            Curve(
                name=bounds.OURS,
                role=Role.CERTIFIED,
                source="binary blanket pair, docs/proofs/accounting.md",
                values=tuple(own.delta(share * level)[1] for share in shares),
                series=series,
            ),
        )
        marks.append(Mark(axis="y", value=_nobody(level), name=_NOBODY, series=series))
    return Panel(
        title="(a) tail at n = 1000",
        x_name="ε/ε0",
        y_name="δ",
        x=shares,
        curves=tuple(curves),
        parameters={"num_reports": _TAIL_REPORTS},
        parameters_from=ParametersFrom.CHOSEN,
        log_x=False,
        y_range=(_LOWEST_DELTA, 1.0),
        marks=tuple(marks),
    )


def _breakdown_panel() -> Panel:
    """ε against ε0 for several δ: where shuffling stops amplifying."""
    levels = tuple(np.linspace(0.25, 8.0, 32).tolist())
    curves: list[Curve] = []
    marks = []
    for delta in _TAIL_DELTAS:
        series = f"δ = {delta:.0e}".replace("e-0", "e-")
        settings = [_Shuffle(level, _TAIL_REPORTS, delta) for level in levels]
        curves += (
            Curve(
                name="clones, numerical",
                role=Role.UPPER,
                source=f"{_PAPER}, Thm 3.2",
                values=tuple(_numerical(each) for each in settings),
                series=series,
            ),
            Curve(
                name="binary response, exact",
                role=Role.LOWER,
                source=f"{_PAPER}, App. G",
                values=tuple(_binary_lower(each) for each in settings),
                series=series,
            ),
            Curve(
                name=bounds.OURS,
                role=Role.CERTIFIED,
                source="blanket pair, docs/proofs/accounting.md",
                values=tuple(bounds.certified(_question(each))[1] for each in settings),
                series=series,
            ),
        )
        marks.append(Mark(axis="x", value=_level_of(delta), name=_NOBODY, series=series))
    return Panel(
        title="(b) ε at n = 1000",
        x_name="ε0",
        y_name="ε",
        x=levels,
        curves=tuple(curves),
        parameters={"num_reports": _TAIL_REPORTS},
        parameters_from=ParametersFrom.CHOSEN,
        log_x=False,
        log_y=False,
        marks=tuple(marks),
    )


def _nobody(local_epsilon: float) -> float:
    """Probability that no other client's binary response, of value 0, comes out as 1."""
    return (1 - 1 / (math.exp(local_epsilon) + 1)) ** (_TAIL_REPORTS - 1)


def _level_of(probability: float) -> float:
    """The ε0 at which :func:`_nobody` is ``probability``."""
    return math.log(1 / -math.expm1(math.log(probability) / (_TAIL_REPORTS - 1)) - 1)


def _question(shuffle: _Shuffle) -> Question:
    return Question(
        local_epsilon=shuffle.local_epsilon,
        population=shuffle.cohort,
        cohort=shuffle.cohort,
        num_steps=1,
        delta=shuffle.delta,
    )


def _single(bound: bounds.Bound) -> Callable[[_Shuffle], float]:
    return lambda shuffle: bound.epsilon(_question(shuffle))


def _closed_form(shuffle: _Shuffle) -> float:
    return shuffles.clone_bound(
        local_epsilon=shuffle.local_epsilon, cohort=shuffle.cohort, delta=shuffle.delta
    )


def _numerical(shuffle: _Shuffle) -> float:
    pair = shuffles.clone_pair(local_epsilon=shuffle.local_epsilon, cohort=shuffle.cohort)
    return pair.upper_epsilon(shuffle.delta)


def _clone_rdp(*, orders: np.ndarray, local_epsilon: float, cohort: int) -> np.ndarray:
    return shuffles.clone_pair(local_epsilon=local_epsilon, cohort=cohort).rdp(orders)


def _check_ins(shuffle: _Shuffle) -> float:
    epsilon = shuffles.check_in_shuffle_bound(
        local_epsilon=shuffle.local_epsilon, cohort=shuffle.cohort, delta=shuffle.delta
    )
    return min(epsilon, shuffle.local_epsilon)


def _binary_closed_form(shuffle: _Shuffle) -> float:
    epsilon = shuffles.binary_response_bound(
        local_epsilon=shuffle.local_epsilon, cohort=shuffle.cohort, delta=shuffle.delta
    )
    return min(epsilon, shuffle.local_epsilon)


def _binary_lower(shuffle: _Shuffle) -> float:
    return shuffles.binary_response_lower(
        local_epsilon=shuffle.local_epsilon, cohort=shuffle.cohort, delta=shuffle.delta
    )


def _or_none(epsilon: Callable[[_Shuffle], float], shuffle: _Shuffle) -> float | None:
    try:
        return epsilon(shuffle)
    except ValueError:
        return None
