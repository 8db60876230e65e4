"""Protocols of several messages: what they find for a target, their costs, their messages and estimates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from accounting_questions import accountant_of, interval
from answers import Questions

from shuffle_plugins.accounting import Adversary, Round, Sampling
from shuffle_plugins.protocols import (
    BallSum,
    BinarySum,
    CubeSum,
    DecoyHistogram,
    FrequencyEstimation,
    HistogramSum,
    LaplaceHistogram,
    LaplaceVectorSum,
    ScalarSum,
    SplitSum,
    VectorSum,
    WindowedSum,
    published,
    window_coefficients,
)

QUESTIONS = Questions()
DELTA = 1e-6

_PARAMETERS = (
    *("levels", "coins", "samples", "local_epsilon", "noise_epsilon", "shares", "oracle", "message_epsilons"),
    *("noise_variance", "worst_variance", "squared_error", "distribution_error", "influence", "distance"),
    *("modulus", "size", "messages_per_client", "bits_per_report"),
)


def found(build: Callable[[], Any], *, population: int | None = None) -> dict[str, Any]:
    """A protocol's parameters, and what its rounds cost before both adversaries."""
    protocol = build()
    told = {name: getattr(protocol, name) for name in _PARAMETERS if hasattr(protocol, name)}
    if not isinstance(protocol, FrequencyEstimation):
        told.pop("local_epsilon", None)
    for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
        one = protocol.round(population=population, adversary=adversary)
        told[f"epsilon, {adversary}"] = interval(accountant_of([(one, 1)]).epsilon(DELTA))
    return told


_PROTOCOLS: dict[str, Callable[..., Any]] = {
    "VectorSum": partial(VectorSum.calibrated, dim=30),
    "WindowedSum": partial(WindowedSum.calibrated, dim=30, coefficients=(6, 4, 3, 3)),
    "BallSum": partial(BallSum.calibrated, dim=30),
    "BallSum, rotation": partial(BallSum.calibrated, dim=30, frame="rotation", radius=0.5),
    "CubeSum": partial(CubeSum.calibrated, dim=10),
    "BinarySum": partial(BinarySum.calibrated, dim=10),
    "ScalarSum": ScalarSum.calibrated,
    "HistogramSum": partial(HistogramSum.calibrated, categories=20),
    "SplitSum": SplitSum.calibrated,
    "LaplaceHistogram": partial(LaplaceHistogram.calibrated, categories=20),
    "LaplaceVectorSum": partial(LaplaceVectorSum.calibrated, dim=10),
    "DecoyHistogram": partial(DecoyHistogram.calibrated, categories=20),
    "FrequencyEstimation, k-rr": partial(FrequencyEstimation.calibrated, categories=20, oracle="k-rr"),
    "FrequencyEstimation, hadamard-response": partial(
        FrequencyEstimation.calibrated, categories=30, oracle="hadamard-response"
    ),
}
_TARGETS: dict[str, dict[str, Any]] = {
    "all": {"cohort": 500, "epsilon": 1.0},
    "of a population": {"cohort": 500, "epsilon": 0.5, "population": 5_000},
    "some honest": {"cohort": 500, "epsilon": 1.0, "honest_fraction": 0.7},
}
for _name, _calibrated in _PROTOCOLS.items():
    for _case, _fields in _TARGETS.items():
        if _case != "all" and _name not in ("BallSum", "HistogramSum", "SplitSum", "LaplaceHistogram"):
            continue
        QUESTIONS.add(
            f"{_name}: {_case}",
            partial(
                found,
                partial(_calibrated, **_fields, delta=DELTA),
                population=_fields.get("population"),
            ),
        )
for _name in ("BinarySum", "SplitSum", "FrequencyEstimation, k-rr"):
    QUESTIONS.add(
        f"{_name}: too few",
        partial(found, partial(_PROTOCOLS[_name], cohort=3, epsilon=0.01, delta=1e-12)),
    )
QUESTIONS.add(
    "FrequencyEstimation, best: 600",
    partial(
        found,
        partial(FrequencyEstimation.calibrated, categories=12, cohort=600, epsilon=1.0, delta=DELTA),
    ),
)
QUESTIONS.add(
    "BallSum: noise multiplier 3.0",
    lambda: found(lambda: BallSum.with_noise(dim=20, cohort=500, noise_multiplier=3.0)),
)


def twice(one: Round) -> dict[str, Any]:
    return interval(accountant_of([(one, 2)]).epsilon(DELTA))


for _sampling in (Sampling.WITHOUT_REPLACEMENT, Sampling.POISSON):
    QUESTIONS.add(
        f"rounds of a sum: {_sampling}",
        lambda sampling=_sampling: [
            twice(build(cohort=500, epsilon=1.0, delta=DELTA).round(sampling=sampling, population=5_000))
            for build in (_PROTOCOLS["VectorSum"], _PROTOCOLS["BinarySum"])
        ],
    )
_histogram = partial(HistogramSum.calibrated, categories=20, cohort=2_000, epsilon=1.0, delta=DELTA)
QUESTIONS.add(
    "HistogramSum: errors",
    lambda: [_histogram().largest_error(confidence=confidence) for confidence in (0.5, 0.95, 0.999)],
)
QUESTIONS.add(
    "LaplaceHistogram: shares that are missing",
    lambda: [
        twice(LaplaceHistogram(categories=20, cohort=2_000, noise_epsilon=1.0).round(cohort=present))
        for present in (2_000, 1_900, 1_000)
    ],
)
QUESTIONS.add(
    "FrequencyEstimation: errors",
    lambda: [
        FrequencyEstimation(
            categories=20, cohort=2_000, local_epsilon=2.0, oracle="subset-selection"
        ).largest_error(confidence=confidence)
        for confidence in (0.5, 0.95)
    ],
)
QUESTIONS.add(
    "windows: coefficients",
    lambda: [
        window_coefficients(rounds=200, band=14),
        window_coefficients(rounds=200, band=14, momentum=0.9),
        window_coefficients(rounds=100, band=5, learning_rates=[1 - i / 200 for i in range(100)]),
    ],
)

# -- published sums -----------------------------------------------------------------------------------------

_TARGET: dict[str, Any] = {"cohort": 1_000, "epsilon": 0.3, "delta": DELTA}
QUESTIONS.add(
    "published sums: 0.3",
    lambda: {
        "scalar": published.scalar_sum(**_TARGET),
        "vector": published.vector_sum(**_TARGET, dim=20),
        "budget": published.multi_message_budget(**_TARGET, samples=3, levels=4),
    },
)
QUESTIONS.add(
    "published frequencies: 0.3",
    lambda: {
        "one message": published.one_message(**_TARGET | {"cohort": 100_000}, categories=50),
        "level": published.largest_local_epsilon(**_TARGET | {"cohort": 100_000}),
        "gaussian": published.central_gaussian(**_TARGET, categories=50),
        "laplace": published.central_laplace(cohort=1_000, epsilon=0.3, categories=50),
    },
)
