"""Attack mechanisms and put what the attack proves beside what the accountant certifies.

    python examples/audit.py --trials 200000

Takes a quarter of an hour at 200,000 trials; the seed makes it repeatable. Writes results/audit.json and
prints the table of docs/audit.md.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path

from shuffle_plugins.accounting import Sampling, ShuffleAccountant, ShuffleRound
from shuffle_plugins.auditing import audit_round
from shuffle_plugins.mechanisms import available, get
from shuffle_plugins.randomness import SeededRandomness

LOCAL_EPSILON, DIMENSION = 2.0, 4
SETTINGS = (  # what it is, population, cohort, δ, rounds, share of the trials
    ("one report", 1, 1, 0.0, 1, 1.0),
    ("20 clients", 20, 20, 1e-2, 1, 1.0),
    ("20 clients", 20, 20, 1e-3, 1, 1.0),
    ("10 of 50", 50, 10, 1e-2, 1, 1.0),
    ("10 of 50", 50, 10, 1e-3, 1, 1.0),
    ("10 of 50, 20 rounds", 50, 10, 1e-2, 20, 0.25),
)
MEASURED = ("binary-rr", "linf-coordinate", "privunit")
RESULTS = Path(__file__).parent / "results" / "audit.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mechanisms", nargs="+", default=MEASURED, choices=available())
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    print("| mechanism | round | δ | certified ε | audited ε | share | attack | everybody else |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.mechanisms:
        mechanism = build(name)
        for title, population, cohort, delta, num_steps, share in SETTINGS:
            shuffle_round = ShuffleRound(
                local_epsilon=LOCAL_EPSILON,
                population=population,
                cohort=cohort,
                sampling=Sampling.FULL if cohort == population else Sampling.WITHOUT_REPLACEMENT,
            )
            own = mechanism.shuffle_round(
                population=population, cohort=cohort, sampling=shuffle_round.sampling
            )
            certified = LOCAL_EPSILON
            if delta > 0:
                rounds = (own,) if mechanism.local_delta else (shuffle_round, own)
                certified = min(upper(one, delta=delta, num_steps=num_steps) for one in rounds)
            result = audit_round(
                mechanism,
                shuffle_round,
                delta=delta,
                num_steps=num_steps,
                num_trials=int(options.trials * share),
                randomness=SeededRandomness(options.seed),
            )
            rows.append({"round": title, "mechanism": name, "certified": certified, **asdict(result)})
            print(
                f"| `{name}` | {title} | {delta:g} | {math.ceil(certified * 1000) / 1000:.3f} "
                f"| {math.floor(result.epsilon * 1000) / 1000:.3f} | {result.epsilon / certified:.0%} "
                f"| {result.attack} | {result.neighbours.rpartition(', everybody else ')[2]} |",
                flush=True,
            )
    options.results.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def upper(shuffle_round: ShuffleRound, *, delta: float, num_steps: int) -> float:
    accountant = ShuffleAccountant()
    accountant.step(shuffle_round, num_steps=num_steps)
    return accountant.upper_epsilon(delta)


def build(name: str):
    """The mechanism in DIMENSION, or in one dimension if it takes numbers only."""
    try:
        return get(name, local_epsilon=LOCAL_EPSILON, dim=DIMENSION)
    except ValueError:
        return get(name, local_epsilon=LOCAL_EPSILON, dim=1)


if __name__ == "__main__":
    main()
