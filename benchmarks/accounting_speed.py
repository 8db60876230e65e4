"""ε(1e-5) after 1,000 distinct rounds, a repeated question and a step: this accountant beside Opacus's.

Both accountants are timed in one process, in turn, by processor time; the ratio is what counts. Opacus's
accountant answers for another mechanism (the Poisson-sampled Gaussian); what is compared is the work of
keeping and composing a history.

Usage: python benchmarks/accounting_speed.py [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

from opacus.accountants import RDPAccountant

from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound, pair_epsilon_interval

ROUNDS, DELTA = 1_000, 1e-5
RESULTS = Path(__file__).parent / "results" / "accounting_speed.json"


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def distinct_rounds() -> list[ShuffleRound]:
    return [
        ShuffleRound(local_epsilon=1 + i / ROUNDS, population=60_000, cohort=10_000, channel_fixed=True)
        for i in range(ROUNDS)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()

    ours = {method: ShuffleAccountant(method=method) for method in ("pld", "rdp")}
    for accountant in ours.values():
        for shuffle_round in distinct_rounds():
            accountant.step(shuffle_round)
    opacus = RDPAccountant()
    opacus.history = [(1.0 + i / ROUNDS, 256 / 60_000, 1) for i in range(ROUNDS)]

    results: dict[str, float | str] = {"machine": platform.machine(), "python": platform.python_version()}
    # Laws are cached by round: the first question pays for them, whichever method asks it.
    results["pld_first_question_s"] = seconds(lambda: ours["pld"].epsilon(DELTA))
    results["opacus_rdp_s"] = seconds(lambda: opacus.get_epsilon(DELTA))
    results["rdp_with_cached_laws_s"] = seconds(lambda: ours["rdp"].epsilon(DELTA))
    results["pld_other_delta_s"] = seconds(lambda: ours["pld"].epsilon(DELTA / 10))
    below, above = pair_epsilon_interval(ours["pld"], DELTA)
    results["numerical_width"] = (above - below) / above
    results["repeated_question_us"] = seconds(lambda: [ours["pld"].epsilon(DELTA) for _ in range(1000)]) * 1e3
    shuffle_round = distinct_rounds()[-1]
    step = ours["pld"].step
    results["step_us"] = seconds(lambda: [step(shuffle_round) for _ in range(100_000)]) * 10
    results["opacus_over_pld"] = results["opacus_rdp_s"] / results["pld_first_question_s"]  # type: ignore[operator]

    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
