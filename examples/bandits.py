"""Recommending under privacy: regret of linear bandits in the central, the local and the shuffle model.

Four parts. Three are simulations with 20 random problems each: actions and the true parameter are uniform on
the unit circle, rewards are -1 or 1. A problem with 10^7 clients takes seconds, as rewards are drawn as one
binomial number for each action. The fourth is on scikit-learn's handwritten digits, client by client.

    models     regret against ε: 10 actions, 10^5 clients (Fig. 6.2a of Girgis's thesis)
    core-set   regret against ε: 1,000 actions, 10^7 clients, with and without a core set (Fig. 6.2b)
    horizon    regret against the number of clients: 1,000 actions, ε = 1
    digits     which of two recommenders to trust: policies for groups of clients (contexts), real labels

    python examples/bandits.py                        # writes examples/results/bandits.{json,png}
    python examples/bandits.py --part models --seeds 5

What is done is saved after every run; started again, it goes on from there.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from tqdm import tqdm

from shuffle_plugins.bandits import (
    CentralModel,
    ContextualActions,
    Environment,
    LinearBandit,
    LocalModel,
    NonPrivate,
    PrivacyModel,
    ShuffledModel,
    every_policy,
)

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DELTA = 1e-6
RESULTS = Path(__file__).parent / "results" / "bandits.json"

MODELS: dict[str, Callable[[float], PrivacyModel]] = {
    "central": lambda epsilon: CentralModel(epsilon=epsilon),
    "shuffled": lambda epsilon: ShuffledModel(epsilon=epsilon, delta=DELTA),
    "shuffled, one bit": lambda epsilon: ShuffledModel(epsilon=epsilon, delta=DELTA, mechanism="binary-rr"),
    "shuffled, closed form": lambda epsilon: ShuffledModel(epsilon=epsilon, delta=DELTA, bound="published"),
    "local": lambda epsilon: LocalModel(local_epsilon=epsilon),
    "local, one bit": lambda epsilon: LocalModel(local_epsilon=epsilon, mechanism="binary-rr"),
    "not private": lambda epsilon: NonPrivate(),
}
CORE_SET = {
    "central, core set": ("central", True),
    "central, all actions": ("central", False),
    "not private, core set": ("not private", True),
    "not private, all actions": ("not private", False),
}
EPSILONS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
CORE_EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 3.0)
LOG_HORIZONS = (12, 13, 14, 15, 16, 17, 18, 19, 20)  # ln T, whole, so that every T ends with a whole batch
COLOURS = dict(
    zip(MODELS, ("#0072b2", "#009e73", "#56b4e9", "#cc79a7", "#d55e00", "#e69f00", "black"), strict=True)
)


def tasks(part: str, seeds: int) -> list[dict[str, Any]]:
    """Every run of a part, in an order in which early results are of use."""
    found: list[dict[str, Any]] = []
    for seed in range(min(seeds, 10) if part == "digits" else seeds):
        if part == "models":
            asked = [(name, epsilon) for name in MODELS for epsilon in EPSILONS if name != "not private"]
            found += [{"line": name, "x": epsilon, "seed": seed} for name, epsilon in asked]
            found.append({"line": "not private", "x": None, "seed": seed})
        elif part == "core-set":
            asked = [(name, epsilon) for name in CORE_SET for epsilon in CORE_EPSILONS if "not" not in name]
            found += [{"line": name, "x": epsilon, "seed": seed} for name, epsilon in asked]
            found += [{"line": name, "x": None, "seed": seed} for name in CORE_SET if "not" in name]
        elif part == "horizon":
            asked = [(name, log) for name in MODELS for log in LOG_HORIZONS if "closed" not in name]
            found += [{"line": name, "x": log, "seed": seed} for name, log in asked]
        else:
            found += [{"line": name, "x": 1.0, "seed": seed} for name in MODELS if "closed" not in name]
    return found


def simulated(part: str, task: dict[str, Any]) -> dict[str, Any]:
    """Regret of one run, and how many clients each batch had."""
    line, x, seed = task["line"], task["x"], task["seed"]
    name, core_set = CORE_SET.get(line, (line, True))
    epsilon = 1.0 if part == "horizon" or x is None else x
    actions, horizon = {
        "models": (10, 10**5),
        "core-set": (1_000, 10**7),
        "horizon": (1_000, math.ceil(math.exp(x or 0))),
    }[part]
    environment = Environment.random(actions=actions, dim=2, seed=seed)
    bandit = LinearBandit(
        actions=environment.actions, horizon=horizon, privacy=MODELS[name](epsilon), core_set=core_set
    )
    played = environment.play(bandit, seed=seed)
    spent = None if bandit.epsilon is None else bandit.epsilon.upper
    return {"regret": round(played.regret, 1), "certified": spent}


# -- real data --------------------------------------------------------------------------------------------


@cache
def digits(groups: int = 40, labelled: int = 40) -> tuple[ContextualActions, np.ndarray, np.ndarray]:
    """Policies, and for every private image its group and its label.

    Half of the images are public, without labels but for a few. A client holds one of the other images, and
    its context is the nearest of 40 groups that were found in the public half. An action is a label to
    recommend. Two public scores of a label in a group, both between -1 and 1, are its features: how near the
    group's centre lies to the mean of the labelled images of this label, and the share of this label among
    the five labelled images that are nearest to the centre. What is to be learnt is how to weigh the two.
    """
    images, labels = load_digits(return_X_y=True)
    images = images / 16
    order = np.random.default_rng(0).permutation(len(labels))
    public, private = order[: len(order) // 2], order[len(order) // 2 :]
    found = KMeans(groups, random_state=0, n_init=4).fit(images[public])
    law = np.bincount(found.labels_, minlength=groups) / len(public)
    known = public[:labelled]
    distances = np.linalg.norm(found.cluster_centers_[:, None] - images[known][None], axis=2)
    nearest = np.argsort(distances, axis=1)[:, :5]
    votes = np.stack([(labels[known][nearest] == label).mean(axis=1) for label in range(10)], axis=1)
    means = np.stack([images[known][labels[known] == label].mean(axis=0) for label in range(10)])
    far = np.linalg.norm(found.cluster_centers_[:, None] - means[None], axis=2)
    near = 1 - 2 * (far - far.min()) / (far.max() - far.min())
    features = np.stack([near, 2 * votes - 1], axis=2) / math.sqrt(2)
    return every_policy(features, law), found.predict(images[private]), labels[private]


def recommended(task: dict[str, Any], horizon: int = 100_000) -> dict[str, Any]:
    """One run with every client's own report: the share of right recommendations."""
    contextual, groups, labels = digits()
    right = np.mean(contextual.policies[:, groups] == labels, axis=1)
    rng = np.random.default_rng(task["seed"])
    bandit = LinearBandit(
        actions=contextual.actions, horizon=horizon, privacy=MODELS[task["line"]](task["x"])
    )
    hits = 0
    while (batch := bandit.select()) is not None:
        chosen = batch.assignment()
        clients = rng.integers(len(labels), size=batch.size)
        correct = contextual.policies[chosen, groups[clients]] == labels[clients]
        hits += int(correct.sum())
        if not batch.final:
            bandit.update(batch, chosen, batch.randomize(2.0 * correct - 1))
    return {
        "regret": round(2 * (right.max() * horizon - hits), 1),
        "right": hits / horizon,
        "last": float(right[bandit.best]),
        "policies": len(right),
        "best": float(right.max()),
        "even": float(right.mean()),
        "worst": float(right.min()),
        "certified": None if bandit.epsilon is None else bandit.epsilon.upper,
    }


