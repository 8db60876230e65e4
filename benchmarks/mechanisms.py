"""Mechanisms measured: error beside its formula, time and memory of encoding, length on the wire.

Every mechanism in the registry. Errors: single reports of one datum, E‖R(x) - x‖² beside ``variance(x)``.
Encoding: 10,000 clients × 13,706 coordinates of float32, beside one copy of that batch, in processor time;
peak memory is the process's own high-water mark, beyond the batch. Wire: the bytes of the reports of 10,000
clients at d = 13,170 beside those of their float32 vectors. Shuffled: the errors of PrivUnit and of the
blanket-mixed Gaussian mechanism at the same ε after shuffling. Seeds: the time of a client's search and of
the server's sum, and a million searches beside the stated law. Sums are in benchmarks/protocols.py.

Usage: python benchmarks/mechanisms.py [--output FILE] [--only PART]
With --only the other parts of the file stay as they are. PART is one of errors, encoding, wire, short,
shuffled, seeds, seed_law and seed_round.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from scipy import integrate, stats

from shuffle_plugins.accounting import ShuffleAccountant, calibrate_local_epsilon
from shuffle_plugins.compressors.seeds import draw_seeds, expand_all
from shuffle_plugins.mechanisms import FrequencyOracle, available, get, registry
from shuffle_plugins.randomness import SecureRandomness

RESULTS = Path(__file__).parent / "results" / "mechanisms.json"

LOCAL_EPSILON = 2.0
ERROR_DIM, CATEGORIES, ERROR_REPORTS = 512, 64, 20_000
BATCH, DIM = 10_000, 13_706
WIRE_DIM = 13_170
SHORT_BITS = 15
SHORT_LEVELS = (0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
SHUFFLED_LEVELS, SHUFFLED_DIM = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0), 1000
SHUFFLED = {"population": 60_000, "cohort": 10_000, "num_steps": 1200}
DELTA = 1e-5
SEEDED = ("privunit-g-seed", "blanket-mixed-gaussian-seed")
SEARCHED_LEVELS, SEARCHES = (1.0, 2.0, 4.0, 6.5), 200
SUMMED = 12_000
ROUND_DIM, ROUND_EPSILON = 19_530, 4.2137  # those of MNIST at ε = 1 in examples/frontier
LAW_DIM, LAW_DRAWS, LAW_CELLS = 20, 10**6, 200
REPEATS = 3
SAMPLED: dict[str, tuple[str, dict[str, str]]] = {
    "linf-coordinate": ("linf-coordinate", {}),
    "linf-block": ("linf-block", {}),
    "linf-bit-planes": ("linf-bit-planes", {}),
    "sampled-bits": ("sampled-bits", {}),
    "l1-hadamard": ("l1-hadamard", {}),
    "l2-bit-planes": ("l2-bit-planes", {}),
    "l2-block, rotation": ("l2-block", {"frame": "rotation"}),
    "sqkr, rotation": ("sqkr", {"frame": "rotation"}),
    "l2-block": ("l2-block", {}),
}


def errors() -> list[dict[str, Any]]:
    """Mean squared error of single reports over its formula, and over that of the best known."""
    found = []
    for name in track(available("vectors", "categories"), description="errors"):
        dim = 1 if name == "binary-rr" else CATEGORIES
        try:
            mechanism = get(name, local_epsilon=LOCAL_EPSILON, dim=dim)
        except ValueError:
            continue
        if isinstance(mechanism, FrequencyOracle):
            data = torch.full((ERROR_REPORTS,), 3)
            truth = torch.nn.functional.one_hot(data[:1], dim).double()[0]
            formula = float(mechanism.variance(data[:1])[0])
        else:
            if name != "binary-rr":
                mechanism = get(name, local_epsilon=LOCAL_EPSILON, dim=ERROR_DIM)
            row = _inside(mechanism)
            data, truth = row.expand(ERROR_REPORTS, -1), row[0].double()
            formula = float(mechanism.variance(row)[0])
        reports = mechanism.randomize(data, randomness=SecureRandomness())
        squares = torch.stack(
            [
                (mechanism.sum(reports.narrow(i, i + 1)).double() - truth).square().sum()
                for i in range(ERROR_REPORTS)
            ]
        )
        found.append(
            {
                "mechanism": name,
                "dim": mechanism.dim,
                "measured": float(squares.mean()),
                "formula": formula,
                "ratio": float(squares.mean()) / formula,
                "standard_error": float(squares.std()) / ERROR_REPORTS**0.5 / formula,
            }
        )
    return found


def _inside(mechanism: Any) -> torch.Tensor:
    """A row of the ball, of many sizes of coordinate."""
    row = torch.linspace(-1.0, 0.7, mechanism.dim).square().sub(0.3).unsqueeze(0)
    return mechanism.clip(0.8 * row) if mechanism.domain == "linf" else mechanism.clip(row)


def _fastest(action: Callable[[], object]) -> float:
    best = math.inf
    for _ in range(REPEATS):
        began = time.process_time()
        action()
        best = min(best, time.process_time() - began)
    return best


def _fastest_copy(x: torch.Tensor) -> float:
    copy = torch.empty_like(x)
    return _fastest(lambda: copy.copy_(x))


def _high_water(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(rf"{field}:\s+(\d+) kB", status).group(1)) * 1024


def _encode(name: str, queue: Any) -> None:
    torch.set_num_threads(1)
    x = torch.randn(BATCH, DIM, generator=torch.Generator().manual_seed(1))
    copied = _fastest_copy(x)
    read = _fastest(lambda: x.sum(dim=1))
    registered, options = SAMPLED[name]
    mechanism = get(registered, local_epsilon=LOCAL_EPSILON, dim=DIM, **options)
    mechanism.randomize(x[:64], clip=True)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _high_water("VmRSS")
    reports = mechanism.randomize(x, clip=True)
    extra = _high_water("VmHWM") - before
    size = sum(field.values.numel() * field.values.element_size() for field in reports.fields)
    taken = _fastest(lambda: mechanism.randomize(x, clip=True))
    queue.put(
        {
            "mechanism": name,
            "seconds": taken,
            "copy_seconds": copied,
            "read_seconds": read,
            "over_copy": taken / copied,
            "over_read": taken / read,
            "batch_bytes": x.numel() * x.element_size(),
            "report_bytes": size,
            "peak_beyond_batch_and_reports": extra - size,
        }
    )


def encoding() -> list[dict[str, Any]]:
    """Time and memory of 10,000 × 13,706, each mechanism in a process of its own, one thread."""
    context = multiprocessing.get_context("spawn")
    found = []
    for name in track(SAMPLED, description="encoding"):
        queue = context.Queue()
        process = context.Process(target=_encode, args=(name, queue))
        process.start()
        found.append(queue.get(timeout=600))
        process.join()
    return found


def wire() -> dict[str, Any]:
    """Bytes of the thesis's gradients: one report of 15 bits per client against 13,170 floats."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(BATCH, WIRE_DIM, generator=generator)
    mechanism = get("linf-coordinate", local_epsilon=LOCAL_EPSILON, dim=WIRE_DIM, radius=0.01)
    reports = mechanism.randomize(x, clip=True)
    sent = reports.to_bytes()
    plain = len(x.numpy().tobytes())
    return {
        "mechanism": mechanism.name,
        "clients": BATCH,
        "dim": WIRE_DIM,
        "report_bytes": len(sent),
        "float32_bytes": plain,
        "saving": plain / len(sent),
        "saving_without_header": plain / (len(sent) - reports.layout.header_bytes),
    }


