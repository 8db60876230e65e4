"""The flipped signs in exact arithmetic: what a report's probabilities are, bit by bit."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from scripted_randomness import exponential

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.compressors.quantization import SignThresholds, random_signs
from shuffle_plugins.mechanisms import get
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


def output_law(dim, x, epsilon):
    """Exact law of one linf-coordinate report of a row in [-1, 1]^dim: (coordinate, sign) -> probability."""
    realised = thresholds_of(torch.tensor(x, dtype=torch.float64), epsilon)
    law = {}
    for j, threshold in enumerate(realised):
        law[j, 1] = Fraction(threshold, WHOLE * dim)
        law[j, -1] = Fraction(WHOLE - threshold, WHOLE * dim)
    return law


@pytest.mark.parametrize("epsilon", [1e-4, 0.7, 2.0, 8.0])
@pytest.mark.parametrize("dim", [1, 3])
def test_enumerated_channel_is_unbiased_private_and_has_the_stated_blanket(dim, epsilon):
    name = "binary-rr" if dim == 1 else "linf-coordinate"
    mechanism = get(name, local_epsilon=epsilon, dim=dim)
    grid = list(itertools.product([-1.0, -0.4, 0.0, 1.0], repeat=dim))
    laws = {x: output_law(dim, x, epsilon) for x in grid}
    limit = exponential(epsilon)
    outputs = list(laws[grid[0]])
    common = {y: min(law[y] for law in laws.values()) for y in outputs}
    for x, law in laws.items():
        assert sum(law.values()) == 1
        for j in range(dim):
            mean = float(law[j, 1] - law[j, -1]) * mechanism.report_value
            assert mean == pytest.approx(x[j], abs=1e-12 / epsilon)
        second_moment = mechanism.report_value**2
        expected = second_moment - sum(v * v for v in x)
        assert float(mechanism.variance(torch.tensor([x]))) == pytest.approx(expected, rel=1e-5)
        assert all(law[y] <= limit * common[y] for y in outputs)
    blanket = mechanism.blanket()
    for x1, x2 in itertools.product(grid, repeat=2):
        atoms = [
            (float(laws[x1][y] / common[y]), float(laws[x2][y] / common[y]), float(common[y]))
            for y in outputs
        ]
        pair = Blanket.from_atoms(local_epsilon=epsilon, atoms=atoms)
        assert pair.differing <= blanket.differing * (1 + 1e-9)
        if x1 == (1.0,) * dim and x2 == (-1.0,) * dim:
            assert pair.differing == pytest.approx(blanket.differing, rel=1e-9)
            assert pair.low == pytest.approx(blanket.low, abs=1e-9)
            assert pair.high == pytest.approx(blanket.high, abs=1e-9)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-7, 1e-3])
def test_the_gain_of_a_small_epsilon_is_that_of_the_exact_one(epsilon):
    assert SignThresholds.of(epsilon).gain == pytest.approx(math.tanh(epsilon / 2), rel=4e-9)
