"""Histograms with decoys: every dataset's law, a second route, lengths of reports, real mixers, liars."""

import itertools
import math

import numpy as np
import pytest
import torch
from accounted import accounted
from noisy_histograms import profile, worst_deltas
from scipy import stats

from shuffle_plugins.accounting import DecoyRound
from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.protocols import DecoyHistogram, HistogramSum
from shuffle_plugins.randomness import SeededRandomness

TARGET = {"epsilon": 1.0, "delta": 1e-6}
LEVELS = (0.0, 0.2, 0.7, 1.3)


@pytest.mark.parametrize("clients", [2, 4, 6])
@pytest.mark.parametrize("honest", [1.0, 0.5])
def test_no_neighbouring_datasets_leak_more_than_certified(clients, honest):
    """All datasets of three categories; decoys of the honest alone, as the others may send none."""
    protocol = DecoyHistogram(categories=3, cohort=clients, decoys=9.0, honest_fraction=honest)
    found, decoys = accounted(protocol.round()), stats.poisson(9.0).pmf(np.arange(70))
    for epsilon, exact in worst_deltas(decoys, clients=clients, levels=LEVELS).items():
        bound = found.delta(epsilon)
        assert bound.lower * (1 - 1e-9) <= exact <= bound.upper * (1 + 1e-9)
        assert bound.upper - bound.lower < 1e-3 * exact + 1.3e-4  # e^-9 of infinite loss counts above alone


@pytest.mark.parametrize("mean", [4.0, 42.7, 70.0])
def test_the_profile_is_that_of_a_poisson_number_of_clones(mean):
    """Given how many decoys there are of both categories, they are coins: a second way to the profile."""
    found = accounted(DecoyRound(decoys=mean, population=9, cohort=9))
    for epsilon in (0.0, 1 / math.sqrt(mean), 4 / math.sqrt(mean)):
        exact = 0.0
        low, high = (int(stats.poisson(2 * mean).ppf(share)) for share in (1e-15, 1 - 1e-15))
        for number in range(low, high + 60):
            split = stats.binom(number, 0.5).pmf(np.arange(number + 1))
            p, q = np.append(0.0, split), np.append(split, 0.0)
            exact += stats.poisson(2 * mean).pmf(number) * profile(p, q, epsilon)
        bound = found.delta(epsilon)
        assert bound.lower * (1 - 1e-8) <= exact <= bound.upper * (1 + 1e-8)
        assert exact == pytest.approx(bound.upper, rel=1e-3)


def test_the_number_of_messages_of_each_client_tells_nothing_more():
    """Two clients, two categories: the joint law of both numbers and the counts, and that of counts alone."""
    mean, most = 1.3, 26
    each = stats.poisson(2 * mean / 2).pmf(np.arange(most))

    def joint(own):
        """P[D1, D2, count of category 0]; the other count follows. The second client holds category 0."""
        law = np.zeros((most, most, 2 * most + 2))
        for first, second in itertools.product(range(most), repeat=2):
            number = first + second
            split = stats.binom(number, 0.5).pmf(np.arange(number + 1))
            law[first, second, 1 + (own == 0) : 1 + (own == 0) + number + 1] = (
                each[first] * each[second] * split
            )
        return law

    p, q = joint(0), joint(1)
    found = accounted(DecoyRound(decoys=mean, population=2, cohort=2))
    for epsilon in (0.0, 0.5, 1.5):
        number = np.add.outer(np.arange(most), np.arange(most))
        alone = [
            np.stack([law[number == total].sum(axis=0) for total in range(2 * most - 1)]) for law in (p, q)
        ]
        assert profile(p, q, epsilon) == pytest.approx(profile(*alone, epsilon), rel=1e-12)
        assert profile(p, q, epsilon) == pytest.approx(found.delta(epsilon).upper, rel=1e-3)


def test_sampled_rounds_cost_what_their_mixture_does():
    recorded = DecoyRound(decoys=20.0, population=40, cohort=10, sampling="without-replacement")
    found, law = accounted(recorded), stats.poisson(20.0).pmf(np.arange(120))
    moved, still = np.append(0.0, law), np.append(law, 0.0)
    away, stays = np.outer(moved, still), np.outer(still, moved)
    p = 0.25 * away + 0.75 * stays
    for epsilon in (0.0, 0.1, 0.3):
        bound = found.delta(epsilon)
        for one, other in ((p, stays), (stays, p)):
            assert profile(one, other, epsilon) <= bound.upper * (1 + 1e-9)
        assert profile(p, stays, epsilon) == pytest.approx(bound.upper, rel=1e-3)
    with pytest.raises(ValueError, match="more noise"):
        accounted(DecoyRound(decoys=0.5, population=4, cohort=4)).epsilon(1e-6)


def test_one_message_and_a_bit_at_the_error_that_was_promised():
    for clients, most in ((10_000, 1.5), (100_000, 1.05)):
        protocol = DecoyHistogram.calibrated(categories=100, cohort=clients, **TARGET)
        assert protocol.messages_per_client < most
        assert clients * math.sqrt(protocol.squared_error) < 66
        assert 0.999 < accounted(protocol.round()).epsilon(1e-6).upper <= 1
    small = DecoyHistogram.calibrated(categories=30, cohort=2_000, **TARGET)
    coins = HistogramSum.calibrated(categories=30, cohort=2_000, **TARGET)
    assert small.squared_error < 1.25 * coins.squared_error
    held = torch.arange(2_000) % 30
    truth, errors, sent = torch.bincount(held).double(), [], []
    for seed in range(30):
        messages = small.collect(held, randomness=SeededRandomness(seed))
        found = small.estimate(small.total(messages), reports=2_000)
        errors.append(float((found.counts - truth).square().sum()))
        sent.append(len(messages) / 2_000)
    assert np.mean(errors) == pytest.approx(small.worst_variance, rel=0.25)  # 5 standard errors
    assert np.mean(sent) == pytest.approx(small.messages_per_client, rel=0.02)


