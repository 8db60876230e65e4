"""ℓ1, ℓ2 and ℓ∞ geometry, clients with several records, and what they send: CLDP-SGD and DSS-SGD in full."""

import math

import numpy as np
import pytest
import torch
from thinning import first_fast

from shuffle_plugins.accounting import SampledRecordsRound, Sampling, ShuffleAccountant
from shuffle_plugins.optim import (
    GD,
    SGD,
    Ball,
    CohortSGD,
    L1Ball,
    OneMessage,
    Problem,
    SelfSampledSGD,
    Unprotected,
    VectorSums,
    bounds,
    logistic_regression,
    minimize,
)
from shuffle_plugins.optim.oracles import Participation
from shuffle_plugins.randomness import SeededRandomness

F64 = torch.float64
ORDERS = {"l1": 1, "l2": 2, "linf": math.inf}
BUDGET = {"epsilon": 1.0, "delta": 1e-6}


def records(norm, clients=500, each=10, dim=4):
    """Records of the norm 1, with labels that a sparse model draws: (clients, records, …)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients, each, dim, generator=generator, dtype=F64)
    x = x / torch.linalg.vector_norm(x, ord=ORDERS[norm], dim=-1, keepdim=True)
    margins = 4 * (x[..., 0] - x[..., 1]) * math.sqrt(dim)
    chance = torch.rand(clients, each, generator=generator, dtype=F64)
    return x, torch.where(chance < torch.sigmoid(margins), 1.0, -1.0).to(F64)


def flat(data):
    return tuple(tensor.flatten(0, 1) for tensor in data)


def least_loss(problem, data):
    """The least mean loss in the domain, by projected gradient descent, which is exact here to 1e-6."""
    point = torch.zeros(problem.dim, dtype=F64)
    for _ in range(400):
        slope = problem.gradients(point, data).mean(0)
        point = problem.domain.project(point - slope / problem.smoothness)
    return problem.mean_loss(point, data)


# -- geometry ---------------------------------------------------------------------------------------------


@first_fast(
    ("norm", "method"),
    [
        ("linf", CohortSGD(cohort=100, num_steps=16)),
        ("linf", CohortSGD(cohort=100, num_steps=16, samples=2)),
        ("l1", CohortSGD(cohort=100, num_steps=16)),
        ("l2", SelfSampledSGD(cohort=100, num_steps=16)),
    ],
)
def test_every_geometry_learns_within_its_budget_and_below_its_bound(norm, method):
    data = records(norm)
    problem = logistic_regression(features=4, norm=norm, radius=3.0)
    plan = method.plan(problem, population=500, model=OneMessage(), records_per_client=10, **BUDGET)
    stage = plan.stages[0]
    moment = problem.gradient_length**2 + stage.oracle.noise
    reach = problem.domain.reach(torch.zeros(4, dtype=F64))
    assert plan.bound == pytest.approx(2 * reach * math.sqrt(moment / 16) * (2 + math.log(16)))
    result = plan.run(data, randomness=SeededRandomness(3))
    assert 0.95 < result.epsilon(1e-6).upper <= 1.0
    assert plan.run(data, randomness=SeededRandomness(3)).parameters.tolist() == result.parameters.tolist()
    found = problem.mean_loss(result.parameters, flat(data))
    start = problem.mean_loss(torch.zeros(4, dtype=F64), flat(data))
    least = least_loss(problem, flat(data))
    assert least - 1e-9 < found < start - 0.2 * (start - least)
    assert found - least < plan.bound
    assert f"in {norm}" in plan.summary() or norm == "l2"


def test_the_l1_ball_is_projected_onto():
    ball = L1Ball(radius=2.0)
    points = torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=F64) * 2
    points[0], points[1] = torch.tensor([0.1, -0.2, 0.3, 0, 0]), torch.tensor([2.0, 0, 0, 0, 0])
    found = ball.project(points)
    assert (found.abs().sum(1) <= 2 + 1e-12).all()
    assert torch.equal(found[:2], points[:2])
    assert torch.equal(ball.project(points[7]), found[7])
    # ⟨p − π(p), q − π(p)⟩ ≤ 0 for every q of the ball, so for its corners.
    corners = 2 * torch.cat([torch.eye(5, dtype=F64), -torch.eye(5, dtype=F64)])
    assert (((points - found).unsqueeze(1) * (corners - found.unsqueeze(1))).sum(-1) < 1e-9).all()
    assert ball.diameter == 4
    assert ball.reach(torch.zeros(5, dtype=F64)) == 2
    farthest = torch.linalg.vector_norm(corners.unsqueeze(0) - found.unsqueeze(1), dim=-1).max(1).values
    assert [ball.reach(point) for point in points] == pytest.approx(farthest.tolist())
    with pytest.raises(ValueError, match="radius"):
        L1Ball(radius=0)


def test_a_strongly_convex_problem_knows_its_bound_in_every_norm():
    for norm, longest in (("l1", 2.0), ("l2", 1.0), ("linf", 1.0)):
        problem = Problem(dim=4, domain=Ball(), gradients=lambda *_: None, lipschitz=1.0, norm=norm)
        assert problem.regularised(0.5).lipschitz == pytest.approx(1 + 0.5 * longest)


# -- several records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 3])
def test_clients_draw_their_records_uniformly_and_anew(samples):
    part = Participation(
        sampling=Sampling.WITHOUT_REPLACEMENT, population=50, cohort=20, num_steps=9,
        records_per_client=5, samples_per_client=samples,
    )  # fmt: skip
    source = SeededRandomness(1)
    counts = torch.zeros(250)
    for _ in range(600):
        drawn = part.drawn(1, order=torch.arange(50), randomness=source)
        assert len(drawn) == part.reports == 20 * samples
        assert len(drawn.unique()) == len(drawn)
        assert (torch.bincount(drawn // 5, minlength=50).unique() == torch.tensor([0, samples])).all()
        counts += torch.bincount(drawn, minlength=250)
    rate = 20 / 50 * samples / 5
    assert float((counts - 600 * rate).abs().max()) < 6 * math.sqrt(600 * rate * (1 - rate))


def test_reports_on_records_are_charged_as_drawn_records():
    problem = logistic_regression(features=4)
    asked = {"population": 5_000, "model": OneMessage(), **BUDGET}
    plan = CohortSGD(cohort=500, num_steps=4, samples=2).plan(problem, records_per_client=10, **asked)
    charged = plan.stages[0].oracle.round
    assert isinstance(charged, SampledRecordsRound)
    assert (charged.records_per_client, charged.samples_per_client, charged.cohort) == (10, 2, 500)
    accountant = ShuffleAccountant()
    accountant.step(charged, num_steps=4)
    assert 0.99 < accountant.epsilon(1e-6, lower=False).upper <= 1.0
    alone = CohortSGD(cohort=500, num_steps=4).plan(problem, **asked)
    one = CohortSGD(cohort=500, num_steps=4).plan(problem, records_per_client=10, **asked)
    assert one.stages[0].oracle.round.local_epsilon > 1.3 * alone.stages[0].oracle.round.local_epsilon
    assert one.stages[0].oracle.noise < alone.stages[0].oracle.noise / 1.2
    assert "replace-one record of a client" in plan.summary()
    assert "2 of 10 records each" in plan.summary()
    secret = SelfSampledSGD(cohort=500, num_steps=4).plan(problem, records_per_client=10, **asked)
    assert secret.stages[0].oracle.round.sampling is Sampling.POISSON


@pytest.mark.parametrize(
    ("method", "model", "data", "said"),
    [
        (GD(num_steps=2), OneMessage(), records("l2"), "CohortSGD"),
        (SGD(), VectorSums(), records("l2"), "CohortSGD"),
        (CohortSGD(), VectorSums(), records("l2"), "OneMessage"),
        (CohortSGD(), OneMessage(mechanism="gaussian"), records("l2"), "one record per client"),
        (CohortSGD(samples=11), OneMessage(), records("l2"), "at most records_per_client, got 11 of 10"),
        (CohortSGD(), OneMessage(), records("l2", each=9), r"must be \(clients, 10, …\)"),
        (CohortSGD(), OneMessage(), flat(records("l2")), r"must be \(clients, 10, …\)"),
    ],
)
def test_records_that_cannot_be_drawn_are_refused_before_anything_runs(method, model, data, said):
    with pytest.raises(ValueError, match=said):
        minimize(
            logistic_regression(features=4), data,
            method=method, model=model, records_per_client=10, report=None, **BUDGET,
        )  # fmt: skip


# -- communication ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "samples"), [(1, 1), (1, 20), (3, 100), (8, 50), (3200, 7)])
def test_bits_are_those_of_the_theorem(bits, samples):
    sent, counted = bounds.sent_bits(bits=bits, rate=0.1, samples=samples)
    assert sent == pytest.approx(0.1 * samples * bits)
    kinds = math.log2(samples + 2**bits - 1)  # exact, of whole numbers of any size
    printed = math.log2(math.e) + kinds - math.log2(samples)
    assert counted == pytest.approx(0.1 * samples * min(printed, bits))
    if bits < 1000:
        histograms = math.log2(math.comb(samples + 2**bits - 1, samples))
        assert 0.1 * min(histograms, samples * bits) <= counted + 1e-9


# -- the bound on the last iterate ------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [*range(1, 13), 20, 50, 99, 100, 257, 1024])
def test_the_bound_on_the_last_iterate_holds_with_the_distance_from_the_start(steps):
    """Shamir and Zhang's proof term by term, at R = G = 1, with iterates 2 or less from one another."""
    t = np.arange(1, steps + 1)
    root = np.sqrt(t)
    growth, path = np.diff(root, prepend=0.0), np.cumsum(1 / root)
    squares = np.minimum(4, 1 + np.concatenate([[0.0], np.cumsum(1 / t)[:-1]]))
    total = ((squares * growth).sum() + (1 / root).sum()) / 2 / steps
    for k in range(1, steps):
        late = slice(steps - k - 1, steps)
        walked = np.concatenate([[0.0], path[late][:-1] - path[steps - k - 1] + 1 / root[steps - k - 1]])
        terms = np.minimum(4, walked**2) * growth[late] + 1 / root[late]
        total += terms.sum() / 2 / (k * (k + 1))
    _, promised = bounds.last_iterate(reach=1.0, moment=1.0, steps=steps)
    assert bounds.LAST_ITERATE_ROOM * total <= promised
    harmonic = (1 / t[:-1]).sum()
    simple = (3 + 1.5 * (harmonic + 1 + harmonic / steps)) / math.sqrt(steps)
    assert total <= simple
    assert steps < 100 or bounds.LAST_ITERATE_ROOM * simple <= promised


def test_random_cohorts_are_counted_exactly():
    for population, expected in ((10, 2), (300, 20), (5, 5)):
        heard, spread = bounds.random_cohort(population=population, expected=expected)
        rate = expected / population
        masses = [
            math.comb(population, k) * rate**k * (1 - rate) ** (population - k) for k in range(population + 1)
        ]
        assert heard == pytest.approx(1 - masses[0])
        assert spread == pytest.approx(sum(expected / k * masses[k] for k in range(1, population + 1)))
    problem = logistic_regression(features=3)
    few = SelfSampledSGD(cohort=2, num_steps=2).plan(problem, population=20, model=Unprotected(), **BUDGET)
    fixed = CohortSGD(cohort=2, num_steps=2).plan(problem, population=20, model=Unprotected(), **BUDGET)
    assert few.bound > 1.1 * fixed.bound
