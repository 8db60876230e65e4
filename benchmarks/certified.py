"""Certified ε of single settings: numbers of the tables of the proofs.

No randomness is in them, so a version of the package gives the same numbers on every machine, but for their
last digits. docs/tables.py writes the tables from the results, and a test computes some of them anew.

Usage: python benchmarks/certified.py [PART ...]     (three minutes; with PARTs the others stay as they are)
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import binom, laplace, norm

from shuffle_plugins.accounting import (
    Blanket,
    GroupsRound,
    SampledRecordsRound,
    SeveralReportsRound,
    ShuffleAccountant,
    ShuffleRound,
    pair_epsilon_interval,
)
from shuffle_plugins.mechanisms import registry

RESULTS = Path(__file__).parent / "results" / "certified.json"
OWN = "a randomizer of one's own"  # no pair but the blanket's is known for it
# Settings, named after how often a client takes part; the first is that of a published run on MNIST.
MNIST = {"population": 60_000, "cohort": 10_000, "num_steps": 1_200, "delta": 1e-5}
RARE = {"population": 10**6, "cohort": 1_000, "num_steps": 100_000, "delta": 1e-8}
OFTEN = {"population": 10**6, "cohort": 100_000, "num_steps": 1_000, "delta": 1e-8}
FULL = {"population": 10**4, "cohort": 10**4, "num_steps": 100, "delta": 1e-6}

Setting = dict[str, Any]
Floats = npt.NDArray[np.float64]


def clients_of(setting: Setting) -> dict[str, Any]:
    """Fields of a setting's rounds: all but how many there are, and δ."""
    return {name: value for name, value in setting.items() if name not in ("num_steps", "delta")}


def ends(
    setting: Setting,
    *,
    local_epsilon: float,
    mechanism: str,
    dim: int = 1,
    alone: bool = False,
) -> list[float]:
    """Both ends of ε.

    Args:
        setting: clients, cohort, rounds and δ.
        local_epsilon, mechanism, dim: of a report.
        alone: whether to use the pair of the mechanism's blanket alone, as for a randomizer of a user's
            own, of which no more is known. There is no lower end then: it is 0.
    """
    blanket = (
        Blanket.generic(local_epsilon, exact=False)
        if mechanism == "generic"
        else registry.blanket(mechanism, local_epsilon=local_epsilon, dim=dim)
    )
    accountant = ShuffleAccountant()
    if mechanism == "generic" and not alone:
        each = ShuffleRound(local_epsilon=local_epsilon, **clients_of(setting), channel_fixed=True)
    else:
        name = OWN if alone else mechanism
        if alone:
            blanket = replace(blanket, form="corners", others=None, information_bound=None)
        each = ShuffleRound(
            local_epsilon=local_epsilon,
            mechanism=name,
            blanket=blanket,
            **clients_of(setting),
            channel_fixed=True,
        )
    accountant.step(each, num_steps=setting["num_steps"])
    found = accountant.epsilon(setting["delta"], lower=not alone)
    return [0.0 if found.lower is None else found.lower, found.upper]


def row(setting: Setting, local_epsilon: float, mechanism: str, *, dim: int = 1) -> dict[str, Any]:
    """The certified ends, and the upper one of the blanket's pair alone."""
    asked = {"local_epsilon": local_epsilon, "dim": dim}
    lower, upper = ends(setting, mechanism=mechanism, **asked)
    _, blanket = ends(setting, mechanism=mechanism, alone=True, **asked)
    found = {
        **setting,
        **asked,
        "mechanism": mechanism,
        "lower": lower,
        "upper": upper,
        "blanket": blanket,
    }
    print(found, flush=True)
    return found


def counted() -> list[dict[str, Any]]:
    """Binary randomized response, whose bits are counted."""
    places = ((RARE, 2.0), (MNIST, 1.5), (FULL, 4.0), (OFTEN, 1.0))
    return [row(setting, level, "binary-rr") for setting, level in places]


def crowd() -> list[dict[str, Any]]:
    """``linf-coordinate``, by the pair over all mixes of others."""
    places = ((MNIST, 0.5), (MNIST, 1.5), (MNIST, 4.0), (RARE, 2.0), (FULL, 4.0), (OFTEN, 1.0))
    return [row(setting, level, "linf-coordinate", dim=1_000) for setting, level in places]


def generic() -> list[dict[str, Any]]:
    """What holds for any randomizer of ε0."""
    places = ((MNIST, 0.5), (MNIST, 1.5), (MNIST, 4.0), (RARE, 2.0), (RARE, 1.0))
    return [row(setting, level, "generic") for setting, level in places]


