"""Time of one optimizer step: Opacus's DPOptimizer beside local randomisation and shuffling.

A 784-256-10 MLP (203,530 parameters) and 256 samples a step. Per-sample gradients are computed once; what is
timed is ``step()`` alone: clipping, noise or coins, accounting, and SGD. The variants take turns, so that a
slow moment of the machine hits them all. The ratio is that of the medians over rounds; the load average says
how much else the machine was doing.

Usage: python benchmarks/optimizer_step.py [--rounds 40] [--threads 1 2] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus_shuffle import Delivery, ShuffleDPOptimizer, SubsampledShufflePLDAccountant
from torch import nn

BATCH, POPULATION = 256, 60_000
RESULTS = Path(__file__).parent / "results" / "optimizer_step.json"


def opacus_optimizer(module: nn.Module) -> Any:
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )
    optimizer.attach_step_hook(RDPAccountant().get_optimizer_hook_fn(sample_rate=BATCH / POPULATION))
    return optimizer


def shuffle_optimizer(randomizer: str, max_grad_norm: float, **privacy: float) -> Callable[[nn.Module], Any]:
    def make(module: nn.Module) -> Any:
        optimizer = ShuffleDPOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.1),
            randomizer=randomizer,
            **privacy,
            max_grad_norm=max_grad_norm,
            population=POPULATION,
            cohort=BATCH,
        )
        accountant = SubsampledShufflePLDAccountant()
        optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=BATCH / POPULATION))
        return optimizer

    return make


VARIANTS: dict[str, Callable[[nn.Module], Any]] = {
    "opacus DPOptimizer": opacus_optimizer,
    "linf-coordinate": shuffle_optimizer("linf-coordinate", 0.01, local_epsilon=4.0),
    "privunit": shuffle_optimizer("privunit", 1.0, local_epsilon=4.0),
    "vector-sum": shuffle_optimizer("vector-sum", 1.0, noise_multiplier=4.0),
}


class Timed:
    """One optimizer with per-sample gradients of its own, restored before every step."""

    def __init__(self, make: Callable[[nn.Module], Any]) -> None:
        torch.manual_seed(0)
        self.module = GradSampleModule(
            nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)), batch_first=True
        )
        self.optimizer = make(self.module)
        x, y = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
        nn.functional.cross_entropy(self.module(x), y).backward()
        self.grad_samples = [p.grad_sample for p in self.module.parameters()]

    def step(self) -> float:
        """Seconds of one step."""
        self.optimizer.zero_grad()
        if isinstance(self.optimizer, ShuffleDPOptimizer):
            self.optimizer.expect_batch(Delivery(rows=BATCH))
        for p, grad_sample in zip(self.module.parameters(), self.grad_samples, strict=True):
            p.grad_sample = grad_sample.view_as(grad_sample)  # a new object, without the processed mark
        start = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - start


def measure(rounds: int, *, threads: int, warm_up: int = 3) -> dict[str, dict[str, float]]:
    torch.set_num_threads(threads)
    timed = {name: Timed(make) for name, make in VARIANTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for round_number in range(rounds + warm_up):
        for name, variant in timed.items():
            elapsed = variant.step()
            if round_number >= warm_up:
                seconds[name].append(elapsed)
    baseline = median(seconds["opacus DPOptimizer"])
    return {
        name: {
            "median_ms": round(1e3 * median(values), 3),
            "min_ms": round(1e3 * min(values), 3),
            "ratio_to_opacus": round(median(values) / baseline, 3),
        }
        for name, values in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    results = {
        "batch": BATCH,
        "dim": 784 * 256 + 256 + 256 * 10 + 10,
        "rounds": arguments.rounds,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "by_threads": {
            str(threads): measure(arguments.rounds, threads=threads) for threads in arguments.threads
        },
        "load_average_1min": round(os.getloadavg()[0], 2),
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
