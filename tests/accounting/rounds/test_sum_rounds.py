"""Sums with fair coins: the cover, rounds of them, and what accountants make of both."""

import itertools
import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from histories import accountant_of
from scipy.optimize import brentq
from scipy.stats import binom, norm

from shuffle_plugins.accounting import ShuffleAccountant, SumRound
from shuffle_plugins.accounting.losses import FINE
from shuffle_plugins.accounting.pairs.noise import (
    _three_points,
    binomial_losses,
    covering_deviation,
    gaussian_cover,
    gaussian_losses,
    gaussian_profile,
    log_ratio,
    participation_losses,
)


def single(**changes):
    fields = {"sensitivity": 20.0, "attained": 20, "trials": 4 * 90**2, "dim": 3, "population": 500}
    return SumRound(**(fields | {"cohort": 500} | changes))


def spent(sum_round, delta, *, num_steps=1):
    accountant = accountant_of((sum_round, num_steps))
    return accountant.epsilon(delta)


def test_a_delta_below_all_that_is_known_of_a_sum_is_refused():
    with pytest.raises(ValueError, match="no ε at δ=1e-41 can be certified"):
        spent(single(sensitivity=10.0, attained=10, trials=2**16, dim=1), 1e-41)


@pytest.mark.parametrize("trials", [64, 65, 131])
def test_the_distance_has_room_for_what_series_leave_out(trials):
    cover, points = gaussian_cover(trials), _three_points(trials)
    with mpmath.workdps(30):
        edges = [mpmath.mpf(2 * count - trials - 1) / 2 for count in range(trials + 2)]

        def below(edge):
            shares = (
                (0, 1 - points.outer),
                (points.reach, points.outer / 2),
                (-points.reach, points.outer / 2),
            )
            return mpmath.fsum(share * mpmath.ncdf((edge - at) / cover.deviation) for at, share in shares)

        image = [below(high) - below(low) for low, high in pairwise(edges)]
        apart = [
            abs(mpmath.binomial(trials, n) / mpmath.mpf(2) ** trials - mass) for n, mass in enumerate(image)
        ]
        exact = (mpmath.fsum(apart) + 1 - mpmath.fsum(image)) / 2
    assert exact <= cover.distance <= exact + 1e-12


def test_the_cover_costs_little_and_less_with_more_coins():
    covers = [gaussian_cover(trials) for trials in (100, 10_000, 1_000_000, 100_000_000)]
    shares = [
        1 - cover.deviation**2 / (trials / 4)
        for cover, trials in zip(covers, (100, 10_000, 1_000_000, 100_000_000), strict=True)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 2e-4
    assert covers[1].distance < 5e-9
    assert covers[-1].distance < 1e-14


def test_huge_numbers_of_coins_are_covered_in_parts():
    trials = 3 * 2**32 + 5
    whole = gaussian_cover(trials)
    assert whole.deviation == pytest.approx(covering_deviation(trials))
    assert whole.deviation < math.sqrt(trials) / 2
    assert whole.distance < 1e-12
    size, larger = divmod(trials, 4)
    assert larger == 1
    parts = gaussian_cover(size + 1).distance + 3 * gaussian_cover(size).distance
    assert whole.distance == pytest.approx(parts, rel=1e-12, abs=0)


def exact_delta(shifts, trials, epsilon):
    """δ of Σ x + Bin(trials, ½) per coordinate, for records apart by ``shifts``, by listing all outcomes."""
    counts = np.arange(-max(shifts), trials + max(shifts) + 1)
    p = q = np.ones(1)
    for shift in shifts:
        p = np.multiply.outer(p, binom.pmf(counts - shift, trials, 0.5)).ravel()
        q = np.multiply.outer(q, binom.pmf(counts, trials, 0.5)).ravel()
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize("trials", [100, 401])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 3.0])
def test_no_pair_of_small_vectors_leaks_more_than_certified(trials, epsilon):
    sensitivity = 5.0
    certified = accountant_of(single(sensitivity=sensitivity, attained=5, trials=trials, dim=2))
    bound = certified.delta(epsilon)
    attained = 0.0
    for shifts in itertools.product(range(6), repeat=2):
        if 0 < math.hypot(*shifts) <= sensitivity:
            attained = max(attained, exact_delta(shifts, trials, epsilon))
    assert bound.lower * (1 - 1e-9) <= attained <= bound.upper


