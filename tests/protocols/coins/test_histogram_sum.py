"""Histograms with everybody's coins: the whole law on small instances, calibration, errors, bad input."""

import math

import numpy as np
import pytest
import torch
from accounted import accounted
from scipy.stats import binom

from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.protocols import HistogramSum, published
from shuffle_plugins.randomness import SeededRandomness
from shuffle_plugins.shuffler import InMemoryShuffler


@pytest.mark.parametrize(("clients", "levels", "coins"), [(2, 1, 60), (3, 2, 50), (4, 5, 100)])
def test_no_neighbouring_datasets_leak_more_than_certified(clients, levels, coins):
    protocol = HistogramSum(categories=3, cohort=clients, levels=levels, coins=coins)
    whole = accounted(protocol.round())
    trials = clients * coins
    still = np.concatenate([binom.pmf(np.arange(trials + 1), trials, 0.5), np.zeros(levels)])
    moved = np.roll(still, levels)
    # Two counts move, whatever the others hold; the third category's has the same law on both sides.
    p, q = np.outer(moved, still), np.outer(still, moved)
    for epsilon in (0.05, 0.2, 0.5, 1.0):
        exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
        assert whole.delta(epsilon).lower <= exact * (1 + 1e-9)
        assert exact <= whole.delta(epsilon).upper * (1 + 1e-9)


@pytest.mark.parametrize(("categories", "clients", "epsilon"), [(10, 500, 1.0), (2_000, 50_000, 0.5)])
def test_calibrated_noise_is_the_gaussian_mechanisms(categories, clients, epsilon):
    delta = 1e-6
    protocol = HistogramSum.calibrated(categories=categories, cohort=clients, epsilon=epsilon, delta=delta)
    spent = accounted(protocol.round()).epsilon(delta, lower=False).upper
    assert 0.98 * epsilon < spent <= epsilon
    central = published.central_gaussian(categories=categories, cohort=clients, epsilon=epsilon, delta=delta)
    assert central <= protocol.squared_error <= 1.04 * central


@pytest.mark.parametrize("categories", [4, 64])
def test_a_larger_overhead_never_makes_a_target_unreachable(categories):
    """Neighbouring lattices may take equally many coins; the search for closer coins goes on past those."""
    target = {"categories": categories, "cohort": 200, "epsilon": 1.0, "delta": 1e-6}
    messages = []
    for overhead in (0.02, 0.05, 0.1, 0.3):
        protocol = HistogramSum.calibrated(**target, overhead=overhead)
        assert accounted(protocol.round()).epsilon(1e-6, lower=False).upper <= 1.0
        messages.append(protocol.messages_per_client)
    assert messages == sorted(messages, reverse=True)


def test_a_count_is_off_by_more_than_its_reach_as_seldom_as_its_coins_say():
    protocol = HistogramSum(categories=5, cohort=40, levels=4, coins=6)
    coins = binom(6 * 160, 0.5)  # of four times as many clients
    reach = 4 * protocol._reach(0.05, reports=160)
    assert 2 * coins.sf(6 * 80 + reach) <= 0.05 < 2 * coins.sf(6 * 80 + reach - 4)


def test_what_malicious_clients_send_is_bounded_or_set_aside():
    protocol = HistogramSum(categories=3, cohort=4, levels=2, coins=20)
    x = torch.tensor([0, 0, 1, 2])
    counts = protocol.randomize(x, randomness=SeededRandomness(2))
    honest = protocol.estimate(protocol.total(counts), reports=4).counts
    most = counts.fields[0].values.clone()
    most[3] = protocol.messages_per_coordinate
    forged = protocol.layout.reports(most)
    moved = (protocol.estimate(protocol.total(forged), reports=4).counts - honest).abs()
    assert float(moved.max()) <= protocol.influence
    most[3, 0] += 1
    with pytest.raises(ValueError, match="leave its messages out"):
        protocol.total(protocol.layout.reports(most))
    (good,) = protocol.messages(counts.narrow(0, 1))
    label = torch.full_like(good.fields[0].values, 3)
    foreign = Reports(
        mechanism=good.mechanism, dim=good.dim, fields=(Field(label, good.fields[0].bits), good.fields[1])
    )
    rest = protocol.messages(counts.narrow(1, 4))
    seen = protocol.tally(InMemoryShuffler().shuffle([foreign, *rest]))
    histogram = protocol.estimate(seen, reports=3)
    assert histogram.refused == protocol.messages_per_client
    without = protocol.estimate(protocol.total(counts.narrow(1, 4)), reports=3)
    assert torch.equal(histogram.counts, without.counts)
