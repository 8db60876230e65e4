"""PrivUnitG: its optimum, its law, and the sum of many reports without the reports."""

import math

import pytest
import torch
from scipy import special, stats
from thinning import first_fast

from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.half_spaces import half_spaces, optimal_privunit_g
from shuffle_plugins.randomness import SeededRandomness

EPSILONS = [1e-4, 1.5, 50.0]
P_VALUE = 1e-4


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0, 16.0])
def test_within_a_percent_of_privunit_in_many_dimensions(epsilon):
    own = get("privunit-g", local_epsilon=epsilon, dim=13_706).worst_variance
    optimum = get("privunit", local_epsilon=epsilon, dim=13_706).worst_variance
    assert optimum < own < 1.001 * optimum


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dim", [1, 3, 500])
def test_threshold_is_optimal(dim, epsilon):
    best = optimal_privunit_g(local_epsilon=epsilon, dim=dim)
    for factor in (0.98, 1.02):
        other = half_spaces(best.thresholds[0] * factor, local_epsilon=epsilon, dim=dim)
        assert best.mean_square / best.mean**2 <= other.mean_square / other.mean**2 * (1 + 1e-10)


BOTH = ("privunit-g", "blanket-mixed-gaussian")  # reports of the same class


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("dim", "length"), [(1, 1.0), (2, 0.3), (30, 1.0)])
def test_reports_follow_the_stated_density(name, dim, epsilon, length):
    mechanism = get(name, local_epsilon=epsilon, dim=dim)
    p = mechanism.parameters
    direction = torch.ones(dim) / dim**0.5
    rows = (length * direction).expand(20_000, dim)
    vectors = mechanism.randomize(rows, randomness=SeededRandomness(3)).fields[0].values
    share = (1 + length) / 2

    def cdf(a):
        c, below, above = p.plain_probability, special.ndtr(a), special.ndtr(-a)
        total = c * below
        for drawn, tail in zip(p.shares, p.tails, strict=True):
            upper, lower = 1 - (above / tail).clip(0, 1), (below / tail).clip(0, 1)
            total += (1 - c) * drawn * (share * upper + (1 - share) * lower)
        return total

    along = (vectors @ direction).double().numpy()
    assert stats.kstest(along, cdf).pvalue > P_VALUE
    if dim > 1:
        across = torch.zeros(dim)
        across[0], across[1] = 2**-0.5, -(2**-0.5)
        assert stats.kstest((vectors @ across).double().numpy(), stats.norm.cdf).pvalue > P_VALUE


@pytest.mark.parametrize("epsilon", [1.5, 50.0, 500.0])
def test_inner_products_are_the_quantiles_of_their_law(epsilon):
    """Beyond the threshold: -log of the share of the half-space that is farther is exponential."""
    mechanism = get("privunit-g", local_epsilon=epsilon, dim=1)
    p = mechanism.parameters
    vectors = mechanism.randomize(torch.ones(20_000, 1), randomness=SeededRandomness(7)).fields[0].values
    beyond = vectors[vectors >= p.thresholds[0]].double()
    depth = math.log(p.tails[0]) - special.log_ndtr(-beyond.numpy())
    share = p.plain_probability * p.tails[0] / (p.plain_probability * p.tails[0] + 1 - p.plain_probability)
    assert share < 0.5
    assert stats.kstest(depth, "expon").pvalue > P_VALUE


def test_zero_rows_say_nothing():
    mechanism = get("privunit-g", local_epsilon=8.0, dim=3)
    vectors = mechanism.randomize(torch.zeros(30_000, 3), randomness=SeededRandomness(1)).fields[0].values
    for probe in (torch.eye(3)[0], torch.ones(3) / 3**0.5):
        assert stats.kstest((vectors @ probe).double().numpy(), stats.norm.cdf).pvalue > P_VALUE


@first_fast(
    ("name", "epsilon", "repeated"),
    [(BOTH[1], 1.5, True), (BOTH[0], 1e-4, False), (BOTH[0], 1.5, True), (BOTH[0], 50.0, False)],
)
def test_sums_have_the_mean_and_covariance_of_summed_reports(name, epsilon, repeated):
    """Over two chunks, with a zero row, rows that depend on each other, and more rows than columns."""
    dim, draws = 4, 1000
    mechanism = get(name, local_epsilon=epsilon, dim=dim, radius=0.5)
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(7, dim, generator=generator)
    rows[0], rows[3] = 0, 2 * rows[2]
    rows = mechanism.clip(rows * 0.3).repeat(6, 1) if repeated else mechanism.clip(rows * 0.3)
    source = SeededRandomness(5)
    quick = torch.stack([mechanism.randomize_sum(rows, randomness=source) for _ in range(draws)]).double()
    p = mechanism.parameters
    expected = torch.zeros(dim, dtype=torch.float64) + torch.eye(dim) * len(rows)
    for row in rows.double():
        length = float(row.norm())
        if length:
            unit = row / length
            lean = (p.mean * length / 0.5) ** 2
            expected += (p.mean_square - dim - lean) * torch.outer(unit, unit)
    expected *= mechanism.scale**2
    spread = quick.std(dim=0) / draws**0.5
    assert float(((quick.mean(dim=0) - rows.double().sum(dim=0)) / spread).abs().max()) < 5
    assert float((quick.T.cov() - expected).abs().max()) < 6 * 2**0.5 * float(expected.max()) / draws**0.5


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e30])
def test_extreme_rows_have_their_direction(scale):
    mechanism = get("privunit-g", local_epsilon=50.0, dim=40, radius=scale)
    rows = torch.zeros(40, 40)
    rows[:, 0] = scale
    total = mechanism.randomize_sum(rows, randomness=SeededRandomness(1)) / scale
    assert float(total[0]) == pytest.approx(40, abs=12)
    one_by_one = mechanism.sum(mechanism.randomize(rows, randomness=SeededRandomness(1))) / scale
    assert float(one_by_one[0]) == pytest.approx(40, abs=12)


@pytest.mark.parametrize("name", BOTH)
def test_rows_whose_norm_is_not_known_well_say_no_more_than_others(name):
    """The norm of subnormal numbers is off by a factor, so a row divided by it is not of length one."""
    mechanism = get(name, local_epsilon=2.0, dim=8)
    row = torch.zeros(1, 8)
    row[0, :2] = 1.4e-45
    source = SeededRandomness(3)
    sums = torch.stack([mechanism.randomize_sum(row, randomness=source) for _ in range(400)])
    along = sums[:, :2].sum(dim=1) / 2**0.5 / mechanism.scale
    # A report is at most e² times as likely as a normal one to be beyond 4.5: once in 20,000 times.
    assert float(along.abs().max()) < 4.5
    assert 0.8 < float(along.std()) < 1.8