def groups() -> list[dict[str, Any]]:
    """Two groups of 5,000 clients, ε0 = 1 and 4: hidden by all, by their own alone, and all charged for 4."""
    levels, delta = ((1.0, 5_000), (4.0, 5_000)), 1e-6
    found = []
    for mechanism, cohort, steps in product(("k-rr", "linf-coordinate"), (10_000, 1_000), (1, 100)):
        sampling = "full" if cohort == 10_000 else "without-replacement"
        law = partial(registry.blanket, mechanism, dim=10)
        rounds = GroupsRound.each_of(
            levels,
            blanket=lambda level, law=law: law(local_epsilon=level),
            mechanism=mechanism,
            cohort=cohort,
            sampling=sampling,
            channel_fixed=True,
        )
        for each, (level, count) in zip(rounds, levels, strict=True):
            accountant = ShuffleAccountant()
            accountant.step(each, num_steps=steps)
            interval = accountant.epsilon(delta)
            apart = {"population": count, "cohort": count * cohort / 10_000, "sampling": sampling}
            loudest = {"population": 10_000, "cohort": cohort, "sampling": sampling}
            told = {"num_steps": steps, "delta": delta}
            found.append(
                {
                    "mechanism": mechanism,
                    "cohort": cohort,
                    "num_steps": steps,
                    "local_epsilon": level,
                    "lower": interval.lower,
                    "upper": interval.upper,
                    "apart": ends(apart | told, local_epsilon=level, mechanism=mechanism, dim=10)[1],
                    "loudest": ends(loudest | told, local_epsilon=4.0, mechanism=mechanism, dim=10)[1],
                }
            )
            print(found[-1], flush=True)
    return found


