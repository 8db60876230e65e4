"""P_vec built for a noise multiplier."""

from __future__ import annotations

import itertools

import pytest
from accounted import accounted
from thinning import first_fast

from shuffle_plugins.accounting.pairs.noise import covering_deviation, gaussian_cover
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.protocols.coins import _close_trials, _fewest_coins
from shuffle_plugins.protocols.lattices import FixedPoint


@first_fast("noise", [0.4, 4.0, 17.0, 300.0], fast=3)
@pytest.mark.parametrize(("dim", "clients"), [(10, 50), (6_130, 4_096)])
def test_it_protects_as_the_gaussian_and_costs_little_more(noise: float, dim: int, clients: int) -> None:
    protocol = VectorSum.with_noise(dim=dim, cohort=clients, noise_multiplier=noise, radius=0.3)
    assert 2 * protocol.round().noise_multiplier == pytest.approx(noise, rel=1e-2)
    assert 2 * protocol.round().noise_multiplier >= noise
    assert protocol.noise_variance <= 1.021 * (noise * 0.3) ** 2
    assert protocol.worst_variance <= 1.021 * dim * (noise * 0.3) ** 2
    assert protocol.round().replacement_distance < 1e-7


@first_fast(
    ("dim", "cohort", "overhead"),
    [(493_290, 64, 0.02), (1, 60_000, 0.001), (40, 2, 0.3), (3_000, 5_000, 0.02)],
)
def test_more_noise_never_gets_fewer_coins_or_less_of_a_gaussian(
    dim: int, cohort: int, overhead: float
) -> None:
    before, less = 0, 0.0
    for noise in (start * 1.0007**step for start in (0.2, 0.673, 10.0) for step in range(30)):
        levels, coins = _fewest_coins(
            noise,
            lattice=lambda levels: FixedPoint(dim=dim, levels=levels),
            cohort=cohort,
            honest=cohort,
            overhead=overhead,
            trials=_close_trials(1e-13 / dim),
            steady=True,
        )
        lattice = FixedPoint(dim=dim, levels=levels)
        more = covering_deviation(cohort * coins) / lattice.sensitivity
        assert coins >= before
        assert more >= max(less, noise)
        variance = cohort * (coins / 4 + lattice.rounding_variance)
        assert variance <= (1 + overhead) * (1 + 1e-9) * (2 * noise * levels) ** 2
        before, less = coins, more


@first_fast(
    ("population", "cohort", "dim", "rounds"),
    [
        (1_000, 1_000, 30, 10),
        (50_000, 64, 493_290, 15_620),
        (10**6, 1_000, 10**6, 10**5),
        (60_000, 6_000, 7_850, 200),
    ],
)
def test_epsilon_falls_as_noise_grows(population: int, cohort: int, dim: int, rounds: int) -> None:
    def cost(noise: float) -> float:
        built = VectorSum.with_noise(dim=dim, cohort=cohort, noise_multiplier=noise)
        return (
            accounted(built.round(population=population), num_steps=rounds).epsilon(1e-5, lower=False).upper
        )

    found = [cost(noise) for noise in (1.346503, 1.347, 1.348, 1.36, 2.0)]
    assert all(later < earlier for earlier, later in itertools.pairwise(found))
    if rounds == 15_620:
        assert 2.6 < found[1] < 2.7  # 3.750 with the levels that a distance alone asked for


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
