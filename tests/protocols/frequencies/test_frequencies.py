"""One shuffled report per client: the law of what is seen, the errors, and what bad input does."""

import math
from dataclasses import replace

import pytest
import torch
from accounted import accounted
from thinning import first_fast

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.mechanisms import KRandomizedResponse
from shuffle_plugins.protocols import FrequencyEstimation, published
from shuffle_plugins.protocols.frequencies import MOST_REFUSED, frequency_oracles
from shuffle_plugins.randomness import SeededRandomness
from shuffle_plugins.shuffler import BatchRefused, InMemoryShuffler

ORACLES = frequency_oracles()
LISTED = ("hadamard-response", "k-rr", "limited-hadamard", "oue", "rappor", "subset-selection")


def certified(protocol, *, num_steps=1, population=None):
    return accounted(protocol.round(population=population), num_steps=num_steps)


@pytest.mark.parametrize("oracle", ORACLES)
@first_fast("categories", [2, 7])
def test_estimates_are_unbiased_with_the_predicted_error(oracle, categories):
    clients, trials = 60, 500
    protocol = FrequencyEstimation(
        categories=categories, cohort=clients, local_epsilon=1.5, oracle=oracle, honest_fraction=1.0
    )
    x = torch.arange(clients) ** 2 % categories
    truth = torch.bincount(x, minlength=categories) / clients
    found = torch.stack(
        [
            protocol.estimate(protocol.randomize(x, randomness=SeededRandomness(seed))).frequencies
            for seed in range(trials)
        ]
    )
    deviation = math.sqrt(protocol.squared_error / trials)
    assert float((found.mean(dim=0) - truth).norm()) < 4 * deviation
    errors = ((found - truth) ** 2).sum(dim=1)
    assert float(errors.mean()) == pytest.approx(protocol.squared_error, rel=0.25)
    support = protocol.support
    assert support.variance(1.0) + (categories - 1) * support.variance(0.0) == pytest.approx(
        protocol.mechanism.worst_variance, rel=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ["k-rr", "hadamard-response", "local-hashing"])
def test_intervals_hold_as_often_as_they_say(oracle):
    categories, clients, trials = 6, 400, 300
    protocol = FrequencyEstimation(categories=categories, cohort=clients, local_epsilon=2.0, oracle=oracle)
    x = torch.tensor([0] * 300 + [1] * 60 + [2] * 40)
    truth = torch.bincount(x, minlength=categories) / clients
    single = together = within = 0
    reach = protocol.largest_error(confidence=0.9)
    for seed in range(trials):
        histogram = protocol.estimate(protocol.randomize(x, randomness=SeededRandomness(seed)))
        each = protocol.intervals(histogram, confidence=0.9)
        every = protocol.intervals(histogram, confidence=0.9, simultaneous=True)
        single += int(((each.lower <= truth) & (truth <= each.upper)).sum())
        together += bool(((every.lower <= truth) & (truth <= every.upper)).all())
        within += float((histogram.frequencies - truth).abs().max()) <= reach
        assert bool((every.upper - every.lower >= each.upper - each.lower).all())
    assert single / (trials * categories) > 0.88
    assert together / trials > 0.86
    assert within / trials > 0.86


@pytest.mark.slow
def test_calibration_meets_the_target_and_leaves_nothing():
    protocol = FrequencyEstimation.calibrated(
        categories=10, cohort=2_000, epsilon=0.8, delta=1e-6, oracle="hadamard-response"
    )
    assert certified(protocol).epsilon(1e-6, lower=False).upper <= 0.8
    louder = replace(protocol, local_epsilon=protocol.local_epsilon * 1.002)
    assert certified(louder).epsilon(1e-6, lower=False).upper > 0.8
    assert protocol.bits_per_report == 4
    assert protocol.messages_per_client == 1


@pytest.mark.slow
def test_the_best_oracle_is_the_best_of_all():
    size = {"categories": 8, "cohort": 40, "epsilon": 1.0, "delta": 1e-3}
    best = FrequencyEstimation.calibrated(**size)
    errors = {
        name: FrequencyEstimation.calibrated(**size, oracle=name).squared_error
        for name in ("k-rr", "oue", "hadamard-response", "subset-selection")
    }
    assert best.oracle in errors
    assert best.squared_error <= 1.01 * min(errors.values())
    assert best.squared_error == pytest.approx(errors[best.oracle])
    # At one ε0: many categories are subset selection's, few are k-ary response's, in fewer bits.
    assert FrequencyEstimation(categories=3, cohort=10, local_epsilon=3.0).oracle == "k-rr"
    assert FrequencyEstimation(categories=300, cohort=10, local_epsilon=1.0).oracle != "k-rr"


def test_dishonest_clients_hide_nobody():
    protocol = FrequencyEstimation(
        categories=4, cohort=1_000, local_epsilon=3.0, oracle="k-rr", honest_fraction=0.7
    )
    honest = FrequencyEstimation(categories=4, cohort=700, local_epsilon=3.0, oracle="k-rr")
    assert protocol.round() == honest.round()
    sampled = protocol.round(population=7_777)
    assert sampled.cohort == 700
    assert sampled.cohort / sampled.population >= 1_000 / 7_777
    assert sampled.sampling is Sampling.WITHOUT_REPLACEMENT
    assert protocol.round(cohort=500).cohort == 350
    with pytest.raises(ValueError, match="is nobody"):
        FrequencyEstimation(categories=4, cohort=5, local_epsilon=1.0, honest_fraction=0.1)


