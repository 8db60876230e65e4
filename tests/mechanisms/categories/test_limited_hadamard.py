"""Hadamard response with little randomness: two answers, a blanket, the thesis's bounds on its error."""

import math

import numpy as np
import pytest
import torch
from brute_force import hockey_stick, neighbours, shuffled_law

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.mechanisms import LimitedHadamard
from shuffle_plugins.mechanisms.limited_hadamard import binary_entropy, critical_randomness
from shuffle_plugins.randomness import SeededRandomness

LIMITS = [(1.0, 0.7), (1.0, 0.4), (1.0, 0.0114), (0.3, 0.9), (2.0, 0.2), (1e-4, 0.5), (3.0, 1e-4)]


def chances(mechanism):
    every = mechanism.outcomes()
    return torch.stack([mechanism.log_likelihood(every, torch.tensor(c)).exp() for c in range(mechanism.dim)])


@pytest.mark.parametrize(("epsilon", "bits"), LIMITS)
def test_ones_spend_local_epsilon_and_zeros_less(epsilon, bits):
    law = chances(LimitedHadamard(local_epsilon=epsilon, dim=6, randomness_bits=bits))
    odds = (law.amax(dim=0) / law.amin(dim=0)).log()[2:].reshape(-1, 2)  # group 0 asks nothing
    zeros, ones = odds[:, 0], odds[:, 1]
    torch.testing.assert_close(ones, torch.full_like(ones, epsilon), rtol=1e-9, atol=0)
    assert float(zeros.max()) < epsilon
    q = float(law[:, 3].max()) * 8
    expected = math.log((1 - q * math.exp(-epsilon)) / (1 - q))
    assert float(zeros.max()) == pytest.approx(expected, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(("epsilon", "bits"), LIMITS)
def test_randomness_is_what_was_asked(epsilon, bits):
    mechanism = LimitedHadamard(local_epsilon=epsilon, dim=6, randomness_bits=bits)
    assert mechanism.randomness_bits == pytest.approx(bits, rel=1e-9)
    assert mechanism.randomness_bits <= bits * (1 + 1e-15)
    assert binary_entropy(mechanism.answer_probability) == pytest.approx(bits, rel=1e-9)
    assert mechanism.answer_probability <= 0.5


@pytest.mark.parametrize("bits", [None, 1.0, 0.85, 10.0])
def test_enough_randomness_is_plain_hadamard_response(bits):
    assert critical_randomness(1.0) == pytest.approx(0.8399, abs=5e-5)
    mechanism = LimitedHadamard(local_epsilon=1.0, dim=10, randomness_bits=bits)
    assert mechanism.answer_probability == pytest.approx(math.e / (math.e + 1), rel=1e-15)
    assert mechanism.worst_variance == pytest.approx(10 / math.tanh(0.5) ** 2 - 1, rel=1e-12)
    assert mechanism.blanket() == LimitedHadamard(local_epsilon=1.0, dim=10).blanket()
    assert mechanism.randomness_bits == pytest.approx(critical_randomness(1.0), rel=1e-12)


def test_the_printed_lower_bound_does_not_hold():
    mechanism = LimitedHadamard(local_epsilon=1.0, dim=1000, randomness_bits=0.0114)
    printed = 1000 * math.e / (16 * mechanism.answer_probability**2 * (math.e - 1) ** 2)
    assert printed == pytest.approx(5.8e7, rel=0.05)
    assert mechanism.worst_variance == pytest.approx(7.0e6, rel=0.05)


@pytest.mark.parametrize(("population", "cohort"), [(3, 3), (4, 2)])
@pytest.mark.parametrize("bits", [0.6, 0.05])
def test_no_dataset_exceeds_what_is_accounted(bits, population, cohort):
    epsilon = 1.3
    mechanism = LimitedHadamard(local_epsilon=epsilon, dim=3, randomness_bits=bits)
    channel = chances(mechanism).numpy()
    ratios = np.round(channel / channel.max(axis=0), 9)
    groups = np.unique(ratios, axis=1, return_inverse=True)[1].ravel()
    merged = np.stack([np.bincount(groups, weights=row) for row in channel])
    accountant = ShuffleAccountant()
    accountant.step(mechanism.round(population=population, cohort=cohort))
    for one, two in neighbours(3, population):
        p, q = (shuffled_law(merged, data, cohort=cohort) for data in (one, two))
        for level in np.linspace(0.0, epsilon, 5):
            assert hockey_stick(p, q, level) <= accountant.delta(float(level)).upper + 1e-12


def test_too_little_randomness_is_refused():
    with pytest.raises(ValueError, match="give more"):
        LimitedHadamard(local_epsilon=1.0, dim=4, randomness_bits=1e-18)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "clients"), [(1.0, 150_000), (0.7, 850_000)])
def test_figure_7_7_of_the_thesis(bits, clients):
    """ε0 = 1, 1000 categories, p_i ∝ 0.8^i: l1 error 1.4 takes 150,000 clients at R = 1, 850,000 at 0.7.

    The numbers are those of estimates whose negative entries are dropped and which are scaled to sum to one.
    """
    frequencies = 0.8 ** torch.arange(1000).double()
    frequencies /= frequencies.sum()
    mechanism = LimitedHadamard(local_epsilon=1.0, dim=1000, randomness_bits=bits)
    drawn = torch.rand(clients, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.searchsorted(frequencies.cumsum(0), drawn).clamp(max=999)
    estimate = mechanism.aggregate(mechanism.randomize(x, randomness=SeededRandomness(1))).clamp(min=0)
    error = float((estimate / estimate.sum() - frequencies).abs().sum())
    assert error == pytest.approx(1.4, abs=0.05)
