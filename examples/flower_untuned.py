"""What the program of docs/guides/flower.md, "Without tuning", reaches as it is printed.

A linear classifier is trained by clients that hold thirty images each. Every setting of the server comes from
``training_recipe``; the clients take a few steps on their own images at a learning rate of one, and what they
send is clipped so short that this rate hardly matters. The runs with another ``factor`` multiply the
recommended learning rate by it: they tell what tuning would have found.

    python examples/flower_untuned.py --data-dir DIR
    python examples/flower_untuned.py --data-dir DIR --data mnist --factor 0.25 0.5 1 2 4

DIR has the folders ``mnist`` and ``fashion-mnist`` with IDX files. All clients run in this process, one after
another. Stop it whenever you like: the same command goes on after the last finished run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import ClientLimits, InProcessGrid, ShuffleMod
from mnist_idx import load_mnist
from torch import Tensor
from torch.nn import functional

from shuffle_plugins.features import Scattering, place_normalized

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guides" / "flower.md"
RESULTS = ROOT / "examples" / "results" / "flower_untuned.json"
CLASSES = 10
RECORDS = 30  # of a client
LOCAL_STEPS = 5
_ASKED = ("data", "randomizer", "target_epsilon", "factor")


def printed() -> str:
    """The program of the page."""
    found = re.search(r"<!-- untuned -->\n```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert found is not None, f"{PAGE} has no program marked 'untuned'"
    return found[1]


def asked_for(program: str, *, epsilon: float, randomizer: str, clients: int, dim: int, factor: float) -> str:
    """The printed program with another target, randomizer, model, and learning rate."""
    changes = {
        r"RANDOMIZER = \S+": f'RANDOMIZER = "{randomizer}"',
        r"target_epsilon=[\d.]+": f"target_epsilon={epsilon}",
        r"CLIENTS = \S+": f"CLIENTS = {clients}",
        r"dim=[\d_]+": f"dim={dim}",
        r"server_learning_rate=recipe.learning_rate": f"server_learning_rate={factor} * recipe.learning_rate",
    }
    for old, new in changes.items():
        program, count = re.subn(old, new, program)
        assert count == 1, f"the program has {old} {count} times"
    return program


def client_app(features: Tensor, labels: Tensor, *, summed: bool) -> ClientApp:
    """Clients of which the i-th trains on ``features[i]`` (m, features) and ``labels[i]`` (m,)."""
    limits = ClientLimits(max_local_epsilon=100.0, max_rounds=10_000)
    if summed:
        limits = replace(limits, max_local_epsilon=math.inf, max_epsilon=1000.0, delta=1e-5)
    app = ClientApp(mods=[ShuffleMod(limits=limits)])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        rows, kinds = features[client], functional.one_hot(labels[client], CLASSES)
        weights = torch.from_numpy(message.content["arrays"].to_numpy_ndarrays()[0])
        for _ in range(LOCAL_STEPS):
            errors = torch.softmax(rows @ weights.T, dim=1) - kinds
            weights = weights - errors.T @ rows / len(rows)
        content = RecordDict(
            {"arrays": ArrayRecord([weights.numpy()]), "metrics": MetricRecord({"num-examples": len(rows)})}
        )
        return Message(content, reply_to=message)

    return app


@cache
def features_of(folder: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Rows of length one and labels, of the training images in the clients' hands and of the test images."""
    scattering = Scattering(height=28, width=28, order=1)
    (rows, labels), test = (
        (place_normalized(scattering(images[:, 0]), orders=scattering.orders), kinds)
        for images, kinds in load_mnist(folder)
    )
    clients = len(rows) // RECORDS
    held = (each[: clients * RECORDS].reshape(clients, RECORDS, *each.shape[1:]) for each in (rows, labels))
    return tuple(held), test


def run(folder: Path, *, randomizer: str, epsilon: float, factor: float) -> dict[str, Any]:
    """What one run of the program reaches."""
    (rows, labels), test = features_of(folder)
    dim = CLASSES * rows.shape[-1]
    program = asked_for(
        printed(), epsilon=epsilon, randomizer=randomizer, clients=len(rows), dim=dim, factor=factor
    )
    names: dict[str, Any] = {
        "grid": InProcessGrid(
            client_app(rows, labels, summed=randomizer == "vector-sum"), num_nodes=len(rows)
        ),
        "model": ArrayRecord([torch.zeros(CLASSES, rows.shape[-1]).numpy()]),
    }
    started = time.process_time()
    exec(compile(program, str(PAGE), "exec"), names)
    recipe, strategy = names["recipe"], names["strategy"]
    weights = torch.from_numpy(names["result"].arrays.to_numpy_ndarrays()[0])
    correct = (test[0] @ weights.T).argmax(dim=1).eq(test[1]).double().mean()
    return {
        "accuracy": round(float(correct), 4),
        "epsilon_observer": strategy.spending().observer.upper,
        "delta": recipe.delta,
        "mechanism": recipe.mechanism,
        "clients": recipe.population,
        "parameters": recipe.dim,
        "cohort": recipe.cohort,
        "rounds": recipe.num_steps,
        "clipping_norm": recipe.max_grad_norm,
        "server_learning_rate": factor * recipe.learning_rate,
        "signal_to_noise_ratio": round(recipe.expected_noise.signal_to_noise_ratio, 3),
        "processor_seconds": round(time.process_time() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=["mnist", "fashion-mnist"])
    parser.add_argument("--randomizer", nargs="+", default=["vector-sum", "privunit"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[3.0])
    parser.add_argument("--factor", nargs="+", type=float, default=[1.0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    told = json.loads(options.results.read_text()) if options.results.exists() else []
    for asked in itertools.product(options.data, options.randomizer, options.epsilon, options.factor):
        if any(tuple(each[name] for name in _ASKED) == asked for each in told):
            continue
        data, randomizer, epsilon, factor = asked
        found = run(options.data_dir / data, randomizer=randomizer, epsilon=epsilon, factor=factor)
        told.append({**dict(zip(_ASKED, asked, strict=True)), **found})
        unfinished = options.results.with_suffix(".part")
        unfinished.write_text(json.dumps(told, indent=1) + "\n")
        unfinished.replace(options.results)
        print(*asked, found["accuracy"], flush=True)


if __name__ == "__main__":
    main()
