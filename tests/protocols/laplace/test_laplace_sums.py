"""Sums with shares of discrete Laplace noise: whole laws of small instances, errors, liars, drop-outs."""

import itertools
import math

import numpy as np
import pytest
import torch
from accounted import accounted
from noisy_histograms import profile, worst_deltas
from scipy import signal, stats

from shuffle_plugins.accounting import LaplaceRound
from shuffle_plugins.core.reports import Field
from shuffle_plugins.protocols import (
    HistogramSum,
    LaplaceHistogram,
    LaplaceQuantiles,
    LaplaceScalarSum,
    LaplaceVectorSum,
    UnaryL1Sum,
    dap_task,
)
from shuffle_plugins.randomness import SeededRandomness
from shuffle_plugins.secure_aggregation.prio3 import Prio3SumVec

TARGET = {"epsilon": 1.0, "delta": 1e-6}


def law_of_noise(rate, shape, reach):
    """Masses at −reach, …, reach of the difference of two negative binomials, by SciPy."""
    masses = stats.nbinom(shape, -math.expm1(-rate)).pmf(np.arange(2 * reach + 400))
    return signal.convolve(masses, masses[::-1], method="direct")[
        len(masses) - 1 - reach : len(masses) + reach
    ]


@pytest.mark.parametrize("clients", [2, 4, 6])
@pytest.mark.parametrize("honest", [1.0, 0.5])
def test_no_neighbouring_histograms_leak_more_than_certified(clients, honest):
    """All datasets of three categories, each count's law by convolving the shares of those who are honest."""
    protocol = LaplaceHistogram(categories=3, cohort=clients, noise_epsilon=1.2, honest_fraction=honest)
    noise = law_of_noise(protocol.rate, 1.0, 60)
    assert noise == pytest.approx(math.tanh(0.3) * np.exp(-0.6 * np.abs(np.arange(-60, 61))), rel=1e-9)
    found = accounted(protocol.round())
    for epsilon, exact in worst_deltas(noise, clients=clients, levels=(0.0, 0.3, 0.8, 1.19)).items():
        bound = found.delta(epsilon)
        assert bound.lower * (1 - 1e-9) <= exact <= bound.upper * (1 + 1e-9)
        assert bound.upper - exact < 1e-6
    assert protocol.round().pure_epsilon == pytest.approx(1.2)
    assert found.epsilon(1e-15).upper <= 1.2 * (1 + 1e-9)


@pytest.mark.parametrize(("sensitivity", "rate"), [(3, 0.4), (6, 0.15), (4, 1.5)])
def test_one_coordinate_is_the_worst_way_to_spend_a_distance(sensitivity, rate):
    """Every way to split an ℓ1 distance over coordinates, by the product of their laws."""
    recorded = LaplaceRound(
        noise_epsilon=rate * sensitivity, sensitivity=sensitivity, coordinates=3, population=9, cohort=9
    )
    found, reach = accounted(recorded), math.ceil(25 / rate)
    noise = law_of_noise(rate, 1.0, reach + sensitivity)
    for split in itertools.combinations_with_replacement(range(sensitivity + 1), 3):
        if sum(split) > sensitivity:
            continue
        losses, masses = np.zeros(1), np.ones(1)
        for by in split:
            p, q = noise[: len(noise) - by], noise[by:]
            ratio = np.round(np.log(p / q) / rate)
            values, place = np.unique(ratio, return_inverse=True)
            own = np.bincount(place, weights=p)
            losses, masses = (np.add.outer(losses, values).ravel(), np.multiply.outer(masses, own).ravel())
        for epsilon in (0.0, 0.2 * rate, rate, 0.7 * rate * sensitivity):
            exact = float((masses * np.maximum(1 - np.exp(epsilon - rate * losses), 0)).sum())
            assert exact <= found.delta(epsilon).upper * (1 + 1e-7)


