"""A calibration's target: what it takes, and what it says of a round."""

import math

import pytest

from shuffle_plugins.accounting import (
    Adversary,
    PrivacyTarget,
    ShuffleAccountant,
    ShuffleRound,
    SumRound,
    calibrate_local_epsilon,
)


def shuffled(local_epsilon: float) -> ShuffleRound:
    return ShuffleRound(local_epsilon=local_epsilon, population=9_000, cohort=300, channel_fixed=True)


def test_the_cost_is_the_accountants() -> None:
    target = PrivacyTarget(epsilon=0.5, delta=1e-6, num_steps=7)
    accountant = ShuffleAccountant()
    accountant.step(shuffled(1.0), num_steps=7)
    assert target.cost(shuffled(1.0)) == accountant.epsilon(1e-6).upper
    once = ShuffleAccountant()
    once.step(shuffled(1.0))
    exact = PrivacyTarget(epsilon=once.epsilon(1e-6).upper, delta=1e-6)  # of one round
    assert exact.allows(shuffled(1.0))
    assert exact.cost(shuffled(1.0)) == exact.epsilon


def test_a_calibrated_round_is_allowed_and_a_louder_one_is_not() -> None:
    target = PrivacyTarget(epsilon=0.5, delta=1e-6, num_steps=7)
    found = calibrate_local_epsilon(
        target_epsilon=0.5, delta=1e-6, num_steps=7, population=9_000, cohort=300, channel_fixed=True
    )
    assert target.allows(shuffled(found))
    assert not target.allows(shuffled(found * 1.001))


def test_a_round_that_has_no_certificate_costs_infinity() -> None:
    barely_noisy = SumRound(sensitivity=1_000.0, trials=64, dim=2, population=10, cohort=10)
    target = PrivacyTarget(epsilon=1.0, delta=1e-6)
    assert target.cost(barely_noisy) == math.inf
    assert not target.allows(barely_noisy)


@pytest.mark.parametrize("adversary", [Adversary.LOCAL, "local"])
def test_no_round_is_measured_before_an_adversary_who_sees_every_report(adversary: Adversary | str) -> None:
    with pytest.raises(ValueError, match="local_epsilon"):
        ShuffleRound(local_epsilon=1.0, population=9, cohort=3, adversary=adversary, channel_fixed=True)
    with pytest.raises(ValueError, match="local_epsilon"):
        SumRound(sensitivity=1.0, trials=100, dim=1, population=9, cohort=9, adversary=adversary)


def test_an_unknown_adversary_or_sampling_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="model-observer"):
        ShuffleRound(local_epsilon=1.0, population=9, cohort=3, adversary="nobody", channel_fixed=True)
    with pytest.raises(ValueError, match="without-replacement"):
        ShuffleRound(local_epsilon=1.0, population=9, cohort=3, sampling="some", channel_fixed=True)
