"""An attack on sums comes close to what is certified, and never beyond it."""

import pytest
import torch

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.auditing import audit_sum
from shuffle_plugins.protocols import ScalarSum, SplitSum, VectorSum, WindowedSum
from shuffle_plugins.randomness import SeededRandomness

DELTA = 0.05


def certified(protocol, delta=DELTA):
    accountant = ShuffleAccountant()
    accountant.step(protocol.round())
    return accountant.epsilon(delta, lower=False).upper


@pytest.mark.slow
@pytest.mark.parametrize(
    "protocol",
    [
        ScalarSum.calibrated(cohort=4, epsilon=1.0, delta=DELTA, upper=2.0, overhead=0.3),
        VectorSum.calibrated(dim=2, cohort=4, epsilon=1.0, delta=DELTA, radius=0.5),
        SplitSum.calibrated(cohort=4, epsilon=1.0, delta=DELTA),
        WindowedSum.calibrated(dim=1, cohort=4, epsilon=1.0, delta=DELTA, coefficients=(2, 1, 1)),
    ],
    ids=lambda protocol: protocol.name,
)
def test_the_attack_comes_close_and_stays_below(protocol):
    claim = certified(protocol)
    assert 0.95 < claim <= 1.0
    found = audit_sum(
        protocol, delta=DELTA, num_trials=40_000, confidence=0.99, randomness=SeededRandomness(7)
    )
    assert found.consistent_with(claim)
    assert found.epsilon > 0.7 * claim
    assert found.neighbouring_relation == "replace-one"


@pytest.mark.slow
def test_too_few_coins_are_found_out():
    honest = VectorSum.calibrated(dim=2, cohort=8, epsilon=1.0, delta=DELTA, overhead=0.3)
    short = VectorSum(dim=2, cohort=8, levels=honest.levels, coins=honest.coins // 3)
    found = audit_sum(short, delta=DELTA, num_trials=20_000, confidence=0.999, randomness=SeededRandomness(3))
    assert found.violates(certified(honest))
    assert found.consistent_with(certified(short))


@pytest.mark.slow
def test_an_attack_on_all_windows_finds_coins_that_hide_one_window_alone():
    one = VectorSum.calibrated(dim=1, cohort=8, epsilon=1.0, delta=DELTA, overhead=0.3)
    short = WindowedSum(dim=1, cohort=8, levels=one.levels, coins=one.coins, coefficients=(1, 1, 1))
    found = audit_sum(short, delta=DELTA, num_trials=10_000, confidence=0.999, randomness=SeededRandomness(5))
    assert found.violates(certified(one))
    assert found.consistent_with(certified(short))


def test_records_that_agree_show_nothing():
    protocol = ScalarSum(cohort=3, levels=4, coins=40)
    same = torch.full((1,), 0.5, dtype=torch.float64)
    found = audit_sum(
        protocol, delta=DELTA, num_trials=500, records=(same, same), randomness=SeededRandomness(1)
    )
    assert found.epsilon == 0.0
