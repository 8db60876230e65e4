"""Girgis's thesis (UCLA 2023), chapter 7: Figures 7.3 and 7.7–7.10, and Table 7.1.

Little randomness, several privacy levels, and reports that a key turns back into their category. The errors
are measured with the package's own mechanisms, from seeded randomness; everything else is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from paper_figures.data import Curve, FigureData, Mark, Panel, ParametersFrom, Point, Role
from shuffle_plugins.mechanisms import (
    FrequencyOracle,
    HadamardResponse,
    KeyLaw,
    KRandomizedResponse,
    LimitedHadamard,
    MultilevelHadamard,
    Rappor,
)
from shuffle_plugins.randomness import SeededRandomness

_SOURCE = "Girgis, thesis (UCLA 2023)"
_KEY_LEVELS = (0.01, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
_CATEGORIES, _DECAY, _RUNS = 1000, 0.8, 20
_CLIENTS = tuple(50_000 * step for step in (2, 3, 4, 6, 8, 10, 12, 14, 17, 20))
_ERROR_LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75, 2.0)
_SECOND_LEVELS = (0.01, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.95, 0.99)
_LADDERS = tuple(range(1, 11))
_TABLE_LEVELS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)

SHORTEST = "shortest key"
MEASURED = f"measured, mean of {_RUNS} runs"
JOINT, SEPARATE = "one report for all levels", "a report for each level"
SAVINGS = {2: 0.942, 4: 0.914, 10: 0.85}
"""Published saving of storage at ε0 = 5, by the number of categories."""

TABLE_MECHANISMS: dict[str, Callable[..., FrequencyOracle]] = {
    "RAPPOR": Rappor,
    "k-ary response": KRandomizedResponse,
    "Hadamard response": HadamardResponse,
    "one-bit Hadamard response": LimitedHadamard,
}

ERROR_POINTS = {1.0: (150_000, 1.4), 0.7: (850_000, 1.4)}
"""Published (clients, ℓ1 error), by the bits of randomness."""


def figure_7_3() -> FigureData:
    """Storage of a report's key, and the saving beside storing the category itself."""
    return FigureData(
        name="thesis-7.3",
        title="Storing a key instead of a category",
        source=f"{_SOURCE}, Figure 7.3 and section 7.7",
        panels=(
            Panel(
                title="(a) bits to store a key",
                x_name="ε0",
                y_name="bits",
                x=_KEY_LEVELS,
                curves=tuple(
                    _key_curve(categories, lambda law: law.entropy_bits) for categories in (10, 100, 1000)
                ),
                marks=tuple(
                    Mark(
                        axis="y", value=math.log2(k), name="bits to store the category", series=_categories(k)
                    )
                    for k in (10, 100, 1000)
                ),
                parameters={"categories": "10, 100, 1000"},
                parameters_from=ParametersFrom.TEXT,
                log_x=False,
                log_y=False,
            ),
            Panel(
                title="(b) saving of storage",
                x_name="ε0",
                y_name="1 − H(U)/log k",
                x=_KEY_LEVELS,
                curves=tuple(_key_curve(categories, lambda law: law.saving) for categories in SAVINGS),
                points=tuple(Point(x=5.0, y=saving, name="published saving") for saving in SAVINGS.values()),
                parameters={"categories": ", ".join(map(str, SAVINGS))},
                parameters_from=ParametersFrom.TEXT,
                log_x=False,
                log_y=False,
            ),
        ),
    )


