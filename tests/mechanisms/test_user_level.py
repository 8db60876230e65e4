"""User-level mean: the two stages, what they spend, how far they are off, and when they fail."""

import math
from dataclasses import replace

import pytest
import torch
from thinning import first_fast

from shuffle_plugins.core.reports import Field, Reports
from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.user_level import (
    Split,
    UserLevelMean,
    estimate_mean,
    find_centre,
    range_reports,
)
from shuffle_plugins.randomness import SeededRandomness

PLAN = UserLevelMean(local_epsilon=4.0, dim=6, clients=12_000, samples=16, radius=1.0, sigma=0.04)


def held(plan, *, seed=1):
    """Samples around a mean near the boundary, and that mean."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.zeros(plan.dim, dtype=torch.float64)
    mean[0], mean[-1] = -0.6, 0.5
    noise = torch.randn(plan.clients, plan.samples, plan.dim, generator=generator, dtype=torch.float64)
    return mean + plan.sigma * noise, mean


@pytest.mark.parametrize("split", list(Split))
@first_fast("mechanism", ["privunit", "laplace", "linf-coordinate", "projunit"], fast=2)
def test_error_is_within_the_bound_and_the_budget_is_spent_once(mechanism, split):
    plan = replace(PLAN, mechanism=mechanism, split=split)
    samples, _ = held(plan)
    errors = []
    for seed in range(12):
        found = estimate_mean(samples, plan=plan, randomness=SeededRandomness(seed))
        assert found.local_epsilon == 4.0
        assert found.range_reports is not None
        assert len(found.range_reports) == plan.range_clients
        assert len(found.mean_reports) == plan.mean_clients
        errors.append(float((found.mean - samples.mean(dim=(0, 1))).square().sum()))
    assert plan.failure_probability < 0.02
    assert sum(errors) / len(errors) <= 1.7 * plan.mean_variance
    spent = plan.stage_epsilon * (2 if split is Split.BUDGET else 1)
    assert spent == 4.0
    assert plan.mean_mechanism().local_epsilon == plan.stage_epsilon
    clients = plan.range_clients + plan.mean_clients
    assert clients == (24_000 if split is Split.BUDGET else 12_000)


@pytest.mark.parametrize("samples", [1, 4, 16, 64, 256])
def test_more_samples_mean_a_smaller_error_and_soon_one_below_item_level(samples):
    plan = replace(PLAN, samples=samples)
    direct = get("privunit", local_epsilon=4.0, dim=6).worst_variance / plan.clients
    assert plan.mean_variance <= direct * 1.001
    if samples >= 16:
        assert plan.mean_variance < direct / (samples / 16 * 2)
        more = replace(plan, samples=4 * samples)
        assert more.mean_variance == pytest.approx(plan.mean_variance / 4, rel=0.01)


def test_the_centre_is_where_the_clients_are():
    samples, mean = held(PLAN)
    found = estimate_mean(samples, plan=PLAN, randomness=SeededRandomness(3))
    centre = PLAN.rotation.represent(found.centre)
    values = PLAN.rotation.represent(samples.mean(dim=1))
    assert float((values - centre).abs().max()) <= 3 * PLAN.spread
    assert float((samples.mean(dim=1) - found.centre).norm(dim=1).max()) <= PLAN.residual_radius
    assert float((PLAN.rotation.represent(mean) - centre).abs().max()) <= 2 * PLAN.spread


@pytest.mark.parametrize(("clients", "epsilon"), [(150, 1.0), (400, 1.0), (1500, 0.5)])
def test_wrong_bins_are_as_rare_as_the_bound_says(clients, epsilon):
    """One coordinate, clients split between two bins: the hardest case."""
    plan = replace(
        PLAN, dim=1, clients=clients, local_epsilon=epsilon, split=Split.BUDGET, sigma=0.2, ranging=True
    )
    assert plan.bins >= 4
    edge = 2 * plan.spread  # the border of two bins
    values = edge + plan.spread * torch.linspace(-0.9, 0.9, clients, dtype=torch.float64)
    wrong = 0
    for seed in range(300):
        sent = range_reports(values, plan=plan, randomness=SeededRandomness(seed))
        wrong += abs(float(find_centre(sent, plan=plan)) - edge) > 1.001 * plan.spread
    gain = math.tanh(epsilon / 4)
    bound = plan.bins * (0.5 + math.sqrt(1 - gain**2 / 4) / 2) ** clients
    assert plan.failure_probability == pytest.approx(min(1.0, 0.01 + bound))
    assert wrong / 300 <= min(1.0, bound)
    fewer = replace(plan, clients=clients * 40)
    assert fewer.failure_probability < plan.failure_probability or plan.failure_probability < 0.02


def test_a_range_report_spends_epsilon_and_takes_its_bits():
    plan = replace(PLAN, dim=3, clients=40_000)
    assert plan.rotation.size == 4
    values = torch.full((40_000,), 0.3, dtype=torch.float64)
    sent = range_reports(values, plan=plan, randomness=SeededRandomness(1))
    assert sent.bits_per_report == 2 + (plan.bins - 1).bit_length() + 1
    assert Reports.from_bytes(sent.to_bytes()).to_bytes() == sent.to_bytes()
    coordinates, rows, signs = (field.values.long() for field in sent.fields)
    assert torch.equal(coordinates, torch.arange(40_000) % 4)
    place = math.floor((0.3 / plan.spread + plan.bins) / 2)
    honest = torch.tensor([1 - 2 * ((row & place).bit_count() % 2) for row in rows.tolist()])
    agreeing = float((2 * signs - 1 == honest).double().mean())
    expected = 1 / (1 + math.exp(-4.0))
    assert agreeing == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / 40_000))


def test_values_beyond_the_bins_count_for_the_outermost():
    plan = replace(PLAN, dim=1, clients=3000)
    for end in (-1.0, 1.0):
        sent = range_reports(
            torch.full((3000,), end * 1e9, dtype=torch.float64), plan=plan, randomness=SeededRandomness(1)
        )
        assert float(find_centre(sent, plan=plan)) == pytest.approx(end * (plan.bins - 1) * plan.spread)


def test_without_a_use_for_it_the_first_stage_is_left_out():
    plan = replace(PLAN, samples=1, sigma=0.5)
    samples, _ = held(plan)
    assert (plan.bins, plan.range_clients, plan.mean_clients) == (1, 0, 12_000)
    for chosen in (plan, replace(plan, split=Split.BUDGET)):
        assert chosen.stage_epsilon == 4.0
        found = estimate_mean(samples, plan=chosen, randomness=SeededRandomness(1))
        assert found.range_reports is None
        assert found.local_epsilon == 4.0
        assert float(found.centre.abs().max()) == 0
        assert chosen.residual_radius == 1.0
        assert found.failure_probability == 0.01


@pytest.mark.parametrize("epsilon", [1e-4, 50.0])
def test_tiny_and_huge_budgets(epsilon):
    plan = replace(PLAN, local_epsilon=epsilon, clients=8000, dim=3)
    samples, _ = held(plan)
    found = estimate_mean(samples, plan=plan, randomness=SeededRandomness(1))
    assert bool(found.mean.isfinite().all())
    assert found.local_epsilon == epsilon
    assert (plan.bins == 1) is (epsilon < 1)
    forced = estimate_mean(samples, plan=replace(plan, ranging=True), randomness=SeededRandomness(1))
    assert bool(forced.mean.isfinite().all())
    assert (forced.failure_probability == 1.0) is (epsilon < 1)


def test_foreign_and_forged_range_reports_are_refused():
    values = torch.zeros(12_000, dtype=torch.float64)
    sent = range_reports(values, plan=PLAN, randomness=SeededRandomness(1))
    coordinates, _, signs = sent.fields
    wide = Field(torch.full((12_000,), PLAN.bins), 20)
    for mechanism, fields in (("privunit", sent.fields), (sent.mechanism, (coordinates, wide, signs))):
        with pytest.raises(ValueError, match="these are reports of"):
            find_centre(Reports(mechanism=mechanism, dim=sent.dim, fields=fields), plan=PLAN)


def test_a_plan_that_cannot_be_kept_and_samples_of_another_are_refused():
    with pytest.raises(ValueError, match="too many"):
        replace(PLAN, sigma=1e-9)
    samples, _ = held(PLAN)
    with pytest.raises(ValueError, match="the plan is for"):
        estimate_mean(samples[1:], plan=PLAN)
    samples[3, 2, 1] = math.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        estimate_mean(samples, plan=PLAN)


@pytest.mark.parametrize("clients", [200, 1000, 2000])
def test_too_few_clients_do_without_a_first_stage(clients):
    """Ranged by chance, as was once done, these estimates lay 4 to 20 radii away."""
    plan = UserLevelMean(local_epsilon=4.0, dim=32, clients=clients, samples=50, radius=1.0, sigma=0.02)
    assert plan.bins == 1
    assert plan.failure_probability < 0.05
    generator = torch.Generator().manual_seed(clients)
    mean = torch.randn(32, generator=generator)
    mean *= 0.6 / mean.norm()
    samples = mean + 0.02 * torch.randn(clients, 50, 32, generator=generator)
    found = [estimate_mean(samples, plan=plan, randomness=SeededRandomness(s)).mean for s in range(10)]
    error = torch.stack([(each - mean).square().sum() for each in found]).mean()
    assert float(error) < 1.5 * plan.mean_variance
    assert all(float(each.norm()) <= 1 + 1e-9 for each in found)
    with pytest.raises(ValueError, match="cannot range"):
        replace(plan, clients=100, ranging=True)
    assert replace(plan, clients=100_000).bins > 1