def short() -> list[dict[str, Any]]:
    """Worst error of the best mechanism of at most 15 bits over that of the thesis's single coordinate."""
    found = []
    for local_epsilon in SHORT_LEVELS:
        single = get("linf-coordinate", local_epsilon=local_epsilon, dim=DIM)
        rivals = {}
        for name in ("linf-block", "linf-bit-planes"):
            rival = get(name, local_epsilon=local_epsilon, dim=DIM)
            if rival.bits_per_report <= SHORT_BITS:
                rivals[name] = rival.worst_variance / single.worst_variance
        best = min(rivals, key=rivals.__getitem__)
        found.append({"local_epsilon": local_epsilon, "best": best, "ratio": rivals[best]})
    return found


def shuffled() -> list[dict[str, Any]]:
    """PrivUnit at some ε0, and the blanket-mixed Gaussian mechanism whose whole run costs as much."""
    found = []
    for local_epsilon in track(SHUFFLED_LEVELS, description="shuffled"):
        plain = get("privunit", local_epsilon=local_epsilon, dim=SHUFFLED_DIM)
        accountant = ShuffleAccountant()
        accountant.step(
            plain.round(population=SHUFFLED["population"], cohort=SHUFFLED["cohort"]),
            num_steps=SHUFFLED["num_steps"],
        )
        interval = accountant.epsilon(DELTA)
        mixed = get(
            "blanket-mixed-gaussian",
            local_epsilon=calibrate_local_epsilon(
                target_epsilon=interval.upper,
                delta=DELTA,
                mechanism="blanket-mixed-gaussian",
                blanket_factory=lambda e: registry.blanket(
                    "blanket-mixed-gaussian", local_epsilon=e, dim=SHUFFLED_DIM
                ),
                **SHUFFLED,
                channel_fixed=True,
            ),
            dim=SHUFFLED_DIM,
        )
        found.append(
            {
                "local_epsilon": local_epsilon,
                "epsilon": [interval.lower, interval.upper],
                "mixed_local_epsilon": mixed.local_epsilon,
                "variance": plain.worst_variance,
                "mixed_variance": mixed.worst_variance,
            }
        )
    return found


