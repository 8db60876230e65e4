"""Every multi-message protocol on fixed records: messages, tallies, estimates; and how a sum is agreed on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from reports_answers import Questions, digest, tensor, vector, whole
from reports_mechanisms import ORACLES, categories, of_reports, rows

from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import SumSpec, spec_from_json
from shuffle_plugins.protocols import (
    BallSum,
    BinarySum,
    CubeSum,
    FrequencyEstimation,
    HistogramSum,
    ScalarSum,
    SplitSum,
    Tally,
    VectorSum,
)
from shuffle_plugins.randomness import SeededRandomness

CLIENTS = 60
HELD = {"cohort": CLIENTS}
TARGET = {"epsilon": 1.0, "delta": 1e-6}

COINS: dict[str, Callable[[], Any]] = {
    "vector-sum": lambda: VectorSum(dim=5, levels=6, coins=40, radius=2.0, **HELD),
    "vector-sum,honest": lambda: VectorSum(dim=3, levels=5, coins=64, honest_fraction=0.75, **HELD),
    "vector-sum,calibrated": lambda: VectorSum.calibrated(dim=7, **HELD, **TARGET),
    "vector-sum,noise": lambda: VectorSum.with_noise(dim=7, noise_multiplier=3.0, radius=0.5, **HELD),
    "scalar-sum": lambda: ScalarSum(levels=3, coins=40, upper=2.0, **HELD),
    "scalar-sum,calibrated": lambda: ScalarSum.calibrated(upper=2.0, **HELD, **TARGET),
    "histogram-sum": lambda: HistogramSum(categories=5, levels=4, coins=100, **HELD),
    "histogram-sum,calibrated": lambda: HistogramSum.calibrated(categories=12, **HELD, **TARGET),
}
TAGS: dict[str, Callable[[], Any]] = {
    "binary-sum": lambda: BinarySum(dim=5, budget=6.0, samples=2, **HELD),
    "binary-sum,calibrated": lambda: BinarySum.calibrated(dim=5, cohort=5000, **TARGET),
    "cube-sum": lambda: CubeSum(dim=5, budget=12.0, samples=3, levels=3, radius=2.0, **HELD),
    "cube-sum,one-place": lambda: CubeSum(dim=4, budget=8.0, samples=4, levels=2, radius=2.0, **HELD),
    "cube-sum,calibrated": lambda: CubeSum.calibrated(dim=5, cohort=5000, **TARGET),
    "ball-sum,kashin": lambda: BallSum(dim=6, budget=20.0, samples=5, levels=2, radius=2.0, **HELD),
    "ball-sum,rotation": lambda: BallSum(dim=6, budget=20.0, samples=8, radius=2.0, frame="rotation", **HELD),
    "ball-sum,calibrated": lambda: BallSum.calibrated(dim=6, cohort=5000, **TARGET),
    "ball-sum,noise": lambda: BallSum.with_noise(dim=6, noise_multiplier=3.0, cohort=1000),
}
SPLITS: dict[str, Callable[[], Any]] = {
    "split-sum": lambda: SplitSum(levels=8, noise_epsilon=0.9, shares=6, upper=2.0, **HELD),
    "split-sum,calibrated": lambda: SplitSum.calibrated(**HELD, **TARGET),
}


def numbers(protocol: Any) -> dict[str, Any]:
    """What a protocol says of itself: what users of a calibration build on."""
    names = (
        "levels",
        "coins",
        "budget",
        "samples",
        "noise_epsilon",
        "shares",
        "modulus",
        "reach",
        "tags",
        "message_epsilons",
        "noise_variance",
        "worst_variance",
        "coefficient_radius",
        "messages_per_client",
        "messages_per_coordinate",
        "bits_per_message",
        "bits_per_client",
        "squared_error",
        "influence",
        "distribution_error",
    )
    renamed = {"bits_per_client": "bits_per_report"}
    found = {
        name: getattr(protocol, renamed.get(name, name))
        for name in names
        if hasattr(protocol, renamed.get(name, name))
    }
    return {"name": protocol.name} | {
        name: list(value) if isinstance(value, tuple) else value for name, value in found.items()
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
    return {"ones": whole(tally.ones), "bits": whole(tally.bits), "foreign": tally.foreign}


def estimate(protocol: Any, total: Any, **options: int) -> torch.Tensor:
    found = protocol.estimate(total, **options)
    return found.counts if isinstance(protocol, HistogramSum) else found


def of_coins(build: Callable[[], Any]) -> dict[str, Any]:
    protocol = build()
    x = records(protocol)
    reports = protocol.randomize(x, randomness=SeededRandomness(5))
    bits = torch.full((protocol.lattice.size,), len(reports) * protocol.messages_per_coordinate)
    total = Tally(ones=protocol.total(reports), bits=bits)
    found = numbers(protocol) | {
        "encoded": whole(reports.fields[0].values.reshape(len(reports), -1)),
        "total": of_tally(total),
        "decoded": vector(estimate(protocol, total)),
        "decoded_of_ten": vector(estimate(protocol, protocol.total(reports.narrow(0, 10)), reports=10)),
        "randomize_sum": vector(protocol.randomize_sum(x, randomness=SeededRandomness(6))),
    }
    if protocol.messages_per_client < 10_000:
        messages = protocol.messages(reports.narrow(0, 5))
        found["messages"] = digest(b"".join(part.to_bytes() for part in messages))
        found["tally"] = of_tally(protocol.tally(Reports.concat(messages)))
    if isinstance(protocol, HistogramSum):
        histogram = protocol.estimate(total)
        intervals = protocol.intervals(histogram)
        found["histogram"] = {
            "counts": vector(histogram.counts),
            "distribution": vector(histogram.distribution),
            "lower": vector(intervals.lower),
            "upper": vector(intervals.upper),
            "largest_error": protocol.largest_error(),
        }
        drawn = protocol.randomize_histogram(x, randomness=SeededRandomness(7))
        found["randomize_histogram"] = vector(drawn.counts)
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
    return numbers(protocol) | {
        "places": whole(places),
        "bits": whole(bits),
        "messages": of_reports(messages),
        "tally": of_tally(tally),
        "signs": whole(signs),
        "surplus": protocol.surplus(tally),
        "decoded": vector(protocol.estimate(tally)),
        "decoded_signs": vector(protocol.estimate(signs, reports=protocol.cohort)),
        "signed_total": whole(protocol.share(x, randomness=SeededRandomness(6))),
        "randomize_sum": vector(protocol.randomize_sum(x, randomness=SeededRandomness(6))),
    }


def of_shares(build: Callable[[], Any]) -> dict[str, Any]:
    protocol = build()
    x = records(protocol)
    reports = protocol.randomize(x, randomness=SeededRandomness(5))
    shares = reports.fields[0].values
    messages = Reports.concat(protocol.messages(reports))
    total = protocol.total(messages)
    return numbers(protocol) | {
        "shares": whole(shares),
        "messages": of_reports(messages),
        "total": int(total),
        "decoded": float(protocol.estimate(total)),
        "randomize_sum": vector(protocol.randomize_sum(x, randomness=SeededRandomness(6))),
    }


def of_frequencies(build: Callable[[], FrequencyEstimation]) -> dict[str, Any]:
    protocol = build()
    x = categories(protocol.cohort, protocol.categories)
    reports = protocol.randomize(x, randomness=SeededRandomness(5))
    histogram = protocol.estimate(reports)
    intervals = protocol.intervals(histogram, simultaneous=True)
    return numbers(protocol) | {
        "mechanism": protocol.mechanism.name,
        "local_epsilon": float(protocol.local_epsilon),
        "largest_error": protocol.largest_error(),
        "reports": of_reports(reports),
        "counts": vector(histogram.counts),
        "clients": histogram.reports,
        "refused": histogram.refused,
        "distribution": vector(protocol.distribution(reports)),
        "lower": vector(intervals.lower),
        "upper": vector(intervals.upper),
    }


def of_spec(build: Callable[[], Any]) -> dict[str, Any]:
    """The text that is agreed on, and whole reports of a sum, as hosts send them."""
    protocol = build()
    spec = SumSpec(protocol=protocol)
    assert spec_from_json(spec.to_json()) == spec
    reporting = spec.build(dim=protocol.dim)
    reports = reporting.randomize(records(protocol), randomness=SeededRandomness(9))
    total = reporting.total(reports)
    return {
        "json": spec.to_json(),
        "fingerprint": spec.fingerprint(dim=protocol.dim).hex(),
        "report_bytes": spec.report_bytes(dim=protocol.dim),
        "local_epsilon": spec.local_epsilon,
        "bits_per_report": reporting.bits_per_report,
        "reports": of_reports(reports),
        "total": tensor(total),
        "sum": vector(reporting.sum(reports)),
    }


def questions() -> Questions:
    asked: dict[str, Callable[[], Any]] = {}
    for builds, answer in ((COINS, of_coins), (TAGS, of_tags), (SPLITS, of_shares)):
        for name, build in builds.items():
            asked[name] = partial(answer, build)
            if name.startswith(("vector-sum", "ball-sum")):
                asked[f"spec:{name}"] = partial(of_spec, build)
    for oracle in ORACLES:
        build = partial(FrequencyEstimation, categories=9, cohort=200, local_epsilon=1.5, oracle=oracle)
        asked[f"frequencies[{oracle}]"] = partial(of_frequencies, build)
    best = partial(FrequencyEstimation.calibrated, categories=9, cohort=2000, **TARGET)
    asked["frequencies[calibrated]"] = partial(of_frequencies, best)
    return asked
