"""Training in Opacus: recipes, what tuning reaches, and a step's time."""

from __future__ import annotations

from typing import Any

from measured.mnist import SEEDS, frontier
from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.core import rounded

OPACUS = "docs/guides/opacus.md"
BENCHMARKS = "docs/reference/benchmarks.md"
GPU = "docs/guides/gpu.md"

_DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "digits": "scikit-learn's digits"}
_ARMS = {"vector-sum": "sum", "privunit": "one report"}


def share(value: float) -> str:
    """A share in [0, 1] in per cent, with one digit after the point."""
    return f"{100 * value:.1f} %"


def _recipes(task: str, randomizer: str, target: float = 2.93) -> list[dict[str, Any]]:
    wanted = (task, randomizer, target)
    return [
        run
        for run in result("examples/mnist_recipes")
        if (run["task"], run["randomizer"], run["target_epsilon"]) == wanted
    ]


def _tuned(data: str, model: str, randomizer: str, target: float) -> str | None:
    """The best that tuning found; None while the frontier is run anew."""
    if data == "digits":
        return "—"
    if model == "network":
        return share(_recipes("MNIST, cnn", randomizer)[0]["accuracy"])
    wanted = (data, _ARMS[randomizer], f"{target:g}")
    found = [
        run["accuracy"] for run in frontier() if (run["data"], run["arm"], run["target_epsilon"]) == wanted
    ]
    return share(sum(found) / SEEDS) if len(found) == SEEDS else None


def untuned_rows() -> list[str]:
    """Lines of the table of runs without tuning, of which the tuned column may be in the making."""
    groups: dict[tuple[str, str, str, float], list[float]] = {}
    for run in result("examples/untuned"):
        key = (run["data"], run["model"], run["randomizer"], run["target_epsilon"])
        groups.setdefault(key, []).append(run["accuracy"])
    lines = []
    for (data, model, randomizer, target), reached in groups.items():
        runs = f" ({len(reached)} runs)" if len(reached) > 1 else ""
        line = (
            f"| {_DATA[data]}, {model} | `{randomizer}` | {target:g} | "
            f"**{share(sum(reached) / len(reached))}**{runs} |"
        )
        tuned = _tuned(data, model, randomizer, target)
        lines.append(line if tuned is None else f"{line} {tuned} |")
    return lines


_LINEAR = (
    ("mnist", 200, 1.0),
    ("mnist", 200, 4.0),
    ("mnist", 200, 16.0),
    ("mnist", 200, 64.0),
    ("mnist", 50, 4.0),
    ("mnist", 600, 4.0),
    ("fashion-mnist", 200, 2.0),
    ("fashion-mnist", 200, 16.0),
)


def _by_deviation(**wanted: object) -> dict[float, float]:
    return {
        run["deviation"]: run["accuracy"]
        for run in result("benchmarks/learning_rate")
        if all(run[name] == value for name, value in wanted.items())
    }


def learning_rate() -> str:
    """Accuracy by the deviation that noise gives each output."""
    rows, deviations = [], (0.5, 1.0, 2.0, 4.0, 8.0)
    for data, steps, ratio in _LINEAR:
        found = _by_deviation(data=data, model="linear", steps=steps, ratio=ratio)
        what = f"{_DATA[data]}, {steps} steps, signal-to-noise ratio {ratio:g}"
        rows.append((what, *(share(found[each]) for each in deviations)))
    head = ("deviation that the noise of the run gives each output", *(f"{each:g}" for each in deviations))
    return table(head, rows)


def learning_rate_of_a_network() -> str:
    """The same in a sentence."""
    parts = []
    for ratio in (1.25, 5.6):
        found = _by_deviation(model="network", ratio=ratio)
        reached = ", ".join(f"{100 * found[each]:.1f}" for each in (0.03, 0.1, 0.3))
        parts.append(f"{reached} % at a ratio of {ratio:g}")
    return ", and ".join(parts)


def by_ratio() -> str:
    """Accuracy by the signal-to-noise ratio of a whole run."""
    found: dict[int, dict[float, float]] = {}
    for row in result("benchmarks/mnist_tuning")["by_ratio"]:
        found.setdefault(row["rounds"], {})[row["ratio_over_the_run"]] = row["accuracy"]
    ratios = sorted(next(iter(found.values())))
    return table(
        ("ratio over the run", *(f"{ratio:g}" for ratio in ratios)),
        (
            (f"in {rounds} steps", *(f"{100 * of[ratio]:.0f} %" for ratio in ratios))
            for rounds, of in found.items()
        ),
    )


