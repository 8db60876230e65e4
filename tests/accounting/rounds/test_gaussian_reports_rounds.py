"""Rounds of Gaussian vectors: what they cost from above and below, and where δ0 still counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from histories import accountant_of
from scipy import special, stats
from thinning import first_fast

from shuffle_plugins.accounting import (
    Adversary,
    FederatedAccountant,
    FederatedRound,
    GaussianReportsRound,
    Sampling,
    ShuffleRound,
)
from shuffle_plugins.accounting.losses import COARSE, FINE
from shuffle_plugins.accounting.pairs import gaussian_reports
from shuffle_plugins.mechanisms import registry

_MECHANISMS = ("gaussian", "discrete-gaussian")


def _round(name: str = "gaussian", *, population: int = 10_000, **fields: object) -> GaussianReportsRound:
    mechanism = registry.get(name, local_epsilon=0.5, dim=2, local_delta=1e-12)
    fields = {"cohort": population, "sampling": Sampling.FULL} | fields
    found = mechanism.round(population=population, **fields)
    assert isinstance(found, GaussianReportsRound)
    return found


def _interval(each: ShuffleRound, *, steps: int = 1, delta: float = 1e-6) -> tuple[float, float]:
    accountant = accountant_of((each, steps))
    found = accountant.epsilon(delta)
    return found.lower, found.upper


@pytest.mark.parametrize("name", _MECHANISMS)
def test_both_ends_meet_and_are_far_below_those_of_approximate_reports(name: str) -> None:
    here = _round(name)
    lower, upper = _interval(here)
    assert 0.00195 < lower < upper < 0.00213
    assert upper <= 1.02 * lower if name == "gaussian" else upper <= 1.05 * lower
    assert upper < 0.02045 / 9  # what ε0 and δ0 alone certify


def test_many_rounds_on_a_sample_cost_what_a_sum_with_the_same_noise_does() -> None:
    sampled = _round(population=60_000, cohort=10_000, sampling=Sampling.WITHOUT_REPLACEMENT)
    lower, upper = _interval(sampled, steps=1200)
    assert 0.01416 < lower < upper < 0.0145
    random = replace(sampled, sampling=Sampling.POISSON)
    assert _interval(random, steps=1200) == pytest.approx((lower, upper), rel=0.03)


@pytest.mark.parametrize("local_epsilon", [1.4, 1.45, 1.5, 1.55])
def test_bounds_too_steep_for_a_symmetric_pair_are_lowered_and_not_given_up(local_epsilon: float) -> None:
    # From ε0 = 1.42 or so, δ at ε = 0 is bounded by more than its neighbours and symmetry allow. That had no
    # pair, and so no amplification: ε was 30 here.
    mechanism = registry.get("gaussian", local_epsilon=local_epsilon, dim=650, local_delta=1e-14)
    lower, upper = _interval(mechanism.round(population=1_500, cohort=150), steps=20, delta=1e-5)
    assert 0.0142 * local_epsilon < upper < 0.0152 * local_epsilon
    assert lower < upper


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling.WITHOUT_REPLACEMENT, Sampling.POISSON])
def test_a_server_that_sees_the_cohort_pays_nothing_for_sampling(sampling: Sampling) -> None:
    seen = _round(population=60_000, cohort=10_000, sampling=sampling, adversary=Adversary.SERVER)
    full = _interval(_round())
    assert _interval(seen) == pytest.approx(full, rel=0.03)
    lower, upper = _interval(seen)
    assert lower < upper


def test_epochs_and_small_rounds_are_accounted_by_their_delta() -> None:
    epoch = _round(population=60_000, cohort=10_000, sampling=Sampling.EPOCH)
    known = ShuffleRound(
        local_epsilon=epoch.local_epsilon,
        local_delta=epoch.local_delta,
        population=epoch.population,
        cohort=epoch.cohort,
        sampling=epoch.sampling,
        channel_fixed=True,
    )
    assert epoch.replacement_distance == known.replacement_distance > 0
    assert epoch.lower_families == ()
    loud = GaussianReportsRound(
        local_epsilon=5.0,
        local_delta=1e-9,
        population=100,
        cohort=100,
        sampling=Sampling.FULL,
        radius=1.0,
        channel_fixed=True,
    )
    assert loud.replacement_distance > 0
    assert loud.upper_losses_from_below(COARSE) is not None
    quiet = GaussianReportsRound(
        local_epsilon=0.5, local_delta=1e-9, population=1_000, cohort=1_000, radius=0.1, channel_fixed=True
    )
    assert quiet.upper_losses_from_below(COARSE) is None


def test_coarse_codes_have_no_lower_end() -> None:
    coarse = registry.get("gaussian", local_epsilon=0.5, dim=2, local_delta=1e-12, bits=8)
    found = coarse.round(population=100, cohort=100, sampling=Sampling.FULL)
    assert found.lower_families == ()


@first_fast(("population", "cohort"), [(2, 2), (2, 1), (1, 0.5), (200, 200)], fast=3)
@pytest.mark.parametrize("adversary", [Adversary.MODEL_OBSERVER, Adversary.SERVER])
def test_poisson_cohorts_of_few_sizes(population: int, cohort: float, adversary: Adversary) -> None:
    """If everybody takes part for certain there is one size, and the round costs what a full one does."""
    poisson = _round(population=population, cohort=cohort, sampling=Sampling.POISSON, adversary=adversary)
    lower, upper = _interval(poisson)
    assert 0 <= lower <= upper
    if cohort == population:
        full = _round(population=population, adversary=adversary)
        assert lower == pytest.approx(_interval(full)[0], rel=1e-6)


@pytest.mark.parametrize("name", _MECHANISMS)
@pytest.mark.parametrize(("local_epsilon", "steps"), [(1.5, 10), (4.0, 1)])
def test_a_number_is_charged_the_smaller_of_two_bounds(name: str, local_epsilon: float, steps: int) -> None:
    """By its blanket, and by all of the other reports' noise; the lower end is the blanket's."""
    built = registry.get(name, local_epsilon=local_epsilon, dim=1, local_delta=1e-12)
    both = built.round(population=20_000, cohort=10_000)
    place = {"population": 20_000, "cohort": 10_000, "local_epsilon": both.local_epsilon}
    by_blanket = ShuffleRound(mechanism=name, blanket=built.blanket(), **place, channel_fixed=True)
    lower, upper = _interval(both, steps=steps)
    blanket_lower, blanket_upper = _interval(by_blanket, steps=steps)
    place["local_epsilon"] = local_epsilon
    by_noise = GaussianReportsRound(
        radius=both.radius, attained=both.attained, local_delta=1e-12, **place, channel_fixed=True
    )
    assert upper == pytest.approx(min(blanket_upper, _interval(by_noise, steps=steps)[1]), rel=2e-3)
    assert lower == pytest.approx(blanket_lower, rel=1e-9)
    assert "blanket pair" in both.pair_name
    assert both.comparable != by_noise.comparable


@pytest.mark.parametrize("dim", [1, 2])
def test_federated_rounds_of_numbers_and_of_vectors_are_told_apart_by_their_kind(dim: int) -> None:
    built = registry.get("gaussian", local_epsilon=0.5, dim=dim, local_delta=1e-12)
    observer = built.round(population=10_000, cohort=2_000)
    found = FederatedRound(
        observer=observer,
        server=replace(observer, population=2_000),
        local_epsilon=observer.local_epsilon,
        local_delta=observer.local_delta,
    )
    accountant = FederatedAccountant()
    accountant.step(found, participants=None)
    assert 0 < accountant.epsilon(1e-6, adversary=Adversary.SERVER).upper < 0.1
    assert replace(found, server=observer).kind != found.kind


def _normal_delta(distance: float, epsilon: np.ndarray) -> np.ndarray:
    """δ of a normal variable that is moved by so many standard deviations."""
    far = epsilon / distance
    return special.ndtr(distance / 2 - far) - np.exp(epsilon + special.log_ndtr(-distance / 2 - far))


@pytest.mark.parametrize(("population", "cohort"), [(3, 1.5), (12, 9.0), (40, 1.0)])
def test_a_random_cohort_that_is_seen_costs_no_less_than_its_sizes_do(
    population: int, cohort: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With normal sums in the place of the profiles, whose sizes are then mixed one by one."""
    losses = np.linspace(0.0, 3.0, 301)

    def profile(*, radius: float, population: int, slots: int) -> tuple[np.ndarray, np.ndarray]:
        assert population == slots
        return losses, _normal_delta(2 * radius / math.sqrt(slots), losses)

    monkeypatch.setattr(gaussian_reports, "gaussian_reports_profile", profile)
    own, deltas = gaussian_reports.gaussian_round_profile.__wrapped__(
        radius=0.15, population=population, cohort=cohort, sampling=Sampling.POISSON, sees_cohort=True
    )
    sizes = np.arange(population)
    mass = stats.binom.pmf(sizes, population - 1, cohort / population)
    mixed = mass @ [_normal_delta(0.3 / math.sqrt(1 + size), own) for size in sizes]
    assert np.all(deltas >= mixed)
    assert np.all(deltas <= _normal_delta(0.3, own) + 1e-20)


