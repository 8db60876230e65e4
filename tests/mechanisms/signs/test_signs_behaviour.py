"""Sampled mechanisms as they are used: public indices, clipping and its bias, options, forged reports."""

import itertools
import math

import pytest
import torch
from scipy.optimize import brentq

from shuffle_plugins.accounting import ShuffleAccountant
from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import get
from shuffle_plugins.mechanisms.coefficients import sound_level
from shuffle_plugins.randomness import SeededRandomness

PUBLIC = [("l1-hadamard", {}), ("sqkr", {"signs": 3}), ("l2-block", {"signs": 3})]


@pytest.mark.parametrize(("name", "options"), PUBLIC)
def test_public_indices_shorten_reports_which_cannot_be_shuffled(name, options):
    private = get(name, local_epsilon=4.0, dim=50, **options)
    public = get(name, local_epsilon=4.0, dim=50, public_seed=9, **options)
    assert public.bits_per_report == options.get("signs", 1) < private.bits_per_report
    reports = public.randomize(torch.zeros(10, 50), randomness=SeededRandomness(1))
    assert len(reports.to_bytes()) == reports.layout.header_bytes + (10 * public.bits_per_report + 7) // 8
    assert private.shufflable
    assert not public.shufflable
    assert public.outcomes() is None
    with pytest.raises(ValueError, match="cannot be shuffled"):
        public.round(population=1000, cohort=100)
    private.round(population=1000, cohort=100)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), PUBLIC)
def test_public_estimates_are_unbiased_over_the_seed_and_have_the_same_error(name, options):
    x = torch.zeros(1, 6, dtype=torch.float64)
    x[0, 1], x[0, 4] = 0.6, -0.3
    errors = []
    for seed in range(300):
        mechanism = get(name, local_epsilon=4.0, dim=6, public_seed=seed, **options)
        reports = mechanism.randomize(x.repeat(40, 1), randomness=SeededRandomness(seed))
        errors.append(mechanism.aggregate(reports) - x[0])
    errors = torch.stack(errors).double()
    spread = errors.std(dim=0) / math.sqrt(300)
    assert float((errors.mean(dim=0).abs() / spread).max()) < 4
    expected = float(mechanism.variance(x)) / 40
    assert float(errors.square().sum(dim=1).mean()) == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize(("name", "options"), PUBLIC)
def test_public_rounds_can_be_cut_by_position(name, options):
    def at(position):
        return get(name, local_epsilon=4.0, dim=9, public_seed=2, position=position, **options)

    x = torch.linspace(-0.1, 0.1, 9).repeat(30, 1)
    source = SeededRandomness(3)
    first, second = at(0).randomize(x[:12], randomness=source), at(12).randomize(x[12:], randomness=source)
    whole = at(0).sum(Reports.concat([first, second]))
    torch.testing.assert_close(whole, at(0).sum(first) + at(12).sum(second), rtol=1e-5, atol=1e-4)
    assert not torch.equal(at(0).sum(second), at(12).sum(second))


def test_lp_balls_lie_in_the_l1_ball_that_is_used_and_not_in_the_printed_one():
    p, dim = 1.5, 64
    mechanism = get("l1-hadamard", local_epsilon=1.0, dim=dim, radius=2.0, p=p)
    assert mechanism.domain == "l1.5"
    flat = torch.full((1, dim), 2.0 * dim ** (-1 / p), dtype=torch.float64)
    assert float(flat.norm(p=1)) == pytest.approx(2.0 * dim ** (1 - 1 / p))
    assert float(flat.norm(p=1)) > 2.0
    mechanism.randomize(flat)
    with pytest.raises(ValueError, match="outside the ball"):
        mechanism.randomize(1.001 * flat)
    torch.testing.assert_close(mechanism.clip(5 * flat), flat, rtol=1e-9, atol=0)
    laws = [mechanism.log_likelihood(mechanism.outcomes(), sign * flat[0]) for sign in (1, -1)]
    assert float((laws[0] - laws[1]).max()) == pytest.approx(1.0, rel=1e-9)
    gain = math.tanh(0.5)
    assert mechanism.worst_variance == pytest.approx(dim * (2.0 * dim ** (1 / 3) / gain) ** 2, rel=1e-9)


def test_a_lower_bound_in_an_lp_ball_is_that_of_rows_in_the_ball():
    mechanism, delta = get("l1-hadamard", local_epsilon=2.0, dim=4, p=1.5), 0.1
    signs = torch.tensor(list(itertools.product((-1.0, 0.0, 1.0), repeat=4)), dtype=torch.float64)
    every = mechanism.outcomes()

    def epsilon(rows):
        """That at δ of the two rows which are told apart best."""
        laws = torch.stack([mechanism.log_likelihood(every, row).exp() for row in mechanism.clip(10 * rows)])

        def excess(found):
            return float((laws[:, None] - math.exp(found) * laws).clamp(min=0).sum(dim=2).max()) - delta

        return brentq(excess, 0.0, 2.0, xtol=1e-12)

    accountant = ShuffleAccountant()
    accountant.step(mechanism.round(population=1, cohort=1, sampling="full"))
    lower = accountant.epsilon(delta).lower
    assert lower <= epsilon(signs)
    assert lower == pytest.approx(epsilon(torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]).double()), rel=1e-3)
    assert get("l1-hadamard", local_epsilon=2.0, dim=1, p=1.5).blanket().exact


def test_sound_level_is_sound_and_binds_only_in_large_dimensions():
    assert sound_level(size=32, clients=10_000, failure=1e-6) == math.sqrt(32)
    level = sound_level(size=16_384, clients=10_000, failure=1e-6)
    assert 2 * 16_384 * 10_000 * math.exp(-(level**2) / 2) == pytest.approx(1e-6, rel=1e-9)
    x = torch.randn(2000, 500, generator=torch.Generator().manual_seed(1))
    x /= x.norm(dim=1, keepdim=True)
    mechanism = get("l2-bit-planes", local_epsilon=2.0, dim=500)
    assert mechanism.level < math.sqrt(512)
    assert float(mechanism.clipping_bias(x.double()).norm(dim=1).max()) < 1e-12
    spike = torch.zeros(1, 500, dtype=torch.float64)
    spike[0, 77] = 1.0
    assert float(mechanism.clipping_bias(spike).norm()) < 1e-12


@pytest.mark.parametrize("name", ["l2-bit-planes", "sqkr", "l2-block"])
def test_a_vector_made_for_the_rotation_is_clipped_and_the_bias_told(name):
    rotation = {"local_epsilon": 3.0, "dim": 256, "frame": "rotation"}
    clipping, bound = get(name, **rotation), get(name, level=16.0, **rotation)
    made = clipping._frame.reconstruct(torch.eye(256, dtype=torch.float64)[3]).unsqueeze(0)
    expected = 1 - clipping.level / 16
    assert float(clipping.clipping_bias(made).norm()) == pytest.approx(expected, rel=1e-9)
    assert float(clipping.variance(made)) <= clipping.worst_variance
    kashin = get(name, local_epsilon=3.0, dim=256, frame="kashin")
    for unbiased in (bound, kashin):
        assert float(unbiased.clipping_bias(made).norm()) < 1e-9
    assert kashin.worst_variance < bound.worst_variance / 10