def recipes() -> str:
    """The two recipes beside each other."""
    tuning = result("benchmarks/mnist_tuning")["runs"]

    def column(randomizer: str) -> tuple[str, ...]:
        runs = _recipes("MNIST, features", randomizer)
        (less,) = _recipes("MNIST, features", randomizer, 1.0)
        run = runs[-1]
        best = max(
            each["accuracy"] for each in tuning if (each["route"], each["epsilon"]) == (randomizer, 2.93)
        )
        timed = [each["processor_seconds"] for each in (*runs, less) if "processor_seconds" in each]
        epochs = run["num_steps"] * run["batch_size"] // 60_000
        reached = ", ".join(share(each["accuracy"]) for each in runs)
        return (
            f'`"{randomizer}"`',
            f"{run['batch_size']:,}, {run['num_steps']} ({epochs} epochs)",
            f"{run['learning_rate']:g}, {run['momentum']:g}, {run['max_grad_norm']:g}",
            f"{run['signal_to_noise_ratio']:.2g}",
            f"**{reached}**" + (" (two runs)" if len(runs) == 2 else ""),
            share(less["accuracy"]),
            share(best),
            f"{timed[0]:.0f} s",
        )

    names = (
        "`randomizer`",
        "`batch_size` (k), `num_steps`",
        "`lr`, `momentum`, `max_grad_norm`",
        "signal-to-noise ratio of a step, at most (ε = 2.93)",
        "**test accuracy at certified ε ≤ 2.93**",
        "test accuracy at certified ε ≤ 1.0",
        "best of the tuning grid at ε = 2.93",
        "processor time of the steps",
    )
    return table(
        ("", "one report per sample", "sum"),
        zip(names, column("privunit"), column("vector-sum"), strict=True),
    )


def optimizer_step() -> str:
    """`step()` alone, every randomizer of vectors."""
    found = result("benchmarks/optimizer_step")
    small, large = (found[size]["steps"] for size in ("small", "large"))

    def name(key: str) -> str:
        if key == "opacus DPOptimizer":
            return "Opacus `DPOptimizer`"
        mechanism, _, frame = key.partition(", ")
        return f"`{mechanism}`" + (f", {frame}" if frame else "")

    def cell(step: dict[str, Any]) -> str:
        ratio = step["ratio_to_opacus"]
        return f"{step['median_ms']:,.0f} ms, **{ratio:.{2 if ratio < 20 else 0}f}×**"

    heads = (
        f"{found[size]['dim']:,} parameters, {found[size]['batch']} samples" for size in ("small", "large")
    )
    order = sorted(small, key=lambda key: (key != "opacus DPOptimizer", small[key]["ratio_to_opacus"]))
    return table(("", *heads), ((name(key), cell(small[key]), cell(large[key])) for key in order))


def training_step() -> str:
    """A whole step on a GPU."""
    found = result("benchmarks/training_step")
    ratios = found["ratio_to_opacus"]
    names = sorted((name for name in ratios if name != "opacus"), key=ratios.__getitem__)

    def times(ratio: float) -> str:
        return f"{ratio:.2f}×" if ratio < 1 else f"{ratio:.1f}×"

    return table(
        ("Opacus's own noise", *(f"`{name}`" for name in names)),
        [(f"{found['median_ms']['opacus']:.0f} ms, 1×", *(times(ratios[name]) for name in names))],
    )


TABLES: Tables = {
    OPACUS: {"rule": learning_rate, "ratio": by_ratio, "recipes": recipes},
    BENCHMARKS: {"optimizer step": optimizer_step},
    GPU: {"training step": training_step},
}


def sentences() -> Sentences:
    """Pieces of text with what training reached."""
    report, total = (_recipes("MNIST, cnn", name)[0] for name in ("privunit", "vector-sum"))
    plain = next(run for run in result("examples/mnist_recipes") if run["task"] == "MNIST, features")
    steps = result("benchmarks/optimizer_step")
    ratios = {
        name: [steps[size]["steps"][name]["ratio_to_opacus"] for size in ("small", "large")]
        for name in ("vector-sum", "privunit", "linf-coordinate")
    }

    def spread(name: str) -> str:
        return f"{min(ratios[name]):.1f} to {max(ratios[name]):.1f} times"

    first, last = ratios["vector-sum"]
    return {
        OPACUS: [
            *untuned_rows(),
            learning_rate_of_a_network(),
            f"privunit with local_epsilon={plain['ε0 of one gradient']:.4g}",
            f"at most {plain['signal_to_noise_ratio']:.3g} in a step",
            f"cost of a step beside Opacus's | {spread('privunit')} | {spread('linf-coordinate')}",
            f"{first:.1f} times Opacus's step at 50,890 parameters and 256 samples, "
            f"{last:.1f} times at a million and 32",
            f"100 steps | {rounded(report['epsilon_certified'], up=True)} | {share(report['accuracy'])} |",
            f"200 steps | {rounded(total['epsilon_certified'], up=True)} | {share(total['accuracy'])} |",
            f"took {report['processor_seconds']:.0f} s and "
            f"{total['processor_seconds']:.0f} s of processor time",
            f"signal-to-noise ratio of {report['signal_to_noise_ratio']:.3g} in a step",
        ],
    }
