"""Speed of the kernels under the compressors, beside a copy on the same device.

Bandwidth counts what a kernel must move: its input read once and its output written once. ``of_copy`` is that
bandwidth as a share of a device copy's, ``reads`` the time in units of reading the input once at the copy's
bandwidth. On a GPU the torch path of the same function runs beside each kernel. Results are compared with the
CPU's, bit for bit, before anything is timed. Without a GPU the torch paths are timed on the CPU.

Usage: python benchmarks/gpu_kernels.py [--device cuda] [--scale 1.0] [--repeats 20] [--output FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from shuffle_plugins.compressors import SignThresholds, butterflies_, hadamard_transform
from shuffle_plugins.compressors.kernels import (
    decode_signs,
    encode_signs,
    encode_signs_torch,
    gather_signs,
    pack_signs,
    unpack_signs,
)
from shuffle_plugins.core import Rows
from shuffle_plugins.randomness import SecureRandomness, SeededRandomness, runs_kernels

CLIENTS, DIM = 10_000, 13_706
SIZES = [1 << k for k in (5, 8, 10, 11, 12, 13, 14, 15, 16, 20)]
LOW = 1 << 59
SCALE = 0.05


class Clock:
    """Median seconds of a call on a device, after two calls that are not counted."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device = device
        self.repeats = repeats

    def __call__(self, call: Callable[[], object]) -> float:
        """Seconds."""
        for _ in range(2):
            call()
        return median(self._once(call) for _ in range(self.repeats))

    def _once(self, call: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


def nbytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def batch(clients: int, dim: int, device: torch.device) -> Tensor:
    x = torch.empty(clients, dim, device=device).uniform_(-1, 1)
    return x.mul_(1 / dim**0.5)


def diagonal(dim: int) -> Tensor:
    return SeededRandomness(7).integers(2, dim).mul_(2).sub_(1).to(torch.int8)


def check_against_cpu(device: torch.device) -> None:
    """Raise unless the device returns the CPU's bits."""
    x = batch(64, DIM, torch.device("cpu"))
    given: dict[str, Any] = {"signs": diagonal(DIM), "scale": SCALE, "low_threshold": LOW}
    pairs = [
        (SeededRandomness(1).words(10_001, device=device), SeededRandomness(1).words(10_001)),
        (
            encode_signs(x.to(device), **given, draw=SeededRandomness(1).keystream()),
            encode_signs(x, **given, draw=SeededRandomness(1).keystream()),
        ),
        *((hadamard_transform(x[:, :s].to(device)), hadamard_transform(x[:, :s])) for s in SIZES if s <= DIM),
    ]
    if not all(torch.equal(theirs.cpu(), ours) for theirs, ours in pairs):
        raise RuntimeError(f"{device} does not return the CPU's bits")


class Recorder:
    """Times calls and prints what they reach beside a copy."""

    def __init__(self, clock: Clock, bandwidth: float) -> None:
        self.clock = clock
        self.bandwidth = bandwidth
        self.rows: dict[str, dict[str, float]] = {}

    def __call__(self, name: str, call: Callable[[], object], *, read: int, written: int) -> None:
        """Time a call that has so many bytes to read and to write."""
        seconds = self.clock(call)
        moved = (read + written) / seconds
        self.rows[name] = {
            "ms": round(1e3 * seconds, 4),
            "GB_per_s": round(moved / 1e9, 1),
            "of_copy": round(moved / self.bandwidth, 3),
        }
        if read:
            self.rows[name]["reads"] = round(seconds * self.bandwidth / read, 2)
        print(f"{name:44}", json.dumps(self.rows[name]), flush=True)


def copy_bandwidth(clock: Clock, values: int) -> float:
    x = torch.ones(values, device=clock.device)
    out = torch.empty_like(x)
    return nbytes(x, out) / clock(lambda: out.copy_(x))


def measure_transforms(record: Recorder, device: torch.device, values: int) -> None:
    peer = None
    if device.type == "cuda" and importlib.util.find_spec("fast_hadamard_transform"):
        peer = import_module("fast_hadamard_transform").hadamard_transform
    x = torch.empty(values, device=device).uniform_(-1, 1)
    out = torch.empty_like(x)
    for size in SIZES:
        rows, result = x.view(-1, size), out.view(-1, size)
        moved = {"read": nbytes(x), "written": nbytes(x)}
        record(f"transform {size}", partial(hadamard_transform, rows, out=result), **moved)
        if device.type == "cuda":
            record(f"transform {size}, torch path", partial(butterflies_, result), **moved)
        if peer is not None and size <= 1 << 15:
            record(f"transform {size}, fast_hadamard_transform", partial(peer, rows), **moved)


def measure_signs(record: Recorder, device: torch.device, clients: int) -> None:
    secure = SecureRandomness()
    x, signs = batch(clients, DIM, device), diagonal(DIM).to(device)
    rule, size = SignThresholds(low=LOW), 1 << (DIM - 1).bit_length()

    def encode() -> Tensor:
        return encode_signs(x, signs=signs, scale=SCALE, low_threshold=LOW, draw=secure.keystream())

    def encode_by_torch() -> Tensor:
        return encode_signs_torch(Rows(x), signs=signs, scale=SCALE, rule=rule, draw=secure.keystream())

    def gather() -> Tensor:
        return gather_signs(x, indices, scale=SCALE, low_threshold=LOW, draw=secure.keystream())

    packed = encode()
    bits = unpack_signs(packed, columns=size)
    indices = secure.integers(DIM, (clients, 1), device=device)
    shape = f"{clients} x {size}"
    record(f"encode signs {clients} x {DIM}", encode, read=nbytes(x), written=nbytes(packed))
    if runs_kernels(device):
        name = f"encode signs {clients} x {DIM}, torch path"
        record(name, encode_by_torch, read=nbytes(x), written=nbytes(packed))
    record(f"gather signs {clients} x 1", gather, read=12 * clients, written=clients)
    count = partial(decode_signs, packed, columns=size)
    record(f"decode signs {shape}", count, read=nbytes(packed), written=8 * size)
    unpack = partial(unpack_signs, packed, columns=size)
    record(f"unpack signs {shape}", unpack, read=nbytes(packed), written=nbytes(bits))
    record(f"pack signs {shape}", partial(pack_signs, bits), read=nbytes(bits), written=nbytes(packed))


def measure(device: torch.device, *, scale: float, repeats: int) -> dict[str, Any]:
    clock, secure = Clock(device, repeats), SecureRandomness()
    largest = max(SIZES)
    values = max(int(scale * (1 << (28 if device.type == "cuda" else 25))) // largest, 1) * largest
    record = Recorder(clock, copy_bandwidth(clock, values))
    words = partial(secure.words, values // 2, device=device)
    record("keystream words", words, read=0, written=4 * values)
    measure_transforms(record, device, values)
    measure_signs(record, device, max(1, int(CLIENTS * scale)))
    return {"copy_GB_per_s": round(record.bandwidth / 1e9, 1), "kernels": record.rows}


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full batch")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(device_name(device))
    check_against_cpu(device)
    results = {
        "device": device_name(device),
        "torch": torch.__version__,
        "triton_kernels": runs_kernels(device),
        "clients": int(CLIENTS * arguments.scale),
        "dim": DIM,
        **measure(device, scale=arguments.scale, repeats=arguments.repeats),
    }
    text = json.dumps(results, indent=2)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
