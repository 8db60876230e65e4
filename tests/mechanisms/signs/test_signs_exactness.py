"""Sampled mechanisms in exact arithmetic: ε0 to the last bit, whole channels enumerated."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from scripted_randomness import exponential

from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.bit_planes import BitPlanes, SampledPlan, budgets, plane_value, plane_weights
from shuffle_plugins.mechanisms.sign_patterns import Constants, cap_parameters, split_budget

WHOLE = 1 << 62
EPSILONS = [1e-4, 1.5, 8.0, 50.0]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("levels", "samples"), [(1, 1), (1, 3), (2, 1), (3, 2), (5, 1), (1, 20)])
@pytest.mark.parametrize("constants", list(Constants))
def test_the_signs_of_a_report_cost_epsilon_together_and_no_more(epsilon, levels, samples, constants):
    planes = BitPlanes.within(
        epsilon, dim=100, plan=SampledPlan(levels=levels, samples=samples), constants=constants
    )
    odds = math.prod(Fraction(WHOLE - t.low, t.low) ** samples for t in planes.thresholds)
    limit = exponential(epsilon)
    assert odds <= limit
    spent = budgets(levels, per_place=epsilon / samples, constants=constants)
    for threshold, budget in zip(planes.thresholds, spent, strict=True):
        printed = budget / math.sqrt(budget**2 + 4)
        wanted = math.tanh(budget / 2) if constants is Constants.EXACT else printed
        assert threshold.gain == pytest.approx(wanted, rel=1e-9)
    if constants is Constants.EXACT and epsilon / (samples * levels) < 20 and levels < 5:
        assert odds >= limit * (1 - Fraction(1, 10**9))


def test_a_budget_too_small_to_split_is_refused():
    with pytest.raises(ValueError, match="send fewer"):
        split_budget(1e-9, shares=[1.0], repeats=2)
    with pytest.raises(ValueError, match="send fewer"):
        get("sampled-bits", local_epsilon=1e-9, dim=5, samples=2)
    assert get("linf-bit-planes", local_epsilon=1e-9, dim=5).plan == SampledPlan(levels=1, samples=1)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-4, 1.5, 8.0, 50.0, 500.0])
@pytest.mark.parametrize("signs", [1, 2, 3, 5, 8, 20])
def test_a_cap_keeps_epsilon_and_has_its_gain(epsilon, signs):
    cap = cap_parameters(local_epsilon=epsilon, signs=signs)
    near = Fraction(cap.cap_threshold, WHOLE)
    everywhere = (1 - near) / 2**signs
    odds = (everywhere + near / cap.patterns) / everywhere
    limit = exponential(epsilon)
    assert odds <= limit
    if epsilon < 20:
        assert odds - 1 >= (limit - 1) * (1 - Fraction(1, 10**8))
    agreements = [bin(pattern).count("1") for pattern in range(1 << min(signs, 12))]
    if signs <= 12:
        inside = [a for a in agreements if a >= cap.agreements]
        assert len(inside) == cap.patterns
        mean = near * Fraction(sum(2 * a - signs for a in inside), signs * len(inside))
        assert cap.gain == pytest.approx(float(mean), rel=1e-12)
    if 1 < signs <= 12:
        pairs = near * Fraction(
            sum((2 * a - signs) ** 2 - signs for a in inside), signs * (signs - 1) * len(inside)
        )
        assert cap.pair_moment == pytest.approx(float(pairs), rel=1e-12, abs=1e-15)


def test_the_agreements_of_a_cap_are_the_best():
    for epsilon, signs in itertools.product([0.1, 1.0, 3.0, 6.0], [2, 3, 4, 7, 12]):
        e = math.exp(epsilon)
        gains = []
        for least in range(1, signs + 1):
            weights = [math.comb(signs, a) * (e if a >= least else 1) for a in range(signs + 1)]
            mean = sum(w * (2 * a - signs) for a, w in enumerate(weights)) / signs
            gains.append(mean / sum(weights))
        cap = cap_parameters(local_epsilon=epsilon, signs=signs)
        assert cap.gain == pytest.approx(max(gains), rel=1e-9)


def test_planes_add_up_and_the_ends_stay_in_range():
    x = torch.cat([torch.linspace(-1, 1, 4097, dtype=torch.float64), torch.tensor([-1.0, 1.0, 1.0000001])])
    for levels in (1, 2, 3, 8, 30):
        planes = [plane_value(x, level=k, levels=levels) for k in range(levels)]
        total = sum(w * plane for w, plane in zip(plane_weights(levels), planes, strict=True))
        torch.testing.assert_close(total, x.clamp(-1, 1), rtol=0, atol=1e-15)
        assert all(bool((plane.abs() == 1).all()) for plane in planes[:-1])
        assert float(planes[-1].abs().max()) <= 1
        assert all(float(plane[-2]) == 1 for plane in planes)
