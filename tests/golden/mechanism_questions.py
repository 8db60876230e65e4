"""Every registered mechanism on fixed records: its reports, what they add up to, and their law."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from accounting_questions import MECHANISMS
from answers import Questions, digest, tensor
from torch import Tensor

from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import FrequencyOracle, UserLevelMean, estimate_mean, get
from shuffle_plugins.randomness import SeededRandomness

CLIENTS, MANY_CLIENTS = 40, 1000
MOST_OUTCOMES = 5_000

VARIANTS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("sqkr", 7, {"public_seed": 1}),
    ("sqkr", 7, {"frame": "rotation"}),
    ("l2-bit-planes", 7, {"frame": "kashin"}),
    ("linf-bit-planes", 7, {"levels": 3, "samples": 2}),
    ("linf-block", 7, {"block": 3}),
    ("sampled-bits", 7, {"constants": "thesis"}),
    ("limited-hadamard", 7, {"randomness_bits": 0.9}),
    ("local-hashing", 1000, {"buckets": 5}),
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
        "header_bytes": reports.layout.header_bytes,
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


def of_mechanism(name: str, dim: int, local_epsilon: float, options: dict[str, Any]) -> dict[str, Any]:
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
        found["clipped"] = tensor(mechanism.clip(many)[:20])
        clips = {"clip": True}
    found["variance"] = tensor(mechanism.variance(few))
    source = SeededRandomness(7)
    for title, x, how in (("few", few, {}), ("many", many, clips)):
        reports = mechanism.randomize(x, randomness=source, **how)
        found[title] = of_reports(reports) | {
            "sum": tensor(mechanism.sum(reports)),
        }
        back = Reports.from_bytes(reports.to_bytes())
        assert back.to_bytes() == reports.to_bytes()
        if title == "few":
            found["each"] = {"bytes": len(reports.each_to_bytes()[0])}
            try:
                law = [mechanism.log_likelihood(reports, record) for record in few[:2]]
            except NotImplementedError:
                law = []
            found["log_likelihood"] = [tensor(part) for part in law]
    found["randomize_sum"] = tensor(mechanism.randomize_sum(many, randomness=SeededRandomness(8)))
    outcomes = mechanism.outcomes()
    if outcomes is not None and len(outcomes) <= MOST_OUTCOMES:
        found["outcomes"] = of_reports(outcomes) | {"number": len(outcomes)}
        if found["log_likelihood"]:
            found["law"] = [tensor(mechanism.log_likelihood(outcomes, record)) for record in few[:2]]
    return found


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
        "mean": tensor(found.mean),
        "centre": tensor(found.centre),
        "local_epsilon": found.local_epsilon,
        "failure_probability": found.failure_probability,
        "range_reports": None if found.range_reports is None else of_reports(found.range_reports),
        "mean_reports": of_reports(found.mean_reports),
    }


QUESTIONS = Questions()
_SETTINGS: list[tuple[str, int, float, dict[str, Any]]] = [
    ("binary-rr", 1, 0.5, {}),
    ("binary-rr", 1, 2.0, {}),
]
for _name in MECHANISMS:
    if _name != "binary-rr":
        _SETTINGS += [(_name, 7, 2.0, {}), (_name, 40, 0.5, {})]
_SETTINGS += [(name, dim, 6.0, options) for name, dim, options in VARIANTS]
for _name, _dim, _level, _options in _SETTINGS:
    _title = ",".join([f"dim={_dim}", *(f"{key}={value}" for key, value in _options.items())])
    QUESTIONS.add(f"{_name}[{_title},eps0={_level:g}]", partial(of_mechanism, _name, _dim, _level, _options))
for _name in ("privunit", "linf-coordinate"):
    for _split in ("clients", "budget"):
        QUESTIONS.add(f"user-level[{_name},{_split}]", partial(user_level, _name, _split, 5))
