"""Masses of very many coins against fifty-digit arithmetic, and the law that is drawn from them."""

import math

import numpy as np
import pytest

from shuffle_plugins.accounting.fair_coins import LONG_ROUNDOFF, masses
from shuffle_plugins.protocols.coins import DISTANCE, _table
from shuffle_plugins.randomness import PROBABILITY_BITS

mpmath = pytest.importorskip("mpmath")


def exact_mass(heads, trials):
    def log_factorial(n):
        return mpmath.loggamma(n + 1)

    exponent = log_factorial(trials) - log_factorial(heads) - log_factorial(trials - heads)
    return mpmath.exp(exponent - trials * mpmath.log(2))


def share(thresholds, place):
    return int(thresholds[place]) - (int(thresholds[place - 1]) if place else 0)


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
@pytest.mark.parametrize("exponent", [21, 34, 40])
def test_drawn_heads_are_as_close_to_binomial_as_is_charged(exponent):
    trials = 1 << exponent
    table = _table(trials)
    width = table.within.shape[1]
    errors = []
    with mpmath.workdps(60):
        for count in near_the_middle(trials, 120, exponent):
            bucket, place = divmod(count - table.first, width)
            drawn = share(table.buckets, bucket) * share(table.within[bucket], place)
            errors.append(abs(float(drawn / exact_mass(count, trials) / 2 ** (2 * PROBABILITY_BITS) - 1)))
    assert np.mean(errors) / 2 < DISTANCE  # of a sample from the binomial: its total variation