# -- tables and pictures ----------------------------------------------------------------------------------


def band(runs: list[dict[str, Any]], line: str, x: float | None) -> tuple[float, float, float] | None:
    """Mean regret of the seeds, and the 10 % and 90 % quantiles."""
    values = [run["regret"] for run in runs if run["line"] == line and run["x"] == x]
    return (float(np.mean(values)), *np.quantile(values, [0.1, 0.9]).tolist()) if values else None


def summary(results: dict[str, list[dict[str, Any]]]) -> None:
    for part, runs in results.items():
        print(f"\n| {part} | x | mean regret | 10 %–90 % of the runs | runs |\n|---|---|---|---|---|")
        for line in dict.fromkeys(run["line"] for run in runs):
            for x in dict.fromkeys(run["x"] for run in runs if run["line"] == line):
                mean, low, high = band(runs, line, x)
                count = sum(run["line"] == line and run["x"] == x for run in runs)
                at = "" if x is None else f"{x:g}"
                print(f"| {line} | {at} | {mean:,.0f} | {low:,.0f}–{high:,.0f} | {count} |")
        if part == "horizon":
            for line, slope in slopes(runs).items():
                print(f"slope of log regret in log T, {line}: {slope:.3f}")
        if part == "digits":
            for line in dict.fromkeys(run["line"] for run in runs):
                shares = [100 * run["right"] for run in runs if run["line"] == line]
                print(f"right recommendations, {line}: {np.mean(shares):.2f} %")


