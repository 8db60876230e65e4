"""Accuracy against ε on four data sets, for six kinds of trust: a linear model on fixed features.

MNIST, Fashion-MNIST, CIFAR-10 and Census-Income KDD at certified ε of 0.5 to 8 (δ = 1e-5, replace-one), each
with one report per client, with sums that need no trusted server, with the Gaussian noise of a trusted one,
without a shuffler, and without privacy. Settings were chosen on MNIST; the page says which were not.

    python examples/frontier/run.py --data-dir DIR
    python examples/frontier/run.py --data-dir DIR --seeds 1 --only mnist census
    python examples/frontier/run.py --page     # writes the page and the picture of all runs so far

DIR has a folder for each data set: ``mnist`` and ``fashion-mnist`` in IDX files, ``cifar10`` and ``census``
as data.py says. Ctrl-C, or kill it, whenever you like: the same command goes on after the last finished run.
The features of a data set come first and take up to five minutes; they are kept when all are computed.
Several processes may write one result file, if each has arms, data sets or seeds of its own. Of two runs that
end in the same instant one may be lost; the next start makes it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from arms import ARMS, DELTA, NO_EPSILON, Arm, Noise  # noqa: E402
from data import NAMES, Task, load  # noqa: E402
from page import SEEDS, write_page  # noqa: E402
from training import standardized, train  # noqa: E402

EPSILONS = (3.0, 1.4, 1.0, 0.5, 8.0)
RESULTS = HERE / "results.json"
NEIGHBOURS = "replace-one"

Cell = tuple[str, str, str, int]
"""Data set, arm, ε as text, and seed."""


def cells(
    names: Sequence[str], arms: Sequence[str], seeds: int, epsilons: Sequence[float] = EPSILONS
) -> Iterator[Cell]:
    """All runs, the most telling ones first: one seed of everything before the second of anything."""
    for seed in range(seeds):
        for epsilon in epsilons:
            for name in names:
                for arm in arms:
                    if arm == "none" and epsilon != epsilons[0]:
                        continue
                    yield name, arm, NO_EPSILON if arm == "none" else f"{epsilon:g}", seed


def done(results: Path) -> list[dict[str, Any]]:
    """The runs of a result file; none if there is no file yet.

    Raises:
        ValueError: if the file is damaged, or its ε is for another δ or other neighbours.
    """
    if not results.exists():
        return []
    try:
        kept = json.loads(results.read_text())
        runs: list[dict[str, Any]] = kept["runs"]
        same = (kept["delta"], kept["neighbours"]) == (DELTA, NEIGHBOURS)
        for each in runs:
            _cell(each)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{results} is not a whole result file: restore it, or move it away") from error
    if not same:
        raise ValueError(f"{results} is for another δ or other neighbours: name another file")
    return runs


def keep(results: Path, new: list[dict[str, Any]]) -> None:
    """Add runs to those in the file, so that a kill leaves the old file or the new one."""
    runs = {_cell(run): run for run in done(results) + new}
    lines = ",\n".join(" " + json.dumps(run, ensure_ascii=False) for run in runs.values())
    unfinished = results.with_name(f"{results.name}.{os.getpid()}.part")
    unfinished.write_text(f'{{"delta": {DELTA}, "neighbours": "{NEIGHBOURS}", "runs": [\n{lines}\n]}}\n')
    unfinished.replace(results)


def _cell(run: dict[str, Any]) -> Cell:
    return run["data"], run["arm"], run["target_epsilon"], run["seed"]


def run(task: Task, cell: Cell, noise: Noise) -> dict[str, Any]:
    """Train one model, and say what came of it."""
    name, arm, epsilon, seed = cell
    started = time.process_time()
    coins = torch.Generator().manual_seed(1_000_003 * (seed + 1))
    if noise.look is not None:
        task = standardized(task, noise.look(coins), deviation=noise.look_deviation)
    found = train(task, noise.schedule, noise.noisy(coins), seed=seed, in_turn=noise.in_turn)
    rounds = noise.schedule.rounds * noise.schedule.cohort / task.population
    return {
        "data": name,
        "arm": arm,
        "target_epsilon": epsilon,
        "seed": seed,
        "accuracy": round(found, 4),
        "epsilon": noise.epsilon and _outward(*noise.epsilon),
        "cohort": noise.schedule.cohort,
        "rounds": noise.schedule.rounds,
        "pace": round(noise.schedule.pace, 4),
        "parameters": task.classes * task.features,
        "bytes_per_round": noise.bytes_per_round,
        "bytes_per_client": round(noise.look_bytes + noise.bytes_per_round * rounds),
        **{key: round(value, 4) if isinstance(value, float) else value for key, value in noise.facts.items()},
        "seconds": round(time.process_time() - started, 1),
    }


def _outward(lower: float, upper: float) -> list[float]:
    """An interval at four digits, which contains it."""
    return [math.floor(lower * 1e4) / 1e4, math.ceil(upper * 1e4) / 1e4]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="a folder with a folder for each data set")
    parser.add_argument("--cache", type=Path, help="where features are kept (DIR/features)")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), help="data sets (all)")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="(all)")
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS), help="targets (all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of each kind ({SEEDS})")
    parser.add_argument("--results", type=Path, default=RESULTS, help="of this page (results.json beside it)")
    parser.add_argument("--page", action="store_true", help="train nothing, write the page of all runs")
    options = parser.parse_args(arguments)
    runs = done(options.results)
    if options.page:
        write_page(runs)
        return
    if options.data_dir is None:
        parser.error("--data-dir says where the data are")
    finished = set(map(_cell, runs))
    wanted = list(dict.fromkeys(cells(options.only, options.arms, options.seeds, options.epsilon)))
    options.results.parent.mkdir(parents=True, exist_ok=True)

    @lru_cache(maxsize=2)
    def task(name: str, scales: int, filters: int) -> Task:
        cache = options.cache or options.data_dir / "features"
        return load(name, scales=scales, filters=filters, data=options.data_dir, cache=cache)

    def task_of(name: str, arm: Arm) -> Task:
        return task(name, arm.scales, arm.filters)

    @lru_cache
    def noise(name: str, arm: str, epsilon: str) -> Noise:
        level = 0.0 if epsilon == NO_EPSILON else float(epsilon)
        return ARMS[arm].noise(task_of(name, ARMS[arm]), level, ARMS[arm].schedule)

    for count, cell in enumerate(wanted, start=1):
        if cell in finished:
            continue
        told = run(task_of(cell[0], ARMS[cell[1]]), cell, noise(*cell[:3]))
        keep(options.results, [told])
        print(f"{count} of {len(wanted)}:", *cell, f"{told['accuracy']:.2%}, {told['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
