"""The split sum: shares by enumeration, noise against its law, and what is refused."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from accounted import accounted
from thinning import first_fast

from shuffle_plugins.accounting import Adversary, LaplaceRound, ShuffleAccountant
from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.protocols import ScalarSum, SplitSum
from shuffle_plugins.protocols.shares import mixing_distance
from shuffle_plugins.randomness import SeededRandomness


def law_of_shares(numbers, shares, modulus):
    """The law of the multiset of everybody's shares, by counting every way to split."""
    law = Counter({(): 1})
    for number in numbers:
        ways = Counter()
        for first in itertools.product(range(modulus), repeat=shares - 1):
            ways[(*first, (number - sum(first)) % modulus)] += 1
        wider = Counter()
        for seen, count in law.items():
            for one, times in ways.items():
                wider[tuple(sorted(seen + one))] += count * times
        law = wider
    total = sum(law.values())
    return {seen: count / total for seen, count in law.items()}


def law_given_sum(size, modulus, total):
    """Multisets of uniform numbers with a given sum."""
    law = {}
    for seen in itertools.combinations_with_replacement(range(modulus), size):
        if sum(seen) % modulus == total:
            repeats = math.prod(math.factorial(times) for times in Counter(seen).values())
            law[seen] = math.factorial(size) / repeats
    scale = sum(law.values())
    return {seen: count / scale for seen, count in law.items()}


@pytest.mark.parametrize(
    ("clients", "shares", "modulus"),
    [(2, 2, 2), (2, 2, 3), (2, 3, 3), (2, 3, 5), (2, 4, 3), (3, 2, 3), (3, 3, 2), (3, 3, 3), (1, 3, 4)],
)
def test_shares_give_away_no_more_than_bounded(clients, shares, modulus):
    bound = mixing_distance(clients=clients, shares=shares, modulus=modulus)
    worst = moment = 0.0
    for numbers in itertools.combinations_with_replacement(range(modulus), clients):
        seen = law_of_shares(numbers, shares, modulus)
        given = law_given_sum(clients * shares, modulus, sum(numbers) % modulus)
        assert set(seen) <= set(given)
        worst = max(worst, sum(abs(seen.get(y, 0.0) - mass) for y, mass in given.items()) / 2)
        moment = max(moment, sum(mass**2 / given[y] for y, mass in seen.items()) - 1)
    assert worst <= bound
    # The second moment is exact, so that Cauchy–Schwarz is all that is lost.
    assert bound == pytest.approx(math.sqrt(moment) / 2, rel=1e-4, abs=1e-9)


def test_many_clients_are_bounded_from_above_and_closely():
    # Listed up to 2,048 clients, bounded beyond; one closed block of each side is nearly all there is.
    at, beyond = (mixing_distance(clients=n, shares=8, modulus=1 << 32) for n in (2048, 2049))
    assert at * 0.99 < beyond < at
    for clients in (10_000, 1_000_000):
        shares, modulus = 9, 1 << 32
        first = modulus * clients**2 / math.comb(shares * clients, shares)
        bound = mixing_distance(clients=clients, shares=shares, modulus=modulus)
        assert math.sqrt(first) / 2 < bound < math.sqrt(first) / 2 * 1.001
    # "Improved summation from shuffling" (2019) needs 12 shares for 2^-40 with 10,000 clients and 32 bits.
    assert mixing_distance(clients=10_000, shares=10, modulus=1 << 32) < 2.0**-40
    assert mixing_distance(clients=10**6, shares=3, modulus=1 << 60) == 1.0
    with pytest.raises(ValueError, match="three or more"):
        mixing_distance(clients=10**6, shares=2, modulus=4)


def discrete_laplace(rate, reach):
    steps = np.arange(-reach, reach + 1)
    return math.tanh(rate / 2) * np.exp(-rate * np.abs(steps))


