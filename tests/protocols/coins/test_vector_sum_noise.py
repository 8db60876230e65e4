"""P_vec built for a noise multiplier."""

from __future__ import annotations

import math
from typing import Any

import pytest
from thinning import first_fast

from shuffle_plugins.accounting.pairs.gaussian_cover import gaussian_cover
from shuffle_plugins.protocols import VectorSum


@first_fast("noise", [0.4, 4.0, 17.0, 300.0], fast=3)
@pytest.mark.parametrize(("dim", "clients"), [(10, 50), (6_130, 4_096)])
def test_it_protects_as_the_gaussian_and_costs_little_more(noise: float, dim: int, clients: int) -> None:
    protocol = VectorSum.with_noise(dim=dim, cohort=clients, noise_multiplier=noise, radius=0.3)
    assert 2 * protocol.round().noise_multiplier == pytest.approx(noise, rel=1e-2)
    assert 2 * protocol.round().noise_multiplier >= noise
    assert protocol.noise_variance <= 1.021 * (noise * 0.3) ** 2
    assert protocol.worst_variance <= 1.021 * dim * (noise * 0.3) ** 2
    assert protocol.round().replacement_distance < 1e-7


@pytest.mark.slow
def test_coins_are_not_added_where_their_distance_cannot_be_told() -> None:
    protocol = VectorSum.with_noise(dim=1_000_000, cohort=4_096, noise_multiplier=9.0)
    finer = gaussian_cover(4 * protocol.cohort * protocol.coins).distance
    assert gaussian_cover(protocol.cohort * protocol.coins).distance < 4 * finer
    assert protocol.cohort * protocol.coins < 1 << 36


def test_dishonest_clients_cost_more_coins() -> None:
    every = VectorSum.with_noise(dim=40, cohort=100, noise_multiplier=5.0)
    half = VectorSum.with_noise(dim=40, cohort=100, noise_multiplier=5.0, honest_fraction=0.5)
    assert half.round().noise_multiplier == pytest.approx(every.round().noise_multiplier, rel=1e-2)
    assert half.coins == pytest.approx(2 * every.coins, rel=1e-2)


@pytest.mark.parametrize(
    "bad",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": math.inf},
        {"noise_multiplier": True},
        {"noise_multiplier": "1"},
        {"noise_multiplier": 1e9},
        {"cohort": 1},
        {"cohort": 2.0},
        {"honest_fraction": 0.001},
        {"dim": 0},
        {"radius": -1.0},
    ],
)
def test_bad_numbers_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        VectorSum.with_noise(**{"dim": 10, "cohort": 50, "noise_multiplier": 3.0, **bad})
