"""Noise left in a model by independent sums, by windows of sums, and by a trusted server's best, over rounds.

At (2.93, 1e-5), replace-one, against the server, for 4,096 clients a round: root mean square over all rounds,
of independent noise that would leave as much, over the radius. A trusted server adds Gaussian noise of any
real numbers to all that it releases: correlated by a banded Toeplitz matrix (``one kernel``), or, of series
that are not long, by any banded matrix (BandMF: Choquette-Choo et al. 2023, "(Amplified) banded matrix
factorization"), whose columns are normed so that a participation has the sensitivity of one window.

Usage: python benchmarks/window_noise.py     (some minutes; keeps what it has computed)
"""

from __future__ import annotations

import argparse
import json
import math
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from shuffle_plugins.accounting import CentralGaussianRound, PrivacyTarget, narrowed
from shuffle_plugins.protocols import VectorSum, WindowedSum, prefix_noise, window_coefficients

RESULTS = Path(__file__).parent / "results" / "window_noise.json"
TARGET = {"epsilon": 2.93, "delta": 1e-5}
SUM = {"dim": 6_130, "cohort": 4_096}
ROUNDS = (1, 3, 10, 14, 30, 60, 100, 200, 400, 1_000, 3_000, 10_000)
BANDS = (14, 100)  # one participation in so many rounds
MOST_FREE = 400  # rounds up to which every entry of a band is free
ARMS = {  # label and style of each
    "independent": ("independent sums", "k-"),
    "windows": ("windows of sums, whole numbers", "C0o-"),
    "one_kernel": ("trusted server, banded Toeplitz", "C1--"),
    "any_band": ("trusted server, any banded matrix", "C2x"),
}


@cache
def central_noise(participations: int) -> float:
    """The least noise of a trusted server in so many rounds, over the radius of the ball."""
    target = PrivacyTarget(**TARGET, num_steps=participations)

    def too_little(noise: float) -> bool:
        return not target.allows(CentralGaussianRound(population=2, cohort=2, noise_multiplier=noise / 2))

    high = 1.0
    while too_little(high):
        high *= 2
    return narrowed(too_little, high / 2, high, precision=1e-3)[1]


@cache
def independent_noise(participations: int) -> float:
    """Deviation of an independent sum's noise, over the radius."""
    return math.sqrt(VectorSum.calibrated(**SUM, **TARGET, num_steps=participations).noise_variance)


def windows_noise(coefficients: tuple[int, ...], *, rounds: int, participations: int) -> float:
    """What windows leave, with everything that sums of whole numbers and coins cost."""
    found = WindowedSum.calibrated(**SUM, **TARGET, num_steps=participations, coefficients=coefficients)
    window = math.sqrt(found.noise_variance) * coefficients[0]
    return window * prefix_noise(coefficients, rounds=rounds)


def any_band(rounds: int, band: int) -> float:
    """Least ‖A·C⁻¹‖_F/‖A‖_F of prefix sums A, over lower triangular C of a band and columns of length one."""
    prefix = np.tril(np.ones((rounds, rounds)))
    free = np.tril(np.ones((rounds, rounds))) - np.tril(np.ones((rounds, rounds)), -band)
    row, column = np.nonzero(free)
    start = np.cumprod(np.r_[1.0, 1 - 0.5 / np.arange(1, band)])[row - column]

    def cost(entries: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        matrix = np.zeros((rounds, rounds))
        matrix[row, column] = entries
        length = np.linalg.norm(matrix, axis=0)
        inverse = solve_triangular(matrix, np.eye(rounds), lower=True)
        left = (prefix * length) @ inverse  # C is matrix/length, so C⁻¹ is length·inverse
        by_length = ((prefix.T @ left) * inverse).sum(axis=1)
        slope = -left.T @ left @ inverse.T + matrix * (by_length / length)
        total = float(np.square(left).sum())
        return math.log(total), 2 * slope[row, column] / total

    found = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 400})
    return math.sqrt(math.exp(float(found.fun)) / np.square(prefix).sum())


def one_kernel(rounds: int, band: int) -> float:
    """The same over Toeplitz matrices, to a part in ten thousand of what real numbers reach."""
    found = window_coefficients(rounds=rounds, band=band, rounding=1e-4)
    return math.hypot(*found) * prefix_noise(found, rounds=rounds)


def measured(rounds: int, band: int) -> dict[str, float]:
    """Each arm's noise, over the radius of the clients' ball."""
    participations = -(-rounds // band)
    coefficients = window_coefficients(rounds=rounds, band=band)
    central = central_noise(participations)
    found = {
        "independent": independent_noise(participations),
        "windows": windows_noise(coefficients, rounds=rounds, participations=participations),
        "one_kernel": central * one_kernel(rounds, band),
    }
    if rounds <= MOST_FREE:
        found["any_band"] = central * any_band(rounds, min(band, rounds))
    return found


def draw(found: dict[str, dict[str, float]], path: Path) -> None:
    """Noise against rounds, one panel for each separation."""
    figure, panels = plt.subplots(len(BANDS), figsize=(4.5, 3.2 * len(BANDS) + 1), layout="constrained")
    for panel, band in zip(panels, BANDS, strict=True):
        for arm, (label, style) in ARMS.items():
            rows = {t: found.get(f"{t},{band}", {}) for t in ROUNDS}
            points = [(t, row[arm]) for t, row in rows.items() if arm in row]
            panel.loglog(*zip(*points, strict=True), style, label=label, markersize=4, linewidth=1.4)
        panel.set_title(f"one participation in {band} rounds")
        panel.set(xlabel="rounds T", ylabel="noise left in the model,\nover the radius")
        panel.grid(visible=True, which="both", linewidth=0.3, alpha=0.6)
    marks, names = panels[0].get_legend_handles_labels()
    figure.legend(marks, names, loc="outside lower center", frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    mpl.use("Agg")
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for band in BANDS:
        for rounds in ROUNDS:
            if f"{rounds},{band}" not in found:
                found[f"{rounds},{band}"] = measured(rounds, band)
                print(rounds, band, found[f"{rounds},{band}"], flush=True)
                RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    draw(found, RESULTS.with_suffix(".png"))


if __name__ == "__main__":
    main()
