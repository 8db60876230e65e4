"""What protocols of several messages find for a target, and what they cost; noise; means of users."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from accountant_questions import accountant_of, interval
from answers import Questions

from shuffle_plugins.accounting import Adversary, Sampling
from shuffle_plugins.mechanisms import UserLevelMean
from shuffle_plugins.planning import expected_noise
from shuffle_plugins.protocols import (
    BallSum,
    BinarySum,
    CubeSum,
    FrequencyEstimation,
    HistogramSum,
    ScalarSum,
    SplitSum,
    VectorSum,
)
from shuffle_plugins.protocols.published import frequencies as published_frequencies
from shuffle_plugins.protocols.published import sums as published

QUESTIONS = Questions()
DELTA = 1e-6

_PARAMETERS = (
    "clients",
    "levels",
    "coins",
    "samples",
    "total_epsilon",
    "local_epsilon",
    "noise_epsilon",
    "shares",
    "oracle",
    "honest_fraction",
    "message_epsilons",
    "noise_variance",
    "worst_variance",
    "squared_error",
    "distribution_error",
    "influence",
    "distance",
    "counted_on",
    "reach",
    "modulus",
    "size",
    "coefficient_radius",
    "tags",
    "messages_per_client",
    "messages_per_coordinate",
    "bits_per_message",
    "bits_per_client",
)


def found(build: Callable[[], Any], *, num_steps: int = 1, population: int | None = None) -> dict[str, Any]:
    """A protocol's parameters, and what its rounds cost before both adversaries."""
    protocol = build()
    told = {
        name: getattr(protocol, _RENAMED.get(name, name))
        for name in _PARAMETERS
        if hasattr(protocol, _RENAMED.get(name, name))
    }
    if not isinstance(protocol, FrequencyEstimation):
        told.pop("local_epsilon", None)
    if not isinstance(protocol, SplitSum):
        told.pop("counted_on", None)
    for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
        one = protocol.round(population=population, adversary=adversary)
        told[f"round, {adversary}"] = one.state()
        told[f"epsilon, {adversary}"] = interval(accountant_of([(one, num_steps)]).epsilon(DELTA))
    return told


_RENAMED = {"clients": "cohort", "bits_per_client": "bits_per_report", "counted_on": "honest_cohort"}

