"""Plans of the guide to planning: the ε0, rounds and cohorts of the least error.

Nothing is drawn and nothing is timed, so a version gives the same numbers on every machine.
docs/tables.py writes the guide's tables from the results, and a slow test computes some of them anew.

Usage: python benchmarks/plans.py          (sixteen seconds on one core)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shuffle_plugins.planning import Plan, plan, plan_sums

RESULTS = Path(__file__).parent / "results" / "plans.json"
ASKED = {"target_epsilon": 1.0, "delta": 1e-8, "population": 10**6, "dim": 1_000, "mechanism": "privunit"}
SUMS = {"target_epsilon": 2.93, "delta": 1e-5, "population": 60_000, "dim": 6_130, "num_steps": 300}
SHORT = {
    "target_epsilon": 0.1,
    "delta": 1e-6,
    "population": 10**4,
    "dim": 100,
    "mechanism": "linf-coordinate",
}
_BASELINES = {
    "no shuffler, ε0 = ε/T": "local",
    "a cohort of 1 %": "small_cohort",
    "trusted curator, Gaussian": "curator",
}


def baselines(found: Plan) -> dict[str, float]:
    """Errors of what else the target would buy."""
    return {_BASELINES[each.name]: each.average_mse for each in found.baselines}


def planned(*, num_steps: int, cohort: int) -> dict[str, Any]:
    """The largest ε0 for so many rounds of so many clients, and what it gives."""
    found = plan(**ASKED, num_steps=num_steps, cohorts=[cohort])
    best = found.best
    others = baselines(found)
    return {
        "num_steps": num_steps,
        "cohort": cohort,
        "local_epsilon": best.local_epsilon,
        "epsilon": [best.epsilon.lower, best.epsilon.upper],
        "error": best.average_mse,
        "bits_per_client": best.bits_per_client,
        "over_curator": best.average_mse / others["curator"],
        "baselines": others,
    }


def thrifty() -> dict[str, Any]:
    """The best number of rounds, and the fewest whose error is nearly as small."""
    found = plan(**SHORT)
    return {
        "best_steps": found.best.num_steps,
        "thrifty_steps": found.thrifty.num_steps,
        "cohort": found.thrifty.cohort,
        "bits_over": found.best.total_bits / found.thrifty.total_bits,
        "error_over": found.thrifty.average_mse / found.best.average_mse,
    }


def single_reports() -> dict[str, Any]:
    """One report per client where the sums have coins, with the server as adversary."""
    found = plan(**SUMS, cohorts=[4_096], adversary="server", mechanism="privunit")
    return {"error": found.best.average_mse, "baselines": baselines(found)}


def sums() -> list[dict[str, Any]]:
    """Who draws the clients of a sum, with the server as adversary."""
    return [
        {
            "drawn_by": str(row.drawn_by),
            "data_of": row.cohort,
            "answering": row.answering,
            "charged": row.charged_steps,
            "noise_multiplier": row.model_noise,
            "epsilon": [row.epsilon.lower, row.epsilon.upper],
            "error": row.average_mse,
            "bits_per_client": row.bits_per_client,
        }
        for row in plan_sums(**SUMS, cohorts=[4_096, 60_000], adversary="server").rows
    ]


def main() -> None:
    everybody = ASKED["population"]
    found = {
        "rounds": [planned(num_steps=10**power, cohort=everybody) for power in range(5)],
        "split": [planned(num_steps=everybody // cohort, cohort=cohort) for cohort in (10**3, 10**4, 10**5)],
        "sums": sums(),
        "single_reports": single_reports(),
        "thrifty": thrifty(),
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
