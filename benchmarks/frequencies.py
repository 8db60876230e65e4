"""Private histograms of the shuffle model beside public packages and a trusted server, at equal central ε.

Two questions, in one run. What does each protocol reach on the same clients at the same (ε, δ)? Peers are
calibrated twice: by the closed form of "Hiding among the clones" (Theorem 3.1), which is what a user finds in
print, and by the exact pair of their oracle's law here (the generic pair where we have no such law). And how
does the error fall with n, beside Theorem 5.2 of that paper with its constants and beside a trusted server?

Peers are optional: pip install --target DIR pure-ldp multi-freq-ldpy "xxhash<4" bitarray bitstring pandas
seaborn. They know of no shuffler, so times are those of randomising and estimating, without shuffling.
Errors are ‖f̂ − f‖² of frequencies, means over trials; "projected" ones after projection onto the simplex.
Neighbouring relation: replace-one.

Usage: python benchmarks/frequencies.py [--peers DIR] [--output FILE]
       python benchmarks/frequencies.py --draw-only
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from frequency_peers import PEERS, Categories, Frequencies, Peer
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

from shuffle_plugins.accounting import Sampling, calibrate_local_epsilon
from shuffle_plugins.protocols import FrequencyEstimation, Histogram, HistogramSum, published

matplotlib.use("Agg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).parent / "results" / "frequencies.json"
EPSILON, DELTA = 1.0, 1e-6
CLIENTS = 20_000
MOST_TRIALS, FEWEST_TRIALS = 40, 3
PATIENCE = 2.0
"""Seconds of processor time after which a method has had enough trials."""
GROWTH_CATEGORIES, GROWTH = 100, (10_000, 30_000, 100_000, 300_000, 1_000_000)
OURS, CENTRAL = "shuffle-plugins", "trusted server"

Estimate = Callable[[Categories], Frequencies]


def zipf(categories: int, clients: int) -> Categories:
    weights = 1 / np.arange(1, categories + 1) ** 1.2
    return np.random.default_rng(1).choice(categories, size=clients, p=weights / weights.sum())


def uniform(categories: int, clients: int) -> Categories:
    return np.random.default_rng(2).integers(0, categories, clients)


def intensities(clients: int) -> Categories:
    """Ink of a pixel of the digits bundled with scikit-learn, 0 to 16: a pixel is a client."""
    every = load_digits().data.astype(np.int64).reshape(-1)
    return np.random.default_rng(3).choice(every, size=clients, replace=False)


def cases() -> dict[str, tuple[int, Categories]]:
    found = {
        f"{name}, K = {categories}": (categories, draw(categories, CLIENTS))
        for categories in (16, 256)
        for name, draw in (("Zipf", zipf), ("uniform", uniform))
    }
    return found | {"digits' ink, K = 17": (17, intensities(CLIENTS))}


def frequencies(data: Categories, categories: int) -> Frequencies:
    return np.bincount(data, minlength=categories) / len(data)


def measured(estimate: Estimate, data: Categories, categories: int) -> dict[str, float]:
    truth = frequencies(data, categories)
    estimate(data)  # what is compiled at the first call
    errors: list[float] = []
    projected: list[float] = []
    seconds: list[float] = []
    while len(errors) < FEWEST_TRIALS or (len(errors) < MOST_TRIALS and sum(seconds) < PATIENCE):
        began = time.process_time()
        found = estimate(data)
        seconds.append(time.process_time() - began)
        errors.append(float(((found - truth) ** 2).sum()))
        nearest = Histogram(counts=torch.from_numpy(found), reports=1).distribution.numpy()
        projected.append(float(((nearest - truth) ** 2).sum()))
    return {
        "squared_error": float(np.mean(errors)),
        "projected_error": float(np.mean(projected)),
        "seconds": min(seconds),
        "trials": len(errors),
    }


def one_message(protocol: FrequencyEstimation) -> Estimate:
    return lambda data: protocol.estimate(protocol.randomize(torch.from_numpy(data))).frequencies.numpy()


def coins(protocol: HistogramSum) -> Estimate:
    return lambda data: protocol.randomize_histogram(torch.from_numpy(data)).frequencies.numpy()


def with_noise(draw: Callable[[int], Frequencies], categories: int) -> Estimate:
    return lambda data: frequencies(data, categories) + draw(categories) / len(data)


def gaussian(clients: int) -> Callable[[int], Frequencies]:
    error = published.central_gaussian(categories=2, cohort=clients, epsilon=EPSILON, delta=DELTA)
    generator = np.random.default_rng(4)
    return lambda size: generator.normal(0.0, math.sqrt(error / 2) * clients, size)


def laplace() -> Callable[[int], Frequencies]:
    generator, stop = np.random.default_rng(5), -math.expm1(-EPSILON / 2)
    return lambda size: (generator.geometric(stop, size) - generator.geometric(stop, size)).astype(np.float64)


@cache
def exact_level(law: str | None, categories: int) -> float:
    if law is not None:
        return FrequencyEstimation.calibrated(
            categories=categories, cohort=CLIENTS, epsilon=EPSILON, delta=DELTA, oracle=law
        ).local_epsilon
    return calibrate_local_epsilon(
        target_epsilon=EPSILON,
        delta=DELTA,
        population=CLIENTS,
        cohort=CLIENTS,
        num_steps=1,
        sampling=Sampling.FULL,
        channel_fixed=True,
    )


def row(
    case: str, package: str, method: str, calibration: str, found: dict[str, float], **more: Any
) -> dict[str, Any]:
    print(f"{case}: {package} {method} ({calibration}): {found['squared_error']:.3g}", flush=True)
    return {"case": case, "package": package, "method": method, "calibration": calibration} | found | more


def asked(peer: Peer, categories: int, local_epsilon: float, data: Categories) -> Frequencies:
    return peer.estimate(data, categories, local_epsilon)


def compared(peers: tuple[Peer, ...]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What was measured, and what a peer failed at."""
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    published_level = published.largest_local_epsilon(cohort=CLIENTS, epsilon=EPSILON, delta=DELTA)
    for case, (categories, data) in cases().items():
        size = {"categories": categories, "cohort": CLIENTS, "epsilon": EPSILON, "delta": DELTA}
        single = FrequencyEstimation.calibrated(**size)
        many = HistogramSum.calibrated(**size)
        for package, method, calibration, estimate, more in (
            (
                OURS,
                f"one message ({single.oracle})",
                "exact pair",
                one_message(single),
                {
                    "local_epsilon": single.local_epsilon,
                    "bits": single.bits_per_report,
                    "predicted": single.squared_error,
                },
            ),
            (
                OURS,
                "many messages (coins)",
                "exact pair",
                coins(many),
                {"bits": many.bits_per_report, "predicted": many.squared_error},
            ),
            (
                CENTRAL,
                "Gaussian",
                "exact pair",
                with_noise(gaussian(CLIENTS), categories),
                {"predicted": published.central_gaussian(**size)},
            ),
            (
                CENTRAL,
                "discrete Laplace",
                "exact pair",
                with_noise(laplace(), categories),
                {
                    "predicted": published.central_laplace(
                        categories=categories, cohort=CLIENTS, epsilon=EPSILON
                    )
                },
            ),
        ):
            found = measured(estimate, data, categories)
            rows.append(row(case, package, method, calibration, found, **more))
        for peer in peers:
            levels = {"Theorem 3.1": published_level, "exact pair": exact_level(peer.law, categories)}
            for calibration, level in levels.items():
                estimate = partial(asked, peer, categories, level)
                try:
                    found = measured(estimate, data, categories)
                except (IndexError, ValueError) as error:
                    failed.append(
                        {"case": case, "package": peer.package, "method": peer.name}
                        | {"calibration": calibration, "problem": repr(error)}
                    )
                    continue
                more = {"local_epsilon": level, "normalised": peer.normalised}
                rows.append(row(case, peer.package, peer.name, calibration, found, **more))
    own = {each["case"]: each for each in rows if each["method"].startswith("one message")}
    for each in rows:
        if each["package"] not in (OURS, CENTRAL):
            ours = own[each["case"]]
            # An estimate that was normalised is compared with one that was projected.
            kind = "projected_error" if each["normalised"] else "squared_error"
            each["error_ratio"] = each[kind] / ours[kind]
            each["time_ratio"] = each["seconds"] / ours["seconds"]
    return rows, failed


