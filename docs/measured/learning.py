"""Bandits and personalised models: what they reach."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from measured.parts import ROOT, Sentences, Tables, result, table
from shuffle_plugins.bandits import ShuffledModel, published_local_epsilon
from shuffle_plugins.core import rounded

BANDITS = "docs/guides/bandits.md"
MEASURED = "docs/reference/benchmarks.md"
FLOWER = "docs/guides/flower.md"
_NUMBERS = {8: "eight"}


@cache
def _mean(part: str, line: str, x: float | None, key: str = "regret") -> float:
    """Mean over the seeds of a bandit's runs."""
    runs = result("examples/bandits")["results"][part]
    return float(np.mean([run[key] for run in runs if (run["line"], run["x"]) == (line, x)]))


def models() -> str:
    """Regret by ε of every model of trust."""
    lines = ("central", "shuffled", "shuffled, one bit", "shuffled, closed form", "local", "local, one bit")
    levels = (0.1, 0.3, 0.5, 1.0, 3.0)
    return table(
        ("", *(f"{x:g}" for x in levels)),
        ((line, *(f"{_mean('models', line, x):,.0f}" for x in levels)) for line in lines),
    )


_CORE = (
    ("core set", "central, core set", "not private, core set"),
    ("all actions", "central, all actions", "not private, all actions"),
)
_CORE_LEVELS = (0.01, 0.05, 0.3, 1.0)


def core_set() -> str:
    """Regret with and without a core set."""
    return table(
        ("", *(f"{x:g}" for x in _CORE_LEVELS), "without privacy"),
        (
            (
                title,
                *(f"{_mean('core-set', line, x):,.0f}" for x in _CORE_LEVELS),
                f"{_mean('core-set', plain, None):,.0f}",
            )
            for title, line, plain in _CORE
        ),
    )


_LINES = ("central", "shuffled", "shuffled, one bit", "local", "local, one bit", "not private")


def _batches() -> list[str]:
    """The ε0 of batches of one-bit reports."""
    privacy = ShuffledModel(epsilon=0.5, delta=1e-6, mechanism="binary-rr")

    def down(value: float | None) -> str:
        assert value is not None
        return rounded(value, up=False, digits=3)

    few, many = (down(privacy.noise(reports).local_epsilon) for reports in (4_830, 40_200))
    closed = down(published_local_epsilon(epsilon=0.5, delta=1e-6, reports=40_000))
    return [
        f"The accountant finds ε0 = {few} for a batch of 4,830 one-bit reports at ε = 0.5, δ = 1e-6, and "
        f"{many} for 40,200",
        f"solved for ε0): {closed} for 40,000",
    ]


def _crossing() -> tuple[list[str], list[str]]:
    """From which ε on playing all actions is better than a core set, for the guide and the measurements."""
    levels = sorted({run["x"] for run in result("examples/bandits")["results"]["core-set"]} - {None})
    better = [
        x
        for x in levels
        if _mean("core-set", "central, all actions", x) < _mean("core-set", "central, core set", x)
    ]
    last = max(set(levels) - set(better))
    assert last < min(better)
    return [f"from ε = {min(better):g} on, playing a few outermost actions"], [
        f"could not be reproduced above ε = {last:g}"
    ]


def _bandits() -> list[str]:
    runs: list[dict[str, Any]] = result("examples/bandits")["results"]["digits"]
    first = runs[0]

    def right(line: str) -> float:
        return 100 * float(np.mean([run["right"] for run in runs if run["line"] == line]))

    return [
        f"Without privacy {_mean('models', 'not private', None):,.0f}.",
        f"{first['policies']} policies, the best right for {100 * first['best']:.1f} % of clients, "
        f"their mean for {100 * first['even']:.1f} %",
        f"(means of {len({run['seed'] for run in runs})} runs): "
        + ", ".join(f"{line} {right(line):.1f} %" for line in _LINES)
        + ".",
    ]


