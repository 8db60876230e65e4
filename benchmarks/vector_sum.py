"""P_vec at scale: its noise against its formula, the analytic Gaussian and the paper; time and memory.

Run: python benchmarks/vector_sum.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import brentq
from scipy.special import ndtr

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.protocols import VectorSum, published
from shuffle_plugins.randomness import SecureRandomness

EPSILON, DELTA = 1.0, 1e-6
SIZES = ((1_000, 10_000), (100_000, 1_000_000))
LEAST_VALUES = 100_000


def analytic_gaussian(*, epsilon: float, delta: float) -> float:
    """σ of the Gaussian mechanism at sensitivity 1: Balle, Wang 2018, Theorem 8."""

    def excess(sigma: float) -> float:
        left = ndtr(0.5 / sigma - epsilon * sigma)
        return float(left - math.exp(epsilon) * ndtr(-0.5 / sigma - epsilon * sigma) - delta)

    return float(brentq(excess, 0.01, 1e4))


def noise(dim: int, clients: int) -> dict[str, Any]:
    """One calibrated protocol, and its coins drawn until there are 100,000 coordinates."""
    start = time.perf_counter()
    protocol = VectorSum.calibrated(dim=dim, cohort=clients, epsilon=EPSILON, delta=DELTA)
    calibrating = time.perf_counter() - start
    accountant = ShuffleAccountant()
    accountant.step(protocol.round())
    certified = accountant.epsilon(DELTA)
    source = SecureRandomness()
    before = peak_memory()
    start = time.perf_counter()
    draws = max(1, LEAST_VALUES // dim)
    coins = torch.cat([protocol.common_noise(randomness=source) for _ in range(draws)]).double()
    drawing = (time.perf_counter() - start) / draws
    centred = (coins - clients * protocol.coins / 2) * protocol.lattice.step
    measured = float((centred**2).mean())
    central = (2 * analytic_gaussian(epsilon=EPSILON, delta=DELTA)) ** 2
    paper = published.vector_sum(dim=dim, cohort=clients, epsilon=EPSILON, delta=DELTA)
    return {
        "dim": dim,
        "clients": clients,
        "levels": protocol.levels,
        "coins": protocol.coins,
        "certified": [certified.lower, certified.upper],
        "messages_per_client": protocol.messages_per_client,
        "bits_per_client": protocol.bits_per_report,
        "coordinates": len(coins),
        "noise_variance": protocol.noise_variance,
        "measured_variance": measured,
        "relative_error": measured / protocol.noise_variance - 1,
        "standard_error": math.sqrt(2 / len(coins)),
        "over_analytic_gaussian": measured / central,
        "under_the_papers_constants": paper.noise_variance / measured,
        "seconds_to_calibrate": calibrating,
        "seconds_to_draw": drawing,
        "peak_megabytes": peak_memory(),
        "megabytes_added": peak_memory() - before,
    }


def speed(dim: int, clients: int) -> dict[str, Any]:
    """Encoding all clients, a hundred at a time, and the host's sum."""
    protocol = VectorSum.calibrated(dim=dim, cohort=clients, epsilon=EPSILON, delta=DELTA)
    rows = torch.nn.functional.normalize(
        torch.randn(clients, dim, generator=torch.Generator().manual_seed(1))
    )
    return {
        "dim": dim,
        "clients": clients,
        "threads": torch.get_num_threads(),
        "seconds_to_encode": timed(
            lambda: [protocol.total(protocol.randomize(part)) for part in rows.split(100)]
        ),
        "seconds_to_randomize_sum": timed(lambda: protocol.randomize_sum(rows)),
        "peak_megabytes": peak_memory(),
    }


def timed(action: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def peak_memory() -> float:
    """Megabytes that this process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {
        "epsilon": EPSILON,
        "delta": DELTA,
        "noise": [noise(dim, clients) for dim, clients in SIZES],
        "speed": speed(*SIZES[0]),
    }
    print(json.dumps(found, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