def test_simulated_and_sent_counts_have_one_law():
    protocol = DecoyHistogram(categories=4, cohort=30, decoys=6.0, honest_fraction=0.5)
    held = torch.arange(30) % 3 - 1  # a third holds nothing
    truth = torch.tensor([10.0, 10.0, 0.0, 0.0], dtype=torch.float64)
    for way in (
        lambda source: protocol.randomize_sum(held, randomness=source),
        lambda source: protocol.sum(protocol.randomize(held, randomness=source)),
    ):
        found = torch.stack([way(SeededRandomness(seed)) for seed in range(400)]) - truth
        assert float(found.mean(dim=0).abs().max()) < 5 * math.sqrt(12 / 400)
        assert float(found.var(dim=0).mean()) == pytest.approx(12.0, rel=0.2)
    assert protocol.worst_variance == pytest.approx(48.0)


def test_places_in_a_report_do_not_tell_the_own_category():
    protocol = DecoyHistogram(categories=2, cohort=4, decoys=8.0)
    reports = protocol.randomize(torch.zeros(40_000, dtype=torch.int64), randomness=SeededRandomness(1))
    labels = reports.fields[0].values.long()
    full = (labels < 3).sum(dim=1) == 4
    share = (labels[full][:, :4] == 0).double().mean(dim=0)
    assert float((share - (1 + 3 / 3) / 4).abs().max()) < 5 * math.sqrt(0.25 / int(full.sum()))


def test_the_number_of_messages_does_not_tell_who_holds_none():
    """Nor do messages of no category, which have decoys as those of all others."""
    protocol = DecoyHistogram(categories=2, cohort=100, decoys=10.0)
    nobody, somebody = (
        protocol.messages(protocol.randomize(torch.full((40_000,), held), randomness=SeededRandomness(4)))
        for held in (-1, 0)
    )
    assert [len(sent) for sent in nobody] == [len(sent) for sent in somebody]
    assert min(map(len, nobody)) == 1
    decoys = int((Reports.concat(somebody).fields[0].values == 2).sum())
    assert decoys == pytest.approx(40_000 * 10.0 / 100, rel=0.1)  # 6 standard deviations


def test_fewer_clients_and_many_rounds_are_charged():
    protocol = DecoyHistogram.calibrated(categories=20, cohort=1_000, num_steps=5, **TARGET)
    assert accounted(protocol.round(), num_steps=5).epsilon(1e-6).upper <= 1
    spent = [accounted(protocol.round(cohort=n)).epsilon(1e-6).upper for n in (1_000, 800, 500)]
    assert spent == sorted(spent)
    assert protocol.round(cohort=800).decoys == pytest.approx(0.8 * protocol.decoys)
    robust = DecoyHistogram.calibrated(categories=20, cohort=1_000, honest_fraction=0.8, **TARGET)
    assert robust.round(cohort=1_000).decoys == robust.decoys
    assert robust.worst_variance == pytest.approx(20 * robust.decoys / 0.8)


def test_what_liars_send_is_bounded_or_refused():
    protocol = DecoyHistogram(categories=3, cohort=4, decoys=6.0)
    reports = protocol.randomize(torch.tensor([0, 0, 1, 2]), randomness=SeededRandomness(2))
    honest = protocol.estimate(protocol.total(reports), reports=4).counts
    values = reports.fields[0].values.long()
    values[3] = 1
    forged = protocol.estimate(protocol.total(protocol.layout.reports(values)), reports=4).counts
    assert float((forged - honest).abs().max()) <= protocol.influence == 1 + protocol.most_decoys
    messages = Reports.concat(protocol.messages(reports))
    assert torch.equal(protocol.total(messages), protocol.total(reports))
    wide = DecoyHistogram(categories=5, cohort=4, decoys=6.0)
    values = torch.full((4, 1 + wide.most_decoys), 7)
    bad = Reports(mechanism=wide.name, dim=5, fields=(Field(values.byte(), 3),))
    with pytest.raises(ValueError, match="drop it"):
        wide.total(bad)
    for refused in (torch.tensor([-2]), torch.tensor([3]), torch.tensor([0.5])):
        with pytest.raises(ValueError, match="categor"):
            protocol.randomize(refused)
    for call in (protocol.estimate, protocol._sum):
        with pytest.raises(ValueError, match="pass reports="):
            call(protocol.total(reports))
    for call in (protocol.sum, protocol.aggregate):
        with pytest.raises(ValueError, match="shuffled messages"):
            call(messages)
    assert torch.equal(protocol.sum(reports), honest)
    with pytest.raises(ValueError, match="4 clients"):
        protocol.collect(torch.tensor([0, 1]))
    quiet = DecoyHistogram(categories=3, cohort=4, decoys=1e-25)
    single = quiet.randomize(torch.tensor([0, 0, 1, 2]))  # where a report is a message
    assert quiet.total(single).tolist() == [2, 1, 1]
    assert quiet.sum(single).tolist() == [2, 1, 1]
    assert [len(sent) for sent in quiet.messages(single)] == [1] * 4
