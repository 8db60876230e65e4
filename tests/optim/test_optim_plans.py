"""Plans and runs: budgets, disjoint clients, convergence, and every kind of problem."""

import math
from dataclasses import replace

import pytest
import torch
from example_scripts import script
from thinning import first_fast
from torch import nn

from shuffle_plugins.accounting import BudgetExceeded, ShuffleAccountant
from shuffle_plugins.optim import (
    AGD,
    GD,
    SGD,
    Ball,
    CohortSGD,
    Local,
    OneMessage,
    PanPrivate,
    PermutationSGD,
    Phased,
    Problem,
    SelfSampledSGD,
    Smoothed,
    Unprotected,
    VectorSums,
    assign,
    from_module,
    logistic_regression,
    minimize,
    support_vector_machine,
)
from shuffle_plugins.protocols import TargetUnreachable
from shuffle_plugins.randomness import SeededRandomness

F64 = torch.float64
BUDGET = {"epsilon": 1.0, "delta": 1e-5}


def blobs(clients=600, dim=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients, dim, generator=generator, dtype=F64)
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
    return x, torch.where(x[:, 0] + x[:, 1] > 0, 1.0, -1.0).to(F64)


LOGISTIC = logistic_regression(features=4, radius=4.0)
HINGE = support_vector_machine(features=4, radius=4.0)

CASES = [
    (LOGISTIC, SGD(), VectorSums()),
    (LOGISTIC, AGD(), VectorSums()),
    (LOGISTIC, AGD(), PanPrivate()),
    (LOGISTIC, GD(num_steps=10), VectorSums()),
    (LOGISTIC, SGD(batch=60), OneMessage()),
    (LOGISTIC, CohortSGD(cohort=60, num_steps=8), OneMessage()),
    (LOGISTIC, CohortSGD(cohort=60, num_steps=8), VectorSums(overhead=0.2)),
    (LOGISTIC, SelfSampledSGD(cohort=60, num_steps=8), OneMessage()),
    (LOGISTIC, PermutationSGD(), OneMessage(mechanism="gaussian")),
    (LOGISTIC.regularised(0.1), Phased(inner=AGD()), VectorSums()),
    (LOGISTIC.regularised(0.1), Phased(inner=GD(num_steps=5), phases=2), VectorSums()),
    (HINGE, SGD(), VectorSums()),
    (HINGE, Smoothed(inner=AGD()), VectorSums()),
    (HINGE, Smoothed(inner=GD(num_steps=10)), VectorSums()),
    (HINGE.regularised(0.1), Phased(inner=Smoothed(inner=AGD())), VectorSums()),
]


@first_fast(("problem", "method", "model"), CASES, ids=[f"{m}-{g}" for _, m, g in CASES], fast=5)
def test_every_method_learns_within_its_budget(problem, method, model):
    data = blobs()
    plan = method.plan(problem, population=600, model=model, **BUDGET)
    result = plan.run(data, randomness=SeededRandomness(3))
    found = result.epsilon(1e-5)
    assert 0.9 < found.upper <= 1.0
    assert found.neighbouring_relation == "replace-one"
    assert result.steps == sum(stage.participation.num_steps for stage in plan.stages)
    assert sum(stage.participation.population for stage in plan.stages) == 600
    assert torch.linalg.vector_norm(result.parameters) <= 4 * (1 + 1e-9)
    assert problem.mean_loss(result.parameters, data) < problem.mean_loss(torch.zeros(4, dtype=F64), data)
    text = plan.summary()
    assert "ε = 1" in text
    assert f"{plan.stages[0].participation.num_steps:,} steps" in text


