import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from shuffle_plugins.accounting.numerics import normal_sums
from shuffle_plugins.accounting.numerics.sums import expected_positive_part, log_positive_part_bound


def biased_coins(probability):
    """A step up of 1 − p with probability p, else −p: mean zero."""
    return np.array([1 - probability, -probability]), np.array([probability, 1 - probability])


def exact_for_coins(trials, probability, shift):
    """E[(x + S)₊] from binomial tails, which are accurate far out."""
    threshold = trials * probability - shift  # heads needed
    k = np.floor(threshold).astype(int)[:, None] + 1 + np.arange(4000)
    mass = stats.binom.pmf(k, trials, probability)
    return (mass * np.maximum(k - threshold[:, None], 0)).sum(axis=1)


@pytest.mark.parametrize(("trials", "probability"), [(2_000, 0.5), (5_000, 0.02), (100_000, 0.3)])
def test_sums_of_coins_to_their_far_tail(trials, probability):
    value, mass = biased_coins(probability)
    deviation = np.sqrt(trials * probability * (1 - probability))
    shift = -deviation * np.array([0.0, 0.5, 1, 2, 4, 7, 11])
    share = 1e-4
    found = expected_positive_part(
        values=np.tile(value, (len(shift), 1)), masses=mass, trials=trials, shift=shift, share=share
    )
    exact = exact_for_coins(trials, probability, shift)
    assert exact[-1] < 1e-20
    assert np.all(found >= exact)
    # A Gaussian of that share of the variance raises a tail at x deviations by about share·x²/2, a lattice's
    # by a few times as much where x meets one of its points.
    assert np.all(found <= exact * (1 + 5 * share * (1 + (shift / deviation) ** 2)))


@settings(max_examples=60, deadline=None)
@given(
    trials=st.integers(2, 7),
    steps=st.lists(st.tuples(st.floats(0.01, 50), st.floats(0.01, 1)), min_size=2, max_size=4),
    point=st.floats(-1, 1),
    share=st.sampled_from([1e-4, 1e-3]),
)
def test_never_below_enumeration(trials, steps, point, share):
    value, mass = np.array(steps).T
    mass = mass / mass.sum()
    assume(np.ptp(value) > 1e-9)  # equal steps centre to rounding errors, which are no law of mean zero
    value = value - mass @ value
    sums, weights = np.zeros(1), np.ones(1)
    for _ in range(trials):
        sums, weights = (sums[:, None] + value).ravel(), (weights[:, None] * mass).ravel()
    shift = -point * trials * max(value.max(), 1e-6)
    exact = weights @ np.maximum(sums + shift, 0)
    found = expected_positive_part(
        values=value[None, :], masses=mass, trials=trials, shift=np.array([shift]), share=share
    )[0]
    assert found >= exact * (1 - 1e-12) - 1e-15
    log_bound = log_positive_part_bound(
        values=value[None, :], masses=mass, trials=trials, shift=np.array([shift])
    )[0]
    assert np.exp(log_bound) >= exact * (1 - 1e-12) - 1e-15


def test_a_sum_that_cannot_reach_is_zero():
    value, mass = biased_coins(0.25)
    shift = np.array([-8.0, -7.4])
    found = expected_positive_part(
        values=np.tile(value, (2, 1)), masses=mass, trials=10, shift=shift, share=1e-4
    )
    assert found[0] == 0.0  # ten steps of 0.75 are 7.5
    exact = 0.25**10 * (7.5 - 7.4)
    assert exact <= found[1] <= 1.06 * exact


def test_missing_mass_is_a_draw_of_zero():
    value, mass = np.array([3.0, -1.0, 0.0]), np.array([0.1, 0.3, 0.6])
    rows = np.array([-2.0, -9.0])
    full = expected_positive_part(
        values=np.tile(value, (2, 1)), masses=mass, trials=40, shift=rows, share=1e-4
    )
    short = expected_positive_part(
        values=np.tile(value[:2], (2, 1)), masses=mass[:2], trials=40, shift=rows, share=1e-4
    )
    np.testing.assert_allclose(short, full, rtol=1e-7)


@pytest.mark.parametrize("c", [60.0, 400.0])
def test_the_largest_of_many_means_is_bounded_far_out_too(c: float) -> None:
    """There the slope is known between bounds only: one end's tangent needs the larger, one the smaller."""
    low, high = -1 / c + 1e-4, 0.1
    bound = float(normal_sums.log_largest_part(low, high, 1.0, c))
    with mpmath.workdps(60):

        def log_part(mean: mpmath.mpf) -> mpmath.mpf:
            a = mean - c
            part = mpmath.npdf(a) + a * mpmath.ncdf(a)
            return mpmath.log(part) - c * mean + mpmath.mpf(c) ** 2 / 2

        largest = max(log_part(mpmath.mpf(low) + (high - low) * mpmath.mpf(k) / 400) for k in range(401))
    assert largest <= bound <= largest + 0.1
