"""Training in Opacus: recipes, what tuning reaches, and a step's time."""

from __future__ import annotations

import math
from typing import Any

from measured.parts import SEEDS, Sentences, Tables, frontier, result, table
from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.core import rounded
from shuffle_plugins.mechanisms import registry

OPACUS = "docs/guides/opacus.md"
MNIST = "docs/reference/mnist.md"
BENCHMARKS = "docs/reference/benchmarks.md"

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
    OPACUS: {"ratio": by_ratio},
    MNIST: {"recipes": recipes},
    BENCHMARKS: {"optimizer step": optimizer_step, "rule": learning_rate, "training step": training_step},
}


def _run_cost(mechanism: str, local_epsilon: float, num_steps: int) -> float:
    """Certified ε of so many steps of 6,000 of MNIST's 60,000 samples."""
    blanket = (
        None
        if mechanism == "generic"
        else registry.blanket(mechanism, local_epsilon=local_epsilon, dim=6_120)
    )
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=local_epsilon,
            population=60_000,
            cohort=6_000,
            mechanism=mechanism,
            blanket=blanket,
            channel_fixed=True,
        ),
        num_steps=num_steps,
    )
    return accountant.epsilon(1e-5, lower=False).upper


def _unused() -> str:
    """What a run costs whose noise was set by hand."""
    return rounded(_run_cost("privunit", 4.0, 50), up=True, digits=2)


def _computed() -> list[str]:
    """A sentence on what the bit of adaptive clipping costs."""
    worst, own = (f"{math.ceil(100 * _run_cost(who, 4.0, 200)) / 100:.2f}" for who in ("generic", "privunit"))
    return [f"at ε0 = 4 cost {worst} instead of `privunit`'s {own} at δ = 1e-5"]


def _untuned() -> dict[tuple[str, str, float], dict[str, Any]]:
    """Runs on MNIST without tuning, by model, randomizer and target ε."""
    return {
        (run["model"], run["randomizer"], run["target_epsilon"]): run
        for run in result("examples/untuned")
        if run["data"] == "mnist"
    }


def without_tuning() -> str:
    """How much better a linear model on fixed features does than a network."""
    runs = _untuned()
    better = {
        name: 100 * (runs["linear", name, 3.0]["accuracy"] - runs["network", name, 3.0]["accuracy"])
        for name in ("vector-sum", "privunit")
    }
    return f"by {better['vector-sum']:.0f} points with a sum and by {better['privunit']:.0f} with one report"


def _compared() -> list[str]:
    """Sentences that compare recorded runs."""
    untuned, names = _untuned(), ("vector-sum", "privunit")
    longest = {
        name: max(untuned["linear", name, target]["processor_seconds"] for target in (3.0, 1.0))
        for name in names
    }
    (report, *_), (total, *_) = (_recipes("MNIST, features", name) for name in ("privunit", "vector-sum"))
    louder = total["signal_to_noise_ratio"] / report["signal_to_noise_ratio"]
    whole = report["signal_to_noise_ratio"] * math.sqrt(report["num_steps"])
    printed = [_recipes("MNIST, cnn", name)[0] for name in ("privunit", "vector-sum")]
    moved = [
        f"{run['learning_rate'] * run['max_grad_norm'] / (1 - run['momentum']):.0f}"
        for run in (report, total, *printed)
    ]
    reached = [share(untuned["linear", name, 3.0]["accuracy"]) for name in names]
    return [
        f"reached on MNIST, at ε = 3, {reached[0]} with a sum and {reached[1]} with one report",
        f"training took {longest['vector-sum']:.0f} s of processor time (`vector-sum`) or "
        f"{longest['privunit']:.0f} s (`privunit`)",
        f"in a step, {whole:.3g} over 200 steps",
        f"{moved[0]} for reports and {moved[1]} for sums in the recipes",
        f"{moved[2]} and {moved[3]} for the convolutional network",
        without_tuning(),
        f"one report per sample has {_NUMBERS[round(louder)]} times as much in the recipes",
    ]