@pytest.mark.parametrize("shape", [0.05, 0.3, 0.8, 0.95])
@pytest.mark.parametrize(
    ("sensitivity", "coordinates", "evenly"), [(2, 2, True), (5, 1, True), (4, 3, False)]
)
def test_fewer_shares_cost_what_their_own_law_does(shape, sensitivity, coordinates, evenly):
    """ε at δ = 0 is the largest ratio of masses, and no δ is above the certified one."""
    rate = 0.5
    recorded = LaplaceRound(
        noise_epsilon=rate * sensitivity,
        sensitivity=sensitivity,
        coordinates=coordinates,
        evenly=evenly,
        shape=shape,
        population=9,
        cohort=9,
    )
    noise, found = law_of_noise(rate, shape, 60), accounted(recorded)
    largest = {
        by: float(np.log(noise[10:-10] / np.roll(noise, by)[10:-10]).max()) for by in range(sensitivity + 1)
    }
    splits = [(sensitivity // coordinates,) * coordinates] if evenly else [(2, 1, 1), (4, 0, 0), (2, 2, 0)]
    exact = max(sum(largest[by] for by in split) for split in splits)
    assert exact <= recorded.pure_epsilon * (1 + 1e-9)
    assert recorded.pure_epsilon <= exact * (1 + 1e-6) or not evenly
    assert recorded.pure_epsilon > rate * sensitivity
    assert recorded.lower_families == ()
    for split in splits:
        p = q = np.ones(1)
        for by in (each for each in split if each):
            p, q = (np.multiply.outer(law, own).ravel() for law, own in ((p, noise[:-by]), (q, noise[by:])))
        for epsilon in (0.0, 0.5, 1.0):
            assert profile(p, q, epsilon) <= found.delta(epsilon).upper * (1 + 1e-7)


def test_drop_outs_cost_what_is_said_and_those_provided_for_nothing():
    whole = LaplaceHistogram.calibrated(categories=20, cohort=1_000, **TARGET)
    robust = LaplaceHistogram.calibrated(categories=20, cohort=1_000, honest_fraction=0.8, **TARGET)
    assert robust.noise_epsilon == whole.noise_epsilon
    assert robust.worst_variance == pytest.approx(whole.worst_variance / 0.8, rel=1e-6)
    assert accounted(robust.round()).epsilon(1e-6).upper <= 1.0
    spent = [accounted(whole.round(cohort=n)).epsilon(1e-6).upper for n in (1_000, 990, 900, 800, 100)]
    assert spent == sorted(spent)
    assert 1.3 < spent[3] < 1.4  # a fifth of the shares is missing
    x = torch.arange(800) % 20
    found = robust.estimate(robust.total(robust.randomize(x)), reports=800)
    assert float((found.counts - 40).abs().max()) < 80  # unbiased; the noise of a count deviates by 3
    assert found.reports == 800


def test_errors_are_those_of_a_trusted_server():
    protocol = LaplaceHistogram.calibrated(categories=100, cohort=10_000, **TARGET)
    assert 10_000 * math.sqrt(protocol.squared_error) < 28.1
    coins = HistogramSum.calibrated(categories=100, cohort=10_000, **TARGET)
    assert coins.squared_error > 4.5 * protocol.squared_error
    held = torch.arange(10_000) % 100
    errors = [
        float(
            (protocol.randomize_histogram(held, randomness=SeededRandomness(seed)).counts - 100)
            .square()
            .sum()
        )
        for seed in range(60)
    ]
    assert np.mean(errors) == pytest.approx(protocol.worst_variance, rel=0.12)  # 5 standard errors
    vector = LaplaceVectorSum.calibrated(dim=100, cohort=10_000, **TARGET)
    unary = UnaryL1Sum.calibrated(dim=100, cohort=10_000, **TARGET)
    assert vector.worst_variance < unary.worst_variance / 20


@pytest.mark.parametrize("shape", [1.0, 0.25])
@pytest.mark.parametrize("times", [1, 3])  # as many clients as planned, and more
def test_a_count_is_off_by_more_than_its_reach_as_seldom_as_its_law_says(shape, times):
    protocol = LaplaceHistogram(categories=5, cohort=40, noise_epsilon=1.0, honest_fraction=shape)
    noise = law_of_noise(protocol.rate, times / shape, 300)
    steps = round(protocol._reach(0.05, reports=40 * times))
    outside = [1 - noise[300 - t : 301 + t].sum() for t in (steps, steps - 2)]
    assert outside[0] <= 0.05 < outside[1]


def test_reports_add_up_to_the_sum_and_its_noise():
    """Ten thousand sums of five clients' reports, against the law that a trusted server would draw from."""
    protocol = LaplaceScalarSum(cohort=5, levels=4, noise_epsilon=1.6)
    x = torch.tensor([[0.0], [0.25], [0.5], [1.0], [7.0]])
    reports = protocol.randomize(x.repeat(10_000, 1), randomness=SeededRandomness(3))
    counts = reports.fields[0].values.reshape(10_000, 5).sum(dim=1) + 5 * protocol.counts.lowest
    drawn = np.array([(counts == 11 + k).double().mean() for k in range(-12, 13)])
    expected = math.tanh(0.2) * np.exp(-0.4 * np.abs(np.arange(-12, 13)))
    assert np.all(np.abs(drawn - expected) < 5.5 * np.sqrt(expected / 10_000))


def test_vectors_stay_in_their_ball_and_are_unbiased():
    protocol = LaplaceVectorSum(dim=6, cohort=3, levels=5, noise_epsilon=1.0, radius=2.0)
    x = torch.tensor([[0.3, -0.7, 0.0, 0.1, 0.2, -0.2], [9.0, -9.0, 0.0, 0.0, 0.0, 0.0], [math.nan] * 6])
    encoded = protocol.lattice.encode(x.repeat(20_000, 1), randomness=SeededRandomness(1)).view(20_000, 3, 6)
    assert int(encoded.abs().sum(dim=2).max()) == 5
    assert not bool(encoded[:, 2].any())
    kept = torch.stack([x[0], x[1] / 9])
    assert torch.allclose(encoded[:, :2].double().mean(dim=0) * 0.4, kept.double(), atol=0.01)
    assert float(encoded[:, 0].double().var(dim=0).max()) <= 0.2501
    full = torch.full((4, 6), 1 / 3)
    for seed in range(200):
        rounded = protocol.lattice.encode(full, randomness=SeededRandomness(seed))
        assert rounded.sum(dim=1).tolist() == [5] * 4


def test_quantiles_are_near_and_the_tree_agrees_with_itself():
    protocol = LaplaceQuantiles.calibrated(lower=-1.0, upper=3.0, cohort=20_000, leaves=256, **TARGET)
    x = torch.linspace(0, 3, 20_000, dtype=torch.float64).square() / 3
    found = protocol.estimate(protocol.share(x[:, None], randomness=SeededRandomness(1)), reports=20_000)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        below = float((x <= found.quantile(share)).double().mean())
        assert below == pytest.approx(share, abs=0.02)
    quiet = LaplaceQuantiles(lower=0.0, upper=1.0, cohort=50, leaves=8, noise_epsilon=400.0)
    told = quiet.estimate(quiet.total(quiet.randomize(torch.full((50, 1), 0.3))), reports=50)
    assert told.below.tolist() == [0.0, 0.0, 0.0, *[50.0] * 6]
    assert 0.25 <= told.quantile(0.5) <= 0.375
    extremes = torch.tensor([[math.nan], [-5.0], [9.0], [math.inf]])
    assert quiet.lattice.cells(extremes)[:, -1].tolist() == [6, 6, 13, 13]
    raw = protocol.noise_variance * sum(range(1, 9))
    ranks = [
        float(
            protocol.estimate(
                protocol.share(x[:, None], randomness=SeededRandomness(s)), reports=20_000
            ).below[128]
        )
        - float((x < 1).sum())
        for s in range(40)
    ]
    assert np.mean(np.square(ranks)) < raw


def test_everybody_is_below_the_last_edge():
    protocol = LaplaceQuantiles(lower=0.0, upper=1.0, cohort=1_000, leaves=64, noise_epsilon=1.0)
    x = torch.linspace(0, 1, 1_000, dtype=torch.float64)[:, None]
    for seed in range(60):
        found = protocol.estimate(protocol.share(x, randomness=SeededRandomness(seed)), reports=1_000)
        assert found.below[-1] == 1_000
        assert 0.0 <= found.quantile(0.5) <= found.quantile(1.0) <= 1.0


def test_what_liars_send_is_bounded_or_refused():
    protocol = LaplaceHistogram(categories=3, cohort=4, noise_epsilon=1.0)
    reports = protocol.randomize(torch.tensor([0, 0, 1, 2]), randomness=SeededRandomness(2))
    honest = protocol.estimate(protocol.total(reports), reports=4).counts
    values = reports.fields[0].values.long()
    most = protocol.counts.highest - protocol.counts.lowest
    values[3] = most
    moved = protocol.estimate(protocol.total(protocol.layout.reports(values)), reports=4).counts - honest
    assert float(moved.abs().max()) <= protocol.influence
    values[3, 0] = most + 1
    forged = type(reports)(
        mechanism=reports.mechanism, dim=reports.dim, fields=(Field(values, reports.fields[0].bits),)
    )
    with pytest.raises(ValueError, match="drop it"):
        protocol.total(forged)
    with pytest.raises(ValueError, match="only added up"):
        protocol.messages(reports)
    with pytest.raises(ValueError, match="a total is"):
        protocol.estimate(torch.zeros(4, dtype=torch.int64), reports=4)
    with pytest.raises(ValueError, match="use fewer levels"):
        LaplaceScalarSum(cohort=4, levels=1 << 24, noise_epsilon=0.5)


@pytest.mark.slow
def test_noisy_counts_go_through_the_vdaf():
    """The sum that two aggregators find, proofs checked, is the protocol's total."""
    protocol = LaplaceHistogram(categories=3, cohort=2, noise_epsilon=20.0)
    task = dap_task(protocol)
    prio3, reports = Prio3SumVec(**task.parameters), protocol.randomize(torch.tensor([0, 2]))
    assert task.offset == protocol.counts.lowest < 0
    sent = reports.fields[0].values.reshape(2, 3).long()  # a report has its offset taken off
    for client in sent:
        prio3.shard(client.numpy(), context=b"a task")  # in range
    with pytest.raises(ValueError, match=r"range|0 to|at most|between"):
        prio3.shard(sent[0].numpy() + task.most + 1, context=b"a task")
    total = task.total(sent.sum(dim=0), reports=2)
    assert torch.equal(total, protocol.total(reports))
    assert task.client["noise_shape"] == [1, 2]
