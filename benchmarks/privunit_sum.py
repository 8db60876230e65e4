"""Where the time of PrivUnit's sum goes: B = 256 clients, D = 203,530 in the blocks of a 784-256-10 network.

Run: python benchmarks/privunit_sum.py [--repeats 15] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import PrivUnit
from shuffle_plugins.mechanisms.privunit import sum_of_units
from shuffle_plugins.randomness import SecureRandomness

CLIENTS = 256
WIDTHS = (784 * 256, 256, 256 * 10, 10)
CHUNKS = (8, 16, 32, 64)


def fastest(action: Callable[[], object], repeats: int) -> float:
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def measure(repeats: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(1)
    rows = Rows([torch.randn(CLIENTS, width, generator=generator) for width in WIDTHS])
    source = SecureRandomness()
    mechanism = PrivUnit(local_epsilon=4.0, dim=rows.dim)
    along, plain = torch.full((CLIENTS,), 0.01).double(), torch.zeros(CLIENTS, dtype=torch.bool)
    weights = torch.rand(CLIENTS, generator=generator)
    vector = torch.randn(rows.dim, generator=generator)
    norms = rows.l2_norm()
    found = {
        "norms (one pass over the batch)": fastest(rows.l2_norm, repeats),
        "weighted sum (one pass)": fastest(lambda: rows.weighted_sum(weights), repeats),
        "rows times a vector (one pass)": fastest(lambda: rows.dot(vector), repeats),
        "one normal vector": fastest(lambda: source.normal(rows.dim), repeats),
    }
    for chunk in CHUNKS:
        draw = partial(sum_of_units, rows, norms, along=along, plain=plain, chunk=chunk, randomness=source)
        starts = range(0, CLIENTS, chunk)
        grams = fastest(lambda c=chunk, s=starts: [rows.narrow(i, i + c).gram() for i in s], repeats)
        found[f"chunk {chunk}: Gram matrices"] = grams
        found[f"chunk {chunk}: the rest"] = fastest(draw, repeats) - grams
    found["randomize_sum"] = fastest(lambda: mechanism.randomize_sum(rows, randomness=source), repeats)
    found["report by report"] = fastest(lambda: mechanism.sum(mechanism.randomize(rows, clip=True)), 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measure(arguments.repeats)
    for name, milliseconds in found.items():
        print(f"{name:36s} {milliseconds:9.2f} ms")
    if arguments.json is not None:
        record = {"clients": CLIENTS, "dim": sum(WIDTHS), "threads": torch.get_num_threads(), "ms": found}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
