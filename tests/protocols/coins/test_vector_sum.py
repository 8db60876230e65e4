"""P_vec: messages, coins, calibration, and what bad input meets."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import binom, chisquare, norm

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.core import Field, Reports
from shuffle_plugins.protocols import Tally, VectorSum, published
from shuffle_plugins.protocols.draws import DISTANCE, RATIO, alias_table, heads
from shuffle_plugins.protocols.lattices import FixedPoint
from shuffle_plugins.randomness import SeededRandomness
from shuffle_plugins.shuffler import InMemoryShuffler


def small(**changes):
    return VectorSum(**({"dim": 3, "cohort": 6, "levels": 5, "coins": 40} | changes))


def certified(protocol, delta, **round_options):
    accountant = ShuffleAccountant()
    accountant.step(protocol.round(**round_options))
    return accountant.epsilon(delta)


def analytic_gaussian_variance(epsilon, delta):
    """Per coordinate, for replace-one sensitivity 2: Balle and Wang 2018."""

    def excess(sigma):
        mu = 2 / sigma
        near = norm.cdf(mu / 2 - epsilon / mu)
        return near - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta

    return brentq(excess, 1e-2, 1e4) ** 2


# -- coins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coins", [1, 5, 64, 65, 256, 257, 1000])
def test_coins_have_the_binomial_law(coins):
    draws = heads(coins, 40_000, randomness=SeededRandomness(1)).numpy()
    expected = binom.pmf(np.arange(coins + 1), coins, 0.5) * len(draws)
    kept = expected > 10
    seen = np.bincount(draws, minlength=coins + 1)
    groups = np.append(seen[kept], seen[~kept].sum())
    wanted = np.append(expected[kept], expected[~kept].sum())
    if wanted[-1] == 0:
        groups, wanted = groups[:-1], wanted[:-1]
    assert chisquare(groups, wanted * groups.sum() / wanted.sum()).pvalue > 1e-4


@pytest.mark.parametrize("coins", [300, (1 << 20) + 1, (1 << 20) + 2, 5_000_000])
def test_the_tables_law_is_the_binomial_written_out_from_its_columns(coins):
    table = alias_table(coins)
    full = 2.0 ** (64 - table.bits)
    own = (table.high.astype(np.longdouble) + table.low.astype(np.longdouble) * 2.0**-64) / full
    law = own + np.bincount(table.other, weights=np.asarray(1 - own, dtype=float), minlength=len(own))
    law = np.asarray(law / len(law), dtype=np.float64)
    counts = table.first + np.arange(len(law))
    assert law.sum() == pytest.approx(1, abs=1e-14)
    # Ratios of neighbours, exact to a rounding, instead of another library's logarithms.
    middle = coins // 2
    listed = min(2000, math.floor(2.5 * math.sqrt(coins)))
    ahead = np.arange(middle, middle + listed)
    ratios = (coins - ahead) / (ahead + 1)
    above = law[counts >= middle]
    assert np.allclose(above[1 : listed + 1] / above[:listed], ratios, rtol=1e-9)
    assert np.allclose(law[counts <= coins - middle][::-1][:listed], above[:listed], rtol=1e-12)


def test_many_coins_have_the_right_mean_and_variance():
    coins = 3_000_000
    draws = heads(coins, 20_000, randomness=SeededRandomness(2)).double()
    assert abs(float(draws.mean()) - coins / 2) < 5 * math.sqrt(coins / 4 / 20_000)
    assert float(draws.var()) == pytest.approx(coins / 4, rel=0.05)


def test_no_coins_and_impossible_ones():
    assert heads(0, 3).tolist() == [0, 0, 0]
    for coins, size in ((-1, 1), (True, 1), ((1 << 40) + 1, 1), (5, -1)):
        with pytest.raises(ValueError, match="must be a whole number"):
            heads(coins, size)


# -- lattice -----------------------------------------------------------------------------------------------


def test_rounding_is_unbiased_and_bounded():
    lattice = FixedPoint(dim=4, radius=2.0, levels=7)
    x = torch.tensor([[1.0, -0.3, 1.2, 0.05], [0.0, 0.0, 0.0, -2.0]])
    encoded = lattice.encode(x.repeat_interleave(20_000, dim=0), randomness=SeededRandomness(3))
    assert float((encoded.double() ** 2).sum(dim=1).max()) <= lattice.norm_bound**2
    for row, part in zip(x.double(), encoded.split(20_000), strict=True):
        error = lattice.in_units(part.sum(dim=0)) / 20_000 - row
        assert float(error.abs().max()) < 5 * 0.5 * (2.0 / 7) / math.sqrt(20_000) + 1e-9


def test_a_rounding_that_came_out_too_long_goes_towards_zero(monkeypatch):
    lattice = FixedPoint(dim=4, radius=1.0, levels=10)
    monkeypatch.setattr(FixedPoint, "norm_bound", property(lambda self: 9.5))
    encoded = lattice.encode(torch.full((500, 4), 0.47), randomness=SeededRandomness(4))
    assert float((encoded.double() ** 2).sum(dim=1).max()) <= 9.5**2
    assert (encoded == 4).all(dim=1).any()


def test_vectors_outside_the_ball_are_brought_onto_it():
    lattice = FixedPoint(dim=2, radius=1.0, levels=100)
    encoded = lattice.encode(torch.tensor([[30.0, 40.0], [1e30, 0.0]]), randomness=SeededRandomness(5))
    assert encoded.tolist()[0] == [60, 80] or (encoded[0] - torch.tensor([60, 80])).abs().max() <= 1
    assert encoded[1].tolist() in ([100, 0], [99, 0])


# -- messages ----------------------------------------------------------------------------------------------


def test_counts_and_shuffled_bits_are_the_same_sum():
    protocol = small()
    x = torch.randn(6, 3) / 3
    counts = protocol.randomize(x, randomness=SeededRandomness(6))
    batches = protocol.messages(counts)
    assert {len(batch) for batch in batches} == {protocol.messages_per_client}
    assert {batch.bits_per_report for batch in batches} == {protocol.bits_per_message}
    shuffled = InMemoryShuffler(minimum=2).shuffle(batches)
    found = protocol.tally(shuffled)
    assert torch.equal(found.ones, protocol.total(counts))
    assert found.bits.tolist() == [6 * protocol.messages_per_coordinate] * 3
    assert found.foreign == 0
    assert torch.equal(protocol.estimate(found), protocol.estimate(protocol.total(counts), reports=6))


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


def test_who_dropped_out_is_not_counted():
    protocol = small(cohort=50)
    counts = protocol.randomize(torch.full((50, 3), 0.3), randomness=SeededRandomness(8))
    here = counts.narrow(0, 20)
    expected = protocol.sum(here)
    parts = protocol.total(here.narrow(0, 7)) + protocol.total(here.narrow(7, 20))
    assert torch.equal(protocol.estimate(parts, reports=20), expected)
    first, rest = (
        Reports.concat(protocol.messages(part)) for part in (here.narrow(0, 7), here.narrow(7, 20))
    )
    listed = sum([protocol.tally(first), protocol.tally(rest)])
    assert torch.equal(protocol.estimate(listed), expected)
    assert not torch.equal(protocol.estimate(protocol.total(here), reports=50), expected)


def test_totals_that_do_not_say_whose_they_are_are_refused():
    protocol = small()
    counts = protocol.randomize(torch.zeros(6, 3))
    ones = protocol.total(counts)
    with pytest.raises(ValueError, match="pass reports="):
        protocol.estimate(ones)
    for clients in (-1, 6.0, True):
        with pytest.raises(ValueError, match="reports must be"):
            protocol.estimate(ones, reports=clients)
    messages = protocol.messages(counts)[0]
    for part in (messages.narrow(0, 1), messages.narrow(0, len(messages) - 1)):
        with pytest.raises(ValueError, match="whole number of clients"):
            protocol.estimate(protocol.tally(part))
    with pytest.raises(ValueError, match=r"a total is \(3,\)"):
        protocol.estimate(ones[:2], reports=6)
    with pytest.raises(ValueError, match="not of 'vector-sum'"):
        protocol.messages(messages)
    with pytest.raises(ValueError, match="not of 'vector-sum'"):
        protocol.tally(replace(messages, mechanism="scalar-sum"))
    with pytest.raises(ValueError, match="labels do not add up"):
        sum([protocol.tally(messages), Tally(ones=ones[:2], bits=ones[:2])])


# -- the estimate ------------------------------------------------------------------------------------------


def test_the_estimate_is_unbiased_with_the_variance_it_says():
    protocol = small(cohort=50, coins=7, levels=4, radius=2.0)
    x = torch.randn(50, 3, dtype=torch.float64) / 2
    errors = []
    for seed in range(2_000):
        source = SeededRandomness(seed)
        errors.append(protocol.sum(protocol.randomize(x, randomness=source)) - _clipped(x).sum(0))
    errors = torch.stack(errors)
    deviation = math.sqrt(protocol.noise_variance)
    assert float(errors.mean(dim=0).abs().max()) < 5 * deviation * 1.5 / math.sqrt(len(errors))
    observed = float(errors.square().sum(dim=1).mean())
    assert 3 * protocol.noise_variance * 0.95 < observed < protocol.worst_variance * 1.05


def _clipped(x):
    return x * (2.0 / x.norm(dim=1, keepdim=True).clamp(min=2.0))


@pytest.mark.slow
def test_simulating_everybody_at_once_has_the_same_law():
    protocol = small(cohort=20, coins=9)
    x = torch.full((20, 3), 0.3)
    one_by_one = torch.stack(
        [protocol.sum(protocol.randomize(x, randomness=SeededRandomness(seed))) for seed in range(1_500)]
    )
    at_once = torch.stack(
        [protocol.randomize_sum(x, randomness=SeededRandomness(10_000 + seed)) for seed in range(1_500)]
    ).double()
    assert torch.allclose(
        one_by_one.mean(0), at_once.mean(0), atol=5 * math.sqrt(protocol.noise_variance / 700)
    )
    assert torch.allclose(one_by_one.var(0), at_once.var(0), rtol=0.2)
    values = [np.unique(np.round(sample.numpy() * 5), return_counts=True) for sample in (one_by_one, at_once)]
    assert set(values[0][0]) & set(values[1][0])


def test_a_sum_of_another_number_of_clients_is_refused():
    with pytest.raises(ValueError, match="6 clients"):
        small().randomize_sum(torch.zeros(5, 3))


# -- what it costs -----------------------------------------------------------------------------------------


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


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [8.0, 12.0, 40.0])
def test_so_it_is_where_delta_has_no_room_for_the_distance_of_coins(epsilon):
    # All coordinates' coins, known to within 2**-52 each and charged 1 + e^ε times, would take more than δ.
    dim, delta = 2_000_000, 1e-6
    protocol = VectorSum.calibrated(dim=dim, cohort=10_000, epsilon=epsilon, delta=delta)
    assert (1 + math.exp(epsilon)) * protocol.round().replacement_distance > delta
    found = certified(protocol, delta)
    assert 0.97 * epsilon < found.upper <= epsilon
    ideal = analytic_gaussian_variance(epsilon, delta)
    assert ideal <= protocol.noise_variance <= 1.03 * ideal


def test_less_overhead_costs_more_messages():
    frugal, exact = (
        VectorSum.calibrated(dim=50, cohort=500, epsilon=1.0, delta=1e-6, overhead=overhead)
        for overhead in (0.3, 0.01)
    )
    assert frugal.messages_per_client < exact.messages_per_client
    assert frugal.noise_variance > exact.noise_variance


def test_fewer_honest_clients_are_made_up_for_and_fewer_still_cost_more():
    options = {"dim": 5, "cohort": 300, "epsilon": 1.0, "delta": 1e-6}
    everybody, half = (VectorSum.calibrated(**options, honest_fraction=share) for share in (1.0, 0.5))
    assert half.noise_variance == pytest.approx(2 * everybody.noise_variance, rel=0.05)
    assert certified(half, 1e-6).upper <= 1.0
    # The guarantee degrades smoothly with the share that is honest.
    costs = [
        certified(
            VectorSum(
                dim=5, cohort=300, levels=everybody.levels, coins=everybody.coins, honest_fraction=share
            ),
            1e-6,
        ).upper
        for share in (1.0, 0.7, 1 / 3)
    ]
    assert costs == sorted(costs)
    assert costs[-1] < 2.2


def test_fewer_reports_than_planned_cost_more():
    protocol = VectorSum.calibrated(dim=5, cohort=300, epsilon=1.0, delta=1e-6)
    assert certified(protocol, 1e-6, cohort=200).upper > certified(protocol, 1e-6).upper


def test_many_sampled_steps_are_calibrated_together():
    protocol = VectorSum.calibrated(
        dim=20, cohort=100, population=1_000, num_steps=50, epsilon=2.0, delta=1e-5
    )
    accountant = ShuffleAccountant()
    accountant.step(protocol.round(population=1_000), num_steps=50)
    found = accountant.epsilon(1e-5)
    assert 1.9 < found.upper <= 2.0


def test_drawing_charges_its_distance():
    assert small().round().coin_distance == DISTANCE
    assert small().round().coin_ratio == 6 * RATIO
    many = small(coins=1 << 33)  # all of them together in twelve parts, or each client's in two
    assert many.round().coin_distance == DISTANCE
    assert many.round().coin_ratio == 6 * 13 * RATIO
