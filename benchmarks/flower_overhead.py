"""What LDP, shuffle and accounting add to a round of FedAvg in Flower's own simulation engine.

One run, one set of workers. Plain FedAvg and ``ShuffleStrategy`` with each mechanism take turns, a round or a
few each, so that a slow moment of the machine hits them all; ratios are those of the medians over rounds, of
time on the clock and of processor time of all processes together, which a busy machine distorts less.
A client is an MLP 784-128-10 (101,770 parameters) and its share of 60,000 examples, one epoch in batches of
ten: 600 examples for each of 100 clients, 60 for each of 1,000. Every shuffled round draws its cohort,
randomises, shuffles, is recorded in a budget ledger on disk with a checkpoint of the model, and is checked
against a budget. Memory is the proportional set size of all processes together, at its highest while a
variant had its turn; the pages that they share count once.

Usage: python benchmarks/flower_overhead.py [--clients 100] [--blocks 9] [--rounds 1] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import flower_workload
import torch
from flower_workload import network
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation
from flwr_shuffle import FixedSize, MechanismSpec, ShuffleStrategy

EXAMPLES = 60_000
PLAIN = "plain FedAvg"
MECHANISMS = {
    "privunit": MechanismSpec(name="privunit", local_epsilon=4.0, radius=1.0),
    "linf-block": MechanismSpec(name="linf-block", local_epsilon=4.0, radius=0.01),
    "l2-block, rotation": MechanismSpec(
        name="l2-block", local_epsilon=4.0, radius=1.0, options=(("frame", "rotation"),)
    ),
    "l2-block, Kashin frame": MechanismSpec(name="l2-block", local_epsilon=4.0, radius=1.0),
    "linf-coordinate (one sign)": MechanismSpec(name="linf-coordinate", local_epsilon=4.0, radius=0.01),
}
RESULTS = Path(__file__).parent / "results" / "flower_overhead.json"


def plain(clients: int) -> Strategy:
    return FedAvg(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
    )


def shuffled(spec: MechanismSpec, clients: int, ledger: Path) -> Strategy:
    return ShuffleStrategy(
        FedAvg(fraction_train=1.0, fraction_evaluate=0.0),
        randomizer=spec,
        sampling=FixedSize(clients),
        population=clients,
        ledger=ledger,
        delta=1e-5,
        max_epsilon=1e4,
    )


class PeakMemory:
    """Highest memory of this process and all below it, in MiB, looked at once a second."""

    def __init__(self, *, interval: float = 1.0) -> None:
        self._interval = interval
        self._stopped = threading.Event()
        self._peak = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look until the block ends."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    def take(self) -> float:
        """The highest value since the last call."""
        peak, self._peak = self._peak, 0.0
        return peak

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval):
            self._peak = max(self._peak, sum(map(_proportional_mib, _process_tree(os.getpid()))))


def _process_tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    tree = [root]
    for process in tree:
        tree += children.get(process, [])
    return tree


def processor_seconds() -> float:
    """Processor time of this process and all below it, so far."""
    ticks = 0
    for process in _process_tree(os.getpid()):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _proportional_mib(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure(
    *, clients: int, blocks: int, rounds: int, mechanisms: list[str], directory: Path
) -> dict[str, dict[str, Any]]:
    """Seconds of every round of every variant, first block and its round of start-up apart."""
    variants: dict[str, Callable[[int], Strategy]] = {PLAIN: lambda block: plain(clients)}
    for name in mechanisms:
        spec = MECHANISMS[name]
        path = directory / f"{len(variants)}"
        variants[name] = lambda block, spec=spec, path=path: shuffled(
            spec, clients, path.with_suffix(f".{block}")
        )
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    busy: dict[str, list[float]] = {name: [] for name in variants}
    peaks: dict[str, list[float]] = {name: [] for name in variants}
    memory = PeakMemory()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(network().state_dict())
        asked = ConfigRecord({"examples": EXAMPLES // clients})
        for block in range(blocks + 1):
            turn = block % len(variants)
            for name, make in [*list(variants.items())[turn:], *list(variants.items())[:turn]]:
                memory.take()
                ends: list[tuple[float, float]] = []
                make(block).start(
                    grid,
                    arrays,
                    num_rounds=rounds if block else 1,
                    train_config=asked.copy(),
                    evaluate_fn=lambda number, new, ends=ends: ends.append(
                        (time.perf_counter(), processor_seconds())
                    ),
                )
                took = [(wall - start, cpu - before) for (start, before), (wall, cpu) in pairwise(ends)]
                for wall, cpu in took:
                    print(f"block {block}: {name}, {wall:.2f} s, {cpu:.2f} s of processor time", flush=True)
                if block:
                    seconds[name] += [wall for wall, _ in took]
                    busy[name] += [cpu for _, cpu in took]
                    peaks[name].append(memory.take())

    with memory.watching():
        run_simulation(
            server,
            flower_workload.app,
            clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    dim = sum(parameter.numel() for parameter in network().parameters())
    return {
        name: {
            "median_s": round(median(seconds[name]), 3),
            "over_plain": round(median(seconds[name]) / median(seconds[PLAIN]), 3),
            "median_processor_s": round(median(busy[name]), 3),
            "processor_over_plain": round(median(busy[name]) / median(busy[PLAIN]), 3),
            "peak_memory_mib": round(max(peaks[name])),
            "update_bytes": MECHANISMS[name].report_bytes(dim=dim) + 1 if name in MECHANISMS else 4 * dim,
            "rounds_s": [round(value, 3) for value in seconds[name]],
            "rounds_processor_s": [round(value, 3) for value in busy[name]],
        }
        for name in variants
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=9, help="turns of every variant")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of one turn")
    parser.add_argument("--mechanisms", nargs="+", choices=MECHANISMS, default=list(MECHANISMS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    logging.getLogger("flwr").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        variants = measure(
            clients=options.clients,
            blocks=options.blocks,
            rounds=options.rounds,
            mechanisms=options.mechanisms,
            directory=Path(directory),
        )
    results = json.loads(options.output.read_text()) if options.output.exists() else {}
    results[str(options.clients)] = {
        "clients": options.clients,
        "examples_per_client": EXAMPLES // options.clients,
        "parameters": sum(parameter.numel() for parameter in network().parameters()),
        "blocks": options.blocks,
        "rounds_per_block": options.rounds,
        "flwr": version("flwr"),
        "ray": version("ray"),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "wall_s": round(time.perf_counter() - started),
        "variants": variants,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    for name, values in variants.items():
        print(f"{name:28} {values['median_s']:8.3f} s  × {values['over_plain']:.3f}", end="  ")
        print(
            f"processor {values['median_processor_s']:8.3f} s  × {values['processor_over_plain']:.3f}",
            end="  ",
        )
        print(f"{values['peak_memory_mib']:6} MiB  {values['update_bytes']:7} bytes")


if __name__ == "__main__":
    main()