def seeds() -> dict[str, Any]:
    """What seed reports take: a client's search, and the server's sum of the vectors that they name."""
    torch.set_num_threads(1)
    x = torch.randn(SEARCHES, DIM, generator=torch.Generator().manual_seed(3))
    searches = []
    for name in SEEDED:
        for local_epsilon in track(SEARCHED_LEVELS, description=f"searches of {name}"):
            mechanism: Any  # has tries
            whole, mechanism = (
                get(each, local_epsilon=local_epsilon, dim=DIM) for each in (name.removesuffix("-seed"), name)
            )
            mechanism.randomize(x[:2], clip=True)
            taken = [
                1e3 * _fastest(partial(each.randomize, x, clip=True)) / SEARCHES
                for each in (whole, mechanism)
            ]
            searches.append(
                {
                    "mechanism": name,
                    "local_epsilon": local_epsilon,
                    "expected_tries": mechanism.expected_tries,
                    "milliseconds": taken[1],
                    "milliseconds_of_whole_vectors": taken[0],
                    "variance_over_whole_vectors": mechanism.worst_variance / whole.worst_variance,
                }
            )
    reports = mechanism.layout.reports(draw_seeds(SUMMED, randomness=SecureRandomness()))
    mechanism.sum(reports.narrow(0, 10))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _high_water("VmRSS")
    return {
        "dim": DIM,
        "report_bytes": len(reports.narrow(0, 1).to_bytes()),
        "searches": searches,
        "sum": {
            "reports": SUMMED,
            "seconds": _fastest(partial(mechanism.sum, reports)),
            "peak_beyond_reports": _high_water("VmHWM") - before,
            "bytes_of_whole_vectors": 4 * SUMMED * DIM,
        },
    }


