"""The smaller bounds of the papers, each against a computation of its own."""

import itertools
import math

import numpy as np
import pytest
from histories import accountant_of
from scipy import stats

from shuffle_plugins.accounting import SampledRecordsRound
from shuffle_plugins.accounting.published import divergences, shuffles, thesis

ORDERS = np.array([2.0, 3.0, 5.0, 8.0])


def exact_renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return math.log(float((p**order * q ** (1 - order)).sum())) / (order - 1)


# -- Corollary 5.3.2 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "cohort"), [(0.3, 4), (1.0, 7), (2.0, 30), (4.0, 20)])
def test_corollary_5_3_2_is_below_binary_response_counted_out(level, cohort):
    """All others hold 0: the counts of ones are binomial, with the differing client's own bit added."""
    flip = 1 / (math.exp(level) + 1)
    others = stats.binom.pmf(np.arange(cohort), cohort - 1, flip)
    zero, one = (np.convolve(others, own) for own in ([1 - flip, flip], [flip, 1 - flip]))
    bound = divergences.simple_shuffle_rdp_lower_bound(orders=ORDERS, local_epsilon=level, cohort=cohort)
    for order, low in zip(ORDERS, bound, strict=True):
        exact = max(exact_renyi(one, zero, order), exact_renyi(zero, one, order))
        assert 0 < low <= exact
    assert bound[0] == pytest.approx(exact_renyi(one, zero, 2.0), rel=1e-6)  # order 2 has no other term


# -- Table 3.1 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_orders_as_printed(epsilon):
    n = 500
    signal = n * epsilon**2
    for d in (3, 100, 10**4, 10**7):
        found = thesis.communication_orders(epsilon=epsilon, dim=d, cohort=n)
        planes = d * max(1, math.log(signal / d)) if d < signal else signal * max(1, math.log(d / signal))
        summed = d * math.log(n) if d <= n * signal else n * signal * math.log(d)
        assert found["bit planes"] == pytest.approx(max(1, planes), rel=1e-12)
        assert found["secure aggregation"] == pytest.approx(summed, rel=1e-12)


# -- Cheu et al. and Proposition 5.3 ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "cohort"), list(itertools.product((0.05, 0.5, 2.0, 4.0), (2_000, 10**5, 10**6)))
)
def test_the_closed_form_of_binary_response_is_above_its_exact_value(level, cohort):
    for delta in (1e-3, 1e-6, 1e-12):
        exact = shuffles.binary_response_lower(local_epsilon=level, cohort=cohort, delta=delta)
        asked = {"local_epsilon": level, "cohort": cohort, "delta": delta}
        if 2 * cohort / (math.exp(level) + 1) < 14 * math.log(4 / delta):
            with pytest.raises(ValueError, match="needs 2·cohort"):
                shuffles.binary_response_bound(**asked)
        else:
            assert shuffles.binary_response_bound(**asked) > exact


def test_noisy_sgd_in_random_order():
    """ε0 is the least one allowed, δ is met; at little noise it beats sampling with replacement."""
    from shuffle_plugins.accounting.pairs.noise import gaussian_profile

    records, delta = 10**6, 1e-6
    for noise in (2.5, 4.0, 10.0):
        found = shuffles.noisy_sgd_pass(noise_multiplier=noise, records=records, delta=delta)
        levels = np.linspace(0.05, math.log(records / (16 * math.log(4 / delta))) - 1e-6, 3000)
        local = gaussian_profile(levels, mu=2 / noise)
        allowed = []
        for level, local_delta in zip(levels, local, strict=True):
            epsilon = shuffles.clone_bound(local_epsilon=level, cohort=records, delta=delta / 2)
            if (math.exp(epsilon) + 1) * (1 + math.exp(-level) / 2) * records * local_delta <= delta / 2:
                allowed.append(epsilon)
        assert found == pytest.approx(min(allowed), rel=1e-2)
        replaced = shuffles.noisy_sgd_with_replacement(noise_multiplier=noise, records=records, delta=delta)
        assert replaced < found < 6 * replaced
    few = {"noise_multiplier": 1.6, "records": 10**7, "delta": delta}
    assert shuffles.noisy_sgd_pass(**few) < 0.8 * shuffles.noisy_sgd_with_replacement(**few)
    with pytest.raises(ValueError, match="needs more noise"):
        shuffles.noisy_sgd_pass(noise_multiplier=0.3, records=records, delta=delta)
    with pytest.raises(ValueError, match="needs more noise or more than 100 records"):
        shuffles.noisy_sgd_pass(noise_multiplier=5.0, records=100, delta=delta)


def test_sampling_with_replacement_composes_what_sampling_amplifies():
    from shuffle_plugins.accounting.pairs.noise import gaussian_profile

    found = shuffles.noisy_sgd_with_replacement(noise_multiplier=4.0, records=50_000, delta=1e-5)
    levels = np.linspace(0.1, 5, 50_000)
    level = levels[np.argmax(gaussian_profile(levels, mu=0.5) <= 5e-6)]
    step = math.log1p(math.expm1(level) / 50_000)
    slow = math.sqrt(2 * 50_000 * math.log(2e5)) * step + 50_000 * step * math.expm1(step)
    assert found == pytest.approx(slow, rel=1e-3)
    with pytest.raises(ValueError, match="needs more noise"):
        shuffles.noisy_sgd_with_replacement(noise_multiplier=0.05, records=50_000, delta=1e-5)


# -- Lemma 4.3.1 --------------------------------------------------------------------------------------------


def test_lemma_4_3_1_for_several_records_a_client():
    """One round by hand; above what is certified of the same sampling."""
    ask = {"local_epsilon": 0.5, "population": 20_000, "cohort": 10_000, "records": 10, "delta": 1e-6}
    for samples in (1, 2, 10):
        found = thesis.sampled_records_bound(**ask, samples=samples, num_steps=1)
        rate = 0.5 * samples / 10
        one = shuffles.clone_bound(local_epsilon=0.5, cohort=10_000 * samples, delta=5e-7 / rate)
        share = rate if samples == 1 else samples / 10
        assert found == pytest.approx(math.log(1 + share * (math.exp(one) - 1)), rel=1e-9)
        accountant = accountant_of((SampledRecordsRound(
                local_epsilon=0.5, population=20_000, cohort=10_000, records_per_client=10,
                samples_per_client=samples,
            ), 40))  # fmt: skip
        many = thesis.sampled_records_bound(**ask, samples=samples, num_steps=40)
        assert accountant.epsilon(1e-6).upper < many <= 40 * 0.5
    with pytest.raises(ValueError, match="samples"):
        thesis.sampled_records_bound(**ask, samples=11, num_steps=1)
