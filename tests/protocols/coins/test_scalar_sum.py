"""P_1D: its whole law on small instances, and its constants."""

import itertools
import math

import numpy as np
import pytest
import torch
from accounted import accounted
from scipy.stats import binom
from thinning import first_fast

from shuffle_plugins.protocols import ScalarSum, published
from shuffle_plugins.randomness import SeededRandomness


def law_of_view(protocol, numbers):
    """The law of the number of ones, the whole of what is seen: rounding and coins of every client."""
    law = np.ones(1)
    for number in numbers:
        exact = number / protocol.upper * protocol.levels
        low = math.floor(exact)
        rounded = np.zeros(protocol.levels + 1)
        rounded[low] += 1 - (exact - low)
        if exact > low:
            rounded[low + 1] += exact - low
        law = np.convolve(
            law, np.convolve(rounded, binom.pmf(np.arange(protocol.coins + 1), protocol.coins, 0.5))
        )
    return law


@first_fast(("clients", "levels", "coins"), [(2, 1, 60), (3, 2, 40), (4, 3, 30)], fast=2)
def test_no_pair_of_neighbouring_datasets_leaks_more_than_certified(clients, levels, coins):
    protocol = ScalarSum(cohort=clients, levels=levels, coins=coins, upper=2.0)
    accountant = accounted(protocol.round())
    numbers = (0.0, 0.7, 1.3, 2.0)
    for epsilon in (0.05, 0.2, 0.5, 1.0):
        bound = accountant.delta(epsilon)
        worst = 0.0
        for others in itertools.combinations_with_replacement(numbers, clients - 1):
            for mine, yours in itertools.permutations(numbers, 2):
                p = law_of_view(protocol, (mine, *others))
                q = law_of_view(protocol, (yours, *others))
                worst = max(worst, float(np.maximum(p - math.exp(epsilon) * q, 0).sum()))
        assert bound.lower <= worst * (1 + 1e-9) <= bound.upper * (1 + 1e-9)


def test_numbers_outside_are_brought_inside():
    protocol = ScalarSum(cohort=4, levels=10, coins=50)
    counts = protocol.lattice.encode(
        torch.tensor([[-5.0], [7.0], [1e30], [0.0], [math.nan], [math.inf]]), randomness=SeededRandomness(1)
    )
    assert counts.flatten().tolist() == [0, 10, 10, 0, 0, 0]
    with pytest.raises(ValueError, match="takes numbers"):
        protocol.randomize(torch.zeros(4, 2))


def test_the_papers_constants_hold_and_cost_many_times_ours():
    clients, epsilon, delta = 400, 1.0, 1e-6
    paper = published.scalar_sum(cohort=clients, epsilon=epsilon, delta=delta)
    assert paper.probability < 0.5
    assert paper.noise_variance == pytest.approx(
        90 * math.log(2 / delta) / epsilon**2 * (1 - paper.probability), rel=1e-6
    )
    ours = ScalarSum.calibrated(cohort=clients, epsilon=epsilon, delta=delta)
    assert paper.noise_variance > 30 * ours.noise_variance
    for changes in ({"epsilon": 16.0}, {"delta": 0.5}):
        with pytest.raises(ValueError, match="the paper is about"):
            published.scalar_sum(**({"cohort": clients, "epsilon": epsilon, "delta": delta} | changes))


def test_a_large_epsilon_is_reached_where_delta_has_no_room_for_the_distance_of_coins():
    # That is charged 1 + e^ε times: a number's coins, known to within 2**-52, would take all of δ at ε = 22.
    protocol = ScalarSum.calibrated(cohort=100, epsilon=30.0, delta=1e-6)
    assert (1 + math.exp(22)) * protocol.round().replacement_distance > 0.5e-6
    assert 29.9 < accounted(protocol.round()).epsilon(1e-6).upper <= 30.0


@pytest.mark.parametrize(("epsilon", "delta"), [(1_000.0, 1e-6), (30.0, 1e-40)])
def test_a_target_so_loose_that_no_epsilon_is_known_for_so_little_noise_gets_more(epsilon, delta):
    protocol = ScalarSum.calibrated(cohort=1_000, epsilon=epsilon, delta=delta)
    assert 1.0 < accounted(protocol.round()).epsilon(delta).upper <= epsilon


def test_dishonest_clients_that_tell_whether_they_were_drawn_are_charged_for() -> None:
    """Two of forty are drawn, half are honest; the others say so if drawn. Exactly, over both cohorts."""
    population, cohort, honest, epsilon = 40, 2, 20, 0.01
    protocol = ScalarSum(cohort=cohort, levels=30, coins=1000, honest_fraction=0.5)
    weights = {m: math.comb(honest, m) * math.comb(population - honest, cohort - m) for m in (1, 2)}
    truth = 0.0
    for m, weight in weights.items():
        coins = binom(m * protocol.coins, 0.5)
        ones = np.arange(-protocol.levels, m * protocol.coins + protocol.levels + 1)
        without = coins.pmf(ones)
        moved = np.stack([coins.pmf(ones - protocol.levels), without])
        p, q = (m / honest * law + (1 - m / honest) * without for law in moved)
        truth += weight / sum(weights.values()) * float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
    accountant = accounted(protocol.round(population=population))
    assert truth > 0.036
    assert truth <= accountant.delta(epsilon).upper
    assert (
        accounted(ScalarSum(cohort=2, levels=30, coins=500).round(population=population)).delta(epsilon).upper
        < truth
    )
