"""The flipped signs in exact arithmetic: what a report's probabilities are, bit by bit."""

import math
from fractions import Fraction

import pytest
import torch
from scripted_randomness import exponential

from shuffle_plugins.compressors.quantization import SignThresholds, random_signs
from shuffle_plugins.randomness import SeededRandomness

EPSILONS = [1e-4, 0.1, 0.5, 1.0, math.log(3), 1.5, 4.0, 10.0, 40.0, 50.0, 500.0]
WHOLE = 1 << 62


class ThresholdRecorder(SeededRandomness):
    """Seeded randomness that keeps the integer thresholds it was asked for."""

    def bernoulli(self, thresholds):
        self.seen = thresholds.clone()
        return super().bernoulli(thresholds)


def thresholds_of(values, epsilon):
    recorder = ThresholdRecorder(1)
    random_signs(values, thresholds=SignThresholds.of(epsilon), randomness=recorder)
    return recorder.seen.tolist()


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_epsilon_is_never_exceeded_and_hardly_missed(epsilon):
    values = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    beyond = torch.tensor([-1.0000001, 1.0000001, -3.0, 3.0], dtype=torch.float64)
    realised = thresholds_of(torch.cat([values, beyond]), epsilon)
    most, least = max(realised), min(realised)
    limit = exponential(epsilon)
    for top, bottom in ((most, least), (WHOLE - least, WHOLE - most)):
        assert Fraction(top, bottom) <= limit
    low = SignThresholds.of(epsilon).low
    assert least == low
    assert most == WHOLE - low
    if low > 3:
        assert Fraction(WHOLE - (low - 2), low - 2) > limit * (1 - Fraction(1, 10**50))


@pytest.mark.parametrize("epsilon", [1e-4, 1.0, 4.0, 50.0])
def test_probabilities_are_linear_in_the_value(epsilon):
    gain = SignThresholds.of(epsilon).gain
    assert gain == pytest.approx(math.tanh(epsilon / 2), rel=1e-12)
    values = [-1.0, -0.3, 0.0, 1e-9, 0.77, 1.0]
    realised = thresholds_of(torch.tensor(values, dtype=torch.float64), epsilon)
    for value, threshold in zip(values, realised, strict=True):
        exact = Fraction(1, 2) + Fraction(value) * Fraction(gain) / 2
        assert abs(Fraction(threshold, WHOLE) - exact) < Fraction(1, 2**52)
