"""Every registered mechanism on fixed records: its reports, what they add up to, and their law."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from reports_answers import Questions, digest, tensor, vector
from torch import Tensor

from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import FrequencyOracle, MechanismSpec, UserLevelMean, estimate_mean, get
from shuffle_plugins.randomness import SeededRandomness

DIMS = (1, 7, 40)
CATEGORIES = (2, 7, 40)
LOCAL_EPSILONS = (0.5, 2.0, 6.0)
CLIENTS, MANY_CLIENTS = 40, 1000
MOST_OUTCOMES = 5_000

VECTORS = (
    "blanket-mixed-gaussian",
    "discrete-gaussian",
    "discrete-laplace",
    "gaussian",
    "l1-hadamard",
    "l2-bit-planes",
    "l2-block",
    "laplace",
    "linf-bit-planes",
    "linf-block",
    "linf-coordinate",
    "privunit",
    "privunit-g",
    "projunit",
    "sampled-bits",
    "sqkr",
)
ORACLES = (
    "hadamard-response",
    "k-rr",
    "limited-hadamard",
    "local-hashing",
    "oue",
    "rappor",
    "subset-selection",
)
VARIANTS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("l1-hadamard", 7, {"public_seed": 1}),
    ("sqkr", 7, {"public_seed": 1}),
    ("sqkr", 7, {"frame": "rotation"}),
    ("l2-bit-planes", 7, {"frame": "kashin"}),
    ("linf-bit-planes", 7, {"levels": 3, "samples": 2}),
    ("linf-block", 7, {"block": 3}),
    ("sampled-bits", 7, {"constants": "thesis"}),
    ("limited-hadamard", 7, {"randomness_bits": 0.9}),
    ("local-hashing", 7, {"buckets": 3}),
    ("local-hashing", 1000, {"buckets": 5}),
    ("subset-selection", 60, {"size": 20}),
    ("subset-selection", 300, {"size": 80}),
    ("discrete-laplace", 7, {"bits": 8}),
    ("gaussian", 7, {"local_delta": 0.01}),
    ("projunit", 100, {"projected_dim": 16}),
    ("linf-coordinate", 1000, {}),
    ("linf-coordinate", 7, {"radius": 0.5}),
    ("privunit", 1000, {"radius": 2.0}),
)


def rows(clients: int, dim: int, *, scale: float, dtype: torch.dtype) -> Tensor:
    """Records that are exact in every dtype: multiples of 1/64 whose absolute values add up to ``scale``."""
    places = torch.arange(clients).unsqueeze(1) * 7919 + torch.arange(dim) * 104_729 + 17
    values = (places * places % 1009) % 129 - 64
    return (values.double() * (scale / 64 / (1 << (dim - 1).bit_length()))).to(dtype)


def categories(clients: int, dim: int) -> Tensor:
    return (torch.arange(clients) ** 2 * 31 + 5) % dim


def of_reports(reports: Reports) -> dict[str, Any]:
    """Reports that are whole numbers byte by byte; others by their length and values."""
    data = reports.to_bytes()
    found: dict[str, Any] = {
        "mechanism": reports.mechanism,
        "bits_per_report": reports.bits_per_report,
        "header_bytes": reports.header_bytes,
        "layout": [[field.bits, field.width] for field in reports.fields],
        "bytes": len(data),
    }
    if any(field.values.is_floating_point() for field in reports.fields):
        found["fields"] = [tensor(field.values) for field in reports.fields]
        return found
    first = reports.narrow(0, 1)
    return found | {
        "all": digest(data),
        "first": first.to_bytes().hex() if len(first.to_bytes()) < 200 else "",
    }


def answer(name: str, dim: int, local_epsilon: float, options: dict[str, Any]) -> dict[str, Any]:
    mechanism: Any = get(name, local_epsilon=local_epsilon, dim=dim, **options)
    found: dict[str, Any] = {
        "name": mechanism.name,
        "local_epsilon": float(mechanism.local_epsilon),
        "local_delta": float(mechanism.local_delta),
        "bits_per_report": mechanism.bits_per_report,
        "worst_variance": float(mechanism.worst_variance),
        "shufflable": mechanism.shufflable,
    }
    clips: dict[str, Any] = {}
    if isinstance(mechanism, FrequencyOracle):
        few, many = categories(CLIENTS, dim), categories(MANY_CLIENTS, dim)
    else:
        radius = float(mechanism.radius)
        few = rows(CLIENTS, dim, scale=radius, dtype=torch.float64)
        many = rows(MANY_CLIENTS, dim, scale=8 * radius, dtype=torch.float32)
        found["clipped"] = vector(mechanism.clip(many)[:20])
        clips = {"clip": True}
    found["variance"] = vector(mechanism.variance(few))
    source = SeededRandomness(7)
    for title, x, how in (("few", few, {}), ("many", many, clips)):
        reports = mechanism.randomize(x, randomness=source, **how)
        found[title] = of_reports(reports) | {
            "sum": vector(mechanism.sum(reports)),
            "estimate": vector(mechanism.aggregate(reports)),
            "of_one": vector(mechanism.sum(reports.narrow(0, 1))),
        }
        back = Reports.from_bytes(reports.to_bytes())
        assert back.to_bytes() == reports.to_bytes()
        if title == "few":
            found["each"] = {"bytes": len(reports.each_to_bytes()[0])}
            try:
                law = [mechanism.log_likelihood(reports, record) for record in few[:2]]
            except NotImplementedError:
                law = []
            found["log_likelihood"] = [vector(part) for part in law]
    found["randomize_sum"] = vector(mechanism.randomize_sum(many, randomness=SeededRandomness(8)))
    outcomes = mechanism.outcomes()
    if outcomes is not None and len(outcomes) <= MOST_OUTCOMES:
        found["outcomes"] = of_reports(outcomes) | {"number": len(outcomes)}
        if found["log_likelihood"]:
            found["law"] = [vector(mechanism.log_likelihood(outcomes, record)) for record in few[:2]]
    return found


def of_spec(name: str, dim: int, options: dict[str, Any]) -> dict[str, Any]:
    radius = options.get("radius", 1.0)
    own = tuple((key, value) for key, value in options.items() if key != "radius")
    spec = MechanismSpec(name=name, local_epsilon=2.0, radius=radius, options=own)
    assert MechanismSpec.from_json(spec.to_json()) == spec
    return {
        "json": spec.to_json(),
        "fingerprint": spec.fingerprint(dim=dim).hex(),
        "report_bytes": spec.report_bytes(dim=dim),
    }


def user_level(mechanism: str, split: str, dim: int) -> dict[str, Any]:
    plan = UserLevelMean(
        local_epsilon=4.0,
        dim=dim,
        clients=2000,
        samples=200,
        radius=1.0,
        sigma=0.02,
        mechanism=mechanism,
        split=split,
    )
    samples = rows(2000, dim, scale=0.25, dtype=torch.float64).unsqueeze(1).repeat(1, 200, 1)
    found = estimate_mean(samples, plan=plan, randomness=SeededRandomness(3))
    return {
        "plan": {
            "bins": plan.bins,
            "range_clients": plan.range_clients,
            "mean_clients": plan.mean_clients,
            "stage_epsilon": plan.stage_epsilon,
            "residual_radius": plan.residual_radius,
            "spread": plan.spread,
            "extent": plan.extent,
            "mean_variance": plan.mean_variance,
        },
        "mean": vector(found.mean),
        "centre": vector(found.centre),
        "local_epsilon": found.local_epsilon,
        "failure_probability": found.failure_probability,
        "range_reports": None if found.range_reports is None else of_reports(found.range_reports),
        "mean_reports": of_reports(found.mean_reports),
    }


def questions() -> Questions:
    asked: dict[str, Callable[[], Any]] = {}
    settings: list[tuple[str, int, dict[str, Any]]] = [("binary-rr", 1, {})]
    settings += [(name, dim, {}) for name in VECTORS for dim in DIMS]
    settings += [(name, dim, {}) for name in ORACLES for dim in CATEGORIES]
    for name, dim, options in (*settings, *VARIANTS):
        title = ",".join([f"dim={dim}", *(f"{key}={value}" for key, value in options.items())])
        for local_epsilon in LOCAL_EPSILONS:
            asked[f"{name}[{title},eps0={local_epsilon:g}]"] = partial(
                answer, name, dim, local_epsilon, options
            )
        if name not in ORACLES:
            asked[f"spec:{name}[{title}]"] = partial(of_spec, name, dim, options)
    for mechanism in ("privunit", "linf-coordinate", "l1-hadamard"):
        for split in ("clients", "budget"):
            asked[f"user-level[{mechanism},{split}]"] = partial(user_level, mechanism, split, 5)
    return asked
