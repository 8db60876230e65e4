"""PrivUnit's numbers against independent quadrature, exact arithmetic and brute force."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import integrate, special

from shuffle_plugins.mechanisms.half_spaces import optimal_privunit_g
from shuffle_plugins.mechanisms.privunit import (
    cap_coordinate,
    cap_measure,
    cap_moment,
    optimal_privunit,
    privunit_at,
    privunit_blanket,
)

DIMS = [2, 3, 12, 1_000, 203_530, 10_000_000]
EPSILONS = [1e-4, 0.5, 1.5, 4.0, 10.0, 50.0]


def coordinate_density(dim):
    """Density of z = √d·⟨V, u⟩ for V uniform on the sphere, and the end of its range."""
    log_constant = special.gammaln(dim / 2) - special.gammaln((dim - 1) / 2) - 0.5 * math.log(math.pi * dim)

    def density(z):
        return math.exp(log_constant + (dim - 3) / 2 * math.log1p(-z * z / dim))

    return density, min(math.sqrt(dim), 40.0)


@pytest.mark.parametrize("dim", [3, 12, 1_000, 203_530, 10_000_000])
@pytest.mark.parametrize("z", [0.0, 0.3, 1.0, 1.5])
def test_cap_measure_and_moment_agree_with_quadrature(dim, z):
    density, end = coordinate_density(dim)
    threshold = z / math.sqrt(dim)
    tolerances = {"epsabs": 0, "epsrel": 1e-12, "limit": 500, "points": [z + 1] if z + 1 < end else None}
    measure = integrate.quad(density, z, end, **tolerances)[0]
    moment = integrate.quad(lambda v: v * density(v), z, end, **tolerances)[0] / math.sqrt(dim)
    scale = 2 * integrate.quad(density, 0, end, epsabs=0, epsrel=1e-12, limit=500, points=[1.0])[0]
    assert cap_measure(threshold, dim=dim) == pytest.approx(measure / scale, rel=1e-9)
    assert cap_moment(threshold, dim=dim) == pytest.approx(moment / scale, rel=1e-9)


@pytest.mark.parametrize("dim", DIMS)
def test_cap_coordinate_inverts_cap_measure(dim):
    tails = np.array([1e-200, 1e-50, 1e-12, 1e-3, 0.1, 0.3, 0.49, 0.5 - 1e-6])
    coordinates = cap_coordinate(tails, dim=dim)
    exact = coordinates < 1 - 1e-5
    back = [cap_measure(float(a), dim=dim) for a in coordinates[exact]]
    assert exact.sum() >= 4
    assert np.allclose(back, tails[exact], rtol=1e-9, atol=0)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-6, 1e-3, 1.0, 8.0, 20.0])
def test_rounding_spends_hardly_less_than_epsilon(epsilon):
    """Lower bounds take ε0 as spent in full: for a tiny one, 1 - c has to be rounded by a share of itself."""
    cap = optimal_privunit(local_epsilon=epsilon, dim=1000)
    one = optimal_privunit_g(local_epsilon=epsilon, dim=1000)
    for law in (cap, one):
        plain = Fraction(law.plain_threshold, 1 << 62)
        spent = (1 - plain) / plain / Fraction(law.tails[0])
        slack = 3e-12 + 1 / Fraction((1 << 62) - law.plain_threshold)
        assert 0 <= 1 - spent / Fraction(math.expm1(epsilon)) < slack


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dim", DIMS)
def test_no_other_cap_has_less_variance(dim, epsilon):
    best = optimal_privunit(local_epsilon=epsilon, dim=dim)
    assert best.thresholds[0] == pytest.approx(best.mean, rel=1e-6)
    span = np.sort(np.concatenate([np.linspace(0, 8, 200) / math.sqrt(dim), np.linspace(0, 1, 200)]))
    for threshold in span[span < 1 - 1e-9]:
        if cap_measure(float(threshold), dim=dim) < 1e-5 * best.tails[0]:
            continue
        other = privunit_at(float(threshold), local_epsilon=epsilon, dim=dim)
        assert other.mean <= best.mean * (1 + 1e-9)


def test_one_dimension_is_binary_randomized_response():
    for epsilon in (0.1, 1.5, 6.0):
        parameters = optimal_privunit(local_epsilon=epsilon, dim=1)
        assert parameters.mean == pytest.approx(math.tanh(epsilon / 2), rel=1e-9)
        assert privunit_blanket(local_epsilon=epsilon, dim=1).low == 0


def test_an_epsilon_lost_in_rounding_is_refused():
    with pytest.raises(ValueError, match="says nothing"):
        privunit_at(0.3, local_epsilon=1e-9, dim=1_000)
