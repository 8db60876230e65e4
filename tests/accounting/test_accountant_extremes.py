"""Cases in which an earlier version was wrong, refused what is legal, or gave away too much."""

from __future__ import annotations

import math

import mpmath
import pytest
from histories import accountant_of, shuffled
from thinning import first_fast

from shuffle_plugins.accounting import (
    Blanket,
    GaussianReportsRound,
    ShuffleAccountant,
    ShuffleRound,
    calibrate_num_steps,
)
from shuffle_plugins.accounting.published.shuffles import clone_pair
from shuffle_plugins.mechanisms import registry


def test_a_client_known_to_take_part_is_charged_its_own_local_delta() -> None:
    lonely = shuffled(0.5, 1000, 0.001, sampling="poisson", adversary="server", local_delta=1e-3)
    accountant = accountant_of(lonely)
    with pytest.raises(ValueError, match="no ε"):
        accountant.epsilon(9e-4)
    # Binary response that shows its bit with probability 1e-3, alone: at least so much.
    right, shown = 1 / (1 + math.exp(-0.5)), 1e-3
    for epsilon in (0.0, 0.3, 0.49):
        alone = shown + (1 - shown) * max(0.0, right - math.exp(epsilon) * (1 - right))
        assert accountant.delta(epsilon).upper >= alone * 0.999**2


@pytest.mark.parametrize(
    ("local_epsilon", "weight", "mass", "epsilon"), [(50.0, 1e11, 5e-21, 5.0), (20.0, 1.48, 2e-9, 0.1)]
)
def test_small_weights_are_not_taken_for_one(
    local_epsilon: float, weight: float, mass: float, epsilon: float
) -> None:
    atoms = [(weight, 1.0, mass), (1.0, weight, mass), (1.0, 1.0, 1 - mass * (weight + 1))]
    blanket = Blanket.from_atoms(local_epsilon=local_epsilon, atoms=atoms)
    alone = shuffled(local_epsilon, 1, 1, mechanism="own", blanket=blanket)
    exact = mass * (weight - math.exp(epsilon))
    assert accountant_of(alone).delta(epsilon).upper >= exact * (1 - 1e-9)


@pytest.mark.parametrize("local_epsilon", [16.75, 17.25, 20.25, 40.0, 165.0, 500.0])
@pytest.mark.parametrize("mechanism", ["hadamard-response", "oue", "local-hashing", "rappor", "k-rr"])
def test_loud_oracles_have_an_answer(mechanism: str, local_epsilon: float) -> None:
    for population in (1, 1000):
        loud = shuffled(local_epsilon, population, population, mechanism=mechanism, dim=20)
        interval = accountant_of(loud).epsilon(1e-6)
        assert 0 <= interval.lower <= interval.upper <= local_epsilon


def test_rounds_of_very_different_scales_have_an_answer() -> None:
    quiet = shuffled(1.0, 10**9, 10**4)
    loud = shuffled(100.0, 10**6, 10)
    for method in ("pld", "rdp"):
        accountant = accountant_of((quiet, 10**6), loud, method=method)
        interval = accountant.epsilon(1e-6)
        assert 0 <= interval.lower <= interval.upper <= 1e6 + 100
        assert accountant.delta(interval.upper).upper <= 1.01e-6
        assert accountant.bounds(1e-6)


@pytest.mark.slow
def test_budgets_with_local_delta_are_answered_not_refused() -> None:
    shuffle_round = shuffled(0.1, 10, 1, local_delta=1e-7)
    accountant = ShuffleAccountant()
    assert not accountant.would_exceed(shuffle_round, target_epsilon=3.0, delta=1e-6)
    steps = calibrate_num_steps(target_epsilon=3.0, delta=1e-6, shuffle_round=shuffle_round)
    assert accountant_of((shuffle_round, steps)).epsilon(1e-6, lower=False).upper <= 3.0
    assert accountant.would_exceed(shuffle_round, num_steps=10**12, target_epsilon=3.0, delta=1e-6)
    assert accountant_of((shuffle_round, 10**6)).epsilon(1e-6, lower=False).upper == math.inf