def figure_7_7() -> FigureData:
    """ℓ1 error of an estimated distribution when the clients have little randomness (Figures 7.7 and 7.8)."""
    common = {"categories": _CATEGORIES, "decay": _DECAY, "runs": _RUNS}
    by_clients = {
        bits: [error_of_estimates(local_epsilon=1.0, bits=bits, clients=clients) for clients in _CLIENTS]
        for bits in ERROR_POINTS
    }
    by_level = {
        bits: [error_of_estimates(local_epsilon=level, bits=bits, clients=500_000) for level in _ERROR_LEVELS]
        for bits in (1.0, 0.9, 0.6)
    }
    return FigureData(
        name="thesis-7.7",
        title="Error with R bits of private randomness per client",
        source=f"{_SOURCE}, Figures 7.7 and 7.8",
        panels=(
            Panel(
                title="(a) Figure 7.7: ε0 = 1",
                x_name="clients",
                y_name="ℓ1 error",
                x=tuple(map(float, _CLIENTS)),
                curves=_error_curves(by_clients),
                points=tuple(
                    Point(x=float(clients), y=error, name="published pair (n, error)")
                    for clients, error in ERROR_POINTS.values()
                ),
                parameters=common | {"local_epsilon": 1.0, "largest_deviation": _deviation(by_clients)},
                parameters_from=ParametersFrom.CAPTION,
                log_y=False,
            ),
            Panel(
                title="(b) Figure 7.8: n = 500,000",
                x_name="ε0",
                y_name="ℓ1 error",
                x=_ERROR_LEVELS,
                curves=_error_curves(by_level),
                marks=(Mark(axis="x", value=0.8, name="published ε0 below which R = 0.9 matters"),),
                parameters=common | {"population": 500_000, "largest_deviation": _deviation(by_level)},
                parameters_from=ParametersFrom.TEXT,
                log_x=False,
                log_y=False,
            ),
        ),
    )


def figure_7_9() -> FigureData:
    """Randomness for several privacy levels: one report and keys to it, or a report for each level."""
    pairs = [(1.0, second) for second in _SECOND_LEVELS]
    return FigureData(
        name="thesis-7.9",
        title="Random bits per client for several privacy levels",
        source=f"{_SOURCE}, Figures 7.9 and 7.10",
        panels=(
            Panel(
                title="(a) Figure 7.9: ε1 = 1, two levels",
                x_name="ε2",
                y_name="bits",
                x=_SECOND_LEVELS,
                curves=_ladder_curves(pairs),
                parameters={"first_level": 1.0},
                parameters_from=ParametersFrom.CAPTION,
                log_x=False,
                log_y=False,
            ),
            Panel(
                title="(b) Figure 7.10: ε1 = 2, εj = ε1 − 0.1j",
                x_name="levels d",
                y_name="bits",
                x=tuple(map(float, _LADDERS)),
                curves=_ladder_curves([ladder(levels) for levels in _LADDERS]),
                parameters={"first_level": 2.0, "levels": "ε1, then ε1 − 0.1j for j = 2…d"},
                parameters_from=ParametersFrom.CAPTION,
                log_x=False,
                log_y=False,
            ),
        ),
    )


def table_7_1() -> FigureData:
    """Private random bits and error of four mechanisms, as functions of ε0."""
    bits = tuple(
        Curve(
            name=name,
            role=Role.NEITHER,
            source=f"{_SOURCE}, Table 7.1",
            values=tuple(
                randomness_bits(name, local_epsilon=level, categories=_CATEGORIES) for level in _TABLE_LEVELS
            ),
        )
        for name in TABLE_MECHANISMS
    )
    errors = tuple(
        Curve(
            name=name,
            role=Role.NEITHER,
            source="exact variance of the package's mechanism",
            values=tuple(
                float(mechanism(local_epsilon=level, dim=_CATEGORIES).worst_variance)
                for level in _TABLE_LEVELS
            ),
        )
        for name, mechanism in TABLE_MECHANISMS.items()
    )
    make_panel = partial(
        Panel,
        x_name="ε0",
        x=_TABLE_LEVELS,
        parameters={"categories": _CATEGORIES},
        parameters_from=ParametersFrom.CHOSEN,
        log_x=False,
    )
    return FigureData(
        name="thesis-table-7.1",
        title="Private randomness and error of mechanisms for categories",
        source=f"{_SOURCE}, Table 7.1",
        panels=(
            make_panel(title="(a) randomness, k = 1000", y_name="private random bits", curves=bits),
            make_panel(title="(b) error, k = 1000", y_name="n × squared ℓ2 error", curves=errors),
        ),
    )


def ladder(levels: int) -> tuple[float, ...]:
    """Privacy levels of Figure 7.10: ε1 = 2, and ε1 − 0.1j for j = 2…d."""
    return (2.0, *(2.0 - 0.1 * place for place in range(2, levels + 1)))