_PROTOCOLS: dict[str, Callable[..., Any]] = {
    "VectorSum": partial(VectorSum.calibrated, dim=30),
    "VectorSum, radius 2": partial(VectorSum.calibrated, dim=30, radius=2.0, overhead=0.1),
    "BallSum": partial(BallSum.calibrated, dim=30),
    "BallSum, rotation": partial(BallSum.calibrated, dim=30, frame="rotation", radius=0.5),
    "BallSum, given samples": partial(BallSum.calibrated, dim=30, levels=3, samples=2),
    "CubeSum": partial(CubeSum.calibrated, dim=10),
    "BinarySum": partial(BinarySum.calibrated, dim=10),
    "ScalarSum": ScalarSum.calibrated,
    "ScalarSum, upper 10": partial(ScalarSum.calibrated, upper=10.0, overhead=0.2),
    "HistogramSum": partial(HistogramSum.calibrated, categories=20),
    "SplitSum": SplitSum.calibrated,
    "SplitSum, upper 3": partial(SplitSum.calibrated, upper=3.0, overhead=0.3),
    "FrequencyEstimation, k-rr": partial(FrequencyEstimation.calibrated, categories=20, oracle="k-rr"),
    "FrequencyEstimation, hadamard-response": partial(
        FrequencyEstimation.calibrated, categories=30, oracle="hadamard-response"
    ),
}
_TARGETS: dict[str, dict[str, Any]] = {
    "all": {"cohort": 500, "epsilon": 1.0},
    "three times": {"cohort": 500, "epsilon": 2.0, "num_steps": 3},
    "of a population": {"cohort": 500, "epsilon": 0.5, "population": 5_000},
    "some honest": {"cohort": 500, "epsilon": 1.0, "honest_fraction": 0.7},
}
for _name, _calibrated in _PROTOCOLS.items():
    for _case, _fields in _TARGETS.items():
        if _case != "all" and (("," in _name and "k-rr" not in _name) or _name == "CubeSum"):
            continue  # a variant of another
        QUESTIONS.add(
            f"{_name}: {_case}",
            partial(
                found,
                partial(_calibrated, **_fields, delta=DELTA),
                num_steps=_fields.get("num_steps", 1),
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
for _noise in (0.5, 3.0):
    QUESTIONS.add(
        f"BallSum: noise multiplier {_noise}",
        lambda noise=_noise: found(lambda: BallSum.with_noise(dim=20, cohort=500, noise_multiplier=noise)),
    )
for _sampling in Sampling:
    QUESTIONS.add(
        f"rounds of a sum: {_sampling}",
        lambda sampling=_sampling: [
            interval(
                accountant_of(
                    [(build(cohort=500, epsilon=1.0, delta=DELTA).round(sampling=sampling, **sizes), 2)]
                ).epsilon(DELTA)
            )
            for build in (_PROTOCOLS["VectorSum"], _PROTOCOLS["BinarySum"])
            for sizes in [{} if sampling is Sampling.FULL else {"population": 5_000}]
        ],
    )
QUESTIONS.add(
    "HistogramSum: errors",
    lambda: [
        HistogramSum.calibrated(categories=20, cohort=2_000, epsilon=1.0, delta=DELTA).largest_error(
            confidence=confidence
        )
        for confidence in (0.5, 0.95, 0.999)
    ],
)
QUESTIONS.add(
    "HistogramSum: contrasts",
    lambda: interval(
        accountant_of(
            [
                (
                    HistogramSum.calibrated(
                        categories=20, cohort=2_000, epsilon=1.0, delta=DELTA
                    ).contrast_round(),
                    2,
                )
            ]
        ).epsilon(DELTA)
    ),
)
QUESTIONS.add(
    "FrequencyEstimation: errors",
    lambda: [
        FrequencyEstimation(
            categories=20, cohort=2_000, local_epsilon=2.0, oracle="subset-selection"
        ).largest_error(confidence=confidence, largest_frequency=frequency)
        for confidence in (0.5, 0.95)
        for frequency in (0.1, 1.0)
    ],
)
for _oracle in (
    "best",
    "hadamard-response",
    "k-rr",
    "limited-hadamard",
    "local-hashing",
    "oue",
    "rappor",
    "subset-selection",
):
    QUESTIONS.add(
        f"FrequencyEstimation: errors of {_oracle}",
        lambda oracle=_oracle: found(
            lambda: FrequencyEstimation(categories=20, cohort=2_000, local_epsilon=1.0, oracle=oracle)
        ),
    )

# -- published sums -----------------------------------------------------------------------------------------

for _epsilon in (0.3, 2.0):
    QUESTIONS.add(
        f"published sums: {_epsilon}",
        lambda e=_epsilon: {
            "scalar": published.scalar_sum(cohort=1_000, epsilon=e, delta=DELTA),
            "scalar, levels": published.scalar_sum(
                cohort=1_000, epsilon=e, delta=DELTA, upper=4.0, levels=12
            ),
            "vector": published.vector_sum(dim=20, cohort=1_000, epsilon=e, delta=DELTA),
            "budget": published.multi_message_budget(
                cohort=1_000, samples=3, levels=4, epsilon=e, delta=DELTA
            ),
        },
    )
    QUESTIONS.add(
        f"published frequencies: {_epsilon}",
        lambda e=_epsilon: {
            "one message": published_frequencies.one_message(
                categories=50, cohort=100_000, epsilon=e, delta=DELTA
            ),
            "level": published_frequencies.largest_local_epsilon(cohort=100_000, epsilon=e, delta=DELTA),
            "gaussian": published_frequencies.central_gaussian(
                categories=50, cohort=1_000, epsilon=e, delta=DELTA
            ),
            "laplace": published_frequencies.central_laplace(categories=50, cohort=1_000, epsilon=e),
        },
    )

# -- noise and user means -----------------------------------------------------------------------------------


def noise(build: Callable[[], Any], *, cohort: float) -> dict[str, Any]:
    told = expected_noise(build(), cohort=cohort)
    return {
        "noise": told.noise,
        "signal": told.largest_signal,
        "ratio": told.signal_to_noise_ratio,
        "over 50": told.signal_to_noise_ratio_over(50),
        "warned": told.warning(num_steps=50) is not None,
    }


QUESTIONS.add(
    "noise: VectorSum",
    partial(
        noise,
        partial(VectorSum.calibrated, dim=100, cohort=1_000, epsilon=1.0, delta=DELTA, radius=2.0),
        cohort=1_000,
    ),
)
QUESTIONS.add(
    "noise: BallSum",
    partial(
        noise, partial(BallSum.calibrated, dim=100, cohort=1_000, epsilon=1.0, delta=DELTA), cohort=1_000
    ),
)
for _split in ("clients", "budget"):
    for _ranging in (None, True, False):
        QUESTIONS.add(
            f"user means: {_split}, {_ranging}",
            lambda split=_split, ranging=_ranging: [
                getattr(
                    UserLevelMean(
                        local_epsilon=2.0,
                        dim=8,
                        clients=20_000,
                        samples=500,
                        radius=1.0,
                        sigma=0.1,
                        split=split,
                        ranging=ranging,
                    ),
                    name,
                )
                for name in (
                    "spread",
                    "extent",
                    "bins",
                    "range_clients",
                    "mean_clients",
                    "clients_per_coordinate",
                    "stage_epsilon",
                    "failure_probability",
                    "residual_radius",
                    "mean_variance",
                )
            ],
        )