@pytest.mark.parametrize(
    ("sampling", "sees_cohort", "amplified"),
    [
        (Sampling.SINGLE_PASS, False, False),
        (Sampling.WITHOUT_REPLACEMENT, True, False),
        (Sampling.WITHOUT_REPLACEMENT, False, True),
    ],
)
def test_a_batch_whose_clients_are_known_costs_what_it_would_alone(
    sampling: Sampling, sees_cohort: bool, amplified: bool
) -> None:
    alone = {"population": 20, "sampling": Sampling.FULL, "sees_cohort": False}
    drawn = {"population": 40, "sampling": sampling, "sees_cohort": sees_cohort}
    (_, full), (_, found) = (
        gaussian_reports.gaussian_round_profile(radius=0.05, cohort=20, **each) for each in (alone, drawn)
    )
    assert found[0] == pytest.approx(full[0] / 2 if amplified else full[0], rel=1e-6)


@pytest.mark.parametrize("population", [1, 2, 5])
def test_the_instance_of_few_random_reports_is_that_of_each_number(population: int) -> None:
    """Of none at all, too, which tells nothing."""
    drawn = _round(population=population, cohort=population / 2, sampling=Sampling.POISSON)
    [family] = drawn.lower_families
    found = drawn.lower_losses(family, FINE)
    sizes = np.arange(1, population + 1)
    mass = stats.binom.pmf(sizes, population, 0.5)
    for epsilon in (0.0, 0.05, 0.2):
        exact = sum(
            chance * rate * _normal_delta(2 * drawn.attained / math.sqrt(size), amplified)
            for chance, rate, size in zip(mass, sizes / population, sizes, strict=True)
            for amplified in [np.log1p(math.expm1(epsilon) / rate)]
        )
        delta = np.maximum(found.p - math.exp(epsilon) * found.q, 0.0).sum()
        assert exact * (1 - 1e-2) <= delta <= exact


def test_who_is_refused_is_told_that_larger_cohorts_hide_each_other() -> None:
    few = GaussianReportsRound(
        local_epsilon=2.0, local_delta=1e-6, population=60_000, cohort=3_000, radius=0.224, channel_fixed=True
    )
    with pytest.raises(ValueError, match="hide each other in larger cohorts"):
        accountant_of((few, 1000)).epsilon(1e-5)
    assert replace(few, cohort=30_000).pair_name == "Gaussian reports"