def test_sampling_is_counted_right_by_listing_outcomes():
    # Everybody else holds 0, the client 5 or 0, and takes part with probability 1/4.
    trials, gamma = 400, 0.25
    sum_round = single(
        sensitivity=5.0, attained=5, trials=trials, dim=1, cohort=125, sampling="without-replacement"
    )
    counts = np.arange(-5, trials + 6)
    q = binom.pmf(counts, trials, 0.5)
    p = (1 - gamma) * q + gamma * binom.pmf(counts - 5, trials, 0.5)
    accountant = accountant_of(sum_round)
    for epsilon in (0.02, 0.1, 0.3):
        found = accountant.delta(epsilon)
        exact = max(
            np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum()
        )
        assert found.lower * (1 - 1e-9) <= exact <= found.upper
        assert found.upper < exact * 1.3


@pytest.mark.parametrize("num_steps", [1, 10, 25])
def test_composition_is_the_gaussian_mechanisms(num_steps):
    sum_round = single(trials=4 * 8450**2, sensitivity=2000.0, attained=2000, dim=1000)
    mu = math.sqrt(num_steps) / sum_round.noise_multiplier

    def excess(epsilon):
        # Balle and Wang 2018, Theorem 8, from distribution functions.
        tail = norm.cdf(mu / 2 - epsilon / mu)
        return tail - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - 1e-6

    exact = brentq(excess, 1e-9, 500)
    found = spent(sum_round, 1e-6, num_steps=num_steps)
    assert exact * (1 - 1e-3) < found.lower <= found.upper < exact * (1 + 1e-3)
    assert found.upper_bound.startswith("covering Gaussian")
    assert found.lower_bound == "binomial instance"


@pytest.mark.parametrize("mu", [1.0, 1e-3, 1e-5, 1e-6, 1e-8, 1e-12, 1e-15])
def test_the_profile_is_never_below_the_exact_one(mu):
    """Against 60 digits; for a small mu the profile is a difference of almost equal numbers."""
    epsilons = np.linspace(0, mu**2 / 2 + 12 * mu, 200)
    found = gaussian_profile(epsilons, mu=mu)
    with mpmath.workdps(60):
        for epsilon, above in zip(map(mpmath.mpf, epsilons.tolist()), found.tolist(), strict=True):
            far, near = (mpmath.ncdf(sign * mpmath.mpf(mu) / 2 - epsilon / mu) for sign in (1, -1))
            assert mpmath.mpf(above) >= far - mpmath.exp(epsilon) * near


def test_a_distance_beyond_delta_has_no_epsilon():
    with pytest.raises(ValueError, match="more coins"):
        spent(single(trials=100, sensitivity=1.0, attained=1, dim=10**6), 1e-6)


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_a_sum_of_next_to_no_noise_has_no_epsilon(method: str) -> None:
    # Losses of its covering Gaussian leave the range of floats.
    accountant = ShuffleAccountant(method=method)  # type: ignore[arg-type]
    loud = SumRound(sensitivity=2_000.0, attained=1_000, trials=64, dim=1, population=2, cohort=2)
    assert accountant.would_exceed(loud, target_epsilon=100.0, delta=1e-6)
    accountant.step(loud)
    assert accountant.epsilon(1e-6, lower=False).upper == math.inf
    assert accountant.delta(1.0).upper == 1.0
    assert not [bound for bound in accountant.bounds(1e-6) if bound.kind == "upper"]
    with pytest.raises(ValueError, match="noise"):
        accountant.epsilon(1e-6)


# -- large ε: the distance charged to ε -----------------------------------------------------------------


@pytest.mark.parametrize("trials", [1 << 16, (1 << 20) + 1, 1 << 28])
def test_masses_of_coins_and_of_the_image_are_as_close_as_is_said(trials):
    """Both laws again at forty digits, from binomial coefficients and the normal distribution function."""
    points, deviation = _three_points(trials), covering_deviation(trials)
    rng = np.random.default_rng(1)
    with mpmath.workdps(80):

        def cell(centre):
            above, below = (centre + mpmath.mpf(1) / 2) / deviation, (centre - mpmath.mpf(1) / 2) / deviation
            return (mpmath.erfc(below / mpmath.sqrt(2)) - mpmath.erfc(above / mpmath.sqrt(2))) / 2

        for reach in (6.0, 9.0, 14.0, 20.0):
            # The least tail that lets masses be compared up to ``reach`` deviations and no further.
            found = log_ratio(trials, log_tail=-(reach**2) / 2)
            furthest = 0.0
            for share in (1.0, *rng.uniform(0.0, 1.0, 12)):
                count = trials // 2 + round(share * reach * math.sqrt(trials) / 2)
                exponent = mpmath.loggamma(trials + 1) - mpmath.loggamma(count + 1)
                exponent -= mpmath.loggamma(trials - count + 1) + trials * mpmath.log(2)
                centre = mpmath.mpf(2 * count - trials) / 2
                image = (1 - mpmath.mpf(points.outer)) * cell(centre)
                for shift in (points.reach, -points.reach):
                    image += mpmath.mpf(points.outer) / 2 * cell(centre - mpmath.mpf(shift))
                furthest = max(furthest, abs(float(exponent - mpmath.log(image))))
            assert furthest <= found
            assert found < 8 * furthest + 1e-15  # and hardly more is charged


