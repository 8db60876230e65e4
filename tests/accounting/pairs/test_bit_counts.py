"""Counted bits against exhaustive enumeration, Gaussian limits and the blanket."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats
from thinning import first_fast

from shuffle_plugins.accounting import Blanket, ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.numerics.sums import LOG_TAIL, bernstein_reach
from shuffle_plugins.accounting.pairs import bits
from shuffle_plugins.accounting.pairs.bits import BitPair, BitResponse, bit_losses

VIOLATION = 1e-12


@cache
def count_law(zeros: int, ones: int, local_epsilon: float) -> np.ndarray:
    one = 1 / (1 + math.exp(-local_epsilon))
    law = stats.binom.pmf(np.arange(zeros + 1), zeros, 1 - one)
    return np.convolve(law, stats.binom.pmf(np.arange(ones + 1), ones, one))


def round_laws(
    record: int, others_ones: int, *, population: int, rate_of_cohort: dict[int, float], local_epsilon: float
) -> dict[int, np.ndarray]:
    """Law of the count of ones, by cohort size, for k-of-n rounds with random public k."""
    laws = {}
    for cohort, probability in rate_of_cohort.items():
        law = np.zeros(cohort + 1)
        taken = cohort / population
        for others, weight in ((cohort, 1 - taken), (cohort - 1, taken)):
            if not 0 <= others <= population - 1 or weight == 0:
                continue
            for ones in range(others + 1):
                ways = math.comb(others_ones, ones) * math.comb(population - 1 - others_ones, others - ones)
                chance = weight * ways / math.comb(population - 1, others)
                mine = cohort - others
                law += chance * count_law(
                    others - ones + mine * (1 - record), ones + mine * record, local_epsilon
                )
        laws[cohort] = probability * law
    return laws


def worst_delta(epsilon: float, *, population: int, cohorts: dict[int, float], local_epsilon: float) -> float:
    """The largest Σ (P − e^ε Q)₊ over all datasets of bits and both directions."""
    worst = 0.0
    for others_ones in range(population):
        zero, one = (
            round_laws(
                record,
                others_ones,
                population=population,
                rate_of_cohort=cohorts,
                local_epsilon=local_epsilon,
            )
            for record in (0, 1)
        )
        for p, q in ((zero, one), (one, zero)):
            gap = sum(np.maximum(p[k] - math.exp(epsilon) * q[k], 0.0).sum() for k in cohorts)
            worst = max(worst, float(gap))
    return worst


def accountant_of(shuffle_round: ShuffleRound, steps: int = 1) -> ShuffleAccountant:
    accountant = ShuffleAccountant()
    accountant.step(shuffle_round, num_steps=steps)
    return accountant


def bit_round(local_epsilon: float, **fields: object) -> ShuffleRound:
    return ShuffleRound(
        local_epsilon=local_epsilon,
        mechanism="binary-rr",
        blanket=Blanket.bit(local_epsilon),
        **fields,
        channel_fixed=True,
    )


@pytest.mark.parametrize("local_epsilon", [0.1, 0.5, 1.5, 3.0, 8.0, 15.0])
@first_fast(("population", "cohort"), [(1, 1), (2, 2), (4, 4), (5, 3), (9, 5), (7, 1), (16, 15)], fast=5)
def test_every_dataset_is_dominated(local_epsilon: float, population: int, cohort: int) -> None:
    accountant = accountant_of(bit_round(local_epsilon, population=population, cohort=cohort))
    for share in (0.0, 0.05, 0.2, 0.5, 0.9):
        epsilon = share * local_epsilon
        exact = worst_delta(
            epsilon, population=population, cohorts={cohort: 1.0}, local_epsilon=local_epsilon
        )
        bound = accountant.delta(epsilon).upper
        assert bound >= exact - VIOLATION
        if cohort == population:
            assert bound <= exact * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize("local_epsilon", [0.3, 1.0, 2.5])
@first_fast(("population", "rate"), [(4, 0.5), (8, 0.25), (7, 0.9)], fast=2)
def test_every_dataset_is_dominated_under_poisson_sampling(
    local_epsilon: float, population: int, rate: float
) -> None:
    accountant = accountant_of(
        bit_round(local_epsilon, population=population, cohort=rate * population, sampling="poisson")
    )
    cohorts = {k: float(stats.binom.pmf(k, population, rate)) for k in range(population + 1)}
    for share in (0.0, 0.1, 0.4):
        epsilon = share * local_epsilon
        exact = worst_delta(epsilon, population=population, cohorts=cohorts, local_epsilon=local_epsilon)
        assert accountant.delta(epsilon).upper >= exact - VIOLATION


def test_inputs_between_the_ends_leak_less() -> None:
    local_epsilon, epsilon = 1.2, 0.3
    accountant = accountant_of(bit_round(local_epsilon, population=4, cohort=4))
    rng = np.random.default_rng(5)
    low, high = 1 / (1 + math.exp(local_epsilon)), 1 / (1 + math.exp(-local_epsilon))
    for _ in range(50):
        others = rng.uniform(low, high, 3)
        noise = np.ones(1)
        for chance in others:
            noise = np.convolve(noise, [1 - chance, chance])
        a, b = rng.uniform(low, high, 2)
        p, q = np.convolve(noise, [1 - a, a]), np.convolve(noise, [1 - b, b])
        assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= accountant.delta(epsilon).upper


@first_fast("cohort", [10**4, 10**6, 10**7], fast=2)
def test_large_rounds_approach_the_gaussian_limit(cohort: int) -> None:
    local_epsilon = 1.0
    pair = BitPair(response=BitResponse.symmetric(local_epsilon), others=cohort - 1, buckets=256)
    _, p, q, missing = bit_losses(pair)
    mu = math.sqrt(pair.information)
    assert missing < 1e-20
    assert math.isclose(p.sum(), 1.0, abs_tol=1e-9)
    assert math.isclose(q.sum(), 1.0, abs_tol=1e-9)
    for z in (0.0, 1.0, 3.0):
        limit = stats.norm.cdf(mu / 2 - z) - math.exp(z * mu) * stats.norm.cdf(-mu / 2 - z)
        delta = float(np.maximum(p - math.exp(z * mu) * q, 0).sum())
        # A bucket of 1/256 of the datasets takes as much off the noise; skewness is of order 1/√k.
        assert delta == pytest.approx(limit, rel=0.01 * (1 + z**2) / 2 + 3 * (1 + z**3) / math.sqrt(cohort))


@pytest.mark.parametrize("trials", [3, 40])
def test_shares_end_where_what_is_seen_of_them_is_too_rare(trials: int) -> None:
    """By Hoeffding's bound; of bits that are all the same it is the probability itself."""
    counts = np.arange(trials + 1, dtype=np.float64)
    least, most = (bits.likely_share(counts, trials, upper=upper) for upper in (False, True))
    assert (least[0], most[-1]) == (0.0, 1.0)
    assert least[-1] == pytest.approx(math.exp(-LOG_TAIL / trials), rel=1e-7, abs=0)
    assert most[0] == pytest.approx(-math.expm1(-LOG_TAIL / trials), rel=1e-7, abs=0)
    assert np.all(least <= counts / trials)
    assert np.all(counts / trials <= most)
    assert np.all(stats.binom.logsf(counts[1:] - 1, trials, least[1:]) <= -LOG_TAIL + 1e-6)
    assert np.all(stats.binom.logcdf(counts[:-1], trials, most[:-1]) <= -LOG_TAIL + 1e-6)
    assert [bits.likely_share(np.zeros(1), 0, upper=upper)[0] for upper in (False, True)] == [0.0, 1.0]


@pytest.mark.parametrize(("zeros", "ones"), [(0, 100_000), (100_000, 0), (40, 30), (0, 1)])
@pytest.mark.parametrize("response", [BitResponse.symmetric(6.0), BitResponse.optimal(2.0).flipped])
def test_noise_is_the_law_of_all_bits_far_out_too(zeros: int, ones: int, response: BitResponse) -> None:
    variance = zeros * response.zero * response.not_zero + ones * response.one * response.not_one
    law = bits._noise(ones, zeros, float(bernstein_reach(variance)), response)
    first = math.floor((zeros * response.zero + ones * response.one) * (1 - 1e-12))
    counts = first + np.arange(len(law))
    if min(zeros, ones) == 0:
        exact = stats.binom.pmf(counts, zeros + ones, response.zero if zeros else response.one)
    else:
        parts = ((zeros, response.zero), (ones, response.one))
        both = np.convolve(*(stats.binom.pmf(np.arange(n + 1), n, chance) for n, chance in parts))
        exact = np.append(both, np.zeros(2))[counts]
    np.testing.assert_allclose(law, exact, rtol=1e-9, atol=1e-30)