def forged(protocol, x, wrong):
    reports = protocol.randomize(x, randomness=SeededRandomness(3))
    values = reports.fields[0].values.clone()
    values[wrong] = 7
    return reports, Reports(
        mechanism=reports.mechanism, dim=reports.dim, fields=(Field(values, reports.fields[0].bits),)
    )


def test_impossible_reports_are_left_out_and_counted():
    protocol = FrequencyEstimation(categories=5, cohort=300, local_epsilon=2.0, oracle="k-rr")
    x = torch.arange(300) % 5
    wrong = torch.tensor([0, 17, 18, 299])
    reports, bad = forged(protocol, x, wrong)
    histogram = protocol.estimate(bad)
    assert (histogram.refused, histogram.reports) == (4, 296)
    kept = torch.ones(300, dtype=torch.bool)
    kept[wrong] = False
    left = Reports.concat([reports.narrow(i, i + 1) for i in range(300) if kept[i]])
    assert torch.allclose(histogram.counts, protocol.estimate(left).counts)
    assert protocol.estimate(reports).refused == 0


def test_a_round_of_nothing_but_impossible_reports_is_refused():
    protocol = FrequencyEstimation(categories=5, cohort=10, local_epsilon=2.0, oracle="k-rr")
    _, bad = forged(protocol, torch.zeros(10, dtype=torch.int64), slice(None))
    with pytest.raises(ValueError, match="nobody's data"):
        protocol.estimate(bad)
    many = MOST_REFUSED + 1
    _, bad = forged(protocol, torch.zeros(many, dtype=torch.int64), slice(None))
    with pytest.raises(ValueError, match="more than 4,096"):
        protocol.estimate(bad)
    with pytest.raises(ValueError, match="these are reports of 'k-rr'"):
        protocol.estimate(KRandomizedResponse(local_epsilon=2.0, dim=6).randomize(torch.tensor([5, 1])))


@pytest.mark.parametrize("oracle", LISTED)
def test_no_report_moves_a_count_by_more_than_the_influence(oracle):
    protocol = FrequencyEstimation(categories=4, cohort=8, local_epsilon=1.0, oracle=oracle)
    mechanism = protocol.mechanism
    outcomes = mechanism.outcomes()
    single = torch.stack([mechanism.sum(outcomes.narrow(i, i + 1)) for i in range(len(outcomes))])
    spread = float((single.max(dim=0).values - single.min(dim=0).values).max())
    assert spread == pytest.approx(protocol.influence, rel=1e-9)


def test_what_is_collected_went_through_the_shuffler():
    protocol = FrequencyEstimation(categories=3, cohort=200, local_epsilon=400.0, oracle="k-rr")
    x = torch.arange(200) // 70
    reports = protocol.collect(x)
    assert protocol.estimate(reports).counts.tolist() == pytest.approx([70.0, 70.0, 60.0])
    assert not torch.equal(reports.fields[0].values.long(), x)  # of 200 in blocks: one in C(200; 70, 70, 60)
    assert protocol.estimate(reports).distribution.tolist() == pytest.approx([0.35, 0.35, 0.3])
    with pytest.raises(BatchRefused):
        protocol.collect(x, shuffler=InMemoryShuffler(minimum=201))
    with pytest.raises(ValueError, match="guarantee is that of 200 clients"):
        protocol.collect(x[:199])


def test_our_error_is_below_what_the_theorem_gives_and_above_a_trusted_servers():
    for categories, clients in ((64, 20_000), (500, 200_000)):
        size = {"categories": categories, "cohort": clients, "epsilon": 1.0, "delta": 1e-6}
        theorem = published.one_message(**size)
        ours = FrequencyEstimation.calibrated(**size, oracle="subset-selection")
        assert ours.local_epsilon > theorem.local_epsilon
        assert ours.squared_error < theorem.squared_error / 5
        assert ours.squared_error > published.central_laplace(
            categories=categories, cohort=clients, epsilon=1.0
        )
        # The constant that the theorem's own proof gives, for the error it is stated in.
        order = math.sqrt(categories * math.log(4 / 1e-6)) / clients + 1 / math.sqrt(clients)
        assert math.sqrt(theorem.squared_error) < 20 * order


def test_a_trusted_servers_errors():
    # Balle and Wang 2018: σ = 4.2247 for sensitivity 1 at (1, 1e-6).
    gaussian = published.central_gaussian(categories=3, cohort=10, epsilon=1.0, delta=1e-6)
    assert gaussian == pytest.approx(3 * 2 * 4.2247**2 / 100, rel=1e-3)
    ratio = math.exp(-0.5)
    laplace = published.central_laplace(categories=3, cohort=10, epsilon=1.0)
    assert laplace == pytest.approx(3 * 2 * ratio / (1 - ratio) ** 2 / 100)
    with pytest.raises(ValueError, match="says nothing"):
        published.one_message(categories=3, cohort=50, epsilon=1.0, delta=1e-6)