def growth() -> list[dict[str, float]]:
    rows = []
    for clients in GROWTH:
        data = zipf(GROWTH_CATEGORIES, clients)
        size = {"categories": GROWTH_CATEGORIES, "cohort": clients, "epsilon": EPSILON, "delta": DELTA}
        single = FrequencyEstimation.calibrated(**size)
        many = HistogramSum.calibrated(**size)
        runs = {
            "one_message": measured(one_message(single), data, GROWTH_CATEGORIES),
            "many_messages": measured(coins(many), data, GROWTH_CATEGORIES),
        }
        theorem = published.one_message(**size)
        rows.append(
            {name: found["squared_error"] for name, found in runs.items()}
            | {
                "clients": clients,
                "one_message_predicted": single.squared_error,
                "many_messages_predicted": many.squared_error,
                "local_epsilon": single.local_epsilon,
                "theorem_local_epsilon": theorem.local_epsilon,
                "theorem": theorem.squared_error,
                "central_gaussian": published.central_gaussian(**size),
                "central_laplace": published.central_laplace(
                    categories=GROWTH_CATEGORIES, cohort=clients, epsilon=EPSILON
                ),
            }
        )
        print(f"n = {clients}: one message {rows[-1]['one_message']:.3g}", flush=True)
    return rows


