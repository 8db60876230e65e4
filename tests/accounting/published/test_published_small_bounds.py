"""The smaller bounds of the papers, each against a computation of its own."""

import itertools
import math

import numpy as np
import pytest
from histories import accountant_of
from scipy import stats

from shuffle_plugins.accounting import (
    SampledRecordsRound,
    Sampling,
    ShuffleRound,
    epsilon_from_rdp,
)
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


# -- Lemma 2.1.5 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rho", "delta"), list(itertools.product((1e-6, 1e-3, 0.1, 1.0, 30.0), (0.3, 1e-5, 1e-12)))
)
def test_lemma_2_1_5_is_above_the_best_conversion(rho, delta):
    found = thesis.linear_rdp_epsilon(rho=rho, delta=delta)
    orders = 1 + np.geomspace(1e-4, 1e7, 4000)
    best, _ = epsilon_from_rdp(orders=orders, rdp=rho * orders, delta=delta)
    assert best <= found
    simple = float((rho * orders + math.log(1 / delta) / (orders - 1)).min())
    assert simple <= found * (1 + 1e-5)
    assert simple == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1 / delta)), rel=1e-5)


def test_lemma_2_1_5_needs_what_its_proof_needs():
    with pytest.raises(ValueError, match="delta"):
        thesis.linear_rdp_epsilon(rho=0.1, delta=0.5)
    with pytest.raises(ValueError, match="at order 108"):
        thesis.linear_rdp_epsilon(rho=1e-3, delta=1e-5, largest_order=100)


# -- (3.4) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1e-6, 0.1, 1.0, 5.0, 40.0, 600.0])
def test_binary_response_divergence_is_the_sum_over_both_answers(level):
    import mpmath

    orders = [1.0001, 1.5, 2.0, 17.0, 1000.0]
    found = divergences.binary_response_rdp(orders=orders, local_epsilon=level)
    with mpmath.workdps(400):
        p = 1 / (mpmath.exp(level) + 1)
        for order, value in zip(orders, found, strict=True):
            moment = p**order * (1 - p) ** (1 - order) + p ** (1 - mpmath.mpf(order)) * (1 - p) ** order
            exact = float(mpmath.log(moment) / (mpmath.mpf(order) - 1))
            assert exact * (1 - 1e-15) <= value <= exact * (1 + 1e-9) + 1e-300


# -- Theorem 4.4.1 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [1, 50])
def test_theorem_4_4_1_is_above_the_certified_poisson_round(num_steps):
    ask = {"local_epsilon": 0.5, "population": 20_000}
    accountant = accountant_of((ShuffleRound(**ask, cohort=4_000, sampling=Sampling.POISSON), num_steps))
    bound = thesis.self_sampling_bound(**ask, participation=0.2, num_steps=num_steps, delta=1e-6)
    assert accountant.epsilon(1e-6).upper < bound <= 0.5 * num_steps


def test_theorem_4_4_1_asks_a_shuffle_for_no_delta_above_one():
    """A record that is in few reports leaves more than all of δ to each shuffle."""
    asked = []

    def shuffled(**question):
        asked.append(question)
        return 0.2

    found = thesis.self_sampling_bound(
        local_epsilon=0.5, population=10**4, participation=0.5, num_steps=3, delta=1e-3, records=10**4,
        shuffled=shuffled,
    )  # fmt: skip
    assert asked == [{"local_epsilon": 0.5, "cohort": 2_500, "delta": 1.0}]
    step = math.log(1 + 1.5 * 0.5 / 10**4 * (math.exp(0.2) - 1))
    deviation = math.sqrt(6 * math.log(1 / 5e-4)) * step
    assert found == pytest.approx(deviation + 3 * step * (math.exp(step) - 1), rel=1e-9)


# -- orders and Table 3.1 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "radius"), [(0.5, 3.0), (2.0, 0.7)])
def test_orders_as_printed(epsilon, radius):
    n, d, delta = 500, 20, 1e-4
    for p in (1.0, 1.9, 2.0, 3.0):
        found = thesis.local_error_order(local_epsilon=epsilon, dim=d, cohort=n, norm=p, radius=radius)
        many = d ** (2 - 2 / p) / (n * min(epsilon, epsilon**2))
        order = min(1, d / (n * epsilon**2)) if p < 2 else many
        assert found == pytest.approx(radius**2 * order, rel=1e-12)
    for bits in (5, 20, 90):
        sent = n / (d * 4 ** (bits / d)) if bits >= d else n / bits
        found = thesis.central_error_order(
            epsilon=epsilon, delta=delta, dim=d, cohort=n, bits=bits, radius=radius
        )
        order = d / n**2 * max(math.log(1 / delta) / epsilon**2, sent)
        assert found == pytest.approx(radius**2 * order, rel=1e-12)
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
            epsilon, total = shuffles.approximate_ldp(
                local_epsilon=level, local_delta=0.0, cohort=records, delta=delta / 2
            )
            assert total == delta / 2
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


# -- Theorem 7.3.1 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1.0, 2.5])
def test_theorem_7_3_1_is_below_the_least_error_of_two_categories(level):
    """The Bayes error of binary responses, which are best for two categories, counted out for a prior."""
    needed = 6 if level == 1.0 else 1
    with pytest.raises(ValueError, match="the proof needs"):
        thesis.frequency_error_bound(local_epsilon=level, categories=500, reports=100)
    keep = 1 / (1 + math.exp(-level))
    theta = np.linspace(-0.5, 0.5, 4001)
    prior = np.cos(np.pi * theta) ** 2
    prior /= prior.sum()
    for reports in (needed, 3 * needed, 50):
        ones = keep * (0.5 + theta) + (1 - keep) * (0.5 - theta)
        joint = stats.binom.pmf(np.arange(reports + 1)[:, None], reports, ones) * prior
        seen = joint.sum(axis=1)
        best = joint @ theta / seen
        error = 2 * float((joint * (theta - best[:, None]) ** 2).sum())
        bound = thesis.frequency_error_bound(local_epsilon=level, categories=2, reports=reports)
        assert 0.01 * error < bound < error
    assert thesis.frequency_error_bound(local_epsilon=1.0, categories=10, reports=10**6) == pytest.approx(
        10 * (math.e + 1) ** 2 / (16 * 10**6 * math.e * (math.e - 1) ** 2), rel=1e-9
    )  # as printed
