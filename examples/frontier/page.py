"""The page and the picture of a result file; every number of its tables is computed here from its runs.

What the text says of tuning comes from trials.json.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from arms import AGAINST_THE_SERVER, ARMS, DELTA, FILTERS, LOOK_SHARE, NO_EPSILON, Arm
from data import CENSUS_FEATURES
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from training import WEIGHT_NOISE

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reference" / "frontier.md"
PICTURE = HERE / "frontier.png"
FRONT = HERE / "mnist.png"  # for the site's first page
TRIALS = HERE / "trials.json"
LANGUAGE_MODEL = HERE.parent / "lora" / "results.json"
TITLES = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10, recompressed",
    "census": "Census-Income KDD",
}
LEVELS = ("0.5", "1", "1.4", "3", "8")
SEEDS = 5
COSTS_AT = "3"  # ε
ANCHORS = {"mnist": "98.7", "fashion-mnist": "89.7", "cifar10": "67.0; a network on the same features 69.3"}
"""Tramèr, Boneh 2021: ScatterNet features and a linear model, central ε = 3 for add/remove neighbours."""
GOALS = {"mnist": 98.7, "fashion-mnist": 89.5, "cifar10": 67.0}
"""Accuracy that was aimed at for sums without a trusted server at ε = 3."""

_ERRORS = (1, 1.5, 2, 3, 5, 5.5, 6, 7, 10, 12, 15, 20, 25, 30, 35, 40, 50, 60, 70, 85)
"""Errors in per cent that an axis names."""
_LINES = {"central": "--"}
"""How the line of an arm is drawn, where another line would hide it."""

Runs = list[dict[str, Any]]


def write_page(runs: Runs) -> None:
    """Write docs/reference/frontier.md, and the pictures beside the results."""
    draw(runs)
    PAGE.write_text(text(runs))


def chosen(runs: Runs, **wanted: Any) -> Runs:
    """Runs of these values."""
    return [run for run in runs if all(run[key] == value for key, value in wanted.items())]


def accuracy(runs: Runs) -> str:
    """Mean ± standard deviation in per cent, and of how many runs if not of five; a dash for none."""
    if not runs:
        return "—"
    found = [100 * run["accuracy"] for run in runs]
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    count = "" if len(found) == 5 else f" ({len(found)})"
    return f"{statistics.mean(found):.1f}{spread}{count}"


def text(runs: Runs) -> str:
    """The whole Markdown page, from the runs in the results."""
    parts = (_head, _accuracies, _text, _against_the_server, _costs)
    return "\n".join([*(line for part in parts for line in part(runs)), _method(runs)]) + "\n"


def _head(runs: Runs) -> Iterable[str]:
    wanted = (len(ARMS) - 1) * len(LEVELS) * len(TITLES) * SEEDS + len(TITLES) * SEEDS
    missing = (
        f""", or of as many as stand in brackets; —
stands for runs that were not made. {wanted - len(runs)} of {wanted} are missing; the command at the end of
the page makes them"""
        if len(runs) < wanted
        else ""
    )
    yield f"""\
# Accuracy against ε, and whom one has to trust

<!-- Written by examples/frontier/run.py --page from its results.json: edit page.py instead. -->

