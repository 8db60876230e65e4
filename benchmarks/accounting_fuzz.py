"""Random questions to the accountant: order, monotonicity, agreement of ε and δ, and processor time.

Settings are drawn, from a seed, over ε0 in [1e-6, 50], up to 10^12 clients and 10^9 rounds, δ from 1e-18,
every sampling, both adversaries, all registered one-message mechanisms, alone or two or three in turn. What
must hold is checked by :func:`check`; the slowest answers are listed.

Usage: python benchmarks/accounting_fuzz.py [--seed N] [--seconds S] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from shuffle_plugins.accounting import Blanket, ShuffleAccountant, ShuffleRound, compare
from shuffle_plugins.mechanisms import registry

RESULTS = Path(__file__).parent / "results" / "accounting_fuzz.json"
MECHANISMS = {
    "generic": 1,
    "binary-rr": 1,
    "k-rr": 3,
    "hadamard-response": 50,
    "limited-hadamard": 50,
    "subset-selection": 50,
    "local-hashing": 50,
    "rappor": 50,
    "oue": 50,
    "privunit": 100,
    "linf-coordinate": 100,
    "l1-hadamard": 64,
    "laplace": 1,
    "discrete-laplace": 1,
    "l2-block": 100,
}
"""Names, each with a dimension or a number of categories."""
RISING = ("generic", "binary-rr", "k-rr")
"""Mechanisms that only cost more at a larger ε0: others change with it in whole steps."""
SCHEMES: dict[str, dict[str, Any]] = {
    "full": {},
    "k of n": {"sampling": "without-replacement"},
    "before the server": {"sampling": "without-replacement", "adversary": "server"},
    "poisson": {"sampling": "poisson"},
    "poisson, server": {"sampling": "poisson", "adversary": "server"},
    "received": {"sampling": "poisson"},
    "single pass": {"sampling": "single-pass"},
    "check-in": {"sampling": "check-in"},
    "check-in, server": {"sampling": "check-in", "adversary": "server"},
    "epoch": {"sampling": "epoch"},
    "epoch, server": {"sampling": "epoch", "adversary": "server"},
}
WIDTH = 2e-2  # relative: numerical widths of long histories; a larger fall of an upper end is a finding
PUBLISHED_EVERY = 8  # settings; published bounds take long
History = list[tuple[ShuffleRound, int]]


def draw_round(rng: random.Random, *, most: float = 12.0) -> tuple[str, ShuffleRound]:
    """A scheme's name and a round of it, of up to ten to the power of ``most`` clients."""
    while True:
        name, dim = rng.choice(list(MECHANISMS.items()))
        scheme = rng.choice(list(SCHEMES))
        population = int(10 ** rng.uniform(0, most))
        cohort = max(1, int(population * 10 ** rng.uniform(-6, 0)))
        if scheme == "full":
            cohort = population
        size: float = float(cohort) if SCHEMES[scheme].get("sampling") in ("poisson", "check-in") else cohort
        try:
            found = make_round(
                name,
                dim,
                local_epsilon=10 ** rng.uniform(-6, math.log10(50)),
                population=population,
                cohort=size,
                **SCHEMES[scheme],
            )
        except ValueError:  # a mechanism that is not made for this ε0
            continue
        return scheme, found.received(cohort) if scheme == "received" else found


def make_round(name: str, dim: int, *, local_epsilon: float, **fields: Any) -> ShuffleRound:
    """A round of a mechanism."""
    if name == "generic":
        return ShuffleRound(local_epsilon=local_epsilon, **fields, channel_fixed=True)
    blanket: Blanket = registry.blanket(name, local_epsilon=local_epsilon, dim=dim)
    return ShuffleRound(
        local_epsilon=local_epsilon, mechanism=name, blanket=blanket, **fields, channel_fixed=True
    )


def accountant_of(history: History) -> ShuffleAccountant:
    """A shuffle accountant that holds the rounds of ``history``, each as often as it says."""
    accountant = ShuffleAccountant()
    for each, steps in history:
        accountant.step(each, num_steps=steps)
    return accountant


