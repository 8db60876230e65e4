"""Composing the blanket pair here and with dp-accounting: time, tightness, and what each can certify.

Both start from the same exact pair. dp-accounting gets its best input for this, the exact profile δ(ε) with
connect-the-dots rounding, at several discretisations. It has no lower counterpart, so its answer has no error
bar; its optimistic rounding of the same outcomes is shown beside it.

Usage: python benchmarks/pld_composition.py [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from shuffle_plugins import accounting
from shuffle_plugins.accounting import LossComposition, ShuffleRound, pair_losses

RESULTS = Path(__file__).parent / "results" / "pld_composition.json"
SETTINGS = [
    (10**6, 1_000, 2.0, 10**5, (1e-8, 1e-12, 1e-15)),
    (60_000, 10_000, 1.5, 1_200, (1e-5, 1e-12, 1e-15)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for population, cohort, local_epsilon, steps, deltas in SETTINGS:
        shuffle_round = ShuffleRound(
            local_epsilon=local_epsilon, population=population, cohort=cohort, channel_fixed=True
        )
        laws = {kind: pair_losses(shuffle_round.dominating_pair(), kind=kind) for kind in ("upper", "lower")}
        for delta in deltas:
            started = time.process_time()
            interval = [LossComposition([laws[kind]], [steps]).epsilon(delta) for kind in ("lower", "upper")]
            own = {"epsilon": interval, "seconds": time.process_time() - started}
            theirs = [
                peer(laws["upper"], steps, delta, cells=cells, optimistic=optimistic)
                for cells, optimistic in ((10, False), (30, False), (100, False), (100, True))
            ]
            row = {
                "population": population,
                "cohort": cohort,
                "local_epsilon": local_epsilon,
                "steps": steps,
                "delta": delta,
                "shuffle_plugins": own,
                "dp_accounting": theirs,
            }
            print(json.dumps(row))
            rows.append(row)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(rows, indent=1) + "\n")


def peer(
    law: accounting.PrivacyLossDistribution, steps: int, delta: float, *, cells: int, optimistic: bool
) -> dict[str, object]:
    """dp-accounting at ``cells`` grid cells per standard deviation of one step's loss."""
    cell = law.deviation / cells
    started = time.process_time()
    try:
        if optimistic:
            index = np.floor(law.loss / cell).astype(int)
            masses: dict[int, float] = {}
            for i, p in zip(index, law.p, strict=True):
                masses[int(i)] = masses.get(int(i), 0.0) + float(p)
            pmf = pld_pmf.create_pmf(masses, cell, 0.0, pessimistic_estimate=False)
        else:
            low, high = (round(law.loss[i] / cell) for i in (0, -1))
            index = np.arange(low - 1, high + 2)
            profile = [float(np.maximum(law.p - np.exp(i * cell) * law.q, 0).sum()) for i in index]
            pmf = pld_pmf.create_pmf_pessimistic_connect_dots(cell, index, np.array(profile))
        epsilon = PrivacyLossDistribution(pmf).self_compose(steps).get_epsilon_for_delta(delta)
    except Exception as error:  # a peer that fails on a setting is a result
        return {"cells": cells, "optimistic": optimistic, "failed": f"{type(error).__name__}: {error}"[:200]}
    return {
        "cells": cells,
        "optimistic": optimistic,
        "epsilon": float(epsilon),
        "seconds": time.process_time() - started,
    }


if __name__ == "__main__":
    main()
