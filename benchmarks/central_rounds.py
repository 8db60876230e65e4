"""Rounds of a trusted server: our two ends beside dp-accounting, Opacus and prv_accountant; our time beside
Flower's accountant; and where between the ends adversaries get who choose anew in every round.

Noise multipliers are deviations over the clipping norm. Replaced vectors are two such norms apart;
dp-accounting's PLD counts that itself, its RDP takes the noise over the distance and is given half. Whatever
a package has no question for is left out. A column whose package is not installed is left as it is: run the
script again where it is (``pip install prv-accountant``). What is there is not asked again.

Time: ε after each of a thousand events that all differ, in processor time, both accountants in one run.

Adversaries, k of n with replace-one neighbours: the client's two records are the largest there are, opposite
to each other; the record that takes the client's place where it is not drawn lies anywhere between them, at
one of five places that follow from everything released before. What they attain is computed by dynamic
programming on a grid of ε, to some per mille.

Usage: python benchmarks/central_rounds.py [--output FILE]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import fftconvolve
from scipy.stats import norm

RESULTS = Path(__file__).parent / "results" / "central_rounds.json"
POPULATION = 100_000
ADDED, REPLACED = "add-or-remove-one", "replace-one"
NOISE_AND_DELTA = ((0.7, 1e-5), (1.0, 1e-5), (1.0, 1e-9), (4.0, 1e-5))
RATE_AND_STEPS = ((0.001, 10_000), (0.01, 1_000), (0.1, 100), (1.0, 10))
SAMPLINGS = ((ADDED, "poisson"), (REPLACED, "poisson"), (REPLACED, "without-replacement"))

Setting = dict[str, Any]


def settings() -> list[Setting]:
    found = []
    for (relation, sampling), (rate, steps), (noise, delta) in itertools.product(
        SAMPLINGS, RATE_AND_STEPS, NOISE_AND_DELTA
    ):
        if rate == 1 and sampling == "without-replacement":
            continue
        found.append(
            {
                "neighbouring_relation": relation,
                "sampling": "full" if rate == 1 else sampling,
                "noise_multiplier": noise,
                "sampling_rate": rate,
                "steps": steps,
                "delta": delta,
            }
        )
    return found


def ours(asked: Setting) -> list[float]:
    from shuffle_plugins.accounting import CentralGaussianRound, ShuffleAccountant

    replaced = asked["neighbouring_relation"] == REPLACED
    accountant = ShuffleAccountant()
    accountant.step(
        CentralGaussianRound(
            noise_multiplier=asked["noise_multiplier"] / (2 if replaced else 1),
            population=POPULATION,
            cohort=asked["sampling_rate"] * POPULATION,
            sampling=asked["sampling"],
            neighbouring_relation=asked["neighbouring_relation"],
        ),
        num_steps=asked["steps"],
    )
    found = accountant.epsilon(asked["delta"])
    return [found.lower, found.upper]


def dp_accounting(asked: Setting, *, pld: bool) -> float | None:
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

    replaced, sampling = asked["neighbouring_relation"] == REPLACED, asked["sampling"]
    if (sampling == "without-replacement" and pld) or (sampling == "poisson" and replaced and not pld):
        return None
    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = (PLDAccountant if pld else RdpAccountant)(neighboring_relation=relation)
    event = dp_event.GaussianDpEvent(asked["noise_multiplier"] / (2 if replaced and not pld else 1))
    if sampling == "poisson":
        event = dp_event.PoissonSampledDpEvent(asked["sampling_rate"], event)
    elif sampling == "without-replacement":
        drawn = round(asked["sampling_rate"] * POPULATION)
        event = dp_event.SampledWithoutReplacementDpEvent(POPULATION, drawn, event)
    accountant.compose(event, asked["steps"])
    return float(accountant.get_epsilon(asked["delta"]))


def opacus(asked: Setting, *, prv: bool) -> float | None:
    from opacus.accountants import PRVAccountant, RDPAccountant

    if asked["neighbouring_relation"] == REPLACED:
        return None
    accountant = PRVAccountant() if prv else RDPAccountant()
    accountant.history = [(asked["noise_multiplier"], asked["sampling_rate"], asked["steps"])]
    return float(accountant.get_epsilon(asked["delta"]))


def prv_accountant(asked: Setting) -> list[float] | None:
    from prv_accountant.dpsgd import DPSGDAccountant

    if asked["neighbouring_relation"] == REPLACED:
        return None
    accountant = DPSGDAccountant(
        noise_multiplier=asked["noise_multiplier"],
        sampling_probability=asked["sampling_rate"],
        max_steps=asked["steps"],
        eps_error=0.01,
        delta_error=asked["delta"] / 1000,
    )
    low, _, high = accountant.compute_epsilon(delta=asked["delta"], num_steps=asked["steps"])
    return [float(low), float(high)]


COLUMNS: dict[str, tuple[str, Callable[[Setting], Any]]] = {
    "ours": ("shuffle-plugins", ours),
    "dp-accounting PLD": ("dp-accounting", lambda asked: dp_accounting(asked, pld=True)),
    "dp-accounting RDP": ("dp-accounting", lambda asked: dp_accounting(asked, pld=False)),
    "Opacus RDP": ("opacus", lambda asked: opacus(asked, prv=False)),
    "Opacus PRV": ("opacus", lambda asked: opacus(asked, prv=True)),
    "prv_accountant": ("prv-accountant", prv_accountant),
}


def answer(ask: Callable[[Setting], Any], asked: Setting) -> Any:
    """What an accountant says, or why it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = ask(asked)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a peer that fails on a setting is a result
        return f"{type(error).__name__}: {error}"[:200]
    numbers = [each for each in (found if isinstance(found, list) else [found]) if each is not None]
    return found if all(map(math.isfinite, numbers)) else "no number"