@pytest.mark.parametrize(("local_epsilon", "categories"), [(4.095927241445888, 17), (6.5, 100), (1.38737, 5)])
def test_a_third_record_is_outside_of_all_but_rounding(local_epsilon: float, categories: int) -> None:
    blanket = registry.blanket("subset-selection", local_epsilon=local_epsilon, dim=categories)
    assert blanket.outside <= blanket.differing


@pytest.mark.parametrize(("local_epsilon", "exact"), [(12.0, 11.296), (18.0, 23.290), (20.0, 27.290)])
def test_few_loud_rounds_are_multiplied_out(local_epsilon: float, exact: float) -> None:
    interval = accountant_of((shuffled(local_epsilon, 1000, 10), 3)).epsilon(1e-6)
    assert interval.lower <= interval.upper
    assert interval.upper == pytest.approx(exact, rel=1e-3)


def test_tiny_costs_of_many_rounds_are_not_noise() -> None:
    quiet = shuffled(0.1, 10**9, 10**5)
    interval = accountant_of((quiet, 10**6)).epsilon(1e-5)
    assert 5.642e-6 <= interval.upper <= 1.015 * 5.642e-6  # the Gaussian limit of binary response


@pytest.mark.slow
def test_the_most_bits_are_left_to_the_blanket() -> None:
    many = shuffled(1.0, 10**12, 10**12, mechanism="binary-rr", blanket=Blanket.bit(1.0))
    assert 0 <= accountant_of((many, 100)).epsilon(1e-9, lower=False).upper < 1e-3


@pytest.mark.parametrize("local_epsilon", [20.0, 30.0, 60.0])
def test_one_loud_client_has_no_clone(local_epsilon: float) -> None:
    pair = clone_pair(local_epsilon=local_epsilon, cohort=1)
    # Alone, the two probabilities are e/(e + 1) and 1/(e + 1): δ at ε is (e − e^ε)/(e + 1).
    exact = local_epsilon + math.log1p(-1e-6 * (1 + math.exp(-local_epsilon)))
    assert pair.upper_epsilon(1e-6) >= exact - 1e-12


@pytest.mark.parametrize("steps", [1, 10**6])
def test_rare_passive_slots_of_a_huge_population_take_no_memory(steps: int) -> None:
    shuffle_round = shuffled(8.0, 10**9, 10**5, mechanism="k-rr", dim=3)
    interval = accountant_of((shuffle_round, steps)).epsilon(1e-12)
    assert 0 < interval.lower <= interval.upper <= 1.002 * interval.lower


def gaussian_delta(mu: mpmath.mpf, epsilon: float) -> mpmath.mpf:
    """δ(ε) of the Gaussian mechanism, to 50 digits: the limit of many small losses."""
    shift = epsilon / mu
    return mpmath.ncdf(mu / 2 - shift) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - shift)


@first_fast(
    ("local_epsilon", "population", "steps", "delta"),
    [
        (1e-9, 10**15, 10**5, 1.63e-16),
        (1e-9, 10**15, 10**5, 8.2e-19),
        (1e-9, 10**15, 10**12, 5.2e-13),
        (1e-6, 10**12, 10**5, 1e-15),
    ],
)
def test_losses_below_the_spacing_of_floats_add_up(
    local_epsilon: float, population: int, steps: int, delta: float
) -> None:
    everybody = shuffled(local_epsilon, population, population, mechanism="k-rr", dim=3)
    accountant = accountant_of((everybody, steps))
    with mpmath.workdps(50):
        # Everybody else holds the third value: the variance of a loss is 2·((e − 1)·c)²/(c·n), c = 1/(e + 2).
        gain = mpmath.expm1(local_epsilon)
        mu = mpmath.sqrt(2 * steps * gain**2 / (gain + 3) / population)
        interval = accountant.epsilon(delta)
        assert gaussian_delta(mu, interval.upper) <= delta
        assert gaussian_delta(mu, interval.lower) >= delta * 0.999
        for deviations in (1, 4, 8):
            found, exact = accountant.delta(float(deviations * mu)), gaussian_delta(mu, deviations * mu)
            assert found.lower <= exact <= found.upper
    if steps * local_epsilon <= 1e-3:
        assert gaussian_delta(mu, interval.upper) >= delta * 0.5


