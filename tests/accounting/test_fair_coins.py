"""Masses of very many coins against fifty-digit arithmetic, and the law that is drawn from them."""

import math

import numpy as np
import pytest
import torch

from shuffle_plugins.accounting.fair_coins import LONG_ROUNDOFF, masses
from shuffle_plugins.protocols.coins import DISTANCE, MOST_FINE, _fill_columns, alias_table, heads
from shuffle_plugins.randomness import Randomness

mpmath = pytest.importorskip("mpmath")


def exact_mass(heads, trials):
    def log_factorial(n):
        return mpmath.loggamma(n + 1)

    exponent = log_factorial(trials) - log_factorial(heads) - log_factorial(trials - heads)
    return mpmath.exp(exponent - trials * mpmath.log(2))


def drawn_law(table):
    """Probabilities of all outcomes of a table, in units of 2**-128, to the digits of longdouble."""
    low = table.low.astype(np.longdouble) * np.longdouble(2.0**-64)
    own = table.high.astype(np.longdouble) + low
    full = np.ldexp(np.longdouble(1), 64 - table.bits)
    law = own.copy()
    rest = np.flatnonzero(own < full)
    np.add.at(law, table.other[rest], full - own[rest])
    return law


def near_the_middle(trials, size, seed):
    deviations = np.random.default_rng(seed).standard_normal(size)
    return [int(trials / 2 + z * math.sqrt(trials) / 2) for z in deviations]


@pytest.mark.parametrize("trials", [64, 1001, 1 << 26, 1 << 32, 1 << 40])
def test_no_digits_cancel_in_masses_of_many_coins(trials):
    counts = [count for count in near_the_middle(trials, 40, trials) if 0 < count < trials]
    found = masses(np.array(counts), trials)
    with mpmath.workdps(60):
        for count, mass in zip(counts, found, strict=True):
            head = float(mass)
            written = mpmath.mpf(head) + mpmath.mpf(float(mass - np.longdouble(head)))
            assert abs(written / exact_mass(count, trials) - 1) < LONG_ROUNDOFF


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs more digits than float64")
@pytest.mark.parametrize(("exponent", "parts"), [(21, 1), (32, 1), (36, 16)])
def test_drawn_heads_are_as_close_to_binomial_as_is_charged(exponent, parts):
    trials = 1 << exponent
    table = alias_table(trials)
    law = drawn_law(table)
    errors = []
    with mpmath.workdps(60):
        for count in near_the_middle(trials, 120, exponent):
            mass = law[count - table.first]
            head = float(mass)
            written = mpmath.mpf(head) + mpmath.mpf(float(mass - np.longdouble(head)))
            errors.append(abs(float(written / exact_mass(count, trials) / 2**64 - 1)))
    # Of a sample from the binomial, half the mean relative error is the total variation.
    assert parts * np.mean(errors) / 2 < DISTANCE


@pytest.mark.parametrize("trials", [257, 258, 1000, 5001, (1 << 17) + 1, 1 << 17])
def test_a_clients_heads_are_within_2_to_the_minus_100_of_binomial(trials):
    """Every outcome of the table as a whole number of 2**-128, against binomial coefficients in full."""
    table = alias_table(trials)
    full = 1 << (128 - table.bits)
    law = [0] * len(table.high)
    for column, (high, low, other) in enumerate(zip(table.high, table.low, table.other, strict=True)):
        own = (int(high) << 64) + int(low)
        law[column] += own
        law[int(other)] += full - own
    assert sum(law) == 1 << 128
    exact = math.comb(trials, table.first)
    distance, seen = 0, 0
    for place, mass in enumerate(law):
        count = table.first + place
        distance += abs((mass << trials) - (exact << 128))
        seen += exact
        exact = exact * (trials - count) // (count + 1)
    distance += ((1 << trials) - seen) << 128
    assert distance < 1 << (trials + 128 - 100 + 1)


def test_thresholds_are_compared_to_their_last_digit():
    """Words that agree with a threshold in 32 digits, or in all of the first word, go by those beyond."""
    table = alias_table(1000)
    shared = (table.other != np.arange(len(table.other))) & (table.low > 0)
    column = int(np.flatnonzero(shared & (table.high > 0))[0])
    high, low = int(table.high[column]), int(table.low[column])

    def outcome(fraction, *further):
        return int(heads(1000, 1, randomness=Words([(fraction << table.bits) + column, *further])))

    own, other = table.first + column, table.first + int(table.other[column])
    assert [outcome(high - 1), outcome(high + 1)] == [own, other]
    assert [outcome(high, low - 1), outcome(high, low)] == [own, other]


class Words(Randomness):
    """Words that were written down, and no more of them than are needed."""

    def __init__(self, words):
        self._left = list(words)

    def words(self, count, *, device="cpu"):
        drawn, self._left = self._left[:count], self._left[count:]
        assert len(drawn) == count
        return torch.from_numpy(np.array(drawn, dtype=np.uint64).view(np.int64))


def test_compiled_columns_are_the_ones_of_plain_python():
    coins = MOST_FINE + 1
    compiled = alias_table(coins)
    plain = alias_table.__wrapped__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shuffle_plugins.protocols.coins._compiled_fill", lambda: _fill_columns)
        again = plain(coins)
    for name in ("high", "low", "other", "packed"):
        assert np.array_equal(getattr(again, name), getattr(compiled, name))