@pytest.mark.slow
def test_ratios_that_are_not_known_are_infinite():
    assert log_ratio((1 << 16) - 1, log_tail=-30.0) == math.inf
    assert 0 < log_ratio((1 << 34) + 1, log_tail=-30.0) < 1e-12
    assert log_ratio(1 << 20, log_tail=-600.0) == math.inf
    assert single(trials=1 << 20, coin_distance=2.0**-52).replacement_ratio(-30.0) == math.inf
    known = single(trials=1 << 20, coin_distance=2.0**-52, coin_ratio=2.0**-64)
    assert 0 < known.replacement_ratio(-30.0) < 1e-3
    assert known.replacement_ratio(-400.0) == math.inf  # further out than coins are drawn


def test_a_ratio_is_known_as_far_as_coins_are_drawn():
    """Coins stop at 28 deviations, in 512 parts of each client's: beyond, likelihoods have no ratio."""
    coins = {"trials": 1 << 16, "dim": 1, "coin_distance": 2.0**-52, "coin_ratio": 2.0**-64}
    few = single(population=1, cohort=1, **coins)
    beyond = math.log(2 * 512 * math.exp(-(28**2) / 2)) + math.log(2)  # half of a tail is for the coins
    assert few.replacement_ratio(beyond + 1e-9) < math.inf
    assert few.replacement_ratio(beyond - 1e-9) == math.inf
    fair = single(population=1, cohort=1, trials=1 << 16, dim=1)
    assert fair.replacement_ratio(beyond - 1e-9) < math.inf


@pytest.mark.parametrize("steps", [1, 3])
def test_a_large_epsilon_is_certified_above_the_exact_one(steps):
    """Where e^ε times the distance is more than δ: one round by its outcomes, more by the Gaussian's ε."""
    trials, shift = 1 << 16, 560
    sum_round = single(sensitivity=float(shift), attained=shift, trials=trials, dim=1)
    accountant = accountant_of((sum_round, steps))
    for delta in (1e-5, 1e-12):
        found = accountant.epsilon(delta)
        assert (1 + math.exp(found.upper)) * steps * sum_round.replacement_distance > delta
        counts = np.arange(trials + 1)
        p, q = binom.logpmf(counts, trials, 0.5), binom.logpmf(counts - shift, trials, 0.5)
        if steps == 1:

            def exact(epsilon, p=p, q=q):
                return float(np.maximum(np.exp(p) - np.exp(epsilon + q), 0).sum())

            assert exact(found.upper) <= delta <= exact(0.995 * found.upper)
        mu = steps**0.5 * shift / (math.sqrt(trials) / 2)
        central = mu**2 / 2 + mu * norm.isf(delta)
        assert central * 0.97 < found.upper < 1.03 * central + 0.1


def test_a_hundred_rounds_of_little_noise_have_an_epsilon_and_ten_thousand_have_none():
    fields = {"sensitivity": 3000.0, "trials": 1 << 24, "dim": 1000, "coin_distance": 2.0**-52}
    sum_round = single(coin_ratio=2.0**-60, cohort=50, sampling="without-replacement", **fields)
    accountant, before = ShuffleAccountant(), 0.0
    for steps in (1, 9, 90):
        accountant.step(sum_round, num_steps=steps)
        found = accountant.epsilon(1e-6)
        assert found.lower <= found.upper
        assert before < found.upper < math.inf
        before = found.upper
    accountant.step(sum_round, num_steps=9_900)
    assert accountant.epsilon(1e-6, lower=False).upper == math.inf


def test_two_counts_that_share_no_outcome_have_no_law_from_below():
    assert binomial_losses(trials=10, shift=2, sampling_rate=1.0, resolution=FINE).kind == "lower"
    with pytest.raises(ArithmeticError, match="in common that floats can tell"):
        binomial_losses(trials=10, shift=100, sampling_rate=1.0, resolution=FINE)


def test_losses_beyond_floats_are_refused_with_or_without_secret_participation():
    shared = {"sampling_rate": 1.0, "resolution": FINE}
    assert gaussian_losses(noise_multiplier=0.05, **shared).kind == "upper"
    with pytest.raises(ArithmeticError, match="protects nobody"):
        gaussian_losses(noise_multiplier=0.04, **shared)
    assert participation_losses(noise_multiplier=0.1, norm=1.0, participation=0.5, **shared).kind == "upper"
    with pytest.raises(ArithmeticError, match="protects nobody"):
        participation_losses(noise_multiplier=0.02, norm=1.0, participation=0.5, **shared)
