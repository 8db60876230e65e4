"""Hadamard transforms on a CPU: ours, the matrix product, and every other CPU implementation installed.

Times are the best of several rounds in which all take turns, on one thread, per row. Ratios are a peer's
time over ours. Peers are optional: pip install pyfwht fht-cpu hadamard-transform ffht-unofficial

Run: python benchmarks/hadamard.py [--rounds 7] [--matrix] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from shuffle_plugins.compressors import (
    Rotation,
    butterflies_,
    hadamard_coefficients,
    hadamard_transform,
    padded_dim,
)
from shuffle_plugins.core import Rows, pack_bits

SIZES = tuple(1 << bits for bits in range(10, 16))
BATCHES = (1, 10, 100, 1000)
PEERS = {"pyfwht": "pyfwht", "fht-cpu": "fht_cpu", "hadamard-transform": "hadamard_transform"}
PEERS |= {"ffht-unofficial": "ffht"}
MATRIX_SIZE = 1 << 14
CLIENTS, DIM = 10_000, 13_706
WIDTHS = (784 * 16, 16, 16 * 64, 64, 58)
_LEAST_SECONDS = 0.02

Action = Callable[[], object]


def in_turns(actions: dict[str, Action], rounds: int) -> dict[str, float]:
    """Best seconds of each action over rounds in which all take turns."""
    repeats = {}
    for name, action in actions.items():
        action()
        start = time.perf_counter()
        action()
        repeats[name] = max(1, int(_LEAST_SECONDS / max(time.perf_counter() - start, 1e-7)))
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                action()
            best[name] = min(best[name], (time.perf_counter() - start) / repeats[name])
    return best


def installed() -> dict[str, str]:
    found = {}
    for package, module in PEERS.items():
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        found[package] = importlib.metadata.version(package)
    return found


def in_place_peers(x: torch.Tensor, peers: dict[str, str]) -> dict[str, Action]:
    """Each peer's fastest way to overwrite the rows of float32 x."""
    array = x.numpy()
    rows = list(array)
    actions: dict[str, Action] = {}
    if "fht-cpu" in peers:
        fht = importlib.import_module("fht_cpu").fht
        actions["fht-cpu"] = (lambda: fht(rows[0])) if len(rows) == 1 else (lambda: fht(array, num_threads=1))
    if "ffht-unofficial" in peers:
        over = importlib.import_module("ffht").fht_
        given = rows[0] if len(rows) == 1 else array
        actions["ffht-unofficial"] = lambda: over(given)
    return actions


def wide_peers(x: torch.Tensor, peers: dict[str, str]) -> dict[str, Action]:
    """The same for float64 x."""
    array = x.numpy()
    rows = list(array)
    actions: dict[str, Action] = {}
    if "fht-cpu" in peers:
        fht = importlib.import_module("fht_cpu").fht
        actions["fht-cpu"] = (lambda: fht(rows[0])) if len(rows) == 1 else (lambda: fht(array, num_threads=1))
    if "pyfwht" in peers:
        module = importlib.import_module("pyfwht")
        context = module.Context(backend=module.Backend.CPU)
        actions["pyfwht"] = lambda: [context.transform(row) for row in rows]
    return actions


def new_tensor_peers(x: torch.Tensor, peers: dict[str, str]) -> dict[str, Action]:
    """Each peer's fastest way to transform float32 rows into new memory."""
    array = x.numpy()
    actions: dict[str, Action] = {}
    if "fht-cpu" in peers:
        fht = importlib.import_module("fht_cpu").fht
        given = array[0] if len(array) == 1 else array
        actions["fht-cpu"] = lambda: fht(given, inplace=False, num_threads=1)
    if "ffht-unofficial" in peers:
        anew = importlib.import_module("ffht").fht
        flat = array[0] if len(array) == 1 else array
        actions["ffht-unofficial"] = lambda: anew(flat)
    if "hadamard-transform" in peers:
        transform = importlib.import_module("hadamard_transform").hadamard_transform
        actions["hadamard-transform"] = lambda: transform(x)
    return actions


def check(peers: dict[str, str]) -> None:
    """Every peer computes what we compute, up to scale."""
    x = torch.randn(3, 1024, generator=torch.Generator().manual_seed(0))
    expected = hadamard_transform(x.double())
    for make, dtype in ((in_place_peers, x.dtype), (wide_peers, torch.float64), (new_tensor_peers, x.dtype)):
        for name in make(x.to(dtype).clone(), peers):
            given = x.to(dtype).clone()
            returned = make(given, peers)[name]()
            result = torch.as_tensor(returned) if make is new_tensor_peers else given
            factor = float(expected[0, 0] / result[0, 0])
            if not torch.allclose(result.double() * factor, expected, atol=1e-2):
                raise RuntimeError(f"{name} computes something else")