def draw(results: dict[str, Any], path: Path) -> None:
    figure, (above, below) = plt.subplots(2, figsize=(4.8, 12.5), height_ratios=(2, 3), layout="constrained")
    rows = results["growth"]
    clients = [each["clients"] for each in rows]
    for key, label, style in (
        ("theorem", "Theorem 5.2 with its constants", {"color": "#8c564b", "linestyle": "--"}),
        ("one_message", "one message, exact pair (measured)", {"color": "#0072b2", "marker": "o"}),
        ("many_messages", "coins (measured)", {"color": "#00694c", "marker": "s"}),
        ("central_gaussian", "trusted server, Gaussian", {"color": "#000000", "linestyle": ":"}),
        ("central_laplace", "trusted server, discrete Laplace", {"color": "#999999", "linestyle": ":"}),
    ):
        above.plot(clients, [math.sqrt(each[key]) for each in rows], label=label, **style)
    above.set(
        xscale="log",
        yscale="log",
        xlabel="clients n",
        ylabel="ℓ2 error of the frequencies",
        title=f"K = {results['growth_categories']}, Zipf",
    )
    above.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.35, -0.16))
    above.grid(True, alpha=0.3)

    gaussians = {each["case"]: each for each in results["rows"] if each["method"] == "Gaussian"}
    labels: dict[str, int] = {}
    colours = {"exact pair": "#0072b2", "Theorem 3.1": "#d55e00"}
    named: set[str] = set()
    for each in results["rows"]:
        method = each["method"].split(" (k-rr")[0].split(" (subset")[0]
        place = labels.setdefault(f"{each['package']}:\n{method}", len(labels))
        ratio = math.sqrt(each["projected_error"] / gaussians[each["case"]]["projected_error"])
        calibration = each["calibration"]
        below.plot(
            ratio,
            place,
            "o",
            color=colours[calibration],
            alpha=0.6,
            label=None if calibration in named else f"calibrated by {calibration}",
        )
        named.add(calibration)
    below.set_yticks(range(len(labels)), list(labels), fontsize=9)
    below.invert_yaxis()
    below.set(
        xscale="log",
        xlabel="ℓ2 error over that of a trusted\nserver's Gaussian, all projected",
        title=f"n = {results['clients']:,}, {len(gaussians)} data sets",
    )
    below.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.2, -0.2))
    below.grid(True, alpha=0.3)
    figure.suptitle(f"Private histograms at ε = {results['epsilon']:g}, δ = {results['delta']:g}")
    figure.savefig(path, dpi=130)


def show(results: dict[str, Any]) -> None:
    table = Table(title=f"n = {results['clients']:,}, ε = {results['epsilon']:g}, δ = {results['delta']:g}")
    columns = (
        "data",
        "package",
        "method",
        "calibration",
        "ε0",
        "error",
        "projected",
        "× ours",
        "time × ours",
    )
    for column in columns:
        table.add_column(column)
    for each in results["rows"]:
        table.add_row(
            each["case"],
            each["package"],
            each["method"],
            each["calibration"],
            f"{each['local_epsilon']:.2f}" if "local_epsilon" in each else "",
            f"{each['squared_error']:.2e}",
            f"{each['projected_error']:.2e}",
            f"{each['error_ratio']:.2f}" if "error_ratio" in each else "",
            f"{each['time_ratio']:.0f}" if "time_ratio" in each else "",
        )
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", type=Path, help="directory with the peers' packages")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--draw-only", action="store_true")
    options = parser.parse_args()
    if not options.draw_only:
        if options.peers:
            sys.path.append(str(options.peers))
        peers = PEERS if options.peers else ()
        rising = growth()
        rows, failed = compared(peers)
        results = {
            "epsilon": EPSILON,
            "delta": DELTA,
            "clients": CLIENTS,
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "growth_categories": GROWTH_CATEGORIES,
            "growth": rising,
            "rows": rows,
            "failed": failed,
        }
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    results = json.loads(options.output.read_text())
    draw(results, options.output.with_suffix(".png"))
    show(results)


if __name__ == "__main__":
    main()
