"""Exact draws of whole numbers: tables against other digits, their edges, whole laws, numbers of heads."""

import decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from scripted_randomness import Far, GivenWords

from shuffle_plugins.protocols import draws
from shuffle_plugins.protocols.draws import (
    COINS_AT_ONCE,
    BinomialLaw,
    PoissonLaw,
    PolyaLaw,
    PolyaNoise,
    drawn_binomials,
    drawn_poisson,
    drawn_range,
    heads,
)
from shuffle_plugins.randomness import WHOLE, SeededRandomness

LAWS = [
    PolyaLaw(rate=0.5, shape=Fraction(1, 10_000)),
    PolyaLaw(rate=0.01, shape=Fraction(5, 4)),
    PolyaLaw(rate=2.0, shape=Fraction(1)),
    PolyaLaw(rate=0.3, shape=Fraction(40)),
    PoissonLaw(mean=0.43),
    PoissonLaw(mean=1024.0),
    BinomialLaw(trials=7, threshold=WHOLE // 3),
    BinomialLaw(trials=300, threshold=WHOLE // 2),
    BinomialLaw(trials=5000, threshold=WHOLE // 2),
    BinomialLaw(trials=1 << 16, threshold=WHOLE // 1000),
]


def tails(law, most):
    """P[X ≥ j], j = 1, …, most, to 250 digits, from the definition."""
    with decimal.localcontext(decimal.Context(prec=300)):
        if isinstance(law, BinomialLaw):
            success = decimal.Decimal(law.threshold) / WHOLE
            mass, odds = (1 - success) ** law.trials, success / (1 - success)
        elif isinstance(law, PoissonLaw):
            mean = decimal.Decimal(law.mean)
            mass = (-mean).exp()
        else:
            t, power = (-decimal.Decimal(law.rate)).exp(), decimal.Decimal(law.shape.numerator)
            power /= law.shape.denominator
            mass = (1 - t) ** power
        reached, left = decimal.Decimal(1), []
        for k in range(most):
            reached -= mass
            left.append(reached)
            if isinstance(law, BinomialLaw):
                mass = mass * odds * (law.trials - k) / (k + 1)
            else:
                mass = mass * (mean if isinstance(law, PoissonLaw) else t * (k + power)) / (k + 1)
        return left


def exact_law(law):
    """The same by SciPy."""
    if isinstance(law, BinomialLaw):
        return stats.binom(law.trials, law.threshold / WHOLE)
    if isinstance(law, PoissonLaw):
        return stats.poisson(law.mean)
    return stats.nbinom(float(law.shape), -np.expm1(-law.rate))


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_a_table_holds_the_tails_to_the_last_digit(law):
    first, low, high = draws._tails(law, 62)
    every = tails(law, first + len(low) + 1)
    with decimal.localcontext(decimal.Context(prec=300)):
        for least, most, tail in zip(low, high, every[first:-1][::-1], strict=True):
            assert least <= tail * (1 << 62) <= most
            assert most - least <= 2
        # The list ends where 62 digits see nothing more.
        assert every[-1] * (1 << 62) < 1
        assert not first or (1 - every[first - 1]) * (1 << 62) < 1
    assert low == sorted(low)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_draws_at_the_edges_are_decided_by_further_digits(law):
    """The word that holds the leading digits of a tail: what follows decides."""
    middle = int(exact_law(law).mean())
    for j in {min(middle + more, getattr(law, "trials", middle + 3)) for more in (1, 2, 3)}:
        with decimal.localcontext(decimal.Context(prec=300)):
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
    exact = exact_law(law)
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


def test_numbers_of_events_follow_their_law():
    events = torch.tensor([0, 1, 5, 1_000, 33_000_000]).repeat(2_000, 1)
    drawn = drawn_binomials(events, threshold=WHOLE // 50, randomness=SeededRandomness(1)).double()
    assert int(drawn[:, 0].max()) == 0
    for column, many in ((1, 1), (2, 5), (3, 1_000), (4, 33_000_000)):
        law = stats.binom(many, 0.02)
        assert float(drawn[:, column].mean()) == pytest.approx(law.mean(), abs=5 * law.std() / 2_000**0.5)
        assert float(drawn[:, column].var()) == pytest.approx(law.var(), rel=0.4)


@pytest.mark.parametrize("coins", [0, 1, 7, 256, 12_484, COINS_AT_ONCE // 64 + 300])
def test_heads_lie_in_their_range_and_deviate_as_coins_do(coins):
    low, high = drawn_range(coins)
    drawn = heads(coins, 2_000, randomness=SeededRandomness(5))
    assert low <= int(drawn.min())
    assert int(drawn.max()) <= high
    assert low + high == coins
    assert float(drawn.double().mean()) == pytest.approx(coins / 2, abs=6 * (coins / 8_000) ** 0.5)
    assert float(drawn.double().var()) == pytest.approx(coins / 4, rel=0.2)


def test_heads_beyond_their_range_are_drawn_again(monkeypatch):
    monkeypatch.setattr(draws, "drawn_range", lambda coins: (coins // 2 - 3, coins // 2 + 3))
    drawn = heads(1000, 5_000, randomness=SeededRandomness(6))
    assert sorted(set((drawn - 500).tolist())) == list(range(-3, 4))


def test_more_coins_than_a_table_takes_are_drawn_in_parts(monkeypatch):
    monkeypatch.setattr(draws, "COINS_AT_ONCE", 1000)
    drawn = heads(3_001, 20_000, randomness=SeededRandomness(7)).double()
    assert float(drawn.mean()) == pytest.approx(1_500.5, abs=1.2)  # 6 standard errors
    assert float(drawn.var()) == pytest.approx(3_001 / 4, rel=0.06)


def test_no_coins_and_impossible_ones():
    assert heads(0, 3).tolist() == [0, 0, 0]
    for coins, size in ((-1, 1), (True, 1), ((1 << 44) + 1, 1), (5, -1)):
        with pytest.raises(ValueError, match="must be a whole number"):
            heads(coins, size)
