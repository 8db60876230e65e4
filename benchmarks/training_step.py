"""Time of a whole training step in Opacus, on a GPU or the CPU: its own engine, then ours by randomizer.

Forward, backward, clipping, noise or reports, accounting and update of a convolutional network of 26,010
parameters on random images, one batch a step; wall time until the device is done, median over the steps after
the first epoch.

Usage: python benchmarks/training_step.py [--device cuda] [--records 16384] [--batch 4096] [--epochs 4]
           [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import opacus
import opacus_shuffle
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

RESULTS = Path(__file__).parent / "results" / "training_step.json"
AT_EPSILON = ("linf-coordinate", "l1-hadamard", "gaussian", "privunit", "l2-block")  # ε0 = 1.5
WITH_NOISE = ("vector-sum", "multi-message")  # noise multiplier 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--records", type=int, default=16_384)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error("--epochs must be at least 2: the first is not counted")
    warnings.filterwarnings("ignore", message="Full backward hook is firing|Secure RNG")
    choices = [{"noise_multiplier": 1.0}]
    choices += [{"randomizer": name, "local_epsilon": 1.5} for name in AT_EPSILON]
    choices += [{"randomizer": name, "noise_multiplier": 1.0} for name in WITH_NOISE]
    steps = {}
    for choice in tqdm(choices, unit="engine"):
        steps[choice.get("randomizer", "opacus")] = round(1e3 * step_seconds(choice, options), 2)
    on_gpu = torch.device(options.device).type == "cuda"
    result = {
        "device": torch.cuda.get_device_name(options.device) if on_gpu else "cpu",
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in network().parameters()),
        "batch": options.batch,
        "median_ms": steps,
        "ratio_to_opacus": {name: round(value / steps["opacus"], 2) for name, value in steps.items()},
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def step_seconds(choice: dict[str, Any], options: argparse.Namespace) -> float:
    torch.manual_seed(0)
    module = network().to(options.device)
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.1)
    engine: Any = opacus_shuffle.PrivacyEngine() if "randomizer" in choice else opacus.PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(images(options.records), batch_size=options.batch),
        max_grad_norm=1.0,
        **choice,
    )
    seconds: list[list[float]] = []
    for _ in range(options.epochs):
        seconds.append([])
        for x, y in loader:
            done(options.device)
            start = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x.to(options.device)), y.to(options.device)).backward()
            optimizer.step()
            done(options.device)
            seconds[-1].append(time.perf_counter() - start)
    return median(value for epoch in seconds[1:] for value in epoch)


def done(device: str) -> None:
    """Wait until a GPU has finished what it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def images(count: int) -> TensorDataset:
    source = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(count, 1, 28, 28, generator=source), torch.randint(0, 10, (count,), generator=source)
    )


if __name__ == "__main__":
    main()
