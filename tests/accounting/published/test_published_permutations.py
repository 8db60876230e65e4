"""Bounds by composing the steps of a permutation: Erlingsson et al. 2019 and Balle et al. 2020."""

import numpy as np
import pytest

from shuffle_plugins.accounting.published import divergences, shuffles
from shuffle_plugins.accounting.published.catalogue import published_bound
from shuffle_plugins.accounting.published.shuffles import binary_pair


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