def personal() -> list[dict[str, Any]]:
    """Members of ε0 = 1 and 2, the loudest of ten groups of one size: here, and as published."""
    delta, found = 1e-5, []
    for (least, most), clients in product(((0.05, 1.0), (0.5, 2.0)), (1_000, 10_000, 100_000)):
        levels = np.linspace(least, most, 11)[1:].tolist()
        rounds = GroupsRound.each_of(
            [(level, clients // 10) for level in levels],
            blanket=lambda level: registry.blanket("binary-rr", local_epsilon=level, dim=1),
            mechanism="binary-rr",
            cohort=clients,
            sampling="full",
            channel_fixed=True,
        )
        accountant = ShuffleAccountant()
        accountant.step(rounds[-1])
        interval = accountant.epsilon(delta)
        others = np.repeat(levels, clients // 10)[:-1]
        found.append(
            {
                "least": levels[0],
                "most": most,
                "clients": clients,
                "lower": interval.lower,
                "upper": interval.upper,
                "gaussian": gaussian_clones(others, most, delta=delta),
                "bits": tested_clones(others, most, delta=delta, noise=False),
                "noise": tested_clones(others, most, delta=delta, noise=True),
            }
        )
        print(found[-1], flush=True)
    return found


def gaussian_clones(others: Floats, level: float, *, delta: float) -> float:
    """ε of arXiv 2312.14388, by the Gaussian of its abstract, for a client of the largest ε0."""
    told = 1 / (1 + np.exp(np.append(others, level)))
    shift = math.sqrt(2 / (told.sum() - told.max()))

    def excess(epsilon: float) -> float:
        middle = epsilon / shift
        tail = math.exp(epsilon) * norm.sf(middle + shift / 2)
        return float(norm.sf(middle - shift / 2) - tail) - delta

    return float(brentq(excess, 0.0, 20.0))


def tested_clones(others: Floats, level: float, *, delta: float, noise: bool) -> float:
    """ε of arXiv 2407.18157, as its authors' code (yixuanLL/HPS) has it, for a client of the largest ε0.

    The client's report tells nothing with the probability ``same``. Client i's is a clone with a probability
    that comes from a test of what it sent, between the client's laws and its own, and is then a fair coin.

    Args:
        others: ε0 of everybody else.
        noise: whether reports are Laplace noise about one of two numbers, or randomized bits.
    """
    if noise:
        chances, same = _tested_noise(others, level), math.exp(-level / 2)
    else:
        e, own = np.exp(others), math.exp(level)
        chances, same = np.minimum((1 + own) / (own * (1 + e)), (1 + e) / (e * (1 + own))), 2 / own
    clients = len(others) + 1
    clones = np.arange(clients + 1)
    masses = binom.pmf(clones, clients, chances.sum() / clients)
    clones, masses = clones[masses > 1e-20], masses[masses > 1e-20]

    def excess(epsilon: float) -> float:
        ratio = (math.exp(epsilon) - same) / (1 - same)
        last = np.floor(ratio * (clones + 1) / (1 + ratio))  # up to here the counts speak for the other law
        missed, seen = binom.sf([last, last - 1], clones, 0.5)
        return float(masses @ ((same - math.exp(epsilon)) * missed + (1 - same) * seen)) - delta

    return float(brentq(excess, 0.0, 20.0))


def _tested_noise(others: Floats, level: float) -> Floats:
    """Probabilities of clones: noise about 0 is likelier to be the client's, about 0 and about 1."""
    gap = np.maximum(level - others, 1e-12)
    ahead = np.log(level / others)
    about_zero = laplace.cdf(others * np.minimum(ahead / gap, 0.5)) - laplace.cdf(-others * ahead / gap)
    least = np.clip((level - ahead) / (level + others), 0.5, 1.0)
    about_one = laplace.sf(others * least) - laplace.sf(others * (ahead + level) / gap)
    return 2 * np.minimum(np.where(others < level, about_zero, 1.0), about_one)


def oracles() -> list[dict[str, Any]]:
    """Frequency oracles of 50 categories."""
    names = ("rappor", "oue", "local-hashing", "subset-selection", "limited-hadamard")
    return [row(MNIST, level, name, dim=50) for name in names for level in (0.5, 1.5, 4.0)]


def spreads() -> list[dict[str, Any]]:
    """Mechanisms whose records differ in few of many places."""
    places = (
        ("sqkr", 0.5),
        ("sqkr", 1.5),
        ("sqkr", 4.0),
        ("l2-bit-planes", 0.5),
        ("l2-bit-planes", 1.5),
        ("linf-bit-planes", 4.0),
    )
    return [row(MNIST, level, name, dim=1_000) for name, level in places]


def k_ary() -> list[dict[str, Any]]:
    """Responses of few categories, which benchmarks/intervals.py leaves out."""
    return [row(MNIST, level, "k-rr", dim=dim) for dim in (3, 10) for level in (0.5, 1.5, 4.0)]


def epochs() -> dict[str, Any]:
    """Any randomizer: 20 epochs in a secret order, passes whose batches are known, and drawn cohorts."""
    setting = {"population": 60_000, "num_steps": 20, "delta": 1e-5}
    cohorts = (60, 600, 6_000)
    found: dict[str, Any] = {"cohorts": cohorts}
    for sampling in ("epoch", "single-pass"):
        found[sampling] = [
            upper(setting | {"cohort": cohort, "sampling": sampling}, local_epsilon=3.0) for cohort in cohorts
        ]
    found["without-replacement"] = [
        upper(setting | {"cohort": cohort, "num_steps": 20 * 60_000 // cohort}, local_epsilon=3.0)
        for cohort in cohorts
    ]
    return found


def upper(setting: Setting, *, local_epsilon: float) -> float:
    """The upper end of ε for any randomizer of ε0."""
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(local_epsilon=local_epsilon, **clients_of(setting), channel_fixed=True),
        num_steps=setting["num_steps"],
    )
    return accountant.epsilon(setting["delta"], lower=False).upper


def records() -> list[dict[str, Any]]:
    """Clients of several records, of any randomizer."""
    rows: list[dict[str, Any]] = []
    for population, level, num_steps, kinds in (
        (10_000, 1.0, 100, ((1, 1), (20, 1), (20, 2), (20, 5), (20, 20))),
        (100_000, 2.0, 1_000, ((1, 1), (20, 1), (20, 5), (100, 100))),
    ):
        clients = ShuffleRound(local_epsilon=level, population=population, cohort=1_000, channel_fixed=True)
        for held, sent in kinds:
            accountant = ShuffleAccountant()
            each = clients
            if held > 1:
                each = SampledRecordsRound.of(clients, records_per_client=held, samples_per_client=sent)
            accountant.step(each, num_steps=num_steps)
            found = accountant.epsilon(1e-6)
            rows.append(
                {"population": population, "cohort": 1_000, "local_epsilon": level, "num_steps": num_steps}
                | {"records": held, "samples": sent, "lower": found.lower, "upper": found.upper}
            )
            print(rows[-1], flush=True)
    return rows


def pairs() -> list[dict[str, Any]]:
    """Between which values the exact ε of the generic blanket pair lies, and what the Rényi route gives."""
    rows = []
    for setting, level in ((RARE, 2.0), (RARE, 1.0), (MNIST, 1.5)):
        found = {}
        for method in ("pld", "rdp"):
            accountant = ShuffleAccountant(method=method)
            blanket = Blanket.generic(level, exact=False)
            accountant.step(
                ShuffleRound(
                    local_epsilon=level,
                    mechanism=OWN,
                    blanket=blanket,
                    **clients_of(setting),
                    channel_fixed=True,
                ),
                num_steps=setting["num_steps"],
            )
            if method == "pld":
                found["epsilon"] = list(pair_epsilon_interval(accountant, setting["delta"]))
            else:
                found["renyi"] = accountant.epsilon(setting["delta"], lower=False).upper
        rows.append({**setting, "local_epsilon": level, **found})
        print(rows[-1], flush=True)
    return rows


def gaussian_reports() -> list[dict[str, Any]]:
    """Gaussian reports by their likelihoods, and for comparison by their ε0 and δ0 alone, as clones."""
    rows = []
    for level, own_delta, population, cohort, sampling, num_steps in (
        (0.5, 1e-12, 10**4, 10**4, "full", 1),
        (0.5, 1e-12, 60_000, 10**4, "without-replacement", 1_200),
        (1.0, 1e-6, 60_000, 10**4, "poisson", 10),
        (2.0, 1e-6, 10**5, 10**5, "full", 1),
    ):
        mechanism = registry.get("gaussian", local_epsilon=level, dim=2, local_delta=own_delta)
        place = {"population": population, "cohort": cohort, "sampling": sampling}
        each = mechanism.round(**place)
        alone = ShuffleRound(local_epsilon=level, local_delta=own_delta, **place, channel_fixed=True)
        ends_of = []
        for one in (each, alone):
            accountant = ShuffleAccountant()
            accountant.step(one, num_steps=num_steps)
            ends_of.append(accountant.epsilon(1e-6, lower=one is each))
        found, clones = ends_of
        rows.append(
            {"local_epsilon": level, "local_delta": own_delta, **place, "num_steps": num_steps}
            | {"lower": found.lower, "upper": found.upper}
            | {"clones": clones.upper if clones.upper < 1e3 else None}  # no amplification is left
        )
        print(rows[-1], flush=True)
    return rows


def several_reports() -> list[dict[str, Any]]:
    """Both ends where a client sends several reports in one round."""
    rows: list[dict[str, Any]] = []
    for mechanism, level, dim in (
        ("generic", 1.0, 1),
        ("k-rr", 1.0, 10),
        ("laplace", 1.0, 1),
        ("privunit-g", 2.0, 1_000),
    ):
        of = {}
        if mechanism != "generic":
            blanket = registry.blanket(mechanism, local_epsilon=level, dim=dim)
            of = {"mechanism": mechanism, "blanket": blanket}
        for population, cohort in ((10**4, 10**4), (60_000, 10**4), (60_000, 1_000)):
            each = ShuffleRound(
                local_epsilon=level, population=population, cohort=cohort, **of, channel_fixed=True
            )
            for reports in (2, 5, 20):
                accountant = ShuffleAccountant()
                accountant.step(SeveralReportsRound.of(each, reports_per_client=reports))
                found = accountant.epsilon(1e-6)
                rows.append(
                    {"mechanism": mechanism, "local_epsilon": level, "dim": dim}
                    | {"population": population, "cohort": cohort, "reports": reports}
                    | {"lower": found.lower, "upper": found.upper}
                )
    return rows


def gaussian_deviation(*, target_epsilon: float, delta: float) -> float:
    """Of the analytic Gaussian mechanism, over the sensitivity (Balle, Wang 2018, Theorem 8)."""

    def excess(mu: float) -> float:
        near, far = mu / 2 - target_epsilon / mu, -mu / 2 - target_epsilon / mu
        return float(norm.cdf(near) - math.exp(target_epsilon + norm.logcdf(far))) - delta

    return float(1 / brentq(excess, 1e-3, 1e3, xtol=1e-15))


def write_parts(parts: Iterable[Callable[[], Any]], results: Path) -> None:
    """Compute the parts that the command line names, or all, and keep the others of the result file.

    Raises:
        SystemExit: if there is no part of a name.
    """
    named, chosen = {part.__name__: part for part in parts}, sys.argv[1:]
    if unknown := set(chosen).difference(named):
        raise SystemExit(f"no part is called {', '.join(sorted(unknown))}: {', '.join(named)}")
    found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8")) if chosen else {}
    for name, part in named.items():
        if chosen and name not in chosen:
            continue
        began = time.process_time()
        found[name] = part()
        print(f"{name}: {time.process_time() - began:.1f} s", flush=True)
    results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parts = (
        counted,
        crowd,
        generic,
        groups,
        personal,
        oracles,
        spreads,
        k_ary,
        epochs,
        records,
        pairs,
        gaussian_reports,
        several_reports,
    )
    write_parts(parts, RESULTS)


if __name__ == "__main__":
    main()
