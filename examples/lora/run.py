"""LoRA on a pretrained sentence encoder, SST-2, at certified ε of 1, 3 and 8, by four arms; and its page.

    python examples/lora/run.py --data-dir DIR
    python examples/lora/run.py --data-dir DIR --arms sum --epsilon 3 --seeds 5
    python examples/lora/run.py --data-dir DIR --encoder minilm
    python examples/lora/run.py --data-dir OTHER --task snippets      # what snippets.py wrote
    python examples/lora/run.py --page     # writes the page of all runs so far

DIR and what to install are as train.py says.
Stop it whenever you like: the same command goes on after the last finished run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from model import FrozenStates, accuracy  # noqa: E402
from page import write_page  # noqa: E402
from train import ARMS, DELTA, ENCODERS, SETTINGS, pretrained, states, train  # noqa: E402

EPSILONS = (3.0, 1.0, 8.0)
RESULTS = HERE / "results.json"
NEIGHBOURS = "replace-one"
Cell = tuple[str, float | None, int]
"""Arm, ε and number of the run."""


def cells(arms: Sequence[str], epsilons: Sequence[float], seeds: int) -> Iterator[Cell]:
    """All runs: one of everything before the second of anything."""
    for seed in range(seeds):
        for epsilon in epsilons:
            for arm in arms:
                if arm != "none":
                    yield arm, epsilon, seed
                elif epsilon == epsilons[0]:
                    yield arm, None, seed


def done(results: Path) -> list[dict[str, Any]]:
    """The runs of a result file; none if there is no file yet."""
    return json.loads(results.read_text())["runs"] if results.exists() else []


def keep(results: Path, runs: list[dict[str, Any]]) -> None:
    """Write the file, so that a kill leaves the old one or the new one."""
    lines = ",\n".join(" " + json.dumps(run) for run in runs)
    unfinished = results.with_suffix(".part")
    unfinished.write_text(f'{{"delta": {DELTA}, "neighbours": "{NEIGHBOURS}", "runs": [\n{lines}\n]}}\n')
    unfinished.replace(results)


def run(cell: Cell, encoder: str, phrases: FrozenStates, dev: FrozenStates) -> dict[str, Any]:
    """Train one model, and say what came of it."""
    name, epsilon, seed = cell
    started, clock = time.process_time(), time.monotonic()
    torch.manual_seed(seed)  # the adapters' start; batches and coins are fresh in every run
    arm = ARMS[name](epsilon=epsilon)
    model, upper = train(pretrained(encoder)[0], phrases, arm)
    with torch.no_grad():
        head = model.base_model.model.head.original_module(dev.embeddings)[:, 0]  # as before the adapters
    spent = arm.epsilon()
    share = SETTINGS.cohort * SETTINGS.steps / len(phrases)
    head_share = SETTINGS.head_cohort * SETTINGS.head_steps / len(phrases)
    head_bits, bits = arm.bits_per_step
    return {
        "arm": name,
        "phrases": len(phrases),
        "held_out": len(dev),
        "target_epsilon": epsilon,
        "seed": seed,
        "accuracy": round(accuracy(upper, dev), 4),
        "accuracy_of_head": round(float(((head > 0) == (dev.labels > 0.5)).float().mean()), 4),
        "epsilon": spent and [math.floor(spent[0] * 1e4) / 1e4, math.ceil(spent[1] * 1e4) / 1e4],
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "bytes_per_client": round((head_bits * head_share + bits * share) / 8),
        "settings": asdict(SETTINGS),
        "processor_seconds": round(time.process_time() - started),
        "seconds": round(time.monotonic() - clock),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="a folder with train.tsv.gz and dev.tsv.gz")
    parser.add_argument("--task", default="sst2", help="the name of what is in the folder")
    parser.add_argument("--encoder", choices=list(ENCODERS), default="mpnet")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="train nothing, write the page of all runs")
    options = parser.parse_args()
    runs = done(options.results)
    if options.page:
        write_page(runs)
        return
    if options.data_dir is None:
        parser.error("--data-dir says where the data are")
    of = {"task": options.task, "encoder": options.encoder}
    finished = {
        (each["arm"], each["target_epsilon"], each["seed"]) for each in runs if of.items() <= each.items()
    }
    phrases, dev = (states(options.data_dir / f"{part}.tsv.gz", options.encoder) for part in ("train", "dev"))
    for cell in cells(options.arms, options.epsilon, options.seeds):
        if cell not in finished:
            told = of | run(cell, options.encoder, phrases, dev)
            runs = [*done(options.results), told]
            keep(options.results, runs)
            print(*cell, f"{told['accuracy']:.2%}, {told['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
