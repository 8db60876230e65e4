"""Bounds by composing the steps of a permutation: Erlingsson et al. 2019 and Balle et al. 2020."""

import itertools
import math

import numpy as np
import pytest
from brute_force import k_ary_response

from shuffle_plugins.accounting.pairs.clones import binary_pair
from shuffle_plugins.accounting.published import divergences, shuffles
from shuffle_plugins.accounting.published.catalogue import published_bound


def test_known_values() -> None:
    value = shuffles.erlingsson_bound(local_epsilon=0.5, cohort=10**4, delta=1e-6)
    assert value == pytest.approx(0.2230, abs=5e-5)
    for order, expected in ((2, 1.244e-5), (8, 4.975e-5), (32, 1.990e-4)):
        divergence = divergences.erlingsson_rdp(orders=[order], local_epsilon=0.5, cohort=10**6)[0]
        assert divergence == pytest.approx(expected, rel=5e-4)
    composed = published_bound("amplification by shuffling, RDP").epsilon(
        local_epsilon=0.5, population=10**6, cohort=10**6, num_steps=10**5, delta=1e-8
    )
    assert composed == pytest.approx(6.87, abs=5e-3)


def likeliest_positions(local_epsilon: float, slots: int) -> list[float]:
    """For each step, how probable at most, given binary reports so far, that it is the differing client's.

    It picks a uniform slot and holds 0, everybody else holds 1.
    """
    channel = k_ary_response(local_epsilon, 2)
    worst = []
    for step in range(slots):
        largest = 0.0
        for history in itertools.product((0, 1), repeat=step):
            weights = []
            for place in range(slots):
                likelihood = [channel[1, y] for y in history]
                if place < step:
                    likelihood[place] = channel[0, history[place]]
                weights.append(math.prod(likelihood))
            largest = max(largest, weights[step] / sum(weights))
        worst.append(largest)
    return worst


@pytest.mark.parametrize("local_epsilon", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("slots", [1, 2, 6, 10])
def test_check_ins_cover_their_own_steps(local_epsilon: float, slots: int) -> None:
    """Σ qᵢ² ≤ e^ε0/m, so the closed form is above the sum over steps."""
    likeliest = likeliest_positions(local_epsilon, slots)
    steps = [math.log1p(q * math.expm1(local_epsilon)) for q in likeliest]
    assert sum(q**2 for q in likeliest) <= math.exp(local_epsilon) / slots + 1e-12
    for delta in (1e-8, 1e-2):
        squares = sum(step**2 for step in steps)
        mean = sum(step * math.tanh(step / 2) for step in steps)
        exact = mean + math.sqrt(2 * math.log(1 / delta) * squares)
        bound = shuffles.check_in_window_bound(local_epsilon=local_epsilon, window=slots, delta=delta)
        assert exact <= bound * (1 + 1e-12)


def test_shuffling_bounds_lie_above_the_pair_that_dominates() -> None:
    for local_epsilon in (0.01, 0.5, 3.0):
        for n in (1, 1_000, 10**6):
            pair = binary_pair(local_epsilon=local_epsilon, cohort=n)
            for delta in (1e-2, 1e-6, 1e-15):
                question = {"local_epsilon": local_epsilon, "cohort": n, "delta": delta}
                claimed = [shuffles.check_in_shuffle_bound(**question)]
                if local_epsilon <= 0.5 and n >= 1_000:
                    claimed.append(shuffles.erlingsson_bound(**question))
                assert all(pair.delta(epsilon)[1] <= delta for epsilon in claimed if epsilon < local_epsilon)
            if n == 1_000:
                orders = np.array([1.5, 4.0, 50.0])
                loose = divergences.erlingsson_rdp(orders=orders, local_epsilon=local_epsilon, cohort=n)
                assert np.all(np.minimum(loose, local_epsilon) >= pair.rdp(orders) * (1 - 3e-3))


def test_regimes_are_kept() -> None:
    inside = {"local_epsilon": 0.5, "cohort": 1_000, "delta": 0.01}
    shuffles.erlingsson_bound(**inside)
    for change, message in (
        ({"local_epsilon": 0.51}, "local_epsilon"),
        ({"local_epsilon": 0.0}, "local_epsilon"),
        ({"cohort": 999}, "1000 reports"),
        ({"delta": 0.0}, "delta"),
    ):
        with pytest.raises(ValueError, match=message):
            shuffles.erlingsson_bound(**(inside | change))
