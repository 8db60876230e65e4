import numpy as np
import pytest
from scipy import stats

from shuffle_plugins.core.confidence import clopper_pearson_lower, clopper_pearson_upper, epsilon_lower_bound


@pytest.mark.parametrize("trials", [1, 7, 200, 10**6])
@pytest.mark.parametrize("error", [0.2, 0.005, 1e-9])
def test_limits_are_where_the_binomial_tail_is_the_error(trials, error):
    counts = np.unique(np.linspace(0, trials, 9).astype(int))
    lower = clopper_pearson_lower(counts, trials, error=error)
    upper = clopper_pearson_upper(counts, trials, error=error)
    at_least = stats.binom.sf(counts - 1, trials, lower)
    at_most = stats.binom.cdf(counts, trials, upper)
    for tail in (at_least[1:], at_most[:-1]):
        assert (tail <= error).all()
        assert (tail >= 0.99 * error).all()
    assert lower[0] == 0
    assert upper[-1] == 1
    assert (lower < upper).all()
    assert (np.diff(lower) > 0).all()
    assert (np.diff(upper) > 0).all()


@pytest.mark.parametrize("delta", [0.0, 0.05])
@pytest.mark.parametrize("confidence", [0.8, 0.99])
def test_the_bound_exceeds_the_truth_no_more_often_than_stated(delta, confidence):
    """Exactly, by summing over every outcome of 80 trials on each side."""
    trials = 80
    counts = np.arange(trials + 1)
    bounds = epsilon_lower_bound(
        counts[:, None], counts[None, :], trials=trials, delta=delta, confidence=confidence
    )
    worst = 0.0
    for miss in (0.02, 0.1, 0.3, 0.5):
        for hit in (miss, 0.2, 0.5, 0.8, 0.97):
            truth = max(0.0, np.log(max(hit - delta, 1e-300) / miss))
            hits = stats.binom.pmf(counts, trials, hit)
            misses = stats.binom.pmf(counts, trials, miss)
            worst = max(worst, float(hits @ (bounds > truth) @ misses))
    assert 0 < worst <= 1 - confidence


def test_the_bound_is_what_the_counts_say_when_they_are_many():
    bound = float(epsilon_lower_bound(8 * 10**8, 10**8, trials=10**9, delta=0.0, confidence=0.99))
    assert np.log(8) - 1e-3 < bound < np.log(8)
    with_delta = float(epsilon_lower_bound(8 * 10**8, 10**8, trials=10**9, delta=0.3, confidence=0.99))
    assert np.log(5) - 1e-3 < with_delta < np.log(5)
