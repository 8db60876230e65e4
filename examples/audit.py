"""Attack mechanisms and put what the attack proves beside what the accountant certifies.

    python examples/audit.py --trials 200000
    python examples/audit.py --trials 200000 --sums
    python examples/audit.py --report-only

Takes a quarter of an hour at 200,000 trials, and two minutes with --sums, which attacks multi-message sums
instead; the seed makes it repeatable. --report-only certifies anew what kept attacks are compared with, and
attacks nothing. Writes results/audit.json, or results/audit_sums.json, from which docs/tables.py writes the
tables of docs/reference/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from shuffle_plugins.accounting import Round, Sampling, ShuffleAccountant, ShuffleRound
from shuffle_plugins.auditing import audit_round, audit_sum
from shuffle_plugins.core import rounded
from shuffle_plugins.mechanisms import available, get
from shuffle_plugins.protocols import ScalarSum, SplitSum, VectorSum
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
MECHANISMS = available("vectors", "categories")
MEASURED = ("binary-rr", "linf-coordinate", "privunit")
SUM_EPSILON, SUM_DELTAS, SUM_CLIENTS = 1.0, (5e-2, 1e-2), 5
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mechanisms", nargs="+", default=MEASURED, choices=MECHANISMS)
    parser.add_argument("--sums", action="store_true")
    parser.add_argument("--report-only", action="store_true")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    results = options.results or RESULTS / ("audit_sums.json" if options.sums else "audit.json")
    if options.report_only:
        if options.sums:
            parser.error("--report-only is for reports")
        rows = certified_anew(json.loads(results.read_text()))
    else:
        rows = attacked_sums(options) if options.sums else attacked_reports(options)
    results.write_text(json.dumps(list(rows), indent=1, ensure_ascii=False) + "\n")


def attacked_sums(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Each multi-message sum of numbers or vectors, attacked at every δ."""
    for delta in SUM_DELTAS:
        targets = {"cohort": SUM_CLIENTS, "epsilon": SUM_EPSILON, "delta": delta}
        for protocol in (
            ScalarSum.calibrated(**targets),
            VectorSum.calibrated(dim=2, **targets),
            SplitSum.calibrated(**targets),
        ):
            certified = upper(protocol.round(), delta=delta, num_steps=1)
            result = audit_sum(
                protocol,
                delta=delta,
                num_trials=options.trials,
                randomness=SeededRandomness(options.seed),
            )
            tell(f"{protocol.name}, δ = {delta:g}", certified, result.epsilon)
            yield {"sum": protocol.name, "certified": certified, **asdict(result)}


def attacked_reports(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Each mechanism's shuffled reports, attacked in every setting."""
    for name in options.mechanisms:
        mechanism = build(name)
        for title, population, cohort, delta, num_steps, share in SETTINGS:
            certified = certify(mechanism, population, cohort, delta=delta, num_steps=num_steps)
            result = audit_round(
                mechanism,
                generic_round(population, cohort),
                delta=delta,
                num_steps=num_steps,
                num_trials=int(options.trials * share),
                randomness=SeededRandomness(options.seed),
            )
            tell(f"{name}, {title}, δ = {delta:g}", certified, result.epsilon)
            yield {"round": title, "mechanism": name, "certified": certified, **asdict(result)}


def certified_anew(rows: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    """Kept attacks, beside what today's accountant certifies."""
    settings = {(title, delta): (population, cohort) for title, population, cohort, delta, *_ in SETTINGS}
    for row in rows:
        population, cohort = settings[row["round"], row["delta"]]
        asked = {"delta": row["delta"], "num_steps": row["num_steps"]}
        yield {**row, "certified": certify(build(row["mechanism"]), population, cohort, **asked)}


def tell(what: str, certified: float, audited: float) -> None:
    ends = f"at most {rounded(certified, up=True)} certified, at least {rounded(audited, up=False)} audited"
    print(f"{what}: {ends}", flush=True)


def generic_round(population: int, cohort: int) -> ShuffleRound:
    """A round of any mechanism of that ε0."""
    return ShuffleRound(
        local_epsilon=LOCAL_EPSILON,
        population=population,
        cohort=cohort,
        sampling=Sampling.FULL if cohort == population else Sampling.WITHOUT_REPLACEMENT,
        channel_fixed=True,
    )


def certify(mechanism, population: int, cohort: int, *, delta: float, num_steps: int) -> float:
    """ε by the mechanism's own law or the generic one, whichever gives less; of a single report ε0."""
    if delta == 0:
        return LOCAL_EPSILON
    generic = generic_round(population, cohort)
    own = mechanism.round(population=population, cohort=cohort, sampling=generic.sampling)
    rounds = (own,) if mechanism.local_delta else (generic, own)
    return min(upper(one, delta=delta, num_steps=num_steps) for one in rounds)


def upper(shuffle_round: Round, *, delta: float, num_steps: int) -> float:
    accountant = ShuffleAccountant()
    accountant.step(shuffle_round, num_steps=num_steps)
    return accountant.epsilon(delta, lower=False).upper


def build(name: str):
    """The mechanism in DIMENSION, or in one dimension if it takes numbers only."""
    try:
        return get(name, local_epsilon=LOCAL_EPSILON, dim=DIMENSION)
    except ValueError:
        return get(name, local_epsilon=LOCAL_EPSILON, dim=1)


if __name__ == "__main__":
    main()
