"""Who is drawn, and what the books make of it."""

import math
from collections import Counter

import pytest
from flwr_shuffle.sampling import FixedSize, Poisson, SelfSampling
from scipy.stats import binom, chisquare

from shuffle_plugins.mechanisms.spec import MechanismSpec

NODES = list(range(100, 106))
MECHANISM = MechanismSpec(name="linf-block", local_epsilon=1.0).build(dim=8)


def test_fixed_cohorts_are_uniform_subsets():
    drawn = Counter(frozenset(FixedSize(3).draw(NODES)) for _ in range(4000))
    assert len(drawn) == math.comb(6, 3)
    assert chisquare(list(drawn.values())).pvalue > 1e-6


def test_fixed_cohorts_come_in_any_order():
    drawn = Counter(tuple(FixedSize(2).draw(NODES[:3])) for _ in range(3000))
    assert len(drawn) == 6
    assert chisquare(list(drawn.values())).pvalue > 1e-6


def test_poisson_draws_each_on_its_own():
    draws = [frozenset(Poisson(0.3).draw(NODES)) for _ in range(4000)]
    sizes = Counter(len(draw) for draw in draws)
    expected = [4000 * binom.pmf(size, 6, 0.3) for size in range(5)]
    observed = [sizes[size] for size in range(5)]
    rest = [sum(sizes[size] for size in (5, 6))], [4000 * binom.sf(4, 6, 0.3)]
    assert chisquare(observed + rest[0], expected + rest[1]).pvalue > 1e-6
    for node in NODES:
        assert abs(sum(node in draw for draw in draws) - 1200) < 5.5 * math.sqrt(4000 * 0.3 * 0.7)


def test_all_are_asked_when_clients_decide():
    assert sorted(SelfSampling(0.1).draw(NODES)) == NODES
    assert SelfSampling(0.1).participation == 0.1
    assert FixedSize(3).participation == Poisson(0.2).participation == 1.0


def test_what_a_round_costs():
    counts = {"candidates": 1000, "invited": 100, "answered": 95, "reports": 90}
    for sampling in (FixedSize(100), Poisson(0.1)):
        found = sampling.accounted(MECHANISM, **counts)
        assert (found.observer.population, found.observer.cohort) == (900, 90)
        assert (found.server.population, found.server.cohort) == (90, 90)
        worst = sampling.worst(MECHANISM, candidates=1000, invited=100, minimum=80)
        assert (worst.observer.population, worst.observer.cohort) == (800, 80)
        assert sampling.planned(MECHANISM, candidates=1000, invited=100, minimum=80) == worst
    found = SelfSampling(0.1).accounted(MECHANISM, candidates=1000, invited=1000, answered=900, reports=90)
    assert found.observer == found.server
    assert (found.server.population, found.server.cohort) == (900, 90)
    worst = SelfSampling(0.1).worst(MECHANISM, candidates=1000, invited=1000, minimum=80)
    assert (worst.server.population, worst.server.cohort) == (80, 80)
    planned = SelfSampling(0.1).planned(MECHANISM, candidates=1000, invited=1000, minimum=80)
    assert planned.server.population == 800
    assert binom.sf(planned.server.cohort, 800, 0.1) < 1e-4
    assert planned.server.sampling_rate < 0.2


def test_default_minimums_are_met_but_by_poor_draws():
    assert FixedSize(100).default_minimum(1000) == 80
    assert FixedSize(2).default_minimum(10) == 2
    for sampling in (Poisson(0.1), SelfSampling(0.1)):
        least = sampling.default_minimum(1000)
        assert 2 <= least < 80
        assert binom.cdf(least - 1, 1000, 0.1) < 1e-4
        assert sampling.default_minimum(20) == 2


@pytest.mark.parametrize("cohort", [1, 0, 2.0, True, "3"])
def test_cohorts_are_two_or_more(cohort):
    with pytest.raises(ValueError, match="cohort"):
        FixedSize(cohort)


@pytest.mark.parametrize("rate", [0, -0.1, 1.1, math.nan, "0.1", True])
def test_rates_are_probabilities(rate):
    for sampling in (Poisson, SelfSampling):
        with pytest.raises(ValueError, match="rate"):
            sampling(rate)


def test_too_few_nodes():
    with pytest.raises(ValueError, match="cannot draw"):
        FixedSize(7).draw(NODES)
