"""Integer thresholds never exceed ε0, in exact arithmetic, and come as near as integers can."""

from fractions import Fraction

import pytest
from scripted_randomness import exponential

from shuffle_plugins.compressors.quantization import flip_threshold, odds_below
from shuffle_plugins.mechanisms import get, registry
from shuffle_plugins.mechanisms.oracles import Mixture
from shuffle_plugins.randomness import WHOLE

EPSILONS = [1e-9, 1e-7, 1e-4, 0.1, 0.3, 1.0, 1.5, 2.718281828, 7.77, 20.0, 30.0, 42.9, 43.5, 100.0, 500.0]
SHARES = [Fraction(1, 2), Fraction(1, 3), Fraction(7, 1000), Fraction(1, 10**6), Fraction(1, 10**9 + 1)]


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_odds_below_are_below_and_near(epsilon):
    exact = exponential(epsilon)
    assert exact * (1 - Fraction(1, 10**59)) < odds_below(epsilon) < exact


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_mixture_keeps_to_local_epsilon_and_one_step_more_would_not(epsilon, share):
    mixture = Mixture.of(epsilon, share=share)
    exact = exponential(epsilon)
    assert 1 < mixture.odds <= exact
    if mixture.kept + 1 < WHOLE:
        more = Mixture(kept=mixture.kept + 1, share=share)
        assert more.odds > exact
    assert mixture.truth + mixture.noise == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_flip_keeps_to_local_epsilon_and_one_step_less_would_not(epsilon):
    low = flip_threshold(epsilon)
    assert Fraction(WHOLE - low, low) <= exponential(epsilon)
    assert low == 1 or Fraction(WHOLE - low + 1, low - 1) > exponential(epsilon)


def test_too_many_categories_for_so_small_an_epsilon_are_refused():
    for build in (get, registry.blanket):
        with pytest.raises(ValueError, match="raise it, or use fewer categories"):
            build("k-rr", local_epsilon=1e-9, dim=1 << 40)
