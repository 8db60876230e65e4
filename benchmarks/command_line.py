"""Processor time of the README's commands, each in a fresh process, beside importing NumPy and SciPy alone.

One thread: on a busy machine threads of NumPy's libraries wait for each other, and waiting takes processor
time. The least of several runs, in turn; the ratio to the bare import is what counts.

Usage: python benchmarks/command_line.py [--repeats 3] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

IMPORT = ["-c", "import numpy, scipy.special"]
QUESTION = "--population 60000 --cohort 10000 --local-epsilon 1.5 --rounds 1200 --delta 1e-5"
COMMANDS = {
    "help": "--help",
    "epsilon": f"epsilon {QUESTION}",
    "epsilon --json": f"epsilon {QUESTION} --json",
    "epsilon --all": f"epsilon {QUESTION} --all",
    "calibrate, ε0": "calibrate --target-epsilon 0.5 -n 60000 -k 10000 -t 1200 -d 1e-5",
    "calibrate, rounds": "calibrate --target-epsilon 0.5 -n 60000 -k 10000 -e 1.5 -d 1e-5 --solve rounds",
    "calibrate, random cohorts": "calibrate --target-epsilon 1 -n 60000 -k 10000 -t 100 -d 1e-5 "
    "--sampling poisson --adversary server",
    "plan, one mechanism": "plan -n 1e6 --target-epsilon 1 -d 1e-8 --dim 1000 --mechanism privunit",
    "plan, all mechanisms": "plan -n 1e6 --target-epsilon 1 -d 1e-8 --dim 1000",
    "plan, one cell": "plan -n 60000 --target-epsilon 1 -d 1e-5 --dim 1000 --mechanism privunit -t 9 -k 600",
    "mechanisms": "mechanisms",
    "mechanisms, compared": "mechanisms --dim 13706 --local-epsilon 2 --norm l2",
    "mechanisms, of every kind": "mechanisms --dim 13706 --local-epsilon 2",
    "keys": "keys --help",
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
RESULTS = Path(__file__).parent / "results" / "command_line.json"


def seconds(arguments: list[str]) -> float:
    """Processor time of one fresh process, its children's included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, **ONE_THREAD}
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()

    asked = {"import": IMPORT}
    asked |= {name: ["-m", "shuffle_plugins", *command.split()] for name, command in COMMANDS.items()}
    taken: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(options.repeats):
        for name, arguments in asked.items():
            taken[name].append(seconds(arguments))
    least = {name: min(times) for name, times in taken.items()}
    results = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "repeats": options.repeats,
        "import_s": least.pop("import"),
        "commands": {
            name: {"command": COMMANDS[name], "seconds": time, "over_import": time / min(taken["import"])}
            for name, time in least.items()
        },
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