def dearer(rng: random.Random, history: History, delta: float, scheme: str) -> tuple[str, History, float]:
    """What was changed, and a question whose true answer is no smaller."""
    each, steps = history[-1]
    factor = 1 + 10 ** rng.uniform(-3, 0.5)
    changes = ["delta", "steps"]
    if each.mechanism in RISING and each.local_epsilon * factor <= 50:
        changes.append("local epsilon")
    if scheme in ("full", "k of n", "before the server", "received") and each.cohort > 1:
        changes.append("cohort" if each.sees_cohort or scheme == "full" else "population")
    change = rng.choice(changes)
    if change == "delta":
        return change, history, delta / factor
    if change == "steps":
        return change, [*history[:-1], (each, min(math.ceil(steps * factor), 10**9))], delta
    if change == "local epsilon":
        dim = MECHANISMS[each.mechanism]
        fields = {name: getattr(each, name) for name in ("population", "cohort", "sampling", "adversary")}
        fields["cohort"] = each.cohort if isinstance(each.cohort, int) else _whole(each.cohort)
        changed = make_round(each.mechanism, dim, local_epsilon=each.local_epsilon * factor, **fields)
    elif change == "cohort":  # fewer hide among themselves: Lemma 5 (ii)
        fewer = max(1, int(each.cohort / factor))
        changed = replace(each, cohort=fewer, population=fewer if scheme == "full" else each.population)
    else:  # a larger rate of as many reports: Lemma 5 (i)
        changed = replace(each, population=max(int(each.cohort), int(each.population / factor)))
    return change, [*history[:-1], (changed, steps)], delta


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def check(history: History, delta: float, other: tuple[str, History, float]) -> Iterator[tuple[str, str]]:
    """(kind, message) of what does not hold. "wrong" contradicts a certified bound; "loose" does not."""
    accountant = accountant_of(history)
    found = accountant.epsilon(delta)
    pure = math.fsum(each.local_epsilon * steps for each, steps in history)
    if not 0 <= found.lower <= found.upper <= pure * (1 + 1e-9):
        yield "wrong", f"order: {found.lower} <= {found.upper} <= {pure}"
    at_upper, at_lower = accountant.delta(found.upper), accountant.delta(found.lower)
    if at_upper.lower > delta * (1 + 1e-6):
        yield "wrong", f"delta {at_upper.lower} at the upper end {found.upper} is more than {delta}"
    if at_lower.upper < delta * (1 - 1e-6) and found.lower > 0:
        yield "wrong", f"delta {at_lower.upper} at the lower end {found.lower} is less than {delta}"
    change, dear_history, dear_delta = other
    dear = accountant_of(dear_history).epsilon(dear_delta)
    if dear.upper < found.lower * (1 - 1e-9):
        yield "wrong", f"{change}: {dear} is below {found}"
    if dear.upper < found.upper * (1 - WIDTH):
        yield "loose", f"{change}: {dear.upper} is below {found.upper}"


def check_published(history: History, delta: float) -> Iterator[tuple[str, str]]:
    """The same of published bounds: a certified lower end above one is wrong, an upper end above is loose."""
    (each, steps), *_ = history
    compared = compare(shuffle_round=each, num_steps=steps, delta=delta)
    for bound in compared.bounds:
        if bound.kind == "upper" and bound.epsilon < compared.interval.lower * (1 - 1e-9):
            yield "wrong", f"{bound.name} gives {bound.epsilon}, below {compared.interval}"
        if bound.kind == "upper" and bound.epsilon < compared.interval.upper * (1 - 1e-9):
            yield "loose", f"{bound.name} gives {bound.epsilon}, below {compared.interval.upper}"


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time, and what the work gave."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def fuzz(
    *,
    seed: int,
    settings: int | None = None,
    seconds: float = math.inf,
    most: float = 12.0,
    longest: float = 9.0,
) -> dict[str, Any]:
    """Ask and check: so many settings, or for so long, with up to ten to the power of ``longest`` rounds."""
    rng, began = random.Random(seed), time.perf_counter()
    findings: list[dict[str, str]] = []
    slow: list[tuple[float, str]] = []
    done = published = 0
    while (settings is None or done < settings) and time.perf_counter() - began < seconds:
        kinds = rng.choice([1, 1, 1, 1, 2, 3])
        scheme, first = draw_round(rng, most=most)
        history = [(first, int(10 ** rng.uniform(0, longest)))]
        while len(history) < kinds:
            extra, each = draw_round(rng, most=most)
            if each.adversary is first.adversary:
                history.append((each, int(10 ** rng.uniform(0, longest))))
                scheme = extra
        delta = 10 ** rng.uniform(-18, -1)
        other = dearer(rng, history, delta, scheme)
        told = f"{[(str(each), steps) for each, steps in history]} at {delta:.3g}"
        try:
            took, _ = timed(lambda: accountant_of(history).epsilon(delta))  # noqa: B023
            slow = sorted([*slow, (took, told)], reverse=True)[:10]
            findings += [
                {"kind": kind, "what": what, "setting": told} for kind, what in check(history, delta, other)
            ]
            if kinds == 1 and done % PUBLISHED_EVERY == 0 and history[0][1] <= 10**5:
                published += 1
                findings += [
                    {"kind": kind, "what": what, "setting": told}
                    for kind, what in check_published(history, delta)
                ]
        except ArithmeticError as error:
            findings.append({"kind": "wrong", "what": f"{type(error).__name__}: {error}", "setting": told})
        done += 1
    return {
        "seed": seed,
        "settings": done,
        "beside_published_bounds": published,
        "wrong": sum(each["kind"] == "wrong" for each in findings),
        "loose": sum(each["kind"] == "loose" for each in findings),
        "over_3_s": sum(took > 3 for took, _ in slow),
        "slowest": [{"processor_s": round(took, 2), "setting": told} for took, told in slow],
        "findings": findings,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = fuzz(seed=options.seed, seconds=options.seconds)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