def seconds_of_a_thousand_events() -> dict[str, dict[str, float]]:
    """Of our accountant and of Flower's, in each of the three models."""
    from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
    from flwr_shuffle import CertifiedAccountant

    found: dict[str, dict[str, float]] = {}
    for method in SamplingMethod:
        replaced = method is SamplingMethod.WITHOUT_REPLACEMENT
        config = PrivacyConfig(
            target_delta=1e-6,
            population_size=POPULATION,
            neighboring_relation=NeighboringRelation.REPLACE_ONE
            if replaced
            else NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=method,
        )
        answers = found[method.value] = {}
        for name, make in (("ours", CertifiedAccountant), ("Flower", RdpAccountant)):
            accountant, began = make(config), time.process_time()
            for i in range(1_000):
                accountant.compose(GaussianPrivacyEvent(2 + i / 500, 800 + 37 * i % 400, POPULATION))
                answers[f"{name}, ε"] = accountant.get_epsilon(1e-6)
            answers[f"{name}, s"] = time.process_time() - began
        answers["ratio"] = answers["ours, s"] / answers["Flower, s"]
        print(method.value, answers, flush=True)
    return found


def attained(*, noise: float, drawn: int, population: int, steps: int, delta: float = 1e-6) -> dict[str, Any]:
    """ε of adversaries that always choose alike, and of those that choose anew; and our two ends."""
    from shuffle_plugins.accounting import CentralGaussianRound, ShuffleAccountant

    rate, mu = drawn / population, 1 / noise
    deviation = rate * math.sqrt(math.expm1(mu**2))
    cell = deviation / 30
    longest = math.ceil(8 / cell)
    most = math.ceil(min(14 * deviation * math.sqrt(steps) + 2 * steps * deviation**2, 40) / cell)
    y = np.linspace(-10, 10 + mu, 200_001)

    def law(place: float) -> Any:
        absent = (1 - rate) * norm.pdf(y, place * mu)
        p, q = (rate * norm.pdf(y, own) + absent for own in (mu, 0.0))
        index = np.clip(np.rint(np.log(p / q) / cell), -most, most).astype(int)
        listed = min(longest, most)
        return np.bincount(np.clip(index, -listed, listed) + listed, p * (y[1] - y[0]), 2 * listed + 1)

    laws = [law(place) for place in (0.0, 0.25, 0.5, 0.75, 1.0)]
    reach = len(laws[0]) // 2
    epsilons = np.arange(-most - reach, most + reach + 1) * cell
    start = np.maximum(-np.expm1(epsilons), 0.0)

    def epsilon(choices: list[Any]) -> float:
        profile = start
        for _ in range(steps):
            inner = np.max([fftconvolve(profile, each, mode="valid") for each in choices], axis=0)
            profile = np.concatenate([start[:reach], inner, np.zeros(reach)])
        return float(epsilons[np.flatnonzero(profile > delta)[-1]])

    accountant = ShuffleAccountant()
    accountant.step(
        CentralGaussianRound(
            noise_multiplier=noise, population=population, cohort=drawn, sampling="without-replacement"
        ),
        num_steps=steps,
    )
    found = accountant.epsilon(delta)
    answers = {
        "question": [noise, drawn, population, steps],
        "others hold what it is replaced by": epsilon(laws[:1]),
        "others hold the middle": epsilon(laws[2:3]),
        "chosen anew": epsilon(laws),
        "ours": [found.lower, found.upper],
    }
    print(answers, flush=True)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="measure times and adversaries anew")
    options = parser.parse_args()
    output = options.output
    kept: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
    if options.again or "times" not in kept:
        kept["times"] = seconds_of_a_thousand_events()
        asked = ((1, 100, 1_000, 100), (2, 100, 1_000, 50), (2, 100, 10_000, 500))
        kept["adversaries"] = [
            attained(noise=noise, drawn=drawn, population=population, steps=steps)
            for noise, drawn, population, steps in asked
        ]
        output.write_text(json.dumps(kept, indent=1) + "\n")
    versions: dict[str, str] = kept.get("versions", {})
    known = [(row["setting"], row["answers"]) for row in kept.get("rows", [])]
    rows = [
        {"setting": asked, "answers": next((found for each, found in known if each == asked), {})}
        for asked in settings()
    ]
    for name, (package, ask) in COLUMNS.items():
        for row in rows:
            if name in row["answers"]:
                continue
            try:
                row["answers"][name] = answer(ask, row["setting"])
            except ModuleNotFoundError as error:
                print(f"{name} is left out: {error}")
                break
            versions[package] = importlib.metadata.version(package)
            print(name, row["setting"], row["answers"][name], flush=True)
            output.write_text(json.dumps({**kept, "versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