@pytest.mark.parametrize(("rate", "shift"), [(0.5, 1), (0.25, 2), (0.3, 3), (0.05, 20), (0.0021, 701)])
def test_the_accountant_knows_the_noise(rate, shift):
    recorded = LaplaceRound(
        noise_epsilon=rate * shift, sensitivity=shift, attained=shift, population=9, cohort=9
    )
    reach = math.ceil(45 / rate)
    p = discrete_laplace(rate, reach + shift)
    p, q = p[shift:], p[: len(p) - shift]
    for steps in (1, 2):
        if steps == 2:
            p, q = (np.outer(law, law).ravel() for law in (p, q)) if shift < 10 else (None, None)
        if p is None:
            continue
        accountant = accounted(recorded, num_steps=steps)
        for epsilon in (0.0, 0.1, 0.3, 0.9 * rate * shift):
            exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
            found = accountant.delta(epsilon)
            assert found.lower * (1 - 1e-9) <= exact <= found.upper * (1 + 1e-9)
            assert found.upper - found.lower <= 2e-3 * max(exact, 1e-3)
    assert accountant.epsilon(1e-9).upper <= steps * rate * shift * 1.002


def test_a_sampled_sum_costs_what_its_mixture_does():
    rate, shift, gamma = 0.2, 5, 0.25
    recorded = LaplaceRound(
        noise_epsilon=rate * shift,
        sensitivity=shift,
        attained=shift,
        population=40,
        cohort=10,
        sampling="without-replacement",
    )
    law = discrete_laplace(rate, 300)
    q, moved = law[shift:], law[:-shift]
    p = (1 - gamma) * q + gamma * moved
    accountant = accounted(recorded)
    for epsilon in (0.0, 0.1, 0.2):
        found = accountant.delta(epsilon)
        for one, other in ((p, q), (q, p)):
            attained = float(np.maximum(one - math.exp(epsilon) * other, 0).sum())
            assert attained <= found.upper * (1 + 1e-9)
        assert float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) == pytest.approx(found.upper, rel=1e-3)
    lost = accounted(LaplaceRound(noise_epsilon=1.0, sensitivity=5, population=9, cohort=9, distance=0.1))
    with pytest.raises(ValueError, match="use more coins or shares"):
        lost.epsilon(1e-6)


def test_all_that_is_seen_stays_within_what_is_certified():
    """Two clients, whole numbers, the law of the sum mod q, and the shares' distance on top of it."""
    protocol = SplitSum(cohort=2, levels=2, noise_epsilon=1.0, shares=30)
    accountant = accounted(protocol.round())
    rate, modulus = protocol.noise_epsilon / protocol.levels, protocol.modulus

    def law(total):
        wrapped = np.zeros(modulus)
        reach = math.ceil(40 / rate)
        np.add.at(wrapped, (total + np.arange(-reach, reach + 1)) % modulus, discrete_laplace(rate, reach))
        return wrapped

    for epsilon in (0.2, 0.5, 0.9):
        bound = accountant.delta(epsilon)
        worst = max(
            float(np.maximum(law(mine + others) - math.exp(epsilon) * law(yours + others), 0).sum())
            for mine, yours in itertools.permutations(range(3), 2)
            for others in range(3)
        )
        assert bound.lower <= worst * (1 + 1e-9) <= bound.upper * (1 + 1e-9)
        assert bound.upper - worst < 1e-3


def test_shares_are_uniform_and_the_extremes_do_not_wrap():
    protocol = SplitSum(cohort=4, levels=3, noise_epsilon=300.0, shares=3)
    drawn = protocol.randomize(torch.ones(8_000, 1), randomness=SeededRandomness(0))
    shares = drawn.fields[0].values.flatten()
    counts = torch.bincount(shares, minlength=protocol.modulus).double()
    assert len(counts) == protocol.modulus == 16
    expected = len(shares) / protocol.modulus
    # Chi-square of 15 degrees: 5 deviations above its mean.
    assert float(((counts - expected) ** 2 / expected).sum()) < 15 + 5 * math.sqrt(30)
    for number in (0.0, 1.0):
        assert float(protocol.randomize_sum(torch.full((4, 1), number))) == pytest.approx(4 * number)


