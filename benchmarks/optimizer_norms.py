"""Logistic regression in each norm by clients of several records: measured excess loss beside the bound.

2,000 clients hold 10 records each, of norm 1 in the norm at hand, with labels drawn from a logistic model.
Gradients are bounded in that norm and parameters in its dual. CLDP-SGD takes one and two records of a client
in a step, DSS-SGD one. ε is for one record of one client. The excess is the loss over all records beyond the
least one, which 2,000 exact steps find.

Usage: python benchmarks/optimizer_norms.py [--repeats 3] [--output FILE]     (some two minutes on one core)
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from shuffle_plugins.optim import (
    GD,
    CohortSGD,
    OneMessage,
    Problem,
    SelfSampledSGD,
    Unprotected,
    logistic_regression,
)
from shuffle_plugins.randomness import SeededRandomness

RESULTS = Path(__file__).parent / "results" / "optimizer_norms.json"
CLIENTS, RECORDS, FEATURES, RADIUS = 2_000, 10, 8, 3.0
STEPS, COHORT = 64, 400
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
ORDERS = {"l2": 2.0, "linf": math.inf, "l1": 1.0}
METHODS = {
    "CLDP-SGD, s = 1": CohortSGD(cohort=COHORT, num_steps=STEPS),
    "CLDP-SGD, s = 2": CohortSGD(cohort=COHORT, num_steps=STEPS, samples=2),
    "DSS-SGD, s = 1": SelfSampledSGD(cohort=COHORT, num_steps=STEPS),
}


def data(norm: str) -> tuple[Tensor, Tensor]:
    """Records of norm 1 in clients' rows, and labels of a logistic model whose parameters are in the ball."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, RECORDS, FEATURES, generator=generator, dtype=torch.float64)
    x /= torch.linalg.vector_norm(x, ord=ORDERS[norm], dim=-1, keepdim=True)
    truth = torch.randn(FEATURES, generator=generator, dtype=torch.float64)
    dual = {"l2": 2.0, "linf": 1.0, "l1": math.inf}[norm]
    truth *= RADIUS / torch.linalg.vector_norm(truth, ord=dual)
    drawn = torch.rand(CLIENTS, RECORDS, generator=generator, dtype=torch.float64)
    return x, torch.where(drawn < torch.sigmoid(x @ truth), 1.0, -1.0)


def measured(problem: Problem, examples: tuple[Tensor, Tensor], *, repeats: int) -> dict[str, Any]:
    """Every method on one problem."""
    flat = (examples[0].flatten(0, 1), examples[1].flatten())
    exact = GD(num_steps=2_000, step_size=1.0)
    best = exact.plan(problem, population=len(flat[1]), **BUDGET, model=Unprotected()).run(flat)
    least = problem.mean_loss(best.parameters, flat)
    start = problem.mean_loss(torch.zeros(FEATURES, dtype=torch.float64), flat)
    found: dict[str, Any] = {"norm": str(problem.norm), "excess_at_the_start": start - least, "methods": {}}
    for name, method in METHODS.items():
        plan = method.plan(
            problem, population=CLIENTS, records_per_client=RECORDS, **BUDGET, model=OneMessage()
        )
        runs = [plan.run(examples, randomness=SeededRandomness(seed)) for seed in range(repeats)]
        oracle = plan.stages[0].oracle
        found["methods"][name] = {
            "local_epsilon": oracle.round.local_epsilon,
            "mechanism": oracle.round.mechanism,
            "bits_per_report": oracle.bits_per_report,
            "certified": runs[0].epsilon(BUDGET["delta"]).upper,
            "excess": fmean(problem.mean_loss(run.parameters, flat) - least for run in runs),
            "bound": plan.bound,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for norm in track(ORDERS, description="norms"):
        problem = logistic_regression(features=FEATURES, radius=RADIUS, norm=norm)
        rows.append(measured(problem, data(norm), repeats=asked.repeats))
    setting = {"clients": CLIENTS, "records": RECORDS, "features": FEATURES, "radius": RADIUS}
    setting |= {"steps": STEPS, "cohort": COHORT, "repeats": asked.repeats}
    results = {"setting": setting | BUDGET, "norms": rows}
    print(json.dumps(results, indent=1))
    asked.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
