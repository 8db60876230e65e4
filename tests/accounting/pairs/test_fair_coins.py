"""Masses of very many coins against fifty-digit arithmetic."""

import math

import numpy as np
import pytest

from shuffle_plugins.accounting.pairs.noise import (
    DRAWN_REACH,
    LONG_ROUNDOFF,
    REACH,
    masses,
    upper_half,
)

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
    for reach in (REACH, DRAWN_REACH):
        counts = upper_half(trials, reach=reach)
        assert counts[0] == -(-trials // 2)
        assert np.all(np.diff(counts) == 1)
        assert 0 <= counts[-1] - trials / 2 - reach * math.sqrt(trials) / 2 < 1
