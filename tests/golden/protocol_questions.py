"""Protocols of several messages: what they find for a target, their costs, their messages and estimates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from accounting_questions import accountant_of, interval
from answers import Questions, digest, tensor
from mechanism_questions import categories, of_reports, rows

from shuffle_plugins.accounting import Adversary, Sampling
from shuffle_plugins.core import Reports
from shuffle_plugins.protocols import (
    BallSum,
    BinarySum,
    CubeSum,
    FrequencyEstimation,
    HistogramSum,
    ScalarSum,
    SplitSum,
    VectorSum,
    published,
)
from shuffle_plugins.protocols import published as published_frequencies
from shuffle_plugins.protocols.sums import Tally
from shuffle_plugins.randomness import SeededRandomness

QUESTIONS = Questions()
DELTA = 1e-6

_PARAMETERS = (
    "clients",
    "levels",
    "coins",
    "samples",
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
    "messages_per_client",
    "messages_per_coordinate",
    "bits_per_client",
)


def found(build: Callable[[], Any], *, population: int | None = None) -> dict[str, Any]:
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
        told[f"epsilon, {adversary}"] = interval(accountant_of([(one, 1)]).epsilon(DELTA))
    return told


_RENAMED = {"clients": "cohort", "bits_per_client": "bits_per_report", "counted_on": "honest_cohort"}

_PROTOCOLS: dict[str, Callable[..., Any]] = {
    "VectorSum": partial(VectorSum.calibrated, dim=30),
    "BallSum": partial(BallSum.calibrated, dim=30),
    "BallSum, rotation": partial(BallSum.calibrated, dim=30, frame="rotation", radius=0.5),
    "CubeSum": partial(CubeSum.calibrated, dim=10),
    "BinarySum": partial(BinarySum.calibrated, dim=10),
    "ScalarSum": ScalarSum.calibrated,
    "HistogramSum": partial(HistogramSum.calibrated, categories=20),
    "SplitSum": SplitSum.calibrated,
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
        if _case != "all" and _name not in ("BallSum", "HistogramSum", "SplitSum"):
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
for _sampling in (Sampling.WITHOUT_REPLACEMENT, Sampling.POISSON):
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
        "one message": published_frequencies.one_message(**_TARGET | {"cohort": 100_000}, categories=50),
        "level": published_frequencies.largest_local_epsilon(**_TARGET | {"cohort": 100_000}),
        "gaussian": published_frequencies.central_gaussian(**_TARGET, categories=50),
        "laplace": published_frequencies.central_laplace(cohort=1_000, epsilon=0.3, categories=50),
    },
)

# -- messages ------------------------------------------------------------------------------------------------

CLIENTS = 60
HELD = {"cohort": CLIENTS}
TARGET = {"epsilon": 1.0, "delta": 1e-6}

COINS: dict[str, Callable[[], Any]] = {
    "vector-sum": lambda: VectorSum(dim=5, levels=6, coins=40, radius=2.0, **HELD),
    "scalar-sum": lambda: ScalarSum(levels=3, coins=40, upper=2.0, **HELD),
    "histogram-sum": lambda: HistogramSum(categories=5, levels=4, coins=100, **HELD),
}
TAGS: dict[str, Callable[[], Any]] = {
    "binary-sum": lambda: BinarySum(dim=5, budget=6.0, samples=2, **HELD),
    "cube-sum": lambda: CubeSum(dim=5, budget=12.0, samples=3, levels=3, radius=2.0, **HELD),
    "cube-sum,one-place": lambda: CubeSum(dim=4, budget=8.0, samples=4, levels=2, radius=2.0, **HELD),
    "ball-sum,kashin": lambda: BallSum(dim=6, budget=20.0, samples=5, levels=2, radius=2.0, **HELD),
    "ball-sum,rotation": lambda: BallSum(dim=6, budget=20.0, samples=8, radius=2.0, frame="rotation", **HELD),
}
SPLITS: dict[str, Callable[[], Any]] = {
    "split-sum": lambda: SplitSum(levels=8, noise_epsilon=0.9, shares=6, upper=2.0, **HELD),
}


def records(protocol: Any) -> torch.Tensor:
    if isinstance(protocol, HistogramSum):
        return categories(protocol.cohort, protocol.categories)
    if isinstance(protocol, ScalarSum | SplitSum):
        return rows(protocol.cohort, 1, scale=protocol.upper / 2, dtype=torch.float64) + protocol.upper / 2
    if isinstance(protocol, BinarySum):
        return (rows(protocol.cohort, protocol.dim, scale=1.0, dtype=torch.float64) > 0).double()
    return rows(protocol.cohort, protocol.dim, scale=protocol.radius, dtype=torch.float64)


def of_tally(tally: Any) -> dict[str, Any]:
    return {"ones": tensor(tally.ones), "bits": tensor(tally.bits), "foreign": tally.foreign}


def estimate(protocol: Any, total: Any, **options: int) -> torch.Tensor:
    found = protocol.estimate(total, **options)
    return found.counts if isinstance(protocol, HistogramSum) else found


def of_coins(build: Callable[[], Any]) -> dict[str, Any]:
    protocol = build()
    x = records(protocol)
    reports = protocol.randomize(x, randomness=SeededRandomness(5))
    bits = torch.full((protocol.lattice.size,), len(reports) * protocol.messages_per_coordinate)
    total = Tally(ones=protocol.total(reports), bits=bits)
    found = {
        "encoded": tensor(reports.fields[0].values.reshape(len(reports), -1)),
        "total": of_tally(total),
        "decoded": tensor(estimate(protocol, total)),
        "decoded_of_ten": tensor(estimate(protocol, protocol.total(reports.narrow(0, 10)), reports=10)),
        "randomize_sum": tensor(protocol.randomize_sum(x, randomness=SeededRandomness(6))),
    }
    if protocol.messages_per_client < 10_000:
        messages = protocol.messages(reports.narrow(0, 5))
        found["messages"] = digest(b"".join(part.to_bytes() for part in messages))
        found["tally"] = of_tally(protocol.tally(Reports.concat(messages)))
    if isinstance(protocol, HistogramSum):
        histogram = protocol.estimate(total)
        intervals = protocol.intervals(histogram)
        found["histogram"] = {
            "counts": tensor(histogram.counts),
            "distribution": tensor(histogram.distribution),
            "lower": tensor(intervals.lower),
            "upper": tensor(intervals.upper),
            "largest_error": protocol.largest_error(),
        }
        drawn = protocol.randomize_histogram(x, randomness=SeededRandomness(7))
        found["randomize_histogram"] = tensor(drawn.counts)
    return found


def of_tags(build: Callable[[], Any]) -> dict[str, Any]:
    protocol = build()
    x = records(protocol)
    sent = protocol.randomize(x, randomness=SeededRandomness(5))
    shape = (len(sent), protocol.levels, protocol.samples)
    bits = sent.fields[-1].values.reshape(shape)
    places = sent.fields[0].values.reshape(shape) if len(sent.fields) == 2 else torch.zeros_like(bits)
    messages = Reports.concat(protocol.messages(sent))
    tally = protocol.tally(messages)
    signs = protocol.total(sent)
    return {
        "places": tensor(places),
        "bits": tensor(bits),
        "messages": of_reports(messages),
        "tally": of_tally(tally),
        "signs": tensor(signs),
        "surplus": protocol.surplus(tally),
        "decoded": tensor(protocol.estimate(tally)),
        "decoded_signs": tensor(protocol.estimate(signs, reports=protocol.cohort)),
        "signed_total": tensor(protocol.share(x, randomness=SeededRandomness(6))),
        "randomize_sum": tensor(protocol.randomize_sum(x, randomness=SeededRandomness(6))),
    }


def of_shares(build: Callable[[], Any]) -> dict[str, Any]:
    protocol = build()
    x = records(protocol)
    reports = protocol.randomize(x, randomness=SeededRandomness(5))
    shares = reports.fields[0].values
    messages = Reports.concat(protocol.messages(reports))
    total = protocol.total(messages)
    return {
        "shares": tensor(shares),
        "messages": of_reports(messages),
        "total": int(total),
        "decoded": float(protocol.estimate(total)),
        "randomize_sum": tensor(protocol.randomize_sum(x, randomness=SeededRandomness(6))),
    }


def of_frequencies(build: Callable[[], FrequencyEstimation]) -> dict[str, Any]:
    protocol = build()
    x = categories(protocol.cohort, protocol.categories)
    reports = protocol.randomize(x, randomness=SeededRandomness(5))
    histogram = protocol.estimate(reports)
    intervals = protocol.intervals(histogram, simultaneous=True)
    return {
        "mechanism": protocol.mechanism.name,
        "local_epsilon": float(protocol.local_epsilon),
        "largest_error": protocol.largest_error(),
        "reports": of_reports(reports),
        "counts": tensor(histogram.counts),
        "clients": histogram.reports,
        "refused": histogram.refused,
        "distribution": tensor(histogram.distribution),
        "lower": tensor(intervals.lower),
        "upper": tensor(intervals.upper),
    }


for _builds, _of in ((COINS, of_coins), (TAGS, of_tags), (SPLITS, of_shares)):
    for _name, _build in _builds.items():
        QUESTIONS.add(_name, partial(_of, _build))
for _oracle in ("k-rr", "subset-selection"):
    QUESTIONS.add(
        f"frequencies[{_oracle}]",
        partial(
            of_frequencies,
            partial(FrequencyEstimation, categories=9, cohort=200, local_epsilon=1.5, oracle=_oracle),
        ),
    )
