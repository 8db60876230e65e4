"""PrivUnit's numbers against independent quadrature, exact arithmetic and brute force."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import integrate, special

from shuffle_plugins.mechanisms.half_spaces import optimal_privunit_g
from shuffle_plugins.mechanisms.privunit import optimal_privunit, privunit_at, privunit_blanket
from shuffle_plugins.mechanisms.sphere import cap_coordinate, cap_measure, cap_moment

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
@pytest.mark.parametrize("dim", [1, *DIMS])
def test_likelihood_ratio_is_epsilon_in_exact_arithmetic(dim, epsilon):
    parameters = optimal_privunit(local_epsilon=epsilon, dim=dim)
    uniform = Fraction(parameters.plain_threshold, 1 << 62)
    inside = uniform + (1 - uniform) / Fraction(parameters.tails[0])
    ratio = inside / uniform
    assert ratio - 1 <= Fraction(math.expm1(epsilon))
    excess = math.log(ratio.numerator) - math.log(ratio.denominator) - epsilon
    slack = 3e-12 + 1 / parameters.plain_threshold
    assert excess >= -slack * (1 + math.exp(min(epsilon, 30))) or epsilon > 30
    assert 0 < parameters.tails[0] <= 0.5


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


def expected_positive_part(atoms, *, uniform, slots, epsilon, order):
    """E[(const + Σ G)_+] over independent slots; a slot is in the blanket with probability ``uniform``."""
    e, big = math.exp(epsilon), math.exp(order)
    values = [0.0] + [(1 + (e - 1) * a) - big * (1 + (e - 1) * b) for a, b, _ in atoms]
    masses = [1 - uniform] + [uniform * mass for _, _, mass in atoms]
    totals = []
    for rate in (1.0, 0.3):
        total = 0.0
        for chosen in itertools.product(range(len(values)), repeat=slots):
            mass = math.prod(masses[i] for i in chosen)
            score = (1 - rate) * (1 - big) + rate / slots * sum(values[i] for i in chosen)
            total += mass * max(score, 0.0)
        totals.append(total)
    return totals


@pytest.mark.parametrize("epsilon", [0.3, 1.5, 4.0])
@pytest.mark.parametrize("dim", [1, 2, 50])
def test_disjoint_caps_dominate_every_other_pair_of_inputs(dim, epsilon):
    """Overlapping caps, random signs and random membership functions with the same mean, at several ε."""
    blanket = privunit_blanket(local_epsilon=epsilon, dim=dim)
    uniform = blanket.mass
    s = blanket.differing / uniform
    generator = np.random.default_rng(1)
    laws = []
    for overlap in np.linspace(0, s, 6):
        laws.append([(1, 1, overlap), (1, 0, s - overlap), (0, 1, s - overlap), (0, 0, 1 - 2 * s + overlap)])
    for p, q in itertools.product([0.5, 0.8, 1.0], repeat=2):
        laws.append([(p, 1 - q, s), (1 - p, q, s), (0, 0, 1 - 2 * s)])
    for _ in range(10):
        masses = generator.dirichlet(np.ones(4))
        members = generator.random((2, 4))
        members = np.array([_with_mean(row, masses, s) for row in members])
        laws.append(list(zip(members[0], members[1], masses, strict=True)))
    worst = [(1, 0, s), (0, 1, s), (0, 0, 1 - 2 * s)]
    for slots, order in itertools.product(
        [1, 2, 3], [-0.5 * epsilon, 0.0, 0.2, 0.5 * epsilon, 0.9 * epsilon]
    ):
        limits = expected_positive_part(worst, uniform=uniform, slots=slots, epsilon=epsilon, order=order)
        for law in laws:
            reached = expected_positive_part(law, uniform=uniform, slots=slots, epsilon=epsilon, order=order)
            assert all(r <= limit + 1e-12 for r, limit in zip(reached, limits, strict=True))


def _with_mean(values, masses, mean):
    """Values in [0, 1] moved towards 0 or 1 until their mean is ``mean``."""
    now = float(values @ masses)
    return values * mean / now if now > mean else 1 - (1 - values) * (1 - mean) / (1 - now)