def _recipes_on_mnist() -> list[str]:
    """Sentences beside the two recipes, and on the network of Opacus's example."""
    untuned, names = _untuned(), ("privunit", "vector-sum")
    report, total = printed = [_recipes("MNIST, cnn", name)[0] for name in names]
    fewest, most = sorted(
        untuned["network", run["randomizer"], 3.0]["batch_size"]
        * untuned["network", run["randomizer"], 3.0]["num_steps"]
        / (run["batch_size"] * run["num_steps"])
        for run in printed
    )
    tuning = [each for each in result("benchmarks/mnist_tuning")["runs"] if each["epsilon"] == 2.93]
    cohorts, rounds = ([each[key] for each in tuning] for key in ("cohort", "rounds"))
    trusted = result("examples/mnist_vector_sum")
    (central,) = trusted["runs"]["central Gaussian"]
    network = {name: share(untuned["network", name, 3.0]["accuracy"]) for name in names}
    return [
        f"uses little of the target, ε = {_unused()}, and ends",
        f"they take {_NUMBERS[round(fewest)]} to {_NUMBERS[round(most)]} times as many samples",
        f"reached [{share(central['accuracy'])}](#without-a-trusted-server) at the same "
        f"ε in {central['rounds']} steps of {trusted['settings']['cohort']:,} samples",
        f"reach {network['vector-sum']} with a sum and {network['privunit']} with one report, at ε = 3",
        f"k of {min(cohorts):,} to {max(cohorts):,}, {min(rounds)} to {max(rounds)} steps",
        f"100 steps | {rounded(report['epsilon_certified'], up=True)} | {share(report['accuracy'])} |",
        f"200 steps | {rounded(total['epsilon_certified'], up=True)} | {share(total['accuracy'])} |",
        f"took {report['processor_seconds']:.0f} s and {total['processor_seconds']:.0f} s of processor time",
        f"signal-to-noise ratio of {report['signal_to_noise_ratio']:.3g} in a step",
    ]


def _digits() -> str:
    """What the main job reaches."""
    runs = result("examples/opacus_digits")
    reached = [run["accuracy"] for run in runs]
    (epsilon,) = {rounded(run["epsilon_certified"], up=True, digits=3) for run in runs}
    assert len({run["seed"] for run in runs}) == len(runs) == 20
    return f"a table: {100 * min(reached):.0f} to {100 * max(reached):.0f} %, in 20 runs, at ε = {epsilon}."


_NUMBERS = {2: "two", 3: "three", 6: "six", 7: "seven", 8: "eight", 10: "ten"}


def _start_pages() -> Sentences:
    """What the quick starts' runs reached, from the least to the largest."""
    found = result("examples/start_pages")
    plain, total, report = zip(*found["opacus"], strict=True)
    (clients,) = zip(*found["flower"], strict=True)
    words = f"in {_NUMBERS[len(plain)]} runs"
    return {
        "docs/start/opacus.md": [
            f'print(f"{said} # {100 * min(runs):.0f} to {100 * max(runs):.0f} % {words}'
            for said, runs in (
                ('without privacy: {accuracy(model):.0%}")', plain),
                ('with privacy: {accuracy(model):.0%}")', total),
            )
        ]
        + [f"# {100 * min(report):.0f} to {100 * max(report):.0f} % {words}"],
        "docs/start/flower.md": [f"# accuracy: {min(clients):.2f} to {max(clients):.2f} {words}"],
    }


def sentences() -> Sentences:
    """Pieces of text with what training reached."""
    plain = next(run for run in result("examples/mnist_recipes") if run["task"] == "MNIST, features")
    return {
        "README.md": [_digits()],
        OPACUS: [
            *_computed(),
            *_compared(),
            f"privunit with local_epsilon={plain['ε0 of one gradient']:.4g}",
            f"at most {plain['signal_to_noise_ratio']:.3g} in a step",
        ],
        BENCHMARKS: [*untuned_rows(), learning_rate_of_a_network()],
        MNIST: _recipes_on_mnist(),
        **_start_pages(),
    }