def test_more_steps_than_the_budget_allows_are_refused_before_release():
    data = blobs()
    plan = GD(num_steps=4).plan(LOGISTIC, population=600, **BUDGET)
    earlier = ShuffleAccountant()
    earlier.step(plan.stages[0].oracle.round, num_steps=2)
    asked, called = [], []
    watched = replace(LOGISTIC, gradients=lambda *given: called.append(1) or LOGISTIC.gradients(*given))
    plan = GD(num_steps=4).plan(watched, population=600, **BUDGET)
    with pytest.raises(BudgetExceeded, match="Nothing of it was released"):
        plan.run(
            data, before=earlier, randomness=SeededRandomness(0), on_step=lambda step, _: asked.append(step)
        )
    assert asked == [1, 2]
    assert len(called) == 2
    assert earlier.num_steps == 2


def test_phases_use_disjoint_clients_and_cost_what_one_costs():
    seen = []
    problem = Problem(
        dim=1, domain=Ball(), lipschitz=2.0, smoothness=1.0, strong_convexity=1.0,
        gradients=lambda theta, examples: seen.append(examples[0].flatten()) or theta - examples[0],
    )  # fmt: skip
    data = torch.arange(600, dtype=F64).unsqueeze(1) / 600
    plan = Phased(inner=AGD(), phases=3).plan(problem, population=600, **BUDGET)
    result = plan.run(data, randomness=SeededRandomness(1))
    asked = torch.cat(seen)
    assert len(asked) == len(asked.unique())
    assert len(asked) > 0.9 * 600
    assert [stage.participation.population for stage in plan.stages] == [85, 171, 344]
    reaches = [stage.reach for stage in plan.stages]
    assert reaches == sorted(reaches, reverse=True)
    spent = [each.epsilon(1e-5) for each in result.accountants]
    assert len(spent) == 3
    assert result.epsilon(1e-5) == max(spent, key=lambda found: found.upper)
    assert result.epsilon(1e-5).upper <= 1.0


def test_descent_without_noise_finds_the_optimum():
    data = blobs()
    problem = LOGISTIC.regularised(0.5)
    plan = GD(num_steps=500, step_size=1.0).plan(problem, population=600, model=Unprotected(), **BUDGET)
    found = plan.run(data).parameters
    assert problem.gradients(found, data).mean(0).norm() < 0.05
    assert "NOT private" in plan.summary()
    with pytest.raises(ValueError, match="no ε"):
        plan.run(data).epsilon(1e-5)


def test_one_call_prints_the_plan_before_it_runs():
    printed = []
    data = blobs()
    result = minimize(LOGISTIC, data, method=AGD(), report=printed.append, **BUDGET)
    assert "P_AGD with VectorSums" in printed[0]
    assert result.epsilon(1e-5).upper <= 1.0


def test_a_module_and_a_written_out_loss_are_the_same_problem():
    module = nn.Linear(4, 1, bias=False, dtype=F64)
    x, y = blobs(50)
    problem = from_module(
        module, lambda out, y: nn.functional.softplus(-out[:, 0] * y).mean(), lipschitz=1.0, radius=4.0
    )
    theta = torch.tensor([0.3, -1.0, 2.0, 0.1], dtype=F64)
    assert torch.allclose(problem.gradients(theta, (x, y)), LOGISTIC.gradients(theta, (x, y)))
    assert torch.allclose(problem.losses(theta, (x, y)), LOGISTIC.losses(theta, (x, y)))
    each = theta + torch.arange(50, dtype=F64).unsqueeze(1) / 50
    assert torch.allclose(problem.gradients(each, (x, y)), LOGISTIC.gradients(each, (x, y)))
    plan = SGD().plan(problem, population=50, model=Unprotected(), **BUDGET)
    found = plan.run((x, y), randomness=SeededRandomness(0)).parameters
    assign(module, found)
    assert torch.equal(module.weight.flatten(), found)


