"""Time of one optimizer step: Opacus's DPOptimizer beside every randomizer of vectors and both sums.

Multilayer perceptrons of 50,890 parameters with 256 samples a step, and of 1,000,120 with 32. Per-sample
gradients are computed once; what is timed is ``step()`` alone: clipping, noise or coins, accounting, and SGD.
The variants take turns, so that a slow moment of the machine hits them all; a variant that has had its
seconds drops out. Times are processor time of all threads, which other work on the machine changes less than
the time on the wall; on a GPU they are wall time until the device is done. The ratio is that of the medians
over rounds. The size "cohort", 12,730 parameters with 4,096 samples a step, is for a GPU.

Usage: python benchmarks/optimizer_step.py [--size small|large|cohort] [--device cuda] [--rounds 15]
           [--threads 1] [--output FILE]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus_shuffle import CohortLoader, FixedSizeSampler, ShuffleDPOptimizer, SubsampledShufflePLDAccountant
from torch import nn
from torch.utils.data import TensorDataset

from shuffle_plugins.mechanisms import FrequencyOracle, L2Block, available, get
from shuffle_plugins.protocols import BallSum

POPULATION = 60_000
SIZES = {"small": (64, 256), "large": (1258, 32), "cohort": (16, 4096)}  # hidden units, samples a step
ON_CPU = ("small", "large")
SECONDS = 3.0
RESULTS = Path(__file__).parent / "results" / "optimizer_step.json"
NORMS = {"l1": 1.0, "l2": 1.0, "linf": 0.01}


def opacus_optimizer(module: nn.Module, batch: int) -> Any:
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=batch,
    )
    optimizer.attach_step_hook(RDPAccountant().get_optimizer_hook_fn(sample_rate=batch / POPULATION))
    return optimizer


def shuffle_optimizer(module: nn.Module, batch: int, **choice: Any) -> Any:
    optimizer = ShuffleDPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1), population=POPULATION, cohort=batch, **choice
    )
    accountant = SubsampledShufflePLDAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=batch / POPULATION))
    return optimizer


def variants() -> dict[str, Callable[[nn.Module, int], Any]]:
    """Opacus's optimizer, every registered randomizer of vectors at ε0 = 4, and the sums at noise 4."""
    found: dict[str, Callable[[nn.Module, int], Any]] = {"opacus DPOptimizer": opacus_optimizer}
    for name in available("vectors", "categories"):
        if name == "binary-rr":  # of one number
            continue
        mechanism = get(name, local_epsilon=4.0, dim=64)
        if isinstance(mechanism, FrequencyOracle):
            continue
        found[name] = functools.partial(
            shuffle_optimizer, randomizer=name, local_epsilon=4.0, max_grad_norm=NORMS[mechanism.norm]
        )
    found["l2-block, rotation"] = functools.partial(
        shuffle_optimizer,
        randomizer=functools.partial(L2Block, frame="rotation"),
        local_epsilon=4.0,
        max_grad_norm=1.0,
    )
    for name, kind in (
        ("vector-sum", "vector-sum"),
        ("multi-message", "multi-message"),
        ("multi-message, rotation", functools.partial(BallSum.with_noise, frame="rotation")),
    ):
        found[name] = functools.partial(
            shuffle_optimizer, randomizer=kind, noise_multiplier=4.0, max_grad_norm=1.0
        )
    return found


class Timed:
    """One optimizer, given the same per-sample gradients before every step."""

    def __init__(
        self, make: Callable[[nn.Module, int], Any], *, hidden: int, batch: int, device: str
    ) -> None:
        self.device = device
        self.module = perceptron(hidden, device=device)
        self.optimizer = make(self.module, batch)
        self.batches: Iterator[Any] = itertools.repeat(None)
        if isinstance(self.optimizer, ShuffleDPOptimizer):  # it takes a step only on a batch of its sampler
            sampler = FixedSizeSampler(population=POPULATION, cohort=batch, num_steps=1000)
            sampler.attach(self.optimizer)
            records = TensorDataset(torch.zeros(POPULATION, 1))
            self.batches = iter(CohortLoader(records, batch_sampler=sampler))

    def step(self, grad_samples: list[torch.Tensor]) -> float:
        """Seconds of one step: processor time, or wall time until a GPU is done."""
        self.optimizer.zero_grad()
        next(self.batches)
        for p, grad_sample in zip(self.module.parameters(), grad_samples, strict=True):
            p.grad_sample = grad_sample.view_as(grad_sample)  # a new object, without an earlier mark
        if self.device == "cpu":
            start = time.process_time()
            self.optimizer.step()
            return time.process_time() - start
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.optimizer.step()
        torch.cuda.synchronize()
        return time.perf_counter() - start


def perceptron(hidden: int, *, device: str) -> nn.Module:
    """A fresh model that keeps per-sample gradients, the same each time."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    return GradSampleModule(layers.to(device), batch_first=True)


def gradients(*, hidden: int, batch: int, device: str) -> list[torch.Tensor]:
    """Per-sample gradients of a fresh model."""
    module = perceptron(hidden, device=device)
    x, y = torch.randn(batch, 784, device=device), torch.randint(10, (batch,), device=device)
    nn.functional.cross_entropy(module(x), y).backward()
    return [p.grad_sample for p in module.parameters()]


def measure(rounds: int, *, size: str, threads: int, device: str) -> dict[str, Any]:
    torch.set_num_threads(threads)
    hidden, batch = SIZES[size]
    grad_samples = gradients(hidden=hidden, batch=batch, device=device)
    timed = {
        name: Timed(make, hidden=hidden, batch=batch, device=device) for name, make in variants().items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for variant in timed.values():
        variant.step(grad_samples)
    for _ in range(rounds):
        for name, variant in timed.items():
            if len(seconds[name]) < 2 or sum(seconds[name]) < SECONDS:
                seconds[name].append(variant.step(grad_samples))
    baseline = median(seconds["opacus DPOptimizer"])
    return {
        "batch": batch,
        "dim": sum(g[0].numel() for g in grad_samples),
        "threads": threads,
        "load_average_1min": round(os.getloadavg()[0], 2),
        "steps": {
            name: {
                "rounds": len(values),
                "median_ms": round(1e3 * median(values), 2),
                "min_ms": round(1e3 * min(values), 2),
                "ratio_to_opacus": round(median(values) / baseline, 2),
            }
            for name, values in seconds.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", choices=SIZES, nargs="+", default=ON_CPU)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    results = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    on_cpu = arguments.device == "cpu"
    device = platform.machine() if on_cpu else torch.cuda.get_device_name(arguments.device)
    about = {"torch": torch.__version__, "machine": device, "cpus": os.cpu_count()}
    measured = {
        size: measure(arguments.rounds, size=size, threads=arguments.threads, device=arguments.device)
        for size in arguments.size
    }
    results |= (
        about | measured if on_cpu else {f"{size} on a GPU": about | measured[size] for size in measured}
    )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
