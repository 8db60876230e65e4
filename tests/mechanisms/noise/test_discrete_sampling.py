"""Discrete noise has its exact law, also where a float could not decide."""

import decimal
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from scripted_randomness import GivenWords

from shuffle_plugins.mechanisms import discrete_sampling
from shuffle_plugins.mechanisms.discrete_sampling import (
    MAX_SCALE,
    MAX_SIGMA,
    bernoulli_exp,
    discrete_gaussian,
    discrete_laplace,
)
from shuffle_plugins.randomness import SeededRandomness

P_VALUE = 1e-4


def p_value(values, log_mass):
    """Chi-square of whole numbers against unnormalised log-probabilities."""
    support = np.arange(-2000, 2001)
    law = np.exp(log_mass(support) - log_mass(np.array([0])))
    expected = law / law.sum() * len(values)
    seen = np.bincount(np.clip(values.numpy(), -2000, 2000) + 2000, minlength=len(support))
    common = expected >= 10
    table = [np.append(counts[common], counts[~common].sum()) for counts in (seen, expected)]
    if table[1][-1] < 10:
        table = [np.append(counts[:-2], counts[-2:].sum()) for counts in table]
    return stats.chisquare(*table).pvalue


@pytest.mark.parametrize("scale", [Fraction(1, 3), 1, Fraction(7, 2), Fraction(10**12 + 1, 10**11)])
def test_discrete_laplace_law(scale):
    values = discrete_laplace(200_000, scale=scale, randomness=SeededRandomness(1))
    assert values.dtype == torch.int64
    assert p_value(values, lambda k: -np.abs(k) / float(scale)) > P_VALUE


@pytest.mark.parametrize("sigma", [1, 2, 30])
def test_discrete_gaussian_law(sigma):
    values = discrete_gaussian(200_000, sigma=sigma, randomness=SeededRandomness(1))
    assert p_value(values, lambda k: -(k.astype(float) ** 2) / (2 * sigma**2)) > P_VALUE


@pytest.mark.parametrize(("scale", "sigma"), [(MAX_SCALE, MAX_SIGMA), (10**6, 5000)])
def test_large_scales(scale, sigma):
    laplace = discrete_laplace(100_000, scale=scale, randomness=SeededRandomness(2)).double() / scale
    gaussian = discrete_gaussian(100_000, sigma=sigma, randomness=SeededRandomness(2)).double() / sigma
    assert stats.kstest(laplace.numpy(), stats.laplace.cdf).pvalue > P_VALUE
    assert stats.kstest(gaussian.numpy(), stats.norm.cdf).pvalue > P_VALUE


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 5), (1, 3), (5, 5), (23, 7), (40, 1)])
def test_bernoulli_exp(numerator, denominator):
    count = 200_000
    draws = bernoulli_exp(
        torch.full((count,), numerator), denominator=denominator, randomness=SeededRandomness(3)
    )
    hits, probability = int(draws.sum()), math.exp(-numerator / denominator)
    assert stats.binomtest(hits, count, min(probability, 1.0)).pvalue > P_VALUE


def test_what_floats_leave_open_is_decided_with_decimals(monkeypatch):
    """With all draws left open, the law and most draws are the same."""
    numerators = torch.arange(3000) % 12
    words = SeededRandomness(4)
    quick = bernoulli_exp(numerators, denominator=4, randomness=words)
    laplace = discrete_laplace(3000, scale=Fraction(7, 2), randomness=SeededRandomness(5))
    monkeypatch.setattr(discrete_sampling, "_FLOAT_ERROR", 100.0)
    slow = bernoulli_exp(numerators, denominator=4, randomness=SeededRandomness(4))
    assert torch.equal(slow, quick)
    again = discrete_laplace(3000, scale=Fraction(7, 2), randomness=SeededRandomness(5))
    assert torch.equal(again, laplace)


@pytest.mark.parametrize("exponent", [Fraction(1, 7), Fraction(3), Fraction(40)])
def test_draws_at_the_very_edge_are_decided_by_further_digits(exponent):
    """The word that holds the leading digits of e^-γ: its successors decide, and float64 cannot."""
    with decimal.localcontext(decimal.Context(prec=80)):
        edge = (-(decimal.Decimal(exponent.numerator) / exponent.denominator)).exp() * (1 << 127)
    word, rest = divmod(int(edge), 1 << 64)
    numerators = torch.tensor([exponent.numerator])
    for below, expected in ((rest - 1, True), (rest + 1, False)):
        signed = below - (1 << 64) if below >= 1 << 63 else below
        drawn = bernoulli_exp(
            numerators, denominator=exponent.denominator, randomness=GivenWords(word, signed)
        )
        assert bool(drawn[0]) is expected


@pytest.mark.parametrize("scale", [3, Fraction(5, 2)])
def test_logarithms_at_the_very_edge_are_decided_by_further_digits(scale):
    with decimal.localcontext(decimal.Context(prec=80)):
        edge = (-4 / (decimal.Decimal(Fraction(scale).numerator) / Fraction(scale).denominator)).exp()
        word, rest = divmod(int(edge * (1 << 127)), 1 << 64)
    for below, expected in ((rest - 1, 4), (rest + 1, 3)):
        signed = below - (1 << 64) if below >= 1 << 63 else below
        found = discrete_sampling._floor_of_logarithm(
            word, scale=Fraction(scale), randomness=GivenWords(signed)
        )
        assert found == expected
