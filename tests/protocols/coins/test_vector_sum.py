"""P_vec: messages, coins, calibration, and what bad input meets."""

import math

import pytest
import torch
from accounted import accounted
from scipy.optimize import brentq
from scipy.stats import norm

from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.protocols import VectorSum, published
from shuffle_plugins.randomness import SeededRandomness


def small(**changes):
    return VectorSum(**({"dim": 3, "cohort": 6, "levels": 5, "coins": 40} | changes))


def certified(protocol, delta, **round_options):
    return accounted(protocol.round(**round_options)).epsilon(delta)


def analytic_gaussian_variance(epsilon, delta):
    """Per coordinate, for replace-one sensitivity 2: Balle and Wang 2018."""

    def excess(sigma):
        mu = 2 / sigma
        near = norm.cdf(mu / 2 - epsilon / mu)
        return near - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta

    return brentq(excess, 1e-2, 1e4) ** 2


def test_the_shuffled_multiset_is_a_function_of_the_totals():
    # Two sets of counts with equal totals: sorted, their messages are the same messages.
    protocol = small()
    each = protocol.messages_per_coordinate

    def sorted_messages(rows):
        together = Reports.concat(protocol.messages(protocol.layout.reports(torch.tensor(rows))))
        label, bit = (field.values for field in together.fields)
        return sorted(zip(label.tolist(), bit.tolist(), strict=True))

    assert sorted_messages([[1, 7, each], [5, 3, 0]]) == sorted_messages([[6, 0, 1], [0, 10, each - 1]])


def test_impossible_labels_are_set_aside_and_counted():
    protocol = small()
    (good,) = protocol.messages(protocol.randomize(torch.zeros(1, 3), randomness=SeededRandomness(7)))
    forged = Reports(
        mechanism=protocol.name,
        dim=3,
        fields=(Field(torch.tensor([3, 3, 1]).byte(), 2), Field(torch.tensor([1, 0, 1]).byte(), 1)),
    )
    found = protocol.tally(Reports.concat([good, forged]))
    assert found.foreign == 2
    alone = protocol.tally(good)
    assert (found.ones - alone.ones).tolist() == [0, 1, 0]


def test_impossible_counts_are_refused():
    protocol = small()
    forged = protocol.layout.reports(torch.tensor([[0, 0, protocol.messages_per_coordinate + 1]]))
    for call in (protocol.total, protocol.messages):
        with pytest.raises(ValueError, match="outside"):
            call(forged)
    many = VectorSum(dim=1000, cohort=10, levels=10, coins=100_000)
    with pytest.raises(ValueError, match="hand the shuffler whole reports"):
        many.messages(many.layout.reports(torch.zeros(1, 1000, dtype=torch.int64)))


@pytest.mark.parametrize(("dim", "clients"), [(1_000, 10_000), (1, 100), (100_000, 1_000_000)])
def test_calibrated_noise_is_the_gaussian_mechanisms(dim, clients):
    epsilon, delta = 1.0, 1e-6
    protocol = VectorSum.calibrated(dim=dim, cohort=clients, epsilon=epsilon, delta=delta)
    found = certified(protocol, delta)
    assert found.upper <= epsilon
    assert found.lower > 0.98 * epsilon
    ideal = analytic_gaussian_variance(epsilon, delta)
    assert ideal <= protocol.noise_variance <= 1.03 * ideal
    assert protocol.worst_variance <= 1.03 * dim * ideal
    paper = published.vector_sum(dim=dim, cohort=clients, epsilon=epsilon, delta=delta)
    assert paper.noise_variance > 40 * protocol.noise_variance