def slopes(runs: list[dict[str, Any]], first: int = 14) -> dict[str, float]:
    """Slope of log mean regret in ln T for each line, from T = e^14 on."""
    found = {}
    for line in dict.fromkeys(run["line"] for run in runs):
        logs = sorted({run["x"] for run in runs if run["line"] == line and run["x"] >= first})
        means = [math.log(band(runs, line, x)[0]) for x in logs]
        if len(logs) > 1:
            found[line] = float(np.polyfit(logs, means, 1)[0])
    return found


def draw(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    titles = {
        "models": "10 actions, 10⁵ clients",
        "core-set": "1,000 actions, 10⁷ clients",
        "horizon": "1,000 actions, ε = 1",
    }
    drawn = {part: title for part, title in titles.items() if results.get(part)}
    if not drawn:
        return
    figure, column = plt.subplots(
        len(drawn), figsize=(4.5, 5.6 * len(drawn)), layout="constrained", squeeze=False
    )
    core_colours = dict(zip(CORE_SET, ("#0072b2", "#d55e00", "black", "#999999"), strict=True))
    for (axis,), (part, title) in zip(column, drawn.items(), strict=True):
        runs = results[part]
        for line in dict.fromkeys(run["line"] for run in runs):
            colour = COLOURS.get(line) or core_colours[line]
            places = [run["x"] for run in runs if run["line"] == line]
            xs = sorted(set(places) - {None})
            if not xs:  # without privacy there is no ε
                mean, low, high = band(runs, line, None)
                axis.axhline(mean, color=colour, linestyle=":", label=line)
                axis.axhspan(low, high, color=colour, alpha=0.08)
                continue
            rows = np.array([band(runs, line, x) for x in xs])
            shown = np.exp(xs) if part == "horizon" else xs
            label = (
                f"{line}: slope {slopes(runs)[line]:.2f}"
                if part == "horizon" and line in slopes(runs)
                else line
            )
            axis.plot(shown, rows[:, 0], "o-", markersize=3.5, color=colour, label=label)
            axis.fill_between(shown, rows[:, 1], rows[:, 2], color=colour, alpha=0.15)
        axis.set(xscale="log", yscale="log", title=title, ylabel="regret")
        axis.set_xlabel("clients T" if part == "horizon" else f"ε (ε0 if local; δ = {DELTA:g} if shuffled)")
        axis.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        axis.grid(alpha=0.3)
    figure.suptitle("Regret of private linear bandits:\nmeans, and bands that hold 80 % of the runs")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parts = ("models", "core-set", "horizon", "digits")
    parser.add_argument("--part", choices=parts, nargs="+", default=list(parts))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {}
    if options.results.exists():
        results = json.loads(options.results.read_text())["results"]
    for part in options.part:
        runs = results.setdefault(part, [])
        done = {(run["line"], run["x"], run["seed"]) for run in runs}
        missing = [task for task in tasks(part, options.seeds) if tuple(task.values()) not in done]
        for count, task in enumerate(tqdm(missing, desc=part), start=1):
            found = recommended(task) if part == "digits" else simulated(part, task)
            runs.append(task | found)
            if count % 20 == 0 or count == len(missing):
                save(results, options.results)
    summary(results)
    draw(results, options.results.with_suffix(".png"))


def save(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Write what there is, one run to a line, by way of another file: a crash never leaves half of one."""
    lines = (
        f'"{part}": [\n' + ",\n".join(json.dumps(run) for run in runs) + "\n]"
        for part, runs in results.items()
    )
    fresh = path.with_suffix(".part")
    fresh.write_text(f'{{"delta": {DELTA:g}, "results": {{\n' + ",\n".join(lines) + "\n}}\n")
    fresh.replace(path)


if __name__ == "__main__":
    main()