def test_proximal_points_are_found_without_a_formula():
    data = blobs(30)
    theta = torch.tensor([0.5, 0.5, -1.0, 2.0], dtype=F64)
    searched = Problem(
        dim=4, domain=Ball(radius=4), gradients=HINGE.gradients, losses=HINGE.losses, lipschitz=1.0
    )
    exact, found = (p.smoothed(2.0).gradients(theta, data) for p in (HINGE, searched))
    assert (exact - found).norm(dim=1).max() < 0.1
    regular = HINGE.regularised(0.5).smoothed(2.0).gradients(theta, data)
    p = theta - regular / 2.0
    residual = regular - 0.5 * p  # a subgradient of the hinge at p
    margins = (p * data[0]).sum(1) * data[1]
    expected = -((margins < 1 - 1e-9).to(F64) * data[1]).unsqueeze(1) * data[0]
    apart = (margins - 1).abs() > 1e-6
    assert torch.allclose(residual[apart], expected[apart], atol=1e-9)


def test_data_of_other_clients_are_refused():
    plan = SGD().plan(LOGISTIC, population=600, **BUDGET)
    with pytest.raises(ValueError, match="600 clients"):
        plan.run(blobs(599))
    x, y = blobs()
    with pytest.raises(ValueError, match="rows"):
        plan.run((x, y[:5]))


# -- rates ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench():
    return script("benchmarks/optimizers.py")


def test_excess_loss_follows_the_rate_of_accelerated_descent(bench):
    rate = next(r for r in bench.RATES if r.title == "P_AGD")
    scale = bench.unit(rate, dim=48, epsilon=0.01)
    points = [
        bench.measure(rate, clients=round(scale * r), dim=48, epsilon=0.01, repeats=6, seed=1)
        for r in (1e3, 1e4, 1e5)
    ]
    assert bench.fitted(points, "clients") == pytest.approx(-4 / 5, abs=0.1)
    assert all(point["excess"] < point["bound"] for point in points)


def test_plans_have_the_sizes_of_the_theorems():
    """Exponents of n in batch sizes and numbers of steps, and of the bound."""
    problem = Problem(
        dim=1000, domain=Ball(), gradients=max, lipschitz=1.0, smoothness=1.0, strong_convexity=0.0
    )

    class Cheap(VectorSums):
        def open(self, participation, target):
            oracle = Local().open(participation, target)
            return replace(oracle, noise=self.noise(participation, target))

    def exponents(method):
        plans = [
            method.plan(problem, population=n, epsilon=0.1, delta=1e-6, model=Cheap()) for n in (10**6, 10**8)
        ]
        batches = [plan.stages[0].participation.cohort for plan in plans]
        return math.log10(batches[1] / batches[0]) / 2, math.log10(plans[1].bound / plans[0].bound) / 2

    assert exponents(SGD()) == pytest.approx((0, -1 / 2), abs=0.02)
    assert exponents(AGD())[0] == pytest.approx(3 / 5, abs=0.05)
    assert exponents(AGD())[1] < -0.6
    assert exponents(Smoothed(inner=AGD()))[0] == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("num_steps", [11, 22])
def test_local_reports_add_up_to_no_more_than_the_budget(num_steps):
    # In floats 11 times 0.1/11 is more than 0.1; without a δ to speak of nothing else is certified.
    problem = logistic_regression(features=2)
    plan = GD(num_steps=num_steps).plan(problem, population=5, epsilon=0.1, delta=1e-300, model=Local())
    data = (torch.zeros(5, 2), torch.ones(5))
    assert plan.run(data, randomness=SeededRandomness(1)).epsilon(1e-300).upper <= 0.1


def test_wrong_names_are_not_taken_for_a_budget_that_is_too_small():
    for model in (OneMessage(mechanism="nonsense"), Local(mechanism="nonsense")):
        with pytest.raises(ValueError, match="nonsense") as caught:
            SGD().plan(LOGISTIC, population=600, model=model, **BUDGET)
        assert not isinstance(caught.value, TargetUnreachable)
    with pytest.raises(ValueError, match=r"cohort of known size.*model=OneMessage\(\)") as caught:
        SelfSampledSGD().plan(LOGISTIC, population=600, **BUDGET)
    assert not isinstance(caught.value, TargetUnreachable)
    with pytest.raises(TargetUnreachable, match="more clients"):
        SGD().plan(LOGISTIC, population=3, epsilon=1e-6, delta=1e-9, model=OneMessage())
