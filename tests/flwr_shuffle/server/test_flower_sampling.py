"""Who is drawn, and what the books make of it."""

import math
from collections import Counter

import numpy as np
import pytest
from flwr_shuffle.settings import Cyclic, FixedSize, Invitation, Poisson, SelfSampling
from scipy.stats import binom, chisquare

from shuffle_plugins.accounting import FederatedAccountant, FederatedRound
from shuffle_plugins.mechanisms import MechanismSpec

NODES = list(range(100, 106))
MECHANISM = MechanismSpec(name="linf-block", local_epsilon=1.0).build(dim=8)


def test_fixed_cohorts_are_uniform_subsets():
    drawn = Counter(frozenset(FixedSize(3).draw(NODES)) for _ in range(4000))
    assert len(drawn) == math.comb(6, 3)
    assert chisquare(list(drawn.values())).pvalue > 1e-9


def test_those_who_come_in_turn_are_the_first_and_their_order_is_no_secret():
    assert {frozenset(Cyclic(4).draw(NODES)) for _ in range(20)} == {frozenset(NODES[:4])}
    assert len({tuple(Cyclic(4).draw(NODES)) for _ in range(50)}) > 1
    found = Cyclic(100).accounted(
        Invitation(mechanism=MECHANISM, candidates=1000, invited=100, fewest=80), answered=95, reports=90
    )
    assert found.observer == found.server
    assert (found.server.population, found.server.cohort) == (90, 90)


def test_poisson_draws_each_on_its_own():
    draws = [frozenset(Poisson(0.3).draw(NODES)) for _ in range(4000)]
    sizes = Counter(len(draw) for draw in draws)
    expected = [4000 * binom.pmf(size, 6, 0.3) for size in range(5)]
    observed = [sizes[size] for size in range(5)]
    rest = [sum(sizes[size] for size in (5, 6))], [4000 * binom.sf(4, 6, 0.3)]
    assert chisquare(observed + rest[0], expected + rest[1]).pvalue > 1e-9
    for node in NODES:
        assert abs(sum(node in draw for draw in draws) - 1200) < 7 * math.sqrt(4000 * 0.3 * 0.7)


def test_all_are_asked_when_clients_decide():
    assert sorted(SelfSampling(0.1).draw(NODES)) == NODES
    assert SelfSampling(0.1).participation == 0.1
    assert FixedSize(3).participation == Poisson(0.2).participation == 1.0


def test_what_a_round_costs():
    hundred = Invitation(mechanism=MECHANISM, candidates=1000, invited=100, fewest=80)
    everybody = Invitation(mechanism=MECHANISM, candidates=1000, invited=1000, fewest=80)
    for sampling in (FixedSize(100), Poisson(0.1)):
        found = sampling.accounted(hundred, answered=95, reports=90)
        assert (found.observer.population, found.observer.cohort) == (900, 90)
        assert (found.server.population, found.server.cohort) == (90, 90)
        worst = sampling.planned(hundred)
        assert (worst.observer.population, worst.observer.cohort) == (800, 80)
    found = SelfSampling(0.1).accounted(everybody, answered=900, reports=90)
    assert found.observer == found.server
    assert (found.server.population, found.server.cohort) == (900, 90)
    worst = SelfSampling(0.1).accounted(everybody, answered=80, reports=80)
    assert (worst.server.population, worst.server.cohort) == (80, 80)
    planned = SelfSampling(0.1).planned(everybody)
    assert planned.server.population == 800
    assert binom.sf(planned.server.cohort, 800, 0.1) < 1e-4
    assert planned.server.sampling_rate < 0.2


@pytest.mark.parametrize("liars", [0, 200, 600])
def test_dummies_beyond_what_the_rate_explains_earn_nothing(liars):
    """200 honest clients at rate 1/2 and ε0 = 4, ten rounds: with 600 liars it was 1.16 and not 5.6."""
    mechanism = MechanismSpec(name="linf-block", local_epsilon=4.0).build(dim=8)
    everybody = 200 + liars
    drawn = np.random.default_rng(1).binomial(200, 0.5, size=10)
    accountants = {}
    for name, answered in (("certified", everybody), ("honest", 200)):
        accountants[name] = FederatedAccountant()
        for reports in map(int, drawn):
            one = (
                SelfSampling(0.5).accounted(
                    Invitation(mechanism=mechanism, candidates=everybody, invited=everybody),
                    answered=answered,
                    reports=reports,
                )
                if name == "certified"
                else FederatedRound.secret(mechanism, answered=200, reports=reports)
            )
            accountants[name].step(one, participants=None)
    certified, honest = (
        accountants[name].epsilon(1e-6, lower=False).upper for name in ("certified", "honest")
    )
    assert 0.97 * honest < certified < 1.15 * honest


def test_default_minimums_are_met_but_by_poor_draws():
    assert FixedSize(100).default_minimum(1000) == 80
    assert FixedSize(2).default_minimum(10) == 2
    for sampling in (Poisson(0.1), SelfSampling(0.1)):
        least = sampling.default_minimum(1000)
        assert 2 <= least < 80
        assert binom.cdf(least - 1, 1000, 0.1) < 1e-4
        assert sampling.default_minimum(20) == 2
