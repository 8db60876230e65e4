"""Masses of very many coins against fifty-digit arithmetic, and the law that is drawn from them."""

import math

import numpy as np
import pytest
import torch

from shuffle_plugins.accounting.pairs.noise import (
    DRAWN_REACH,
    LONG_ROUNDOFF,
    REACH,
    masses,
    upper_half,
)
from shuffle_plugins.protocols.draws import _GUARD_BITS, RATIO, _upper_masses, alias_table, heads
from shuffle_plugins.randomness import Randomness

mpmath = pytest.importorskip("mpmath")


def exact_mass(heads, trials):
    def log_factorial(n):
        return mpmath.loggamma(n + 1)

    exponent = log_factorial(trials) - log_factorial(heads) - log_factorial(trials - heads)
    return mpmath.exp(exponent - trials * mpmath.log(2))


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


@pytest.mark.parametrize("trials", [100_000, 1_000_001])
def test_counts_are_listed_as_far_as_they_should(trials):
    """And numbers drawn furthest out have masses of as many digits as their ratio is right to."""
    for reach in (REACH, DRAWN_REACH):
        counts = upper_half(trials, reach=reach)
        assert counts[0] == -(-trials // 2)
        assert np.all(np.diff(counts) == 1)
        assert 0 <= counts[-1] - trials / 2 - reach * math.sqrt(trials) / 2 < 1
    middle, furthest = masses(counts[[0, -1]], trials)
    assert np.log2(middle / furthest) < _GUARD_BITS - 140


@pytest.mark.parametrize("trials", [1, 2, 20, 257, 258, 1000, (1 << 17) + 1, 1 << 17])
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
    further = law[table.further]
    law = law[: table.further]
    exact = math.comb(trials, table.first)
    distance, seen = 0, 0
    for place, mass in enumerate(law):
        count = table.first + place
        distance += abs((mass << trials) - (exact << 128))
        seen += exact
        exact = exact * (trials - count) // (count + 1)
    # Outcomes that are not listed share one entry, by their masses relative to each other.
    distance += abs((((1 << trials) - seen) << 128) - (further << trials))
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


@pytest.mark.parametrize("trials", [300, 5001, 1 << 17, 1 << 28])
def test_every_outcome_is_drawn_with_the_binomials_probability_to_twenty_digits(trials):
    """Relative to its own mass, however rare: what a large ε is certified by."""
    table = alias_table(trials)
    law, full = [0] * len(table.high), 1 << (128 - table.bits)
    for column, (high, low, other) in enumerate(zip(table.high, table.low, table.other, strict=True)):
        own = (int(high) << 64) + int(low)
        law[column] += own
        law[int(other)] += full - own
    upper, listed = _upper_masses(trials)
    tail = sum(upper[listed:])
    counts = list(range(table.first, table.first + table.further))
    rng = np.random.default_rng(trials)
    with mpmath.workdps(60):
        chosen = [counts[0], counts[-1], *(int(c) for c in rng.choice(counts, 20))]
        errors = [
            abs(mpmath.mpf(law[count - table.first]) / 2**128 / exact_mass(count, trials) - 1)
            for count in chosen
        ]
        # The rest: both sides share the last entry, in proportion to the masses further out.
        for place in {listed, (listed + len(upper)) // 2, len(upper) - 1}:
            drawn = mpmath.mpf(law[table.further]) / 2**128 * upper[place] / tail / 2
            errors.append(abs(drawn / exact_mass((trials + 1) // 2 + place, trials) - 1))
        assert max(errors) < RATIO


def test_outcomes_that_are_not_listed_are_drawn_by_their_masses():
    trials = 4000
    upper, listed = _upper_masses(trials)
    tail = sum(upper[listed:])
    table = alias_table(trials)
    assert table.high[table.further] > 0  # so a fraction of nothing stands for its column's own entry

    def outcome(share, sign):
        uniform = (share << 768) // tail + 1
        words = [(uniform >> (64 * i)) & ((1 << 64) - 1) for i in range(12)]
        return int(heads(trials, 1, randomness=Words([table.further, *words, sign])))

    first = trials // 2 + listed
    assert [outcome(0, 1), outcome(0, 0)] == [first, trials - first]
    assert outcome(upper[listed] - 1, 1) == first
    assert outcome(upper[listed], 1) == first + 1
    assert outcome(tail - 1, 0) == trials - (trials // 2 + len(upper) - 1)