def _personal_runs() -> ModuleType:
    """The experiment's own script."""
    examples = str(ROOT / "examples")
    if examples not in sys.path:
        sys.path.append(examples)
    return importlib.import_module("adaped_mnist")


def personal_models() -> str:
    """Test accuracies by method and ε, as the experiment's own script writes them."""
    found: str = _personal_runs().table(result("examples/adaped_mnist"))
    return found


def _personalized() -> list[str]:
    found = result("examples/adaped_mnist")
    final, tuned = found["runs"].values(), found["tuning"]["runs"].values()

    def of(runs: Any, *kind: str | float | None, rounds: int | None = None) -> list[dict[str, Any]]:
        return [
            run
            for run in runs
            if (run["method"], run["accounting"], run["epsilon"]) == kind and rounds in (None, run["rounds"])
        ]

    (local,) = of(final, "local", "none", None, rounds=60)
    levels = sorted({run["epsilon"] for run in final if run["epsilon"] is not None})
    apart = [
        100 * (run["accuracy"] - local["accuracy"])
        for epsilon in levels
        for run in of(final, "adaped", "certified", epsilon)
    ]
    alike = [
        100 * run["global_accuracy"]
        for epsilon in levels
        for run in of(final, "adaped", "certified", epsilon)
    ]
    (alone,) = of(final, "adaped", "alone", None)
    first = max(run["accuracy"] for run in of(tuned, "local", "none", None, rounds=60))
    chosen = [
        100 * (max(run["accuracy"] for run in of(tuned, "adaped", "certified", epsilon)) - first)
        for epsilon in levels
    ]
    script = _personal_runs()
    return [
        f"({len(script.measured())} runs, of which {_NUMBERS[len(found['runs'])]} are in the table",
        f"there are {max(run['rounds'] for run in final)} rounds, or "
        f"{min(run['rounds'] for run in final)} where tuning preferred that",
        f"between {-min(apart):.2f} points worse and {max(apart):.2f} points better than 600 steps",
        f"it was {min(chosen):.2f} to {max(chosen):.2f} points better",
        f"classifies {min(alike):.0f} to {max(alike):.0f} % of the images correctly",
        f"reaches {100 * alone['accuracy']:.2f} %, more than with any certified μ",
        f"all {len(found['runs']) + len(found['tuning']['runs'])} runs",
    ]


def untuned() -> str:
    """What the recipe without tuning reaches in Flower."""
    runs = result("examples/flower_untuned")

    def row(randomizer: str) -> tuple[str, ...]:
        every = [run for run in runs if run["randomizer"] == randomizer]
        (printed,) = (run for run in every if run["factor"] == 1.0)
        tuned = f"{100 * max(run['accuracy'] for run in every):.1f} %" if len(every) > 1 else "—"
        return (
            "MNIST",
            f"`{randomizer}`",
            f"{printed['signal_to_noise_ratio']:.2f}",
            f"**{100 * printed['accuracy']:.1f} %**",
            tuned,
        )

    return table(
        ("data", "`RANDOMIZER`", "signal-to-noise ratio of a round, at most", "as printed", "tuned"),
        (row(each) for each in ("vector-sum", "privunit")),
    )


TABLES: Tables = {
    MEASURED: {"personal models": personal_models, "models": models, "core set": core_set},
    FLOWER: {"without tuning": untuned},
}


def sentences() -> Sentences:
    """Pieces of text with regrets and accuracies."""
    factors = sorted({run["factor"] for run in result("examples/flower_untuned")} - {1.0})
    words = {0.25: "1/4", 0.5: "1/2", 2.0: "2", 4.0: "4"}
    advice, reproduced = _crossing()
    tried = ", ".join(words[each] for each in factors[:-1]) + f" and {words[factors[-1]]}"
    return {
        BANDITS: advice,
        MEASURED: [*_personalized(), *_bandits(), *_batches(), *reproduced],
        FLOWER: [f"learning rates 1 and {tried} times the recommended one"],
    }