def test_a_lower_end_of_tiny_losses_is_no_rounding_error() -> None:
    """Losses of 1e-13 were read off differences of masses near one; over many rounds that added up."""
    local_epsilon, population, cohort, steps, delta = 7e-6, 5_575_509_649, 8476.0, 1000, 1.79e-18
    shuffle_round = shuffled(
        local_epsilon, population, cohort, mechanism="limited-hadamard", dim=50, sampling="poisson"
    )
    found = accountant_of((shuffle_round, steps)).epsilon(delta)
    # The sum of many small losses is as good as Gaussian, of this deviation: half of the reports tell.
    deviation = local_epsilon / population * math.sqrt(steps * cohort / 2)
    z = float(mpmath.findroot(lambda x: mpmath.npdf(x) - x * mpmath.ncdf(-x) - delta / deviation, 4.5))
    assert 0.995 * z * deviation < found.lower < z * deviation * (1 + 1e-4) < found.upper * (1 + 2e-4)


@pytest.mark.parametrize("local_epsilon", [16.0, 27.8])
def test_no_lower_end_is_read_off_a_law_that_is_not_resolved(local_epsilon: float) -> None:
    """Of likelihoods of a billion the masses added up to eighteen, and the bounds crossed."""
    shuffle_round = shuffled(local_epsilon, 18694, 1779.0, mechanism="sqkr", sampling="poisson", dim=100)
    found = accountant_of((shuffle_round, 1000)).epsilon(5.5e-12)
    # A client takes part in 95 of the rounds, and in no more than 170 but for a probability of 1e-12.
    assert found.lower <= 170 * local_epsilon
    assert found.lower <= found.upper


def test_a_lower_end_of_very_many_reports_has_no_more_mass_than_one() -> None:
    """The masses added up to 1 + 10^11·2^-52, which ten thousand rounds raised to the power of as many."""
    shuffle_round = shuffled(8.04, 10**11, 10**11, mechanism="privunit", dim=1000)
    for num_steps in (10**4, 10**6):
        found = accountant_of((shuffle_round, num_steps)).epsilon(1e-8)
        assert 0.99 * found.upper < found.lower <= found.upper


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "shuffle_round",
    [
        # Sums whose short forms would need a Gaussian of no width.
        shuffled(3.3e-6, 18, 1, sampling="poisson", mechanism="l1-hadamard", dim=64),
        GaussianReportsRound(  # little noise, of which the analysis says nothing at some losses
            local_epsilon=20.0,
            local_delta=1e-12,
            population=323_810,
            cohort=323_810,
            radius=1.4733814,
            channel_fixed=True,
        ),
    ],
    ids=str,
)
def test_no_warning_comes_of_numbers_beyond_floats(shuffle_round: ShuffleRound) -> None:
    found = accountant_of((shuffle_round, 10)).epsilon(1e-9)
    assert 0 <= found.lower <= found.upper <= 10 * shuffle_round.local_epsilon


@first_fast(("local_epsilon", "steps"), [(0.001, 900_000), (0.01, 8_900_000), (0.001, 8_900_000)])
def test_delta_asks_the_same_bounds_as_epsilon(local_epsilon: float, steps: int) -> None:
    each = shuffled(local_epsilon, 3, 3, sampling="full", channel_fixed=False)
    accountant = accountant_of((each, steps))
    for delta in (1e-3, 4.4e-8):
        assert accountant.delta(accountant.epsilon(delta, lower=False).upper).upper <= delta * (1 + 1e-6)


@pytest.mark.parametrize(("steps", "delta"), [(2_000, 2e-3), (5_000, 1e-5)])
def test_laws_from_below_that_have_lost_most_of_their_mass_are_answered(steps: int, delta: float) -> None:
    """No tilt, however small, makes up for what is lost."""
    accountant = ShuffleAccountant()
    one = registry.get("k-rr", dim=8, local_epsilon=3.0).round(population=10, cohort=10, sampling="full")
    accountant.step(one, num_steps=steps)
    found = accountant.epsilon(delta)
    assert 0.9 * found.upper < found.lower <= found.upper
    assert accountant.delta(found.lower).lower >= 0
