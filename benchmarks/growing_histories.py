"""ε after every round of a training whose cohorts change in size: time and memory, ours and Opacus's.

Cohorts are drawn by Poisson sampling, so nearly every round differs from the one before, and some hundred
sizes come again and again; in `shuffle_distinct` no round is like another. `federated_cold` is one question
about 600 rounds of some 480 sizes of a mechanism whose losses take long. All others of ours are asked after
each round. Opacus's PRV and RDP accountants compose the whole history at every question, in time proportional
to its distinct entries: they are asked at a few lengths, a line through the origin gives the time of a
question, and the sum over all rounds is computed from it. Opacus's GDP accountant refuses changing rates. A
third line adds up Opacus's RDP curves round by round, as a user could by hand.

All run in one process, in processor time. Opacus answers for another mechanism (the Poisson-sampled
Gaussian); what is compared is the work of keeping and composing a history.

Usage: python benchmarks/growing_histories.py [--rounds 10000] [--only NAME] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from opacus.accountants.analysis import rdp

from shuffle_plugins.accounting import (
    Adversary,
    FederatedAccountant,
    FederatedRound,
    ShuffleAccountant,
    ShuffleRound,
)
from shuffle_plugins.mechanisms import registry

POPULATION, COHORT, LOCAL_EPSILON, DELTA = 100_000, 1_000, 1.5, 1e-6
CLIENTS, INVITED = 1_000, 100
PRV_LENGTHS, RDP_LENGTHS = (10, 20, 40), (50, 100, 200)
RESULTS = Path(__file__).parent / "results" / "growing_histories.json"


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def asked_every_round(record: Callable[[int], None], ask: Callable[[], float], rounds: int) -> dict[str, Any]:
    """Processor time until each tenth of the rounds was recorded and asked about, and what memory grew by."""
    held, began, found, longest = resident_megabytes(), time.process_time(), [], 0.0
    for number in range(rounds):
        record(number)
        asked = time.process_time()
        epsilon = ask()
        longest = max(longest, time.process_time() - asked)
        if (number + 1) % (rounds // 10) == 0:
            found.append(round(time.process_time() - began, 2))
    return {
        "rounds": rounds,
        "seconds_at_each_tenth": found,
        "seconds": found[-1],
        "longest_question": round(longest, 2),
        "last_tenth_over_second": round((found[9] - found[8]) / (found[1] - found[0]), 2),
        "megabytes": round(resident_megabytes() - held),
        "epsilon": epsilon,
    }


def ours(sizes: list[int], *, lower: bool) -> dict[str, Any]:
    accountant = ShuffleAccountant()
    announced = ShuffleRound(
        local_epsilon=LOCAL_EPSILON,
        population=POPULATION,
        cohort=COHORT,
        sampling="poisson",
        channel_fixed=True,
    )
    return asked_every_round(
        lambda number: accountant.step(announced.received(sizes[number])),
        lambda: accountant.epsilon(DELTA, lower=lower).upper,
        len(sizes),
    )


def distinct(rounds: int) -> dict[str, Any]:
    """Every round at an ε0 of its own, which grows."""
    accountant = ShuffleAccountant()

    def record(number: int) -> None:
        level = LOCAL_EPSILON * (1 + number / rounds)
        accountant.step(ShuffleRound(local_epsilon=level, population=POPULATION, cohort=COHORT))

    return asked_every_round(record, lambda: accountant.epsilon(DELTA, lower=False).upper, rounds)


def cold(name: str) -> float:
    """Processor time of the first question."""
    accountant, mechanism = FederatedAccountant(), registry.get(name, local_epsilon=2.0, dim=16)
    for reports in np.random.default_rng(0).integers(600, 2000, size=600).tolist():
        one = FederatedRound.drawn(mechanism, candidates=20_000, invited=reports, reports=reports)
        accountant.step(one, participants=None)
    began = time.process_time()
    accountant.epsilon(DELTA)
    return time.process_time() - began


def federated(invited: list[int], adversary: Adversary, *, everybody: bool) -> dict[str, Any]:
    """Asked before each round whether it fits a budget, and after it what was spent."""
    accountant, rng = FederatedAccountant(), np.random.default_rng(1)
    mechanism = registry.get("k-rr", local_epsilon=LOCAL_EPSILON, dim=10)

    def record(number: int) -> None:
        one = FederatedRound.drawn(
            mechanism, candidates=CLIENTS, invited=invited[number], reports=invited[number]
        )
        accountant.would_exceed(one, max_epsilon=1e6, delta=DELTA, adversary=adversary)
        drawn = map(str, rng.choice(CLIENTS, size=invited[number], replace=False))
        accountant.step(one, participants=None if everybody else drawn)

    def ask() -> float:
        return accountant.epsilon(DELTA, adversary=adversary, lower=False).upper

    return asked_every_round(record, ask, len(invited))


def whole_history(
    make: Callable[[], PRVAccountant | RDPAccountant], lengths: tuple[int, ...], rounds: int
) -> dict[str, Any]:
    """Of an accountant that composes everything at each question: its time per entry, and the sum for all."""
    took = []
    for length in lengths:
        accountant = make()
        accountant.history = [(1.0, (COHORT + i) / POPULATION, 1) for i in range(length)]
        began = time.process_time()
        accountant.get_epsilon(DELTA)
        took.append(time.process_time() - began)
    each = float(np.dot(took, lengths) / np.dot(lengths, lengths))
    return {
        "asked_at_lengths": lengths,
        "seconds_of_one_question": [round(seconds, 3) for seconds in took],
        "seconds_an_entry": each,
        "seconds_extrapolated": each * rounds * (rounds + 1) / 2,
    }


def curves_added(sizes: list[int], sample: int = 200) -> dict[str, Any]:
    """Opacus's RDP curves, added up round by round and converted after each."""
    orders = RDPAccountant.DEFAULT_ALPHAS
    total, began = np.zeros(len(orders)), time.process_time()
    for size in sizes[:sample]:
        total = total + rdp.compute_rdp(q=size / POPULATION, noise_multiplier=1.0, steps=1, orders=orders)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rdp.get_privacy_spent(orders=orders, rdp=total, delta=DELTA)
    each = (time.process_time() - began) / sample
    return {"seconds_a_round": each, "seconds_extrapolated": each * len(sizes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--only", help="measure this one of ours, and keep what is known of the others")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    sizes = [int(size) for size in rng.binomial(POPULATION, COHORT / POPULATION, size=options.rounds)]
    invited = [int(size) for size in rng.binomial(CLIENTS, INVITED / CLIENTS, size=options.rounds)]

    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(options.output.read_text()) if options.only else {}
    results |= {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "rounds": options.rounds,
        "distinct_sizes": len(set(sizes)),
        "distinct_invited": len(set(invited)),
    }

    def add(name: str, found: dict[str, Any]) -> None:
        results[name] = found
        print(name, json.dumps(found), flush=True)
        if "rounds" in found:  # one of ours: beside Opacus's for as many rounds
            count = found["rounds"]
            prv = results["opacus_prv"]["seconds_an_entry"] * count * (count + 1) / 2
            found["over_prv"] = found["seconds"] / prv
            found["over_rdp_curves_added"] = found["seconds"] / (
                results["opacus_rdp_curves_added"]["seconds_a_round"] * count
            )
        options.output.write_text(json.dumps(results, indent=1) + "\n")

    warnings.simplefilter("ignore")
    add("opacus_prv", whole_history(PRVAccountant, PRV_LENGTHS, options.rounds))
    add("opacus_rdp", whole_history(RDPAccountant, RDP_LENGTHS, options.rounds))
    add("opacus_rdp_curves_added", curves_added(sizes))
    refusing = GaussianAccountant()
    refusing.step(noise_multiplier=1.0, sample_rate=0.01)
    try:
        refusing.step(noise_multiplier=1.0, sample_rate=0.011)
    except ValueError as error:
        results["opacus_gdp"] = f"refused: {error}"
    few = max(options.rounds // 5, 10)
    observer, server = Adversary.MODEL_OBSERVER, Adversary.SERVER
    measured: dict[str, Callable[[], dict[str, Any]]] = {
        "shuffle_upper": lambda: ours(sizes, lower=False),
        "federated_observer": lambda: federated(invited[:few], observer, everybody=True),
        "shuffle_distinct": lambda: distinct(options.rounds),
        "federated_cold": lambda: {name: cold(name) for name in ("rappor", "l2-block")},
        "shuffle_both_ends": lambda: ours(sizes[:few], lower=True),
        "federated_server": lambda: federated(invited[:few], server, everybody=False),
    }
    for name, measure in measured.items():
        if options.only in (None, name):
            add(name, measure())


if __name__ == "__main__":
    main()