def seed_round() -> dict[str, Any]:
    """A round of 12,000 clients that search, beside one whose sum is drawn: errors over their formula."""
    torch.set_num_threads(1)
    mechanism = get(SEEDED[1], local_epsilon=ROUND_EPSILON, dim=ROUND_DIM)
    coins = torch.Generator().manual_seed(4)
    common = torch.nn.functional.normalize(torch.randn(ROUND_DIM, generator=coins), dim=0)
    whole = torch.zeros(ROUND_DIM, dtype=torch.float64)
    sums = {"searched": torch.zeros_like(whole), "drawn": torch.zeros_like(whole)}
    for _ in track(range(SUMMED // 500), description="a round"):
        rows = torch.randn(500, ROUND_DIM, generator=coins).div_(ROUND_DIM**0.5).add_(common, alpha=0.3)
        rows = torch.nn.functional.normalize(rows, dim=1)
        whole += rows.double().sum(dim=0)
        sums["searched"] += mechanism.sum(mechanism.randomize(rows, clip=True))
        sums["drawn"] += mechanism.randomize_sum(rows, clip=True)
    expected = mechanism.worst_variance * SUMMED
    deviation = math.sqrt(expected / ROUND_DIM)
    return {
        "mechanism": mechanism.name,
        "local_epsilon": ROUND_EPSILON,
        "dim": ROUND_DIM,
        "reports": SUMMED,
        "standard_error": math.sqrt(2 / ROUND_DIM),
        **{
            how: {
                "error_over_formula": float((total - whole).square().sum()) / expected,
                "off_along_the_mean_in_deviations": float((total - whole) @ common.double()) / deviation,
            }
            for how, total in sums.items()
        },
    }


def seed_law() -> list[dict[str, Any]]:
    """Whether the vectors that a million found seeds name have the stated law along their record."""
    torch.set_num_threads(1)
    return [_law(name) for name in SEEDED]


def _law(name: str) -> dict[str, Any]:
    """Inner products of reports with their record, beside the normal law times (1 + (e − 1)·F)/A."""
    mechanism: Any = get(name, local_epsilon=LOCAL_EPSILON, dim=LAW_DIM)
    row = torch.linspace(1.0, 2.0, LAW_DIM, dtype=torch.float64)
    row /= row.norm()
    along = []
    for _ in track(range(LAW_DRAWS // 1000), description=f"law of {name}"):
        reports = mechanism.randomize(row.to(torch.float32).expand(1000, -1), clip=True)
        along.append(expand_all(reports.fields[0].values, dim=LAW_DIM) @ row)
    found = torch.cat(along).numpy()
    law, places = mechanism._searched, np.linspace(-9.0, 9.0, 18_001)
    gain = math.expm1(law.steps.local_epsilon)
    density = np.exp(-(places**2) / 2) * (1 + gain * law.share(places))
    mass = integrate.cumulative_simpson(density, x=places, initial=0.0)
    below = np.interp(found, places, mass / mass[-1])
    counts = np.bincount((below * LAW_CELLS).astype(int).clip(max=LAW_CELLS - 1), minlength=LAW_CELLS)
    return {
        "mechanism": name,
        "local_epsilon": LOCAL_EPSILON,
        "dim": LAW_DIM,
        "draws": len(found),
        "mean": float(found.mean()),
        "mean_of_the_law": float(integrate.simpson(places * density, x=places) / mass[-1]),
        "chi_square_p": float(stats.chisquare(counts).pvalue),
        "kolmogorov_smirnov_p": float(stats.kstest(below, "uniform").pvalue),
    }


def main() -> None:
    parts: dict[str, Callable[[], Any]] = {
        "errors": errors,
        "encoding": encoding,
        "wire": wire,
        "short": short,
        "shuffled": shuffled,
        "seeds": seeds,
        "seed_law": seed_law,
        "seed_round": seed_round,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=parts)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    results: dict[str, Any] = {
        "machine": {"processor": platform.machine(), "torch": torch.__version__, "device": "cpu"},
        "local_epsilon": LOCAL_EPSILON,
    }
    for name, measure in parts.items():
        if asked.only in (None, name):
            results[name] = measure()
    print(json.dumps(results, indent=1))
    if asked.only is not None and asked.output.exists():
        results = json.loads(asked.output.read_text(encoding="utf-8")) | {asked.only: results[asked.only]}
    asked.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
