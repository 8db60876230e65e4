"""What every mechanism promises beyond what the conformance suite measures (test_conformance_builtin.py)."""

import math

import pytest
import torch

from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import LocalRandomizer, available, get
from shuffle_plugins.randomness import SeededRandomness


def build(name, **options):
    return get(name, **({"local_epsilon": 1.5, "dim": 1 if name == "binary-rr" else 6} | options))


NAMES = available("vectors", "categories")
VECTORS = [name for name in NAMES if isinstance(build(name), LocalRandomizer)]


@pytest.fixture(params=VECTORS)
def vectors(request):
    return build(request.param, radius=0.5)


def batch(mechanism, clients):
    """Rows of many lengths, inside and outside the ball."""
    x = torch.randn(clients, mechanism.dim, generator=torch.Generator().manual_seed(1))
    x *= mechanism.radius * torch.linspace(0.1, 2, clients).unsqueeze(1) / mechanism.dim**0.5
    x[0] = 0
    return x


def test_rows_in_blocks_are_randomised_as_one_matrix(vectors):
    rows = batch(vectors, 64)
    middle = rows.shape[1] // 2
    blocks = Rows([rows[:, :middle], rows[:, middle:]])
    for draw in (
        lambda x: vectors.sum(vectors.randomize(x, randomness=SeededRandomness(2), clip=True)),
        lambda x: vectors.randomize_sum(x, randomness=SeededRandomness(2)),
        vectors.clip,
        lambda x: vectors.variance(vectors.clip(x)),
    ):
        torch.testing.assert_close(draw(blocks), draw(rows), rtol=1e-5, atol=1e-5)


def test_l2_mechanisms_keep_a_long_rows_direction_and_linf_its_small_coordinates():
    rows = torch.tensor([[3.0, 4.0, 0.0], [0.1, -5.0, 0.2]])
    scaled = get("privunit", local_epsilon=1.0, dim=3, radius=1.0).clip(rows)
    torch.testing.assert_close(scaled[0], torch.tensor([0.6, 0.8, 0.0]))
    projected = get("linf-coordinate", local_epsilon=1.0, dim=3, radius=1.0).clip(rows)
    torch.testing.assert_close(projected[1], torch.tensor([0.1, -1.0, 0.2]))


@pytest.mark.parametrize("epsilon", [1e-9, 500.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_smallest_and_the_largest_local_epsilon_work(name, epsilon):
    mechanism = build(name, local_epsilon=epsilon)
    rows = batch(mechanism, 3) if name in VECTORS else torch.arange(3)
    if name in VECTORS:
        rows = mechanism.clip(rows)
    assert bool((mechanism.variance(rows) > (0 if epsilon < 1 else -1e-12)).all())  # but for rounding
    assert bool(mechanism.randomize_sum(rows, randomness=SeededRandomness(1)).isfinite().all())
    if mechanism.local_delta == 0:
        own = mechanism.blanket()
        assert 0 < own.mass <= 1
        assert own.differing <= 1 / (math.exp(epsilon) + 1) * (1 + 1e-9)