def _categories(number: int) -> str:
    return f"k = {number}"


def _key_curve(categories: int, value: Callable[[KeyLaw], float]) -> Curve:
    laws = [KeyLaw.shortest(local_epsilon=level, categories=categories) for level in _KEY_LEVELS]
    return Curve(
        name=SHORTEST,
        role=Role.NEITHER,
        source=f"{_SOURCE}, Thm 7.5.1",
        values=tuple(map(value, laws)),
        series=_categories(categories),
    )


def error_of_estimates(
    *, local_epsilon: float, bits: float, clients: int, runs: int = _RUNS
) -> tuple[float, float]:
    """Mean and standard deviation over runs of ‖p̂ − p‖₁, p̂ with negative entries dropped, scaled to sum 1."""
    law = _DECAY ** torch.arange(_CATEGORIES).double()
    law /= law.sum()
    mechanism = LimitedHadamard(local_epsilon=local_epsilon, dim=_CATEGORIES, randomness_bits=bits)
    found = []
    for run in range(runs):
        generator = torch.Generator().manual_seed(run)
        drawn = torch.rand(clients, generator=generator, dtype=torch.float64)
        held = torch.searchsorted(law.cumsum(0), drawn).clamp_(max=_CATEGORIES - 1)
        estimate = mechanism.aggregate(mechanism.randomize(held, randomness=SeededRandomness(run)))
        estimate = estimate.clamp(min=0)
        found.append((estimate / estimate.sum() - law).abs().sum())
    errors = torch.stack(found)
    return float(errors.mean()), float(errors.std())


def _error_curves(errors: dict[float, list[tuple[float, float]]]) -> tuple[Curve, ...]:
    return tuple(
        Curve(
            name=MEASURED,
            role=Role.MEASURED,
            source=f"{_SOURCE}, Thm 7.3.2; negative entries dropped, scaled to sum 1",
            values=tuple(mean for mean, _ in found),
            series=f"R = {bits:g}",
        )
        for bits, found in errors.items()
    )


def _deviation(errors: dict[float, list[tuple[float, float]]]) -> float:
    """The largest standard deviation of one run in a panel."""
    return round(max(deviation for found in errors.values() for _, deviation in found), 4)


def _ladder_curves(ladders: Sequence[tuple[float, ...]]) -> tuple[Curve, ...]:
    levels = [MultilevelHadamard(local_epsilons=each, dim=2) for each in ladders]
    return (
        Curve(
            name=SEPARATE,
            role=Role.NEITHER,
            source="ΣH2(z), one key after another",
            values=tuple(each.separate_randomness_bits for each in levels),
        ),
        Curve(
            name=JOINT,
            role=Role.NEITHER,
            source=f"{_SOURCE}, Thm 7.4.1",
            values=tuple(each.randomness_bits for each in levels),
        ),
    )


def randomness_bits(name: str, *, local_epsilon: float, categories: int) -> float:
    """Private random bits that a report takes: its entropy, given the category and what is public.

    Args:
        name: one of ``TABLE_MECHANISMS``.
        local_epsilon: ε0 in nats.
        categories: k, at least 2.

    Raises:
        ValueError: if there is no such mechanism in the table.
    """
    if name == "RAPPOR":  # every bit is flipped on its own
        return categories * LimitedHadamard(local_epsilon=local_epsilon / 2, dim=2).randomness_bits
    if name == "k-ary response":
        total = 1 + (categories - 1) * math.exp(-local_epsilon)
        return (math.log(total) + local_epsilon * (1 - 1 / total)) / math.log(2)
    if name == "Hadamard response":  # in the blocks of Acharya, Sun and Zhang (Theorem 7.5.2)
        return KeyLaw.of_hadamard_response(local_epsilon=local_epsilon, categories=categories).entropy_bits
    if name == "one-bit Hadamard response":  # the group is public
        return LimitedHadamard(local_epsilon=local_epsilon, dim=2).randomness_bits
    raise ValueError(f"Table 7.1 has {', '.join(TABLE_MECHANISMS)}; got {name!r}")