def transforms(peers: dict[str, str], rounds: int) -> list[dict[str, object]]:
    table = []
    for size in SIZES:
        for batch in BATCHES:
            x, out = torch.zeros(batch, size), torch.zeros(batch, size)
            wide = x.double()
            kinds = {
                "in place": {"ours": lambda x=x: hadamard_transform(x, out=x), **in_place_peers(x, peers)},
                "new tensor": {"ours": lambda x=x: hadamard_transform(x), **new_tensor_peers(x, peers)},
                "in place, float64": {
                    "ours": lambda wide=wide: hadamard_transform(wide, out=wide),
                    **wide_peers(wide, peers),
                },
                "other": {"memcpy": lambda x=x, out=out: out.copy_(x)},
            }
            if batch <= 100:
                kinds["other"]["ours without a compiler"] = lambda x=x: butterflies_(x)
            row: dict[str, object] = {"size": size, "batch": batch}
            for kind, actions in kinds.items():
                found = in_turns(actions, rounds)
                row[f"{kind}, us per row"] = {name: 1e6 * took / batch for name, took in found.items()}
                others = {name: took for name, took in found.items() if name != "ours"}
                if "ours" in found and others:
                    best = min(others, key=others.__getitem__)
                    row[f"{kind}: best peer / ours"] = round(others[best] / found["ours"], 3)
                    row[f"{kind}: best peer"] = best
            table.append(row)
            print(
                json.dumps({key: value for key, value in row.items() if "/ ours" in key or "us" not in key})
            )
    return table


def by_peer(table: list[dict[str, object]]) -> dict[str, dict[str, dict[str, float]]]:
    """Least, typical and largest ratio of each peer's time to ours, for one row and for several."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for kind in ("in place", "new tensor", "in place, float64"):
        for several in (False, True):
            rows = [row[f"{kind}, us per row"] for row in table if (row["batch"] > 1) == several]
            ratios = {
                peer: np.array([row[peer] / row["ours"] for row in rows])
                for peer in rows[0]
                if peer != "ours"
            }
            found[f"{kind}, {'batches of 10 and more' if several else 'one row'}"] = {
                peer: {
                    "least": round(float(values.min()), 3),
                    "geometric mean": round(float(np.exp(np.log(values).mean())), 3),
                    "largest": round(float(values.max()), 3),
                }
                for peer, values in ratios.items()
            }
    return found


def matrix_product() -> list[dict[str, object]]:
    """The product with scipy's matrix at 2**14, float32: one GiB."""
    from scipy.linalg import hadamard

    matrix = torch.from_numpy(hadamard(MATRIX_SIZE, dtype=np.int8)).float()
    table: list[dict[str, object]] = []
    for batch in (1, 10, 100):
        x = torch.randn(batch, MATRIX_SIZE, generator=torch.Generator().manual_seed(0))
        found = in_turns({"matmul": lambda x=x: x @ matrix, "ours": lambda x=x: hadamard_transform(x)}, 2)
        row = {"batch": batch, **{name: 1e6 * took / batch for name, took in found.items()}}
        row["matmul / ours"] = found["matmul"] / found["ours"]
        table.append(row)
        print(json.dumps(row))
    return table


def sampled(rounds: int) -> dict[str, float]:
    """A few coefficients of each client, of a batch that fits no cache, in units of a memcpy of the batch."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, DIM, generator=generator)
    out = torch.empty_like(x)
    blocks = Rows([part.contiguous() for part in x.split(WIDTHS, dim=1)])
    rotation = Rotation(dim=DIM, seed=0)
    size = padded_dim(DIM)
    chosen = {count: torch.randint(size, (CLIENTS, count), generator=generator) for count in (1, 2, 16)}
    bits = torch.randint(0, 2, (CLIENTS, DIM), dtype=torch.uint8, generator=generator)
    actions: dict[str, Action] = {"memcpy of the batch": lambda: out.copy_(x)}
    for count, indices in chosen.items():
        actions[f"{count} coefficients"] = lambda indices=indices: hadamard_coefficients(x, indices)
        actions[f"{count} rotated entries"] = lambda indices=indices: rotation.coefficients(x, indices)
    actions["1 coefficients, rows in 5 blocks"] = lambda: hadamard_coefficients(blocks, chosen[1])
    actions["packing one bit per coordinate"] = lambda: pack_bits(bits, 1)
    found = in_turns(actions, max(2, rounds // 2))
    relative = {name: took / found["memcpy of the batch"] for name, took in found.items()}
    print(json.dumps({"memcpy, ms": 1e3 * found["memcpy of the batch"], **relative}, indent=1))
    return {"memcpy of the batch, ms": 1e3 * found["memcpy of the batch"], **relative}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--matrix", action="store_true", help="the matrix product too: one GiB, a minute")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    peers = installed()
    check(peers)
    table = transforms(peers, arguments.rounds)
    ratios = by_peer(table)
    print(json.dumps(ratios, indent=1))
    record: dict[str, object] = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "threads": 1,
        "peers": peers,
        "a peer's time over ours": ratios,
        "transforms": table,
    }
    if arguments.matrix:
        record[f"product with the matrix at {MATRIX_SIZE}, us per row"] = matrix_product()
    record[f"batch of {CLIENTS} x {DIM} float32, in memcpys of it"] = sampled(arguments.rounds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
