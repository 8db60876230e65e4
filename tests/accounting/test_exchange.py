"""Losses handed to dp_accounting and taken from it: both sides stay bounds, and what that costs."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from scipy.special import ndtr

from shuffle_plugins.accounting import (
    FINE,
    CentralGaussianRound,
    LossComposition,
    PrivacyLossDistribution,
    Round,
    ShuffleRound,
    finite_losses,
    from_dp_accounting,
    to_dp_accounting,
)

DELTA = 1e-6
SHUFFLED = ShuffleRound(local_epsilon=2.0, population=10_000, cohort=1_000, channel_fixed=True)
REMOVED = CentralGaussianRound(
    noise_multiplier=1.0,
    cohort=100,
    population=1_000,
    sampling="poisson",
    neighbouring_relation="add-or-remove-one",
)
ALL_OF_THEM = CentralGaussianRound(noise_multiplier=10.0, cohort=10, population=10, sampling="full")


def law_of(rounds: Round, kind: str) -> PrivacyLossDistribution:
    if kind == "upper":
        return rounds.upper_losses(FINE)
    return rounds.lower_losses(rounds.lower_families[0], FINE)


def epsilon(*laws: PrivacyLossDistribution, steps: int) -> float:
    return max(LossComposition([law], [steps]).epsilon(DELTA) for law in laws)


def gaussian_delta(epsilon: float, mu: float) -> float:
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("kind", ["upper", "lower"])
@pytest.mark.parametrize("rounds", [SHUFFLED, REMOVED, ALL_OF_THEM])
def test_composed_there_and_back_again_it_costs_what_the_docstring_says(rounds: Round, kind: str) -> None:
    law, steps = law_of(rounds, kind), 100
    own = epsilon(law, law.reversed(), steps=steps)
    there = to_dp_accounting(law, interval=law.deviation / 30)
    cost = (1, 1.0002) if kind == "upper" else (0.9995, 1.0001)  # ours has a grid of its own to pay for
    for found in (
        there.self_compose(steps).get_epsilon_for_delta(DELTA),
        there.self_compose(steps // 2).compose(there.self_compose(steps // 2)).get_epsilon_for_delta(DELTA),
        epsilon(*from_dp_accounting(there), steps=steps),
    ):
        assert cost[0] <= found / own <= cost[1]


@pytest.mark.parametrize("steps", [1, 100])
def test_a_gaussian_is_between_what_the_two_sides_say_there(steps: int) -> None:
    mu = math.sqrt(steps) / ALL_OF_THEM.noise_multiplier
    for asked in (0.1, 0.5, 2.0):
        upper, lower = (
            to_dp_accounting(law_of(ALL_OF_THEM, kind)).self_compose(steps).get_delta_for_epsilon(asked)
            for kind in ("upper", "lower")
        )
        assert lower <= gaussian_delta(asked, mu) + 1e-14
        assert gaussian_delta(asked, mu) <= upper + 1e-14
        assert upper - lower <= 3e-3 * upper + 1e-13


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("steps", [1, 50])
def test_their_gaussian_keeps_its_sides_here(rate: float, steps: int) -> None:
    ends = []
    for pessimistic in (False, True):
        brought = theirs.from_gaussian_mechanism(
            2.0,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=1e-4,
        )
        laws = from_dp_accounting(brought)
        assert {law.kind for law in laws} == {"upper" if pessimistic else "lower"}
        assert (laws[0] is laws[1]) == (rate == 1.0)
        ends.append(epsilon(*laws, steps=steps))
        assert ends[-1] == pytest.approx(
            brought.self_compose(steps).get_epsilon_for_delta(DELTA), rel=2e-3 if steps > 1 else 1e-2
        )
    assert ends[0] <= ends[1] <= ends[0] * 1.02
    if rate == 1.0:
        mu = math.sqrt(steps) / 2
        assert gaussian_delta(ends[1], mu) <= DELTA <= gaussian_delta(ends[0], mu)


def brute(law: PrivacyLossDistribution, steps: int, asked: float) -> float:
    """δ of all products of outcomes, with nothing rounded but floats."""
    total = 0.0
    for chosen in itertools.product(range(len(law.loss)), repeat=steps):
        p, q = (math.prod(float(masses[i]) for i in chosen) for masses in (law.p, law.q))
        total += max(p - math.exp(asked) * q, 0.0)
    kept = float(law.p.sum()) ** steps
    return total + (1 - kept if law.kind == "upper" else 0.0)


@pytest.mark.parametrize("kind", ["upper", "lower"])
def test_finite_pairs_against_all_products_of_their_outcomes(kind: Any) -> None:
    generator = np.random.default_rng(7)
    for missing, interval in itertools.product((0.0, 1e-3), (0.01, 0.1, 1.0)):
        p, q = (generator.dirichlet(np.ones(5)) * (1 - missing) for _ in range(2))
        law = finite_losses(None, p, q, missing=missing, kind=kind, resolution=FINE, symmetric=False)
        other = to_dp_accounting(law, interval=interval)
        for steps, asked in itertools.product((1, 2, 3), (0.0, 0.3, 1.0, 2.5, 8.0)):
            exact = max(brute(law, steps, asked), brute(law.reversed(), steps, asked))
            composed = other.self_compose(steps, tail_mass_truncation=0)
            found = float(composed.get_delta_for_epsilon(asked))
            if kind == "upper":
                assert found >= exact * (1 - 1e-12) - 1e-15
            else:
                assert found <= exact * (1 + 1e-12) + 1e-15
            if interval == 0.01:
                assert found == pytest.approx(exact, rel=0.03, abs=2e-3)


def test_infinite_loss_stays_infinite_from_above_and_is_not_more_than_finite_from_below() -> None:
    there = to_dp_accounting(
        finite_losses(
            np.array([-1.0, 1.0]),
            np.array([0.3, 0.69]),
            np.array([0.75, 0.25]),
            missing=0.01,
            kind="upper",
            resolution=FINE,
            symmetric=False,
        )
    )
    assert there.get_epsilon_for_delta(0.009) == math.inf
    assert there.self_compose(2).get_delta_for_epsilon(50.0) == pytest.approx(1 - 0.99**2)
    (law, _), asked = from_dp_accounting(theirs.from_privacy_parameters(_parameters(1.0, 1e-3))), 1e-2
    assert law.kind == "upper"
    assert law.missing == pytest.approx(1e-3)
    assert LossComposition([law], [1]).epsilon(5e-4) == math.inf
    assert LossComposition([law], [5]).epsilon(asked) >= 4.9
    optimistic = theirs.PrivacyLossDistribution.create_from_rounded_probability(
        {-10: 0.4, 10: 0.5}, 0.1, 0.1, pessimistic_estimate=False
    )
    law, _ = from_dp_accounting(optimistic)
    assert (law.kind, law.missing) == ("lower", 0.0)
    for steps in (1, 3):
        for delta in (0.2, 0.5):
            truth = optimistic.self_compose(steps).get_epsilon_for_delta(delta)
            assert LossComposition([law], [steps]).epsilon(delta) <= truth + 1e-12


def _parameters(epsilon: float, delta: float) -> Any:
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    return DifferentialPrivacyParameters(epsilon, delta)


def test_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    upper, lower = law_of(REMOVED, "upper"), law_of(REMOVED, "lower")
    with pytest.raises(ValueError, match="same side"):
        to_dp_accounting(upper, added=lower)
    with pytest.raises(ValueError, match="wider interval"):
        to_dp_accounting(upper, interval=1e-9)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.delitem(sys.modules, "dp_accounting.pld")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'shuffle-plugins\[dp-accounting\]'"):
        to_dp_accounting(upper)
