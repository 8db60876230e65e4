"""What the programs of docs/guides/opacus.md, "Without tuning", reach as they are printed.

Every setting comes from ``engine.training_recipe``; only the target ε and the randomizer are put in. Accuracy
on the test set is measured when all is done, and nothing is chosen by it.

    python examples/untuned.py --data-dir DIR
    python examples/untuned.py --data-dir DIR --data fashion-mnist --epsilon 3 --randomizer privunit
    python examples/untuned.py --data-dir DIR --data mnist --model network --epsilon 3 --randomizer vector-sum
    python examples/untuned.py --data digits     # 1,500 digits that ship with scikit-learn, in seconds

DIR has the folders ``mnist`` and ``fashion-mnist`` with IDX files. Stop it whenever you like: the same
command goes on after the last finished run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

import torch
from mnist_idx import load_mnist, opacus_network
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guides" / "opacus.md"
RESULTS = ROOT / "examples" / "results" / "untuned.json"
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's pixels, as Opacus's examples/mnist.py has them
DIGITS = "digits"
_ASKED = ("data", "model", "randomizer", "target_epsilon", "run")


def printed(part: str) -> str:
    """A program of the page."""
    found = re.search(rf"<!-- untuned: {part} -->\n```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert found is not None, f"{PAGE} has no program for {part}"
    return found[1]


def asked_for(program: str, *, epsilon: float, randomizer: str) -> str:
    """The printed program with another target and randomizer."""
    for name, value in (("RANDOMIZER = ", f'"{randomizer}"'), ('"target_epsilon": ', str(epsilon))):
        program, count = re.subn(rf"{name}[^\s,]+", f"{name}{value}", program)
        assert count == 1, f"the program sets {name} {count} times"
    return program


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images, (n, 1, 8, 8), and their labels."""
    images, labels = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = images.float().view(-1, 1, 8, 8)[order], labels.long()[order]
    return (x[:1500], y[:1500]), (x[1500:], y[1500:])


def run(folder: Path, *, model: str, randomizer: str, epsilon: float) -> dict[str, Any]:
    """What one run of the programs reaches."""
    (images, labels), (test_images, test_labels) = digits() if folder.name == DIGITS else load_mnist(folder)
    names: dict[str, Any] = {"images": images[:, 0], "labels": labels}
    if folder.name == DIGITS:  # too small for the printed features: pixels, in rows of length one
        rows, test_rows = (functional.normalize(part.flatten(1), dim=1) for part in (images, test_images))
        names |= {"train": TensorDataset(rows, labels), "model": nn.Linear(64, 10, bias=False)}
        nn.init.zeros_(names["model"].weight)
    elif model == "linear":
        exec(compile(printed("features"), str(PAGE), "exec"), names)
        test_rows = names["features"](test_images)
    else:
        train = TensorDataset((images - MEAN) / DEVIATION, labels)
        names |= {"model": opacus_network(), "train": train}
        test_rows = (test_images - MEAN) / DEVIATION
    program = asked_for(printed("training"), epsilon=epsilon, randomizer=randomizer)
    started = time.process_time()
    exec(compile(program, str(PAGE), "exec"), names)
    seconds = time.process_time() - started
    recipe = names["recipe"]
    spent = names["engine"].get_epsilon_interval(recipe.delta)
    names["model"].eval()
    with torch.no_grad():
        found = torch.cat([names["model"](part).argmax(dim=1) for part in test_rows.split(1000)])
    return {
        "accuracy": round(float((found == test_labels).float().mean()), 4),
        "epsilon_certified": spent.upper,
        "delta": recipe.delta,
        "mechanism": recipe.mechanism,
        "parameters": recipe.dim,
        "batch_size": recipe.cohort,
        "num_steps": recipe.num_steps,
        "max_grad_norm": recipe.max_grad_norm,
        "learning_rate": recipe.learning_rate,
        "momentum": recipe.momentum,
        "signal_to_noise_ratio": round(recipe.expected_noise.signal_to_noise_ratio, 3),
        "processor_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path())
    parser.add_argument(
        "--data", nargs="+", choices=["mnist", "fashion-mnist", DIGITS], default=["mnist", "fashion-mnist"]
    )
    parser.add_argument("--model", nargs="+", choices=["linear", "network"], default=["linear"])
    parser.add_argument("--randomizer", nargs="+", default=["vector-sum", "privunit"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[3.0, 1.0])
    parser.add_argument("--runs", type=int, default=1, help="of each setting; coins differ")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    told = json.loads(options.results.read_text()) if options.results.exists() else []
    grid = itertools.product(
        options.data, options.model, options.randomizer, options.epsilon, range(options.runs)
    )
    for asked in grid:
        if any(tuple(each[name] for name in _ASKED) == asked for each in told):
            continue
        data, model, randomizer, epsilon, _ = asked
        found = run(options.data_dir / data, model=model, randomizer=randomizer, epsilon=epsilon)
        told.append({**dict(zip(_ASKED, asked, strict=True)), **found})
        options.results.parent.mkdir(parents=True, exist_ok=True)
        unfinished = options.results.with_suffix(".part")
        unfinished.write_text(json.dumps(told, indent=1) + "\n")
        unfinished.replace(options.results)
        print(*asked, found["accuracy"], flush=True)


if __name__ == "__main__":
    main()
