"""Exact draws of Pólya and Poisson numbers: tables against other digits, their edges, and whole laws."""

import decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from scripted_randomness import Far, GivenWords

from shuffle_plugins.protocols import draws
from shuffle_plugins.protocols.draws import PoissonLaw, PolyaLaw, PolyaNoise, drawn_poisson
from shuffle_plugins.randomness import SeededRandomness

LAWS = [
    PolyaLaw(rate=0.5, shape=Fraction(1, 10_000)),
    PolyaLaw(rate=0.01, shape=Fraction(5, 4)),
    PolyaLaw(rate=2.0, shape=Fraction(1)),
    PolyaLaw(rate=0.3, shape=Fraction(40)),
    PoissonLaw(mean=0.43),
    PoissonLaw(mean=120.5),
]


def tails(law, most):
    """P[X ≥ j], j = 1, …, most, to 120 digits, from the definition."""
    with decimal.localcontext(decimal.Context(prec=150)):
        if isinstance(law, PoissonLaw):
            mean = decimal.Decimal(law.mean)
            mass, found = (-mean).exp(), []
            for k in range(most):
                found.append(mass)
                mass = mass * mean / (k + 1)
        else:
            t, s = (-decimal.Decimal(law.rate)).exp(), law.shape
            power = decimal.Decimal(s.numerator) / s.denominator
            mass, found = (1 - t) ** power, []
            for k in range(most):
                found.append(mass)
                mass = mass * t * (k + power) / (k + 1)
        reached, left = decimal.Decimal(1), []
        for mass in found:
            reached -= mass
            left.append(reached)
        return left


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_a_table_holds_the_tails_to_the_last_digit(law):
    low, high = draws._tails(law, 62)
    expected = tails(law, len(low))[::-1]
    with decimal.localcontext(decimal.Context(prec=150)):
        for least, most, tail in zip(low, high, expected, strict=True):
            assert least <= tail * (1 << 62) <= most
            assert most - least <= 2
        assert tails(law, len(low) + 1)[-1] * (1 << 62) < 1  # the list ends where 62 digits see nothing more
    assert low == sorted(low)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_draws_at_the_edges_are_decided_by_further_digits(law):
    """The word that holds the leading digits of a tail: what follows decides."""
    middle = int(law.mean) if isinstance(law, PoissonLaw) else int(float(law.shape) / np.expm1(law.rate))
    for j in (middle + 1, middle + 2, middle + 3):
        with decimal.localcontext(decimal.Context(prec=150)):
            word, rest = divmod(int(tails(law, j)[-1] * (1 << 126)), 1 << 64)
        for below, expected in ((rest - 1, j), (rest + 1, j - 1)):
            signed = below - (1 << 64) if below >= 1 << 63 else below
            found = law.draw(1, randomness=GivenWords(word, signed))
            assert int(found) == expected


def test_a_draw_beyond_the_table_is_made_with_more_digits():
    law = PolyaLaw(rate=2.0, shape=Fraction(1))
    far = int(law.draw(1, randomness=Far(3, SeededRandomness(1).words)))
    assert 65 < far < 90  # 190 binary digits are zero: e^(−2j) is below 2^-190


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_draws_have_their_law(law):
    drawn = law.draw(200_000, randomness=SeededRandomness(7)).numpy()
    exact = (
        stats.poisson(law.mean)
        if isinstance(law, PoissonLaw)
        else stats.nbinom(float(law.shape), -np.expm1(-law.rate))
    )
    edges = [int(exact.ppf(q)) for q in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 0.9999)]
    for edge in sorted(set(edges)):
        hits = int((drawn <= edge).sum())
        assert stats.binomtest(hits, len(drawn), min(float(exact.cdf(edge)), 1.0)).pvalue > 1e-8


def test_shares_of_noise_add_up_to_discrete_laplace():
    rate, holders, trials = 0.4, 5, 40_000
    noise = PolyaNoise(rate=rate, holders=holders)
    drawn = noise.draw(trials * holders, randomness=SeededRandomness(3)).reshape(trials, holders)
    assert float(drawn.double().var()) == pytest.approx(noise.share_variance, rel=0.06)
    at_once = noise.draw(trials, clients=holders, randomness=SeededRandomness(4))
    for sums in (drawn.sum(dim=1).numpy(), at_once.numpy()):
        for value in range(-6, 7):
            expected = np.tanh(rate / 2) * np.exp(-rate * abs(value))
            assert abs((sums == value).mean() - expected) < 5 * np.sqrt(expected / trials)
    assert noise.draw(3, clients=0, randomness=SeededRandomness(1)).tolist() == [0, 0, 0]
    within = noise.reach(clients=holders, bits=40)
    beyond = 2 * np.exp(-rate * (within + 1)) / (1 + np.exp(-rate))
    assert 2.0**-50 < beyond < 2.0**-40
    with pytest.raises(ValueError, match="use fewer levels"):
        PolyaNoise(rate=1e-7, holders=5)


def test_large_poisson_numbers_are_added_up_of_parts():
    drawn = drawn_poisson(2_000, mean=20_000.0, randomness=SeededRandomness(2)).double()
    assert float(drawn.mean()) == pytest.approx(20_000, abs=5 * (20_000 / 2_000) ** 0.5)
    assert float(drawn.var()) == pytest.approx(20_000, rel=0.2)
    assert torch.equal(
        drawn_poisson(3, mean=0.0, randomness=SeededRandomness(2)), torch.zeros(3, dtype=torch.int64)
    )
