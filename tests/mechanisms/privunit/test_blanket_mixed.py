"""The blanket-mixed Gaussian mechanism: its density, what it tells, and what that gains after shuffling."""

import math

import numpy as np
import pytest
from scipy import special

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.half_spaces import mixed_half_spaces
from shuffle_plugins.mechanisms.privunit import StepDensity

EPSILONS = [1e-6, 0.5, 2.0, 8.0, 60.0, 500.0]


def density(p: StepDensity, inner: np.ndarray) -> np.ndarray:
    """Of a report with that inner product with the direction, over N(0, I)."""
    inside = sum(
        share / tail * (inner >= s) for share, tail, s in zip(p.shares, p.tails, p.thresholds, strict=True)
    )
    return p.plain_probability + (1 - p.plain_probability) * inside


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_density_is_one_in_all_and_spends_epsilon_in_equal_steps(epsilon):
    p = mixed_half_spaces(local_epsilon=epsilon, dim=7)
    levels = density(p, np.array([-1.0, *p.thresholds]))
    tails = special.ndtr(-np.array(p.thresholds))
    masses = np.append(special.ndtr(p.thresholds[0]), tails - np.append(tails[1:], 0.0))
    assert levels @ masses == pytest.approx(1.0, abs=1e-9)
    spent = math.log1p((levels[-1] - levels[0]) / levels[0])
    assert spent <= epsilon * (1 + 1e-13)
    assert spent >= epsilon * (1 - 1e-5)  # plain reports are a trillionth more, which counts at 1e-6
    steps = np.diff(levels)
    assert steps == pytest.approx(steps[0], rel=1e-9)
    assert p.thresholds[0] > 0


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 2.0, 8.0, 60.0])
def test_the_blanket_is_the_law_of_two_opposite_records(epsilon):
    p = mixed_half_spaces(local_epsilon=epsilon, dim=5)
    own = get("blanket-mixed-gaussian", local_epsilon=epsilon, dim=5).blanket()
    places = np.array([0.0, *p.thresholds])
    assert density(p, -places) == pytest.approx(p.plain_probability, rel=1e-12)  # opposite: 1 for all
    weights = density(p, places) / p.plain_probability
    upper = np.append(special.ndtr(-np.array(p.thresholds[1:])), 0.0)
    masses = p.plain_probability * (special.ndtr(-np.array(p.thresholds)) - upper)
    listed = [*own.edges, (math.exp(epsilon), own.differing)]
    assert [r for r, _ in listed] == pytest.approx(weights[1:].tolist(), rel=1e-9)
    assert [m for _, m in listed] == pytest.approx(masses.tolist(), rel=1e-9)
    assert own.mass == pytest.approx(p.plain_probability, rel=1e-9)


def told(p: StepDensity, *places: float, draws: np.ndarray) -> tuple[float, float]:
    """Σ (R_x − R_x')²/R_z for x, x' and z at these angles in a plane, and its standard error."""
    along = [density(p, draws[0] * math.cos(a) + draws[1] * math.sin(a)) for a in places]
    values = (along[0] - along[1]) ** 2 / along[2]
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


@pytest.mark.parametrize("epsilon", [0.5, 1.5, 3.0])
def test_no_records_tell_more_than_the_bound_and_the_instance_nearly_tells_it(epsilon):
    p = mixed_half_spaces(local_epsilon=epsilon, dim=100)
    own = get("blanket-mixed-gaussian", local_epsilon=epsilon, dim=100).blanket()
    bound = own.information_bound.information
    draws = np.random.default_rng(3).standard_normal((2, 40_000))
    for x, other, z in np.random.default_rng(4).uniform(0, 2 * math.pi, (40, 3)):
        found, error = told(p, x, other, z, draws=draws)
        assert found < bound + 5 * error
    instance = sum(m * (u - v) ** 2 for u, v, m in own.instances[0])
    assert 0.92 * bound < instance < bound
    likeliest = max(
        told(p, a / 2, -a / 2, math.pi, draws=draws) for a in np.linspace(math.pi / 2, math.pi, 13)
    )
    assert instance == pytest.approx(likeliest[0], abs=6 * likeliest[1])


def test_after_shuffling_it_has_a_sixth_less_variance_than_privunit_at_equal_epsilon():
    epsilons, variances = [], []
    for name, local_epsilon in (("privunit", 1.0), ("blanket-mixed-gaussian", 1.41)):
        mechanism = get(name, local_epsilon=local_epsilon, dim=1000)
        accountant = ShuffleAccountant()
        accountant.step(mechanism.round(population=60_000, cohort=10_000), num_steps=1200)
        epsilons.append(accountant.epsilon(delta=1e-5))
        variances.append(mechanism.worst_variance)
    assert epsilons[1].upper < epsilons[0].upper
    assert variances[1] < 0.84 * variances[0]
    assert epsilons[1].upper < 1.06 * epsilons[1].lower


@pytest.mark.parametrize("name", ["blanket-mixed-gaussian", "privunit"])
@pytest.mark.parametrize("epsilon", [101.0, 200.0, 500.0])
@pytest.mark.parametrize("dim", [1, 9])
def test_a_report_that_hides_nothing_is_accounted_for(name, dim, epsilon):
    """No slot holds weights of e^162 and more; then there may be no lower end, but an upper one."""
    accountant = ShuffleAccountant()
    accountant.step(get(name, local_epsilon=epsilon, dim=dim).round(population=60, cohort=10))
    found = accountant.epsilon(delta=1e-5)
    assert found.lower <= found.upper <= epsilon


@pytest.mark.parametrize("epsilon", [1e-9, 1e-6, 0.5, 4.0])
def test_one_client_leaks_at_least_the_lower_end(epsilon):
    """Alone, a client of direction x or −x is told apart by the likelihoods as they are drawn."""
    p = mixed_half_spaces(local_epsilon=epsilon, dim=9)
    accountant = ShuffleAccountant()
    accountant.step(get("blanket-mixed-gaussian", local_epsilon=epsilon, dim=9).round(population=1, cohort=1))
    inside = np.cumsum(np.array(p.shares) / np.array(p.tails))
    upper = np.append(special.ndtr(-np.array(p.thresholds[1:])), 0.0)
    masses = special.ndtr(-np.array(p.thresholds)) - upper
    informative = (2**62 - p.plain_threshold) / 2**62
    for share in (0.5, 0.9, 0.99):
        excess = informative * inside - p.plain_probability * math.expm1(share * epsilon)
        delta = float(masses @ np.maximum(excess, 0.0))
        if delta > 0:
            assert accountant.epsilon(delta=delta * (1 + 1e-9)).lower <= share * epsilon * (1 + 1e-6)
