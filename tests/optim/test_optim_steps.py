"""Update rules and bounds: what they compute, and that the printed theorems' constants hold."""

import math

import pytest
import torch

from shuffle_plugins.optim import Ball, Box, Problem, bounds
from shuffle_plugins.optim.bounds import Accelerated, Averaged, Decaying

F64 = torch.float64


def run(rule, gradient, *, steps, start, domain):
    state = rule.begin(start)
    for step in range(1, steps + 1):
        state = rule.update(state, gradient(rule.query(state, step), step), step, domain)
    return rule.answer(state, steps)


def test_descent_goes_down_and_averages_the_points_it_asked_about():
    rule = Averaged(step_size=0.5)
    asked = []

    def gradient(point, step):
        asked.append(point.clone())
        return point - 3

    found = run(rule, gradient, steps=4, start=torch.zeros(1, dtype=F64), domain=Ball(radius=10))
    assert torch.allclose(found, torch.stack(asked).mean(0))
    assert [float(a) for a in asked] == [0, 1.5, 2.25, 2.625]


def test_decaying_steps_end_at_the_last_point():
    found = run(
        Decaying(scale=1.0), lambda p, t: torch.ones(1, dtype=F64), steps=3,
        start=torch.zeros(1, dtype=F64), domain=Ball(radius=10),
    )  # fmt: skip
    assert float(found) == pytest.approx(-(1 + 2**-0.5 + 3**-0.5))


@pytest.mark.parametrize("curvature", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("steps", [5, 40])
def test_acceleration_keeps_its_bound_without_noise(curvature, steps):
    """2βD²/(T(T + 1)) for β = 1, whatever the real curvature; the paper's c = β has no such bound."""
    start = torch.ones(1, dtype=F64)
    rule = Accelerated(curvature=2.0)
    found = run(rule, lambda p, t: curvature * p, steps=steps, start=start, domain=Ball(radius=10))
    assert curvature / 2 * float(found) ** 2 <= 2 / (steps * (steps + 1))


@pytest.mark.parametrize("steps", [1, 10, pytest.param(300, marks=pytest.mark.slow)])
def test_acceleration_keeps_its_bound_with_noise(steps):
    generator = torch.Generator().manual_seed(steps)
    reach, variance, dim = 1.0, 4.0, 50
    start = torch.full((dim,), reach / math.sqrt(dim), dtype=F64)
    worst = 0.0
    rule, bound = bounds.accelerated(reach=reach, smoothness=1.0, variance=variance, steps=steps)
    for h in (0.01, 0.1, 1.0):
        losses = [
            h / 2 * float(found.square().sum())
            for _ in range(20)
            for found in [
                run(
                    rule,
                    lambda p, t: (
                        h * p  # noqa: B023
                        + math.sqrt(variance / dim) * torch.randn(dim, generator=generator, dtype=F64)
                    ),
                    steps=steps,
                    start=start,
                    domain=Ball(radius=1e9),
                )
            ]
        ]
        worst = max(worst, sum(losses) / len(losses))
    assert worst <= bound * 1.05
    assert worst >= bound / 40  # and the bound is no idle one


def test_curvature_and_step_minimise_their_bounds():
    given = {"reach": 2.0, "smoothness": 3.0, "variance": 5.0, "steps": 17}
    rule, bound = bounds.accelerated(**given)
    best = rule.curvature - 2 * 3.0

    def loss(s):
        T = 17
        return (6 + s) * 4 / (T * (T + 1)) + 5 * (2 * T + 1) / (6 * s)

    assert loss(best) == pytest.approx(bound)
    assert loss(best) < min(loss(best * 1.1), loss(best / 1.1))
    again = {
        "reach": 2.0,
        "lipschitz": 1.0,
        "smoothness": math.inf,
        "noise": 9.0,
        "steps": 50,
        "population": 80,
    }
    rule, bound = bounds.repeated(**again)
    eta = rule.step_size

    def repeated(e):
        return 4 / (2 * e * 50) + e * 10 / 2 + e * 50 / 80

    assert repeated(eta) == pytest.approx(bound)
    assert repeated(eta) < min(repeated(eta * 1.1), repeated(eta / 1.1))


def test_domains_project_and_know_their_size():
    ball, box = Ball(radius=2.0), Box(bound=1.0, dim=4)
    far = torch.tensor([3.0, 0.0, 0.0, 4.0], dtype=F64)
    assert torch.allclose(ball.project(far), far * 0.4)
    assert torch.equal(ball.project(far / 10), far / 10)
    assert box.project(far).tolist() == [1, 0, 0, 1]
    assert (ball.diameter, box.diameter) == (4, 4)
    assert ball.reach(ball.start(4)) == 2
    assert box.reach(torch.ones(4, dtype=F64)) == 4


def absolute(examples, theta):
    return (theta - examples[0]).abs().sum(-1)


@pytest.mark.parametrize("beta", [0.5, 4.0])
def test_envelopes_lie_below_their_loss_and_have_its_gradient(beta):
    problem = Problem(
        dim=1, domain=Ball(radius=5), lipschitz=1.0,
        gradients=lambda theta, examples: (theta - examples[0]).sign(),
        proximal=lambda theta, examples, b: theta - (theta - examples[0]).clamp(-1 / b, 1 / b),
    )  # fmt: skip
    smoothed = problem.smoothed(beta)
    x = torch.zeros(1, 1, dtype=F64)
    grid = torch.linspace(-3, 3, 601, dtype=F64)
    candidates = torch.linspace(-4, 4, 8001, dtype=F64)
    envelope = torch.stack([(candidates.abs() + beta / 2 * (candidates - t) ** 2).min() for t in grid])
    assert (envelope <= grid.abs() + 1e-9).all()
    assert (grid.abs() - envelope <= 1 / (2 * beta) + 1e-6).all()
    slopes = torch.stack([smoothed.gradients(t.reshape(1), (x,))[0, 0] for t in grid[1:-1]])
    measured = (envelope[2:] - envelope[:-2]) / (grid[2:] - grid[:-2])
    assert torch.allclose(slopes, measured, atol=0.02)
    assert (slopes.abs() <= 1 + 1e-12).all()
