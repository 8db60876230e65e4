"""A calibration's target: what it takes, and what it says of a round."""

import math

import pytest
from histories import accountant_of, shuffled

from shuffle_plugins.accounting import (
    Adversary,
    PrivacyTarget,
    ShuffleRound,
    SumRound,
)


def of_reports(local_epsilon: float) -> ShuffleRound:
    return shuffled(local_epsilon, 9_000, 300)


def test_the_cost_is_the_accountants() -> None:
    target = PrivacyTarget(epsilon=0.5, delta=1e-6, num_steps=7)
    accountant = accountant_of((of_reports(1.0), 7))
    assert target.cost(of_reports(1.0)) == accountant.epsilon(1e-6).upper
    once = accountant_of(of_reports(1.0))
    exact = PrivacyTarget(epsilon=once.epsilon(1e-6).upper, delta=1e-6)  # of one round
    assert exact.allows(of_reports(1.0))
    assert exact.cost(of_reports(1.0)) == exact.epsilon


def test_a_round_that_has_no_certificate_costs_infinity() -> None:
    barely_noisy = SumRound(sensitivity=1_000.0, trials=64, dim=2, population=10, cohort=10)
    target = PrivacyTarget(epsilon=1.0, delta=1e-6)
    assert target.cost(barely_noisy) == math.inf
    assert not target.allows(barely_noisy)


@pytest.mark.parametrize("adversary", [Adversary.LOCAL, "local"])
def test_no_round_is_measured_before_an_adversary_who_sees_every_report(adversary: Adversary | str) -> None:
    with pytest.raises(ValueError, match="local_epsilon"):
        shuffled(1.0, 9, 3, adversary=adversary)
    with pytest.raises(ValueError, match="local_epsilon"):
        SumRound(sensitivity=1.0, trials=100, dim=1, population=9, cohort=9, adversary=adversary)