A linear model on fixed features, trained in seven private ways, called arms, and without privacy. ε is
certified for one whole run, at δ = {DELTA:g}, for **replace-one** neighbours (data sets that differ in one
record) and an observer of every model of the run who does not see which clients took part in a round;
[two arms](#against-the-server) have it against the server, too, which does.
Test accuracy is in per cent, mean ± standard deviation of five runs{missing}. The picture's
vertical axes are logarithmic in the error. Words are in the [glossary](glossary.md).

![accuracy against ε](../../examples/frontier/frontier.png)

The dashed curve of the trusted server, "central Gaussian", lies on that of sums.
"""
    images = list(ANCHORS)
    told = {
        key: ", ".join(accuracy(chosen(runs, data=name, arm=key, target_epsilon=level)) for name in images)
        for key, level in (("sum", "3"), ("one report", "3"), ("none", NO_EPSILON))
    }
    yield f"""\
In short, on {", ".join(TITLES[name].split(",")[0] for name in images)}, at ε = 3: {told["sum"]}
with sums that need no trusted server, {told["one report"]} with one report per client and
round, {told["none"]} without privacy. Sums and the central Gaussian have nearly the same noise;
differences between them are chance. CIFAR-10 is a copy recompressed as JPEG.

The last column has published numbers (Tramèr, Boneh 2021: both orders of scattering, a linear model, a
trusted server) for *add/remove* neighbours. There ε = 3 is weaker than replace-one ε = 3, roughly
replace-one 6: one record moves a sum half as far, so the same ε takes at most half the
noise.{_as_loud(runs)}"""


def _accuracies(runs: Runs) -> Iterable[str]:
    for name, title in TITLES.items():
        mine = chosen(runs, data=name)
        yield from ("", f"## {title}", "")
        if not mine:
            yield "No run yet."
            continue
        published = ["published for add/remove, ε = 3"] if name in ANCHORS else []
        yield "| " + " | ".join(["", *(f"ε = {level}" for level in LEVELS), *published]) + " |"
        yield "|---" * (len(LEVELS) + 1 + len(published)) + "|"
        for key, arm in ARMS.items():
            if key in ("none", *AGAINST_THE_SERVER) or not chosen(mine, arm=key):
                continue
            found = [accuracy(chosen(mine, arm=key, target_epsilon=level)) for level in LEVELS]
            anchor = [ANCHORS[name] if key == "central" else "" for _ in published]
            yield "| " + " | ".join([arm.title, *found, *anchor]) + " |"
        yield ""
        yield f"Without privacy: {accuracy(chosen(mine, arm='none', target_epsilon=NO_EPSILON))}."
        if name in ANCHORS:
            yield from _goal(name, mine)
        if name == "census":
            yield (
                "93.8 % of the records have the commoner label, so that is what a constant reaches, and\n"
                "nearly what a model reaches without a shuffler."
            )
            if any(run["arm"] == "none" for run in mine):
                yield (
                    f"The other arms are within {_behind(mine):.1f} points of a model that is trained "
                    "without privacy."
                )


def _text(runs: Runs) -> Iterable[str]:
    """What another example has measured, which has a page of its own; ``runs`` are not asked."""
    first = chosen(json.loads(LANGUAGE_MODEL.read_text())["runs"], task="sst2", encoder="mpnet", seed=0)
    told = {(run["arm"], run["target_epsilon"]): f"{100 * run['accuracy']:.1f} %" for run in first}
    sums = [f"{text} at ε = {level:g}" for (arm, level), text in told.items() if arm == "sum"]
    yield f"""
## Text

SST-2, by LoRA on a pretrained language model ([its page](language-model.md)), one run each: {", ".join(sums)}
with sums that need no trusted server, and {told["none", None]} without noise."""


def _behind(runs: Runs) -> float:
    """How far all arms but the local one are below a model without privacy at most, rounded up."""
    others = ("local", *AGAINST_THE_SERVER)
    levels = {(run["arm"], run["target_epsilon"]) for run in runs if run["arm"] not in others}
    means = [
        statistics.mean(100 * run["accuracy"] for run in chosen(runs, arm=arm, target_epsilon=level))
        for arm, level in levels
    ]
    free = statistics.mean(100 * run["accuracy"] for run in runs if run["arm"] == "none")
    return math.ceil(10 * (free - min(means))) / 10


def _against_the_server(runs: Runs) -> Iterable[str]:
    yield from ("", "## Against the server", "")
    pairs = {
        (name, level): [chosen(runs, data=name, arm=arm, target_epsilon=level) for arm in AGAINST_THE_SERVER]
        for name in TITLES
        for level in LEVELS
    }
    pairs = {cell: both for cell, both in pairs.items() if all(both)}
    if not pairs:
        yield "No run yet."
        return
    one = next(iter(pairs.values()))[1][0]
    parted, band = one["participations"], one["band"]
    yield f"""\
The server draws the clients of a round, or sees who answers, so that sampling hides nobody from it and each
round that a client is in costs the whole. The ε of these two arms holds against the server, and so against
everybody else who sees no more than sums. Clients take part in turn, {one["cohort"]:,} in each of
{one["rounds"]} rounds and each in at most {parted}. *Independent* sums have noise of their own, each; of
[windows of sums](../guides/flower.md#windows-of-sums), here of up to {band} rounds, no round's own sum is
ever seen. "Noise" is the deviation of a round's sum over the clipping norm; for windows it is that of
independent sums which would disturb the model as much. Features are those of "one report".

| | | independent sums | noise | windows | noise | points gained |
|---|---|---|---|---|---|---|"""
    for (name, level), both in pairs.items():
        means = [statistics.mean(100 * run["accuracy"] for run in each) for each in both]
        told = (part for each in both for part in (accuracy(each), f"{each[0]['deviation_over_clip']:.1f}"))
        title = TITLES[name].split(",")[0]
        yield "| " + " | ".join([title, f"ε = {level}", *told, f"{means[1] - means[0]:+.1f}"]) + " |"
    tried = json.loads(TRIALS.read_text(encoding="utf-8"))["against_the_server"]
    found = {
        (trial["cohort"], trial["rounds"], trial["band"]): trial
        for trial in tried
        if (trial["data"], trial["epsilon"], trial["weight_noise"]) == ("mnist", 1.0, WEIGHT_NOISE)
    }
    alone = max((trial for trial in found.values() if trial["band"] == 1), key=lambda each: each["accuracy"])
    best = max((trial for trial in found.values() if trial["band"] > 1), key=lambda each: each["accuracy"])
    most, least = (f"{100 * trial['accuracy']:.1f} %" for trial in (best, alone))
    yield f"""
Cohort, rounds and band were chosen on MNIST at ε = 1, among {len(found)} with Gaussian noise of that
size ([recorded](../../examples/frontier/trials.json)). Independent sums did best there when all
{alone["cohort"]:,} took part in each of {alone["rounds"]} rounds: {least}, with {alone["participations"]}
reports of every client. Windows reached {most} with {best["participations"]}."""


def _goal(name: str, runs: Runs) -> Iterable[str]:
    """Whether the sums' accuracy at ε = 3 is what was aimed at."""
    found = chosen(runs, arm="sum", target_epsilon="3")
    if found:
        reached = statistics.mean(100 * run["accuracy"] for run in found) >= GOALS[name]
        yield f"{GOALS[name]} was aimed at for sums at ε = 3 and is {'' if reached else 'not '}reached."


def _as_loud(runs: Runs) -> str:
    """Whether noise at ε = 8 here is above that of the published numbers, from runs of a trusted server."""
    less = []
    for name in ANCHORS:
        noise = {
            run["target_epsilon"]: run["deviation_over_clip"]
            for run in chosen(runs, data=name, arm="central")
            if run["target_epsilon"] in ("3", "8")
        }
        if len(noise) == 2:
            less.append(1 - noise["3"] / 2 / noise["8"])
    if not less or min(less) <= 0:
        return ""
    return (
        f" That is at least {math.floor(100 * min(less))} % less\n"
        "than this page's noise at ε = 8: compare with that column."
    )


def _costs(runs: Runs) -> Iterable[str]:
    ours = {
        key: {
            name: chosen(runs, data=name, arm=key, target_epsilon=NO_EPSILON if key == "none" else COSTS_AT)
            for name in TITLES
        }
        for key in ARMS
    }
    yield from ("", "## What a client sends, and whom it trusts", "")
    yield "| | trusts | mechanism | clients in a round × rounds | bytes a round | processor time of a run |"
    yield "|---|---|---|---|---|---|"
    for key, mine in ours.items():
        if not mine["mnist"]:
            continue
        run = mine["mnist"][0]
        cells = (
            ARMS[key].title,
            ARMS[key].trusts,
            run.get("mechanism", "none"),
            f"{run['cohort']:,} × {run['rounds']}",
            f"{run['bytes_per_round']:,}",
            f"{statistics.mean(each['seconds'] for each in mine['mnist']):.0f} s",
        )
        yield "| " + " | ".join(cells) + " |"
    yield from (
        "",
        f"MNIST at ε = {COSTS_AT}. What a client sends in a whole run on average, the first look included:",
        "",
    )
    yield "| bytes a client | " + " | ".join(title.split(",")[0] for title in TITLES.values()) + " |"
    yield "|---" * (1 + len(TITLES)) + "|"
    for key, mine in ours.items():
        sent = [f"{each[0]['bytes_per_client']:,}" if each else "—" for each in mine.values()]
        yield "| " + " | ".join([ARMS[key].title, *sent]) + " |"
    yield from (
        "",
        "A sum's bytes are its counts as they are. A client who shares them out sends 24 bits for each count",
    )
    yield "to one of the servers and a short key to the others ([how](mnist.md#without-a-trusted-server))."


_MIRRORED = "averaged with the mirror image; "
_BESIDE = (
    "scattering of 2 scales and patch features, {} filters at 3 x 3 places, of half the weight; each by "
    "ChannelWhitening by dead leaves, strength 0.5; centred, over root deviation"
)
_GROUPED = "group, 27 groups, centred, over root deviation"


def _trials() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(TRIALS.read_text(encoding="utf-8"))["trials"]
    return found


def _tried(data: str, rows: str) -> list[float]:
    """Accuracies in per cent of one kind of rows at ε = 3 and a usual pace, as in the file."""
    return [
        100 * trial["accuracy"]
        for trial in _trials()
        if (trial.get("data", "mnist"), trial["rows"], trial["cohort"]) == (data, rows, 4096)
        and trial.get("epsilon", 3.0) is not None
        and 29 < trial["pace"] <= 40
    ]


def _gained(data: str, rows: str, before: str) -> float:
    """Points that one kind of rows gains over another."""
    (more,), (less,) = _tried(data, rows), _tried(data, before)
    return more - less


def _method(runs: Runs) -> str:
    places = "places averaged to 4 x 4; "
    mirror = _gained("cifar10", places + _MIRRORED + _GROUPED, places + _GROUPED)
    assert abs(_gained("fashion-mnist", _MIRRORED + _GROUPED, _GROUPED) + mirror) < 0.1
    filters = _gained("cifar10", _MIRRORED + _BESIDE.format(128), _MIRRORED + _BESIDE.format(64))
    assert abs(_gained("mnist", *("upright; " + _BESIDE.format(count) for count in (128, 64)))) < 0.05
    on_mnist = sum("data" not in trial for trial in _trials())
    reports = statistics.mean(
        [run["cohort"] * run["rounds"] / 60_000 for run in chosen(runs, data="mnist", arm="one report")]
        or [math.nan]
    )
    seed = sum(run["seconds"] for run in runs if run["seed"] == 0) / 3600
    return f"""
## How

- **Features.** Images: [scattering coefficients](../guides/features.md) of orders 1 and 2, in 8
  directions, of two scales, and beside them how well the image's
  [patches agree with {FILTERS} random patches](../guides/features.md#patches-compared-with-public-patches)
  of pictures that nobody's data are in, at 3 × 3 places. The arms "one report" and "local" have more noise
  and take fewer features: scattering alone, of three scales. Digits of MNIST are moved to the middle and
  straightened first, each by the mean and the slope of its own ink. On CIFAR-10 scattering is averaged to
  4 × 4 places (two scales) or 2 × 2 (three), and each picture's features are averaged with those of its
  mirror image; the left and the right half of the places of scattering are then equal, and one is kept.
  Census-Income KDD: every attribute with its value (ages in steps of five years, amounts in powers of
  √2) is hashed to one of {CENSUS_FEATURES} columns. All of that is computed from one record alone, so
  no ε is spent on it.
- **Whitening.** [Channels are made less correlated](../guides/features.md#channels-made-less-correlated)
  (with `strength=0.5`) by what they do on 3,000 random pictures of discs that hide one
  another ("dead leaves"), the pictures that the random patches come from, and rows have length one. They
  contain nobody's data, so this costs no ε.
- **A first look**, which is paid for: a noisy sum of every record's features and of their squares,
  through the same mechanism and under the same trust as the gradients, gives the features' means and
  deviations. Each feature's mean is subtracted, and it is divided by the square root of its deviation.
  That sum would cost {100 * LOOK_SHARE:.0f} % of ε by itself; composed with the training it makes the
  noise of the rounds a little larger. The ε of the table is that of both together. Without a
  shuffler this step is left out.
- **Learning rate.** It is chosen so that the noise of all rounds together adds a random error of standard
  deviation {WEIGHT_NOISE:g} to each weight, and so to each output (logit), as rows have norm one.
  `planning.training_recipe` has the same rule with 2 and a constant rate. Without noise the rate is the
  largest that was tried on MNIST.
- **Tuning.** Cohort, rounds, clipping, deviation and the kinds of features were chosen on MNIST, mostly at
  ε = 3, by {on_mnist} trials on its test set ([recorded](../../examples/frontier/trials.json)) with
  Gaussian noise of the mechanisms' size, and are the same for every data set and ε, with four exceptions.
  So MNIST's numbers are a little optimistic.
  Straightening is for handwriting. Mirroring is for photographs: it was tried on the test sets of CIFAR-10,
  where it gained {mirror:.1f} points, and of Fashion-MNIST, where it lost as much at that learning rate and
  is not used. Patches were added because scattering fell short on CIFAR-10 and Fashion-MNIST, and were first
  tried on their test sets. On MNIST patches change accuracy little. 64 and 128 filters are equally good on
  MNIST; 128 is {filters:.1f} points better on CIFAR-10. The census has columns of its own. All trials on
  other data sets than MNIST are in the same file. These choices are not in ε.
- **No network.** A linear model is trained everywhere. The network of Opacus's example comes to less on MNIST
  with the same ε ([measured](mnist.md#the-network-of-opacuss-example)), and no other was tried.
- **Training.** Momentum 0.9, a learning rate that falls linearly to zero, and the average of the last
  tenth of the models. Each round draws its cohort without replacement, independently of other rounds; in
  the arms against the server and without a shuffler clients take part in turn.
- **The privacy path is the package's own.** With one report, sums and no shuffler each gradient goes
  through `randomize_sum` of the mechanism, or `share`, `common_noise` and `estimate` of the sum, as in
  `opacus_shuffle`. Only automatic differentiation is left out: a linear model's gradients are outer
  products. The data are public and this is a simulation: cohorts, and the noise of the trusted server,
  are drawn from published seeds, which must be secret in a real run.
- **One report**: `blanket-mixed-gaussian`, which has the least error of all mechanisms at an ε after
  shuffling; `shuffle_plugins.planning.plan` finds its ε0. A client sends one report in each round it is
  drawn for; a client of MNIST is drawn {reports:.0f} times on average. Twice as many reports would have less
  noise, by the planner's numbers, and take twice the time to train.
- **As a seed**: the same with `blanket-mixed-gaussian-seed`. The sum of a round is drawn from the reports'
  law, as in Opacus; that clients who search get sums with the same error
  [is measured](benchmarks.md#mechanisms-mechanismspy).
- **Local**: nearly every client reports once, at ε0 = ε, in one of 30 rounds of disjoint cohorts. Its
  settings were not tuned.
- **CIFAR-10** is a copy recompressed as JPEG; numbers on the original may differ.

```sh
python examples/frontier/run.py --data-dir DIR     # goes on after the last finished run
python examples/frontier/run.py --data-dir DIR --only mnist --arms central --epsilon 3 --seeds 1
python examples/frontier/run.py --page
```

The features of a data set are computed first. That takes minutes, and they are kept when they are
complete, in the folder features of DIR if `--cache` names no other. One seed of everything takes {seed:.1f}
hours of processor time."""


def draw(runs: Runs) -> None:
    """A panel for each data set that has runs, below each other for narrow screens, and MNIST's alone."""
    present = [name for name in TITLES if chosen(runs, data=name)]
    if not present:
        return
    figure, panels = plt.subplots(len(present), figsize=(4.5, 3.2 * len(present) + 1.6), squeeze=False)
    for (panel,), name in zip(panels, present, strict=True):
        _draw_panel(panel, chosen(runs, data=name), ARMS)
        panel.set(title=TITLES[name], xlabel="certified ε", ylabel="test accuracy, %")
    figure.tight_layout(rect=(0, 1.6 / figure.get_figheight(), 1, 1))
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", frameon=False)
    figure.savefig(PICTURE, dpi=130)
    plt.close(figure)
    figure, panel = plt.subplots(figsize=(4.5, 3.6), layout="constrained")
    _draw_panel(panel, chosen(runs, data="mnist"), {key: ARMS[key] for key in ("sum", "one report", "local")})
    panel.set(xlabel="certified ε", ylabel="test accuracy, %")
    figure.legend(loc="outside lower center", frameon=False)
    figure.savefig(FRONT, dpi=130)
    plt.close(figure)


def _draw_panel(panel: Axes, mine: Runs, arms: dict[str, Arm]) -> None:
    """Of one data set, logarithmic in the error: arms differ by factors."""
    for key, arm in arms.items():
        points = [
            (float(level), [100 * run["accuracy"] for run in chosen(mine, arm=key, target_epsilon=level)])
            for level in LEVELS
        ]
        points = [(level, found) for level, found in points if found]
        if points:
            levels, found = zip(*points, strict=True)
            means = [statistics.mean(each) for each in found]
            spread = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in found]
            panel.errorbar(
                levels,
                [100 - mean for mean in means],
                yerr=spread,
                marker="o",
                markersize=4,
                ls=_LINES.get(key, "-"),
                color=f"C{list(ARMS).index(key)}",
                label=arm.title,
            )
    free = chosen(mine, arm="none")
    if free:
        panel.axhline(
            100 - 100 * statistics.mean(run["accuracy"] for run in free),
            color="grey",
            ls=":",
            label="no privacy",
        )
    panel.set_xscale("log")
    panel.set_xticks([float(level) for level in LEVELS], LEVELS)
    panel.set_yscale("log")
    panel.invert_yaxis()
    least, most = sorted(panel.get_ylim())
    errors: list[float] = []
    for error in (each for each in _ERRORS if least <= each <= most):
        if not errors or math.log(error / errors[-1]) > 0.07 * math.log(most / least):
            errors.append(error)
    panel.set_yticks(errors, [f"{100 - error:g}" for error in errors])
    panel.minorticks_off()
    panel.grid(alpha=0.3)
