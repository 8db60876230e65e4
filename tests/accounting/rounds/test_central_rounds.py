"""Rounds of a trusted server against closed forms, quadrature and another library."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats
from thinning import first_fast

from shuffle_plugins.accounting import (
    CentralGaussianRound,
    NeighbouringRelation,
    PrivacyStatement,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
)
from shuffle_plugins.accounting.pairs.noise import delta_of_gaussian

ADD, REPLACE = NeighbouringRelation.ADD_OR_REMOVE_ONE, NeighbouringRelation.REPLACE_ONE
DRAWN, POISSON, FULL = Sampling.WITHOUT_REPLACEMENT, Sampling.POISSON, Sampling.FULL
Density = Callable[[np.ndarray], np.ndarray]


def accountant(
    noise: float,
    cohort: float,
    population: int,
    steps: int,
    sampling: Sampling,
    relation: NeighbouringRelation,
) -> ShuffleAccountant:
    found = ShuffleAccountant()
    central = CentralGaussianRound(
        noise_multiplier=noise,
        cohort=cohort,
        population=population,
        sampling=sampling,
        neighbouring_relation=relation,
    )
    found.step(central, num_steps=steps)
    return found


def exact_delta(epsilon: float, mu: mpmath.mpf | float) -> mpmath.mpf:
    """δ of N(μ, 1) against N(0, 1), to the digits that are set."""
    near = mpmath.mpf(epsilon) / mu - mpmath.mpf(mu) / 2
    return mpmath.ncdf(-near) - mpmath.exp(epsilon) * mpmath.ncdf(-near - mu)


@pytest.mark.parametrize(("noise", "steps"), [(4.0, 10), (0.8, 1), (30.0, 10_000)])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_without_sampling_the_ends_enclose_the_closed_form(
    noise: float, steps: int, relation: NeighbouringRelation
) -> None:
    """δ of Gaussians composed, in 40 digits."""
    found = accountant(noise, 100, 100, steps, FULL, relation).epsilon(1e-6)
    with mpmath.workdps(40):
        mu = mpmath.sqrt(steps) / mpmath.mpf(noise)
        assert exact_delta(found.upper, mu) <= 1e-6 <= exact_delta(found.lower, mu)
        assert found.upper - found.lower < 5e-4 * found.upper


def test_the_closed_form_of_one_gaussian_is_rounded_outwards_and_by_little() -> None:
    generator = np.random.default_rng(1)
    with mpmath.workdps(60):
        for mu, log_delta, share in zip(*generator.uniform(size=(3, 300)), strict=True):
            mu = 10 ** (7 * mu - 5)
            most_epsilon = mu * (mu / 2 + math.sqrt(2 * math.log(10) * (0.05 + 40 * log_delta)))
            epsilon = 2 * share * most_epsilon
            least, most = delta_of_gaussian(epsilon, mu=mu)
            assert least <= exact_delta(epsilon, mu) <= most <= least + 1e-9
    assert delta_of_gaussian(0.0, mu=0.0) == (0.0, 0.0)


def pair(
    rate: float, mu: float, sampling: Sampling, relation: NeighbouringRelation
) -> tuple[Density, Density]:
    """Densities of the pair that one dataset attains."""
    normal = stats.norm.pdf
    if sampling is POISSON and relation is REPLACE:
        p, q = (lambda x, c=c: rate * normal(x, c) + (1 - rate) * normal(x) for c in (mu / 2, -mu / 2))
        return p, q
    return (lambda x: rate * normal(x, mu) + (1 - rate) * normal(x)), normal


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("sampling", "relation"), [(DRAWN, REPLACE), (POISSON, REPLACE), (POISSON, ADD)])
def test_one_and_two_rounds_on_a_sample_against_quadrature(
    sampling: Sampling, relation: NeighbouringRelation, steps: int
) -> None:
    """The dataset that the lower end is of, in both directions; where only it is worst the ends meet."""
    rate, noise = 0.2, 0.7
    found = accountant(noise, 20, 100, steps, sampling, relation)
    x = np.linspace(-9, 11, 4_001 if steps == 1 else 2_001)
    cell = x[1] - x[0]
    p, q = (density(x) * cell for density in pair(rate, 1 / noise, sampling, relation))
    if steps == 2:
        p, q = np.multiply.outer(p, p).ravel(), np.multiply.outer(q, q).ravel()
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        growth = math.exp(epsilon)
        exact = max(np.maximum(p - growth * q, 0).sum(), np.maximum(q - growth * p, 0).sum())
        answer = found.delta(epsilon)
        assert answer.lower <= exact * (1 + 1e-5)
        assert answer.lower >= exact * (1 - 2e-3)
        assert answer.upper >= exact * (1 - 1e-5)
        if sampling is POISSON or steps == 1:
            assert answer.upper <= exact * (1 + 2e-3) + 1e-9


@first_fast(
    ("noise", "cohort", "population", "steps"),
    [(1, 100, 1_000, 100), (2, 100, 10_000, 500), (0.7, 100, 100_000, 1_000)],
)
def test_added_and_removed_records_agree_with_another_library(
    noise: float, cohort: int, population: int, steps: int
) -> None:
    other = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=cohort / population, value_discretization_interval=1e-4
    ).self_compose(steps)
    found = accountant(noise, cohort, population, steps, POISSON, ADD).epsilon(1e-6)
    theirs = other.get_epsilon_for_delta(1e-6)
    assert found.neighbouring_relation == "add-or-remove-one"
    assert found.lower <= theirs
    assert found.upper == pytest.approx(theirs, rel=1e-3)
    assert found.upper - found.lower < 1e-3 * found.upper


@first_fast(
    ("noise", "cohort", "population", "steps", "most"),
    [(2, 100, 10_000, 500, 0.573), (1, 100, 1_000, 100, 8.83), (0.7, 100, 100_000, 1_000, 0.998)],
)
def test_replaced_records_of_a_cohort_of_fixed_size(
    noise: float, cohort: int, population: int, steps: int, most: float
) -> None:
    """By Rényi divergences these are 1.135, 15.21 and 2.283 (Flower 1.42)."""
    assert accountant(noise, cohort, population, steps, DRAWN, REPLACE).epsilon(1e-6).upper <= most


def test_many_different_rounds_cost_the_larger_of_both_directions() -> None:
    many, few = ShuffleAccountant(), ShuffleAccountant()
    for step in range(60):
        central = CentralGaussianRound(
            noise_multiplier=1.0 + step * 1e-9,
            cohort=50,
            population=1_000,
            sampling=POISSON,
            neighbouring_relation=ADD,
        )
        many.step(central)
    few.step(central, num_steps=60)
    assert many.epsilon(1e-6).upper == pytest.approx(few.epsilon(1e-6).upper, rel=5e-3)
    assert many.epsilon(1e-6).lower == pytest.approx(few.epsilon(1e-6).lower, rel=5e-3)
    loaded = ShuffleAccountant()
    loaded.load_state_dict(many.state_dict())
    assert loaded.epsilon(1e-6) == many.epsilon(1e-6)


def test_noise_that_protects_nobody_has_no_epsilon_and_takes_no_memory() -> None:
    with pytest.raises(ValueError, match="no ε at δ=1e-06 can be certified"):
        accountant(0.003, 10, 1_000, 1, POISSON, ADD).epsilon(1e-6)


def test_relations_do_not_add_up_and_a_fixed_size_has_one() -> None:
    with pytest.raises(ValueError, match="use neighbouring_relation='replace-one', or sampling='poisson'"):
        accountant(1.0, 10, 100, 1, DRAWN, ADD)
    added = accountant(1.0, 10, 100, 1, POISSON, ADD)
    with pytest.raises(ValueError, match="keep them in two accountants"):
        added.step(ShuffleRound(local_epsilon=1.0, population=100, cohort=10))
    with pytest.raises(ValueError, match="replace-one"):
        PrivacyStatement.of(added, delta=1e-6)
