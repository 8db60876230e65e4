"""Laws put on a grid bound from their own side, at every E, also where few outcomes are far apart."""

import numpy as np
import pytest

from shuffle_plugins.accounting.losses import merge_to_grid
from shuffle_plugins.accounting.numerics.sums import Floats

LAWS = 200
ROUNDOFF = 2e-9  # an outcome that is so near a grid point, in cells, counts as on it


def laws() -> list[tuple[Floats, Floats, Floats, float]]:
    """Losses, P and Q masses of a few outcomes each, close together and far apart, and a cell."""
    drawn = np.random.default_rng(0)
    found = []
    for place in range(LAWS):
        outcomes = drawn.integers(1, 7)
        q = drawn.dirichlet(np.full(outcomes, (0.1, 1.0)[place % 2])) + 1e-12
        loss = np.sort(drawn.normal(size=outcomes) * (0.1, 1.0, 5.0)[place % 3])
        loss -= np.log((q * np.exp(loss)).sum())
        cell = (0.01, 0.1, 1.0)[drawn.integers(3)]
        if place % 4 == 0:  # some are on the grid
            loss = np.sort(np.where(drawn.random(outcomes) < 0.5, np.rint(loss / cell) * cell, loss))
        found.append((loss, q * np.exp(loss), q, cell))
    return found


def positive_part(growth: float, p: Floats, q: Floats) -> float:
    return float(np.maximum(p - growth * q, 0.0).sum())


@pytest.mark.parametrize("whole", [False, True])
def test_merging_keeps_masses_and_lowers_every_hockey_stick(whole: bool) -> None:
    short, complete = 0.0, 0
    for loss, p, q, cell in laws():
        first, merged = merge_to_grid(loss, p, q, cell=cell, whole=whole)
        points = (first + np.arange(len(merged))) * cell
        merged_q = merged * np.exp(-points)
        assert merged.min() >= 0
        assert merged_q.sum() == pytest.approx(q.sum(), rel=1e-9)
        lost = p.sum() - merged.sum()
        assert lost >= -ROUNDOFF
        short += lost
        complete += lost <= ROUNDOFF
        for growth in np.exp(np.concatenate([np.linspace(-8, 8, 9), loss])):
            before, after = positive_part(growth, p, q), positive_part(growth, merged, merged_q)
            assert after <= before + ROUNDOFF * (1 + growth)
    assert complete > (120 if whole else 40)  # laws of which no P mass is lost
    assert short / LAWS < (0.03 if whole else 0.055)  # what one outcome of each law is rounded down by


@pytest.mark.parametrize("middle", [[], [0.5]], ids=["two", "three"])
def test_losses_further_apart_than_a_float_holds_are_merged(middle: list[float]) -> None:
    loss = np.array([-600.0, *middle, 600.0])
    q = np.array([1.0, *(0.5 for _ in middle), np.exp(-600.0)])
    q /= q.sum()
    p = q * np.exp(loss)
    first, merged = merge_to_grid(loss, p, q, cell=1.0)
    assert first == -600
    for growth in np.exp(np.linspace(-500.0, 500.0, 11)):
        merged_q = merged * np.exp(-(first + np.arange(len(merged))))
        assert positive_part(growth, merged, merged_q) <= positive_part(growth, p, q) + ROUNDOFF