@first_fast(
    ("clients", "options"),
    [(100, {}), (5_000, {}), (1_000, {"honest_fraction": 0.5}), (500, {"num_steps": 5, "population": 5_000})],
    fast=3,
)
def test_calibration_meets_the_target_with_the_noise_of_a_trusted_server(clients, options):
    protocol = SplitSum.calibrated(cohort=clients, epsilon=1.0, delta=1e-6, **options)
    accountant = ShuffleAccountant()
    steps, population = options.get("num_steps", 1), options.get("population")
    accountant.step(protocol.round(population=population), num_steps=steps)
    found = accountant.epsilon(1e-6)
    assert 0.97 < found.upper <= 1.0
    rounding = protocol.worst_variance - protocol.noise_variance
    assert rounding <= 0.0201 * protocol.noise_variance
    if steps == 1:
        assert protocol.noise_variance * protocol.honest_fraction == pytest.approx(2.0, rel=0.01)
        seen_by_server = protocol.round(adversary=Adversary.SERVER)
        assert seen_by_server.sampling_rate == 1.0
    if not options:
        coins = ScalarSum.calibrated(cohort=clients, epsilon=1.0, delta=1e-6)
        assert coins.noise_variance > 8 * protocol.noise_variance
        as_messages = coins.messages_per_client * coins.message_layout.bits
        assert protocol.messages_per_client < coins.messages_per_client / 20
        assert protocol.bits_per_report < as_messages


def test_noise_of_a_robust_sum_covers_its_honest_part():
    whole = SplitSum(cohort=100, levels=20, noise_epsilon=1.0, shares=9)
    half = SplitSum(cohort=100, levels=20, noise_epsilon=1.0, shares=9, honest_fraction=0.5)
    assert half.honest_cohort == 50
    assert half.noise_variance == pytest.approx(2 * whole.noise_variance)
    # Fifty clients' shares alone are the whole noise; and they are mixed among fifty.
    drawn = half.noise.draw(50 * 4000, randomness=SeededRandomness(2)).reshape(4000, 50).sum(dim=1)
    assert float(drawn.double().var()) == pytest.approx(whole.noise_variance * 400, rel=0.15)
    assert half.distance > whole.distance


def test_impossible_input_and_messages_are_refused():
    protocol = SplitSum(cohort=4, levels=10, noise_epsilon=1.0, shares=5)
    with pytest.raises(ValueError, match="takes numbers"):
        protocol.randomize(torch.zeros(4, 2))
    with pytest.raises(ValueError, match="4 clients"):
        protocol.randomize_sum(torch.zeros(3, 1))
    quiet = SplitSum(cohort=4, levels=10, noise_epsilon=400.0, shares=5)
    assert float(quiet.randomize_sum(torch.tensor([[-5.0], [7.0], [1e30], [0.0]]))) == pytest.approx(2.0)
    shares = protocol.randomize(torch.zeros(4, 1))
    values = shares.fields[0].values.long()
    forged = values.clone()
    forged[1, 2] = protocol.modulus
    with pytest.raises(ValueError, match="does not fit"):
        protocol.layout.reports(forged)
    wide = replace(shares, fields=(Field(forged, 62),))
    other = SplitSum(cohort=4000, levels=10, noise_epsilon=1.0, shares=5)
    messages = Reports.concat(protocol.messages(shares))
    for call, received in (
        (protocol.total, wide),
        (protocol.messages, wide),
        (other.total, shares),
        (other.total, messages),
    ):
        with pytest.raises(ValueError, match="not of 'split-sum'"):
            call(received)
    with pytest.raises(ValueError, match="missing or too many"):
        protocol.total(messages.narrow(1, len(messages)))
    with pytest.raises(ValueError, match="a total is"):
        protocol.estimate(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="reports must be"):
        protocol.estimate(protocol.total(shares), reports=5)


@pytest.mark.parametrize(("noise_epsilon", "steps"), [(100.0, 10), (400.0, 2), (500.0, 1)])
def test_noise_that_hides_nothing_is_charged_in_full(noise_epsilon: float, steps: int) -> None:
    accountant = ShuffleAccountant()
    loud = LaplaceRound(noise_epsilon=noise_epsilon, sensitivity=1, attained=1, population=2, cohort=2)
    accountant.step(loud, num_steps=steps)
    assert accountant.delta(1.0).upper > 0.99
    assert accountant.epsilon(1e-6, lower=False).upper > 0.9 * noise_epsilon * steps


def test_an_instance_too_large_to_be_listed_is_left_out() -> None:
    wide = LaplaceRound(noise_epsilon=1.0, sensitivity=10**12, attained=10**12, population=2, cohort=2)
    interval = accounted(wide).epsilon(1e-6)
    assert 0.9 < interval.upper < 1.01
    assert interval.lower_bound == "none"
